"""`hf.jvp`, `hf.jacobian`, `hf.hessian`, `hf.hvp`: forward mode, Jacobians and second derivatives.

Forward mode needs no rules of its own. The pullback of a function is linear in the output gradients, and its
transpose is the derivative in a direction. So a tape records a pullback as a function of its output gradients, whose
values do not matter, and differentiates it. Compilation drops the operations that only compute the pullback's value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from hybridflow.autodiff.backprop import conjugates
from hybridflow.autodiff.functional import fresh, fresh_arguments, value_and_grad
from hybridflow.autodiff.jacobian import flatten
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core import structures
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, message, structure_text
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.core.variable import Variable
from hybridflow.ops.creation import full
from hybridflow.ops.shape import permute_dims

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MODES = ("auto", "forward", "reverse")


@with_foreign_keywords
def jvp(fn: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, R]:
    """Return a function's value and its derivative in a direction (forward mode).

    The derivative follows the gradient rules, including custom ones, so it is the transpose of `hf.vjp`.

    Args:
        fn: a function of tensors.
        primals: the arguments, a tuple or list of tensors in any nesting.
        tangents: the direction, in the structure, shapes and dtypes of the primals. None means zeros; integers and
            other values must have None.

    Returns:
        The value, and its derivative in the value's structure, with None for values without a derivative (integers).

    Raises:
        ArgumentTypeError: if primals or tangents are not a tuple or list.
        ArgumentError: if the tangents have another structure.
        ShapeError, DTypeError: if a tangent has another shape or dtype, or belongs to an integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.jvp(lambda x: x * x, (3.0,), (2.0,))
        (Tensor(9., dtype=float32), Tensor(12., dtype=float32))
    """
    require_function("jvp", fn)
    arguments, sources, directions = _direction("jvp", "tangents", primals, tangents)
    tape = GradientTape(watch_accessed_variables=False)
    with tape:
        tape.watch(sources)
        value = as_traced(fn)(*arguments)
    leaves, tree = flatten(value)
    positions = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
    targets = [leaves[i] for i in positions]
    derivatives: list[Any] = [None] * len(leaves)
    if not targets or not sources:
        directional: list[Any] = [_zeros(leaf) for leaf in targets]
    else:
        outer = GradientTape(watch_accessed_variables=False)
        with outer:
            seeds = [_zeros(leaf) for leaf in targets]
            outer.watch(seeds)
            pulled = tape.gradient(targets, sources, seeds)
        reached = [(one, direction) for one, direction in zip(pulled, directions, strict=True) if one is not None]
        if reached:
            directional = outer.gradient([a for a, _ in reached], seeds, [b for _, b in reached], "zero")
        else:
            directional = seeds
    for position, one in zip(positions, directional, strict=True):
        derivatives[position] = one
    return value, structures.unflatten(tree, derivatives)


@with_foreign_keywords
def hvp(fn: Callable[..., Any], primals: Sequence[T], vectors: Sequence[Any]) -> tuple[T, ...]:
    """Return the product of a scalar function's Hessian with a vector, without computing the Hessian.

    Args:
        fn: a function with a scalar floating-point result.
        primals: its arguments, a tuple or list of floating-point tensors in any nesting.
        vectors: the vector, in the structure, shapes and dtypes of the primals.

    Returns:
        The product, a tuple with the structure of the primals.

    Raises:
        ArgumentTypeError, ArgumentError, ShapeError, DTypeError: as for `jvp`, or if the result is not a scalar.

    Example:
        >>> import hybridflow as hf
        >>> hf.hvp(lambda x: hf.sum(x**3), (hf.asarray([1.0, 2.0]),), (hf.asarray([1.0, 0.0]),))
        (Tensor([6., 0.], dtype=float32),)
    """
    require_function("hvp", fn)
    arguments, sources, directions = _direction("hvp", "vectors", primals, vectors)
    leaves, tree = flatten(tuple(primals))
    if len(sources) != len(leaves):
        missing = next(i for i, leaf in enumerate(flatten(tuple(arguments))[0]) if not any(leaf is s for s in sources))
        raise DTypeError(f"hvp: primal {missing} has no gradient or no vector", got=_describe(leaves[missing]),
                         hint="Pass floats with a vector each, and close over the rest.")
    tape = GradientTape(watch_accessed_variables=False)
    with tape:
        tape.watch(sources)
        _, gradients = value_and_grad(fn, tuple(range(len(arguments))))(*arguments)
    product = tape.gradient(flatten(gradients)[0], sources, directions, "zero")
    return structures.unflatten(tree, product)


@with_foreign_keywords
def jacobian(
    fn: Callable[P, Any], argnums: int | tuple[int, ...] = 0, mode: str = "auto"
) -> Callable[P, Any]:
    """Return a function that computes the derivative of every element of `fn`'s result.

    Args:
        fn: a function with floating-point results, in any nesting.
        argnums: which positional arguments to differentiate; each may be a pytree of floats.
        mode: ``"reverse"`` makes one backward pass per element of the result, ``"forward"`` one forward pass per
            element of the arguments; all passes are one vectorized run. ``"auto"`` takes the mode with fewer passes.
            Between real and complex numbers the mode is always reverse.

    Returns:
        A function with `fn`'s arguments. Its result has the structure of `fn`'s result, where each tensor is replaced
        by the argument's structure (or a tuple of several) with tensors ``(*result.shape, *argument.shape)``.

    Raises:
        ArgumentError: for another mode, or if the call has no argument of a number.
        DTypeError: if an argument or result has no gradient.

    Example:
        >>> import hybridflow as hf
        >>> hf.jacobian(lambda x: x * x)(hf.asarray([1.0, 2.0]))
        Tensor([[2., 0.],
                [0., 4.]], dtype=float32)
    """
    require_function("jacobian", fn)
    if mode not in _MODES:
        raise ArgumentError(f"jacobian: mode={mode!r} is not one of {list(_MODES)}")
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(fn)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        arguments = fresh_arguments("jacobian", args, numbers)
        wanted = tuple([arguments[number] for number in numbers])
        sources, source_tree = flatten(wanted[0] if isinstance(argnums, int) else wanted)
        tape = GradientTape(persistent=True, watch_accessed_variables=False)
        with tape:
            tape.watch(sources)
            value = as_traced(fn)(*arguments, **kwargs)
        targets, tree = flatten(value)
        for target in targets:
            _require_float_result("jacobian", target)
        # Between real and complex numbers, columns and rows hold different parts of the derivative.
        mixed = len({one.dtype.kind == "c" for one in (*sources, *targets)}) > 1
        if not mixed and (mode == "forward" or (mode == "auto" and _elements(sources) < _elements(targets))):
            rows = _forward_rows(tape, targets, sources)
        else:
            rows = tape.jacobian(targets, sources, "zero")
        return structures.unflatten(tree, [structures.unflatten(source_tree, row) for row in rows])

    return differentiated


@with_foreign_keywords
def hessian(fn: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> Callable[P, Any]:
    """Return a function that computes the second derivatives of `fn`'s result.

    Args:
        fn: a function with floating-point results, usually a scalar.
        argnums: which positional arguments to differentiate; each may be a pytree of floats.

    Returns:
        A function with `fn`'s arguments. Its result has the structure of `jacobian`, nested twice: for a scalar
        function of one tensor, a tensor ``(*argument.shape, *argument.shape)``.

    Raises:
        ArgumentError, DTypeError: as for `jacobian`.

    Example:
        >>> import hybridflow as hf
        >>> hf.hessian(lambda x: x[0] * x[1])(hf.asarray([1.0, 2.0]))
        Tensor([[0., 1.],
                [1., 0.]], dtype=float32)
    """
    require_function("hessian", fn)
    return jacobian(jacobian(fn, argnums, "reverse"), argnums, "reverse")


def _forward_rows(tape: GradientTape, targets: list[Tensor], sources: list[Tensor]) -> list[list[Tensor]]:
    """Return the Jacobian of every target with respect to every source, as the transpose of the pullback."""
    outer = GradientTape(persistent=True, watch_accessed_variables=False)
    with outer:
        seeds = [_zeros(target) for target in targets]
        outer.watch(seeds)
        pulled: list[Tensor | None] = tape.gradient(targets, sources, seeds)
    rows: list[list[Tensor]] = [[] for _ in targets]
    for one, source in zip(pulled, sources, strict=True):
        columns = [None] * len(targets) if one is None else outer.jacobian(one, seeds)
        for row, column, target in zip(rows, columns, targets, strict=True):
            if column is None:
                row.append(full((*target.shape, *source.shape), 0, dtype=source.dtype))
            else:
                order = (*range(source.ndim, column.ndim), *range(source.ndim))
                row.extend(conjugates([permute_dims(column, order)]))  # the transpose of a gradient is a conjugate
    return rows


def _direction(
    name: str, what: str, primals: Any, tangents: Any
) -> tuple[tuple[Any, ...], list[Tensor], list[Tensor]]:
    """Return fresh arguments, their tensors that have a tangent, and these tangents."""
    for label, value in (("primals", primals), (what, tangents)):
        if not isinstance(value, tuple | list):
            raise ArgumentTypeError(f"{name}: {label} must be a tuple with one entry per argument",
                                    got=_describe(value), hint=f"Write hf.{name}(fn, (x,), (v,)).")
    leaves, tree = flatten(tuple(primals))
    given, given_tree = flatten(tuple(tangents))
    if tree != given_tree:
        raise ArgumentError(f"{name}: the {what} have structure {structure_text(given_tree)}, "
                            f"the primals {structure_text(tree)}", hint="Give one per tensor of the primals, or None.")
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in structures.with_paths(tuple(primals), is_leaf=lambda x: x is None)[0]
    ]
    arguments = list(leaves)
    sources: list[Tensor] = []
    directions: list[Tensor] = []
    for index, (path, leaf, tangent) in enumerate(zip(paths, leaves, given, strict=True)):
        if tangent is None:
            continue
        arguments[index] = fresh(as_tensor(leaf))
        sources.append(arguments[index])
        directions.append(_matching(name, what, path, arguments[index], tangent))
    return structures.unflatten(tree, arguments), sources, directions


def _matching(name: str, what: str, path: str, primal: Tensor, value: Any) -> Tensor:
    """Return a tangent as a tensor of its primal's shape and dtype."""
    if not is_differentiable(primal.dtype):
        raise DTypeError(f"{name}: primal{path} is {primal.dtype}, which has no derivative", got=str(primal.spec),
                         hint=f"Pass a float, or None in its place among the {what}.")
    tensor = as_tensor(value) if hasattr(value, "dtype") else asarray(value, dtype=primal.dtype)
    if tensor.shape != primal.shape:
        raise ShapeError(f"{name}: {what}{path} has shape {tensor.shape}, its primal {primal.shape}",
                         got=f"{tensor.spec} for {primal.spec}", hint="Give it the primal's shape.")
    if tensor.dtype != primal.dtype:
        raise DTypeError(f"{name}: {what}{path} is {tensor.dtype}, its primal {primal.dtype}",
                         got=f"{tensor.spec} for {primal.spec}", hint=f"Cast it with .astype(hf.{primal.dtype}).")
    return tensor


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | Variable) and is_differentiable(leaf.dtype)


def _zeros(like: Tensor | Variable) -> Tensor:
    return full(like.shape, 0, dtype=like.dtype)


def _require_float_result(name: str, leaf: Any) -> None:
    if _is_float(leaf):
        return
    error = DTypeError if isinstance(leaf, Tensor | Variable) else ArgumentTypeError
    raise error(
        message(f"{name}: the function must return tensors of floats, it returned {_describe(leaf)}",
                hint="Leave out of the result what has no derivative.")
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor | Variable):
        return str(value.spec)
    return f"a {type(value).__name__}"


def _elements(tensors: Sequence[Tensor]) -> Any:
    return sum(tensor.size for tensor in tensors)
