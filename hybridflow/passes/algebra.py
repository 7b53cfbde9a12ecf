"""Algebra that is exact: every rewrite gives the same bits, for NaN, infinities and signed zeros too.

A rule identifies ops by their traits, never by their names. An op takes part if its definition lists the trait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from ml_dtypes import finfo

from hybridflow.core.dims import Dim, SizeFloat, same_size
from hybridflow.core.dtypes import DType, is_floating, is_integer, kind_of, promote_types
from hybridflow.core.errors import DTypeError
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Op
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph
from hybridflow.ir.verify import same_spec
from hybridflow.ops.arithmetic import plus_zero
from hybridflow.passes.cse import attrs_key
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, changed, rewrite

SCANNED = 4096
"""Larger constants are not searched for one repeated value."""

Found = Edge | Node | None


class Rule(NamedTuple):
    """A rewrite of the ops that have any of some traits; a `final` rule keeps the values but not every gradient."""

    name: str
    traits: frozenset[str]
    rewrite: Callable[[Node], Found]
    final: bool


RULES: list[Rule] = []
"""The rules in the order in which they are tried; filled by `rule`."""


def rule(*traits: str, final: bool = False) -> Callable[[Callable[[Node], Found]], Callable[[Node], Found]]:
    """Make a function a rule for ops with any of the traits; its docstring's example is its test.

    Args:
        traits: the traits.
        final: whether it is valid only for a graph that is not differentiated any more.
    """

    def decorate(function: Callable[[Node], Found]) -> Callable[[Node], Found]:
        RULES.append(Rule(cast(Any, function).__name__, frozenset(traits), function, final))
        return function

    return decorate


@graph_pass()
def algebra(graph: Graph, context: PassContext) -> Graph:
    """Drop operations that change nothing, and join those that add up; `dead_code` removes what is left over.

    Before:
        graph f(%x: f32[2,3]) -> (f32[2,3]) {
          %0 = constant() {value=f32[] 1.0} : f32[]
          %1 = multiply(%x, %0) : f32[2,3]
          %2 = permute_dims(%1) {axes=(1, 0)} : f32[3,2]
          %3 = permute_dims(%2) {axes=(1, 0)} : f32[2,3]
          %4 = tanh(%3) : f32[2,3]
          return %4
        }

    After:
        graph f(%x: f32[2,3]) -> (f32[2,3]) {
          %0 = constant() {value=f32[] 1.0} : f32[]
          %1 = permute_dims(%x) {axes=(1, 0)} : f32[3,2]
          %2 = tanh(%x) : f32[2,3]
          return %2
        }
    """
    rules: dict[Op, tuple[Rule, ...]] = {}

    def visit(node: Node) -> Replacement | Node | None:
        op = node.op
        mine = rules.get(op)
        if mine is None:
            mine = rules[op] = _rules_of(op, context)
        for one in mine:
            rewritten = one.rewrite(node)
            if rewritten is not None:
                context.notes[one.name] += 1
                return rewritten if isinstance(rewritten, Node) else Replacement((rewritten,))
        return None

    return rewrite(graph, visit)


def _rules_of(op: Op, context: PassContext) -> tuple[Rule, ...]:
    allowed = [one for one in RULES if not (one.final and context.differentiable)]
    return tuple([one for one in allowed if not one.traits.isdisjoint(op.traits)])


# -- ops that change nothing --------------------------------------------------------------------------------------


@rule("identity", final=True)
def drop_identity(node: Node) -> Found:
    """Drop an op that exists for its gradient, once gradients are taken.

    Before:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = assign(%x) : f32[2]
          %1 = tanh(%0) : f32[2]
          return %1
        }

    After:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = tanh(%x) : f32[2]
          return %0
        }
    """
    return None if has_effect(node) else _input(node)


@rule("conversion")
def drop_conversion(node: Node) -> Found:
    """Drop a change of shape or dtype that changes neither.

    Before:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = astype(%x) {dtype=f32} : f32[2]
          %1 = broadcast_to(%0) {shape=(2,)} : f32[2]
          %2 = tanh(%1) : f32[2]
          return %2
        }

    After:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = tanh(%x) : f32[2]
          return %0
        }
    """
    source = _input(node)
    return source if same_spec(_spec(source), node.spec()) else None


@rule("conversion")
def drop_round_trip(node: Node) -> Found:
    """Drop two changes of shape or dtype that end where they began, if the dtype between holds every value.

    Before:
        graph f(%x: bf16[2,3]) -> (bf16[2,3], bf16[2,3]) {
          %0 = astype(%x) {dtype=f32} : f32[2,3]
          %1 = astype(%0) {dtype=bf16} : bf16[2,3]
          %2 = reshape(%1) {shape=(6,)} : bf16[6]
          %3 = reshape(%2) {shape=(2, 3)} : bf16[2,3]
          return %1, %3
        }

    After:
        graph f(%x: bf16[2,3]) -> (bf16[2,3], bf16[2,3]) {
          %0 = astype(%x) {dtype=f32} : f32[2,3]
          %1 = reshape(%x) {shape=(6,)} : bf16[6]
          return %x, %x
        }
    """
    middle = _input(node)[0]
    if "conversion" not in middle.op.traits:
        return None
    source = _input(middle)
    if same_spec(_spec(source), node.spec()) and holds(middle.spec().dtype, _spec(source).dtype):
        return source
    return None


@rule("reshape")
def join_reshapes(node: Node) -> Found:
    """Reshape once instead of twice.

    Before:
        graph f(%x: f32[2,6]) -> (f32[4,3]) {
          %0 = reshape(%x) {shape=(12,)} : f32[12]
          %1 = reshape(%0) {shape=(4, 3)} : f32[4,3]
          return %1
        }

    After:
        graph f(%x: f32[2,6]) -> (f32[4,3]) {
          %0 = reshape(%x) {shape=(12,)} : f32[12]
          %1 = reshape(%x) {shape=(4, 3)} : f32[4,3]
          return %1
        }
    """
    middle = _input(node)[0]
    if "conversion" not in middle.op.traits:
        return None
    before, after = _spec(_input(middle)), middle.spec()
    if before.dtype != after.dtype or not same_size(before.size, after.size):
        return None
    return changed(node, (_input(middle),))


@rule("permute")
def join_permutations(node: Node) -> Found:
    """Permute axes once instead of twice, and not at all if they end in their old order.

    Before:
        graph f(%x: f32[2,3,4]) -> (f32[4,2,3], f32[2,3,4]) {
          %0 = permute_dims(%x) {axes=(0, 2, 1)} : f32[2,4,3]
          %1 = permute_dims(%0) {axes=(1, 0, 2)} : f32[4,2,3]
          %2 = permute_dims(%1) {axes=(1, 2, 0)} : f32[2,3,4]
          return %1, %2
        }

    After:
        graph f(%x: f32[2,3,4]) -> (f32[4,2,3], f32[2,3,4]) {
          %0 = permute_dims(%x) {axes=(0, 2, 1)} : f32[2,4,3]
          %1 = permute_dims(%x) {axes=(2, 0, 1)} : f32[4,2,3]
          return %1, %x
        }
    """
    axes = node.attrs["axes"]
    inner = _input(node)[0]
    joined = inner.op is node.op
    if joined:
        axes = tuple([inner.attrs["axes"][axis] for axis in axes])
    source = _input(inner) if joined else _input(node)
    if axes == tuple(range(len(axes))):
        return source
    return changed(node, (source,), attrs={**node.attrs, "axes": axes}) if joined else None


@rule("involution")
def drop_pair(node: Node) -> Found:
    """Drop an op and its repetition if the second undoes the first.

    Before:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = negative(%x) : f32[2]
          %1 = negative(%0) : f32[2]
          return %1
        }

    After:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = negative(%x) : f32[2]
          return %x
        }
    """
    inner = _input(node)[0]
    return _input(inner) if _same_op(inner, node) and same_spec(_spec(_input(inner)), node.spec()) else None


@rule("idempotent")
def drop_repetition(node: Node) -> Found:
    """Drop the repetition of an op that changes nothing the second time.

    Complex numbers are left alone: there, rounding may change the result again.

    Before:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = abs(%x) : f32[2]
          %1 = abs(%0) : f32[2]
          return %1
        }

    After:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = abs(%x) : f32[2]
          return %0
        }
    """
    source = _input(node)
    return source if _same_op(source[0], node) and kind_of(_spec(source).dtype) != "complex" else None


# -- choices ------------------------------------------------------------------------------------------------------


@rule("select", final=True)
def drop_select(node: Node) -> Found:
    """Take the branch of a choice whose branches are one value, or whose condition is known.

    This may change gradients: the gradient of a choice is a sum of two masked parts, or zeros for the branch that is
    not taken. So the rule is for final graphs only.

    Before:
        graph f(%c: bool[2], %x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
          %0 = where(%c, %x, %x) : f32[2]
          %1 = constant() {value=bool[] False} : bool[]
          %2 = where(%1, %x, %y) : f32[2]
          return %0, %2
        }

    After:
        graph f(%c: bool[2], %x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
          %0 = constant() {value=bool[] False} : bool[]
          return %x, %y
        }
    """
    condition, yes, no = cast("tuple[Edge, Edge, Edge]", node.inputs)
    chosen: Edge | None = yes if yes == no else None
    if chosen is None:
        known = repeated_value(condition)
        if known is not None:
            chosen = yes if known else no
    return chosen if chosen is not None and same_spec(_spec(chosen), node.spec()) else None


# -- neutral operands ---------------------------------------------------------------------------------------------


@rule("unit_one", "unit_zero", "unit_minus_zero")
def drop_unit(node: Node) -> Found:
    """Drop an op whose operand is its unit: ``x * 1``, ``x / 1``, ``x - 0`` and ``x + -0.0``.

    ``x + 0.0`` is different: it makes 0.0 of -0.0 (`keep_plus_zero`). Ops on complex numbers stay: ``(inf + 1j) * 1``
    has a NaN part.

    Before:
        graph f(%x: f32[2]) -> (f32[2], f32[2]) {
          %0 = constant() {value=f32[] 1.0} : f32[]
          %1 = constant() {value=f32[] 0.0} : f32[]
          %2 = multiply(%0, %x) : f32[2]
          %3 = subtract(%2, %1) : f32[2]
          %4 = subtract(%1, %x) : f32[2]
          return %3, %4
        }

    After:
        graph f(%x: f32[2]) -> (f32[2], f32[2]) {
          %0 = constant() {value=f32[] 1.0} : f32[]
          %1 = constant() {value=f32[] 0.0} : f32[]
          %2 = subtract(%1, %x) : f32[2]
          return %x, %2
        }
    """
    left, right = cast("tuple[Edge, Edge]", node.inputs)
    pairs = ((left, right), (right, left)) if "commutative" in node.op.traits else ((left, right),)
    for kept, other in pairs:
        if same_spec(_spec(kept), node.spec()) and is_unit(node.op, repeated_value(other)):
            return kept
    return None


@rule("unit_minus_zero", "unit_zero")
def keep_plus_zero(node: Node) -> Found:
    """Write ``x + 0.0`` and ``x - -0.0`` as an op that XLA does not simplify to `x`: they make 0.0 of -0.0.

    Before:
        graph f(%x: f32[2]) -> (f32[2], f32[2]) {
          %0 = constant() {value=f32[] 0.0} : f32[]
          %1 = add(%x, %0) : f32[2]
          %2 = constant() {value=f32[] -0.0} : f32[]
          %3 = subtract(%x, %2) : f32[2]
          return %1, %3
        }

    After:
        graph f(%x: f32[2]) -> (f32[2], f32[2]) {
          %0 = constant() {value=f32[] 0.0} : f32[]
          %1 = plus_zero(%x) : f32[2]
          %2 = constant() {value=f32[] -0.0} : f32[]
          %3 = plus_zero(%x) : f32[2]
          return %1, %3
        }
    """
    if not is_floating(node.spec().dtype):
        return None
    left, right = cast("tuple[Edge, Edge]", node.inputs)
    added = "unit_minus_zero" in node.op.traits
    for kept, other in ((left, right), (right, left)) if added else ((left, right),):
        value = repeated_value(other)
        is_lost = value is not None and value == 0 and bool(np.signbit(value)) != added
        if is_lost and same_spec(_spec(kept), node.spec()):
            return changed(node, (kept,), op=plus_zero.op)
    return None


def is_unit(op: Op, value: np.ndarray[Any, Any] | None) -> bool:
    """Whether a value leaves the other operand of a binary op as it is, bit for bit."""
    if value is None or kind_of(value.dtype) == "complex":
        return False
    if "unit_one" in op.traits:
        return bool(value == 1)
    if value != 0:
        return False
    return not is_floating(value.dtype) or bool(np.signbit(value)) == ("unit_minus_zero" in op.traits)


def repeated_value(edge: Edge) -> np.ndarray[Any, Any] | None:
    """Return the number, of shape (), that every element of a value is known to equal, or None."""
    node = edge[0]
    while "conversion" in node.op.traits:
        source = _input(node)
        if _spec(source).dtype != node.spec().dtype:
            return None
        node = source[0]
    if node.op is CONSTANT:
        array: np.ndarray[Any, Any] = node.attrs["value"].array
        if not 0 < array.size <= SCANNED:
            return None
        first = array.reshape(-1)[:1]
        return first.reshape(()) if array.tobytes() == first.tobytes() * array.size else None
    if "uniform" in node.op.traits and type(node.attrs.get("fill_value")) not in (Dim, SizeFloat):
        return np.asarray(cast(Any, node.op.kernel)(**{**node.attrs, "shape": ()}))
    return None


# -- helpers ------------------------------------------------------------------------------------------------------


def _input(node: Node) -> Edge:
    return cast(Edge, node.inputs[0])


def _spec(edge: Edge) -> TensorSpec:
    return edge[0].spec(edge[1])


def _same_op(a: Node, b: Node) -> bool:
    return a.op is b.op and attrs_key(a.attrs) == attrs_key(b.attrs)


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of a dtype survives a conversion to another one and back."""
    if wide == narrow or kind_of(narrow) == "bool":
        return True
    try:
        if kind_of(wide) == "complex" or promote_types(wide, narrow) != wide:
            return False
    except DTypeError:
        return False
    if is_integer(narrow) and is_floating(wide):
        return np.iinfo(narrow).max.bit_length() <= finfo(wide).nmant + 1
    return True
