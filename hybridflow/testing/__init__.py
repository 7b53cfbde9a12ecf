"""Test your own functions and ops: `check_gradients`, `check_op`, `assert_same`, `assert_max_traces`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from hybridflow.analysis.parity import assert_same as assert_same
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core.attached import attached as _attached
from hybridflow.core.dtypes import as_dtype, is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, CheckError
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.op import No, Op, Sample
from hybridflow.core.tensor import Tensor, as_tensor, asarray, describe
from hybridflow.core.variable import Variable
from hybridflow.ops.complex_parts import imag, real
from hybridflow.testing import graphs as graphs
from hybridflow.testing import onnx as onnx
from hybridflow.testing import symbolic as symbolic
from hybridflow.testing.calls import capture
from hybridflow.testing.checks import CALL_CHECKS, OP_CHECKS, samples_of
from hybridflow.tracing.function import CompiledFunction

_STEP = 1e-5
_ROWS = 5
_ELEMENTS = 64
"""The number of elements of one argument that are compared; of a larger argument, a random choice."""


# -- ops ----------------------------------------------------------------------------------------------------------


def check_op(op: Any, *, seed: int = 0) -> None:
    """Run every automatic check of an op on its own samples.

    The NumPy kernel and the lowering must agree with each other and with a float64 run. `infer` must be right, also
    with symbolic sizes. The gradient rule must agree with central differences, with `jax.vjp` of the lowering, and
    with jax's second order. If the `onnx` package is installed, its evaluator must give the kernel's result. The
    record's claims about saved values, traits, FLOPs and methods must hold. The bad samples must raise their errors.

    Args:
        op: the op's public function, or its record.
        seed: the seed of the samples.

    Raises:
        CheckError: some checks failed; the text names each of them and what differs.
        ArgumentTypeError: `op` is not an op.
        ArgumentError: the op has no samples.

    Example:
        >>> import hybridflow as hf
        >>> hf.testing.check_op(hf.square)
    """
    record = getattr(op, "op", op)
    if not isinstance(record, Op):
        raise ArgumentTypeError(f"check_op: a {type(op).__name__} is no op",
                                hint="Pass the public function, such as hf.add.")
    if isinstance(record.samples, No):
        raise ArgumentError(f"check_op: {record.name} has no samples: {record.samples.why}",
                            hint="Give the op samples=.")
    failures: list[str] = []
    for name, check in OP_CHECKS.items():
        _run(failures, name, lambda check=check: check(record, seed))
    for number, sample in enumerate(samples_of(record, seed)):
        if not isinstance(sample, Sample):
            continue
        for call in capture(record, sample):
            for name, check in CALL_CHECKS.items():
                _run(failures, f"{name}, sample {number}", lambda check=check, call=call: check(call))
    if failures:
        raise CheckError(f"{record.name}: {len(failures)} checks failed\n" + "\n".join(failures))


def _run(failures: list[str], name: str, check: Callable[[], None]) -> None:
    try:
        check()
    except CheckError as error:
        failures.append(f"- {name}: {error}")


# -- gradients ----------------------------------------------------------------------------------------------------


def check_gradients(
    fn: Callable[..., Any], args: Sequence[Any], order: int = 2, *, tolerance: float = 1e-5, seed: int = 0
) -> None:
    """Compare a tape's gradients with central differences.

    Floating-point arguments are converted to float64 first, complex ones to complex128. Real and imaginary parts are
    moved separately. Results are summed to one number with random weights. Choose arguments away from kinks, where the
    derivative does not exist. The function must give the same result at every call, so seed its random draws.

    Args:
        fn: a function of tensors that returns tensors (any structure).
        args: its arguments: arrays or tensors in any structure; integers and other values are passed unchanged.
        order: 1 for gradients, 2 for gradients of gradients too, and so on up to 4.
        tolerance: the allowed difference, relative to the largest gradient of the argument.
        seed: the seed of the random weights.

    Raises:
        CheckError: gradients differ (the text lists the elements), or the function gives another result when it is
            called again.
        ArgumentError: an order other than 1 to 4, or no floating-point argument or result.

    Example:
        >>> import hybridflow as hf
        >>> hf.testing.check_gradients(lambda x: hf.sum(hf.exp(x) * x), [hf.asarray([0.5, -1.0])])
    """
    require_function("check_gradients", fn)
    if order not in _ORDERS:
        raise ArgumentError(f"check_gradients: order={order} is not one of {', '.join(map(str, _ORDERS))}")
    paths, tree = jax.tree_util.tree_flatten_with_path(tuple(args), is_leaf=lambda x: x is None)
    names = [f"argument {jax.tree_util.keystr(path)}" for path, _ in paths]
    leaves = [_wide(leaf) for _, leaf in paths]
    differentiable = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and is_differentiable(leaf.dtype)]
    if not differentiable:
        raise ArgumentError("check_gradients: no argument is floating-point", got=", ".join(describe(x) for x in args),
                            hint="Pass arrays or tensors of floats.")

    def of_floats(*floats: Tensor) -> list[Tensor]:
        full = list(leaves)
        given = iter(floats)
        for position in differentiable:
            full[position] = _whole([next(given) for _ in _parts(cast("Tensor", leaves[position]))])
        result = as_traced(fn)(*jax.tree_util.tree_unflatten(tree, full))
        outputs = [as_tensor(y) for y in jax.tree_util.tree_leaves(result, is_leaf=lambda x: isinstance(x, Tensor))]
        return [part for y in outputs if is_differentiable(y.dtype) for part in _parts(y)]

    floats = [part for i in differentiable for part in _parts(cast("Tensor", leaves[i]))]
    chosen = [names[i] + label for i in differentiable for label in _LABELS[len(_parts(cast("Tensor", leaves[i])))]]
    _require_repeatable(of_floats, floats)
    rng = np.random.default_rng(seed)
    derivative = of_floats
    for number in range(1, order + 1):
        what = _ORDERS[number] + "gradient"
        _compare(derivative, floats, chosen, what, tolerance, rng)
        if number < order:
            weights = [asarray(rng.standard_normal(y.shape), dtype=y.dtype) for y in derivative(*floats)]
            derivative = _gradient_function(derivative, weights)


_ORDERS = {1: "", 2: "second-order ", 3: "third-order ", 4: "fourth-order "}
_LABELS = {1: ("",), 2: (" (real part)", " (imaginary part)")}


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return a tensor, or the real and imaginary part of a complex one."""
    return [real(tensor), imag(tensor)] if tensor.dtype.kind == "c" else [tensor]


