"""Checkpoints of a run: written beside the run by a thread, found again whole whatever was killed meanwhile."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.backend.files import remove_leftovers, sync_directory
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileError,
    FileFormatError,
    FileMissingError,
    FileWarning,
    message,
)
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.saving import reader, writer
from hybridflow.saving.reader import PathLike, file_error
from hybridflow.saving.values import flat, on_host, snapshot_of

FORMAT = "hybridflow checkpoint"
VERSION = 1
"""The version of the format that is written."""

Fields = dict[str, str]
UPGRADES: Mapping[int, Callable[[Fields, dict[str, Any]], tuple[Fields, dict[str, Any]]]] = {}
"""What makes the metadata and arrays of the next version of those of a version."""

_NAME = re.compile(r"step-(\d{9,})\.safetensors")


class Checkpoint(NamedTuple):
    """What was saved.

    Attributes:
        step: the step.
        values: the tensors by path, for `hybridflow.saving.values.fill`.
        state: what was saved besides.
        score: how good it is; None if nobody said.
        path: the file.
    """

    step: int
    values: Mapping[str, Tensor]
    state: Mapping[str, Any]
    score: float | None
    path: Path


class Written:
    """A checkpoint that a thread writes.

    Attributes:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ended = threading.Event()
        self._process = os.getpid()
        self._error: BaseException | None = None
        self._told = False

    @property
    def done(self) -> bool:
        """Whether the thread has ended, well or not."""
        return self._ended.is_set()

    def wait(self) -> Path:
        """Wait until the checkpoint is on the disk, and return its path.

        Raises:
            FileError: it could not be written.
        """
        self.until_ended()
        self._told = True
        if self._error is not None:
            raise self._error
        return self.path

    def until_ended(self) -> None:
        """Wait until the thread has ended; in a forked process, which has no such thread, do not."""
        if self._process == os.getpid():
            self._ended.wait()

    @property
    def untold(self) -> BaseException | None:
        """What the thread failed with, if nobody was told before."""
        return None if self._told else self._error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()


