"""One call of an op, as its checks see it: the op's inputs, and ways to run its kernel, lowering and rule on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import jax
import numpy as np

from hybridflow.autodiff.backprop import apply_rule
from hybridflow.autodiff.namespaces import HOST
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.context import context_of
from hybridflow.core.dispatch import ANY_DTYPE, quick_to_compile, run_raw
from hybridflow.core.dtypes import LOW_PRECISION, as_dtype, float64, is_differentiable, kind_of
from hybridflow.core.node import Node
from hybridflow.core.op import REGISTRY, Each, No, Op, Sample
from hybridflow.core.spec import TensorSpec, make_spec, spec_of
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ir.builder import Check, GraphBuilder
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph

Array = np.ndarray[Any, Any]
Attrs = dict[str, Any]


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Return outputs as a tuple, also if there is only one."""
    return tuple(cast("Sequence[Any]", values)) if isinstance(values, tuple | list) else (values,)


def bare(values: tuple[Any, ...]) -> Any:
    """Return a tuple's only element, or the tuple if it has several."""
    return values[0] if len(values) == 1 else values


@dataclass(eq=False)
class Call:
    """One application of an op to arrays.

    Attributes:
        op: the record under test.
        inputs: the input arrays.
        attrs: the op's attributes, without ``residuals``.
        sample: the sample that led to it.
    """

    op: Op
    inputs: tuple[Array, ...]
    attrs: Attrs
    sample: Sample
    _jitted: dict[Any, Callable[..., Any]] = field(default_factory=dict[Any, Callable[..., Any]])

    def __str__(self) -> str:
        attrs = ", ".join(f"{name}={value!r}" for name, value in self.attrs.items())
        inputs = ", ".join(str(spec_of(x)) for x in self.inputs)
        return f"{self.op.name}({', '.join(part for part in (inputs, attrs) if part)})"

    # -- properties ---------------------------------------------------------------------------------------------

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the inputs."""
        return tuple([spec_of(x) for x in self.inputs])

    @property
    def runs_on_host(self) -> bool:
        """Whether eager code runs the NumPy kernel for these inputs."""
        low = any(x.dtype.num in LOW_PRECISION for x in self.inputs)
        return not isinstance(self.op.kernel, No) and (not low or not ANY_DTYPE.isdisjoint(self.op.traits))

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which inputs can carry a gradient."""
        return tuple([is_differentiable(x.dtype) for x in self.inputs])

    @property
    def is_real(self) -> bool:
        """Whether no value is complex."""
        return not any(kind_of(as_dtype(x.dtype)) == "complex" for x in (*self.inputs, *self.likes))

    def with_residuals(self) -> list[Attrs]:
        """Return the attribute sets to run the op with: one, or one per value of ``residuals``."""
        if not self.op.saves.hidden:
            return [self.attrs]
        return [{**self.attrs, "residuals": flag} for flag in (False, True)]

    @property
    def recorded_attrs(self) -> Attrs:
        """The attributes of a run that a tape records, which also returns the hidden outputs."""
        return self.with_residuals()[-1]

    # -- running it ---------------------------------------------------------------------------------------------

    def run_kernel(self, attrs: Attrs, inputs: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Run the NumPy kernel."""
        with np.errstate(all="ignore"):
            outputs = cast("Callable[..., Any]", self.op.kernel)(*(self.inputs if inputs is None else inputs), **attrs)
        return tuple([np.asarray(y) for y in as_tuple(outputs)])

    def run_lowering(self, attrs: Attrs, inputs: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Run the lowering, compiled on its own."""
        key = tuple(attrs.items())
        if key not in self._jitted:
            options = compiler_options(eager=quick_to_compile(self.op, self.inputs))
            self._jitted[key] = jax.jit(partial(self.op.lower, **attrs), compiler_options=options)
        with enable_x64():
            outputs = self._jitted[key](*(self.inputs if inputs is None else inputs))
        return tuple([np.asarray(y) for y in as_tuple(outputs)])

    def run(self, attrs: Attrs, inputs: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Run the kernel, or the lowering where there is no kernel."""
        return (self.run_lowering if isinstance(self.op.kernel, No) else self.run_kernel)(attrs, inputs)

    @cached_property
    def lowered(self) -> tuple[Array, ...]:
        """The visible outputs as the lowering computes them."""
        return self.run_lowering(self.with_residuals()[0])

    @cached_property
    def wide(self) -> Call:
        """The same call in float64 or complex128."""
        wide_inputs = tuple([widened(x) for x in self.inputs])
        attrs = {name: _widened_dtype(value) for name, value in self.attrs.items()}
        call = Call(self.op, wide_inputs, attrs, self.sample)
        call.likes = [widened(y) for y in self.likes]
        return call

    @cached_property
    def likes(self) -> list[Array]:
        """Arrays with the shapes and dtypes of the visible outputs; their values may be rounded."""
        return list(self.lowered)

    # -- its gradient rule --------------------------------------------------------------------------------------

    def rule_arguments(
        self, inputs: Sequence[Any], outputs: tuple[Any, ...], *, honest: bool, only: int | None = None
    ) -> list[Any]:
        """Return ``(y, *xs)`` as the rule gets them: if `honest`, values that are not saved come as specs.

        With `only`, keep just the values that are saved if that input alone is connected.
        """
        saves = self.op.saves
        hidden = self.op.hidden_outputs(self.recorded_attrs)
        first_hidden = len(outputs) - hidden
        if honest:
            inputs = [x if saves.keeps(i) else spec_of(x) for i, x in enumerate(inputs)]
            outputs = tuple([y if saves.y or i >= first_hidden else spec_of(y) for i, y in enumerate(outputs)])
        if only is not None:
            read = saves.read_by([i == only for i in range(len(inputs))])
            inputs = [x if i in read else spec_of(x) for i, x in enumerate(inputs)]
            outputs = tuple([y if -1 in read or i >= first_hidden else spec_of(y) for i, y in enumerate(outputs)])
        return [bare(outputs), *inputs]

    def gradients(
        self, F: Any, inputs: Sequence[Any], outputs: tuple[Any, ...], cotangents: Sequence[Any], *, honest: bool = True
    ) -> list[Any]:
        """Run the gradient rule in a namespace; None marks inputs without a gradient."""
        rule = cast("Callable[..., Any]", self.op.vjp)
        arguments = self.rule_arguments(inputs, outputs, honest=honest)
        return apply_rule(rule, F, bare(tuple(cotangents)), arguments, self.attrs, self.differentiable)

    def host_gradients(self, cotangents: Sequence[Array], *, honest: bool = True) -> list[Any]:
        """Run the gradient rule on NumPy arrays."""
        outputs = self.run(self.recorded_attrs)
        with np.errstate(all="ignore"):
            gradients = self.gradients(HOST, self.inputs, outputs, cotangents, honest=honest)
        return [None if g is None else np.asarray(g) for g in gradients]

    def eager_gradients(self, cotangents: Sequence[Array]) -> list[Any]:
        """Run the gradient rule as eager code does: in its form for NumPy arrays, or by operand, where it has one."""
        rule: Any = self.op.vjp
        outputs = tuple([y.view() for y in self.run(self.recorded_attrs)])
        for y in outputs:
            y.flags.writeable = False  # users hold it
        g, arguments = bare(tuple(cotangents)), self.rule_arguments(self.inputs, outputs, honest=True)
        with np.errstate(all="ignore"):
            gradients: Any = None
            if self.op.host_rule is not None:
                gradients = self.op.host_rule(g, *arguments, **self.attrs)
            elif isinstance(rule, Each) and rule.local is not None:
                chosen = zip(self.inputs, rule.local, rule.rules, strict=True)
                rules = [local if x.shape == g.shape else summed for x, local, summed in chosen]
                gradients = Each(*rules)(HOST, g, *arguments)
            if gradients is None:
                gradients = self.gradients(HOST, self.inputs, outputs, cotangents)
        computed = zip(gradients, self.differentiable, strict=True)
        return [(one() if callable(one) else one) if want and one is not None else None for one, want in computed]

    def host_gradient_of(self, index: int, cotangents: Sequence[Array]) -> Array | None:
        """Return the gradient of one input, computed from what is saved if that input alone is connected."""
        outputs = self.run(self.recorded_attrs)
        arguments = self.rule_arguments(self.inputs, outputs, honest=True, only=index)
        wanted = tuple([i == index for i in range(len(self.inputs))])
        with np.errstate(all="ignore"):
            gradients = apply_rule(
                cast("Callable[..., Any]", self.op.vjp), HOST, bare(tuple(cotangents)), arguments, self.attrs, wanted
            )[index]
        return None if gradients is None else np.asarray(gradients)


def widened(x: Array) -> Array:
    """Return floats as float64 and complex numbers as complex128; other dtypes stay."""
    kind = kind_of(as_dtype(x.dtype))
    return x.astype(np.complex128) if kind == "complex" else x.astype(float64) if kind == "float" else x


def _widened_dtype(value: Any) -> Any:
    return float64 if isinstance(value, np.dtype) and kind_of(as_dtype(value)) == "float" else value


# -- comparing ----------------------------------------------------------------------------------------------------


def difference(actual: Array, expected: Array, allowed: Any, *, signs: bool = True) -> str | None:
    """Describe the first element that differs by more than allowed, or return None.

    NaN equals NaN, and an infinity equals itself. With `signs`, zeros must have the same sign.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{spec_of(actual)} against {spec_of(expected)}"
    if kind_of(as_dtype(actual.dtype)) == "complex":
        return difference(actual.real, expected.real, allowed, signs=signs) or difference(
            actual.imag, expected.imag, allowed, signs=signs
        )
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    if signs and kind_of(as_dtype(actual.dtype)) == "float":
        same &= (actual != 0) | (np.signbit(actual) == np.signbit(expected))
    if np.all(same):
        return None
    with np.errstate(all="ignore"):
        distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        wrong = ~same & ~(distance <= allowed)
    if signs:
        wrong |= ~same & (actual == 0) & (expected == 0)
    if not wrong.any():
        return None
    index = tuple([int(i) for i in np.argwhere(wrong)[0]])
    bound = np.broadcast_to(np.asarray(allowed, np.float64), actual.shape)[index]
    return f"at {list(index)}: {actual[index]!s} against {expected[index]!s}, allowed difference {bound:.3g}"


# -- capturing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TracedSample:
    """A public function traced on a sample.

    Attributes:
        graph: the trace; its inputs are the sample's arrays, then the captured constants.
        arrays: the values of the inputs.
        checks: the checks that the trace recorded.
        outputs: the number of outputs that the function returned; the graph's other outputs are the checks.
    """

    graph: Graph
    arrays: tuple[Array, ...]
    checks: tuple[Check, ...]
    outputs: int


def arrays_of(sample: Any) -> tuple[list[Array], list[bool], Any, list[Any]]:
    """Return a sample's arrays, a flag per leaf that marks the arrays, the tree structure, and the leaves."""
    leaves, tree = jax.tree_util.tree_flatten((sample.args, sample.kwargs), is_leaf=lambda x: x is None)
    chosen = [isinstance(leaf, np.ndarray) for leaf in leaves]
    return [leaf for leaf, is_array in zip(leaves, chosen, strict=True) if is_array], chosen, tree, leaves


def trace_sample(op: Op, sample: Any, *, symbolic: bool = False) -> TracedSample:
    """Trace an op's public function on a sample; the sample's arrays become arguments.

    Args:
        op: the op.
        sample: a `Sample` or `Bad`.
        symbolic: whether sizes of 2 or more become symbolic.
    """
    arrays, chosen, tree, leaves = arrays_of(sample)
    builder = GraphBuilder(op.name)
    specs: list[TensorSpec] = []
    for number, array in enumerate(arrays):
        shape: list[Any] = list(array.shape)
        for axis, size in enumerate(shape):
            if symbolic and size >= 2:
                shape[axis] = builder.dims.symbol(f"d{number}_{axis}", size)
        specs.append(make_spec(tuple(shape), as_dtype(array.dtype)))
    given = iter([builder.argument(spec, f"x{i}") for i, spec in enumerate(specs)])
    args, kwargs = jax.tree_util.tree_unflatten(
        tree, [next(given) if is_array else leaf for is_array, leaf in zip(chosen, leaves, strict=True)]
    )
    try:
        with context_of(builder):
            result = cast("Callable[..., Any]", op.public)(*args, **kwargs)
            outputs = [as_tensor(y) for y in jax.tree_util.tree_leaves(result, is_leaf=_is_tensor)]
            graph = builder.finish(outputs)
    finally:
        builder.scope.alive = False
    constants = [np.asarray(cast("Any", tensor)._value) for tensor, _ in builder.captures.values()]
    return TracedSample(graph, (*arrays, *constants), tuple(builder.checks), len(outputs))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def capture(op: Op, sample: Sample) -> list[Call]:
    """Return every call of an op that its public function makes on a sample."""
    traced = trace_sample(op, sample)
    calls: list[Call] = []

    def run(node: Node, values: list[Any], attrs: Attrs) -> Any:
        values = [np.asarray(value) for value in values]
        if node.op is REGISTRY[op.name]:
            op_attrs = {name: value for name, value in attrs.items() if name != "residuals"}
            calls.append(Call(op, tuple(values), op_attrs, sample))
        return run_raw(node.op, values, attrs)

    evaluate(traced.graph, traced.arrays, run)
    return calls
