"""`hf.grad`, `hf.value_and_grad`, `hf.vjp`: functional gradients, built on the tape."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from hybridflow.autodiff.jacobian import flatten
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core import structures
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.op import No, Op, register
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor

P = ParamSpec("P")
R = TypeVar("R")


def _same(x: Any) -> Any:
    return x


IDENTITY = register(
    Op(
        "identity",
        _same,
        _same,
        _same,
        lambda F, g, y, x: (g,),  # pyright: ignore[reportUnknownLambdaType]
        samples=No("made by transformations; tested with them"),
        traits=frozenset({"identity", "layout"}),
        onnx="Identity",
    )
)


def fresh(tensor: Tensor) -> Tensor:
    """Return a new tensor with the same value, connected to the old one for the outer tapes."""
    return make_tensor(tensor._value) if CONTEXT.get() is None and tensor._edge is None else bind(IDENTITY, (tensor,))


def fresh_primals(name: str, tree: Any) -> Any:
    """Return a pytree with every leaf replaced by a fresh differentiable tensor.

    Raises:
        DTypeError: if a leaf cannot carry a gradient.
    """

    def convert(path: Any, leaf: Any) -> Tensor:
        tensor = as_tensor(leaf)
        if not is_differentiable(tensor.dtype):
            raise DTypeError(f"{name}: argument{jax.tree_util.keystr(path)} is {tensor.dtype}, which has no gradient",
                             got=str(tensor.spec), hint="Pass a float, or leave it out of argnums.")
        return fresh(tensor)

    leaves, structure = structures.with_paths(tree)
    return structures.unflatten(structure, [convert(path, leaf) for path, leaf in leaves])


def fresh_arguments(name: str, args: tuple[Any, ...], numbers: tuple[int, ...]) -> list[Any]:
    """Return positional arguments; those in `numbers` get fresh differentiable tensors as leaves.

    Raises:
        ArgumentError: if the call has no argument of a number.
        DTypeError: if a leaf cannot carry a gradient.
    """
    arguments = list(args)
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise ArgumentError(f"{name}: argnums has {number}, the call has {len(args)} positional arguments",
                                hint="Pass the arguments to differentiate by position.")
        arguments[number] = fresh_primals(name, args[number])
    return arguments


def vjp(fn: Callable[..., R], *primals: Any) -> tuple[R, Callable[[Any], tuple[Any, ...]]]:
    """Return a function's value and the pullback of its output gradients.

    Args:
        fn: a function of tensors.
        *primals: its arguments: floating-point tensors in any nesting.

    Returns:
        The value, and the pullback. The pullback takes output gradients in the value's structure and returns a tuple
        with one gradient per primal, zeros if the value does not depend on it. It may be called any number of times.

    Raises:
        DTypeError: if an argument has no gradient.

    Example:
        >>> import hybridflow as hf
        >>> value, pullback = hf.vjp(lambda x: x * x, hf.asarray(3.0))
        >>> pullback(hf.asarray(1.0))
        (Tensor(6., dtype=float32),)
    """
    require_function("vjp", fn)
    arguments = fresh_primals("vjp", primals)
    tape = GradientTape(persistent=True, watch_accessed_variables=False)
    with tape:
        tape.watch(arguments)
        value = as_traced(fn)(*arguments)

    def pullback(output_gradients: Any) -> tuple[Any, ...]:
        return tape.gradient(value, arguments, output_gradients, unconnected_gradients="zero")

    return value, pullback


@with_foreign_keywords
def value_and_grad(
    fn: Callable[P, R], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """Return a function that computes `fn`'s value and its gradient.

    Args:
        fn: a function with a scalar floating-point result (or ``(result, aux)`` with `has_aux`).
        argnums: which positional arguments to differentiate; each may be a pytree of floats.
        has_aux: whether `fn` returns something besides the result.

    Returns:
        A function with `fn`'s arguments that returns ``(value, gradient)``, or ``((value, aux), gradient)``; the
        gradient has the structure of the argument, or is a tuple of several.

    Raises:
        ShapeError: if the result is not a scalar.
        DTypeError: if an argument or the result has no gradient.
        ArgumentError: if the call has no argument of a number.

    Example:
        >>> import hybridflow as hf
        >>> hf.value_and_grad(lambda x: hf.sum(x * x))(hf.asarray([1.0, 2.0]))
        (Tensor(5., dtype=float32), Tensor([2., 4.], dtype=float32))
    """
    require_function("value_and_grad", fn)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(fn)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        arguments = fresh_arguments("grad", args, numbers)
        tape = GradientTape(watch_accessed_variables=False)
        with tape:
            tape.watch([arguments[number] for number in numbers])
            result = as_traced(fn)(*arguments, **kwargs)
        value, aux = with_aux(result) if has_aux else (result, None)
        require_scalar(value)
        gradients = tape.gradient(value, [arguments[number] for number in numbers], unconnected_gradients="zero")
        gradient = gradients[0] if isinstance(argnums, int) else tuple(gradients)
        return ((value, aux) if has_aux else value), gradient

    return differentiated


@with_foreign_keywords
def grad(fn: Callable[P, Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[P, Any]:
    """Return a function that computes the gradient of `fn`; see `value_and_grad`.

    Args:
        fn: a function with a scalar floating-point result (or ``(result, aux)`` with `has_aux`).
        argnums: which positional arguments to differentiate; each may be a pytree of floats.
        has_aux: whether `fn` returns something besides the result.

    Returns:
        A function with `fn`'s arguments that returns the gradient, or ``(gradient, aux)``.

    Example:
        >>> import hybridflow as hf
        >>> hf.grad(lambda x: x * x * x)(2.0)
        Tensor(12., dtype=float32)
    """
    require_function("grad", fn)
    with_value = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        value, gradient = with_value(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return differentiated


def with_aux(result: Any) -> tuple[Any, Any]:
    """Return a function's result after checking that it is a pair ``(result, aux)``."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentTypeError("grad: with has_aux the function must return (result, aux)",
                                got=f"a {type(result).__name__}", hint="Return a tuple of two, or leave has_aux out.")
    return result


def require_scalar(value: Any) -> None:
    """Raise unless a function's result is one floating-point tensor of shape ()."""
    leaves, _ = flatten(value)
    if len(leaves) != 1 or not isinstance(leaves[0], Tensor):
        raise ArgumentTypeError(f"grad: the function must return one tensor, it returned {type(value).__name__}",
                                hint="Return the loss alone, or (loss, aux) with has_aux=True.")
    if leaves[0].shape != ():
        raise ShapeError(f"grad: the result must be a scalar, its shape is {leaves[0].shape}", got=str(leaves[0].spec),
                         hint="Reduce it with hf.sum or hf.mean, or use hf.vjp.")
    if not is_differentiable(leaves[0].dtype):
        raise DTypeError(f"grad: the result is {leaves[0].dtype}, which has no gradient", got=str(leaves[0].spec))
