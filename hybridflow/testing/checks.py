"""The automatic checks of an op record: one small function per property, registered by its decorator.

A check of a call takes a `Call`, which is one application of the op, made from a good sample. A check of an op takes
its record. Each raises `CheckError` with a text that says what differs. To add a check, write a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.autodiff.namespaces import XLA
from hybridflow.autodiff.tape import GradientTape
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.dims import Dim, DimScope, evaluate
from hybridflow.core.dispatch import bind, run_raw
from hybridflow.core.dtypes import WIDE, as_dtype, is_differentiable, kind_of
from hybridflow.core.errors import CheckError
from hybridflow.core.op import REGISTRY, Bad, MultiplyAdds, No, Op, Sample, Stops
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.ir.evaluate import evaluate as evaluate_graph
from hybridflow.ir.graph import Graph
from hybridflow.ops.index_keys import numpy_index
from hybridflow.testing.calls import Array, Attrs, Call, as_tuple, capture, difference, trace_sample

CallCheck = Callable[[Call], None]
CALL_CHECKS: dict[str, CallCheck] = {}
"""Every check of a call, by name; filled by `call_check`, never by hand."""


def call_check(function: CallCheck) -> CallCheck:
    """Register a function as a check of every call."""
    CALL_CHECKS[cast("Any", function).__name__] = function
    return function


def fail(call: Call, what: str) -> None:
    """Raise the error of a failed check."""
    raise CheckError(f"{what}\n  got: {call}")


# -- comparing ----------------------------------------------------------------------------------------------------


def allowance(call: Call, reference: Array, index: int, dtype: Any, attrs: Attrs) -> Array:
    """Return how far an output of `dtype` may be from the float64 result."""
    info = jnp.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.abs(reference)
        if not call.op.has("pointwise"):
            floats = [x for x in call.wide.inputs if rounds(x.dtype)]
            magnitudes = [np.abs(x).astype(x.dtype) if rounds(x.dtype) else x for x in call.wide.inputs]
            size = np.maximum(size, np.nan_to_num(np.abs(call.wide.run(attrs, magnitudes)[index]), posinf=0.0))
            size = np.maximum(size, max([np.max(np.abs(x[np.isfinite(x)]), initial=0.0) for x in floats]))
        elif call.op.has("log_sum"):
            size = np.maximum(size, 1.0)
            for x in call.wide.inputs:
                size = np.maximum(size, np.where(np.isfinite(x), np.abs(x), 0.0))
        size = np.where(np.isfinite(size), size, 0.0)
        return call.op.ulp * (float(info.eps) * size + float(info.tiny))


def rounds(dtype: Any) -> bool:
    """Return whether a dtype is floating-point or complex."""
    return kind_of(as_dtype(dtype)) in ("float", "complex")


def _matches_reference(call: Call, name: str, outputs: tuple[Array, ...], attrs: Attrs) -> None:
    """Raise if outputs are too far from those of a float64 run."""
    references = call.wide.run({**call.wide.attrs, **({k: attrs[k] for k in ("residuals",) if k in attrs})})
    wide_attrs = {**call.wide.attrs, **{k: v for k, v in attrs.items() if k == "residuals"}}
    for index, (y, reference) in enumerate(zip(outputs, references, strict=True)):
        if not rounds(y.dtype):
            continue
        allowed = allowance(call, reference, index, y.dtype, wide_attrs)
        with np.errstate(all="ignore"):
            rounded = reference.astype(y.dtype)
        text = difference(y, rounded, allowed + float(jnp.finfo(y.dtype).eps) * np.abs(rounded).astype(np.float64),
                          signs=False)
        if text is not None:
            fail(call, f"the {name}'s output {index} is off the float64 result: {text}")


def _has_reference(call: Call) -> bool:
    """Return whether a float64 run of the call is the same computation, so that it can serve as a reference."""
    op = call.op
    return bool(call.inputs) and op.ulp > 0 and not op.has("random") and any(call.differentiable)


# -- values -------------------------------------------------------------------------------------------------------


@call_check
def kernel_is_lowering(call: Call) -> None:
    """The NumPy kernel and the lowering give the same result, within the op's error bound."""
    for attrs in call.with_residuals():
        lowered = call.run_lowering(attrs)
        if _has_reference(call):
            _matches_reference(call, "lowering", lowered, attrs)
        if not call.runs_on_host:
            continue
        outputs = call.run_kernel(attrs)
        if len(outputs) != len(lowered):
            fail(call, f"the kernel gives {len(outputs)} outputs, the lowering {len(lowered)}")
        if _has_reference(call):
            _matches_reference(call, "kernel", outputs, attrs)
        for index, (a, b) in enumerate(zip(outputs, lowered, strict=True)):
            allowed: Any = 0
            if rounds(a.dtype) and call.op.ulp:
                wide = {**call.wide.attrs, **{k: v for k, v in attrs.items() if k == "residuals"}}
                size = np.abs(a.astype(np.complex128 if a.dtype.kind == "c" else np.float64))
                allowed = 2 * allowance(call, size, index, a.real.dtype, wide) if call.inputs else 2 * (
                    call.op.ulp * float(jnp.finfo(a.dtype).eps) * np.abs(size)
                )
            text = difference(a, b, allowed, signs=call.op.has("pointwise") or call.op.has("layout"))
            if text is not None:
                fail(call, f"kernel and lowering differ in output {index}: {text}")


