"""The pages of the book that are made when it is built: the API reference, from docstrings, and pages of the package."""

from __future__ import annotations

import inspect
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hybridflow as hf
from hybridflow.ops.page import public_paths

ROOT = Path(__file__).parent.parent
NAMESPACES = {
    "hf": "Tensors, gradients, compilation", "hf.nn": "Neural networks", "hf.linalg": "Linear algebra",
    "hf.fft": "Fourier transforms", "hf.random": "Random numbers", "hf.optim": "Optimizers and schedules",
    "hf.data": "Data", "hf.metrics": "Metrics", "hf.train": "Training", "hf.export": "Artifacts", "hf.serve": "Serving",
    "hf.summary": "TensorBoard", "hf.debugging": "Debugging", "hf.testing": "Testing", "hf.config": "Settings",
    "hf.nn.init": "Initial values",
}
MADE = {
    "operations": ("hybridflow/ops/README.md", "The operations, and what each supports"),
    "parts": ("hybridflow/PARTS.md", "Layers, losses, optimizers, metrics"),
    "coming_from": ("hybridflow/COMING_FROM.md", "Coming from PyTorch, JAX, Keras, NumPy"),
    "changes": ("CHANGELOG.md", "Changes"),
}
"""Pages made of files of the repository: each with its file and its title in the book."""
SECTIONS = ("Args", "Returns", "Raises", "Yields", "Attributes", "Example", "Reference", "Kink")


def write(folder: Path) -> None:
    """Write the pages of the reference, and those of `MADE`, into a folder."""
    folder.mkdir(exist_ok=True)
    names = [name for name in NAMESPACES if _members(name)]
    for name in names:
        _put(folder / f"{name.replace('.', '_')}.md", _page(name))
    lines = "\n".join(name.replace(".", "_") for name in names)
    _put(folder / "index.md", f"# API reference\n\nEvery public name, with its docstring.\n\n```{{toctree}}\n{lines}\n```\n")
    for name, (file, title) in MADE.items():
        text = re.sub(r"^# .*", f"# {title}", (ROOT / file).read_text("utf-8"), count=1, flags=re.MULTILINE)
        _put(folder / f"{name}.md", _relinked(text, file))


def _put(path: Path, text: str) -> None:
    """Write a page, unless it is there already: Sphinx reads again what is new."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def _members(name: str) -> dict[str, Any]:
    module = hf
    for part in name.split(".")[1:]:
        module = getattr(module, part, None)
    listed = getattr(module, "__all__", None) or dir(module)
    own: dict[str, Any] = {}
    for key in sorted(set(listed)):
        value = getattr(module, key, None)
        if key.startswith("_") or not callable(value) or isinstance(value, types.ModuleType | type(hf.float32)):
            continue
        where = getattr(value, "__module__", None) or ""
        if not where.startswith("hybridflow") or not inspect.getdoc(value):
            continue
        if name == "hf" and where.startswith("hybridflow.ops.nn."):
            continue  # an alias, such as hf.relu
        own[key] = value
    return own


def _page(name: str) -> str:
    """Return the page of a namespace; operations under the headings of their families."""
    families = {path: family for path, (family, _) in public_paths().items()}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in _members(name).items():
        family = families.get(f"{name}.{key}", "")
        title = family.rpartition(".")[2].replace("_", " ").capitalize() if name == "hf" and family else ""
        groups[title].append(_entry(f"{name}.{key}", value))
    parts = [f"# {NAMESPACES[name]}: `{name}`"]
    for title in sorted(groups):
        parts += [f"## {title}"] if title else ["## Names"] if len(groups) > 1 else []
        parts += groups[title]
    return "\n\n".join(parts) + "\n"


def _entry(path: str, value: Any) -> str:
    level = "###" if path.count(".") == 1 else "##"
    parts = [f"{level} `{path}`", _signature(path, value), "\n".join(_markdown(inspect.getdoc(value) or ""))]
    if inspect.isclass(value):
        for key, member in vars(value).items():
            text = inspect.getdoc(member)
            if key.startswith("_") or not text or not (callable(member) or isinstance(member, property)):
                continue
            shown = f"`.{key}`" if isinstance(member, property) else f"`.{key}{_arguments(member)}`"
            first, *rest = _markdown(text)
            parts.append("\n".join([f"- {shown}: {first}", *[f"  {line}" if line else "" for line in rest]]))
    return "\n\n".join(parts)


def _arguments(value: Any) -> str:
    try:
        call = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = [one.replace(annotation=one.empty) for one in call.parameters.values() if one.name != "self"]
    text = str(call.replace(parameters=plain, return_annotation=call.empty))
    return re.sub(r"dtype\('(\w+)'\)", r"hf.\1", re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "...", text))


def _signature(path: str, value: Any) -> str:
    return f"```python\n{path}{_arguments(value)}\n```"


def _markdown(text: str) -> Iterator[str]:
    """Yield the lines of a docstring in Google's style as Markdown."""
    lines = inspect.cleandoc(text).splitlines()
    section = ""
    for line in lines:
        head = line.rstrip(":")
        if line.endswith(":") and head in SECTIONS:
            if section == "Example":
                yield "```"
            section = head
            yield from (f"**{head}**", "")
            if section == "Example":
                yield "```pycon"
        elif section == "Example":
            yield line[4:]
        elif section in ("Args", "Raises", "Attributes") and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            yield f"- `{name}`{colon}{_escaped(rest)}" if colon else f"- {_escaped(line.strip())}"
        elif section in ("Args", "Raises", "Attributes"):
            yield f"  {_escaped(line.strip())}" if line.strip() else ""
        else:
            yield _escaped(line.strip())
    if section == "Example":
        yield "```"


