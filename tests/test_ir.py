"""The IR as text: what is printed, that exact text comes back as the same graph, and what is refused."""

from __future__ import annotations

import linecache
import random
import re
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow import ir
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import SHORT_NAMES, as_dtype
from hybridflow.core.errors import ParseError, VerifyError
from hybridflow.core.node import Node, make_node
from hybridflow.core.op import REGISTRY, No, Op
from hybridflow.core.sources import Constant
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.builder import Scope, trace_body
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, constant_node, input_node
from hybridflow.ir.printer import value_names
from hybridflow.testing.graphs import run_eagerly, same_bits

F4 = np.dtype("f4")
ANYTHING = "anything"


@pytest.fixture(autouse=True)
def anything() -> Iterator[Op]:
    """An op that takes any inputs and attributes and gives one float."""
    kernel = lambda *xs, **attrs: np.zeros((), "f4")  # noqa: E731
    REGISTRY[ANYTHING] = op = Op(
        ANYTHING, kernel, kernel, lambda *xs, **attrs: make_spec((), F4), No("a test's"), traits=frozenset({"nested"})
    )
    yield op
    del REGISTRY[ANYTHING]


def traced(function: Any, *specs: TensorSpec, names: Any = (), name: str = "f") -> Graph:
    return trace_body(function, specs, name, names).graph


def round_trip(graph: Graph) -> Graph:
    """Return the graph parsed from exact text, which must verify and print as the same text."""
    text = ir.print_graph(graph, elide=None)
    again = ir.parse(text)
    ir.verify(again)
    assert ir.print_graph(again, elide=None) == text
    return again


def carry(value: Any) -> Any:
    """Return an attribute value after printing and parsing."""
    node = make_node(REGISTRY[ANYTHING], (), {"value": value}, (make_spec((), F4),))
    return round_trip(Graph("f", (), (node,), ((node, 0),))).nodes[0].attrs["value"]


# -- printing -----------------------------------------------------------------------------------------------------


def test_a_graph_prints_as_ssa():
    graph = traced(
        lambda x, w: [hf.tanh(x @ w), x], TensorSpec([64, 784]), TensorSpec([784, 10]), names=["x", "w"], name="step"
    )
    assert ir.print_graph(graph, lines=False) == textwrap.dedent("""\
        graph step(%x: f32[64,784], %w: f32[784,10]) -> (f32[64,10], f32[64,784]) {
          %0 = matmul(%x, %w) : f32[64,10]
          %1 = tanh(%0) : f32[64,10]
          return %1, %x
        }""")
    assert str(graph) == repr(graph) == ir.print_graph(graph)


def test_lines_name_the_users_file_and_survive_parsing():
    graph = traced(lambda x: [hf.tanh(x)], TensorSpec([2]))
    line = test_lines_name_the_users_file_and_survive_parsing.__code__.co_firstlineno + 1
    assert f"  %0 = tanh(%x0) : f32[2]  # test_ir.py:{line}\n" in ir.print_graph(graph)
    assert round_trip(graph).nodes[0].location == f"test_ir.py:{line}"
    assert "#" not in ir.print_graph(graph, lines=False)


def test_input_names_are_kept_made_plain_and_unique():
    names = ["x", "x", "self.layers[0].weight", "batch['image']", "0", "", "x_1", "größe", "a b"]
    graph = traced(lambda *xs: [xs[0]], *[TensorSpec([])] * len(names), names=names)
    found = value_names(graph)
    printed = " ".join(found[node, 0] for node in graph.inputs)
    assert printed == "%x %x_1 %self_layers_0_weight %batch_image %_0 %input %x_1_1 %größe %a_b"
    round_trip(graph)


@pytest.mark.parametrize("name", ["<lambda>", "Model.step", "two words", 'quoted "', "a\\b", "naïve", ""])
def test_any_graph_name_survives(name: str):
    assert round_trip(traced(lambda x: [x], TensorSpec([]), name=name)).name == name


