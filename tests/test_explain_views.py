"""What `fn.explain()` shows of passes and executables, each figure against a count of its own, and its three views."""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pipelines import use_limits
from rich.console import Console

import hybridflow as hf
from hybridflow.explain.views import Item, trace_item
from hybridflow.passes import run_passes
from hybridflow.xla.store import stored_programs

HERE = Path(__file__).name


def variables(*sizes: tuple[int, int]) -> list[hf.Variable]:
    rng = np.random.default_rng(0)
    return [hf.Variable(rng.normal(size=s).astype(np.float32), name=f"w{i}") for i, s in enumerate(sizes)]


def training_step(wrap: Any = lambda layer: layer) -> tuple[Any, tuple[Any, ...]]:
    w0, w1, scale = ws = variables((6, 8), (8, 6), (1, 1))

    def layer(x: Any, w: Any) -> Any:
        h = hf.tanh(x @ w)
        return hf.sin(h) * h

    @hf.compile
    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            h = wrap(layer)(wrap(layer)(x, w0), w1)
            loss = hf.mean(hf.square(h * scale + 0.5))
        for w, g in zip((w0, w1), tape.gradient(loss, (w0, w1)), strict=True):
            w.assign_sub(0.1 * g)
        return loss

    return step, (hf.ones((4, 6)), ws)


def count(graph: Any) -> int:
    """Count nodes by looking for graphs in every attribute."""

    def inside(value: Any) -> int:
        if isinstance(value, hf.Graph):
            return count(value)
        return sum(map(inside, value)) if isinstance(value, tuple) else 0

    return len(graph.nodes) + sum(inside(value) for node in graph.nodes for value in node.attrs.values())


# -- figures ------------------------------------------------------------------------------------------------------


def looping(x: Any) -> Any:
    return hf.scan(lambda h, row: (hf.tanh(h + row * 1.0) + 0.0, hf.sum(h)), x[0], x)[1]


@pytest.mark.parametrize("which", ["step", "loop"])
def test_nodes_before_and_after_each_pass(which: str):
    fn, x = (hf.compile(looping), hf.ones((3, 2))) if which == "loop" else (
        training_step()[0], training_step()[1][0]
    )
    fn(x)
    lowered = fn.lower(x)
    (record,) = fn.explain()
    changes: list[tuple[str, int, int]] = []
    final, _ = run_passes(
        lowered.traced, differentiable=False,
        on_change=lambda one, before, after: changes.append((one.name, count(before), count(after))),
    )
    told = [(one.name, one.nodes_before, one.nodes_after) for one in record.passes]
    assert [one for one in told if one[1] != one[2]] == [one for one in changes if one[1] != one[2]]
    assert told[0][1] == count(lowered.traced)
    assert told[-1][2] == count(final) == count(lowered.graph)
    assert all(one[2] == other[1] for one, other in pairwise(told))
    assert f"passes: {count(lowered.traced)} -> {count(final)} nodes" in str(record)


def test_times_are_parts_of_the_whole():
    step, (x, _) = training_step()
    start = time.perf_counter()
    step(x)
    whole = (time.perf_counter() - start) * 1e3
    (record,) = step.explain()
    assert record.passes_ms == pytest.approx(sum(one.milliseconds for one in record.passes))
    parts = record.trace_ms, record.passes_ms, record.lower_ms, record.xla_ms
    assert min(parts) > 0
    assert sum(parts) < whole
    (made,) = record.executables
    assert (made.lower_ms, made.xla_ms) == (record.lower_ms, record.xla_ms)


def test_options_are_what_jax_was_given(monkeypatch: pytest.MonkeyPatch):
    given: list[dict[str, Any]] = []
    plain = jax.jit

    def spy(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs.get("compiler_options") or {})
        return plain(*args, **kwargs)

    monkeypatch.setattr(jax, "jit", spy)
    step, (x, _) = training_step()
    step(x)
    (made,) = step.explain()[0].executables
    assert made.options in given
    for name, value in made.options.items():
        assert f"{name}={value!r}" in str(step.explain())


