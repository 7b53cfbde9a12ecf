"""The layout: imports go one way, files stay small, nothing private of jax is used."""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import cast

import pytest
from processes import run_python

import hybridflow as hf
from hybridflow import later

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hybridflow"
ORDER = [
    "backend", "core", "ir", "pictures", "ops", "autodiff", "nested", "passes", "xla", "guards", "convert", "tracing",
    "explain", "transforms", "analysis", "distribute", "nn", "optim", "data", "metrics", "saving", "train", "models",
    "compress", "export", "serve", "testing", "compat", "cli",
]
"""The rooms from the ground up: a room imports from those before it."""
FILES = sorted(PACKAGE.rglob("*.py"))
NAMESPACE = {("core/tensor.py", "hybridflow")}
"""`Tensor.__array_namespace__` must answer with the public namespace, read when asked."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def rank(module: str) -> int:
    """Return a module's place in the order; the public modules at the top come between testing and compat."""
    parts = module.split(".")
    layer = parts[1] if len(parts) > 1 else ""
    return 2 * ORDER.index(layer) if layer in ORDER else 2 * ORDER.index("compat") - 1


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and absolute name of every hybridflow module a file imports, lazily or not."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "hybridflow":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "hybridflow":
                for alias in node.names:
                    yield node.lineno, f"hybridflow.{alias.name}" if alias.name in ORDER else "hybridflow"
            elif module.startswith("hybridflow."):
                yield node.lineno, module


def test_imports_go_one_way():
    wrong: list[str] = []
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        own = rank(".".join(("hybridflow", *relative.with_suffix("").parts)))
        if relative.as_posix() in ("__init__.py", "__main__.py"):
            continue
        wrong += [
            f"{relative}:{line} imports {module}"
            for line, module in imported(path)
            if rank(module) > own and (relative.as_posix(), module) not in NAMESPACE
        ]
    assert not wrong, "\n".join(wrong)


def at_the_top(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Yield the modules of hybridflow that a file imports when it is itself imported."""
    for node in parsed(path).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            name = f"{node.module}.{alias.name}"
            yield name if name in modules else str(node.module)


def test_no_two_modules_wait_for_each_other():
    names = [".".join(("hybridflow", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in FILES]
    modules = {name.removesuffix(".__init__"): path for name, path in zip(names, FILES, strict=True)}
    del modules["hybridflow"]  # its names come last
    graphlib.TopologicalSorter({name: set(at_the_top(path, modules)) for name, path in modules.items()}).prepare()


def test_imports_in_functions_say_why():
    """Modules of the package are imported in functions to start fast, with that reason on the first line of a block.

    Cycles have no such way out: see `core.attached`.
    """
    silent: list[str] = []
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for function in ast.walk(parsed(path)):
            before = 0
            for node in function.body if isinstance(function, ast.FunctionDef) else ():
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hybridflow"):
                    if "#" not in lines[node.lineno - 1] and before != node.lineno - 1:
                        silent.append(f"{path}:{node.lineno}: {node.module}")
                    before = cast(int, node.end_lineno)
    assert not silent, "\n".join(silent)


def test_every_room_has_its_place():
    assert {one.name for one in PACKAGE.iterdir() if one.is_dir() and one.name != "__pycache__"} == set(ORDER)


def test_functions_are_short():
    """80 lines, docstrings not counted."""
    long: dict[str, int] = {}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documented = (ast.get_docstring(node, clean=False) or "").count("\n")
                lines = cast(int, node.end_lineno) - node.lineno + 1 - documented
                if lines > 81:
                    long[f"{path.name}: {node.name}"] = lines
    assert not long


ONLY_LOOKS = {"isinstance", "issubclass", "len", "all", "any", "callable", "type"}


def _texts_without_encoding(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that read or write text in the encoding of the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(one.arg == "encoding" for one in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        mode = next((one.value for one in node.keywords if one.arg == "mode"), (*node.args, None, None)[1])
        binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
        method = isinstance(node.func, ast.Attribute)
        read, written = method and name == "read_text", method and name == "write_text"
        opened = name == "open" and not method and not binary
        if (read and not node.args) or (written and len(node.args) < 2) or opened:
            yield node


def test_texts_have_an_encoding_of_their_own():
    planted = "p.read_text(); p.write_text(x); open(p); open(p, 'w'); open(p, 'rb'); p.read_text('utf-8')"
    assert len(list(_texts_without_encoding(ast.parse(planted)))) == 4
    found = [f"{path}:{node.lineno}" for path in FILES for node in _texts_without_encoding(parsed(path))]
    assert not found, "the locale's encoding may lack characters: write encoding='utf-8'"


@pytest.mark.always
def test_asserts_only_look():
    """Python leaves asserts out with ``-O``: nothing may need what they do."""
    does: list[str] = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            for part in ast.walk(node.test) if isinstance(node, ast.Assert) else ():
                calls = isinstance(part, ast.Call) and ast.unparse(part.func) not in ONLY_LOOKS
                if calls or isinstance(part, ast.NamedExpr):
                    does.append(f"{path}:{part.lineno}: {ast.unparse(part)}")
    assert not does, "\n".join(does)


TURNED = {"reshape", "ravel", "flatten"}
IN_PLACE = {"copyto", "at", "put", "place", "putmask", "put_along_axis", "fill_diagonal"}
ITSELF = {"fill", "sort", "partition", "shuffle"}


def base(node: ast.expr) -> ast.expr:
    """Return what an expression indexes."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def is_turned(node: ast.expr) -> bool:
    """Whether an expression is an array in another shape: a view of that array, or a copy, by its memory layout."""
    node = base(node)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TURNED):
        return False
    receiver = node.args[0] if ast.unparse(node.func.value) == "np" else node.func.value
    return is_turned(receiver) or not isinstance(receiver, ast.Call)  # nobody else has what a call made


