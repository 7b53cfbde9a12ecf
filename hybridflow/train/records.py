"""The log of a run: records by step, written as lines of JSON and for TensorBoard once their values are computed."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hybridflow.backend.files import write_text
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.pictures.tensorboard import tensorboard_module

FILE = "log.jsonl"
_SMALL = re.compile(r"(^|[_./ -])(loss|error|perplexity|mse|mae|rmse|nll)$", re.IGNORECASE)
_LARGE = re.compile(r"(^|[_./ -])(accuracy|top_?k|precision|recall|f1|auc|r2|reward|score)$", re.IGNORECASE)


class LoggedValues:
    """Statistics of the values logged by one name so far.

    Attributes:
        count: the number of values.
        last: the last value.
        smallest, largest: the smallest and the largest value.
        at_smallest, at_largest: `count` when these were logged.
    """

    __slots__ = ("at_largest", "at_smallest", "count", "largest", "last", "smallest")

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self.count = self.at_smallest = self.at_largest = 0
        self.last = self.smallest = self.largest = float("nan")
        for name, value in (state or {}).items():
            setattr(self, name, value)

    def add(self, value: float) -> None:
        """Add a value; NaN is neither the smallest nor the largest."""
        self.count += 1
        self.last = value
        if value < self.smallest or self.smallest != self.smallest:
            self.smallest, self.at_smallest = value, self.count
        if value > self.largest or self.largest != self.largest:
            self.largest, self.at_largest = value, self.count

    def state(self) -> dict[str, Any]:
        """Return the attributes."""
        return {name: getattr(self, name) for name in self.__slots__}


def larger_is_better(what: str, name: str, larger: bool | None) -> bool:
    """Return whether larger values of a name are better ones.

    Args:
        what: the caller, for messages.
        name: the name, which decides if it ends in a known word.
        larger: the user's choice, which comes first; None if there is none.

    Raises:
        ArgumentError: there is no choice, and the name does not decide.
    """
    if larger is not None:
        return larger
    if bool(_SMALL.search(name)) == bool(_LARGE.search(name)):
        raise ArgumentError(f"{what}: it is not known whether {name!r} is better when it is larger",
                            hint="Say larger=True or larger=False; names that end in loss, error or accuracy say so.")
    return bool(_LARGE.search(name))


class _Record:
    """The values logged in one step."""

    __slots__ = ("epoch", "seconds", "step", "values")

    def __init__(self, step: int, epoch: int, seconds: float) -> None:
        self.step, self.epoch, self.seconds = step, epoch, seconds
        self.values: dict[str, Any] = {}


class Records:
    """The records of a run.

    Args:
        directory: the directory of the log; None writes none.
        tensorboard: whether to write for TensorBoard too.
        report: a function that is called with the numbers of each record.
    """

    def __init__(self, directory: Path | None, tensorboard: bool, report: Callable[[Mapping[str, Any]], None]):
        self._directory = directory
        self._tensorboard = tensorboard
        if tensorboard:
            tensorboard_module("event", "Run")  # raises now if the package is missing
        self._report = report
        self._waiting: deque[_Record] = deque()
        self._file: TextIO | None = None
        self._events: Any = None
        self.seen: dict[str, LoggedValues] = {}

    def add(self, step: int, epoch: int, seconds: float, values: Mapping[str, Any]) -> None:
        """Log values of a step without waiting for them; all values of one step make one record."""
        waiting = self._waiting
        if waiting and waiting[-1].step == step:
            record = waiting[-1]
        else:
            record = _Record(step, epoch, seconds)
            waiting.append(record)
        for name, value in values.items():
            if type(value) is not float and type(value) is not int:
                value = _readable(name, value)
            record.values[name] = value

    def flush(self, *, wait: bool, before: int | None = None) -> None:
        """Write the records whose values are computed.

        Args:
            wait: whether to wait for values that are not computed yet.
            before: the present step, which may still log more and is not written; None if all steps are complete.
        """
        waiting = self._waiting
        lines: list[str] = []
        while waiting and waiting[0].step != before and (wait or all(map(_is_ready, waiting[0].values.values()))):
            record = waiting.popleft()
            numbers = {name: _number(value) for name, value in record.values.items()}
            for name, value in numbers.items():
                self._seen_of(name).add(value)
            self._report(numbers)
            if self._directory is not None:
                about = {"step": record.step, "epoch": record.epoch, "seconds": round(record.seconds, 3)}
                lines.append(json.dumps({**about, **numbers}))
                if self._tensorboard:
                    self._to_tensorboard(record.step, numbers)
        if lines:
            file = self._open()
            file.write("\n".join(lines) + "\n")
            file.flush()

    def _seen_of(self, name: str) -> LoggedValues:
        seen = self.seen.get(name)
        if seen is None:
            seen = self.seen[name] = LoggedValues()
        return seen

    def known(self, what: str, name: str) -> LoggedValues:
        """Return the statistics of a name, after waiting for all logged values.

        Raises:
            ArgumentError: nothing was logged by that name.
        """
        self.flush(wait=True)
        if name not in self.seen:
            raise ArgumentError(f"{what}: nothing was logged as {name!r}",
                                got=", ".join(map(repr, self.seen)) or "no values",
                                hint=f"Call run.log({name}=...) before.")
        return self.seen[name]

    def _open(self) -> TextIO:
        if self._file is None:
            assert self._directory is not None
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = (self._directory / FILE).open("a", encoding="utf-8")
        return self._file

    def _to_tensorboard(self, step: int, numbers: Mapping[str, Any]) -> None:
        if self._events is None:
            module = tensorboard_module("summary.writer.event_file_writer", "Run")
            self._events = module.EventFileWriter(str(self._directory))
        summary = tensorboard_module("summary", "Run").Summary
        values = [summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        event = tensorboard_module("event", "Run").Event
        self._events.add_event(event(step=step, wall_time=time.time(), summary=summary(value=values)))

    def state(self) -> dict[str, Any]:
        """Return the statistics, for a resumed run."""
        return {name: seen.state() for name, seen in self.seen.items()}

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the statistics, and remove the records of later steps from the file: these steps are repeated."""
        self.seen = {name: LoggedValues(seen) for name, seen in state.items()}
        if self._directory is None or not (self._directory / FILE).exists():
            return
        path = self._directory / FILE
        lines = path.read_text(encoding="utf-8").splitlines()
        lines_kept = [line for line in lines if _step_of(line) <= step]
        if len(lines_kept) < len(lines):
            write_text(path, "".join([f"{line}\n" for line in lines_kept]))

    def rest(self) -> None:
        """Close the file of lines, which the next record opens again, and flush TensorBoard's file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Write all records, and close the files."""
        self.flush(wait=True)
        self.rest()
        if self._events is not None:
            self._events.close()
            self._events = None


def _step_of(line: str) -> float:
    """Return the step of a line; infinity for an incomplete line."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _readable(name: str, value: Any) -> Any:
    """Return a value that can be read later, even if a Variable is assigned meanwhile.

    Raises:
        ShapeError: the value does not have exactly one element.
    """
    tensor = as_tensor(value)
    if tensor.size != 1:
        raise ShapeError(f"run.log: {name!r} must be one number", got=str(tensor.spec),
                         hint="Log its mean, for example.")
    return tensor


def _is_ready(value: Any) -> bool:
    """Whether a value can be read without waiting."""
    if type(value) is not Tensor or type(value._value) is np.ndarray:
        return True
    return value._value.is_ready()


def known_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that can be read without waiting, as Python numbers."""
    return {name: _number(value) for name, value in values.items() if _is_ready(value)}


def _number(value: Any) -> Any:
    if type(value) is not Tensor:
        return value
    number = value.numpy().reshape(()).item()
    return int(number) if isinstance(number, bool) else number