def test_constants_are_elided_for_reading_only():
    def f() -> Any:
        return [hf.asarray(np.arange(20)), hf.asarray(np.arange(16)), hf.asarray(np.zeros(100, "f4"))]

    graph = traced(f)
    text = ir.print_graph(graph, lines=False)
    assert "{value=i64[20] [0, 1, 2, ...]}" in text
    assert "14, 15]}" in text
    assert "{value=i64[20] [0, 1, 2, 3," in ir.print_graph(graph, elide=20)
    assert ir.print_graph(graph, elide=0).count("...") == 3
    exact = ir.print_graph(graph, elide=None)
    assert "..." not in exact
    assert f'{{value=f32[100] hex"{"00" * 400}"}}' in exact
    with pytest.raises(ParseError, match=r"line 2, column 44: expected all elements of i64\[20\], found '") as error:
        ir.parse(text)
    assert str(error.value).endswith("Print the graph with print_graph(graph, elide=None).")
    round_trip(graph)


def test_one_node_prints_alone_with_the_specs_of_its_operands():
    graph = traced(lambda x: [hf.sum(x, axis=0) * 2.0], TensorSpec([3, 2]))
    node = graph.nodes[0]
    assert ir.format_node(node, lines=False) == "sum(f32[3,2]) {axis=(0,), keepdims=False} : f32[2]"
    assert ir.format_node(node, value_names(graph), lines=False).startswith("%0 = sum(%x0) ")
    assert re.fullmatch(r".* : f32\[2\]  # test_ir.py:\d+", ir.format_node(node))


def test_an_eager_recording_prints():
    x = hf.asarray([1.0, 2.0])
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.tanh(x * 3.0)
    assert y._edge is not None
    tanh = y._edge[0]
    multiply = tanh.inputs[0][0]
    assert multiply.inputs[1] is None
    source = multiply.inputs[0][0]
    graph = Graph("recording", (source,), (multiply, tanh), ((tanh, 0),))
    text = ir.print_graph(graph, lines=False)
    assert text == textwrap.dedent("""\
        graph recording(%watched: f32[2]) -> (f32[2]) {
          %0 = multiply(%watched, _) : f32[2]
          %1 = tanh(%0) : f32[2]
          return %1
        }""")
    assert ir.print_graph(ir.parse(text)) == text
    with pytest.raises(VerifyError, match="input 1 of multiply has no producer"):
        ir.verify(graph)


def test_a_broken_graph_still_prints():
    graph = traced(lambda x: [hf.tanh(x)], TensorSpec([2]))
    broken = Graph("f", (), graph.nodes, ((graph.nodes[0], 3), (graph.inputs[0], 0)))
    assert ir.print_graph(broken, lines=False) == textwrap.dedent("""\
        graph f() -> (?, f32[2]) {
          %0 = tanh(%?) : f32[2]
          return %?, %?
        }""")


# -- round trips --------------------------------------------------------------------------------------------------

VALUES = [
    0, -1, 10**30, True, False, None, 1.0, -0.0, 1e-5, 5e-324, float("inf"), -float("inf"),
    "", "text", 'a "b" \\ # %0 \n é', (("axis", (0, 1)), ("dtype", np.dtype("f8"))),
    (), (1,), (1, 2), ((1,), (2.5, "x")), (None, True), ..., 1 + 2j, complex(-0.0, float("inf")),
    TensorSpec([2, 3], "bfloat16"), *SHORT_NAMES.values(),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_attribute_values_survive(value: Any):
    found = carry(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [float("nan"), -float("nan")])
def test_nan_keeps_its_sign(value: float):
    assert np.float64(carry(value)).tobytes() == np.float64(value).tobytes()


SCALARS = st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none())


@given(st.recursive(SCALARS, lambda value: st.tuples(value, value)))
def test_any_plain_value_survives(value: Any):
    assert repr(carry(value)) == repr(value)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(list(SHORT_NAMES.values())))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = int(np.prod(shape)) * draw(st.sampled_from([1, 1, 40]))
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape if count == int(np.prod(shape)) else (-1,))


