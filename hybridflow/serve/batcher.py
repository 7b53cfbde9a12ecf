"""The threads that compute requests, one for each model, in batches if they are for the same function."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from hybridflow.serve.models import Servable
from hybridflow.serve.protocol import Array, Refused

Results = dict[str, Array]
Result = Future[Any] | asyncio.Future[Any]


class _Job(NamedTuple):
    """A request that waits, or another function to run (`work`) between requests."""

    future: Result
    key: Any
    tensors: Mapping[str, Array]
    rows: int
    servable: Servable | None
    work: Callable[[], Any] | None
    arrived: float


class _Outcome(NamedTuple):
    """The outcome of a job: a value, or an error."""

    job: _Job
    value: Any
    error: BaseException | None

    def settle(self) -> None:
        """Set the future's result, unless it was cancelled."""
        if self.job.future.done():
            return
        if self.error is None:
            self.job.future.set_result(self.value)
        else:
            self.job.future.set_exception(self.error)


class Batcher:
    """Computes requests: those of a model in one thread, so that no other model's requests wait for them.

    Args:
        max_batch: the largest number of rows that are computed together.
        max_delay: how many seconds a request waits at most for others. It waits only if others are there, or if the
            batch before had several: a client alone never waits.
        queue: how many requests for a model may wait.
        observe: called with the number of rows of each batch.
    """

    def __init__(
        self, max_batch: int, max_delay: float, queue: int, observe: Callable[[int], None] = lambda rows: None
    ) -> None:
        self._settings = max_batch, max_delay, queue, observe
        self._lanes: dict[str, _Lane] = {}
        self._starting = threading.Lock()

    def _lane(self, model: str) -> _Lane:
        lane = self._lanes.get(model)
        if lane is None:
            with self._starting:
                lane = self._lanes.get(model)
                if lane is None:
                    lane = self._lanes[model] = _Lane(*self._settings)
        return lane

    @property
    def waiting(self) -> int:
        """How many requests wait or are computed."""
        return sum([lane.waiting for lane in [*self._lanes.values()]])

    @property
    def busy_since(self) -> float | None:
        """When the oldest computation under way began; None if there is none."""
        return min([since for lane in [*self._lanes.values()] if (since := lane.busy_since) is not None], default=None)

    def submit(self, servable: Servable, tensors: Mapping[str, Array], future: Result | None = None) -> Result:
        """Queue a request; cancelling the future frees its place.

        Args:
            servable: what is called.
            tensors: its arguments.
            future: where the result goes; one of asyncio's gets it in its own loop.

        Raises:
            Refused: with 503, if the queue is full.
        """
        return self._lane(servable.model).submit(servable, tensors, future)

    def require_room(self, model: str) -> None:
        """Raise unless a model's queue has room for a request.

        Raises:
            Refused: with 503.
        """
        self._lane(model).require_room()

    def compute(self, work: Callable[[], None], model: str) -> None:
        """Run a function in a model's thread, between its requests, and wait for it."""
        self._lane(model).compute(work)

    def stop(self) -> None:
        """Compute the waiting requests, and end the threads."""
        with self._starting:
            for lane in self._lanes.values():
                lane.stop()