@call_check
def infer_is_real(call: Call) -> None:
    """`infer` gives the shapes and dtypes of the real results, also with symbolic sizes and without 64 bits."""
    for attrs in call.with_residuals():
        results = call.run_lowering(attrs)
        _same_specs(call, "infer", as_tuple(call.op.infer(*call.specs, **attrs)), results)
        scope = DimScope()
        symbolic = [_symbolic(spec, f"d{i}", scope) for i, spec in enumerate(call.specs)]
        inferred = [_at_hints(spec, scope) for spec in as_tuple(call.op.infer(*symbolic, **attrs))]
        _same_specs(call, "infer with symbolic sizes", inferred, results)
        if not any(as_dtype(x.dtype).num in WIDE for x in (*call.inputs, *results)):
            with enable_x64(False):
                shapes = jax.eval_shape(lambda *xs, attrs=attrs: call.op.lower(*xs, **attrs), *call.inputs)
            _same_specs(call, "the lowering without 64 bits", [_spec(y) for y in as_tuple(shapes)], results)


def _spec(value: Any) -> TensorSpec:
    return make_spec(tuple(value.shape), as_dtype(value.dtype))


def _symbolic(spec: TensorSpec, name: str, scope: DimScope) -> TensorSpec:
    shape = [size if size < 2 else scope.symbol(f"{name}_{axis}", size) for axis, size in enumerate(spec.shape)]
    return make_spec(tuple(shape), spec.dtype)


def _at_hints(spec: TensorSpec, scope: DimScope) -> TensorSpec:
    return make_spec(tuple([evaluate(size, scope.hints) for size in spec.shape]), spec.dtype)


def _same_specs(call: Call, name: str, inferred: Sequence[TensorSpec], real: Sequence[Array]) -> None:
    if len(inferred) != len(real):
        fail(call, f"{name} gives {len(inferred)} outputs, there are {len(real)}")
    for index, (spec, y) in enumerate(zip(inferred, real, strict=True)):
        if spec != _spec(y):
            fail(call, f"{name} says {spec} of output {index}, which is {_spec(y)}")


@call_check
def symbolic_trace_is_real(call: Call) -> None:
    """The public function can be traced with symbolic sizes, and the trace computes what the call does."""
    traced = trace_sample(call.op, call.sample, symbolic=True)
    if not any(isinstance(size, Dim) for spec in traced.graph.input_specs for size in spec.shape):
        return

    def run(node: Any, values: list[Any], attrs: Attrs) -> Any:
        return run_raw(node.op, [np.asarray(value) for value in values], attrs)

    outputs = evaluate_graph(traced.graph, traced.arrays, run)[: traced.outputs]
    exact = trace_sample(call.op, call.sample)
    expected = evaluate_graph(exact.graph, exact.arrays, run)[: traced.outputs]
    hints = traced.graph.dims
    for index, (y, other, spec) in enumerate(zip(outputs, expected, traced.graph.output_specs, strict=False)):
        text = difference(np.asarray(y), np.asarray(other), 0)
        if text is not None:
            fail(call, f"a trace with symbolic sizes gives another output {index}: {text}")
        if _at_hints(spec, hints) != _spec(np.asarray(y)):
            fail(call, f"a trace with symbolic sizes says {_at_hints(spec, hints)} of output {index}, {_spec(y)}")


@call_check
def flops_are_valid(call: Call) -> None:
    """The number of floating-point operations is finite and at least 0."""
    specs = call.op.infer(*call.specs, **call.with_residuals()[0])
    count = call.op.flops(specs, *call.specs, **call.attrs)
    if isinstance(count, bool) or not isinstance(count, int | float | np.number) or not 0 <= count < float("inf"):
        fail(call, f"flops are {count!r}, which is not a number from 0 on")


# -- gradients ----------------------------------------------------------------------------------------------------


def has_rule(call: Call) -> bool:
    """Return whether the gradient checks apply to a call."""
    return (
        call.sample.gradient
        and not isinstance(call.op.vjp, No)
        and not call.op.has("tensor_rule")
        and any(call.differentiable)
        and any(is_differentiable(as_dtype(y.dtype)) for y in call.likes)
    )


