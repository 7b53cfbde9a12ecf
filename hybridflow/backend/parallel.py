"""Threads for large arrays on the host: NumPy uses one, but releases the interpreter's lock while it computes.

The results have the same bits for any number of threads: the arrays of pointwise functions are only cut into parts,
and functions that sum in blocks choose the blocks by size alone.
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
"""A function that computes the range from a start to a stop; it only calls NumPy."""

PART = 1 << 18
"""The smallest number of elements for a thread; with fewer, waking it takes too long compared with the work."""
LARGE = 2 * PART
"""The number of elements from which work is shared."""
QUICK_PART = 1 << 20
"""The smallest number of elements for a thread in sums and maxima, which are faster since they only read."""
_MOST = 8  # threads at most; more would wait for the interpreter's lock longer than they compute
_LEAD = 1 / 8
"""The extra share of work of the calling thread, since the others have to wake up first."""
_PATIENCE_S = 2e-4
"""How long the calling thread may wait for the others, in seconds, before they count as late: they woke up later, and
their cores may be slower."""
_PAUSE = 30
"""After a delay, nothing is shared for this many times the delay, so it costs at most a thirtieth of the time."""
_UNIT = 4096  # arrays are cut at multiples of this, so that every element keeps its place in a vector register


class _Job:
    """One range of a task; either a worker or the waiting caller computes it, whichever claims it first."""

    __slots__ = ("_claim", "_done", "_error", "_start", "_stop", "_task")

    def __init__(self, task: Task, start: int, stop: int) -> None:
        self._task: Task | None = task
        self._start, self._stop = start, stop
        self._error: BaseException | None = None
        self._claim = allocate_lock()
        self._done = allocate_lock()
        self._done.acquire()

    def _compute(self) -> None:
        task, self._task = self._task, None  # the task holds the arrays
        assert task is not None
        task(self._start, self._stop)

    def run(self) -> Callable[[], None]:
        """Compute the range unless it was claimed; return the function that wakes the waiting thread."""
        if self._claim.acquire(False):
            try:
                self._compute()
            except BaseException as error:  # `finish` raises it
                self._error = error
        return self._done.release

    def finish(self) -> None:
        """Wait until the range is computed, and raise its exception if there was one.

        If no worker has begun, which may take milliseconds on a busy machine, the range is computed here.
        """
        if self._claim.acquire(False):
            self._compute()
            return
        self._done.acquire()
        if self._error is not None:
            raise self._error


class _Worker:
    """A thread that waits for jobs, in its own context, where NumPy's warnings are off.

    A caller that acquires `free` may give it one job. The worker itself releases `free`, so that a caller that is
    interrupted while it waits leaves nothing locked.
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
            del job  # drop it and its arrays
            self.free.release()
            done()
            del done

    def begin(self, job: _Job) -> _Job:
        """Start a job; the caller holds `free`."""
        self._job = job
        self._go.release()
        return job


class Pool:
    """The process's worker threads, which start on first use.

    Attributes:
        threads: the number of threads that compute at a time, including the calling one.
        resume: the time from which work is shared again, after workers were late.
    """

    def __init__(self) -> None:
        self.threads = usable_cores("OMP_NUM_THREADS")  # the variable that other libraries use too
        self._workers: list[_Worker] = []
        self._starting = allocate_lock()
        self.resume = 0.0

    def forget(self) -> None:
        """Forget all workers in a forked process, which has none of its parent's threads."""
        self._workers = []
        self._starting = allocate_lock()

    def claim(self, count: int) -> list[_Worker]:
        """Claim up to `count` free workers and return them; without any, the caller computes alone."""
        free = [worker for worker in self._workers[:count] if worker.free.acquire(False)]
        if len(self._workers) < count and self._starting.acquire(False):
            try:
                while len(self._workers) < count:
                    worker = _Worker()
                    worker.free.acquire()
                    self._workers.append(worker)
                    free.append(worker)
            except RuntimeError:  # the system has no more threads, or the interpreter is about to end
                pass
            finally:
                self._starting.release()
        return free

    def run(self, task: Task, length: int, elements: int, unit: int = 1, part: int = PART) -> None:
        """Run ``task(start, stop)`` so that the ranges make up ``range(length)``, in several threads if that pays.

        Args:
            task: a function that writes a part of the result; parts do not overlap, so their order does not matter.
            length: the length of the whole range.
            elements: the number of elements that the task reads in all, which decides the number of threads.
            unit: ranges start at multiples of this.
            part: the smallest number of elements for a thread.
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
            piece: a function that writes a piece of the result; pieces do not overlap.
            count: the number of pieces.
            parts: the number of threads to use.
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
        """Return the number of threads to use; 1 for a while after workers were late."""
        parts = min(self.threads, wanted, _MOST)
        if parts < 2 or sys.is_finalizing() or (self.resume and perf_counter() < self.resume):
            return 1
        return parts

    def _compute_and_wait(self, own: Callable[[], object], jobs: list[_Job]) -> None:
        """Compute this thread's share and wait for the others; if they are late, stop sharing for a while."""
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
    """Return a kernel's version for large arrays: in several threads if it is a NumPy ufunc, else the kernel itself."""
    if isinstance(kernel, np.ufunc) and kernel.nout == 1 and kernel.signature is None:
        return partial(apply_large, kernel)
    return kernel


def apply_large(ufunc: np.ufunc, *arrays: Any) -> Any:
    """Apply a ufunc with one output to large arrays, in parts.

    Arrays of one shape are cut as flat arrays, others along the first axis. If an array is not in row-major order,
    nothing is cut, since NumPy gives the result the layout of the operands.
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
            return ufunc(*arrays)  # it raises the error
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
