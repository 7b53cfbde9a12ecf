"""`hf.save` and `hf.load`: values in files that other packages can read too, and that contain no code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from hybridflow.core.assignments import assign_all
from hybridflow.core.attached import attached
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileError,
    FileFormatError,
)
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.saving import parts, reader, writer
from hybridflow.saving.checkpoints import FORMAT as CHECKPOINT
from hybridflow.saving.other_formats import other_kind
from hybridflow.saving.reader import PathLike, require_path
from hybridflow.saving.values import found_in, on_host, require_eager, snapshot_of, variables_of

RANDOM = "random.state"
"""The path of the state of `hf.random`'s default generator in a checkpoint of `hf.train.Run`."""


@with_foreign_keywords
def save(
    path: PathLike, values: Any, *, metadata: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
    """Save values in a safetensors file.

    The same values make the same file. The file is written whole or not at all, and it is on the disk when this
    returns.

    Args:
        path: the file.
        values: a module, an optimizer, or a mapping of arrays; or mappings and lists of these. Their keys make paths
            such as ``"model.0.weight"``.
        metadata: texts by name, which are saved with the values.
        overwrite: whether to replace an existing file.

    Raises:
        FileThereError: the file exists, and `overwrite` is false.
        FileError: the file cannot be written. An existing file is unchanged.
        DTypeError: a value is complex128, which these files cannot hold.
        ArgumentError: the sizes of a module are not known yet, or two values have the same path.
        ArgumentTypeError: a value has no arrays, or the path does not come first.

    Example:
        >>> import hybridflow as hf
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "layer.safetensors")
        >>> layer = hf.nn.Linear(3, 2)
        >>> hf.save(path, layer, metadata={"from": "an example"})
        >>> values = hf.load(path)
        >>> values["weight"].shape, values.metadata["from"]
        ((2, 3), 'an example')
        >>> other = hf.nn.Linear(3, 2)
        >>> _ = hf.load(path, into=other)
        >>> bool(hf.all(other.weight == layer.weight))
        True
        >>> del values; folder.cleanup()

    Reference:
        The format: https://github.com/huggingface/safetensors
    """
    require_path("save", path, "hf.save(path, values)")
    texts = texts_of(metadata or {}, "save")
    values_ = found_in(values, "save").values
    if not overwrite and os.path.lexists(path):  # an early check; `write` checks again when the file gets its name
        raise writer.there("save", path)
    raw = snapshot_of(values_, "save", copy=False)
    writer.check(raw, "save")
    arrays = {name: on_host(one) for name, one in raw.items()}
    parts.once("save", lambda: writer.write(path, arrays, texts, what="save", replace=overwrite))


def texts_of(metadata: Any, what: str) -> Mapping[str, str]:
    """Return metadata, checked to be a mapping from texts to texts."""
    if not isinstance(metadata, Mapping) or not all([
        isinstance(text, str) and isinstance(name, str) for name, text in cast("Mapping[Any, Any]", metadata).items()
    ]):
        raise ArgumentTypeError(f"{what}: metadata is a mapping from texts to texts", got=repr(metadata)[:120],
                                hint="Write numbers as texts, or as arrays among the values.")
    for text in (one for pair in cast("Mapping[str, str]", metadata).items() for one in pair):
        if not writer.is_text(text):
            raise ArgumentError(f"{what}: {text!r} in metadata cannot be a text in a file")
    return cast("Mapping[str, str]", metadata)


def _taken(values: Values, known: Mapping[str, Variable]) -> Mapping[str, Tensor]:
    """Return the values to assign: of a run's checkpoint, the part that is asked for, and not the random state else."""
    if values.metadata.get("format") != CHECKPOINT or RANDOM in known:
        return values
    if not known.keys() & values.keys():
        for part in _PARTS:
            inside = {path.removeprefix(part): one for path, one in values.items() if path.startswith(part)}
            if known.keys() & inside.keys():
                return inside
    return {path: one for path, one in values.items() if path != RANDOM}


_PARTS = ("model.", "optimizer.", "metrics.", "loss_scale.", "variables.")
"""How the paths in a checkpoint of `hf.train.Run` begin, by its arguments."""


def _read(path: PathLike, copy: bool) -> reader.Contents:
    try:
        return reader.read(path, copy=copy)
    except (FileError, FileFormatError) as error:
        raise other_kind(error, path, "load", "hf.load", "safetensors file") from None


class Values(dict[str, Tensor]):
    """The result of `load`: tensors by path.

    Attributes:
        metadata: the texts that were saved with them.
        missing: the paths of the Variables that got no value, as `strict=False` allows.
        extra: the paths of the values that no Variable got, as `strict=False` allows.
    """

    metadata: Mapping[str, str]
    missing: Sequence[str] = ()
    extra: Sequence[str] = ()


@with_foreign_keywords
def load(
    path: PathLike, into: Any = None, *, strict: bool = True, mapping: Any = None, copy: bool = False
) -> Values:
    """Load values from a safetensors file that `save` or another package wrote.

    Args:
        path: the file.
        into: a module, an optimizer, or a structure of Variables. All of its Variables get values, or none of them if
            a value does not fit.
        strict: whether every Variable must get a value, and every value must have a Variable. If not, ``.missing``
            and ``.extra`` of the result say what was left out, and one value at least must have a Variable. Shapes and
            dtypes must always fit. From a checkpoint of `hf.train.Run`, a model takes the model's values, and an
            optimizer the optimizer's; the random state is for whoever asks for it.
        mapping: how to rename the file's paths. It is a dict ``{"theirs": "ours"}`` of prefixes of paths, where None
            for ours drops the values; or a function from path to path; or ``"torch"`` or ``"keras"``, which converts
            the values of layers that PyTorch or Keras stores in other shapes; or a list of these.
        copy: whether to read the file into memory. If not, it is mapped into memory, and its parts are read on first
            use. Using the values never changes the file. Nobody may change the file in place meanwhile; replacing it,
            as `save` does, is safe.

    Returns:
        The tensors by path; ``.metadata`` has the texts that were saved with them. The numbers of float8 tensors, as
        other packages write them, are float32.

    Raises:
        TraceError: this is called inside a compiled function.
        FileError: the file cannot be read, or is no regular file; `FileMissingError` if it does not exist.
        FileFormatError: the file does not follow the format; the error says what a folder or a file of NumPy, PyTorch
            or Keras is, and what reads it.
        ArgumentError: values do not fit; the error names all of them.

    Example: see `save`.
    """
    require_eager("load")
    require_path("load", path, "hf.load(path, into=model)")
    target = None if into is None else found_in(into, "load")
    known = None if target is None else variables_of(target.values, "load")
    arrays, metadata = _read(path, copy)
    modules = {} if target is None else target.modules
    if mapping is not None:
        arrays = attached("renamed")(arrays, mapping, modules)
    device = current().device
    values = Values({name: make_tensor(place(arrays[name], device)) for name in sorted(arrays)})
    values.metadata = MappingProxyType(dict(metadata))
    if known is not None:
        taken = _taken(values, known)
        assign_all(known, taken, what="load", strict=strict, hint=attached("step_for")(arrays, modules))
        values.missing = [path for path in known if path not in taken]
        values.extra = [path for path in taken if path not in known]
    return values