def draw(call: Call, like: Sequence[Array], seed: int) -> list[Array]:
    """Draw random arrays with the shapes and dtypes of `like`."""
    rng = np.random.default_rng([seed, len(call.inputs), *[x.size for x in call.inputs]])

    def one(y: Array) -> Array:
        return np.asarray(rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1, 1], y.shape))

    return [(one(y) + 1j * one(y) if y.dtype.kind == "c" else one(y)).astype(y.dtype) for y in like]


@call_check
def gradient_fits_its_input(call: Call) -> None:
    """A gradient has the shape and dtype of its input."""
    if not has_rule(call):
        return
    cotangents = draw(call, call.likes, 1)
    gradients = call.host_gradients(cotangents) if call.runs_on_host else call.wide.host_gradients(
        draw(call, call.wide.likes, 1)
    )
    inputs = call.inputs if call.runs_on_host else call.wide.inputs
    for index, (gradient, x) in enumerate(zip(gradients, inputs, strict=True)):
        if gradient is not None and (gradient.shape != x.shape or gradient.dtype != x.dtype):
            fail(call, f"the gradient of input {index} is {_spec(gradient)}, the input {_spec(x)}")


@call_check
def saves_is_honest(call: Call) -> None:
    """A rule gives the same result when the values that are not saved come as specs."""
    if not has_rule(call):
        return
    wide = call.wide
    cotangents = draw(call, wide.likes, 2)
    try:
        gradients = wide.host_gradients(cotangents, honest=True)
        single = [g if g is None else wide.host_gradient_of(i, cotangents) for i, g in enumerate(gradients)]
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckError(f"the rule reads what is not saved: {error}\n  got: {call}") from error
    expected = wide.host_gradients(cotangents, honest=False)
    for index, (a, b) in enumerate([*zip(gradients, expected, strict=True), *zip(single, expected, strict=True)]):
        index %= len(gradients)
        if (a is None) != (b is None) or (a is not None and not np.array_equal(a, b, equal_nan=True)):
            fail(call, f"the gradient of input {index} depends on values that are not saved")


def _weighted(call: Call, inputs: Sequence[Array], weights: Sequence[Array]) -> float:
    """Return the real part of the weighted sum of the outputs at the given inputs."""
    outputs = call.run(call.with_residuals()[0], inputs)
    with np.errstate(all="ignore"):
        return float(sum(np.sum(y * w).real for y, w in zip(outputs, weights, strict=True) if w.dtype.kind in "fc"))


@call_check
def vjp_is_finite_difference(call: Call) -> None:
    """A rule agrees with central differences in float64 along random directions.

    For complex numbers, rules follow jax: the derivative is the real part of ``sum(gradient * direction)``.
    """
    stops = isinstance(call.op.vjp, Stops)
    if not (has_rule(call) or (stops and call.sample.gradient)) or call.op.has("identity"):
        return
    if call.op.has("random"):
        return
    wide = call.wide
    weights = draw(call, wide.likes, 3)
    weights = [w if is_differentiable(as_dtype(w.dtype)) else np.zeros(w.shape, bool) for w in weights]
    none = [None] * len(wide.inputs)
    cotangents = [_cotangent(w, y) for w, y in zip(weights, wide.likes, strict=True)]
    gradients = none if stops else wide.host_gradients(cotangents)
    for index, x in enumerate(wide.inputs):
        if not wide.differentiable[index] or not x.size:
            continue
        for number in range(2):
            (direction,) = draw(call, [x], 4 + number)
            numeric, size = _central_difference(wide, index, direction, weights)
            gradient = gradients[index]
            terms = np.zeros(()) if gradient is None else (gradient * direction).real
            bound = 1e-6 * (float(np.sum(np.abs(terms))) + abs(numeric)) + 1e-9 * (1 + size)
            if not abs(float(np.sum(terms)) - numeric) <= bound:
                fail(call, f"the gradient of input {index} is {float(np.sum(terms)):.10g} along a random direction, "
                           f"central differences give {numeric:.10g}")


def _cotangent(weight: Array, y: Array) -> Array:
    return np.zeros(y.shape, y.dtype) if weight.dtype == bool else weight


def _central_difference(
    call: Call, index: int, direction: Array, weights: Sequence[Array]
) -> tuple[float, float]:
    """Return the derivative along a direction of one input, and the magnitude of the two values it comes from."""
    step = 1e-5

    def at(offset: float) -> float:
        moved = call.inputs[index] + offset * direction
        return _weighted(call, [*call.inputs[:index], moved, *call.inputs[index + 1 :]], weights)

    above, below = at(step), at(-step)
    return (above - below) / (2 * step), abs(above) + abs(below)


