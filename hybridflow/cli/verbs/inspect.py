"""``hybridflow inspect``: print, or write as pages, everything about a function of a file or about an artifact."""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from hybridflow.analysis.compare import count_kernels
from hybridflow.analysis.cost import CostReport, cost_body
from hybridflow.analysis.parity import fresh_copy
from hybridflow.backend.files import write_text
from hybridflow.cli.arguments import TARGET_HELP, add_shapes
from hybridflow.cli.artifacts import DIGEST_HELP, lines_of, load_artifact
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_files, require_folder
from hybridflow.cli.targets import Target, load_target
from hybridflow.core.errors import ArgumentError
from hybridflow.core.html import page
from hybridflow.pictures import framed
from hybridflow.tracing.explanation import Explanation
from hybridflow.tracing.lowered import Lowered

HELP = "show a function's graphs, cost and memory, and why it was traced; or what is in an artifact"
STAGES = {
    "graph": "Graph, as traced",
    "optimized": "Graph, after the passes",
    "stablehlo": "StableHLO, as handed to XLA",
    "hlo": "HLO, as XLA optimised it",
}
"""The texts that pages have too."""
MACHINE_CODE = ("llvm", "assembly")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "target", metavar="FILE.py:FUNCTION|ARTIFACT", help=f"{TARGET_HELP}; or a directory that hf.export.save wrote"
    )
    add_shapes(parser)
    parser.add_argument("--digest", metavar="SHA256", help=DIGEST_HELP)
    parser.add_argument("--self-test", action="store_true", help="run an artifact's functions on its samples")
    parser.add_argument("--as", dest="stage", choices=[*STAGES, *MACHINE_CODE], help="print this text alone")
    parser.add_argument("--out", "--html", type=Path, help="a page to write (.html), or a folder of pages and texts")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Print a function's graphs, the cost and memory of a call, and why it was traced; or only one of its texts."""
    path = Path(arguments.target)
    if path.is_dir() or (path.suffix != ".py" and path.exists()):
        return _run_artifact(arguments, console)
    if arguments.digest is not None or arguments.self_test:
        option = "--digest" if arguments.digest is not None else "--self-test"
        raise ArgumentError(f"inspect: {option} is for artifacts", got=arguments.target)
    page_path: Path | None = arguments.out
    (require_files if _is_page(page_path) else require_folder)("inspect", page_path)
    target = load_target(arguments.target, arguments.shapes, values=False)
    compiled = fresh_copy(target.function)
    with users_errors():
        lowered = compiled.lower(*target.args, **target.kwargs)
    cost = compiled.cost(*target.args, **target.kwargs)
    if arguments.stage is not None:
        # Print nothing else, so that the output can be redirected.
        console.file.write(lowered.as_text(arguments.stage).rstrip() + "\n")
    else:
        _print(lowered, cost, compiled.explain(), console)
    if page_path is not None:
        written = _write(page_path, target, lowered, cost, compiled.explain())
        Console(stderr=True).print(f"Page: {written}", markup=False, highlight=False, soft_wrap=True)
    return True


def _run_artifact(arguments: argparse.Namespace, console: Console) -> bool:
    """Print what is in an artifact, or only the graphs of its functions."""
    if arguments.stage not in (None, "graph") or arguments.out is not None or arguments.shapes is not None:
        raise ArgumentError(f"inspect: {arguments.target!r} is an artifact, of which --as graph is the only text",
                            hint="Leave out --shapes, --out and other texts.")
    path = Path(arguments.target)
    artifact = load_artifact(path, arguments.digest)
    graphs = [str(one.graph()) for one in artifact.functions.values()]
    console.file.write("\n".join(lines_of(path, artifact) if arguments.stage is None else graphs) + "\n")
    if arguments.self_test:
        console.file.write(f"Self-test: {', '.join(artifact.self_test())} as in the samples\n")
    return True


def _print(lowered: Lowered, cost: CostReport, explained: Explanation, console: Console) -> None:
    for stage in ("graph", "optimized"):
        console.rule(STAGES[stage], align="left")
        console.print(lowered.as_text(stage), markup=False, highlight=False, soft_wrap=True)
    console.rule("Cost and memory of one call", align="left")
    cost.print(console)
    count = count_kernels(lowered.as_text("hlo"))
    console.print(f"{count} kernel{'' if count == 1 else 's'}, besides those in loops and branches", highlight=False)
    console.rule("Why", align="left")
    console.print(explained.tree())
    console.print("Texts for XLA and of it: --as stablehlo, hlo, llvm, assembly; pages: --out", highlight=False)


def _is_page(path: Path | None) -> bool:
    return path is not None and path.suffix in (".html", ".htm")


def _write(path: Path, target: Target, lowered: Lowered, cost: CostReport, explained: Explanation) -> Path:
    """Write one page, or a folder of pages with an index, and return the path to open."""
    if _is_page(path):
        write_text(path, page(f"{target.name}: inspected", _body(target, lowered, cost, explained)))
        return path
    path.mkdir(exist_ok=True)
    pages: dict[str, tuple[str, Any]] = {
        "graph.html": ("The graph after the passes", lowered.graph.to_html),
        "passes.html": ("What each pass changed", lowered.passes().to_html),
        "cost.html": ("Cost and memory of one call", cost.to_html),
        "why.html": ("Why it was traced", explained.to_html),
    }
    for name, (_, write) in pages.items():
        write(path / name)
    texts = {f"{stage}.txt": title for stage, title in STAGES.items()}
    for stage in STAGES:
        write_text(path / f"{stage}.txt", lowered.as_text(stage))
    titles = {name: title for name, (title, _) in pages.items()} | texts
    links = "".join(f'<li><a href="{name}">{escape(title)}</a></li>' for name, title in titles.items())
    write_text(path / "index.html", page(f"{target.name}: inspected", f"{_heading(target)}<ul>{links}</ul>"))
    return path / "index.html"


def _heading(target: Target) -> str:
    return f"<h1>{escape(target.name)}</h1>"


def _body(target: Target, lowered: Lowered, cost: CostReport, explained: Explanation) -> str:
    parts = [_heading(target), "<h2>Why</h2>", explained._repr_html_(), "<h2>Cost and memory</h2>", cost_body(cost)]
    parts += ["<h2>The graph after the passes</h2>", lowered.graph._repr_html_()]
    parts += ["<h2>What each pass changed</h2>", framed(lowered.passes().page()), "<h2>Texts</h2>"]
    for stage, title in STAGES.items():
        text = escape(lowered.as_text(stage))
        parts.append(f"<details><summary>{title}</summary><pre>{text}</pre></details>")
    return "\n".join(parts)
