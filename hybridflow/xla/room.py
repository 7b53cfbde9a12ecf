"""Room for a program: whether the memory that it takes is there, before it gives buffers away.

XLA allocates while a program runs. If that fails on a CPU, the call has returned, its results are errors, and the
buffers that it took over are gone. So a program that takes much asks first. If little is left, its call also waits
until the results are there: then they are values, or the call raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hybridflow.backend.free_memory import free_memory
from hybridflow.backend.jax_shim import Into
from hybridflow.backend.process_memory import return_free_memory
from hybridflow.core.out_of_memory import not_enough, ran_out
from hybridflow.core.units import format_bytes

if TYPE_CHECKING:
    from hybridflow.xla.executable import Executable

MUCH = 4 << 20
"""Programs that take fewer bytes do not ask: their calls are as quick as asking is."""
_PLENTY = 4
"""With this many times as much free as a program takes, its call does not wait for the results."""
_SPARE = 1 << 20
"""Bytes for what a program allocates beside its buffers."""


def guarded(executable: Executable, name: str, copies: int) -> Executable:
    """Return a program whose calls make sure that there is room, if it takes much.

    Args:
        executable: a program for the host.
        name: the function's name, for messages.
        copies: how many devices of the program share the host's memory.
    """
    analysis = executable.compiled.memory_analysis()
    if analysis is None:
        return executable
    results = int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes)
    room = _Room(name, copies * int(analysis.temp_size_in_bytes), copies * results)
    if room.needed < MUCH:
        return executable
    bare, alone = executable.bare, executable.alone
    return replace(
        executable,
        call=room.around(executable.call),
        into=room.around_into(executable.into),
        bare=None if bare is None else room.around_into(bare),
        alone=None if alone is None else lambda: room.around(alone()),
    )


class _Room:
    """The room that calls of a program need.

    Args:
        name: the function's name.
        temporaries, results: the sizes in bytes, without results that take over the buffers of inputs.

    Attributes:
        needed: both together.
    """

    def __init__(self, name: str, temporaries: int, results: int) -> None:
        self._name = name
        self._parts = temporaries, max(results, 0)
        self.needed = sum(self._parts)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that makes sure of the room first."""

        def with_room(*arrays: Any) -> Any:
            if self._is_plenty():
                return call(*arrays)
            self._require()
            try:
                return jax.block_until_ready(call(*arrays))
            except Exception as error:
                raise self._of_call(error) from error.__cause__

        return with_room

    def around_into(self, into: Into) -> Into:
        """Return an `Into` that makes sure of the room first; if it raises for want of memory, it appends nothing."""

        def with_room(arrays: list[Any], held: list[Any]) -> None:
            if self._is_plenty():
                into(arrays, held)
                return
            self._require()
            try:
                into(arrays, held)
                jax.block_until_ready(held[0])
            except Exception as error:
                held.clear()
                raise self._of_call(error) from error.__cause__

        return with_room

    def _is_plenty(self) -> bool:
        free = free_memory(_PLENTY * self.needed)
        return free is not None and free >= _PLENTY * self.needed

    def _require(self) -> None:
        """Raise unless the memory is there.

        Raises:
            OutOfMemoryError: with what is needed and what is there.
        """
        free = free_memory(self.needed)
        if free is not None and free < self.needed:
            return_free_memory()
            free = free_memory(self.needed)
        try:
            _ = [np.empty(size + _SPARE, np.uint8) for size in self._parts]  # fails beyond the process's limits
        except MemoryError:
            raise self._error(free) from None
        if free is not None and free < self.needed:
            raise self._error(free)

    def _of_call(self, error: Exception) -> Exception:
        """Return what the call raises for an error of jax."""
        return self._error(free_memory()) if ran_out(error) else error

    def _error(self, free: int | None) -> Exception:
        temporaries, results = map(format_bytes, self._parts)
        return not_enough(self._name, f"temporaries of {temporaries} and results of {results}", free)
