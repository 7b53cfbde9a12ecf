"""Checkpoints of a run: a thread writes them, and the newest whole one is found even if the process was killed."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
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
)
from hybridflow.core.mesh import lies_on_several
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.saving import parts, reader, writer
from hybridflow.saving.reader import PathLike, file_error
from hybridflow.saving.values import flat, on_host, snapshot_of

FORMAT = "hybridflow checkpoint"
VERSION = 1
"""The version of the format that is written."""

Fields = dict[str, str]
UPGRADES: Mapping[int, Callable[[Fields, dict[str, Any]], tuple[Fields, dict[str, Any]]]] = {}
"""By version of the format: the function that converts metadata and arrays to the next version."""

_NAME = re.compile(r"step-(\d{9,})\.safetensors")


class Checkpoint(NamedTuple):
    """A checkpoint that was read.

    Attributes:
        step: the step.
        values: the tensors by path, for `hybridflow.saving.values.fill`.
        state: the state that was saved with them.
        score: how good it is; None if it was saved without a score.
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
        """Whether the thread has ended, with or without an error."""
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
        """Wait until the thread has ended; a forked process does not wait, since it has no such thread."""
        if self._process == os.getpid():
            self._ended.wait()

    @property
    def untold(self) -> BaseException | None:
        """The error of the thread, if it has not been raised yet."""
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

    Each is a safetensors file, such as ``step-000000500.safetensors``, with the step and the state in its metadata. A
    file gets its name when it is whole and on the disk. Reading it checks its digest. Values that lie on several
    devices are in a directory beside it, which the file names; each process writes its own part there before.

    Args:
        directory: the directory; the first write creates it.

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
        """Save a checkpoint of the present values; a thread writes it.

        Variables are not copied: a later assignment uses other memory, as it always does while somebody holds a
        Variable's value. If the checkpoint before is still being written, this waits for it.

        Args:
            step: its number; a checkpoint of the same step is replaced.
            values: a structure as `hf.save` takes it.
            state: numbers, texts, None, lists and mappings, which are saved as JSON.
            score: how good it is: more is better. NaN means that there is no score.
            keep: the number of newest checkpoints, this one included, to keep beside the best one; None keeps all.

        Returns:
            An object to wait for the checkpoint.

        Raises:
            FileError: an earlier checkpoint could not be written, and this has not been raised yet.
            ArgumentError: the step is no integer from 0 on, or `keep` no integer from 1 on.
            ArgumentTypeError: JSON cannot hold the state.
        """
        self._wait_for_last()
        self._tell()
        if isinstance(step, bool) or not isinstance(cast(object, step), int) or step < 0:
            raise ArgumentError("checkpoint: the step is an integer from 0 on", got=repr(step)[:80])
        if keep is not None and (isinstance(keep, bool) or not isinstance(cast(object, keep), int) or keep < 1):
            raise ArgumentError("checkpoint: keep is an integer from 1 on, or None", got=repr(keep)[:80])
        rated = None if score is None or math.isnan(score) else float(score)
        text = json.dumps(_plain(state, "state"), ensure_ascii=True)
        snapshot = snapshot_of(flat(values, "checkpoint"), "checkpoint", copy=True)
        writer.check(snapshot, "checkpoint")
        written = Written(self.directory / f"step-{step:09d}.safetensors")
        spread, name = parts.on_devices(snapshot), ""
        writing = None
        if spread:
            name = parts.new_name(step)
            writing = parts.Writing(self.directory / name, spread)

        def work() -> None:
            if writing is not None:
                writing.finish()
            if not parts.is_first():
                self._await(written.path, name)
                return
            arrays = {path: on_host(value) for path, value in snapshot.items() if path not in spread}
            self._write(written.path, step, arrays, text, rated, name)
            if keep is not None:
                self._prune(keep)

        self._last[:] = [written]
        # No daemon thread, so that the interpreter waits for it at its end.
        threading.Thread(target=written._run, args=(work,), name="hybridflow-checkpoint").start()
        return written

    def wait(self) -> None:
        """Wait until everything is on the disk.

        Raises:
            FileError: a checkpoint could not be written, and this has not been raised yet.
        """
        self._wait_for_last()
        self._tell()

    def newest(self, into: Any = None) -> Checkpoint | None:
        """Return the last checkpoint that was written completely; None if there is none.

        Damaged ones are skipped with a `FileWarning`.

        Args:
            into: a structure of the Variables that get the values; those on a mesh are read as they lie there.

        Raises:
            FileFormatError: this version of hybridflow does not know the version of a checkpoint.
            FileError: a file cannot be read.
        """
        return self._first(sorted(self._listed(), key=lambda one: -one.number), into)

    def best(self, into: Any = None) -> Checkpoint | None:
        """Return the whole checkpoint with the highest score; None if none has a score. See `newest`."""
        rated = [one for one in self._listed() if one.score is not None]
        return self._first(sorted(rated, key=_rank, reverse=True), into)

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, the lowest first, without checking their digests."""
        return sorted([one.step for one in self._listed()])

    def _wait_for_last(self) -> None:
        for one in self._last:
            one.until_ended()

    def _tell(self) -> None:
        for one in self._last:
            if one.untold is not None:
                one.wait()

    def _await(self, path: Path, name: str) -> None:
        """Wait until process 0 has written the file that makes the checkpoint whole; if it fails, all end."""
        while True:
            try:
                if reader.read_metadata(path, "checkpoint").get("parts", "") == name:
                    return
            except (FileMissingError, FileFormatError):
                pass
            time.sleep(0.02)

    def _write(
        self, path: Path, step: int, arrays: dict[str, Any], state: str, score: float | None, name: str
    ) -> None:
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
        }
        if name:
            metadata["parts"] = name
        metadata["sha256"] = writer.digest_of(arrays, metadata)
        writer.write(path, arrays, metadata, what="checkpoint", replace=True)
        self._sweep()

    def _sweep(self) -> None:
        """Remove parts without a checkpoint: it was replaced, removed, or its process was killed while it wrote."""
        used = {one.parts for one in self._listed_now()}
        for path in self.directory.glob(f"*{parts.ENDING}*"):
            if path.is_dir() and path.name not in used:
                parts.remove(path)

    def _prune(self, keep: int) -> None:
        """Remove all checkpoints except the newest `keep` and the best one."""
        known = sorted(self._listed_now(), key=lambda one: -one.number)
        best = max([one for one in known if one.score is not None], key=_rank, default=None)
        for one in known[keep:]:
            if one is not best:
                try:
                    one.path.unlink(missing_ok=True)
                except OSError as error:
                    raise file_error(FileError, "checkpoint", one.path, "cannot be removed", error) from error
        self._sweep()

    def _listed(self) -> list[_Listed]:
        self._wait_for_last()
        return self._listed_now()

    def _listed_now(self) -> list[_Listed]:
        """Return the checkpoints by their metadata; files without valid metadata are skipped with a warning."""
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

    def _first(self, known: Sequence[_Listed], into: Any = None) -> Checkpoint | None:
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
            if one.parts:
                try:
                    arrays |= parts.read(self.directory / one.parts, {} if into is None else flat(into, "Run"))
                except FileFormatError as error:
                    _warn(one.path, error)
                    continue
            return _checkpoint(one, metadata, arrays)
        return None


class _Listed(NamedTuple):
    """The facts in a checkpoint's metadata.

    Attributes:
        path: the file.
        step: the step.
        number: its position in the order of writing, from 1.
        score: how good it is.
        parts: the name of the directory with the values that lay on several devices; empty if there were none.
    """

    path: Path
    step: int
    number: int
    score: float | None
    parts: str


def _rank(one: _Listed) -> tuple[float, int]:
    return cast(float, one.score), one.number


def _listed(path: Path, metadata: Mapping[str, str]) -> _Listed | None:
    """Return the facts in a checkpoint's metadata; None if the file is no checkpoint.

    Raises:
        FileFormatError: its version cannot be converted to the present one.
    """
    if metadata.get("format") != FORMAT:
        return None
    version = metadata.get("version", "")
    known = version.isdecimal() and len(version) < 10
    if version != str(VERSION) and not (known and int(version) in UPGRADES):
        newer = "by a newer hybridflow, " if known and int(version) > VERSION else ""
        raise FileFormatError(
            f"checkpoint: {str(path)!r} was written {newer}in version {version[:20]!r} of the format, and this "
            f"hybridflow reads version {VERSION}",
            hint="Resume with the hybridflow that wrote it, or in another directory."
        )
    try:
        score = float(metadata["score"]) if metadata["score"] else None
        return _Listed(path, int(metadata["step"]), int(metadata["number"]), score, metadata.get("parts", ""))
    except (KeyError, ValueError):
        return None


def _checkpoint(one: _Listed, metadata: Mapping[str, str], arrays: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint, after converting it to the present version of the format."""
    fields = dict(metadata)
    for version in range(int(fields["version"]), VERSION):
        fields, arrays = UPGRADES[version](fields, arrays)
    device = current().device
    values = {
        name: make_tensor(array if lies_on_several(array) else place(array, device))
        for name, array in sorted(arrays.items())
    }
    return Checkpoint(one.step, MappingProxyType(values), json.loads(fields["state"]), one.score, one.path)


