"""`hf.accumulate_gradients`: the gradients of a batch, computed one micro-batch after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from hybridflow.autodiff.functional import fresh_arguments, require_scalar, with_aux
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core import structures
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.functions import as_traced
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nested.scans import scan

P = ParamSpec("P")
R = TypeVar("R")

_NAME = "accumulate_gradients"


def accumulate_gradients(
    fn: Callable[P, R],
    micro_batches: int,
    argnums: int | tuple[int, ...] | None = 0,
    *,
    batch_argnums: int | tuple[int, ...] | None = None,
    variables: Any = None,
    reduction: str = "mean",
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Return a function that computes `fn`'s value and gradients on a batch, one micro-batch after the other.

    Only one micro-batch's activations are alive at a time. The micro-batches are the steps of a loop, in eager code a
    Python loop. Random draws and assignments to Variables in `fn` happen once per micro-batch. Sums of float16 and
    bfloat16 gradients are kept in float32. On a mesh that splits the rows of a micro-batch evenly, each device adds
    up the gradients of its rows; those of products and sums are reduced over the devices once, after the last step.

    Args:
        fn: a function with a scalar floating-point result (or ``(result, aux)`` with `has_aux`).
        micro_batches: the number of equal parts into which the batch is cut along axis 0.
        argnums: which positional arguments to differentiate, each a pytree of floats; None for none of them.
        batch_argnums: which positional arguments are the batch, each a pytree of tensors with one leading size. By
            default, all that are not in `argnums`. An argument may be in both; its gradient covers the whole batch.
        variables: Variables to differentiate too, in any nesting.
        reduction: how `fn` combines the examples of a batch. With ``"mean"``, the values and gradients of
            micro-batches are averaged; with ``"sum"``, they are added.
        has_aux: whether `fn` returns something besides the result.

    Returns:
        A function with `fn`'s arguments that returns ``(value, gradient)``, or ``((value, aux), gradient)``. The
        gradient is that of `hf.value_and_grad`. With `variables`, it has their structure; with both arguments and
        `variables`, it is a pair of the two gradients. The tensors in `aux` get a new first axis, over micro-batches.

    Raises:
        ShapeError: if the batch cannot be cut into equal parts, leading sizes differ, or the result is not a scalar.
        DTypeError: if an argument or the result has no gradient.
        ArgumentError: if there is less than one micro-batch, nothing to differentiate or to cut, no argument of a
            number, or another word for `reduction`.

    Example:
        >>> import hybridflow as hf
        >>> def loss(w, x, y):
        ...     return hf.mean((x @ w - y) ** 2)
        >>> w, x, y = hf.ones((3,)), hf.ones((8, 3)), hf.zeros((8,))
        >>> value, gradient = hf.accumulate_gradients(loss, 4)(w, x, y)
        >>> value, gradient
        (Tensor(9., dtype=float32), Tensor([6., 6., 6.], dtype=float32))
    """
    if reduction not in ("mean", "sum"):
        raise ArgumentError(f"{_NAME}: reduction={reduction!r} is not one of ['mean', 'sum']")
    if isinstance(micro_batches, bool) or not isinstance(cast(object, micro_batches), int) or micro_batches < 1:
        raise ArgumentError(f"{_NAME}: micro_batches={micro_batches!r}", hint="Give a number of parts from 1 on.")
    if argnums is None and variables is None:
        raise ArgumentError(f"{_NAME}: there is nothing to differentiate", hint="Give argnums, variables, or both.")
    numbers = _numbers(argnums) or ()
    chosen = _Choice(fn, micro_batches, numbers, _numbers(batch_argnums), variables, has_aux)

    @functools.wraps(fn)
    def accumulated(*args: Any, **kwargs: Any) -> Any:
        values, aux, of_arguments, of_variables = _run(chosen, args, kwargs, reduction == "mean")
        value = PUBLIC.mean(values) if reduction == "mean" else PUBLIC.sum(values)
        gradient = of_arguments[0] if isinstance(argnums, int) else tuple(of_arguments)
        if variables is not None:
            gradient = of_variables if argnums is None else (gradient, of_variables)
        return ((value, aux) if has_aux else value), gradient

    return accumulated


class _Choice(NamedTuple):
    """The caller's arguments; see `accumulate_gradients`."""

    fn: Callable[..., Any]
    parts: int
    numbers: tuple[int, ...]
    batch: tuple[int, ...] | None
    variables: Any
    has_aux: bool


