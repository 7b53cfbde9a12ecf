"""The memory that a recording keeps for gradients, by line and operation: `tape.memory()`, `grad_fn.memory()`."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from hybridflow.core.node import Edge, Node
from hybridflow.core.report import Report
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.units import format_bytes
from hybridflow.core.variable import VARIABLE, Variable

_SHOWN = 30
PARAMETER, INPUT, ACTIVATION = "parameter", "input", "activation"


@dataclass(frozen=True)
class SavedArray:
    """One buffer that the recording keeps.

    Attributes:
        op: the operation that saved it first.
        location: the line of that operation as ``file:line``, if known.
        spec: the shape and dtype in which it was saved; the buffer is larger if that is a view of a part.
        bytes: the size of the buffer.
        kind: ``parameter`` (a Variable's value), ``input`` (given from outside) or ``activation`` (computed).
        uses: the number of operations that saved it.
        on_host: whether NumPy allocated it; XLA allocates low-precision values and values on a device.
    """

    op: str
    location: str | None
    spec: TensorSpec
    bytes: int
    kind: str
    uses: int
    on_host: bool


class RecordedMemory(Report, Sequence[SavedArray]):
    """The buffers that a recording keeps alive now: a printable sequence in recording order.

    Attributes:
        peak: the peak of the memory that Python and NumPy allocated since the recording began, beyond what there was
            at its start. None if `tracemalloc` was not tracing all the time. XLA's memory is not included.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.ones((256, 256))
        >>> with hf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = hf.exp(hf.tanh(x) + 1.0)
        >>> memory = tape.memory()
        >>> memory.activations // 1024, memory.parameters, [saved.op for saved in memory]
        (512, 0, ['tanh', 'exp'])
    """

    def __init__(self, saved: Sequence[SavedArray], peak: int | None) -> None:
        self._saved = tuple(saved)
        self.peak = peak

    def __getitem__(self, index: Any) -> Any:
        return self._saved[index]

    def __len__(self) -> int:
        return len(self._saved)

    def _sum(self, *kinds: str) -> int:
        return sum(one.bytes for one in self._saved if one.kind in kinds)

    @property
    def total(self) -> int:
        """Bytes of all buffers, each counted once."""
        return self._sum(PARAMETER, INPUT, ACTIVATION)

    @property
    def parameters(self) -> int:
        """Bytes of the Variables' values, which exist without the recording too."""
        return self._sum(PARAMETER)

    @property
    def inputs(self) -> int:
        """Bytes of values given from outside, such as a batch."""
        return self._sum(INPUT)

    @property
    def activations(self) -> int:
        """Bytes of computed values, which live as long as the recording."""
        return self._sum(ACTIVATION)

    def by_line(self) -> dict[tuple[str | None, str], int]:
        """Return the bytes of inputs and activations per line and operation, largest first."""
        bytes_at: dict[tuple[str | None, str], int] = {}
        for one in self._saved:
            if one.kind != PARAMETER:
                key = one.location, one.op
                bytes_at[key] = bytes_at.get(key, 0) + one.bytes
        return dict(sorted(bytes_at.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values: bytes by kind and by line, the peak, and each buffer."""
        return {
            "total": self.total,
            "parameters": self.parameters,
            "inputs": self.inputs,
            "activations": self.activations,
            "peak": self.peak,
            "by_line": [
                {"location": location, "op": op, "bytes": size} for (location, op), size in self.by_line().items()
            ],
            "saved": [
                {"op": one.op, "location": one.location, "spec": str(one.spec), "bytes": one.bytes, "kind": one.kind,
                 "uses": one.uses}
                for one in self._saved
            ],
        }

    def parts(self) -> list[str]:
        """Return the sums, the lines that keep most, and the peak."""
        lines = [
            f"saved for gradients: {format_bytes(self.total)} in {len(self)} storages (activations "
            f"{format_bytes(self.activations)}, inputs {format_bytes(self.inputs)}, "
            f"parameters {format_bytes(self.parameters)})"
        ]
        rows = list(self.by_line().items())
        for (location, op), size in rows[:_SHOWN]:
            lines.append(f"  {format_bytes(size):>11}  {op:<24} {location or ''}".rstrip())
        if len(rows) > _SHOWN:
            lines.append(f"  {len(rows) - _SHOWN} more, in .by_line()")
        outside = sum(one.bytes for one in self._saved if not one.on_host)
        if self.peak is None:
            lines.append("peak: not measured; call tracemalloc.start() before the recording begins")
        else:
            without = f"; {format_bytes(outside)} that XLA made are not in it" if outside else ""
            lines.append(f"peak since the recording began: {format_bytes(self.peak)} beyond what there was{without}")
        return ["\n".join(lines)]


def live_nodes(member: Callable[[Node], bool]) -> list[Node]:
    """Return the living nodes that satisfy `member`, in recording order, as the garbage collector knows them."""
    nodes = [one for one in gc.get_objects() if type(one) is Node and member(one)]
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()  # do not count the list of all objects
    return sorted(nodes, key=lambda node: node.sequence)


def recorded_memory(
    nodes: Iterable[Node], variables: Iterable[Variable], peak: int | None = None
) -> RecordedMemory:
    """Return the buffers that nodes keep, each counted once.

    Args:
        nodes: eager nodes, in recording order.
        variables: Variables whose values are parameters, in addition to those that the nodes read.
        peak: the measured peak.
    """
    nodes = list(nodes)
    parameters = {_storage(variable.current())[0] for variable in (*variables, *_read_by(nodes))}
    kept: dict[Any, SavedArray] = {}
    for node in nodes:
        for value, edge in _saved_by(node):
            key, size = _storage(value)
            known = kept.get(key)
            if known is not None:
                kept[key] = _used_again(known)
                continue
            kind = ACTIVATION
            if key in parameters or (edge is not None and edge[0].op is VARIABLE):
                kind = PARAMETER
            elif edge is None or not edge[0].inputs:
                kind = INPUT
            spec = make_spec(value.shape, value.dtype)
            host = isinstance(value, np.ndarray) and _root(cast("np.ndarray[Any, Any]", value)).base is None
            kept[key] = SavedArray(node.op.name, node.location, spec, size, kind, 1, host)
    return RecordedMemory(list(kept.values()), peak)


class Peak:
    """A measurement of the peak of host memory from its start on, by `tracemalloc`."""

    __slots__ = ("before", "highest")

    def __init__(self, before: int) -> None:
        self.before = before
        self.highest = before

    @classmethod
    def begin(cls, others: Iterable[Self | None]) -> Self | None:
        """Begin to measure if `tracemalloc` is tracing. This resets its peak, so `others` read it first."""
        return cls(_forget_peak(others)) if tracemalloc.is_tracing() else None

    def read(self, others: Iterable[Self | None]) -> int | None:
        """Return the peak beyond the bytes at the beginning, or None if the tracing ended."""
        if not tracemalloc.is_tracing():
            return None
        _forget_peak((self, *others))
        return self.highest - self.before


def _forget_peak(peaks: Iterable[Peak | None]) -> int:
    """Reset the peak of `tracemalloc` after all measurements have noted it; return the bytes allocated now."""
    now, highest = tracemalloc.get_traced_memory()
    for one in peaks:
        if one is not None:
            one.highest = max(one.highest, highest)
    tracemalloc.reset_peak()
    return now


def _used_again(saved: SavedArray) -> SavedArray:
    fields: Mapping[str, Any] = {**vars(saved), "uses": saved.uses + 1}
    return SavedArray(**fields)


def _read_by(nodes: Iterable[Node]) -> Iterator[Variable]:
    for node in nodes:
        for edge in node.inputs:
            if edge is not None and edge[0].op is VARIABLE:
                variable = edge[0].attrs["variable"]()
                if variable is not None:
                    yield variable


def _saved_by(node: Node) -> Iterator[tuple[Any, Edge | None]]:
    """Yield the arrays that a node saved, with their edges."""
    if node.saved is None:
        return
    outputs, *inputs = node.saved
    for index, value in enumerate(outputs if type(outputs) is tuple else (outputs,)):
        if value is not None:
            yield value, (node, index)
    for value, edge in zip(inputs, node.inputs, strict=True):
        if value is not None:
            yield value, edge


def _root(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def _storage(value: Any) -> tuple[Any, int]:
    """Return a key of a value's buffer, and the buffer's size."""
    if isinstance(value, np.ndarray):
        root = _root(cast("np.ndarray[Any, Any]", value))
        return root.__array_interface__["data"][0] if root.size else id(root), root.nbytes
    return id(value), value.nbytes