@given(arrays())
def test_arrays_survive_bit_for_bit(array: Any):
    found = carry(Constant(array))
    assert found == Constant(array)


def test_array_literals_are_readable():
    def text(array: Any) -> str:
        node = constant_node(np.asarray(array))
        return ir.format_node(node, elide=None).split("=", 1)[1].split("}")[0]

    assert text(np.float32(0.1)) == "f32[] 0.1"
    assert text(np.array([[1, 2], [3, 4]], "i1")) == "i8[2,2] [[1, 2], [3, 4]]"
    assert text([True, False]) == "bool[2] [True, False]"
    assert text(np.array([-0.0, np.inf, -np.inf, np.nan, 1e-40], "f4")) == "f32[5] [-0.0, inf, -inf, nan, 1e-40]"
    assert text(np.array([1 + 2j], "c8")) == "c64[1] [complex(1.0, 2.0)]"
    assert text(np.zeros((2, 0), "f8")) == "f64[2,0] [[], []]"
    assert text(np.array(0x7FC00001, "u4").view("f4")) == 'f32[] hex"0100c07f"'
    assert text(np.array([0.5], as_dtype("bfloat16"))) == "bf16[1] [0.5]"


def test_opaque_values_print_but_do_not_parse():
    node = make_node(REGISTRY[ANYTHING], (), {"rule": round_trip, "x": np.int32(3)}, (make_spec((), F4),))
    text = ir.print_graph(Graph("f", (), (node,), ((node, 0),)))
    assert '{rule=opaque("function round_trip"), x=opaque("int32")}' in text
    with pytest.raises(ParseError, match="expected a value that text can hold, found a function round_trip\n") as error:
        ir.parse(text)
    assert str(error.value).endswith("This graph exists only in the process that traced it.")


def test_nested_graphs_print_as_blocks_and_survive():
    inner = traced(lambda a: [hf.tanh(a) * 2.0], TensorSpec([2]), names=["a"], name="body")
    other = traced(lambda a: [a], TensorSpec([2]), names=["a"], name="other")
    x = input_node(make_spec((2,), F4), "x")
    attrs = {"body": inner, "branches": (inner, other), "length": 3, "attrs": (("graph", other),)}
    node = make_node(REGISTRY[ANYTHING], ((x, 0),), attrs, (make_spec((), F4),))
    graph = Graph("f", (x,), (node,), ((node, 0),))
    assert ir.print_graph(graph, lines=False) == textwrap.dedent("""\
        graph f(%x: f32[2]) -> (f32[]) {
          %0 = anything(%x) {
            body=graph body(%a: f32[2]) -> (f32[2]) {
              %0 = tanh(%a) : f32[2]
              %1 = constant() {value=f32[] 2.0} : f32[]
              %2 = multiply(%0, %1) : f32[2]
              return %2
            },
            branches=(graph body(%a: f32[2]) -> (f32[2]) {
              %0 = tanh(%a) : f32[2]
              %1 = constant() {value=f32[] 2.0} : f32[]
              %2 = multiply(%0, %1) : f32[2]
              return %2
            }, graph other(%a: f32[2]) -> (f32[2]) {
              return %a
            }),
            length=3,
            attrs=(("graph", graph other(%a: f32[2]) -> (f32[2]) {
              return %a
            }),)
          } : f32[]
          return %0
        }""")
    again = round_trip(graph)
    assert [type(value) for value in again.nodes[0].attrs["branches"]] == [Graph, Graph]


SYMBOLIC = """\
graph f[b=4, n=3](%x: f32[b,2*b*n+1], %y: f32[((b)//(2)),((b+n)%(3))]) -> (f32[b,2*b*n+1]) {
  guard b == 1 is False
  guard 2*b*n+1 >= n is True
  %0 = anything(%x) {size=-b+3, shape=(b, ((b)//(2)), 7), body=graph g(%a: f32[b]) -> (f32[b]) {
  return %a
  }} : f32[]
  return %x
}"""


