"""Einstein summation: products summed over named axes, and the products that are special cases of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from string import ascii_letters
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Saves, op
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    call_text,
    integers,
    make_spec,
    normalize_axis,
    normals,
    promote,
    require_kind,
)
from hybridflow.ops.complex_parts import conj
from hybridflow.ops.padding import summed_products
from hybridflow.ops.shape import permute_dims, reshape, squeeze
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum


def _kernel(*xs: Any, subscripts: str) -> Any:
    sizes = _sizes(subscripts, [x.shape for x in xs])
    if sizes is None:
        raise ValueError
    return contract_arrays(NumpyPart, subscripts, xs)


def _lower(*xs: Any, subscripts: str) -> Any:
    dtype = xs[0].dtype
    if dtype.num in LOW_PRECISION:
        xs = tuple([lax.convert_element_type(x, float32) for x in xs])
    result = contract_arrays(LaxPart, subscripts, xs)
    return result if result.dtype == dtype else lax.convert_element_type(result, dtype)


# -- the op -------------------------------------------------------------------------------------------------------


def _sizes(subscripts: str, shapes: Sequence[Any]) -> dict[str, Any] | None:
    """Return the size of every label, or None if two differ."""
    sizes: dict[str, Any] = {}
    for term, shape in zip(subscripts.split("->")[0].split(","), shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                return None
    return sizes


def _infer(*specs: TensorSpec, subscripts: str) -> TensorSpec:
    require_kind("einsum", NUMERIC, *specs)
    inputs, result = subscripts.split("->")
    sizes: dict[str, Any] = {}
    for term, spec in zip(inputs.split(","), specs, strict=True):
        if spec.dtype != specs[0].dtype:
            raise DTypeError(f"einsum: dtypes differ: {specs[0].dtype} and {spec.dtype}",
                             got=call_text("einsum", *specs))
        for label, size in zip(term, spec.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise ShapeError(f"einsum: label {label!r} has sizes {sizes[label]} and {size}",
                                 got=f"{call_text('einsum', *specs)} with {subscripts!r}",
                                 hint="Axes with one label must have one size.")
    return make_spec(tuple([sizes[label] for label in result]), specs[0].dtype)


def _macs(output: TensorSpec, *specs: TensorSpec, subscripts: str) -> Any:
    """Count one multiply-add per combination of labels, for every step that multiplies two operands and sums."""
    del output
    return _count(subscripts, specs, summing_pairs=True)


def _other_flops(output: TensorSpec, *specs: TensorSpec, subscripts: str) -> Any:
    """Count one FLOP per combination of labels for the other steps, except those that only move elements."""
    del output
    return _count(subscripts, specs, summing_pairs=False)


def _count(subscripts: str, specs: tuple[TensorSpec, ...], *, summing_pairs: bool) -> Any:
    inputs, result = subscripts.split("->")
    sizes = _sizes(subscripts, [spec.shape for spec in specs]) or {}
    terms = inputs.split(",")
    path = (tuple(range(len(terms))),)
    if not any(isinstance(size, Dim) for size in sizes.values()):
        path = contraction_path(subscripts, tuple([spec.shape for spec in specs]))
    total: Any = 0
    for step in path:
        chosen = [terms[position] for position in step]
        terms = [term for position, term in enumerate(terms) if position not in step]
        space = set("".join(chosen))
        kept = space & set(result + "".join(terms))
        points: Any = 1
        for label in sorted(space):
            points = points * sizes[label]
        pairs = len(chosen) > 1 and kept != space
        if pairs is summing_pairs and (len(chosen) > 1 or kept != space):
            total = total + points
        terms.append("".join(sorted(kept)))
    return total


def _vjp(F: Any, g: Any, y: Any, *xs: Any, subscripts: str) -> Any:
    del y
    inputs, result = subscripts.split("->")
    terms = inputs.split(",")

    def of(index: int) -> Any:
        others = [(x, term) for i, (x, term) in enumerate(zip(xs, terms, strict=True)) if i != index]
        known = set(result + "".join(term for _, term in others))
        wanted = "".join(dict.fromkeys(label for label in terms[index] if label in known))
        names = ",".join([result, *[term for _, term in others]])
        core = F.einsum(g, *[x for x, _ in others], subscripts=f"{names}->{wanted}")
        return _spread(F, core, wanted, terms[index], xs[index].shape)

    return [lambda index=index: of(index) for index in range(len(xs))]


def _spread(F: Any, x: Any, own: str, term: str, shape: Any) -> Any:
    """Turn a gradient into its operand's shape: repeated along summed axes, on the diagonal where a label repeats."""
    labels = own
    for label in dict.fromkeys(term):
        if label not in own:
            x = F.reshape(x, shape=(*x.shape, 1))
            x = F.broadcast_to(x, shape=(*x.shape[:-1], shape[term.index(label)]))
            labels += label
    for label in dict.fromkeys(term):
        for _ in range(term.count(label) - 1):
            position = labels.rindex(label)
            order = (*[axis for axis in range(len(labels)) if axis != position], position)
            size = x.shape[position]
            x = F.permute_dims(x, axes=order) if order != tuple(range(len(labels))) else x
            x = F.embed_diagonal(x, rows=size, columns=size, offset=0)
            labels = "".join(labels[axis] for axis in order) + label
    free = {label: [axis for axis, one in enumerate(labels) if one == label] for label in labels}
    order = tuple([free[label].pop(0) for label in term])
    return x if order == tuple(range(len(order))) else F.permute_dims(x, axes=order)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample(("ij,jk->ik", normals(rng, 2, 3), normals(rng, 3, 4)))
    yield Sample(("bij,bjk,kl->lb", normals(rng, 2, 2, 3), normals(rng, 2, 3, 2), normals(rng, 2, 3)))
    yield Sample(("iij,jk->k", normals(rng, 2, 2, 3), normals(rng, 3, 2)))
    yield Sample(("iii,j", normals(rng, 2, 2, 2), normals(rng, 2)))
    yield Sample(("...i,...i->...", normals(rng, 2, 1, 3), normals(rng, 4, 3)))
    yield Sample(("i,j->ji", normals(rng, 2, dtype="float64"), normals(rng, 0)))
    yield Sample((normals(rng, 2, 3), [0, 7], normals(rng, 3), [7]))
    yield Sample(("ij->", normals(rng, 2, 3)))
    yield Sample(("ij,ij", integers(rng, -3, 3, 2, 2), integers(rng, -3, 3, 2, 2)))
    yield Sample(("ij,j", normals(rng, 2, 3, dtype="bfloat16"), normals(rng, 3, dtype="bfloat16")), gradient=False)
    yield Bad(("ij,jk->ik", normals(rng, 2, 3), normals(rng, 2, 3)), error=ShapeError, text="label 'j' has sizes 3 and")
    yield Bad(("ij,jk->ik", normals(rng, 2, 3)), error=ArgumentError, text="2 terms for 1 operands")
    yield Bad(("ij->i", normals(rng, 2)), error=ShapeError, text="'ij' has 2 labels, its operand 1 dimensions")
    yield Bad(("ij->k", normals(rng, 2, 2)), error=ArgumentError, text="'k' is in no term")
    yield Bad(("ij->ii", normals(rng, 2, 2)), error=ArgumentError, text="'i' twice")
    yield Bad(("i1->i", normals(rng, 2, 2)), error=ArgumentError, text="'1' is no label")
    yield Bad(("i...->i", normals(rng, 2, 2)), error=ArgumentError, text="the result has no ellipsis")
    yield Bad((normals(rng, 2), "i"), error=ArgumentTypeError, text="labels as a str")
    yield Bad(("i", normals(rng, 2) > 0), error=DTypeError, text="does not take bool")


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=_vjp,
    saves=Saves(x="all", each="others"),
    flops=MultiplyAdds(_macs, _other_flops),
    samples=_samples,
    traits=("low_precision",),
    ulp=16,
    onnx=lambda o, *xs, subscripts: o.Einsum(*xs, equation=subscripts),
    padded=summed_products,
)
def einsum(*operands: Any, subscripts: str | None = None) -> Tensor:
    """Multiply tensors and sum over the axes that the result does not name.

    Several operands are contracted pair by pair, in an order with few operations. Pairs go to one matrix product.
    float16 and bfloat16 are computed in float32 and rounded once.

    Args:
        *operands: ``"ij,jk->ik", a, b``: one term of letters per tensor and those of the result, or
            ``a, [0, 1], b, [1, 2], [0, 2]``: each tensor with a list of integers (or ``...``) and those of the result.
            Without ``->`` (or the last list) the result has the labels that occur once, sorted. ``...`` stands for
            axes that broadcast. A label repeated in one term takes the diagonal.
        subscripts: the terms as the operation stores them; used by gradient rules only.

    Returns:
        The sums, in the promoted dtype.

    Raises:
        ShapeError: sizes of one label that differ, or another number of labels than dimensions.
        ArgumentError: terms that cannot be parsed or do not fit the operands.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.einsum("ij,kj->ik", [[1, 2], [3, 4]], [[1, 1]])
        Tensor([[3],
                [7]], dtype=int32)

    Reference:
        D. G. A. Smith and J. Gray, "opt_einsum", Journal of Open Source Software 3(26), 2018, for the order.
    """
    if subscripts is not None:
        return bind(einsum.op, cast("tuple[Tensor, ...]", operands), {"subscripts": subscripts})
    parse = _parse_text if operands and isinstance(operands[0], str) else _parse_lists
    terms, result, values = parse(operands)
    if not values:
        raise ArgumentError("einsum: no operands", hint="Pass one tensor per term.")
    tensors = promote(*values)
    if len(terms) != len(tensors):
        raise ArgumentError(f"einsum: {len(terms)} terms for {len(tensors)} operands",
                            hint="Give one term per operand.")
    return _contract(terms, result, tensors)


