"""``tf.summary``: summaries as fetches, and the files that TensorBoard reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hybridflow.compat.v1.functions import convert_to_tensor
from hybridflow.compat.v1.graph import Graph, GraphKeys, Tensor, get_default_graph
from hybridflow.compat.v1.variables import Variable
from hybridflow.summary import Writer, encoded


class Summary:
    """A summary of tensors; a run that fetches it returns bytes for `FileWriter.add_summary`."""

    def __init__(self, kind: str, name: str, tensor: Tensor | None, parts: Sequence[Summary] = ()) -> None:
        self.kind = kind
        self.name = name
        self._tensor = tensor
        self._parts = tuple(parts)

    def __repr__(self) -> str:
        return f"<Summary {self.kind} {self.name!r}>"

    def tensors(self) -> list[Tensor]:
        """Return the tensors that it shows."""
        tensors = [] if self._tensor is None else [self._tensor]
        return tensors + [tensor for part in self._parts for tensor in part.tensors()]

    def serialized(self, values: Sequence[Any]) -> bytes:
        """Return the summary of values of its tensors."""
        if self._tensor is not None:
            return encoded(self.kind, self.name, values[0])
        content, rest = b"", list(values)
        for part in self._parts:
            count = len(part.tensors())
            content += part.serialized(rest[:count])
            del rest[:count]
        return content


def _made(kind: str, name: str, value: Any, collections: Any) -> Summary:
    graph = get_default_graph()
    tensor = value.value() if isinstance(value, Variable) else convert_to_tensor(value)
    summary = Summary(kind, graph.unique_name(name), tensor)
    for key in collections or [GraphKeys.SUMMARIES]:
        graph.add_to_collection(key, summary)
    return summary


def scalar(name: str, tensor: Any, collections: Any = None) -> Summary:
    """Add a summary of a number."""
    return _made("scalar", name, tensor, collections)


def histogram(name: str, values: Any, collections: Any = None) -> Summary:
    """Add a summary of how values are distributed."""
    return _made("histogram", name, values, collections)


def merge(inputs: Sequence[Summary]) -> Summary:
    """Return several summaries as one."""
    return Summary("merge", "merge", None, inputs)


def merge_all(key: str = GraphKeys.SUMMARIES) -> Summary | None:
    """Return all summaries of the default graph as one; None if there are none."""
    summaries = get_default_graph().get_collection(key)
    return merge(summaries) if summaries else None


class FileWriter:
    """A writer of the files that TensorBoard reads.

    Args:
        logdir: the directory.
        graph: a graph to write at once.

    Raises:
        MissingPackageError: the `tensorboard` package is not installed.
    """

    def __init__(self, logdir: str | os.PathLike[str], graph: Graph | None = None) -> None:
        self._writer = Writer(logdir)
        if graph is not None:
            self.add_graph(graph)

    def add_graph(self, graph: Graph) -> None:
        """Write a graph."""
        self._writer.graph(graph.traced)

    def add_summary(self, summary: bytes, global_step: Any = 0) -> None:
        """Write what a run returned for a summary."""
        self._writer.add_summary(summary, int(global_step))

    def get_logdir(self) -> str:
        """Return the directory."""
        return self._writer.logdir

    def flush(self) -> None:
        """Write all pending data to the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Write all pending data to the disk and close the file."""
        self._writer.close()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