def _of_lowering(call: Call, cotangents: Sequence[Array], seconds: Sequence[Array]) -> tuple[Any, Any, Any]:
    """Compile and return, together: jax's gradients, those of the rule run in jax, and jax's second-order gradients."""
    differentiable = [i for i, want in enumerate(call.differentiable) if want]

    def full(differentiated: Sequence[Any]) -> list[Any]:
        inputs: list[Any] = list(call.inputs)
        for position, value in zip(differentiable, differentiated, strict=True):
            inputs[position] = value
        return inputs

    def forward(*differentiated: Any) -> tuple[Any, ...]:
        outputs = as_tuple(call.op.lower(*full(differentiated), **call.with_residuals()[0]))
        return tuple([y for y in outputs if jnp.issubdtype(y.dtype, jnp.inexact)])

    def pull(*differentiated: Any) -> Any:
        return jax.vjp(forward, *differentiated)[1](tuple([g for g in cotangents if g.dtype.kind in "fc"]))

    def projected(*differentiated: Any) -> Any:
        return sum(jnp.sum(g * v).real for g, v in zip(pull(*differentiated), seconds, strict=True))

    def everything(inputs: Sequence[Any], gs: Sequence[Any]) -> tuple[Any, Any, Any]:
        differentiated = [inputs[i] for i in differentiable]
        outputs = as_tuple(call.op.lower(*inputs, **call.recorded_attrs))
        of_rule = call.gradients(XLA, inputs, outputs, gs)
        second = jax.grad(projected, argnums=tuple(range(len(differentiated))))(*differentiated)
        return pull(*differentiated), [of_rule[i] for i in differentiable], second

    with enable_x64():
        return jax.jit(everything, compiler_options=compiler_options(eager=True))(call.inputs, cotangents)


@call_check
def vjp_is_jax_vjp(call: Call) -> None:
    """A rule run on jax values agrees with `jax.vjp` of the lowering, and through tapes with jax's second order."""
    if not has_rule(call) or isinstance(call.op.vjp, Stops) or call.op.has("identity"):
        return
    wide = call.wide
    cotangents = draw(call, wide.likes, 5)
    differentiable = [i for i, want in enumerate(wide.differentiable) if want]
    seconds = draw(call, [wide.inputs[i] for i in differentiable], 6)
    of_jax, of_rule, second = _of_lowering(wide, cotangents, seconds)
    for index, a, b in zip(differentiable, of_rule, of_jax, strict=True):
        _close(call, f"the gradient of input {index}", a, np.asarray(b), "jax.vjp of the lowering gives")
    seconds_ = _second_order(wide, cotangents, differentiable, seconds)
    for index, a, b in zip(differentiable, seconds_, second, strict=True):
        _close(call, f"the second-order gradient of input {index}", a, np.asarray(b), "jax gives")


def _reversed_with_gaps(x: Array) -> Array:
    every = [slice(None, None, -1)] * x.ndim
    return np.repeat(np.flip(x), 2, axis=-1)[(..., slice(None, None, 2))][tuple(every)] if x.ndim else x


def _kept_with_last_axis(x: Array, place: int) -> Array:
    """Return an array whose last axis is that of the given place in memory."""
    place = min(place, x.ndim - 1)
    return np.moveaxis(np.moveaxis(x, -1, place).copy(), place, -1) if x.ndim else x


def _repeated(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape) if x.ndim else x


_LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "in column-major order": lambda x: x.copy(order="F"),
    "with the last axis kept first": lambda x: _kept_with_last_axis(x, 0),
    "with the last axis kept second": lambda x: _kept_with_last_axis(x, 1),
    "with the last two axes exchanged": lambda x: _kept_with_last_axis(x, max(x.ndim - 2, 0)),
    "in reverse order, with gaps": _reversed_with_gaps,
    "in which one row is repeated": _repeated,
}


def _read_only(x: Array, lay: Callable[[Array], Array]) -> Array:
    laid = lay(x).view()
    laid.flags.writeable = False
    return laid


@call_check
def layout_in_memory_changes_nothing(call: Call) -> None:
    """The NumPy kernel, and the rule as eager code runs it, give the same for values that lie otherwise in memory.

    They write to none of these values. Both run in the call's dtypes and in float64: some choose their way by dtype.
    """
    if not call.runs_on_host or all(x.size < 2 for x in call.inputs):
        return
    narrow = any(x.dtype != y.dtype for x, y in zip(call.inputs, call.wide.inputs, strict=True))
    for one in (call, call.wide) if narrow else (call.wide,):
        cotangents = draw(one, one.likes, 8) if has_rule(one) else []
        seen: set[Any] = {_strides(one.inputs, cotangents)}
        for layout, lay in _LAYOUTS.items():
            laid = Call(one.op, tuple([_read_only(x, lay) for x in one.inputs]), one.attrs, one.sample)
            laid.likes = one.likes
            laid_cotangents = [_read_only(g, lay) for g in cotangents]
            strides = _strides(laid.inputs, laid_cotangents)
            if strides not in seen:
                seen.add(strides)
                _same_in_row_major_order(laid, layout, laid_cotangents)


