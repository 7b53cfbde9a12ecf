"""Schedules of pipelines: which stage works on which micro-batch at which tick, as a table that is known beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from os import PathLike
from typing import Any, NamedTuple

from hybridflow.backend.files import write_text
from hybridflow.core.errors import ArgumentError, ArgumentTypeError

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Action(NamedTuple):
    """What a device does in one tick.

    Attributes:
        stage: the number of the stage.
        microbatch: the number of the micro-batch.
        backward: whether it computes gradients.
    """

    stage: int
    microbatch: int
    backward: bool

    def said(self, tick: int) -> str:
        """Return a sentence about the action."""
        what = "backward" if self.backward else "forward"
        return f"tick {tick}: {what} of micro-batch {self.microbatch}, stage {self.stage}"

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.microbatch}"


class Schedule(NamedTuple):
    """A pipeline's schedule, as a table with a row per tick and a column per device.

    In a tick, a device runs the forward or the backward pass of one stage for one micro-batch, or waits. What it sends
    arrives before the next tick. Stage `s` is on device ``s % devices``.

    Attributes:
        name: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``.
        devices: the number of devices.
        stages: the number of stages.
        microbatches: the number of micro-batches.
        table: the rows; None where a device waits.

    Example:
        >>> import hybridflow as hf
        >>> schedule = hf.distribute.pipeline_schedule("1f1b", 2, 3)
        >>> print(schedule)
        1f1b: 2 stages, 3 micro-batches, 8 ticks, 25.0 % of them waiting
        device 0: F0 F1 .  B0 F2 B1 .  B2
        device 1: .  F0 B0 F1 B1 F2 B2 .
    """

    name: str
    devices: int
    stages: int
    microbatches: int
    table: tuple[tuple[Action | None, ...], ...]

    @property
    def bubble(self) -> float:
        """The share of all ticks in which devices wait, from 0 to 1."""
        ticks = len(self.table) * self.devices
        return sum([one is None for row in self.table for one in row]) / ticks

    def waits(self, device: int) -> int:
        """Return the number of ticks in which a device waits."""
        return sum([row[device] is None for row in self.table])

    def actions(self) -> Iterable[tuple[int, int, Action]]:
        """Yield ``(tick, device, action)`` in the order of ticks."""
        for tick, row in enumerate(self.table):
            for device, action in enumerate(row):
                if action is not None:
                    yield tick, device, action

    def to_svg(self, path: str | PathLike[str]) -> None:
        """Write the table as a picture: a row per device, a column per tick, forward and backward in two colours.

        Args:
            path: the file.
        """
        from hybridflow.pictures.timetable import Entry, timetable_svg  # importing stays fast

        rows: list[tuple[str, list[Entry | None]]] = []
        for device, column in enumerate(zip(*self.table, strict=True)):
            cells = [
                None if one is None else Entry(self._text(one), "gradient" if one.backward else "input", one.said(tick))
                for tick, one in enumerate(column)
            ]
            rows.append((f"device {device}", cells))
        write_text(path, timetable_svg(self._head(), rows))

    def _text(self, action: Action) -> str:
        return f"{action}/{action.stage}" if self.stages > self.devices else str(action)

    def _head(self) -> str:
        return (
            f"{self.name}: {self.stages} stages, {self.microbatches} micro-batches, {len(self.table)} ticks, "
            f"{100 * self.bubble:.1f} % of them waiting"
        )

    def __str__(self) -> str:
        cells = [
            ["." if one is None else self._text(one) for one in column] for column in zip(*self.table, strict=True)
        ]
        width = max([len(cell) for row in cells for cell in row]) + 1
        lines = ["".join([cell.ljust(width) for cell in row]).rstrip() for row in cells]
        return "\n".join([self._head(), *[f"device {device}: {line}" for device, line in enumerate(lines)]])


def pipeline_schedule(
    name: str, stages: int, microbatches: int, *, devices: int | None = None, forward_only: bool = False
) -> Schedule:
    """Return the table by which `pipeline` runs.

    ``"gpipe"`` runs all forward passes first, and keeps what their gradients need for every micro-batch. ``"1f1b"``
    runs a backward pass as soon as it can, so that a device keeps no more micro-batches than there are stages; both
    wait for the share (p - 1) / (m + p - 1) of the ticks, for p stages and m micro-batches. ``"interleaved"`` puts
    several stages on each device (v of them), which divides the wait by about v and sends v times as much.

    Args:
        name: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``.
        stages: the number of stages.
        microbatches: the number of micro-batches.
        devices: the number of devices along the mesh axis; by default one per stage. Only ``"interleaved"`` takes
            fewer.
        forward_only: whether there are no backward passes, as where no gradient is asked for.

    Raises:
        ArgumentError: an unknown name, a number below 1, or a number of stages that does not suit the devices.
        ArgumentTypeError: a number is no integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.distribute.pipeline_schedule("gpipe", 4, 16).bubble == 3 / 19
        True

    Reference:
        Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training on GPU clusters
        using Megatron-LM", 2021, section 2.2.
    """
    if name not in SCHEDULES:
        raise ArgumentError(f"pipeline: schedule={name!r} is not one of {list(SCHEDULES)}")
    devices = stages if devices is None else devices
    for what, number in (("stages", stages), ("microbatches", microbatches), ("devices", devices)):
        if type(number) is not int:
            raise ArgumentTypeError(f"pipeline: {what} is a {type(number).__name__}", got=repr(number)[:80],
                                    hint="Give an integer.")
        if number < 1:
            raise ArgumentError(f"pipeline: {what}={number}", hint="Give 1 or more.")
    if stages % devices or (stages > devices and name != "interleaved"):
        many = " or a multiple of it" if name == "interleaved" else ""
        raise ArgumentError(f"pipeline: {stages} stages for {devices} devices along the axis", got=f"schedule={name!r}",
                            hint=f"Give {devices} stages{many}" + ("." if many else ', or schedule="interleaved".'))
    return _made(name, stages, microbatches, devices, forward_only)


@lru_cache(256)
def _made(name: str, stages: int, microbatches: int, devices: int, forward_only: bool) -> Schedule:
    per_device = [range(device, stages, devices) for device in range(devices)]
    queues: list[list[Action]] = []
    for device, own in enumerate(per_device):
        forward = [Action(stage, number, False) for stage, number in _order(own, microbatches, devices)]
        backward = [Action(stage, number, True) for stage, number in _order(own[::-1], microbatches, devices)]
        if forward_only or name == "gpipe":
            first = len(forward)
        elif len(own) == 1:
            first = devices - device - 1
        else:
            first = 2 * (devices - device - 1) + (len(own) - 1) * devices
        queues.append(forward if forward_only else _alternating(forward, backward, first))
    done: set[Action] = set()
    rows: list[tuple[Action | None, ...]] = []
    while any(queues):
        row = [_next(queue, stages - 1, done) for queue in queues]
        if not any(row):  # a group of fewer micro-batches than devices: a pass later in some queue is needed first
            row = [_next(queue, stages - 1, done, anywhere=True) for queue in queues]
        done.update([action for action in row if action is not None])
        rows.append(tuple(row))
    return Schedule(name, devices, stages, microbatches, tuple(rows))


def _alternating(forward: list[Action], backward: list[Action], first: int) -> list[Action]:
    """Return passes in order: some forward ones, then forward and backward ones in turns, then backward ones."""
    first = min(first, len(forward))
    turns = [one for pair in zip(forward[first:], backward, strict=False) for one in pair]
    return [*forward[:first], *turns, *backward[len(forward) - first :]]


def _next(queue: list[Action], last: int, done: set[Action], anywhere: bool = False) -> Action | None:
    """Take the next pass of a device if what it needs has arrived, or else None: the device waits."""
    for index, action in enumerate(queue if anywhere else queue[:1]):
        if _is_ready(action, last, done):
            return queue.pop(index)
    return None


def _is_ready(action: Action, last: int, done: set[Action]) -> bool:
    stage, number, backward = action
    if not backward:
        return stage == 0 or Action(stage - 1, number, False) in done
    return Action(stage, number, False) in done and (stage == last or Action(stage + 1, number, True) in done)


def _order(stages: Iterable[int], microbatches: int, devices: int) -> list[tuple[int, int]]:
    """Return the order of a device's passes: groups of as many micro-batches as devices go through all its stages."""
    stages = list(stages)
    groups = [range(start, min(start + devices, microbatches)) for start in range(0, microbatches, devices)]
    return [(stage, number) for group in groups for stage in stages for number in group]


class Rows(NamedTuple):
    """Places in a buffer for values that live for some ticks.

    Attributes:
        needed: the number of places.
        of: the place of each value.
    """

    needed: int
    of: dict[Any, int]


def places(lives: Iterable[tuple[Any, int, int, int]]) -> Rows:
    """Return places for values so that no two are in one place at the same time.

    Args:
        lives: ``(value, device, first, last)`` per value: it is written after tick `first` and read in tick `last`.
    """
    free: dict[int, list[tuple[int, int]]] = {}
    of: dict[Any, int] = {}
    count = 0
    for value, device, first, last in sorted(lives, key=lambda one: (one[2], one[1])):
        own = free.setdefault(device, [])
        index = next((place for place, until in own if until <= first), None)
        if index is None:
            index = len(own)
        else:
            own.remove(next(one for one in own if one[0] == index))
        own.append((index, last))
        count = max(count, index + 1)
        of[value] = index
    return Rows(count, of)
