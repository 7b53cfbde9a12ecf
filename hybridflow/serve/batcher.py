"""The thread that owns the device: it computes requests, those for the same function in batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from hybridflow.core.errors import HybridflowError
from hybridflow.serve.models import Servable
from hybridflow.serve.protocol import Array, Refused

Results = dict[str, Array]


class _Job(NamedTuple):
    """A request that waits, or another function to run (`work`) between requests."""

    future: Future[Any]
    key: Any
    tensors: Mapping[str, Array]
    rows: int
    servable: Servable | None
    work: Callable[[], Any] | None
    arrived: float


class Batcher:
    """Computes requests in one thread.

    Args:
        max_batch: the largest number of rows that are computed together.
        max_delay: how many seconds a request waits at most for others. It waits only if others are there, or if the
            batch before had several: a client alone never waits.
        queue: how many requests may wait.
        observe: called with the number of rows of each batch.

    Attributes:
        busy_since: when the computation under way began; None if there is none.
    """

    def __init__(
        self, max_batch: int, max_delay: float, queue: int, observe: Callable[[int], None] = lambda rows: None
    ) -> None:
        self._max_batch, self._max_delay, self._limit, self._observe = max_batch, max_delay, queue, observe
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._waiting = 0
        self._shared = False
        self.busy_since: float | None = None
        self._thread = threading.Thread(target=self._loop, name="hybridflow-device", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many requests wait or are computed."""
        return self._waiting

    def submit(self, servable: Servable, tensors: Mapping[str, Array]) -> Future[Results]:
        """Queue a request; cancelling the future frees its place.

        Raises:
            Refused: with 503, if the queue is full.
        """
        rows = 0
        if servable.alone is None:
            rows = next(iter(tensors.values())).shape[0]
        shapes = [(name, one.shape[1:]) for name, one in sorted(tensors.items())] if rows > 0 else None
        batchable = 0 < rows <= self._max_batch
        future: Future[Results] = Future()
        key = (id(servable), str(shapes)) if batchable else None
        job = _Job(future, key, tensors, rows, servable, None, time.monotonic())
        with self._changed:
            if self._stopped or self._waiting >= self._limit:
                raise Refused("the server is busy: its queue is full", 503)
            self._waiting += 1
            self._jobs.append(job)
            self._changed.notify()
        future.add_done_callback(lambda _: self._done(job))
        return future

    def compute(self, work: Callable[[], None]) -> None:
        """Run a function in the device's thread, between requests, and wait for it."""
        future: Future[None] = Future()
        with self._changed:
            self._jobs.append(_Job(future, None, {}, 0, None, work, time.monotonic()))
            self._changed.notify()
        future.result()

    def stop(self) -> None:
        """Compute what waits, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _done(self, job: _Job) -> None:
        with self._changed:
            self._waiting -= 1
            if job.future.cancelled() and job in self._jobs:
                self._jobs.remove(job)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopped:
                    self._changed.wait()
                if not self._jobs:
                    return
                batch = self._gather()
            self._shared = len(batch) > 1
            batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if batch:
                self.busy_since = time.monotonic()
                self._run(batch)
                self.busy_since = None

    def _gather(self) -> list[_Job]:
        """Take the first job and others that fit to it, and wait for more until its delay is over."""
        first = self._jobs.popleft()
        batch, rows = [first], first.rows
        if first.key is None:
            return batch
        until = first.arrived + (self._max_delay if self._shared or self._jobs else 0)
        while True:
            for job in [*self._jobs]:
                if job.key == first.key and rows + job.rows <= self._max_batch:
                    self._jobs.remove(job)
                    batch.append(job)
                    rows += job.rows
            left = until - time.monotonic()
            if rows >= self._max_batch or left <= 0 or self._stopped or any(j.key != first.key for j in self._jobs):
                return batch
            self._changed.wait(left)

    def _run(self, batch: list[_Job]) -> None:
        """Compute a batch; if it fails, each of its requests alone, so that only the one at fault fails."""
        if len(batch) == 1:
            self._run_alone(batch[0])
            return
        servable = batch[0].servable
        assert servable is not None
        rows = sum([job.rows for job in batch])
        try:
            joined = {name: np.concatenate([job.tensors[name] for job in batch]) for name in batch[0].tensors}
            results = servable.run_rows(joined, rows)
        except Exception:  # one of them is at fault, and each gets its own error below
            for job in batch:
                self._run_alone(job)
            return
        self._observe(rows)
        start = 0
        for job in batch:
            job.future.set_result({name: one[start : start + job.rows] for name, one in results.items()})
            start += job.rows

    def _run_alone(self, job: _Job) -> None:
        try:
            result = job.work() if job.work is not None else self._computed(job)
        except Exception as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _computed(self, job: _Job) -> Results:
        assert job.servable is not None
        self._observe(max(job.rows, 1))
        try:
            if job.key is not None:
                return job.servable.run_rows(job.tensors, job.rows)
            return job.servable.run(job.tensors)
        except HybridflowError as error:  # a check of the model's, or sizes that do not fit each other
            raise Refused(str(error)[:2000]) from error
