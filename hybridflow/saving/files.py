"""`hf.save` and `hf.load`: values in files that other packages read too, and that run nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from hybridflow.core.assignments import assign_all
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.saving import reader, writer
from hybridflow.saving.reader import PathLike
from hybridflow.saving.values import found_in, on_host, require_eager, snapshot_of, variables_of


def save(
    path: PathLike, values: Any, *, metadata: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
    """Save values in a safetensors file.

    The same values make the same file. It is there whole or not at all, and on the disk when this returns.

    Args:
        path: the file.
        values: a module, an optimizer, or a mapping of arrays; mappings and lists of all these, whose keys make paths
            such as ``"model.0.weight"``.
        metadata: texts by name, which are kept with them.
        overwrite: whether a file that is there is replaced.

    Raises:
        FileThereError: a file of that name is there.
        FileError: the file cannot be written. The one that was there is as it was.
        DTypeError: complex128, which these files cannot hold.
        ArgumentError: a module whose sizes are not known yet, or two values with one path.
        ArgumentTypeError: what has no arrays.

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
    texts = texts_of(metadata or {}, "save")
    values_ = found_in(values, "save").values
    if not overwrite and os.path.lexists(path):  # seen again when the file gets its name, but this costs nothing
        raise writer.there("save", path)
    raw = snapshot_of(values_, "save", copy=False)
    writer.check(raw, "save")
    arrays = {name: on_host(one) for name, one in raw.items()}
    writer.write(path, arrays, texts, what="save", replace=overwrite)


def texts_of(metadata: Any, what: str) -> Mapping[str, str]:
    """Return metadata, checked to be texts by name."""
    if not isinstance(metadata, Mapping) or not all([
        isinstance(text, str) and isinstance(name, str) for name, text in cast("Mapping[Any, Any]", metadata).items()
    ]):  # fmt: skip
        raise ArgumentTypeError(
            message(f"{what}: metadata is a mapping from texts to texts", got=repr(metadata)[:120],
                    hint="Write numbers as texts, or as arrays among the values.")
        )  # fmt: skip
    for text in (one for pair in cast("Mapping[str, str]", metadata).items() for one in pair):
        if not writer.is_text(text):
            raise ArgumentError(message(f"{what}: {text!r} in metadata cannot be a text in a file"))
    return cast("Mapping[str, str]", metadata)


class Values(dict[str, Tensor]):
    """What `load` returns: tensors by path.

    Attributes:
        metadata: the texts that the file has besides.
    """

    metadata: Mapping[str, str]


def load(
    path: PathLike, into: Any = None, *, strict: bool = True, mapping: Any = None, copy: bool = False
) -> Values:
    """Load values from a safetensors file, by `save` or by another package.

    Args:
        path: the file.
        into: a module, an optimizer, or a structure of Variables, which get the values: all of them, or, if something
            does not fit, none.
        strict: whether each Variable must get a value, and no value be left over. Shapes and dtypes always must fit.
        mapping: which paths the values have here: ``{"theirs": "ours"}`` with the beginnings of paths, None in place
            of ours leaving them out; or a function from path to path; or ``"torch"`` or ``"keras"``, for what layers of
            PyTorch and Keras have in other shapes than ours; or a list of these.
        copy: whether the file is read into memory. If not, it is mapped: what is used of it is read when it is
            used. Nothing that is done with the values changes the file; but the file must not be changed in place
            meanwhile, though it may be replaced, as `save` does.

    Returns:
        The tensors by path, and in ``.metadata`` what the file has besides.

    Raises:
        TraceError: inside a compiled function.
        FileError: the file cannot be read, or is no regular file; `FileMissingError` if it is not there.
        FileFormatError: it is not as the format says.
        ArgumentError: values do not fit; the error names all of them.

    Example: see `save`.
    """
    require_eager("load")
    target = None if into is None else found_in(into, "load")
    known = None if target is None else variables_of(target.values, "load")
    arrays, metadata = reader.read(path, copy=copy)
    if mapping is not None:
        from hybridflow.saving.foreign import renamed  # which takes all layers along

        arrays = renamed(arrays, mapping, {} if target is None else target.modules)
    device = current().device
    values = Values({name: make_tensor(place(arrays[name], device)) for name in sorted(arrays)})
    values.metadata = MappingProxyType(dict(metadata))
    if known is not None:
        assign_all(known, values, what="load", strict=strict)
    return values