def test_symbolic_sizes_survive_and_nothing_is_asked_of_them():
    graph = ir.parse(SYMBOLIC)
    ir.verify(graph)
    assert graph.dims.hints == {"b": 4, "n": 3}
    assert list(map(str, graph.dims.guards)) == ["b == 1 is False", "2*b*n+1 >= n is True"]
    assert graph.dims.holds({"b": 5, "n": 3})
    assert not graph.dims.holds({"b": 1, "n": 3})
    size = graph.inputs[0].spec().shape[1]
    assert isinstance(size, Dim)
    assert size.scope is graph.dims
    inner = graph.nodes[0].attrs["body"]
    assert inner.dims is graph.dims
    assert [str(value) for value in graph.nodes[0].attrs["shape"]] == ["b", "((b)//(2))", "7"]
    again = round_trip(graph)
    assert len(again.dims.guards) == 2
    assert "graph g(" in ir.print_graph(again)


def test_symbolic_shapes_are_verified_without_new_guards():
    text = """
    graph f[b=4](%x: f32[b,3], %y: f32[3]) -> (f32[b,3]) {
      %0 = add(%x, %y) : f32[b,3]
      return %0
    }"""
    graph = ir.parse(text)
    ir.verify(graph)
    assert not graph.dims.guards
    bad = text.replace("-> (f32[b,3])", "-> (f32[b+1,3])").replace(") : f32[b,3]", ") : f32[b+1,3]")
    with pytest.raises(VerifyError, match=re.escape("records f32[b+1,3], but add gives f32[b,3]")):
        ir.verify(ir.parse(bad))


def test_a_parsed_graph_computes_the_same_bits(rng: np.random.Generator):
    weights = rng.standard_normal((3, 200)).astype("f4")

    def f(x: Any) -> Any:
        return [hf.tanh(x @ hf.asarray(weights)) / 3.0, hf.sum(x, axis=-1)]

    graph = traced(f, TensorSpec([5, 3]))
    value = rng.standard_normal((5, 3)).astype("f4")
    first, second = (evaluate(one, [value], run_eagerly) for one in (graph, round_trip(graph)))
    assert all(map(same_bits, first, second))


# -- what the parser refuses --------------------------------------------------------------------------------------


def body(*lines: str) -> str:
    return "\n".join(["graph f(%x: f32[2]) -> (f32[2]) {", *lines, "}"])


