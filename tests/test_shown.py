"""How terminals and notebooks show tensors, graphs and costs: figures against NumPy's, and `repr` as it was."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.console import Console

import hybridflow as hf
from hybridflow.core.show import BINS, blocks, summary_of


def shown(renderable: Any, width: int = 200) -> str:
    text = io.StringIO()
    Console(width=width, color_system=None, file=text).print(renderable)
    return text.getvalue()


FLOATS = hnp.arrays(
    st.sampled_from([np.float32, np.float64]), hnp.array_shapes(min_dims=0, min_side=0, max_side=9),
    elements=st.floats(width=32),
)


@given(FLOATS)
def test_a_summary_is_what_numpy_says_of_each_element(array: np.ndarray[Any, Any]):
    found = summary_of(array)
    finite = [float(x) for x in array.reshape(-1) if math.isfinite(x)]
    assert found.nans == sum(math.isnan(x) for x in array.reshape(-1))
    assert found.infinities == sum(math.isinf(x) for x in array.reshape(-1))
    assert found.zeros == sum(x == 0 for x in array.reshape(-1))
    assert (found.low, found.high) == ((min(finite), max(finite)) if finite else (None, None))
    if finite:
        scale = max(map(abs, finite))
        assert found.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-12, abs=1e-12 * scale)
        exact = math.sqrt(math.fsum((x - math.fsum(finite) / len(finite)) ** 2 for x in finite) / len(finite))
        assert found.deviation == pytest.approx(exact, rel=1e-6, abs=1e-6 * scale)
    assert len(found.bars) in (0, BINS)
    assert sum(found.bars) in (0, len(finite))


def test_summaries_of_other_kinds():
    assert summary_of(np.array([True, False, True])).zeros == 1
    wide = summary_of(np.array([2**62, -(2**62)], np.int64))
    assert (wide.low, wide.high, wide.mean) == (-(2**62), 2**62, 0.0)
    assert summary_of(np.array([3 + 4j, 0])).high == 5.0
    assert summary_of(np.array([-1.7e308, 1.7e308] * BINS)).bars == (BINS, *[0] * (BINS - 2), BINS)
    assert summary_of(hf.asarray([1.0, math.nan], dtype=hf.bfloat16).numpy()).nans == 1


def test_blocks_show_every_bar_that_is_not_empty():
    assert blocks((0, 1, 1000, 500)) == " ▁█▄"


def test_a_large_tensor_is_summarised():
    x = np.linspace(-1, 3, 1000, dtype=np.float32).reshape(10, 100)
    x[0, 0], x[0, 1] = np.nan, np.inf
    tensor = hf.asarray(x)
    text = shown(tensor)
    for part in ("Tensor f32[10,100]", "n=1,000", "3.9 KiB", "1 NaN!", "1 Inf!", "█", "mean=1.004", ", 3]"):
        assert part in text
    assert text.count("\n") == 1
    html = tensor._repr_html_()
    for part in ("Tensor f32[10,100]", "n=1,000", "1 NaN!", "<svg"):
        assert part in html
    assert html.count("<rect") == BINS
    ElementTree.fromstring(html)
    assert repr(tensor).startswith("Tensor([[")


def test_a_small_tensor_shows_its_values_too():
    text = shown(hf.asarray([1, 2, 3]))
    assert text == "Tensor i32[3] n=3 12 B x∈[1, 3] mean=2 sd=0.8165\n[1, 2, 3]\n"
    assert "<pre>[1, 2, 3]</pre>" in hf.asarray([1, 2, 3])._repr_html_()
    assert shown(hf.asarray(2.5)) == "Tensor f32[] n=1 4 B\n2.5\n"
    assert "1 True" in shown(hf.asarray([True, False]))
    assert "all zeros" in shown(hf.zeros(100))
    assert "n=0" in shown(hf.zeros((3, 0)))


def test_a_variable_shows_its_name_and_keeps_its_buffer():
    v = hf.Variable([1.0, 2.0], name="<b>")
    assert "Variable <b> f32[2]" in shown(v)
    assert "Variable &lt;b&gt; f32[2]" in v._repr_html_()
    assert repr(v) == "Variable([1., 2.], dtype=float32, name='<b>')"
    step = hf.compile(lambda: v.assign_add(hf.ones(2)))
    step()
    shown(v)
    step()
    assert v.numpy().tolist() == [3.0, 4.0]


def test_a_traced_tensor_has_no_values_yet():
    texts: list[str] = []

    def fn(x: Any) -> Any:
        texts.extend([shown(x), x._repr_html_()])
        return x * 2

    hf.compile(fn)(hf.ones(3))
    assert all("f32[3]" in text and "traced" in text for text in texts)


def test_a_graph_in_colours_is_its_text():
    graph = hf.compile(lambda x: hf.tanh(x) * 2).graph(hf.ones(3))
    assert shown(graph) == f"{graph}\n"
    styles = {str(span.style) for span in graph.__rich__().spans}
    assert styles == {"bold cyan", "bold", "green", "dim"}


def test_profiles_and_comparisons_are_shown_as_they_print():
    ws = [hf.ones((8, 8))]

    def fn(x: Any) -> Any:
        return hf.tanh(x @ ws[0])

    with hf.profile() as profile:
        fn(ws[0])
    assert [line.rstrip() for line in shown(profile, 140).splitlines()] == [
        line.rstrip() for line in str(profile).splitlines()
    ]
    found = hf.compare(fn, ws[0], repeats=2)
    text = shown(found, 120)
    assert "SAME" in text
    for line in found.findings():
        assert line in " ".join(text.split())


# -- costs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> Any:
    ws = [hf.ones((8, 8)) for _ in range(2)]

    def loss(x: Any) -> Any:
        for i in range(2):
            x = hf.tanh(x @ ws[i])
        return hf.sum(x)

    return hf.cost(hf.grad(loss), hf.ones((64, 8)))


def test_costs_are_shown_with_code_that_looks_like_markup(report: Any):
    for text in (shown(report), report._repr_html_(), str(report)):
        assert "ws[i]" in text
        assert f"{report.flops:,}" in text
    printed = io.StringIO()
    report.print(Console(file=printed, width=200))
    assert "ws[i]" in printed.getvalue()


def test_the_page_of_costs(report: Any, tmp_path: Path):
    report.to_html(tmp_path / "cost.html")
    page = (tmp_path / "cost.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert page.count("<tr>") > len(report.nodes) + len(report.lines)
    picture = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    path = next(one for one in picture.iter() if one.get("stroke") == "#1f5fa8")
    # Every step's height above the base is its share of the peak's.
    heights = [float(one) for one in re.findall(r"V([\d.]+)", path.get("d"))]
    base, steps = heights[-1], heights[:-1]
    stored = [moment.bytes for moment in report.memory.timeline]
    assert len(steps) == len(stored)
    scale = (base - min(steps)) / max(stored)
    assert [(base - one) / scale for one in steps] == pytest.approx(stored, abs=0.2 / scale)
    assert "peak " in "".join(picture.itertext())


def test_costs_with_open_sizes_have_no_picture(tmp_path: Path):
    hf.cost(lambda x: hf.tanh(x), hf.TensorSpec([None, 4])).to_html(tmp_path / "cost.html")
    page = (tmp_path / "cost.html").read_text(encoding="utf-8")
    assert "<svg" not in page
    assert "x_0" in page
