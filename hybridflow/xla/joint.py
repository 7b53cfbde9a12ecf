"""Programs that several processes run together: each must make the same ones, and call them with the same values."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridflow.core.mesh import Mesh
from hybridflow.core.processes.member import Member, member
from hybridflow.core.processes.wire import encoded
from hybridflow.core.spec import TensorSpec


def member_on(mesh: Mesh) -> Member | None:
    """Return this process as a member of those that a mesh spans; None if it spans this one only."""
    return member() if mesh.spans_processes else None


class Joint:
    """The checks of one program. They raise before it runs, so that no Variable changes.

    Args:
        joined: this process as one of several.
        name: the function's name.
        text: the whole program.
        lines: what it is, line by line, for messages.
        names: the names of its inputs.

    Attributes:
        joined: the same.
    """

    __slots__ = ("_digest", "_name", "_names", "joined")

    def __init__(
        self, joined: Member, name: str, text: str, lines: Callable[[], Sequence[str]], names: Sequence[str]
    ) -> None:
        self.joined = joined
        self._name, self._names = name, tuple(names)
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        joined.meet(encoded({"meet": "make", "name": name, "digest": self._digest}), lines)

    def before_call(self, arrays: Sequence[Any], there: Sequence[bool]) -> None:
        """Wait until all processes are about to run this program with the same values.

        Args:
            arrays: its inputs.
            there: whether each lies on the mesh already, and was compared before or is the work of a program.

        Raises:
            ProgramsDifferError: another process is about to do something else, or has other values.
            DeviceLostError: another process is lost.
        """
        local = [(index, np.asarray(array)) for index, array in enumerate(arrays) if not there[index]]
        sums = [content_sum(array) for _, array in local]
        request = encoded({"meet": "call", "name": self._name, "digest": f"{self._digest} {sums}"})
        self.joined.meet(request, lambda: self._lines(local, sums))

    def _lines(self, local: Sequence[tuple[int, Any]], sums: Sequence[int]) -> list[str]:
        program = f"the program {self._digest}, the same for all calls with the same shapes and Python values"
        return [program] + [
            f"{dict(enumerate(self._names)).get(index) or f'input {index}'} = {_shown(array, one)}"
            for (index, array), one in zip(local, sums, strict=True)
        ]


def content_sum(array: Any) -> int:
    """Return a checksum of an array's content, shape and dtype."""
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, hash_of(f"{array.shape}{array.dtype}"))


def content_sum_of(value: Any) -> int:
    """Return a checksum of a raw value: of its layout and its first part only, if other processes have the others."""
    if isinstance(value, np.ndarray) or value.is_fully_addressable:
        return content_sum(np.asarray(value))
    if value.is_fully_replicated:
        return content_sum(np.asarray(value.addressable_data(0)))
    return hash_of(f"{value.shape} {value.dtype} {value.sharding.spec}")


def hash_of(text: str) -> int:
    """Return a checksum of a text."""
    return zlib.crc32(text.encode())


def _shown(array: Any, content: int) -> str:
    spec = str(TensorSpec(array.shape, array.dtype))
    if array.size == 1:
        return f"{array.item()!r}, {spec}"
    return f"{spec} with the first elements {array.reshape(-1)[:4].tolist()} and checksum {content:08x}"
