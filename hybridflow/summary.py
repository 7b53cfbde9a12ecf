"""`hf.summary`: write scalars, histograms, images, texts and graphs for TensorBoard, from eager and compiled code."""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from typing import Any, Self, cast

import numpy as np

from hybridflow.core.attached import attached as _attached
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.ir.graph import Graph
from hybridflow.ops.effects import pure_callback
from hybridflow.pictures.graph_def import graph_def_of
from hybridflow.pictures.tensorboard import tensorboard_module
from hybridflow.tracing.function import CompiledFunction


class Writer:
    """A writer of TensorBoard event files.

    Every method also works in compiled functions: it writes at every call, in program order with other effects.
    XLA calls back into Python for each write. Hence the compiled function is not stored on disk, and the Variables
    that it assigns are copied instead of reused. Write in every hundredth step rather than in every one.

    Args:
        logdir: the directory; created if it does not exist.
        flush_seconds: the longest time, in seconds, before written data goes to the disk.

    Raises:
        MissingPackageError: the `tensorboard` package is not installed.

    Example:
        >>> import tempfile
        >>> import hybridflow as hf
        >>> with tempfile.TemporaryDirectory() as logdir, hf.summary.Writer(logdir) as writer:
        ...     @hf.compile
        ...     def step(x, number):
        ...         loss = hf.mean(x * x)
        ...         writer.scalar("loss", loss, number)
        ...         return loss
        ...     _ = step(hf.asarray([1.0, 2.0]), hf.asarray(0))
    """

    def __init__(self, logdir: str | os.PathLike[str], *, flush_seconds: float = 120.0) -> None:
        module = tensorboard_module("summary.writer.event_file_writer", "summary.Writer")
        self.logdir = os.fspath(logdir)
        self._lock = threading.Lock()
        self._file: Any = module.EventFileWriter(self.logdir, flush_secs=flush_seconds)

    # -- kinds of summaries -----------------------------------------------------------------------------------

    def scalar(self, name: str, value: Any, step: Any) -> None:
        """Write a number.

        Args:
            name: its name; TensorBoard shows ``a/b`` in group a.
            value: a real number, or a tensor with one element.
            step: an integer, or an integer tensor with one element.

        Raises:
            ShapeError: the tensor does not have exactly one element.
        """
        self._write("scalar", name, value, step)

    def histogram(self, name: str, values: Any, step: Any, *, buckets: int = 30) -> None:
        """Write how values are distributed. Values that are not finite are left out; the description counts them.

        Args:
            name, step: as `scalar` takes them.
            values: real numbers of any shape.
            buckets: the number of buckets, all of equal width.

        Raises:
            ArgumentError: fewer than one bucket.
        """
        if buckets < 1:
            raise ArgumentError(f"summary.histogram: buckets={buckets}, which is less than 1")
        self._write("histogram", name, values, step, buckets)

    def image(self, name: str, image: Any, step: Any) -> None:
        """Write a picture.

        Args:
            name, step: as `scalar` takes them.
            image: an array of shape (height, width) or (height, width, channels), with 1 (grey), 3 (red, green, blue)
                or 4 channels (with opacity). It holds uint8, or floats that are clipped to 0 to 1.

        Raises:
            ShapeError: another shape.
            ArgumentTypeError: another dtype.
        """
        self._write("image", name, image, step)

    def text(self, name: str, text: str, step: Any) -> None:
        """Write a text, which is shown as Markdown.

        Args:
            name, step: as `scalar` takes them.
            text: the text; a compiled function writes the text that it was traced with.
        """
        self._write("text", name, str(text), step)

    def graph(self, graph: Graph | CompiledFunction[Any, Any], *args: Any, **kwargs: Any) -> None:
        """Write a graph with its name scopes and nested graphs.

        Args:
            graph: a graph; or a compiled function, whose graph for a call with `args` and `kwargs` is written.
            *args, **kwargs: the arguments of that call.

        Raises:
            ArgumentTypeError: something else.
        """
        if isinstance(graph, CompiledFunction):
            graph = graph.graph(*args, **kwargs)
        elif not isinstance(cast(Any, graph), Graph) or args or kwargs:
            raise ArgumentTypeError(f"summary.graph: {type(graph).__name__} is not a graph",
                                    hint="Pass fn.graph(*args), or a compiled function and the arguments of a call.")
        event = tensorboard_module("event", "summary.graph").Event
        self._add(event(graph_def=graph_def_of(graph).SerializeToString()))

    def add_summary(self, summary: bytes, step: int) -> None:
        """Write summaries that `encoded` made, outside of compiled functions.

        Args:
            summary: their bytes; those of several summaries may be joined.
            step: an integer.
        """
        made = tensorboard_module("summary", "summary.add_summary").Summary.FromString(summary)
        self._add(_event(made, int(step)))

    # -- the file ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all pending data to the disk."""
        self._open().flush()

    def close(self) -> None:
        """Write all pending data to the disk and close the file; closing twice is harmless."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        file = self._file
        if file is None:
            raise ArgumentError(f"summary.Writer: {self.logdir!r} was closed",
                                hint="Write before close(), or make a Writer.")
        return file

    def _write(self, kind: str, name: str, value: Any, step: Any, *options: Any) -> None:
        self._open()
        make = _KINDS[kind]

        def write(value: Any, step: Any) -> tuple[()]:
            number = np.asarray(step)
            if number.size != 1 or number.dtype.kind not in "iu":
                raise ArgumentTypeError(f"summary.{kind}: the step of {name!r} must be an integer",
                                        got=f"{number!r:.80}")
            self._add(_event(make(name, value, *options), int(number.reshape(()))))
            return ()

        pure_callback(write, (), value, step)

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._open().add_event(event)


def _event(summary: Any, step: int) -> Any:
    return tensorboard_module("event", "summary").Event(step=step, summary=summary)


# -- kinds --------------------------------------------------------------------------------------------------------


def _reals(kind: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "cOUS":
        raise ArgumentTypeError(f"summary.{kind}: {name!r} must be real numbers", got=f"{array.dtype}{array.shape}")
    return array.astype(np.float64)


def _scalar(name: str, value: Any) -> Any:
    array = _reals("scalar", name, value)
    if array.size != 1:
        raise ShapeError(f"summary.scalar: {name!r} must have one element", got=f"shape {array.shape}",
                         hint="Reduce it, with hf.mean for example, or write a histogram.")
    return tensorboard_module("plugins.scalar.summary_v2", "summary.scalar").scalar_pb(name, array.reshape(()))


def _histogram(name: str, values: Any, buckets: int) -> Any:
    array = _reals("histogram", name, values).ravel()
    finite = array[np.isfinite(array)]
    missing = array.size - finite.size
    note = f"{missing} of {array.size} values are not finite and are left out" if missing else None
    module = tensorboard_module("plugins.histogram.summary_v2", "summary.histogram")
    return module.histogram_pb(name, finite, buckets=buckets, description=note)


def _image(name: str, image: Any) -> Any:
    array = np.asarray(image)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        raise ShapeError(f"summary.image: {name!r} must have shape (height, width) or (height, width, 1, 3 or 4)",
                         got=f"shape {array.shape}", hint="Write one image at a time, channels last.")
    if array.dtype != np.uint8 and array.dtype.kind not in "fV":
        raise ArgumentTypeError(f"summary.image: {name!r} must be uint8, or floats from 0 to 1", got=str(array.dtype))
    if array.dtype != np.uint8:
        array = np.round(np.clip(np.nan_to_num(array.astype(np.float64)), 0.0, 1.0) * 255.0).astype(np.uint8)
    if array.ndim == 2:
        array = array[:, :, None]
    height, width, channels = array.shape
    summary = tensorboard_module("summary", "summary.image").Summary
    shown = summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=_png(array))
    return summary(value=[summary.Value(tag=name, image=shown)])


def _text(name: str, text: str) -> Any:
    return tensorboard_module("plugins.text.summary_v2", "summary.text").text_pb(name, text)


_KINDS = {"scalar": _scalar, "histogram": _histogram, "image": _image, "text": _text}


def encoded(kind: str, name: str, value: Any) -> bytes:
    """Return a summary in the form in which TensorBoard's files have it; `Writer.add_summary` writes it.

    Args:
        kind: ``"scalar"``, ``"histogram"``, ``"image"`` or ``"text"``.
        name, value: as the method of `Writer` with that name takes them.

    Raises:
        MissingPackageError: the `tensorboard` package is not installed.
    """
    options = (30,) if kind == "histogram" else ()
    return _KINDS[kind](name, value, *options).SerializeToString()


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return pixels of shape (height, width, channels) as a PNG file (ISO/IEC 15948)."""
    height, width, channels = pixels.shape
    colour = {1: 0, 3: 2, 4: 6}[channels]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * channels)], axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes())),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


__all__ = ["Writer", "encoded"]
_attached("name_module")("hf.summary", __name__)
