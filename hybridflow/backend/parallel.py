"""Threads for large arrays on the host: NumPy uses one, but lets go of the interpreter's lock while it computes.

Everything here gives the same bits whatever the number of threads is: a pointwise function's arrays are only cut, and
who sums blocks chooses them by size alone.
"""

from __future__ import annotations

import contextvars
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np

from hybridflow.backend.cores import usable_cores

Task = Callable[[int, int], object]
"""Computes one range, from a start to a stop; it does nothing but call NumPy."""

PART = 1 << 18
"""A thread gets at least so many elements: to wake it takes 10 to 20 us, an addition of 262144 floats 35."""
LARGE = 2 * PART
"""From this many elements on, work is shared."""
QUICK_PART = 1 << 20
"""In sums and maxima, which only read, so many: one thread adds a million floats in 60 us, two took 100."""
_MOST = 8  # threads; more of them wait for the interpreter's lock longer than they compute
_LEAD = 1 / 8
"""The calling thread takes this much more work than the others, which have to wake up first."""
_PATIENCE_S = 2e-4
"""How long the calling thread waits for the others after its own share: they woke up later, and their cores may be
slower."""
_PAUSE = 30
"""After sharing was late, nothing is shared for so many times the delay: a busy machine then costs a thirtieth."""
_UNIT = 4096  # arrays are cut at multiples of it, so that every element stays in the same place of a vector register


class _Job:
    """One range of a task, for whoever claims it first: a thread that has woken up, or who waits for the result."""

    __slots__ = ("_claim", "_done", "_error", "_start", "_stop", "_task")

    def __init__(self, task: Task, start: int, stop: int) -> None:
        self._task: Task | None = task
        self._start, self._stop = start, stop
        self._error: BaseException | None = None
        self._claim = allocate_lock()
        self._done = allocate_lock()
        self._done.acquire()

    def _compute(self) -> None:
        task, self._task = self._task, None  # what holds the arrays
        assert task is not None
        task(self._start, self._stop)

    def run(self) -> Callable[[], None]:
        """Compute the range, unless it was claimed; return what tells the thread that waits."""
        if self._claim.acquire(False):
            try:
                self._compute()
            except BaseException as error:  # it is raised where the result is waited for
                self._error = error
        return self._done.release

    def finish(self) -> None:
        """Return when the range is computed, or raise what stopped it.

        If no thread has begun, which on a busy machine may take milliseconds, it is computed here.
        """
        if self._claim.acquire(False):
            self._compute()
            return
        self._done.acquire()
        if self._error is not None:
            raise self._error


class _Worker:
    """A thread that waits for jobs, in a context of its own in which NumPy is quiet.

    Whoever acquires `free` may give it one job; the thread releases it, so that a caller who was interrupted while it
    waited leaves nothing behind.
    """

    __slots__ = ("_go", "_job", "free")

    def __init__(self) -> None:
        self.free = allocate_lock()
        self._go = allocate_lock()
        self._go.acquire()
        self._job: _Job | None = None
        context = contextvars.Context()
        context.run(np.seterr, all="ignore")
        Thread(target=context.run, args=(self._loop,), name="hybridflow-host", daemon=True).start()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            job, self._job = self._job, None
            assert job is not None
            done = job.run()
            del job  # and the arrays that it holds
            self.free.release()
            done()
            del done

    def begin(self, job: _Job) -> _Job:
        """Start a job; `free` is held."""
        self._job = job
        self._go.release()
        return job