# -- what the user wrote ------------------------------------------------------------------------------------------

_ELLIPSIS = "."
Labels = tuple[Any, ...]


def _parse_text(operands: Sequence[Any]) -> tuple[list[Labels], Labels | None, Sequence[Any]]:
    text = operands[0].replace(" ", "")
    inputs, arrow, output = text.partition("->")

    def labels(term: str) -> Labels:
        labels = tuple(term.replace("...", _ELLIPSIS))
        for label in labels:
            if label != _ELLIPSIS and label not in ascii_letters:
                raise ArgumentError(f"einsum: {label!r} is no label", got=repr(operands[0]), hint="Labels are letters.")
        return labels

    return [labels(term) for term in inputs.split(",")], labels(output) if arrow else None, operands[1:]


def _parse_lists(operands: Sequence[Any]) -> tuple[list[Labels], Labels | None, Sequence[Any]]:
    def labels(term: Any) -> Labels:
        if isinstance(term, str) or not isinstance(term, Sequence):
            raise ArgumentTypeError(f"einsum: labels as a {type(term).__name__}", got=repr(term)[:60],
                                    hint="Put a list of integers behind every tensor, or the subscripts first.")
        return tuple([_ELLIPSIS if label is Ellipsis else int(label) for label in cast("Sequence[Any]", term)])

    pairs = len(operands) // 2
    result = labels(operands[-1]) if len(operands) % 2 else None
    return [labels(operands[2 * i + 1]) for i in range(pairs)], result, [operands[2 * i] for i in range(pairs)]