class _Lane:
    """The thread of one model; see `Batcher`.

    Attributes:
        busy_since: when the computation under way began; None if there is none.
    """

    def __init__(self, max_batch: int, max_delay: float, queue: int, observe: Callable[[int], None]) -> None:
        self._max_batch, self._max_delay, self._limit, self._observe = max_batch, max_delay, queue, observe
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopped = self._idle = False
        self._waiting = 0
        self._shared = False
        self.busy_since: float | None = None
        self._thread = threading.Thread(target=self._loop, name="hybridflow-device", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many requests wait or are computed."""
        return self._waiting

    def submit(self, servable: Servable, tensors: Mapping[str, Array], future: Result | None) -> Result:
        """Queue a request."""
        rows = servable.rows(tensors)
        batchable = 0 < rows <= self._max_batch
        key = (id(servable), *[one.shape[1:] for one in tensors.values()], *tensors) if batchable else None
        job = _Job(Future() if future is None else future, key, tensors, rows, servable, None, time.monotonic())
        with self._changed:
            self.require_room()
            self._waiting += 1
            self._put(job)
        job.future.add_done_callback(lambda _: self._finished(job))
        return job.future

    def require_room(self) -> None:
        """Raise unless the queue has room for a request."""
        if self._stopped or self._waiting >= self._limit:
            raise Refused("the server is busy: the model's queue is full", 503)

    def compute(self, work: Callable[[], None]) -> None:
        """Run a function between requests, and wait for it."""
        future: Future[None] = Future()
        with self._changed:
            self._put(_Job(future, None, {}, 0, None, work, time.monotonic()))
        future.result()

    def stop(self) -> None:
        """Compute the waiting requests, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _put(self, job: _Job) -> None:
        """Add a job, and wake the thread up if it waits for one."""
        self._jobs.append(job)
        if self._idle:
            self._changed.notify()

    def _finished(self, job: _Job) -> None:
        with self._changed:
            self._waiting -= 1
            if job.future.cancelled() and job in self._jobs:
                self._jobs.remove(job)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopped:
                    self._wait(None)
                if not self._jobs:
                    return
                batch = self._gather()
            self._shared = len(batch) > 1
            batch = [job for job in batch if _begins(job.future)]
            if batch:
                self.busy_since = time.monotonic()
                done = self._run(batch)
                self.busy_since = None
                _settle(done)

    def _wait(self, seconds: float | None) -> None:
        self._idle = True
        self._changed.wait(seconds)
        self._idle = False

    def _gather(self) -> list[_Job]:
        """Take the first job and others that can share its batch, and wait for more until its delay is over."""
        first = self._jobs.popleft()
        batch, rows = [first], first.rows
        if first.key is None:
            return batch
        until = first.arrived + (self._max_delay if self._shared or self._jobs else 0)
        while True:
            others: deque[_Job] = deque()
            for job in self._jobs:
                if job.key == first.key and rows + job.rows <= self._max_batch:
                    batch.append(job)
                    rows += job.rows
                else:
                    others.append(job)
            self._jobs = others
            seconds = until - time.monotonic()
            if rows >= self._max_batch or seconds <= 0 or self._stopped or others:
                return batch
            self._wait(seconds)

    def _run(self, batch: list[_Job]) -> list[_Outcome]:
        """Compute a batch; if that fails, compute each request alone, so that only the one at fault fails."""
        if len(batch) == 1:
            return [self._run_alone(batch[0])]
        servable = batch[0].servable
        assert servable is not None
        rows = sum([job.rows for job in batch])
        try:
            servable.require_batch(batch[0].tensors, rows)
            joined = {name: np.concatenate([job.tensors[name] for job in batch]) for name in batch[0].tensors}
            results = servable.run_rows(joined, rows)
        except Exception:  # one of them is at fault, and each gets its own error below
            return [self._run_alone(job) for job in batch]
        self._observe(rows)
        done: list[_Outcome] = []
        start = 0
        for job in batch:
            rows_of_job = {name: one[start : start + job.rows] for name, one in results.items()}
            done.append(_Outcome(job, rows_of_job, None))
            start += job.rows
        return done

    def _run_alone(self, job: _Job) -> _Outcome:
        try:
            return _Outcome(job, job.work() if job.work is not None else self._computed(job), None)
        except Exception as error:  # who waits for the job gets it
            return _Outcome(job, None, error)

    def _computed(self, job: _Job) -> Results:
        assert job.servable is not None
        self._observe(max(job.rows, 1))
        try:
            if job.key is not None:
                return job.servable.run_rows(job.tensors, job.rows)
            return job.servable.run(job.tensors)
        except job.servable.raises as error:  # the model's own check of the values failed
            raise Refused(str(error)[:2000]) from error
        except MemoryError as error:
            raise Refused(str(error)[:2000], 503) from error


def _begins(future: Result) -> bool:
    """Whether somebody still waits for a result, which is then computed."""
    return future.set_running_or_notify_cancel() if isinstance(future, Future) else not future.done()


def _settle(done: Sequence[_Outcome]) -> None:
    """Set the results of futures, those of an event loop all at once in that loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for one in done:
        future = one.job.future
        if isinstance(future, Future):
            one.settle()
        else:
            loops.setdefault(future.get_loop(), []).append(one)
    for loop, several in loops.items():
        with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
            loop.call_soon_threadsafe(_settle_in_loop, several)


def _settle_in_loop(done: Sequence[_Outcome]) -> None:
    for one in done:
        one.settle()