class Pool:
    """The process's threads, which start when they are needed first.

    Attributes:
        threads: how many compute at a time, the calling one included.
        resume: when work is shared again, after a time in which threads had to wait for a core.
    """

    def __init__(self) -> None:
        self.threads = usable_cores("OMP_NUM_THREADS")  # as for other libraries
        self._workers: list[_Worker] = []
        self._starting = allocate_lock()
        self.resume = 0.0

    def forget(self) -> None:
        """Start anew in a forked process, which has none of its parent's threads."""
        self._workers = []
        self._starting = allocate_lock()

    def claim(self, count: int) -> list[_Worker]:
        """Return up to so many workers that are free; nobody else is given them. Who finds none computes alone."""
        found = [worker for worker in self._workers[:count] if worker.free.acquire(False)]
        if len(self._workers) < count and self._starting.acquire(False):
            try:
                while len(self._workers) < count:
                    worker = _Worker()
                    worker.free.acquire()
                    self._workers.append(worker)
                    found.append(worker)
            except RuntimeError:  # the system has no more threads, or the interpreter is about to end
                pass
            finally:
                self._starting.release()
        return found

    def run(self, task: Task, length: int, elements: int, unit: int = 1, part: int = PART) -> None:
        """Run ``task(start, stop)`` so that the ranges make up ``range(length)``, in several threads if it is worth it.

        Args:
            task: what writes a part of the result; parts do not overlap, so their order does not matter.
            length: how much there is to do.
            elements: how many elements that reads, from which follows how many threads are worth it.
            unit: ranges start at multiples of it.
            part: how many elements are worth a thread.
        """
        units = -(-length // unit)
        parts = self._parts(min(elements // part, units))
        if parts < 2:
            task(0, length)
            return
        share = max(int(units / (parts + _LEAD)), 1)
        jobs: list[_Job] = []
        stop = length
        for worker in self.claim(parts - 1):
            start = (units - share * (len(jobs) + 1)) * unit
            jobs.append(worker.begin(_Job(task, start, stop)))
            stop = start
        self._compute_and_wait(lambda: task(0, stop), jobs)

    def run_pieces(self, piece: Callable[[int], object], count: int, parts: int) -> None:
        """Run ``piece(number)`` for every number of ``range(count)``; each thread takes the next one when it is free.

        Args:
            piece: what writes a piece of the result; pieces do not overlap.
            count: how many pieces there are.
            parts: how many threads are worth it.
        """
        parts = self._parts(min(parts, count))
        waiting = iter(range(count))

        def take(start: int = 0, stop: int = 0) -> None:
            for number in waiting:
                piece(number)

        if parts < 2:
            take()
            return
        jobs = [worker.begin(_Job(take, 0, 0)) for worker in self.claim(parts - 1)]
        self._compute_and_wait(take, jobs)

    def _parts(self, wanted: int) -> int:
        """Return how many threads compute together, 1 where sharing was late a moment ago."""
        parts = min(self.threads, wanted, _MOST)
        if parts < 2 or sys.is_finalizing() or (self.resume and perf_counter() < self.resume):
            return 1
        return parts

    def _compute_and_wait(self, own: Callable[[], object], jobs: list[_Job]) -> None:
        """Compute this thread's share and wait for the others; if that took long, nothing is shared for a while."""
        begun = perf_counter()
        own()
        done = perf_counter()
        for job in jobs:
            job.finish()
        ended = perf_counter()
        late = ended - done - (done - begun) - _PATIENCE_S
        if late > 0:
            self.resume = ended + _PAUSE * late


POOL = Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.forget)


def for_large(kernel: Any) -> Any:
    """Return what does to large arrays the same as a kernel: in several threads if that is a function of NumPy's."""
    if isinstance(kernel, np.ufunc) and kernel.nout == 1 and kernel.signature is None:
        return partial(apply_large, kernel)
    return kernel


def apply_large(ufunc: np.ufunc, *arrays: Any) -> Any:
    """Apply a function of one output to large arrays, in parts.

    Arrays of one shape are cut anywhere, others between rows of the first axis. What is laid out otherwise than in
    rows is left whole, since NumPy gives the result the layout of the operands.
    """
    first = arrays[0]
    shape = first.shape
    alike = True
    for array in arrays:
        if not array.flags.c_contiguous:
            return ufunc(*arrays)
        alike = alike and array.shape == shape
    if alike:
        cut = [array.reshape(-1) for array in arrays]
        length, unit = first.size, _UNIT
        whole = [False] * len(cut)
    else:
        try:
            shape = np.broadcast(*arrays).shape
        except ValueError:
            return ufunc(*arrays)  # which says what is wrong
        cut = arrays
        length, unit = shape[0], 1
        whole = [array.ndim < len(shape) or array.shape[0] != length for array in arrays]
    result = np.empty(shape, ufunc.resolve_dtypes((*[array.dtype for array in arrays], None))[-1])
    out = result.reshape(length) if alike else result

    def task(start: int, stop: int) -> None:
        parts = [array if keep else array[start:stop] for array, keep in zip(cut, whole, strict=True)]
        ufunc(*parts, out=out[start:stop])

    POOL.run(task, length, result.size, unit)
    return result
