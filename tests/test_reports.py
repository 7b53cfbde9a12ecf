"""Every report is the same text in a terminal, a pipe and a notebook, is shown once there, and has its figures."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.report import Report
from hybridflow.pictures import Picture
from tests.browsers import answer_of, browser, opened
from tests.notebooks import run_in_kernel

PACKAGE = Path(hf.__file__).parent
NOT_REPORTS = {"Tensor", "Variable", "Graph"}
"""The classes with an HTML form of their own: their text is read back, or is made at every step of a program."""


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))


def loss(x: Any) -> Any:
    return hf.sum(hf.tanh(x) * x)


def called() -> Any:
    compiled = hf.compile(loss)
    compiled(hf.ones((2, 4)))
    return compiled


def recorded() -> Any:
    x = hf.ones((2, 4))
    with hf.GradientTape() as tape:
        tape.watch(x)
        loss(x)
    return tape.memory()


def watched() -> Any:
    model = net()
    with model.watch() as watch:
        model(hf.ones((2, 4)))
    return watch


def profiled() -> Any:
    with hf.profile() as profile:
        loss(hf.ones((2, 4)))
    return profile


def simulated(estimate: Callable[..., Any], **options: Any) -> Any:
    step = hf.compile(lambda x: hf.mean(x), mesh=hf.Mesh({"data": 1}), batch="data")
    return estimate(step, hf.TensorSpec([1024, 64]), hardware="a100-80gb", **options)


SAMPLES: dict[str, Callable[[], Any]] = {
    "Advice": lambda: hf.advise(loss, hf.TensorSpec([2, 4]), memory="1 GiB"),
    "Comparison": lambda: hf.compare(loss, hf.ones((2, 4)), repeats=2),
    "Comparisons": lambda: hf.compare([loss, hf.sum], hf.ones((2, 4)), repeats=2),
    "CostReport": lambda: hf.cost(net(), hf.ones((2, 4))),
    "Explanation": lambda: called().explain(),
    "Layers": lambda: hf.cost(net(), hf.ones((2, 4))).layers,
    "MeshSweep": lambda: simulated(hf.simulate_meshes, devices=4),
    "PassHistory": lambda: called().lower(hf.ones((2, 4))).passes(),
    "Picture": lambda: Picture(called().graph(hf.ones((2, 4))), None),
    "Profile": profiled,
    "PruningReport": lambda: hf.prune.report(made := net(), hf.prune.channels(made, hf.ones((1, 4))), hf.ones((1, 4))),
    "QuantizationReport": lambda: hf.quantize.report(
        made := net(), hf.quantize.weights(made), hf.ones((2, 4)), repeats=1
    ),
    "RecordedMemory": recorded,
    "Simulation": lambda: simulated(hf.simulate, mesh={"data": 4}),
    "Summary": lambda: nn.summary(net(), hf.ones((2, 4))),
    "Sweep": lambda: hf.compare(loss, hf.TensorSpec([None, 4]), sizes=[2, 4], repeats=2),
    "ValueTable": lambda: hf.debugging.table(lambda a, b: a * b, 2.0, 3.0),
    "Watch": watched,
    "XlaCheck": lambda: hf.cost(net(), hf.ones((2, 4))).against_xla(),
}


def report_classes() -> set[type]:
    """Return the classes of reports in the whole package, those that others extend left out."""
    for path in PACKAGE.rglob("*.py"):
        if "Report" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(("hybridflow", *path.relative_to(PACKAGE).with_suffix("").parts)))
    found: set[type] = set()
    waiting: list[Any] = [Report]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if not getattr(one, "__abstractmethods__", None) and one.__module__.startswith("hybridflow."):
            found.add(one)
    return found


def test_every_report_has_a_sample():
    assert {one.__name__ for one in report_classes()} == set(SAMPLES)


def test_no_other_class_shows_itself():
    others: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = node.body if isinstance(node, ast.ClassDef) else []
            defined = {one.name for one in body if isinstance(one, ast.FunctionDef)}
            if defined & {"_repr_html_", "__rich__", "__rich_console__", "_repr_mimebundle_"}:
                others.add(cast(ast.ClassDef, node).name)
    assert others - {one.__name__ for one in (Report, *report_classes())} - {"Shown"} == NOT_REPORTS


@pytest.fixture(scope="module")
def reports() -> dict[str, Any]:
    return {name: make() for name, make in SAMPLES.items()}


class Tags(HTMLParser):
    """Checks that every tag is closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("br", "meta", "hr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_is_one_text_one_page_and_plain_values(
    name: str, reports: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    report = reports[name]
    assert type(report).__name__ == name
    text = str(report)
    assert text == repr(report) == f"{report}"
    assert text == "\n".join(line.rstrip() for line in text.splitlines())
    assert len(text) > 30
    html = report._repr_html_()
    tags = Tags()
    tags.feed(html)
    assert not tags.open
    json.dumps(report.to_dict())
    printed = io.StringIO()
    Console(file=printed, width=60, color_system=None).print(report)
    assert len(printed.getvalue()) > 30
    monkeypatch.setenv("COLUMNS", "40")
    terminal = os.openpty()
    for encoding in ("utf-8", "ascii", "latin-1", "cp1252"):
        with open(terminal[1], "w", encoding=encoding, closefd=False) as stream:
            monkeypatch.setattr("sys.stdout", stream)
            shown = str(report)
            monkeypatch.undo()
        assert shown.encode(encoding)
        assert shown == text or encoding != "utf-8"
    for end in terminal:
        os.close(end)


def text_of(outputs: Any) -> str:
    """Return what a cell printed, which a kernel may send in parts."""
    return "".join(one.text for one in outputs)


def seen(outputs: Any) -> list[Any]:
    """Return the outputs of a cell without those that are empty, such as the place of a progress that is done."""
    return [one for one in outputs if one.output_type != "display_data" or one.data["text/plain"]]


def test_a_notebook_shows_every_report_once_and_as_it_prints():
    root = str(PACKAGE.parent)
    made = f"""
import io, sys
sys.path.insert(0, {root!r})
from tests.test_reports import SAMPLES
reports = {{name: make() for name, make in SAMPLES.items()}}

def piped(name):
    own, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        return str(reports[name])
    finally:
        sys.stdout = own

texts = {{name: piped(name) for name in reports}}
"""
    sources = [made]
    for name in SAMPLES:
        sources += [f"reports[{name!r}]", f"print(reports[{name!r}])", f"print(texts[{name!r}])"]
    first, *rest = map(seen, run_in_kernel(*sources))
    assert not first
    for name, (shown, *more), printed, piped in zip(SAMPLES, rest[::3], rest[1::3], rest[2::3], strict=True):
        assert not more, name
        assert shown.output_type == "execute_result"
        assert set(shown.data) == {"text/plain", "text/html"}
        assert f"{shown.data['text/plain']}\n" == text_of(printed) == text_of(piped), name


MAGICS = {
    "%cost g({'a': x})": "Cost of one call of g",
    "%cost f(d)": "Cost of one call of g",
    "%compare f({'a': x}, repeats=2)": "SAME: eager and compiled results agree but for rounding.",
    "%compare (lambda z: z * 2)(x, repeats=2)": "<lambda>: eager and compiled",
    "%explain f": "hf.compare, which compiles the function anew",
    "%graph g(d)": "graph g(%t_a: f32[4])",
    "%graph f(t=d)": "graph g(%t_a: f32[4])",
    "%%profile\ny = f(d), f(d)": "g: 2 compiled calls",
    "def inner(own):\n    return get_ipython().run_line_magic('cost', 'g(own)')\ninner(d)": "Cost of one call of g",
}
MISTAKES = {
    "%cost g": "%cost takes a call of a function, as you would write it\n  got: g\n  Write %cost f(x).",
    "%compare": "%compare takes an expression on its line\n  Write %compare f(x).",
    "%graph f(": "%graph: this is not an expression of Python: '(' was never closed",
    "%explain g": "%explain takes a compiled function\n  got: g, of type function",
    "%%profile memory\n3": "%%profile takes nothing on its line\n  got: memory",
}


def test_magics_show_what_the_functions_of_their_names_return():
    made = """
import hybridflow as hf
x = hf.ones((4,))
d = {'a': x}
def g(t):
    return hf.tanh(t['a']) * 2
f = hf.compile(g)
f(d)
%load_ext hybridflow
"""
    others = ["%cost undefined(x)", "%%profile\n1 / 0", "r = %cost g(d)\nprint(r.flops)"]
    _, *outputs = map(seen, run_in_kernel(made, *MAGICS, *MISTAKES, *others))
    for source, (shown,) in zip(MAGICS, outputs, strict=False):
        assert MAGICS[source] in shown.data["text/plain"], source
        assert "text/html" in shown.data
    for source, (told,) in zip(MISTAKES, outputs[len(MAGICS) :], strict=False):
        assert (told.output_type, told.name) == ("stream", "stderr")
        assert told.text.startswith(f"UsageError: {MISTAKES[source]}"), source
    cells = [shown.data["text/plain"] for (shown,) in outputs[: len(MAGICS)]]
    pages = [shown.data["text/html"] for (shown,) in outputs[: len(MAGICS)]]
    assert not [text for text in (*cells, *pages) if "ipykernel" in text]
    assert all("In[1]:" in cells[number] for number in (0, 1, 2, 5, 6, 7))
    (unknown,), (failed,), (assigned,) = outputs[-3:]
    assert (unknown.ename, failed.ename, assigned.text) == ("NameError", "ZeroDivisionError", "8\n")
    assert not [line for one in (unknown, failed) for line in one.traceback if "magics.py" in line]


FITS = """
window.onload = () => {
  const cells = [...document.querySelectorAll("section")];
  const graphs = [...document.querySelectorAll("iframe")].map((one) => {
    one.contentDocument.querySelector("#fit").click();
    const page = one.contentDocument.querySelector("#graph").getBoundingClientRect();
    const world = one.contentDocument.querySelector("#graph > g").getBoundingClientRect();
    return [world.width > 20, world.left >= page.left, world.right <= page.right, world.bottom <= page.bottom];
  });
  const wide = cells.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.title);
  document.title = JSON.stringify({ wide, graphs, heights: cells.map((one) => one.clientHeight) });
};
"""
WIDE_STEP = """
import hybridflow as hf
from hybridflow import nn
%load_ext hybridflow
net = nn.Sequential(nn.LSTM(8, 16), lambda y: y[0], nn.Linear(16, 4))
optimizer = hf.optim.AdamW(net, rate=0.01)
x = hf.ones((2, 5, 8))
@hf.compile
def step(x):
    with hf.GradientTape() as tape:
        loss = hf.mean(net(x) ** 2)
    optimizer.update(tape.gradient(loss, net))
    return loss
_ = step(x)
"""
WIDE = ["%compare step(x, seconds=1)", "%cost step(x)", "%graph step(x)", "%explain step", "%%profile\nstep(x)",
        "nn.summary(net, x)", "x", "hf.debugging.table(lambda a: hf.sum(net(a) ** 2), x)"]


@browser
@pytest.mark.browser
def test_what_a_notebook_shows_fits_its_page(tmp_path: Path):
    _, *outputs = run_in_kernel(WIDE_STEP, *WIDE)
    html = [[one.data["text/html"] for one in cell if "text/html" in one.get("data", {})] for cell in outputs]
    cells = zip(WIDE, html, strict=True)
    sections = [f'<section title="{escape(source)}">{"".join(one)}</section>' for source, one in cells]
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><script>{FITS}</script><style>section {{ width: 800px; "
                    f"overflow: auto; font: 14px sans-serif }}</style>{''.join(sections)}")
    found = answer_of(opened(page.as_uri(), tmp_path))
    assert all(height > 10 for height in found["heights"])
    assert found["wide"] == []
    assert found["graphs"] == [[True] * 4]
