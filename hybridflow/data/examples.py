"""Examples that are loaded one by one: in this process or in others, and stacked, padded where they are ragged."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from io import BytesIO
from itertools import islice
from typing import Any

import jax
import numpy as np

from hybridflow.core.errors import ArgumentError, ShapeError, WorkerError
from hybridflow.core.tensor import new_tensor

_AHEAD = 2
"""Batches that wait or are made, for each worker."""


def load(examples: Any, numbers: Iterable[int]) -> list[Any]:
    """Return some of the examples. An error has a note that names the example."""
    loaded: list[Any] = []
    for number in numbers:
        try:
            loaded.append(examples[number])
        except Exception as error:
            error.add_note(f"Batches: example {number} of a {type(examples).__name__} cannot be loaded.")
            raise
    return loaded


def stack(examples: Sequence[Any], pad: Any = None) -> Any:
    """Return examples as one batch of tensors.

    Args:
        examples: equal structures of arrays and numbers.
        pad: the value that fills arrays up at the ends of their axes, to the largest of the batch; None if they must
            have one shape.

    Raises:
        ShapeError: the arrays of the examples have several shapes.
    """
    return jax.tree_util.tree_map(lambda *leaves: new_tensor(_stacked([np.asarray(leaf) for leaf in leaves], pad)),
                                  *examples)


def _stacked(arrays: list[np.ndarray[Any, Any]], pad: Any) -> np.ndarray[Any, Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return np.stack(arrays)
    if pad is None or len({len(shape) for shape in shapes}) > 1:
        hint = "Give pad=0 to fill them up." if pad is None else "They must have the same number of axes."
        raise ShapeError("Batches: the examples of a batch have different shapes",
                         got=", ".join(map(str, sorted(shapes)[:4])), hint=hint)
    filled = np.full((len(arrays), *np.max([*shapes], axis=0)), pad, np.result_type(*arrays))
    for row, array in zip(filled, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape)] = array
    return filled


def like_lengths(order: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], size: int, mixed: bool,
                 random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return an order whose batches have examples of like lengths: stretches of 50 batches are sorted by length.

    Args:
        order: the numbers of the examples.
        lengths: the length of each example, by its number.
        size: the number of examples in a batch.
        mixed: whether whole batches are then put into a random order; a smaller last one stays the last.
        random: the source of that order.
    """
    stretch = 50 * size
    parts = [order[start : start + stretch] for start in range(0, len(order), stretch)]
    ordered = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    if not mixed:
        return ordered
    whole = len(ordered) // size * size
    batches = random.permutation(ordered[:whole].reshape(-1, size))
    return np.concatenate([batches.reshape(-1), ordered[whole:]])


class _NotOfThis(pickle.Unpickler):
    """An unpickler that refuses what other processes cannot import: classes and functions of a notebook."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return what a pickle names."""
        if module_name == "__main__":
            raise ArgumentError(f"Batches: workers= sends the examples to other processes, which have no {global_name}",
                                got=f"{global_name}, defined in a notebook or at a prompt",
                                hint="Define it in a module, such as a file that `%%writefile` makes, and import it.")
        return super().find_class(module_name, global_name)


class Workers:
    """Processes that load examples. They start with the first loop, and end with this object or with the program.

    Args:
        examples: the sequence of examples; each process gets a copy by pickle.
        count: the number of processes.

    Raises:
        ArgumentError: the examples cannot be pickled.
    """

    def __init__(self, examples: Any, count: int) -> None:
        self._count = count
        try:
            self._pickled = pickle.dumps(examples)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ArgumentError("Batches: workers= sends the examples to other processes, and these cannot be pickled",
                                got=f"{type(examples).__name__}: {error}",
                                hint="Define their class in a module, and open files in __getitem__.") from error
        if b"__main__" in self._pickled and not hasattr(sys.modules["__main__"], "__file__"):
            _NotOfThis(BytesIO(self._pickled)).load()
        self._pool: ProcessPoolExecutor | None = None

    def loaded(self, batches: Iterable[Sequence[int]]) -> Iterator[list[Any]]:
        """Yield the examples of each batch, in order, while the processes load the next ones.

        Raises:
            WorkerError: a process ended.
        """
        pool = self._started()
        waiting: deque[tuple[Sequence[int], Future[list[Any]]]] = deque()
        rest = iter(batches)
        loading: Sequence[int] = ()
        try:
            while True:
                for numbers in islice(rest, _AHEAD * self._count - len(waiting)):
                    loading = numbers
                    waiting.append((numbers, pool.submit(_load_here, numbers)))
                if not waiting:
                    return
                loading, result = waiting.popleft()
                yield result.result()
        except BrokenProcessPool as error:
            self._pool = None
            raise WorkerError(
                "Batches: a worker process ended while it loaded examples",
                got=f"workers={self._count}, waiting for examples {', '.join(map(str, loading[:8]))} ...",
                hint="It was killed, as systems do when memory runs out, or it crashed. A script must guard "
                     "its own work by `if __name__ == '__main__':`, since each worker imports it."
            ) from error
        finally:
            for _, result in waiting:
                result.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
            self._pool = ProcessPoolExecutor(  # not by fork: XLA's threads do not survive it
                self._count, multiprocessing.get_context(method), _begin, (self._pickled,)
            )
        return self._pool

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}


class _Here:
    """What a worker process loads from."""

    pickled: bytes = b""
    examples: Any = None


def _begin(pickled: bytes) -> None:
    """In a worker: leave Ctrl-C to the main process, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Here.pickled = pickled
    main = multiprocessing.parent_process()
    if main is not None:
        threading.Thread(target=_end_with, args=(main.join,), daemon=True).start()


def _end_with(wait: Callable[[], None]) -> None:
    wait()
    os._exit(1)


def _load_here(numbers: Sequence[int]) -> list[Any]:
    """In a worker: load examples; an error that cannot be pickled becomes a RuntimeError of its text."""
    try:
        if _Here.pickled:
            _Here.examples, _Here.pickled = pickle.loads(_Here.pickled), b""
        return load(_Here.examples, numbers)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            named = RuntimeError(f"{type(error).__name__}: {error}")
            for note in getattr(error, "__notes__", ()):
                named.add_note(note)
            raise named from None
        raise