def aliased(hlo: str) -> set[int]:
    """Return the parameters that the program's header says share memory with a result."""
    found = re.search(r"input_output_alias={(.*?) }, ", hlo)
    return set() if found is None else {int(one) for one in re.findall(r"\((\d+), ", found[1])}


def test_donated_buffers_are_those_that_xla_reuses():
    step, (x, ws) = training_step()
    step(x)
    lowered = step.lower(x)
    (made,) = step.explain()[0].executables
    names = [node.attrs["name"] for node in lowered.graph.inputs]
    assert {names[index] for index in aliased(lowered.as_text("hlo"))} == set(made.donated) == {"w0", "w1"}
    assert "donated: the buffers of all Variables that it writes, for their new values" in str(step.explain())
    del ws


def test_nothing_is_donated_where_nothing_is():
    v = hf.Variable([1.0, 2.0])

    @hf.compile
    def prints(x: Any) -> Any:
        v.assign_add(x)
        hf.print(hf.sum(x))
        return v * x

    prints(hf.ones(2))
    only_reads = hf.compile(lambda x: v * x)
    only_reads(hf.ones(2))
    for fn in (prints, only_reads):
        assert not aliased(fn.lower(hf.ones(2)).as_text("hlo"))
        assert fn.explain()[0].executables[0].donated == ()
        assert "donated" not in str(fn.explain())


def kernels_of(hlo: str) -> dict[str, set[str]]:
    """Return the fusions that run on their own, with the numbered scopes in each, read from the text anew."""
    bodies = dict(re.findall(r"^(?:ENTRY )?%([\w.-]+) \(.*?\{\n(.*?)^\}", hlo, re.DOTALL | re.MULTILINE))
    fused = set(re.findall(r" fusion\(.*?calls=%([\w.-]+)", hlo))
    found: dict[str, set[str]] = {}
    for name, text in bodies.items():
        for line in text.splitlines() if name not in fused else ():
            call = re.search(r"%([\w.-]+) = .* fusion\(.*?calls=%([\w.-]+)", line)
            if call is not None:
                scopes = ";".join(re.findall(r'op_name="([^"]*)"', line + bodies[call[2]])).split(";")
                found[call[1]] = {re.findall(r"hfn\d+", scope)[-1] for scope in scopes if "hfn" in scope}
    return found


@pytest.mark.parametrize("which", ["step", "loop"])
def test_fused_operations_are_those_in_one_kernel(which: str):
    fn, x = (hf.compile(looping), hf.ones((3, 2))) if which == "loop" else (
        training_step()[0], training_step()[1][0]
    )
    fn(x)
    lowered = fn.lower(x)
    fused = fn.explain()[0].executables[0].fused()
    assert fused
    counted = kernels_of(lowered.as_text("hlo"))
    known = Counter(node.op.name for node in lowered.graph.walk())
    for one in fused:
        assert 1 < sum(one.operations.values()) <= len(counted[one.name])
        assert all(times <= known[name] for name, times in one.operations.items())
    assert sum(len(numbers) > 1 for numbers in counted.values()) >= len(fused)
    text = f"{sum(sum(one.operations.values()) for one in fused)} operations in {len(fused)} kernel"
    assert text in str(fn.explain())


def test_fused_operations_have_the_lines_they_come_from():
    @hf.compile
    def fn(x: Any) -> Any:
        a = hf.tanh(x)
        b = a * 3.0
        return hf.exp(b)

    fn(hf.ones(1000))
    (fused,) = fn.explain()[0].executables[0].fused()
    first = fn.python_function.__code__.co_firstlineno
    assert fused.operations == {"tanh": 1, "multiply": 1, "exp": 1}
    assert set(fused.lines) == {f"{HERE}:{first + line}" for line in (2, 3, 4)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stored_programs, "_WORTH_KEEPING", 0.0)
    with hf.config.cache(tmp_path / "store"):
        yield