def _warn(path: Path, why: object) -> None:
    warnings.warn(FileWarning(f"checkpoint: {str(path)!r} is passed over: {why}"), stacklevel=4)


def _warn_of_untold(last: list[Written]) -> None:
    """Warn of a checkpoint that could not be written, when nobody can wait for it any longer."""
    for one in last:
        one.until_ended()
        if one.untold is not None:
            warnings.warn(FileWarning(str(one.untold)), stacklevel=1)


def _plain(value: Any, path: str) -> Any:
    """Return a state that JSON can hold: NumPy's numbers become Python's, and tuples become lists.

    Raises:
        ArgumentTypeError: a part has a type that JSON does not have.
    """
    if value is None or (isinstance(value, str | bool | int | float) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, Mapping):
        for key in cast("Mapping[Any, Any]", value):
            if not isinstance(key, str):
                raise ArgumentTypeError(f"checkpoint: a key of {path} is a {type(key).__name__}", got=repr(key)[:80],
                                        hint="JSON's keys are texts.")
        return {key: _plain(one, f"{path}.{key}") for key, one in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{path}.{number}") for number, one in enumerate(cast("list[Any]", value))]
    raise ArgumentTypeError(f"checkpoint: {path} is a {type(value).__name__}, which JSON cannot hold",
                            got=repr(value)[:80], hint="Arrays and Variables belong to the values.")