def _contract(terms: Sequence[Labels], result: Labels | None, tensors: Sequence[Tensor]) -> Tensor:
    """Contract tensors whose axes have labels: letters or integers, and ``"."`` for an ellipsis.

    Raises:
        ShapeError: another number of labels than dimensions.
        ArgumentError: a label of the result that no operand has, or that occurs twice.
    """
    leading = 0
    for term, tensor in zip(terms, tensors, strict=True):
        named = sum(label != _ELLIPSIS for label in term)
        if tensor.ndim < named or (tensor.ndim > named and _ELLIPSIS not in term) or term.count(_ELLIPSIS) > 1:
            raise ShapeError(f"einsum: {_text(term)!r} has {named} labels, its operand {tensor.ndim} dimensions",
                             got=str(tensor.spec), hint="Name every axis, or use ... once.")
        leading = max(leading, tensor.ndim - named)
    if result is None:
        every = [label for term in terms for label in term if label != _ELLIPSIS]
        once = sorted(label for label in every if every.count(label) == 1)
        result = (*([_ELLIPSIS] if leading else []), *once)
    _check_result(terms, result, leading)
    ellipsis = tuple([(_ELLIPSIS, axis) for axis in range(leading)])
    full = [_expand(term, ellipsis[leading - (tensor.ndim - len(term) + 1) :] if _ELLIPSIS in term else ())
            for term, tensor in zip(terms, tensors, strict=True)]
    operands = _without_ones(full, tensors)
    letters = _letters([*full, result])
    names = ["".join(letters[label] for label in term) for term, _ in operands]
    target = "".join(letters[label] for label in _expand(result, ellipsis))
    return bind(einsum.op, tuple([tensor for _, tensor in operands]), {"subscripts": f"{','.join(names)}->{target}"})