def test_a_loaded_executable_tells_the_lines_of_who_loads_it(store: None):
    del store

    def first(x: Any) -> Any:
        return hf.exp(hf.tanh(x) * 3.0)

    def second(x: Any) -> Any:
        a = hf.tanh(x)
        return hf.exp(a * 3.0)

    texts: list[tuple[str, tuple[str, ...]]] = []
    for function in (first, second):
        fn = hf.compile(function, name="same")
        fn(hf.ones(1000))
        (made,) = fn.explain()[0].executables
        (fused,) = made.fused()
        assert fused.operations == {"tanh": 1, "multiply": 1, "exp": 1}
        texts.append((made.store, fused.lines))
    one, two = first.__code__.co_firstlineno + 1, second.__code__.co_firstlineno + 1
    assert texts[0] == ("stored", (f"{HERE}:{one}",))
    assert texts[1][0] == "loaded"
    assert set(texts[1][1]) == {f"{HERE}:{two}", f"{HERE}:{two + 1}"}


def test_outlined_graphs(monkeypatch: pytest.MonkeyPatch):
    use_limits(monkeypatch, outline={"nodes": 0, "period": 3, "repeats": 2})

    def repeated(x: Any) -> Any:
        for _ in range(5):
            x = hf.roll(hf.tanh(x @ x) * x, 1)
        return x

    fn = hf.compile(repeated)
    fn(hf.ones((4, 4)))
    graph = fn.graph(hf.ones((4, 4)))
    calls = [node for node in graph.nodes if node.op.name == "outlined"]
    found = fn.explain()[0].outlined
    assert sum(one.calls for one in found) == len(calls) > 1
    assert {one.nodes for one in found} == {len(node.attrs["graph"].nodes) for node in calls}
    assert f"compiled once and called {found[0].calls} times" in str(fn.explain())
    assert f"from {HERE}:{repeated.__code__.co_firstlineno + 2}" in str(fn.explain())


def test_loops_of_repeats(monkeypatch: pytest.MonkeyPatch):
    use_limits(monkeypatch, outline={"nodes": 0, "period": 3}, roll={"steps": 4})

    def run(x: Any, rows: Any) -> Any:
        for number in range(5):
            x = hf.tanh(x @ x) * rows[number]
        return hf.scan(lambda h, row: (seven(h, row), None), x, rows)[0]

    def seven(x: Any, row: Any) -> Any:
        for number in range(7):
            x = hf.sin(x) * hf.cos(x) + row[number] * 0.5
        return x

    fn, args = hf.compile(run), (hf.ones((7, 7)), hf.ones((30, 7, 7)))
    fn(*args)
    found = fn.explain()[0].rolled
    loops = [node.attrs["graph"] for node in fn.graph(*args).walk() if node.op.name == "rolled"]
    assert [one.runs for one in found] == [5, 7]
    assert [one.nodes for one in found] == [len(graph.nodes) for graph in loops]
    assert fn.explain()[0].outlined == ()
    lines = [run.__code__.co_firstlineno + 2, seven.__code__.co_firstlineno + 2]
    for one, line in zip(found, lines, strict=True):
        text = f"rolled: {one.nodes} nodes from {HERE}:{line}, run {one.runs} times as a loop"
        assert text in str(fn.explain())
        assert text in unescape(re.sub("<[^>]*>", "", fn.explain()._repr_html_()))
        assert text in shown(fn.explain())


def test_what_checkpoints_compute_again_is_what_the_graph_has_more_of():
    plain, (x, _) = training_step()
    again, _ = training_step(hf.checkpoint)
    plain(x), again(x)
    assert plain.explain()[0].recomputed == ()
    found = again.explain()[0].recomputed
    told = Counter({name: 0 for one in found for name in one.operations})
    for one in found:
        told.update(one.operations)
    counts = [Counter(node.op.name for node in fn.graph(x).walk()) for fn in (again, plain)]
    counts[0].subtract(counts[1])
    del counts[0]["tied"]
    assert told == +counts[0]
    more = [hf.cost(fn, x).flops for fn in (again, plain)]
    assert sum(one.flops for one in found) == more[0] - more[1]
    assert "computed again by checkpoints" in str(again.explain())