def _escaped(text: str) -> str:
    """Return a line with Markdown's signs as they are, outside of code."""
    parts = re.split(r"(``.*?``|`[^`]*`)", text)
    return "".join(one if one.startswith("`") else re.sub(r"([*_\[\]<>#|$])", r"\\\1", one) for one in parts)


def _relinked(text: str, file: str) -> str:
    """Return a page's text with its links for the book's folder."""
    folder = (ROOT / file).parent

    def moved(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        return f"](../{target.relative_to(ROOT)}" if target.is_relative_to(ROOT) and target.exists() else found[0]

    return link_of(re.sub(r"\]\(((?!https?:|#)[^)#\s]+)", moved, text), above="../")


def link_of(text: str, above: str = "") -> str:
    """Return a text whose links out of the book are links to pages of the book, where there are such, or no links.

    Args:
        text: the text.
        above: the way from its folder to that of the pages.
    """
    for name, (file, _) in MADE.items():
        text = text.replace(f"](../{file}", f"](./{above}api/{name}.md")
    text = text.replace("](../notebooks/", f"](./{above}")
    return re.sub(r"(?<!!)\[([^\[\]]*)\]\(\.\./[^)]*\)", r"\1", text)


def close_up(app: Any, name: str, source: list[str]) -> None:
    """Take the empty line out that ends examples for doctest, which a page would show."""
    del app, name
    lines: list[str] = []
    inside = False
    for line in source[0].split("\n"):
        if line.startswith("```"):
            if inside and lines and not lines[-1]:
                lines.pop()
            inside = not inside
        lines.append(line)
    source[0] = "\n".join(lines)


def link_out(app: Any, name: str, source: list[str]) -> None:
    """Change the links of a page that lead to files outside of the book, and the patterns in the list of contents."""
    if name.startswith("api/"):
        return  # made as it should be
    text = link_of(source[0])
    if name == "index":  # a pattern such as `model[s]` is a page that need not be there
        folder = Path(app.srcdir)
        text = re.sub(
            r"^(\w+)\[(\w)\]\n",
            lambda found: f"{found[1]}{found[2]}\n" if (folder / f"{found[1]}{found[2]}.md").exists() else "",
            text, flags=re.MULTILINE,
        )
    source[0] = text
