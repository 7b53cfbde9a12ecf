"""The compiled calls of a profile: executables whose instructions name the graph's nodes, and when each call ran."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from hybridflow.core.node import Where
from hybridflow.xla.executable import Executable
from hybridflow.xla.scopes import Namer, naming

ANNOTATION = "hybridflow call "
_number: Callable[[], int] = itertools.count(1).__next__
_programs: weakref.WeakKeyDictionary[Any, dict[Hashable, Program]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()

Make = Callable[[], Executable]
"""A function that compiles something."""


@dataclass(eq=False)
class Program:
    """A compiled function's executable with named nodes.

    Attributes:
        name: the function's.
        executable: what runs it.
        namer: gave the nodes their names, and finds nodes by name.
        module: the name of XLA's program (its "HLO module").
        platform: where it runs, as jax calls it.
    """

    name: str
    executable: Executable
    namer: Namer
    module: str
    platform: str


def known_program(owner: Any, key: Hashable) -> Program | None:
    """Return the program that `compile_program` made earlier, or None.

    Args:
        owner: what was compiled; the program is freed with it.
        key: which part of it, for which device and sizes.
    """
    with _lock:
        return _programs.setdefault(owner, {}).get(key)


def compile_program(owner: Any, key: Hashable, name: str, device: Any, make: Make) -> Program:
    """Compile a program whose instructions name the graph's nodes, and keep it for later profiles."""
    namer = Namer(f"_profiled_{_number()}")
    with naming(namer):
        executable = make()
    module = executable.compiled.as_text().split(",", 1)[0].removeprefix("HloModule ").strip()
    platform = jax.default_backend() if device is None else device.platform
    program = Program(name, executable, namer, module, platform)
    with _lock:
        return _programs.setdefault(owner, {}).setdefault(key, program)


@dataclass(eq=False, slots=True)
class Call:
    """A compiled call that ran.

    Attributes:
        number: its number, which XLA's events carry too.
        program: what ran.
        where: the user's line.
        start: when XLA was called; all times are nanoseconds of `time.perf_counter_ns`.
        returned: when it returned; the results may have been computed later.
        since: when XLA was free for this call: `start`, or the end of the previous call if that was later.
        end: when the results were computed.
        cost: the overhead of recording it, in nanoseconds.
    """

    number: int
    program: Program
    where: Where | None
    start: int
    returned: int = 0
    since: float = 0.0
    end: float = 0.0
    cost: int = 0


@dataclass(eq=False)
class Unfinished:
    """The compiled calls whose results XLA may still be computing, so that they can be waited for.

    Of each call, the smallest result that no Variable owns is kept alive until it is computed; of the other results,
    only weak references are kept.
    """

    _calls: deque[list[Any]] = field(default_factory=deque[list[Any]])

    def add(self, outputs: Sequence[Any], given_away: slice) -> None:
        """Add a call by its outputs; those in the range `given_away` belong to Variables."""
        first, last, _ = given_away.indices(len(outputs))
        free = [one for index, one in enumerate(outputs) if not first <= index < last]
        kept = min(free, key=lambda one: one.nbytes, default=None)
        self._calls.append([one if one is kept else weakref.ref(one) for one in outputs])

    def let_go(self) -> None:
        """Forget the calls that are done."""
        while self._calls and all(array.is_ready() for array in _there(self._calls[0])):
            self._calls.popleft()

    def wait(self) -> None:
        """Wait until all calls are done."""
        while self._calls:
            for array in _there(self._calls.popleft()):
                wait_for(array)


def _there(outputs: Iterable[Any]) -> Iterator[Any]:
    for one in outputs:
        array = one() if isinstance(one, weakref.ref) else one
        if array is not None and not array.is_deleted():
            yield array


def wait_for(value: Any) -> None:
    """Wait until an array, or every array in nested tuples and lists, is computed."""
    if isinstance(value, tuple | list):
        for one in value:
            wait_for(one)
    elif isinstance(value, jax.Array):
        value.block_until_ready()


def run_program(program: Program, arrays: Sequence[Any], where: Where | None) -> tuple[Any, Call]:
    """Run a program and return its outputs and the record of the call.

    On the CPU it returns before the results are computed: waiting would slow programs that do not read them at once,
    and XLA's events say which call a kernel belongs to. On other devices they do not, so the results are awaited.
    """
    call = Call(_number(), program, where, time.perf_counter_ns())
    with jax.profiler.TraceAnnotation(f"{ANNOTATION}{call.number}"):
        outputs = program.executable.call(*arrays)
        if program.platform != "cpu":
            wait_for(outputs)
    call.returned = time.perf_counter_ns()
    return outputs, call