BAD_TEXTS = [
    ("", 1, 1, "expected 'graph', found the end of the text"),
    ("graph", 1, 6, "expected the graph's name, found the end of the text"),
    ("graph f(%x: f32[2] -> ()", 1, 20, "expected ',' or ')', found '->'"),
    ("graph f(x: f32[2])", 1, 9, "expected an input such as %x, found 'x'"),
    ("graph f(%x: float[2])", 1, 13, "expected a dtype, found 'float'"),
    ("graph f(%x: f33[2])", 1, 13, "expected a dtype, found 'f33'\n  graph f(%x: f33[2])\n              ^\n  Did"),
    ("graph f(%x: f32[-2])", 1, 17, "expected a size, found '-'"),
    ("graph f(%x: f32[2.0])", 1, 17, "expected a size, found '2.0'"),
    ("graph f(%x: f32[b])", 1, 17, "expected an attribute value, found 'b'"),
    ("graph f(%x: f32[2], %x: f32[2])", 1, 21, "expected a new name, found %x, which is defined already"),
    ("graph f[f32=2]()", 1, 9, "expected a name for a size, found 'f32'"),
    ("graph f[b=2.5]()", 1, 11, "expected an integer, found '2.5'"),
    ("graph f[b=2](%x: f32[b//0])", 1, 22, "expected a divisor other than 0"),
    ("graph f[b=2](%x: f32[b+1.5])", 1, 22, "expected sizes around an operator"),
    ("graph f() -> (f32[2]) { return }", 1, 15, "expected (), which is what the graph returns, found (f32[2])"),
    ("graph f() -> () { return } graph", 1, 28, "expected the end of the text, found 'graph'"),
    ("graph f() -> () { guard 1 == 1 is True return }", 1, 25, "expected a symbolic size"),
    ("graph f[b=1]() -> () { guard b = 1 is True return }", 1, 32, "expected one of ==, <, <=, >, >=, found '='"),
    ("graph f[b=1]() -> () { guard b == 1 is 3 return }", 1, 40, "expected True or False, found '3'"),
    ("graph f[b=1]() -> () { guard b == 1 is maybe return }", 1, 40, "expected True or False, found 'maybe'"),
    (body("  %0 = tahn(%x) : f32[2]"), 2, 8, "\n         ^\n  Did you mean"),
    (body("  %0 = zzzzzzz(%x) : f32[2]"), 2, 8, "No registered operation is called so;"),
    (body("  %0 = tanh(%y) : f32[2]"), 2, 13, "expected a value defined above, found '%y'"),
    (body("  %0 = tanh(%1) : f32[2]", "  %1 = tanh(%0) : f32[2]"), 2, 13, "expected a value defined above, found '%1'"),
    (body("  %0 tanh(%x) : f32[2]"), 2, 6, "expected '=', found 'tanh'"),
    (body("  %0 = tanh(%x)"), 3, 1, "expected ':', found '}'"),
    (body("  %0, %1 = tanh(%x) : f32[2]"), 2, 12, "expected 2 specs, one per result, found 1 for tanh"),
    (body("  %0 = tanh(%x) : f32[2]", "  %0 = tanh(%x) : f32[2]"), 3, 3, "expected a new name, found %0, which"),
    (body("  return %x", "  %0 = tanh(%x) : f32[2]"), 3, 3, "expected ',' or '}', found '%0'"),
    (body("  %0 = anything(%x) {a} : f32[]"), 2, 23, "expected '=', found '}'"),
    (body("  %0 = anything(%x) {a=1, a=2} : f32[]"), 2, 27, "expected a new attribute, found 'a'"),
    (body("  %0 = anything(%x) {a=} : f32[]"), 2, 24, "expected an attribute value, found '}'"),
    (body("  %0 = anything(%x) {a=Ture} : f32[]"), 2, 24, "Did you mean True?"),
    (body("  %0 = anything(%x) {a=-True} : f32[]"), 2, 25, "expected a number, found 'True'"),
    (body('  %0 = anything(%x) {a="\\q"} : f32[]'), 2, 24, "expected a string with JSON's escapes"),
    (body("  %0 = anything(%x) {a=complex(1)} : f32[]"), 2, 32, "expected two numbers, found '1'"),
    (body("  %0 = anything(%x) {a=f32[2] [1.0]} : f32[]"), 2, 35, "expected 2 elements on axis 0 of f32[2]"),
    (body("  %0 = anything(%x) {a=f32[1] [1.0, 2.0]} : f32[]"), 2, 35, "expected ']' after 1 elements on axis 0"),
    (body("  %0 = anything(%x) {a=f32[] True} : f32[]"), 2, 30, "expected an element of float32, found 'True'"),
    (body("  %0 = anything(%x) {a=i32[] 1.5} : f32[]"), 2, 30, "expected an element of int32, found '1.5'"),
    (body("  %0 = anything(%x) {a=i8[] 300} : f32[]"), 2, 29, "expected elements of i8[], found 300 does not fit int8"),
    (body("  %0 = anything(%x) {a=f32[?] 1.5} : f32[]"), 2, 24, "expected an array with integer sizes, found f32[?]"),
    (body('  %0 = anything(%x) {a=f32[] hex"00"} : f32[]'), 2, 33, "expected 4 bytes for f32[], found 1 bytes"),
    (body('  %0 = anything(%x) {a=f32[] hex"zz"} : f32[]'), 2, 33, "expected hexadecimal digits"),
    (body("  %0 = anything(%x) {a=$} : f32[]"), 2, 24, "expected an attribute value, found '$'"),
]