def _strides(*arrays: Sequence[Array]) -> tuple[Any, ...]:
    return tuple([x.strides for some in arrays for x in some])


def _same_in_row_major_order(laid: Call, layout: str, cotangents: Sequence[Array]) -> None:
    plain = Call(laid.op, tuple([np.array(x, order="C") for x in laid.inputs]), laid.attrs, laid.sample)
    plain.likes = laid.likes
    expected = plain.run_kernel(plain.recorded_attrs)
    for index, (a, b) in enumerate(zip(laid.run_kernel(laid.recorded_attrs), expected, strict=True)):
        _close(laid, f"output {index} of inputs {layout}", a, b, "row-major inputs give")
    if not cotangents:
        return
    gradients = plain.host_gradients([np.array(g, order="C") for g in cotangents])
    for index, (a, b) in enumerate(zip(laid.eager_gradients(cotangents), gradients, strict=True)):
        if b is not None:
            _close(laid, f"the gradient of input {index}, of inputs {layout}", a, b, "row-major inputs give")


def _close(call: Call, what: str, actual: Any, expected: Array, who: str) -> None:
    if actual is None:
        actual = np.zeros_like(expected)
    actual = np.asarray(actual)
    scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)
    single = expected.dtype.kind in "fc" and expected.real.dtype.itemsize < 8
    near = 1e-5 if single else 1e-9
    text = difference(actual, expected, near + 10 * near * float(scale), signs=False)
    if text is not None:
        fail(call, f"{what}: {text} ({who} the latter)")


def _second_order(
    call: Call, cotangents: Sequence[Array], wanted: Sequence[int], seconds: Sequence[Array]
) -> list[Array | None]:
    """Differentiate the gradients, projected on `seconds`, with tapes.

    Tapes take and return the complex conjugates of what rules and jax use.
    """
    tensors = [asarray(x) for x in call.inputs]
    sources = [tensors[i] for i in wanted]
    multiply, add, total, real = (cast("Any", REGISTRY[name].public) for name in ("multiply", "add", "sum", "real"))
    with GradientTape() as outer:
        outer.watch(sources)
        with GradientTape() as inner:
            inner.watch(sources)
            outputs = as_tuple(bind(call.op, tuple(tensors), call.attrs))
        smooth = [(y, asarray(g)) for y, g in zip(outputs, cotangents, strict=True) if is_differentiable(y.dtype)]
        first = inner.gradient([y for y, _ in smooth], sources, [asarray(g.numpy().conj()) for _, g in smooth])
        projected: Tensor | None = None
        for gradient, second in zip(first, seconds, strict=True):
            if gradient is not None:
                term = real(total(multiply(gradient, asarray(second.conj()))))
                projected = term if projected is None else add(projected, term)
    if projected is None:
        return [None] * len(sources)
    return [None if g is None else g.numpy().conj() for g in outer.gradient(projected, sources)]


# -- traits -------------------------------------------------------------------------------------------------------


@call_check
def traits_hold(call: Call) -> None:
    """The claims of the op's traits hold for the call."""
    outputs = call.run(call.with_residuals()[0])
    for trait in sorted(call.op.traits):
        text = TRAIT_CHECKS[trait](call, outputs) if trait in TRAIT_CHECKS else None
        if text is not None:
            fail(call, f"trait {trait} does not hold: {text}")


# -- the record ---------------------------------------------------------------------------------------------------

OpCheck = Callable[[Op, int], None]
OP_CHECKS: dict[str, OpCheck] = {}
"""Every check of a record, by name; filled by `op_check`, never by hand."""


def op_check(function: OpCheck) -> OpCheck:
    """Register a function as a check of every record that has samples; it takes the record and a seed."""
    OP_CHECKS[cast("Any", function).__name__] = function
    return function


def samples_of(op: Op, seed: int) -> list[Sample | Bad]:
    """Return an op's samples, drawn with a seed."""
    return [] if isinstance(op.samples, No) else list(op.samples(np.random.default_rng(seed)))


@op_check
def samples_reach_the_op(op: Op, seed: int) -> None:
    """At least one good sample calls the op."""
    good = [sample for sample in samples_of(op, seed) if isinstance(sample, Sample)]
    if not any(capture(op, sample) for sample in good):
        raise CheckError(f"{op.name}: none of its {len(good)} good samples calls it")