class Checkpoints:
    """The checkpoints in a directory.

    Each is a safetensors file, ``step-000000500.safetensors``, with the step and the state in its metadata. It has its
    name when it is whole and on the disk. Its digest is compared when it is read.

    Args:
        directory: the directory, which the first write makes.

    Example:
        >>> import tempfile
        >>> import hybridflow as hf
        >>> from hybridflow.saving.checkpoints import Checkpoints
        >>> folder = tempfile.TemporaryDirectory()
        >>> saved, weight = Checkpoints(folder.name), hf.Variable(1.0)
        >>> written = saved.write(10, {"weight": weight}, {"epoch": 2})
        >>> _ = weight.assign(5.0)  # the checkpoint does not see it
        >>> found = saved.newest()
        >>> found.step, found.state["epoch"], found.values["weight"].item()
        (10, 2, 1.0)
        >>> folder.cleanup()
    """

    def __init__(self, directory: PathLike) -> None:
        self.directory = Path(directory)
        self._last: list[Written] = []
        weakref.finalize(self, _warn_of_untold, self._last)

    def write(
        self,
        step: int,
        values: Any,
        state: Mapping[str, Any],
        *,
        score: float | None = None,
        keep: int | None = None,
    ) -> Written:
        """Save a checkpoint: as things are now, though a thread writes it.

        Variables are not copied. Those that are assigned afterwards get other memory, as whenever somebody holds a
        Variable's value. If the checkpoint before is still being written, this waits for it.

        Args:
            step: its number; a checkpoint of the same step is replaced.
            values: what `hf.save` takes.
            state: numbers, texts, None, lists and mappings, which are kept as JSON.
            score: how good it is: more is better; NaN counts as none.
            keep: how many checkpoints stay, counted from this one back, beside the best of all; None: every one.

        Returns:
            What can be waited for.

        Raises:
            FileError: an earlier checkpoint could not be written, and nobody was told yet.
            ArgumentError: a step or `keep` that is negative.
            ArgumentTypeError: a state that JSON cannot hold.
        """
        self._wait_for_last()
        self._tell()
        if isinstance(step, bool) or not isinstance(cast(object, step), int) or step < 0:
            raise ArgumentError(message("checkpoint: the step is an integer from 0 on", got=repr(step)[:80]))
        if keep is not None and (isinstance(keep, bool) or not isinstance(cast(object, keep), int) or keep < 1):
            raise ArgumentError(message("checkpoint: keep is an integer from 1 on, or None", got=repr(keep)[:80]))
        rated = None if score is None or math.isnan(score) else float(score)
        text = json.dumps(_plain(state, "state"), ensure_ascii=True)
        snapshot = snapshot_of(flat(values, "checkpoint"), "checkpoint", copy=True)
        writer.check(snapshot, "checkpoint")
        written = Written(self.directory / f"step-{step:09d}.safetensors")

        def work() -> None:
            arrays = {path: on_host(value) for path, value in snapshot.items()}
            self._write(written.path, step, arrays, text, rated)
            if keep is not None:
                self._prune(keep)

        self._last[:] = [written]
        # The interpreter's end waits for it, since it is no daemon.
        threading.Thread(target=written._run, args=(work,), name="hybridflow-checkpoint").start()
        return written

    def wait(self) -> None:
        """Wait until everything is on the disk.

        Raises:
            FileError: a checkpoint could not be written, and nobody was told yet.
        """
        self._wait_for_last()
        self._tell()

    def newest(self) -> Checkpoint | None:
        """Return the checkpoint that was written last, of those that are whole; None if there is none.

        Those that are damaged are passed over with a `FileWarning`.

        Raises:
            FileFormatError: one of a version that this one does not know.
            FileError: a file that cannot be read.
        """
        return self._first(sorted(self._listed(), key=lambda one: -one.number))

    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the highest score, of those that are whole; None if none has a score."""
        rated = [one for one in self._listed() if one.score is not None]
        return self._first(sorted(rated, key=_rank, reverse=True))

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, the lowest first; their digests are not compared."""
        return sorted([one.step for one in self._listed()])

    def _wait_for_last(self) -> None:
        for one in self._last:
            one.until_ended()

    def _tell(self) -> None:
        for one in self._last:
            if one.untold is not None:
                one.wait()

    def _write(self, path: Path, step: int, arrays: dict[str, Any], state: str, score: float | None) -> None:
        try:
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True, exist_ok=True)
                sync_directory(self.directory.parent)
            remove_leftovers(path)
        except OSError as error:
            raise file_error(FileError, "checkpoint", self.directory, "cannot be used", error) from error
        number = max([one.number for one in self._listed_now()], default=0) + 1
        metadata = {
            "format": FORMAT, "version": str(VERSION), "number": str(number), "step": str(step), "state": state,
            "score": "" if score is None else repr(score),
        }  # fmt: skip
        metadata["sha256"] = writer.digest_of(arrays, metadata)
        writer.write(path, arrays, metadata, what="checkpoint", replace=True)

    def _prune(self, keep: int) -> None:
        """Remove all checkpoints but the newest ones and the best."""
        known = sorted(self._listed_now(), key=lambda one: -one.number)
        best = max([one for one in known if one.score is not None], key=_rank, default=None)
        for one in known[keep:]:
            if one is not best:
                try:
                    one.path.unlink(missing_ok=True)
                except OSError as error:
                    raise file_error(FileError, "checkpoint", one.path, "cannot be removed", error) from error

    def _listed(self) -> list[_Listed]:
        self._wait_for_last()
        return self._listed_now()

    def _listed_now(self) -> list[_Listed]:
        """Return the checkpoints as far as their metadata tell; those without are passed over with a warning."""
        listed: list[_Listed] = []
        try:
            paths = sorted(self.directory.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise file_error(FileError, "checkpoint", self.directory, "cannot be read", error) from error
        for path in paths:
            if _NAME.fullmatch(path.name) is None:
                continue
            try:
                metadata = reader.read_metadata(path, "checkpoint")
            except FileMissingError:
                continue  # another process has removed it
            except FileFormatError as error:
                _warn(path, error)
                continue
            one = _listed(path, metadata)
            if one is None:
                _warn(path, "it is no checkpoint")
            else:
                listed.append(one)
        return listed

    def _first(self, known: Sequence[_Listed]) -> Checkpoint | None:
        """Return the first checkpoint that is whole."""
        for one in known:
            try:
                arrays, metadata = reader.read(one.path, what="checkpoint", copy=True)
            except FileMissingError:
                continue
            except FileFormatError as error:
                _warn(one.path, error)
                continue
            rest = {name: text for name, text in metadata.items() if name != "sha256"}
            if metadata.get("sha256") != writer.digest_of(arrays, rest):
                _warn(one.path, "its digest is not that of what is in it")
                continue
            return _checkpoint(one, metadata, arrays)
        return None


class _Listed(NamedTuple):
    """What the metadata of a checkpoint tell.

    Attributes:
        path: the file.
        step: the step.
        number: how many had been written, it included.
        score: how good it is.
    """

    path: Path
    step: int
    number: int
    score: float | None


def _rank(one: _Listed) -> tuple[float, int]:
    return cast(float, one.score), one.number


def _listed(path: Path, metadata: Mapping[str, str]) -> _Listed | None:
    """Return what the metadata of a checkpoint tell; None if it is none.

    Raises:
        FileFormatError: there is no way from its version to the present one.
    """
    if metadata.get("format") != FORMAT:
        return None
    version = metadata.get("version", "")
    known = version.isdecimal() and len(version) < 10
    if version != str(VERSION) and not (known and int(version) in UPGRADES):
        newer = "by a newer hybridflow, " if known and int(version) > VERSION else ""
        raise FileFormatError(
            message(f"checkpoint: {str(path)!r} was written {newer}in version {version[:20]!r} of the format, and this "
                    f"hybridflow reads version {VERSION}",
                    hint="Resume with the hybridflow that wrote it, or in another directory.")
        )  # fmt: skip
    try:
        score = float(metadata["score"]) if metadata["score"] else None
        return _Listed(path, int(metadata["step"]), int(metadata["number"]), score)
    except (KeyError, ValueError):
        return None


def _checkpoint(one: _Listed, metadata: Mapping[str, str], arrays: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint of any version as the present one has it."""
    fields = dict(metadata)
    for version in range(int(fields["version"]), VERSION):
        fields, arrays = UPGRADES[version](fields, arrays)
    device = current().device
    values = {name: make_tensor(place(array, device)) for name, array in sorted(arrays.items())}
    return Checkpoint(one.step, MappingProxyType(values), json.loads(fields["state"]), one.score, one.path)


def _warn(path: Path, why: object) -> None:
    warnings.warn(FileWarning(f"checkpoint: {str(path)!r} is passed over: {why}"), stacklevel=4)


def _warn_of_untold(last: list[Written]) -> None:
    """Say that a checkpoint failed when nobody can ask any longer."""
    for one in last:
        one.until_ended()
        if one.untold is not None:
            warnings.warn(FileWarning(str(one.untold)), stacklevel=1)


def _plain(value: Any, path: str) -> Any:
    """Return a state as JSON has it; NumPy's numbers become Python's, and tuples lists.

    Raises:
        ArgumentTypeError: what JSON has not.
    """
    if value is None or (isinstance(value, str | bool | int | float) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, Mapping):
        for key in cast("Mapping[Any, Any]", value):
            if not isinstance(key, str):
                raise ArgumentTypeError(
                    message(f"checkpoint: a key of {path} is a {type(key).__name__}", got=repr(key)[:80],
                            hint="JSON's keys are texts.")
                )  # fmt: skip
        return {key: _plain(one, f"{path}.{key}") for key, one in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{path}.{number}") for number, one in enumerate(cast("list[Any]", value))]
    raise ArgumentTypeError(
        message(f"checkpoint: {path} is a {type(value).__name__}, which JSON cannot hold", got=repr(value)[:80],
                hint="Arrays and Variables belong to the values.")
    )  # fmt: skip