@pytest.mark.parametrize(("text", "line", "column", "expected"), BAD_TEXTS, ids=lambda value: None)
def test_what_is_wrong_is_shown_where_it_is(text: str, line: int, column: int, expected: str):
    with pytest.raises(ParseError) as error:
        ir.parse(text)
    found = str(error.value)
    assert found.startswith(f"parse: line {line}, column {column}: ")
    assert expected in found
    assert isinstance(error.value, ValueError)
    shown = found.splitlines()
    if len(shown) > 2:
        assert shown[2].index("^") == column + 1


HOSTILE_TEXTS = {
    "deep parentheses": body(f"  %0 = anything(%x) {{a={'(' * 100_000}}} : f32[]"),
    "deep tuples that end": body(f"  %0 = anything(%x) {{a={'(' * 200}1{',)' * 200}}} : f32[]"),
    "signs": body(f"  %0 = anything(%x) {{a={'-' * 100_000}1}} : f32[]"),
    "deep graphs": "graph f() -> () { anything() {a=" * 5_000,
    "digits": body(f"  %0 = anything(%x) {{a={'9' * 100_000}}} : f32[]"),
    "digits of a size": f"graph f[b={'9' * 100_000}]() -> () {{ return }}",
    "a size that grows": body(f"  %0 = anything(%x) {{a={'*'.join(['9' * 39] * 10_000)}}} : f32[]"),
    "terms that grow": f"graph f[a=2,b=3,c=5](%x: f32[{'*'.join(['(a+b*b+c*c*c+a*b+c+1)'] * 30)}]) -> () {{ return }}",
    "axes": f"graph f(%x: f32[{'1,' * 100_000}]) -> () {{ return }}",
    "rows": body(f"  %0 = anything(%x) {{a=f32[{'1,' * 60}] {'[' * 50_000}}} : f32[]"),
    "a file of spaces": body(f"  %0 = anything(%x) : f32[]  # {' ' * 200_000}x", "  $"),
    "a line number without end": body(f"  %0 = anything(%x) : f32[]  # a.py:{'1' * 100_000}", "  $"),
    "strings without an end": 'graph ' + '"\\' * 200_000,
    "a long line": "graph f(" + " " * 500_000 + "nonsense",
    "a long word": "graph f() -> () { " + "x" * 500_000,
    "half a pair": body('  %0 = anything(%x) {a="\\ud800"} : f32[]'),
    "what a terminal would obey": "graph f() -> () { \x1b[2J\u202e }",
    "many names": "graph f(" + ", ".join([f"%a{n}: f32[]" for n in range(20_000)]) + ") -> () { return %b }",
}


@pytest.mark.parametrize("case", HOSTILE_TEXTS)
def test_no_text_takes_long_or_raises_anything_else(case: str):
    start = time.process_time()
    with pytest.raises(ParseError) as error:
        ir.parse(HOSTILE_TEXTS[case])
    assert time.process_time() - start < 5
    assert len(str(error.value)) < 2000
    assert all(letter.isprintable() or letter == "\n" for letter in str(error.value))


def test_a_text_that_somebody_has_changed_is_a_graph_or_a_parse_error():
    @hf.compile
    def f(x: Any, n: Any) -> Any:
        y = hf.where(x > 0, x, hf.asarray([[0.5, hf.nan, hf.inf]]))
        for _ in range(n):
            y = hf.tanh(y) * y.shape[0]
        y = y[:, ::2] if hf.sum(y) > 0 else y[..., 1:]
        return hf.random.normal(y.shape) + y

    graph = f.graph(hf.TensorSpec((None, 3)), hf.TensorSpec((), hf.int32))
    pieces = re.findall(r"\w+|\S|\s+", ir.print_graph(graph, elide=None))
    more = [*pieces, "-", "(", "graph", "%x", "9" * 50, '"', "\\", "f32[", "1e999", "hex", "complex(", "\0", "#a:9"]
    rng = random.Random(5)
    parsed = 0
    for _ in range(400):
        changed = pieces[:]
        for _ in range(rng.randint(1, 3)):
            first = rng.randrange(len(changed))
            last = first + rng.choice([0, 1, 1, 2, 30])
            changed[first:last] = rng.choice([[], changed[first:last] * 3, [rng.choice(more), rng.choice(more)]])
        try:
            ir.parse("".join(changed))
            parsed += 1
        except ParseError:
            continue
    assert 0 < parsed < 200