@op_check
def saves_no_more_than_is_read(op: Op, seed: int) -> None:
    """The gradient rule reads every value that the record says it needs: what it does not read is kept for nothing."""
    del seed
    read = op.read_by_rule()
    saved = [*([0] if op.saves.y else []), *[index + 1 for index in op.saves.x if isinstance(index, int)]]
    unread = [] if read is None or op.saves.hidden else [index for index in saved if index not in read]
    if unread:
        names = ", ".join([f"input {index - 1}" if index else "the result" for index in unread])
        raise CheckError(f"{op.name}: its gradient rule does not read what `saves` keeps: {names}")


@op_check
def bad_samples_raise(op: Op, seed: int) -> None:
    """Every bad sample raises its error with its text, both eagerly and in a trace, where a check may raise it."""
    public = cast("Callable[..., Any]", op.public)
    for number, bad in enumerate(samples_of(op, seed)):
        if isinstance(bad, Sample):  # a good call before must not change which errors follow
            public(*bad.args, **bad.kwargs)
            continue
        _raises(op, number, bad, "eagerly", lambda bad=bad, public=public: public(*bad.args, **bad.kwargs))
        _raises(op, number, bad, "in a trace", lambda bad=bad: _failing_checks(op, bad))


_NEAR, _ROUGH = 0.02, 0.35
"""The relative difference allowed between an op's FLOPs and XLA's: for its best call, and for every non-tiny call."""
_TINY = 40


@op_check
def flops_are_xlas(op: Op, seed: int) -> None:
    """Where FLOPs count multiply-adds, they agree with XLA's count for the lowering.

    XLA leaves out multiplications by padding and counts the steps of a softmax one by one. So one sample must agree
    closely, and the others only roughly.
    """
    if not isinstance(op.flops, MultiplyAdds):
        return
    counts: list[tuple[float, str]] = []
    for sample in samples_of(op, seed):
        for call in capture(op, sample) if isinstance(sample, Sample) else ():
            attrs = call.with_residuals()[0]
            count = op.flops(op.infer(*call.specs, **attrs), *call.specs, **call.attrs)
            if call.is_real and count >= _TINY:
                counted = _counted_by_xla(op, call, attrs)
                off = abs(counted / count - 1)
                text = f"{call} has {count} FLOPs by its record, {counted} by XLA"
                if off > _ROUGH:
                    raise CheckError(f"{op.name}: {text}")
                counts.append((off, text))
    if counts and min(counts)[0] > _NEAR:
        raise CheckError(f"{op.name}: no sample has XLA's FLOPs: {min(counts)[1]}")


def _counted_by_xla(op: Op, call: Call, attrs: Attrs) -> int:
    with enable_x64():
        analysis: Any = jax.jit(lambda *xs: op.lower(*xs, **attrs)).lower(*call.inputs).cost_analysis()
    return int(analysis.get("flops") or 0)


def _raises(op: Op, number: int, bad: Bad, where: str, run: Callable[[], Any]) -> None:
    what = f"{op.name}: bad sample {number}"
    try:
        run()
    except bad.error as error:
        if bad.text not in str(error):
            raise CheckError(f"{what} raises another text {where}: {bad.text!r} is not in {str(error)!r}") from error
    except Exception as error:
        raise CheckError(f"{what} raises {type(error).__name__} {where}, not {bad.error.__name__}: {error}") from error
    else:
        raise CheckError(f"{what} raises nothing {where}, not {bad.error.__name__} ({bad.text!r})")


def _failing_checks(op: Op, bad: Bad) -> None:
    """Trace a bad sample, evaluate the checks of the trace, and raise the error of one that fails."""
    traced = trace_sample(op, bad)
    outputs = evaluate_graph(
        _only_checks(traced.graph, traced.outputs), traced.arrays,
        lambda node, values, attrs: run_raw(node.op, [np.asarray(value) for value in values], attrs),
    )
    for check, ok in zip(traced.checks, outputs, strict=True):
        if not np.all(ok) and issubclass(check.error, bad.error):
            raise check.error(f"{check.text} {bad.text}")


def _only_checks(graph: Graph, outputs: int) -> Graph:
    """Return a graph that computes only the checks."""
    flags = graph.outputs[outputs:]
    needed = {node for node, _ in flags}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(edge[0] for edge in node.inputs if edge is not None)
    return Graph(graph.name, graph.inputs, tuple([n for n in graph.nodes if n in needed]), flags, graph.dims)