def _text(term: Labels) -> str:
    return "".join(["..." if label == _ELLIPSIS else str(label) for label in term])


def _check_result(terms: Sequence[Labels], result: Labels, leading: int) -> None:
    for label in result:
        if result.count(label) > 1:
            raise ArgumentError(f"einsum: the result names {label!r} twice", hint="Name each axis of the result once.")
        if label != _ELLIPSIS and not any(label in term for term in terms):
            raise ArgumentError(f"einsum: the result's label {label!r} is in no term",
                                hint="Name axes of the operands only.")
    if leading and _ELLIPSIS not in result:
        raise ArgumentError("einsum: the terms have an ellipsis with axes, the result has no ellipsis",
                            hint="Put ... into the result.")


def _expand(term: Labels, ellipsis: Labels) -> Labels:
    labels: list[Any] = []
    for label in term:
        labels += ellipsis if label == _ELLIPSIS else [label]
    return tuple(labels)


def _without_ones(full: Sequence[Labels], tensors: Sequence[Tensor]) -> list[tuple[Labels, Tensor]]:
    """Drop the axes of an ellipsis that broadcast: those of size 1 where another operand is larger."""
    larger = {
        label
        for term, tensor in zip(full, tensors, strict=True)
        for label, size in zip(term, tensor.shape, strict=True)
        if isinstance(label, tuple) and size != 1
    }
    operands: list[tuple[Labels, Tensor]] = []
    for term, tensor in zip(full, tensors, strict=True):
        axes = tuple([axis for axis, label in enumerate(term) if label in larger and tensor.shape[axis] == 1])
        kept = tuple([label for axis, label in enumerate(term) if axis not in axes])
        operands.append((kept, squeeze(tensor, axis=axes) if axes else tensor))
    return operands


def _letters(terms: Sequence[Labels]) -> dict[Any, str]:
    """Return a letter per label: its own, or the next free one."""
    labels = dict.fromkeys(label for term in terms for label in term if label != _ELLIPSIS)
    taken = {label for label in labels if isinstance(label, str)}
    free = iter([letter for letter in ascii_letters if letter not in taken])
    try:
        return {label: label if isinstance(label, str) else next(free) for label in labels}
    except StopIteration:
        raise ArgumentError(
            f"einsum: {len(labels)} different labels, at most {len(ascii_letters)} are possible"
        ) from None


# -- special cases ------------------------------------------------------------------------------------------------