def test_a_text_that_is_nested_deeper_than_pythons_stack_is_refused():
    with pytest.raises(ParseError, match=r"parse: Python's stack is too short for the text"):
        ir.parse(HOSTILE_TEXTS["deep parentheses"], depth=100_000)


def test_layout_and_comments_do_not_matter():
    text = "# a comment\ngraph f (%x:f32[2],)->(f32[2],){%y=tanh(%x,):f32[2] # another\nreturn %y}"
    assert [node.op.name for node in ir.parse(text).nodes] == ["tanh"]


# -- what verify refuses ------------------------------------------------------------------------------------------


def parts() -> tuple[Node, Node, Node]:
    """Return an input and two nodes that read it."""
    x = input_node(make_spec((2,), F4), "x")
    a = make_node(REGISTRY["tanh"], ((x, 0),), {}, (make_spec((2,), F4),))
    return x, a, make_node(REGISTRY["tanh"], ((a, 0),), {}, (make_spec((2,), F4),))


def wrong(graph: Graph) -> str:
    with pytest.raises(VerifyError) as error:
        ir.verify(graph)
    return str(error.value)


def test_a_good_graph_verifies():
    x, a, b = parts()
    ir.verify(Graph("f", (x,), (a, b), ((b, 0), (x, 0), (b, 0))))


def test_order_and_single_assignment():
    x, a, b = parts()
    assert "input 0 of tanh is read before it is defined" in wrong(Graph("f", (x,), (b, a), ((b, 0),)))
    assert "tanh is in the graph twice" in wrong(Graph("f", (x,), (a, a, b), ((b, 0),)))
    assert "the same node is two inputs" in wrong(Graph("f", (x, x), (a,), ((a, 0),)))
    assert "input 0 of tanh comes from a node (tanh) that is not" in wrong(Graph("f", (x,), (b,), ((b, 0),)))
    assert "an input is among the nodes" in wrong(Graph("f", (), (x, a), ((a, 0),)))
    assert "tanh is not an input" in wrong(Graph("f", (x, a), (), ()))
    constant = constant_node(np.zeros(2, "f4"))
    assert "constant is not an input" in wrong(Graph("f", (constant,), (), ()))


def test_edges_and_outputs_must_exist():
    x, a, b = parts()
    assert "output 1 comes from a node (tanh) that is not" in wrong(Graph("f", (x,), (a,), ((a, 0), (b, 0))))
    assert "output 0 is output 1 of tanh, which has 1" in wrong(Graph("f", (x,), (a,), ((a, 1),)))
    c = make_node(REGISTRY["tanh"], ((a, 2),), {}, (make_spec((2,), F4),))
    assert "input 0 of tanh is output 2 of tanh, which has 1" in wrong(Graph("f", (x,), (a, c), ((c, 0),)))


def test_ops_must_be_registered():
    x, _, _ = parts()
    op = Op("mine", No(""), lambda x: x, lambda x: x, No(""))
    node = make_node(op, ((x, 0),), {}, (make_spec((2,), F4),))
    assert "mine is not a registered operation" in wrong(Graph("f", (x,), (node,), ((node, 0),)))