def _whole(parts: list[Tensor]) -> Tensor:
    """Return the tensor that has the given parts; the inverse of `_parts`."""
    return parts[0] if len(parts) == 1 else cast(Any, parts[0]) + cast(Any, parts[1]) * 1j


def _require_repeatable(fn: Callable[..., list[Tensor]], floats: Sequence[Tensor]) -> None:
    for index, (first, second) in enumerate(zip(fn(*floats), fn(*floats), strict=True)):
        if not np.array_equal(first.numpy(), second.numpy(), equal_nan=True):
            raise CheckError(f"check_gradients: result {index} is another one when the function is called again",
                             hint="Seed what it draws, and leave the Variables that it reads as they are.")


def _wide(leaf: Any) -> Any:
    """Return a floating-point value as a float64 or complex128 tensor; other values keep their dtype."""
    if not isinstance(leaf, Tensor | Variable | np.ndarray | jax.Array | float | complex):
        return leaf
    tensor = as_tensor(leaf)
    if not is_differentiable(as_dtype(tensor.dtype)):
        return tensor
    return asarray(tensor.numpy().astype(np.complex128 if tensor.dtype.kind == "c" else np.float64))


def _gradient_function(fn: Callable[..., list[Tensor]], weights: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
    """Return a function that computes the gradients of another function's weighted results."""

    def gradients(*floats: Tensor) -> list[Tensor]:
        with GradientTape() as tape:
            tape.watch(list(floats))
            outputs = fn(*floats)
        gradients = tape.gradient(outputs, list(floats), list(weights), unconnected_gradients="zero")
        return list(gradients)

    return gradients


def _compare(
    fn: Callable[..., list[Tensor]],
    floats: Sequence[Tensor],
    names: Sequence[str],
    what: str,
    tolerance: float,
    rng: np.random.Generator,
) -> None:
    """Raise if a tape's gradients of a function's weighted results differ from central differences."""
    with GradientTape() as tape:
        tape.watch(list(floats))
        outputs = fn(*floats)
    if not outputs:
        raise ArgumentError("check_gradients: no result is floating-point", hint="Return tensors of floats.")
    weights = [rng.standard_normal(y.shape) for y in outputs]
    seeds = [asarray(w, dtype=y.dtype) for w, y in zip(weights, outputs, strict=True)]
    gradients = tape.gradient(outputs, list(floats), seeds, unconnected_gradients="zero")

    def weighted(*values: Tensor) -> float:
        return float(sum(np.sum(y.numpy() * w) for y, w in zip(fn(*values), weights, strict=True)))

    report: list[str] = []
    for index, (x, gradient, name) in enumerate(zip(floats, gradients, names, strict=True)):
        report += _compare_elements(weighted, floats, index, gradient.numpy(), f"{name} {x.spec}", tolerance, rng)
    if report:
        hint = "  If the function computes in float32 inside, allow for its rounding with tolerance=1e-2."
        raise CheckError("\n".join([f"check_gradients: the {what} is not the central difference", *report, hint]))


def _compare_elements(
    weighted: Callable[..., float],
    floats: Sequence[Tensor],
    index: int,
    gradient: np.ndarray[Any, Any],
    name: str,
    tolerance: float,
    rng: np.random.Generator,
) -> list[str]:
    """Return a line for each element of one argument whose gradient differs."""
    x = floats[index].numpy()
    chosen = np.arange(x.size) if x.size <= _ELEMENTS else np.sort(rng.choice(x.size, _ELEMENTS, replace=False))
    scale = float(np.max(np.abs(gradient), initial=0.0))
    wrong: list[str] = []
    for flat in chosen:
        at = tuple([int(i) for i in np.unravel_index(flat, x.shape)])
        step = _STEP * max(1.0, abs(float(x[at])))
        above, below = (_moved(weighted, floats, index, at, offset) for offset in (step, -step))
        numeric = (above - below) / (2 * step)
        slope = float(gradient[at])
        noise = 1e-11 * (abs(above) + abs(below)) / (2 * step) * 1e-3
        if not abs(slope - numeric) <= tolerance * max(abs(slope), abs(numeric), scale) + noise + 1e-9:
            wrong.append(f"  {name} at {list(at)}: tape {slope:.8g}, central difference {numeric:.8g}")
    if len(wrong) > _ROWS:
        wrong[_ROWS:] = [f"  {name}: {len(wrong) - _ROWS} more of {len(chosen)} elements"]
    return wrong


def _moved(
    weighted: Callable[..., float], floats: Sequence[Tensor], index: int, at: tuple[int, ...], offset: float
) -> float:
    """Return the weighted sum of the results after one element of one argument is moved."""
    moved = np.array(floats[index].numpy())
    moved[at] += offset
    return weighted(*floats[:index], asarray(moved), *floats[index + 1 :])


# -- traces -------------------------------------------------------------------------------------------------------


def assert_max_traces(fn: Any, n: int) -> None:
    """Raise if a compiled function was traced more often than allowed.

    Args:
        fn: a function made by `hf.compile`, after the calls to judge.
        n: the largest number of traces allowed.

    Raises:
        CheckError: there are more traces; the text includes `fn.explain()`.
        ArgumentTypeError: the function is not compiled.

    Example:
        >>> import hybridflow as hf
        >>> double = hf.compile(lambda x: 2 * x)
        >>> for number in (1.0, 2.0, 3.0):
        ...     y = double(hf.asarray(number))
        >>> hf.testing.assert_max_traces(double, 1)
    """
    if not isinstance(fn, CompiledFunction):
        raise ArgumentTypeError(f"assert_max_traces: a {type(fn).__name__} is not compiled",
                                hint="Pass what hf.compile returned.")
    if fn.trace_count > n:
        raise CheckError(f"assert_max_traces: {fn.trace_count} traces, at most {n} allowed\n{fn.explain()}")


__all__ = ["assert_max_traces", "assert_same", "check_gradients", "check_op"]
_attached("name_module")("hf.testing", __name__)