def tensordot(x1: TensorLike, x2: TensorLike, /, axes: Any = 2, **other: Unpack[Other]) -> Tensor:
    """Multiply tensors and sum over pairs of axes.

    Args:
        x1: numeric.
        x2: numeric.
        axes: how many of the last axes of `x1` to pair with the first of `x2`, or two sequences of axes to pair.

    Returns:
        The axes of `x1` that are left, then those of `x2`, in the promoted dtype.

    Raises:
        ShapeError: paired axes of different sizes, or axes out of range.
        ArgumentError: sequences of different lengths.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.tensordot([[1, 2], [3, 4]], [1, 10], axes=1)
        Tensor([21, 43], dtype=int32)
    """
    if other:
        return respelled(tensordot, locals())
    a, b = promote(x1, x2)
    left, right = _paired_axes(axes, a, b)
    labels = count(a.ndim)
    right_labels: list[Any] = [left[right.index(axis)] if axis in right else next(labels) for axis in range(b.ndim)]
    term = tuple(range(a.ndim))
    kept = [axis for axis in term if axis not in left] + [label for label in right_labels if label >= a.ndim]
    return _contract([term, tuple(right_labels)], tuple(kept), (a, b))


def _paired_axes(axes: Any, a: Tensor, b: Tensor) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot: {axes} axes to pair, the operands have {a.ndim} and {b.ndim}",
                             got=call_text("tensordot", a.spec, b.spec), hint="Pair axes that both have.")
        return list(range(a.ndim - axes, a.ndim)), list(range(axes))
    first, second = ([one] if isinstance(one, int) else list(one) for one in axes)
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: {len(first)} axes are paired with {len(second)}", got=f"axes={axes}")
    pairs = [(normalize_axis("tensordot", i, a.ndim), normalize_axis("tensordot", j, b.ndim))
             for i, j in zip(first, second, strict=True)]
    left, right = [i for i, _ in pairs], [j for _, j in pairs]
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        raise ShapeError("tensordot: an axis is paired twice", got=f"axes={axes}")
    return left, right


def vecdot(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1, **other: Unpack[Other]) -> Tensor:
    """Multiply vectors, the first one conjugated, and sum.

    Args:
        x1: numeric.
        x2: numeric.
        axis: the vectors' axis, counted from the end; the other axes broadcast.

    Returns:
        The products, without the axis, in the promoted dtype.

    Raises:
        ShapeError: vectors of different sizes, an axis out of range, or shapes that do not broadcast.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.vecdot([[1, 2], [3, 4]], [1, 10])
        Tensor([21, 43], dtype=int32)
    """
    if other:
        return respelled(vecdot, locals())
    tensors = promote(x1, x2)
    moved: list[Tensor] = []
    for tensor in tensors:
        along = normalize_axis("vecdot", axis, tensor.ndim)
        if along != tensor.ndim - 1:
            order = (*[i for i in range(tensor.ndim) if i != along], along)
            tensor = permute_dims(tensor, order)
        moved.append(tensor)
    a, b = moved
    require_kind("vecdot", NUMERIC, a.spec, b.spec)
    return _contract([(_ELLIPSIS, "i"), (_ELLIPSIS, "i")], (_ELLIPSIS,), (conj(a), b))


