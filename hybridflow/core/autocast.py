"""`hf.autocast`: run each operation in the precision that suits it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from typing import Any, Self, TypeVar, cast

from hybridflow.core.context import CONTEXT, Context, current
from hybridflow.core.dispatch import connected_edges, record
from hybridflow.core.dtypes import LOW_PRECISION, DType, as_dtype, bfloat16, float32
from hybridflow.core.errors import DTypeError
from hybridflow.core.functions import decorated
from hybridflow.core.keywords import take_foreign_keywords
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import REGISTRY, Op
from hybridflow.core.tensor import Tensor, make_tensor

F = TypeVar("F", bound=Callable[..., Any])
_CAST = LOW_PRECISION | {float32.num}
"""`dtype.num` of the dtypes that are cast. The user asked for float64 and complex numbers, so those stay."""
_AS_THEY_ARE = frozenset({"nested", "foreign", "effect"})
"""Traits of operations whose operands may have any dtypes."""


class _Weight:
    """A Variable's value and its casts, by dtype."""

    __slots__ = ("casts", "value")

    def __init__(self, value: weakref.ref[Any]) -> None:
        self.value = value
        self.casts: dict[DType, Any] = {}


class Casts:
    """The casts of operands inside one `autocast` block.

    A Variable's value is cast once and the result is kept until the Variable is assigned. Each use is still recorded
    as a cast of its own, so the gradients of several uses are added in float32. The nodes of reads tell which tensors
    are values of Variables; both eager code and traces make them.

    Attributes:
        dtype: the low precision.
    """

    __slots__ = ("_reads", "_weights", "dtype")

    def __init__(self, dtype: DType, around: Casts | None) -> None:
        self.dtype = dtype
        self._reads: weakref.WeakSet[Node] = weakref.WeakSet() if around is None else around._reads
        self._weights: dict[int, _Weight] = {} if around is None else around._weights

    def __call__(self, op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the operands, cast to the dtypes in which the operation runs."""
        traits = op.traits
        if "low_precision" in traits:
            wanted = self.dtype
        elif "full_precision" in traits:
            wanted = float32
        else:
            if len(inputs) < 2:
                return inputs
            numbers = {tensor.dtype.num for tensor in inputs} & _CAST
            if len(numbers) < 2 or not traits.isdisjoint(_AS_THEY_ARE):
                return inputs
            # A Variable does not widen the other operands: adding a float32 bias keeps low-precision activations.
            mattering = {tensor.dtype for tensor in inputs if _is_cast(tensor) and not self._was_read(tensor)}
            wanted = mattering.pop() if len(mattering) == 1 else float32
        return tuple([
            tensor if tensor.dtype is wanted or not _is_cast(tensor) else self._cast(tensor, wanted)
            for tensor in inputs
        ])

    def _was_read(self, tensor: Tensor) -> bool:
        return tensor._edge is not None and tensor._edge[0] in self._reads

    def _cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        value = tensor._value
        weight = None if value is None else self._weights.get(id(value))
        astype = REGISTRY["astype"]
        if weight is None or weight.value() is not value or current().tracer is not None:
            return cast(Any, astype.public)(tensor, dtype)
        low = weight.casts.get(dtype)
        if low is None:
            low = weight.casts[dtype] = cast(Any, astype.public)(make_tensor(value), dtype)._value
        edges = connected_edges(astype, (tensor,), current())
        if edges is None:
            return make_tensor(low)
        return record(astype, edges, {"dtype": dtype}, [value], low, "host" if tensor.device == "cpu" else "xla")

    def variable_read(self, tensor: Tensor) -> None:
        """Remember that a tensor is a Variable's value, so that it is cast only once."""
        self._reads.add(cast(Edge, tensor._edge)[0])
        value = tensor._value
        if value is None:
            return
        key = id(value)
        known = self._weights.get(key)
        if known is None or known.value() is not value:
            weights = self._weights
            self._weights[key] = _Weight(weakref.ref(value, lambda _: weights.pop(key, None)))

    def forget(self) -> None:
        """Free the cast values."""
        self._weights.clear()
        self._reads.clear()


def _is_cast(tensor: Tensor) -> bool:
    return tensor.dtype.num in _CAST


class autocast:  # noqa: N801 (used like a function: a context manager, or a decorator)
    """Run operations in low precision where that is safe, in a ``with`` block or in a function.

    Matrix products, convolutions, contractions and attention take their float32 operands in `dtype`. Exponentials,
    logarithms, powers, sums, softmax, norms and losses take their low-precision operands in float32. Everything else
    runs in the dtype of its operands, or in the widest of them if they differ; but a Variable, such as a bias, takes
    the dtype of the other operand. The operations page says for each operation which rule applies.

    Casts are ordinary operations, so every gradient has the dtype of its source: float32 for a float32 Variable, where
    the gradients of several uses are also added in float32. This holds whether `tape.gradient` and `.backward()` are
    called inside or outside the block. float64 and complex operands stay as they are. A Variable that is used several
    times is cast once, until it is assigned; `assign_add` and `assign_sub` are computed in its own dtype.

    Args:
        dtype: ``bfloat16`` or ``float16``; float16 needs a `hf.LossScale` for training, since its range is small.
        enabled: False turns autocast off inside the block.

    Raises:
        DTypeError: if `dtype` is any other dtype.
        ArgumentTypeError: if the decorated object cannot be called, or is a generator function.

    Example:
        >>> import hybridflow as hf
        >>> x, w = hf.ones((2, 3)), hf.Variable(hf.ones((3, 4)))
        >>> with hf.autocast(hf.bfloat16):
        ...     y = x @ w
        ...     loss = hf.sum(hf.exp(y))
        >>> y.dtype, loss.dtype
        (dtype(bfloat16), dtype('float32'))
        >>> @hf.compile
        ... @hf.autocast(hf.bfloat16)
        ... def f(x):
        ...     return x @ w
        >>> f(x).dtype
        dtype(bfloat16)

    Reference:
        Micikevicius et al., "Mixed precision training", ICLR 2018.
    """

    def __init__(self, dtype: Any = bfloat16, *, enabled: bool = True) -> None:
        target = as_dtype(dtype)
        if target.num not in LOW_PRECISION:
            raise DTypeError(f"autocast: {target} is no low precision", got=f"autocast({target})",
                             hint="Use hf.bfloat16 or hf.float16.")
        self._dtype = target
        self._enabled = bool(enabled)
        self._entered: list[tuple[Token[Context | None], Context | None, Casts | None, Casts | None]] = []

    def __enter__(self) -> Self:
        around = cast("Casts | None", current().autocast)
        casts = Casts(self._dtype, around) if self._enabled else None
        context = _changed(casts)
        self._entered.append((CONTEXT.set(context), context, around, casts))
        return self

    def __exit__(self, *_: object) -> None:
        token, context, around, casts = self._entered.pop()
        if CONTEXT.get() is context:
            CONTEXT.reset(token)
        else:
            CONTEXT.set(_changed(around))  # a tape around the block was stopped inside it, and must stay stopped
        if around is None and casts is not None:
            casts.forget()

    def __call__(self, function: F) -> F:
        """Return a function that runs inside the autocast block."""
        dtype, enabled = self._dtype, self._enabled
        return decorated("autocast", lambda: autocast(dtype, enabled=enabled), function)


take_foreign_keywords(autocast)


def _changed(casts: Casts | None) -> Context | None:
    """Return the current context with its autocast replaced."""
    context = current()
    changed = Context(context.tracer, context.tapes, context.device, context.grad, casts)
    return None if changed.plain() else changed


class _Without:
    """A context without autocast. The casts of Variables are kept for later."""

    def __enter__(self) -> None:
        self.token = CONTEXT.set(_changed(None))

    def __exit__(self, *_: object) -> None:
        CONTEXT.reset(self.token)


_NOTHING: AbstractContextManager[None] = nullcontext()


def without_autocast() -> AbstractContextManager[None]:
    """Return a context in which operations do not cast their operands."""
    context = CONTEXT.get()
    return _NOTHING if context is None or context.autocast is None else _Without()


def autocast_name() -> str:
    """Return the dtype of the current autocast as text, or ``off`` if there is none."""
    casts = current().autocast
    return "off" if casts is None else str(casts.dtype)