@op_check
def methods_are_installed(op: Op, seed: int) -> None:
    """Every name in the method column is a method of tensors that gives the function's result."""
    for name in op.method:
        if not callable(getattr(Tensor, name, None)):
            raise CheckError(f"{op.name}: tensors have no method {name}")
        if name.startswith("__"):
            continue
        for sample in samples_of(op, seed):
            if isinstance(sample, Sample) and isinstance(sample.args[0], np.ndarray):
                method = getattr(asarray(sample.args[0]), name)(*sample.args[1:], **sample.kwargs)
                expected = cast("Callable[..., Any]", op.public)(*sample.args, **sample.kwargs)
                for a, b in zip(as_tuple(method), as_tuple(expected), strict=True):
                    if not op.has("random") and difference(a.numpy(), b.numpy(), 0) is not None:
                        raise CheckError(f"{op.name}: the method {name} gives another result than the function")
                break


# -- checks of an op's traits, each a function of one call of the op; registered by a decorator -----------------------

TraitCheck = Callable[[Call, tuple[Array, ...]], "str | None"]
TRAIT_CHECKS: dict[str, TraitCheck] = {}
"""For each trait, a function of a call and its outputs that describes what is wrong, or returns None."""


def claims(trait: str) -> Callable[[TraitCheck], TraitCheck]:
    """Register a function as the check of a trait."""

    def decorate(function: TraitCheck) -> TraitCheck:
        TRAIT_CHECKS[trait] = function
        return function

    return decorate


def _again(call: Call, *inputs: Array) -> Array:
    return call.run(call.with_residuals()[0], inputs)[0]


def _ulps(call: Call, y: Array) -> Any:
    if kind_of(as_dtype(y.dtype)) not in ("float", "complex"):
        return 0
    magnitude = np.abs(y.astype(np.complex128 if y.dtype.kind == "c" else np.float64))
    return 2 * call.op.ulp * float(jnp.finfo(y.dtype).eps) * np.where(np.isfinite(magnitude), magnitude, 0)


@claims("pointwise")
def _pointwise(call: Call, outputs: tuple[Array, ...]) -> str | None:
    shape = np.broadcast_shapes(*[x.shape for x in call.inputs])
    order = np.random.default_rng(0).permutation(int(np.prod(shape)))
    try:
        moved = call.run(call.with_residuals()[0], [np.broadcast_to(x, shape).ravel()[order] for x in call.inputs])
    except (ValueError, IndexError) as error:
        return f"it does not run on its elements in a row: {error}"
    for y, other in zip(outputs, moved, strict=True):
        if y.shape != shape:
            return f"the result has shape {y.shape}, the operands broadcast to {shape}"
        expected = y.ravel()[order]
        text = difference(other, expected, _ulps(call, expected))
        if text is not None:
            return f"elements change when they are reordered: {text}"
    return None


@claims("commutative")
def _commutative(call: Call, outputs: tuple[Array, ...]) -> str | None:
    swapped = _again(call, call.inputs[1], call.inputs[0], *call.inputs[2:])
    return difference(swapped, outputs[0], 0)


@claims("identity")
def _identity(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0], 0)


@claims("layout")
def _layout(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """Every element of the result is an element of the inputs, or zero."""
    if any(x.dtype != outputs[0].dtype for x in call.inputs[:1]) and not call.op.has("select"):
        return None
    allowed = np.concatenate([np.zeros(1), *[x.ravel().astype(np.complex128) for x in call.inputs]])
    elements = outputs[0].ravel().astype(np.complex128)
    new = elements[~np.isin(elements, allowed) & (elements == elements)]
    return f"{new[0]} is no element of the inputs" if new.size else None


@claims("reshape")
def _reshape(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0].reshape(call.attrs["shape"]), 0)


@claims("permute")
def _permute(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0].transpose(call.attrs["axes"]), 0)


@claims("uniform")
def _uniform(call: Call, outputs: tuple[Array, ...]) -> str | None:
    expected = np.full(call.attrs["shape"], call.attrs["fill_value"], outputs[0].dtype)
    return difference(outputs[0], expected, 0)


@claims("select")
def _select(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], np.where(*call.inputs), 0)


@claims("slice")
def _slice(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0][numpy_index(call.attrs["index"])], 0)


@claims("placement")
def _placement(call: Call, outputs: tuple[Array, ...]) -> str | None:
    expected = np.zeros(call.attrs["shape"], outputs[0].dtype)
    expected[numpy_index(call.attrs["index"])] = call.inputs[0]
    return difference(outputs[0], expected, 0)


@claims("order")
def _order(call: Call, outputs: tuple[Array, ...]) -> str | None:
    a, b = np.broadcast_arrays(*call.inputs)
    if a.dtype.kind == "c":
        return None
    less, same, more = [_again(call, *[np.asarray(x, a.dtype) for x in pair]) for pair in ((0, 1), (1, 1), (1, 0))]
    ordered = (a < b) | (a == b) | (a > b)
    expected = np.where(a < b, less, np.where(a == b, same, more))
    return difference(outputs[0][ordered], expected[ordered], 0)