def _numbers(given: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    return (given,) if isinstance(given, int) else given if given is None else tuple(given)


def _run(
    chosen: _Choice, args: tuple[Any, ...], kwargs: dict[str, Any], mean: bool
) -> tuple[Tensor, Any, list[Any], Any]:
    """Return the values of the micro-batches, the stacked aux, and the gradients of arguments and Variables."""
    numbers = _within(chosen.numbers, len(args))
    batch = _batch_of(chosen, numbers, len(args))
    rows = _cut([args[number] for number in batch], chosen.parts)
    whole = [number for number in numbers if number not in batch]
    variables, variables_tree = structures.flatten(chosen.variables)
    _require_variables(variables)
    leaves, tree = structures.flatten([args[number] for number in whole])

    def step(sums: Any, slices: Any) -> tuple[Any, Any]:
        arguments = list(args)
        for number, value in zip(batch, slices, strict=True):
            arguments[number] = value
        arguments = fresh_arguments(_NAME, tuple(arguments), numbers)
        tape = GradientTape(watch_accessed_variables=False)
        with tape:
            tape.watch([[arguments[number] for number in numbers], variables])
            result = as_traced(chosen.fn)(*arguments, **kwargs)
        value, aux = with_aux(result) if chosen.has_aux else (result, None)
        require_scalar(value)
        sources = [[arguments[n] for n in whole], variables, [arguments[n] for n in numbers if n in batch]]
        gradients = tape.gradient(value, sources, unconnected_gradients="zero")
        new = structures.leaves(gradients[:2])
        added = [old + PUBLIC.astype(one, old.dtype) for old, one in zip(sums, new, strict=True)]
        return added, (value, aux, gradients[2])

    summed, (values, aux, of_rows) = scan(step, [*map(_sum_of, (*leaves, *variables))], rows)
    scale = chosen.parts if mean else 1
    gradients = [_like(g, x, scale) for g, x in zip(summed, (*leaves, *variables), strict=True)]
    by_number = dict(zip(whole, tree.unflatten(gradients[: len(leaves)]), strict=True))
    of_batch = structures.map_leaves(lambda g: _joined(g, scale), of_rows)
    by_number.update(zip([number for number in numbers if number in batch], of_batch, strict=True))
    of_variables = variables_tree.unflatten(gradients[len(leaves) :])
    return values, aux, [by_number[number] for number in numbers], of_variables


def _batch_of(chosen: _Choice, numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    if chosen.batch is not None:
        return _within(chosen.batch, count)
    return tuple([number for number in range(count) if number not in numbers])


def _within(numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    for number in numbers:
        if not -count <= number < count:
            raise ArgumentError(f"{_NAME}: there is no argument {number}, the call has {count} positional arguments",
                                hint="Pass what is differentiated, and the batch, by position.")
    return tuple([number % count for number in numbers])


def _require_variables(leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, Variable):
            raise ArgumentTypeError(f"{_NAME}: a {type(leaf).__name__} among variables",
                                    hint="Give Variables; tensors to differentiate are arguments.")


def _cut(batch: list[Any], parts: int) -> Any:
    """Return the batch with a first axis of micro-batches."""
    leaves, tree = structures.flatten(batch)
    tensors = [as_tensor(leaf) for leaf in leaves]
    if not tensors:
        raise ArgumentError(f"{_NAME}: there is no batch among the arguments", hint="Name it with batch_argnums.")
    for tensor in tensors:
        if not tensor.shape or tensor.shape[0] != tensors[0].shape[0]:
            raise ShapeError(f"{_NAME}: leading sizes differ in the batch",
                             got=", ".join([str(one.spec) for one in tensors]),
                             hint="Name the arguments that are cut with batch_argnums.")
    size = tensors[0].shape[0]
    if size % parts != 0:
        raise ShapeError(f"{_NAME}: a batch of {size} cannot be cut into {parts} equal micro-batches",
                         got=str(tensors[0].spec), hint="Choose a divisor of the batch's size, or pad the batch.")
    return tree.unflatten([PUBLIC.reshape(one, (parts, size // parts, *one.shape[1:])) for one in tensors])


def _sum_of(leaf: Any) -> Tensor:
    """Return zeros, the start of the sum of a value's gradients."""
    tensor = leaf if isinstance(leaf, Variable) else as_tensor(leaf)
    return PUBLIC.full(tensor.shape, 0, dtype=float32 if tensor.dtype.num in LOW_PRECISION else tensor.dtype)


def _like(gradient: Any, source: Any, scale: int) -> Tensor:
    scaled = gradient / scale if scale != 1 else gradient
    return PUBLIC.astype(scaled, source.dtype if isinstance(source, Variable) else as_tensor(source).dtype)


def _joined(gradient: Any, scale: int) -> Tensor:
    """Return the gradient of the whole batch, given those of the micro-batches."""
    parts, size, *rest = gradient.shape
    joined = PUBLIC.reshape(gradient, (parts * size, *rest))
    return joined / scale if scale != 1 else joined