def written_to(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a function writes to in place."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from [target for target in node.targets if isinstance(target, ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            yield node.target
        elif isinstance(node, ast.Call):
            for out in [keyword.value for keyword in node.keywords if keyword.arg == "out"]:
                yield from out.elts if isinstance(out, ast.Tuple) else [out]
            if isinstance(node.func, ast.Attribute):
                yield from node.args[:1] if node.func.attr in IN_PLACE else ()
                yield from [node.func.value] if node.func.attr in ITSELF else ()


def written_through_a_turned_array(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every write through another shape of an array, whose own elements it may not reach."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            views = {
                target.id
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and is_turned(node.value)
                for target in node.targets
                if isinstance(target, ast.Name) and not ast.unparse(node.value).startswith(f"{target.id}.")
            }
            for target in written_to(function):
                whole = base(target)
                if is_turned(whole) or (isinstance(whole, ast.Name) and whole.id in views):
                    yield target.lineno, ast.unparse(target)


@pytest.mark.parametrize(
    "body",
    ["x.reshape(-1)[0] = 1", "rows = x.reshape(-1, 3)\n rows[0, i] -= 1", "y = np.ravel(x)\n np.add.at(y, i, 1)",
     "y = x.T.ravel()\n y *= 2", "np.exp(x, out=x.reshape(2, 3))", "x.reshape(-1)[2:].sort()"],
)
def test_a_write_through_another_shape_is_found(body: str):
    assert len([*written_through_a_turned_array(ast.parse(f"def f(x, i):\n {body}"))]) == 1


@pytest.mark.always
def test_nothing_is_written_through_another_shape():
    """`reshape` and `ravel` copy what they cannot view, as transposed arrays: what is written there is lost."""
    wrong = [f"{path}:{line}: {text}" for path in FILES for line, text in written_through_a_turned_array(parsed(path))]
    assert not wrong, "\n".join(wrong)


def test_semi_public_jax_is_imported_in_one_place():
    wrong: list[str] = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [f"{node.module}.{alias.name}" for alias in node.names]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            wrong += [
                f"{path}:{node.lineno}: {name}"
                for name in names
                if name.startswith(("jax.extend", "jax.experimental", "jax._src", "jax.interpreters"))
                and path != PACKAGE / "backend" / "jax_shim.py"
            ]
    assert not wrong, "\n".join(wrong)


def test_only_the_declared_dependencies_are_imported_at_the_top():
    allowed = {"hybridflow", "numpy", "jax", "jaxlib", "ml_dtypes", "rich"}
    wrong: list[str] = []
    for path in FILES:
        for node in parsed(path).body:
            module = (
                node.names[0].name
                if isinstance(node, ast.Import)
                else node.module
                if isinstance(node, ast.ImportFrom)
                else None
            )
            top = (module or "hybridflow").split(".")[0]
            if top not in allowed and top not in sys.stdlib_module_names:
                wrong.append(f"{path}:{node.lineno}: {module}")
    assert not wrong, "\n".join(wrong)


def test_the_version_is_the_changelogs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.index("## [Unreleased]") < changelog.find(f"## [{project['version']}]") or (
        f"## [{project['version']}]" not in changelog
    )
    assert f'__version__ = "{project["version"]}"' in (ROOT / "hybridflow/__init__.py").read_text(encoding="utf-8")


def test_what_is_imported_late_is_declared():
    """The names that `later` imports are those that type checkers are shown, and all are there."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (shown,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = {alias.asname for node in shown.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"analysis"} == {*later.MODULES, *later.NAMES}
    for name in names:
        assert name in dir(hf)
        assert getattr(hf, name) is not None
    with pytest.raises(AttributeError, match="module 'hybridflow' has no attribute 'nonsense'"):
        hf.nonsense  # noqa: B018


def test_importing_brings_along_only_what_is_needed():
    code = "import hybridflow, gc, sys; print(gc.get_threshold(), [m for m in sys.modules if m.startswith(LATE)])"
    late = (
        "rich", "jax.extend", "jax._src.pallas", "hybridflow.analysis", "hybridflow.testing", "matplotlib", "graphlib",
        "hybridflow.passes", "hybridflow.convert", "hybridflow.explain", "hybridflow.pictures",
        "hybridflow.xla.store",
    )
    printed = run_python(f"LATE = {late}\nimport gc\nprint(gc.get_threshold(), [])\n{code}").splitlines()
    assert printed[0] == printed[1]


def test_the_collector_neither_looks_at_what_an_import_made_nor_loses_what_was_there():
    code = """
import gc, weakref
class Node: pass
gone = Node()
gone.itself = gone
seen = weakref.ref(gone)
del gone
FROZEN
looks, before = [], len(gc.get_objects())
gc.callbacks.append(lambda phase, info: looks.append((phase, len(gc.get_objects(generation=1)))))
import hybridflow
made = [[] for _ in range(1000)]
print(max(size for _, size in looks) < before + 5000, gc.get_freeze_count() > 1000, gc.collect() > 0 and seen() is None)
"""
    assert run_python(code.replace("FROZEN", "")).split() == ["True", "False", "True"]
    assert run_python(code.replace("FROZEN", "gc.freeze()")).split()[1:] == ["True", "False"]