@claims("shift")
def _shift(call: Call, outputs: tuple[Array, ...]) -> str | None:
    a, b = call.inputs
    with np.errstate(all="ignore"):
        return difference(outputs[0], a + _again(call, np.asarray(-0.0).astype(a.dtype), b), 0)


@claims("product")
def _product(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], np.multiply(*call.inputs), _ulps(call, outputs[0]))


@claims("matrix_product")
def _matrix_product(call: Call, outputs: tuple[Array, ...]) -> str | None:
    wide = [x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in call.inputs]
    try:
        expected, bound = np.matmul(*wide), np.matmul(*map(np.abs, wide)) * 2 * call.op.ulp
    except ValueError as error:
        return f"its inputs have no matrix product: {error}"
    if kind_of(as_dtype(outputs[0].dtype)) in ("float", "complex"):
        bound = bound * float(jnp.finfo(outputs[0].dtype).eps)
    return difference(outputs[0].astype(wide[0].dtype), expected, bound)


def _lowered_to(name: str) -> TraitCheck:
    def check(call: Call, outputs: tuple[Array, ...]) -> str | None:
        del outputs
        text = jax.jit(partial(call.op.lower, **call.attrs)).lower(*call.inputs).as_text()
        return None if f"stablehlo.{name}" in text else f"its lowering holds no {name}"

    return check


claims("convolution")(_lowered_to("convolution"))
claims("dot")(_lowered_to("dot_general"))


@claims("kernel_gradient")
def _kernel_gradient(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """The products with any kernel add up to those of the second input with that kernel's convolution of the first."""
    x, g = call.inputs
    attrs = {name: value for name, value in call.attrs.items() if name != "shape"}
    kernel = np.random.default_rng(0).standard_normal(outputs[0].shape).astype(x.dtype)
    parts = g * np.asarray(REGISTRY["conv"].lower(x, kernel, **attrs))
    return difference(np.sum(kernel * outputs[0]), np.sum(parts), np.sum(_ulps(call, parts)))


@claims("picks")
def _picks(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """Every element of the result is an element of the first input, or a position."""
    first = call.inputs[0].astype(np.complex128).ravel()
    for output in outputs:
        positions = np.arange(first.size) if output.dtype.kind in "iu" else []
        elements = output.astype(np.complex128).ravel()
        new = elements[~np.isin(elements, [*first, *positions]) & (elements == elements)]
        if new.size:
            return f"{new[0]} is neither an element of the input nor a position"
    return None


@claims("sum")
def _sum(call: Call, outputs: tuple[Array, ...]) -> str | None:
    x, axis = call.inputs[0], call.attrs["axis"]
    exact, size = (
        np.add.reduce(one.astype(np.complex128), axis=axis, keepdims=call.attrs["keepdims"]) for one in (x, np.abs(x))
    )
    return difference(outputs[0].astype(np.complex128), exact, size.real * _ulps(call, np.ones((), x.dtype)) * x.size)


@claims("windowed")
def _windowed(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """An element of the first input affects no more results than a window has elements."""
    first = call.inputs[0].copy()
    if not first.size:
        return None
    first.flat[0] = np.nan
    affected = int(np.sum(np.isnan(_again(call, first, *call.inputs[1:])) & ~np.isnan(outputs[0])))
    most = math.prod(call.attrs["window"])
    return f"an element is seen by {affected} results, and a window has {most} elements" if affected > most else None


@claims("involution")
def _involution(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(_again(call, outputs[0]), call.inputs[0], 0)


@claims("idempotent")
def _idempotent(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(_again(call, outputs[0]), outputs[0], 0)


def _unit(number: float) -> TraitCheck:
    def check(call: Call, outputs: tuple[Array, ...]) -> str | None:
        first = call.inputs[0].ravel()
        if outputs[0].dtype != first.dtype:
            return None
        if kind_of(as_dtype(first.dtype)) == "float":
            first = np.concatenate([first, np.array([0.0, -0.0, np.inf, np.nan], first.dtype)])
        return difference(_again(call, first, np.full_like(first, number)), first, 0)

    return check


claims("unit_one")(_unit(1.0))
claims("unit_zero")(_unit(0.0))
claims("unit_minus_zero")(_unit(-0.0))


@claims("random")
def _random(call: Call, outputs: tuple[Array, ...]) -> str | None:
    second_run = call.run(call.with_residuals()[0])
    return next((text for a, b in zip(second_run, outputs, strict=True) if (text := difference(a, b, 0))), None)
