"""`backprop`: reverse-mode differentiation over nodes, and the engines with which `walk` computes gradients.

`RawEngine` works on bare arrays (NumPy kernels, or one jitted function per rule). `BoundEngine` works on tensors
through `bind`, so that its operations are traced, or recorded for higher-order gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

import jax
import numpy as np

from hybridflow.autodiff.dependence import of_node
from hybridflow.autodiff.namespaces import HOST, PUBLIC, XLA
from hybridflow.autodiff.walk import Engine, Visit, Wanted, paths, walk
from hybridflow.backend.host import LOCAL, run_quietly
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.attrs import attrs_key
from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.dispatch import as_arrays, quick_to_compile, run_raw
from hybridflow.core.dtypes import LOW_PRECISION, is_differentiable
from hybridflow.core.errors import GradientError, HybridflowError
from hybridflow.core.forked import require_xla
from hybridflow.core.node import Edge, Node, in_gradient
from hybridflow.core.op import REGISTRY, Each, Flat, Joint, No, Op, Stops
from hybridflow.core.out_of_memory import explained, ran_out
from hybridflow.core.profiling import PROFILER
from hybridflow.core.settings import SETTINGS
from hybridflow.core.slice_gradient import SliceGradient, SliceSum, add_slice, whole
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.effects import silenced_in
from hybridflow.ops.jax_rule import vjp_of_lowering

R = TypeVar("R")
T = TypeVar("T", bound="Tensor | None")


def backprop(
    targets: Sequence[tuple[Edge, Any]],
    sources: set[Edge],
    nodes: Sequence[Node],
    engine: Engine,
    visit: Visit | None = None,
) -> dict[Edge, Any]:
    """Walk back from targets to sources.

    Args:
        targets: edges with their cotangents.
        sources: the edges whose gradients are wanted.
        nodes: the nodes that the targets depend on, in recording order (see `reachable`).
        engine: how to compute.
        visit: a function that is called with the complete gradient of each output of a node and returns the gradient
            to use.

    Returns:
        The gradient of each source that a path reaches.
    """
    gradients = _walked(targets, sources, nodes, engine, visit)
    if len(gradients) < len(sources):
        gradients |= _zeros_behind_flat(targets, sources - gradients.keys(), nodes)
    return gradients


def _zeros_behind_flat(
    targets: Sequence[tuple[Edge, Any]], sources: set[Edge], nodes: Sequence[Node]
) -> dict[Edge, Any]:
    """Return zeros for the sources that targets depend on only through ops with a `Flat` rule."""
    if not any(type(node.op.vjp) is Flat for node in nodes):
        return {}
    members = set(nodes)
    stack = [(edge, False) for edge, _ in targets]
    seen: set[tuple[Edge, bool]] = set()
    while stack:
        state = stack.pop()
        (node, index), flat = state
        if state in seen or not is_differentiable(node.spec(index).dtype):
            continue
        seen.add(state)
        kind = type(node.op.vjp)
        if node in members and kind is not Stops:
            stack += _before(node, index, flat=flat or kind is Flat)
    traced = any(isinstance(cotangent, Tensor) for _, cotangent in targets)
    zeros: dict[Edge, Any] = {}
    for edge in sources:
        if (edge, True) in seen:
            spec = edge[0].spec(edge[1])
            zeros[edge] = (
                PUBLIC.full(spec.shape, 0, dtype=spec.dtype) if traced else np.zeros(spec.shape, spec.dtype)
            )
    return zeros


def _before(node: Node, index: int, *, flat: bool) -> Iterator[tuple[Edge, bool]]:
    """Yield the inputs that an output of a node depends on, and whether the path goes through a `Flat` rule."""
    through, behind = -1, 0
    depends = of_node(node)
    if depends is not None:
        through, behind = depends[index]
    for number, edge in enumerate(node.inputs):
        if edge is not None and (through >> number) & 1:
            yield edge, flat
        if edge is not None and (behind >> number) & 1:
            yield edge, True


def _walked(
    targets: Sequence[tuple[Edge, Any]],
    sources: set[Edge],
    nodes: Sequence[Node],
    engine: Engine,
    visit: Visit | None,
) -> dict[Edge, Any]:
    """Return the gradients that a walk finds; it does not go through `Flat` rules."""
    order, users_rules = paths(nodes, {node for node, _ in sources})
    if engine is RAW and (users_rules or visit is not None):
        engine = QUIET
    pull = engine is RAW
    profiler = PROFILER.get()
    if profiler is not None and current().tracer is None:
        engine, pull = profiler.engine(engine), False
    try:
        with without_autocast():  # a gradient is computed in the dtype of its value
            return engine.walk(lambda: walk(targets, sources, order, engine, visit, pull=pull), users_rules)
    except Exception as error:
        if ran_out(error) and not isinstance(error, HybridflowError):
            raise explained("the gradient", error) from error
        raise


def rule_of(op: Op) -> Callable[..., Any]:
    """Return an op's gradient rule.

    Raises:
        GradientError: if the op has no gradient.
    """
    if isinstance(op.vjp, No):
        raise GradientError(f"{op.name}: has no gradient: {op.vjp.why}", hint="Use hf.stop_gradient if none is wanted.")
    return op.vjp


def _visible(node: Node, g: Any) -> tuple[Any, bool]:
    """Return the cotangents of the visible outputs as a rule takes them, and whether a hidden output has one."""
    hidden = node.op.hidden_outputs(node.attrs)
    if not hidden:
        return g, False
    visible = len(node.outputs) - hidden
    through_hidden = any([one is not None for one in g[visible:]])
    return (g[0] if visible == 1 else g[:visible]), through_hidden


def apply_rule(
    rule: Callable[..., Any], F: Any, g: Any, args: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
) -> list[Any]:
    """Call a rule and compute the wanted gradients."""
    if isinstance(rule, Joint):
        gradients = rule.rule(F, g, *args, wanted=wanted, **attrs)
    else:
        gradients = rule(F, g, *args, **attrs)
    return [
        (gradient() if type(gradient) is FunctionType else gradient) if want and gradient is not None else None
        for gradient, want in zip(gradients, wanted, strict=True)
    ]


_HOST_VALUES = (np.ndarray, np.generic)
_SLICES = (SliceGradient, SliceSum)


class RawEngine:
    """An engine that computes on bare arrays and records nothing."""

    def add(self, a: Any, b: Any, own: bool = False) -> Any:
        """Add two contributions, in the buffer of the first one if it is `own`."""
        if isinstance(a, _HOST_VALUES) and isinstance(b, _HOST_VALUES) and a.dtype.num not in LOW_PRECISION:
            if own and type(a) is np.ndarray and a.ndim and a.flags.writeable and a.dtype == b.dtype:
                return np.add(a, b, a)
            return np.add(a, b)
        if type(b) is SliceGradient and isinstance(a, _SLICES):
            return add_slice(a, b)
        return self._add_whole(a, b, own)

    def _add_whole(self, a: Any, b: Any, own: bool) -> Any:
        if isinstance(a, _SLICES) or isinstance(b, _SLICES):
            return self.add(whole(a), whole(b), own or isinstance(a, _SLICES))
        return run_raw(REGISTRY["add"], [as_arrays(a), as_arrays(b)], {})

    def walk(self, loop: Callable[[], R], users_rules: bool) -> R:
        """Run the loop with NumPy's warnings off, unless it calls users' rules."""
        return loop() if users_rules else LOCAL.run(loop)

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on NumPy or jax arrays, as the node was computed."""
        op = node.op
        if "tensor_rule" in op.traits:
            return self._run_tensor_rule(node, g, wanted)
        rule = rule_of(op)
        visible, through_hidden = _visible(node, g)
        if through_hidden:
            return self._run_tensor_rule(node, g, wanted)
        g = visible
        if node.backend == "host":
            if type(g) is tuple:
                g = tuple([x if x is None or type(x) is np.ndarray else np.asarray(x) for x in g])
            elif type(g) is not np.ndarray:
                g = np.asarray(g)
            if op.pullback is None:
                op.pullback = pullback_of(op)
            return op.pullback(node, g, wanted)
        require_xla(f"the gradient of {op.name}")
        own = op.jitted.get("rule")  # the rule of a compiled call is compiled already
        if own is not None:
            return own(g, arguments(node), wanted)
        return self._run_jitted(op, rule, g, arguments(node), rule_attrs(node), wanted)

    def _run_jitted(
        self, op: Op, rule: Callable[..., Any], g: Any, args: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
    ) -> Sequence[Any]:
        leaves, tree = jax.tree_util.tree_flatten((g, args), is_leaf=lambda x: isinstance(x, TensorSpec))
        fixed = tuple([leaf if isinstance(leaf, TensorSpec) else None for leaf in leaves])
        cache = op.jitted
        for value in attrs.values():
            if hasattr(value, "executables"):
                cache = value.executables
        arrays = [leaf for leaf in leaves if not isinstance(leaf, TensorSpec)]
        quick = quick_to_compile(op, arrays)
        key = ("vjp", op.name, quick, SETTINGS.matmul_precision, attrs_key(attrs), wanted, fixed, tree)
        run_jitted = cache.get(key)
        if run_jitted is None:

            def run(arrays: list[Any]) -> list[Any]:
                given = iter(arrays)
                full = [next(given) if spec is None else spec for spec in fixed]
                cotangent, rest = jax.tree_util.tree_unflatten(tree, full)
                return apply_rule(rule, XLA, cotangent, rest, attrs, wanted)

            run_jitted = cache[key] = jax.jit(run, compiler_options=compiler_options(eager=quick))
        with enable_x64():
            return run_jitted(arrays)

    def _run_tensor_rule(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        def tensor(value: Any) -> Any:
            return None if value is None else make_tensor(_home(value))

        tensors = BOUND.run(node, tuple(map(tensor, g)) if type(g) is tuple else tensor(g), wanted)
        return [None if tensor is None else tensor._value for tensor in tensors]


def _home(value: Any) -> Any:
    """Return a gradient as tensors store arrays: as a NumPy array, or as an array on its device."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return place(value, next(iter(value.devices())))


class QuietEngine(RawEngine):
    """A `RawEngine` that turns NumPy's warnings off only within rules, so that users' code can run in between."""

    def walk(self, loop: Callable[[], R], users_rules: bool) -> R:
        """Run the loop as it is."""
        del users_rules
        return loop()

    def add(self, a: Any, b: Any, own: bool = False) -> Any:
        """Add two contributions."""
        return run_quietly(super().add, a, b, own)

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule."""
        if "tensor_rule" in node.op.traits:
            return super().run(node, g, wanted)
        return run_quietly(self._computed, node, g, wanted)

    def _computed(self, node: Node, g: Any, wanted: Wanted) -> list[Any]:
        gradients = super().run(node, g, wanted)
        return [
            (one() if type(one) is FunctionType else one) if want else None
            for one, want in zip(gradients, wanted, strict=True)
        ]


class BoundEngine:
    """An engine that computes on tensors through `bind`."""

    def add(self, a: Tensor, b: Tensor, own: bool = False) -> Tensor:
        """Add two contributions; in a graph, the sum gets the source line of the second one."""
        del own  # tensors are immutable, so a sum is always a new one
        tracer = current().tracer
        if not isinstance(tracer, GraphBuilder) or b._edge is None:
            return PUBLIC.add(a, b)
        outer, tracer.place = tracer.place, b._edge[0].where
        first = len(tracer.nodes)
        try:
            return PUBLIC.add(a, b)
        finally:
            tracer.place = outer
            of = tracer.gradient_of.get(b._edge[0])
            if of is not None:
                tracer.gradient_of.update(dict.fromkeys(tracer.nodes[first:], of))

    def walk(self, loop: Callable[[], R], users_rules: bool) -> R:
        """Run the loop as it is."""
        del users_rules
        return loop()

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on tensors that are connected to the node's inputs and outputs."""
        tracer = current().tracer
        if not isinstance(tracer, GraphBuilder):
            return self._rounded_as_raw(node, g, wanted, self._apply(node, g, wanted))
        outer, tracer.place = tracer.place, in_gradient(node.where)
        first = len(tracer.nodes)
        try:
            return self._apply(node, g, wanted)
        finally:
            tracer.place = outer
            for made in tracer.nodes[first:]:
                tracer.gradient_of.setdefault(made, node)

    def _rounded_as_raw(self, node: Node, g: Any, wanted: Wanted, results: Sequence[Any]) -> Sequence[Any]:
        """Replace the values of recorded gradients with those that the rule computes without recording.

        A rule may have a form for NumPy arrays, or be compiled as a whole; its rounding then differs from that of the
        recorded operations. Gradients must not depend on whether they are recorded.
        """
        op = node.op
        if (node.backend == "host" and op.host_rule is None) or "tensor_rule" in op.traits:
            return results
        gs = [None if one is None else one._value for one in (g if type(g) is tuple else (g,))]
        if node.scope is not None or not all([one is None or type(one) is np.ndarray for one in gs]):
            return results
        if _visible(node, tuple(gs))[1]:
            return results
        numbers = QUIET.run(node, tuple(gs) if type(g) is tuple else gs[0], wanted)
        return [
            None if tensor is None else make_tensor(as_arrays(array), tensor._edge)
            for tensor, array in zip(results, numbers, strict=True)
        ]

    def _apply(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        rule = rule_of(node.op)
        if node.scope is not None and node.op.saves.hidden and not node.attrs.get("residuals"):
            return self._with_residuals(node, g if type(g) is tuple else (g,), wanted)
        visible, through_hidden = _visible(node, g)
        if through_hidden:
            return self._through_hidden(node, g, wanted)
        return apply_rule(rule, PUBLIC, visible, self._arguments(node), rule_attrs(node), wanted)

    def _arguments(self, node: Node) -> list[Any]:
        saves = node.op.saves
        traced = node.scope is not None
        saved = node.saved
        hidden_from = len(node.outputs) - node.op.hidden_outputs(node.attrs)

        def output(index: int) -> Any:
            if not saves.y and index < hidden_from:
                return node.spec(index)
            if not traced and node.saved is not None and node.saved[0] is None:
                return node.spec(index)
            if traced:
                return make_tensor(None, (node, index))
            assert saved is not None
            value = saved[0][index] if type(saved[0]) is tuple else saved[0]
            return make_tensor(value, (node, index))

        def source(index: int) -> Any:
            if not saves.keeps(index):
                return input_spec(node, index)
            if traced:
                return make_tensor(None, node.inputs[index])
            assert saved is not None
            value = saved[index + 1]
            return input_spec(node, index) if value is None else make_tensor(value, node.inputs[index])

        count = len(node.outputs)
        y = output(0) if count == 1 else tuple([output(index) for index in range(count)])
        return [y, *[source(index) for index in range(len(node.inputs))]]

    def _with_residuals(self, node: Node, gs: Sequence[Any], wanted: Wanted) -> Sequence[Any]:
        """Differentiate an operation that was traced where no tape was: what its rule reads is computed again."""
        xs = [make_tensor(None, edge) for edge in node.inputs]
        return self._through_exposed(node.op, xs, gs, silenced_in(rule_attrs(node)), wanted)

    def _through_hidden(self, node: Node, cotangents: Sequence[Any], wanted: Wanted) -> Sequence[Any]:
        """Differentiate through hidden outputs, which happens only in second-order gradients.

        An op that carries graphs runs again with its hidden outputs visible, under its own rule. For other ops, jax
        differentiates the lowering.
        """
        xs: list[Any] = []
        for index, edge in enumerate(node.inputs):
            if node.scope is not None:
                xs.append(make_tensor(None, edge))
                continue
            assert node.saved is not None
            value = node.saved[index + 1]
            if value is None:
                raise GradientError(f"{node.op.name}: its second-order gradient needs an input that was not saved")
            xs.append(make_tensor(value, edge))
        expose = node.op.saves.expose
        if expose is not None:
            return self._through_exposed(node.op, xs, cotangents, silenced_in(expose(rule_attrs(node))), wanted)
        return vjp_of_lowering(node.op, xs, cotangents, node.attrs, wanted)

    def _through_exposed(
        self, op: Op, xs: list[Any], cotangents: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
    ) -> Sequence[Any]:
        tracer = cast(GraphBuilder, current().tracer)
        outputs = tracer.bind_all(op, xs, attrs, residuals=True)
        hidden = op.hidden_outputs({**attrs, "residuals": True})
        y = outputs if op.saves.y else tuple([
            output if index >= len(outputs) - hidden else output.spec for index, output in enumerate(outputs)
        ])
        g = tuple(cotangents)
        return apply_rule(
            rule_of(op), PUBLIC, g[0] if len(g) == 1 else g, [y[0] if len(y) == 1 else y, *xs], attrs, wanted
        )


def conjugates(gradients: list[T]) -> list[T]:
    """Convert complex gradients from the walk's convention to the users', or back, by conjugating them.

    Rules and the walk follow jax: the change of a real target is the real part of ``gradient * change``, summed, so
    rules of holomorphic functions conjugate nothing. Users get and pass the conjugate, ``d/dx + i d/dy``, which is
    the direction of steepest ascent. Every gradient that users get or pass is converted here.

    Reference:
        K. Kreutz-Delgado, "The complex gradient operator and the CR-calculus", 2009, section 4.
    """
    for index, gradient in enumerate(gradients):
        if gradient is not None and gradient.dtype.kind == "c":
            gradients[index] = PUBLIC.conj(gradient)
    return gradients


RAW = RawEngine()
QUIET = QuietEngine()
BOUND = BoundEngine()


# -- functions that call an operation's gradient rule on NumPy arrays, chosen once per operation ----------------------

Pullback = Callable[[Node, Any, Wanted], Sequence[Any]]


def pullback_of(op: Op) -> Pullback:
    """Return the function that computes a node's gradients from its cotangent, for the wanted inputs."""
    rule: Any = op.vjp
    op.spec_arguments(0)  # sets `op.looked_at`
    if isinstance(rule, Each) and rule.local is not None and op.host_rule is None:
        return _of_operands(rule, rule.local)
    if isinstance(rule, Each) and op.host_rule is None:
        return _of_each(rule)
    if op.saves.hidden or op.host_rule is None or op.looked_at != ():
        return _of_rule(rule, op.host_rule)
    return _of_saved(rule, op.host_rule)


def _of_operands(rule: Each, local: Sequence[Callable[..., Any]]) -> Pullback:
    """Use the `local` rule for an operand of the result's shape: it was not broadcast, so nothing must be summed."""
    left, right = local

    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        y, a, b = node.saved  # pyright: ignore[reportGeneralTypeIssues]
        shape = g.shape
        first = second = None
        if wanted[0]:
            edge = node.inputs[0]
            spec = edge[0].outputs[edge[1]]  # pyright: ignore[reportOptionalSubscript]
            if (spec[0] if type(spec) is tuple else spec.shape) == shape:
                first = left(HOST, g, y, a, b)
            else:
                first = rule.rules[0](HOST, g, *arguments(node))
        if wanted[1]:
            edge = node.inputs[1]
            spec = edge[0].outputs[edge[1]]  # pyright: ignore[reportOptionalSubscript]
            if (spec[0] if type(spec) is tuple else spec.shape) == shape:
                second = right(HOST, g, y, a, b)
            else:
                second = rule.rules[1](HOST, g, *arguments(node))
        return first, second

    return pullback


def _of_each(rule: Each) -> Pullback:
    rules = rule.rules

    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        args, attrs = arguments(node), rule_attrs(node)
        return [one(HOST, g, *args, **attrs) if want else None for one, want in zip(rules, wanted, strict=True)]

    return pullback


def _of_rule(rule: Any, host: Callable[..., Any] | None) -> Pullback:
    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        del wanted
        args, attrs = arguments(node), rule_attrs(node)
        gradients = None if host is None else host(g, *args, **attrs)
        return rule(HOST, g, *args, **attrs) if gradients is None else gradients

    return pullback


def _of_saved(rule: Any, host: Callable[..., Any]) -> Pullback:
    """Call a rule that uses only saved values."""

    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        del wanted
        args: Any = node.saved
        attrs = node.attrs
        # a call without * is faster
        gradients = host(g, *args, **attrs) if attrs or len(args) != 2 else host(g, args[0], args[1])
        return rule(HOST, g, *args, **attrs) if gradients is None else gradients

    return pullback


def input_spec(node: Node, index: int) -> TensorSpec:
    """Return the spec of a node's input."""
    edge = node.inputs[index]
    if edge is not None:
        return edge[0].spec(edge[1])
    assert node.input_specs is not None
    spec = node.input_specs[index]
    assert spec is not None
    return make_spec(spec[0], spec[1])


def arguments(node: Node) -> Sequence[Any]:
    """Return ``(y, *xs)``: the saved values, and specs of the other values that the rule uses."""
    saved = node.saved
    assert saved is not None
    args: list[Any] | None = None
    for index in node.op.spec_arguments(len(saved)):
        value = saved[index]
        if value is None:
            filled: Any = input_spec(node, index - 1) if index else _output_specs(node)
        elif index == 0 and type(value) is tuple and None in value:
            filled = tuple([node.spec(i) if one is None else one for i, one in enumerate(value)])
        else:
            continue
        if args is None:
            args = list(saved)
        args[index] = filled
    return saved if args is None else args


def _output_specs(node: Node) -> Any:
    return node.spec() if len(node.outputs) == 1 else node.specs


def rule_attrs(node: Node) -> dict[str, Any]:
    """Return the attributes for a gradient rule, without ``residuals``."""
    if "residuals" not in node.attrs:
        return node.attrs
    return {name: value for name, value in node.attrs.items() if name != "residuals"}