def test_a_checkpoint_in_a_loop_counts_every_step():
    def total(x: Any, checkpointed: bool) -> Any:
        def body(h: Any, row: Any) -> tuple[Any, None]:
            run = hf.checkpoint(lambda h: hf.tanh(h @ h)) if checkpointed else lambda h: hf.tanh(h @ h)
            return run(h) + row, None

        return hf.sum(hf.scan(body, x[0], x)[0])

    def gradient(x: Any, checkpointed: bool) -> Any:
        return hf.grad(lambda x: total(x, checkpointed))(x)

    fn, x = hf.compile(gradient), hf.ones((7, 4, 4))
    fn(x, True), fn(x, False)
    one, other = fn.explain()
    products = 7 * 2 * 4**3
    assert sum(again.flops for again in one.recomputed) >= products
    assert other.recomputed == ()


def test_an_executable_that_was_dropped_says_so():
    fn = hf.compile(lambda x: hf.exp(hf.tanh(x)))
    fn(hf.ones(100))
    kept = fn.explain()[0].executables[0]
    fn.clear_cache()
    assert kept.fused() is None
    assert "fused: not known any more" in str(fn.explain())
    fn(hf.ones(100))
    made = fn.explain()[1].executables[0]
    before = made.fused()
    fn.clear_cache()
    assert made.fused() == before


# -- views --------------------------------------------------------------------------------------------------------


def facts(item: Item) -> Iterator[str]:
    yield str(item)
    for inner in item.items:
        yield from facts(inner)


def shown(renderable: Any) -> str:
    text = io.StringIO()
    Console(width=400, color_system=None, file=text).print(renderable)
    return text.getvalue()


def test_the_text_the_tree_and_the_page_say_the_same(tmp_path: Path):
    step, (x, _) = training_step(hf.checkpoint)
    step(x)
    step(hf.ones((9, 6)))
    explained = step.explain()
    explained.to_html(tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    tree = shown(explained.tree())
    plain = unescape(re.sub(r"<[^>]*>", "", page))
    wanted = [fact for record in explained for fact in facts(trace_item(record))]
    assert len(wanted) > 40
    for fact in wanted:
        if "more, in" not in fact:
            assert fact in tree
            assert fact in plain
            assert fact in str(explained)
    assert page.startswith("<!doctype html>")
    assert "http" not in page
    assert page.count("<details") == page.count("</details>")
    assert explained._repr_html_() in page
    assert shown(explained) == tree


def test_the_page_lists_what_the_text_leaves_out():
    @hf.compile
    def fn(x: Any) -> Any:
        for w in ws:
            x = hf.tanh(x @ w)
        return x

    ws = variables(*[(3, 3)] * 30)
    fn(hf.ones((3, 3)))
    assert "more, in .guards" in str(fn.explain())
    assert "ws[29]" not in str(fn.explain())
    assert "ws[29]" in fn.explain()._repr_html_()


def test_the_table_has_a_row_per_trace():
    fn = hf.compile(lambda x: hf.tanh(x) * 2, dynamic=False, name="f")
    for size in (2, 3):
        fn(hf.ones(size))
    table = fn.explain().table()
    assert table.row_count == 2
    text = shown(table)
    for part in ("f: 2 traces", "x: f32[2] -> f32[3]", "3 -> 3", "first call", f"{HERE}:"):
        assert part in text


def test_advice_is_in_every_view_with_its_line():
    fn = hf.compile(lambda x: x * 2)
    fn(hf.ones(3))
    (advice,) = fn.explain().advice
    line = f"{HERE}:{test_advice_is_in_every_view_with_its_line.__code__.co_firstlineno + 1}"
    assert advice.line is not None
    assert advice.line.endswith(line)
    for text in (str(fn.explain()), shown(fn.explain().tree()), unescape(fn.explain()._repr_html_())):
        assert line in text
        assert advice.text in text
        assert advice.hint in text


def test_names_and_markup_of_the_users_are_text():
    fn = hf.compile(lambda x, mode: hf.tanh(x), name="<b>[red]")
    fn(hf.ones(3), "<i>[bold]x")
    assert "<b>" not in fn.explain()._repr_html_().replace("<p><b>", "")
    assert "<i>" not in fn.explain()._repr_html_()
    for view in (fn.explain().tree(), fn.explain().table()):
        assert "<b>[red]" in shown(view)
        assert "<i>[bold]x" in shown(view)