def test_specs_must_be_what_the_op_gives():
    x, _, _ = parts()
    for outputs, text in [
        ((make_spec((3,), F4),), "the node records f32[3], but tanh gives f32[2]"),
        ((make_spec((2, 1), F4),), "the node records f32[2,1], but tanh gives f32[2]"),
        ((make_spec((2,), np.dtype("f8")),), "the node records f64[2], but tanh gives f32[2]"),
        ((make_spec((2,), F4),) * 2, "the node records 2 outputs, but tanh gives 1"),
    ]:
        node = make_node(REGISTRY["tanh"], ((x, 0),), {}, outputs)
        assert text in wrong(Graph("f", (x,), (node,), ((node, 0),)))
    for inputs, attrs, text in [
        (((x, 0), (x, 0)), {}, "tanh does not take 2 inputs with the attributes none"),
        (((x, 0),), {"axis": 1}, "tanh does not take 1 inputs with the attributes axis"),
    ]:
        node = make_node(REGISTRY["tanh"], inputs, attrs, (make_spec((2,), F4),))
        assert text in wrong(Graph("f", (x,), (node,), ((node, 0),)))
    integers = input_node(make_spec((2,), np.dtype("i4")), "i")
    node = make_node(REGISTRY["tanh"], ((integers, 0),), {}, (make_spec((2,), F4),))
    assert "tanh does not accept its inputs or attributes: tanh: does not take int32" in wrong(
        Graph("f", (integers,), (node,), ((node, 0),))
    )


def test_attributes_must_be_hashable_and_nested_graphs_right():
    x, a, b = parts()
    for attrs, text in [
        ({"axes": [0, 1]}, "verify: f: attribute axes of anything is a list, which is not hashable"),
        ({"body": Graph("inner", (x,), (b, a), ((b, 0),))}, "verify: inner: input 0 of tanh is read before"),
        ({"all": (1, (Graph("inner", (x,), (b, a), ((b, 0),)),))}, "verify: inner: input 0 of tanh is read before"),
    ]:
        node = make_node(REGISTRY[ANYTHING], ((x, 0),), attrs, (make_spec((), F4),))
        assert text in wrong(Graph("f", (x,), (node,), ((node, 0),)))


def test_nodes_of_another_trace_are_refused():
    x, a, b = parts()
    x.scope = a.scope = Scope("mine", None)
    ir.verify(Graph("f", (x,), (a, b), ((b, 0),)))
    b.scope = Scope("other", None)
    assert "tanh belongs to another trace: 'other', not 'mine'" in wrong(Graph("f", (x,), (a, b), ((b, 0),)))


def test_the_error_shows_the_ir_around_the_node_and_the_users_line():
    graph = traced(lambda x: [hf.exp(hf.tanh(hf.tanh(hf.tanh(x) + x)) * x)], TensorSpec([2]))
    line = test_the_error_shows_the_ir_around_the_node_and_the_users_line.__code__.co_firstlineno + 1
    source = linecache.getline(__file__, line)
    assert "hf.exp(" in source
    node = graph.nodes[2]
    node.outputs = (make_spec((7,), F4),)
    assert wrong(graph) == "\n".join([
        "verify: f: the node records f32[7], but tanh gives f32[2]",
        f"  %0 = tanh(%x0) : f32[2]  # test_ir.py:{line}",
        f"  %1 = add(%0, %x0) : f32[2]  # test_ir.py:{line}",
        f"> %2 = tanh(%1) : f32[7]  # test_ir.py:{line}",
        f"  %3 = tanh(%2) : f32[2]  # test_ir.py:{line}",
        f"  %4 = multiply(%3, %x0) : f32[2]  # test_ir.py:{line}",
        f"  at {__file__}:{line}: {source.strip()}",
    ])


def test_name_scopes_are_read_as_they_are_written(tmp_path):
    def scoped(x: Any) -> Any:
        with hf.name_scope("encoder/layer 1"):
            return hf.tanh(x)

    graph = hf.compile(scoped).graph(hf.asarray([1.0]))
    text = hf.ir.print_graph(graph)
    assert text.splitlines()[1].endswith(" encoder/layer 1")
    assert hf.ir.print_graph(hf.ir.parse(text)) == text
    assert [node.scope_name for node in hf.ir.parse(text).nodes] == ["encoder/layer 1"]
    hf.export.save(tmp_path / "f.hf", scoped, hf.TensorSpec([1]))
    assert [node.scope_name for node in hf.export.load(tmp_path / "f.hf").predict.graph().nodes] == ["encoder/layer 1"]