def outer(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Multiply every element of one vector with every element of another.

    Args:
        x1: ``(m,)``, numeric.
        x2: ``(n,)``, numeric.

    Returns:
        ``(m, n)``, in the promoted dtype.

    Raises:
        ShapeError: operands that are not vectors.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.outer([1, 2], [1, 10])
        Tensor([[ 1, 10],
                [ 2, 20]], dtype=int32)
    """
    a, b = promote(x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"outer: takes vectors, the operands have {a.ndim} and {b.ndim} dimensions",
                         got=call_text("outer", a.spec, b.spec),
                         hint="Flatten them with .reshape(-1), or use hf.tensordot.")
    return _contract([("i",), ("j",)], ("i", "j"), (a, b))


def kron(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compute Kronecker products: every element of one tensor times the whole other one, as blocks.

    Args:
        x1: numeric; the shape with fewer axes gets leading ones of size 1.
        x2: numeric.

    Returns:
        A tensor whose sizes are the products of the operands' sizes, in the promoted dtype.

    Raises:
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.kron([[1, 2]], [[1], [10]])
        Tensor([[ 1,  2],
                [10, 20]], dtype=int32)
    """
    a, b = promote(x1, x2)
    ndim = max(a.ndim, b.ndim)
    shapes = [(*[1] * (ndim - x.ndim), *x.shape) for x in (a, b)]
    a, b = (reshape(x, shape) for x, shape in zip((a, b), shapes, strict=True))
    labels = tuple(range(2 * ndim))
    result = tuple([label for axis in range(ndim) for label in (axis, ndim + axis)])
    product = _contract([labels[:ndim], labels[ndim:]], result, (a, b))
    return reshape(product, tuple([i * j for i, j in zip(*shapes, strict=True)]))


__all__ = ["einsum", "kron", "outer", "tensordot", "vecdot"]


# -- contracting arrays: the order of the pairs, and one pair as a matrix product, in NumPy and in jax ----------------

# -- contracting two operands -------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """The plan for contracting two terms: their labels, sorted by their role."""

    batch: str
    left: str
    right: str
    summed: str

    @property
    def result(self) -> str:
        """The labels of the result, in the order in which it comes."""
        return self.batch + self.left + self.right


def pair_up(a: str, b: str, keep: str) -> Pair:
    """Sort the labels of two terms by their role; the labels in `keep` are needed later."""
    shared = [label for label in a if label in b]
    return Pair(
        "".join(label for label in shared if label in keep),
        "".join(label for label in a if label not in b),
        "".join(label for label in b if label not in a),
        "".join(label for label in shared if label not in keep),
    )


def _axes(term: str, labels: str) -> tuple[int, ...]:
    return tuple([term.index(label) for label in labels])


class NumpyPart:
    """The steps of a contraction in NumPy."""

    @staticmethod
    def diagonal(x: Any, first: int, second: int) -> Any:
        """Take the diagonal of two axes; it comes last."""
        return np.diagonal(x, axis1=first, axis2=second)

    @staticmethod
    def total(x: Any, axes: tuple[int, ...]) -> Any:
        """Sum over axes."""
        return add_up(x, axes, False).astype(x.dtype, copy=False)

    @staticmethod
    def transpose(x: Any, axes: tuple[int, ...]) -> Any:
        """Reorder the axes."""
        return np.transpose(x, axes)

    @staticmethod
    def product(a: Any, b: Any, term_a: str, term_b: str, pair: Pair) -> Any:
        """Multiply two operands and sum over the labels that only they have."""
        shape = [*[a.shape[term_a.index(label)] for label in pair.batch + pair.left]]
        shape += [b.shape[term_b.index(label)] for label in pair.right]
        a = np.transpose(a, _axes(term_a, pair.batch + pair.left + pair.summed))
        b = np.transpose(b, _axes(term_b, pair.batch + pair.summed + pair.right))
        batches = len(pair.batch)
        if not pair.summed:
            a = a.reshape((*a.shape, *[1] * len(pair.right)))
            return a * b.reshape((*b.shape[:batches], *[1] * len(pair.left), *b.shape[batches:]))
        inner = int(np.prod(b.shape[batches : batches + len(pair.summed)]))
        batch = b.shape[:batches]
        middle = batches + len(pair.left)
        rows, columns = int(np.prod(shape[batches:middle])), int(np.prod(shape[middle:]))
        product = products.matmul(a.reshape(*batch, rows, inner), b.reshape(*batch, inner, columns))
        return product.reshape(shape)


class LaxPart:
    """The same steps in jax."""

    @staticmethod
    def diagonal(x: Any, first: int, second: int) -> Any:
        """Take the diagonal of two axes; it comes last."""
        moved = [axis for axis in range(x.ndim) if axis not in (first, second)]
        x = lax.transpose(x, (*moved, first, second))
        size = x.shape[-1]
        kept = lax.select(
            lax.broadcast_in_dim(np.eye(size, dtype=bool), x.shape, (x.ndim - 2, x.ndim - 1)), x, lax.full_like(x, 0)
        )
        return lax.reduce_sum(kept, (x.ndim - 1,)).astype(x.dtype)

    @staticmethod
    def total(x: Any, axes: tuple[int, ...]) -> Any:
        """Sum over axes."""
        return float_sum(x, axes) if x.dtype.kind in "fc" else lax.reduce_sum(x, axes)

    @staticmethod
    def transpose(x: Any, axes: tuple[int, ...]) -> Any:
        """Reorder the axes."""
        return lax.transpose(x, axes)

    @staticmethod
    def product(a: Any, b: Any, term_a: str, term_b: str, pair: Pair) -> Any:
        """Multiply two operands and sum over the labels that only they have."""
        if pair.summed:
            contracted = (_axes(term_a, pair.summed), _axes(term_b, pair.summed))
            batch = (_axes(term_a, pair.batch), _axes(term_b, pair.batch))
            return lax.dot_general(a, b, (contracted, batch), precision=SETTINGS.matmul_precision)
        sizes = dict(zip(term_a + term_b, a.shape + b.shape, strict=True))
        shape = tuple([sizes[label] for label in pair.result])
        return lax.mul(*[
            lax.broadcast_in_dim(lax.transpose(x, _axes(term, own)), shape, _axes(pair.result, own))
            for x, term, own in ((a, term_a, pair.batch + pair.left), (b, term_b, pair.batch + pair.right))
        ])


def _single(part: Any, x: Any, term: str, keep: str) -> tuple[Any, str]:
    """Take the diagonals of repeated labels of one operand, and sum over labels that nothing else needs."""
    while len(set(term)) < len(term):
        label = next(label for label in term if term.count(label) > 1)
        first = term.index(label)
        second = term.index(label, first + 1)
        x = part.diagonal(x, first, second)
        term = term[:first] + term[first + 1 : second] + term[second + 1 :] + label
    lone = "".join(label for label in term if label not in keep)
    if lone:
        x = part.total(x, _axes(term, lone))
        term = "".join(label for label in term if label not in lone)
    return x, term


@lru_cache(maxsize=512)
def contraction_path(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return a cheap order of pairwise contractions, as positions in a list to whose end results are appended.

    All orders are tried for up to four operands; for more, the cheapest next pair is taken.
    """
    if len(shapes) <= 2:
        return (tuple(range(len(shapes))),)
    views = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    how = "optimal" if len(shapes) <= 4 else "greedy"
    path = np.einsum_path(subscripts, *views, optimize=how)[0][1:]
    return tuple([tuple(step) for step in path])


_OPEN = 64
"""What stands for one of jax's open sizes where the order of contractions is chosen."""


def contract_arrays(part: Any, subscripts: str, xs: Sequence[Any]) -> Any:
    """Contract arrays pair by pair, by the steps of NumPy or of jax."""
    inputs, result = subscripts.split("->")
    operands = list(zip(xs, inputs.split(","), strict=True))
    shapes = [tuple([size if isinstance(size, int) else _OPEN for size in x.shape]) for x in xs]
    for step in contraction_path(subscripts, tuple(shapes)):
        chosen = [operands[position] for position in step]
        operands = [one for position, one in enumerate(operands) if position not in step]
        while len(chosen) > 1:
            (b, term_b), (a, term_a) = chosen.pop(), chosen.pop()
            keep = result + "".join(term for _, term in operands + chosen)
            a, term_a = _single(part, a, term_a, keep + term_b)
            b, term_b = _single(part, b, term_b, keep + term_a)
            pair = pair_up(term_a, term_b, keep)
            chosen.append((part.product(a, b, term_a, term_b, pair), pair.result))
        operands += chosen
    ((x, term),) = operands
    x, term = _single(part, x, term, result)
    return x if term == result else part.transpose(x, _axes(term, result))
