"""`hf.export.load`: load the functions of an artifact. Loading imports none of the author's code and runs nothing."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast

import jax

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core import errors
from hybridflow.core.attrs import attr_key
from hybridflow.core.context import current
from hybridflow.core.dims import DimScope, substitute
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileFormatError,
    HybridflowError,
    ShapeError,
)
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import Op
from hybridflow.core.sources import INPUT
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, describe, new_tensor
from hybridflow.core.variable import Variable
from hybridflow.export import samples
from hybridflow.export.artifact import FORMAT, MANIFEST, PLAIN_ERRORS, RANDOM, RESERVED, SAMPLE, VERSION, WEIGHTS
from hybridflow.export.limits import Limits
from hybridflow.export.structure import checked, filled, fitting, taken_apart
from hybridflow.ir.builder import require
from hybridflow.ir.evaluate import bind_sizes, evaluate
from hybridflow.ir.graph import Graph, edges_of, input_node
from hybridflow.ir.parser import parse
from hybridflow.ir.printer import format_node
from hybridflow.ir.verify import verify
from hybridflow.nested.branches import COND
from hybridflow.nested.loops import WHILE
from hybridflow.nested.scans import SCAN
from hybridflow.ops.joining import stack
from hybridflow.ops.random import default_generator
from hybridflow.saving import reader, writer
from hybridflow.saving.format import shown
from hybridflow.saving.other_formats import other_kind
from hybridflow.saving.reader import PathLike, require_path
from hybridflow.saving.values import require_eager

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_HERE_ONLY = {"effect", "foreign"}
"""Traits of ops that only the program that traced them can run."""


_REMEMBERED = 10_000
"""The number of open sizes that are remembered to be within the limits."""

_STATE = TensorSpec((4,), "uint32")
"""The spec of the state of `hf.random`."""


def _not_pickled(what: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"pickle: {what} is not pickled",
                             hint="Send its file, and load that: hf.export.load(path).")


class Function:
    """A function of an artifact; it can be called, compiled, differentiated and compared like any other function.

    Attributes:
        name: its name.
        inputs: the specs of its input tensors, by name.
        outputs: the names of its results.
    """

    def __init__(
        self, name: str, graph: Graph, fields: Mapping[str, Any], weights: Sequence[Any], limits: Limits
    ) -> None:
        self.name = self.__name__ = name
        self._graph = graph
        self._fields = fields
        self._weights = weights
        self._limits = limits
        self._allowed: set[tuple[int, ...]] = set()  # the open sizes of earlier calls, which are within the limits
        specs = graph.input_specs[: len(fields["inputs"])]
        self.inputs = MappingProxyType(dict(zip(fields["inputs"], specs, strict=True)))
        self.outputs = tuple(fields["outputs"])

    def graph(self) -> Graph:
        """Return the graph; its inputs are the tensors, then the weights."""
        return self._graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result.

        Raises:
            ArgumentTypeError: the arguments have another structure.
            DTypeError: an argument has another dtype.
            ShapeError: an argument has another shape.
        """
        return filled(self._fields["result"], self._results(self._leaves(args, kwargs)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        weights = [copy.deepcopy(one, memo) for one in self._weights]
        return type(self)(self.name, self._graph, self._fields, weights, self._limits)

    def __reduce__(self) -> NoReturn:
        raise _not_pickled("a function of an artifact")

    def by_name(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        """Compute the results from tensors by name, and return them by name instead of in structures.

        Raises:
            ArgumentTypeError: a name is not that of an input, or an input is missing.
            DTypeError, ShapeError: as in a call.
        """
        self._require_names(tensors)
        return dict(zip(self.outputs, self._results([tensors[path] for path in self.inputs]), strict=True))

    def _require_names(self, tensors: Mapping[str, Any]) -> None:
        if {*tensors} != {*self.inputs}:
            wanted, got = [", ".join(names) or "nothing" for names in (self.inputs, tensors)]
            raise ArgumentTypeError(f"{self.name}: takes {wanted}", got=got)

    def given(self, tensors: Mapping[str, Any]) -> tuple[list[Tensor], Mapping[str, Any]]:
        """Return the values of the graph's inputs for tensors by name, and the open sizes.

        Raises:
            ArgumentTypeError, DTypeError, ShapeError: as `by_name`.
        """
        self._require_names(tensors)
        return self._values([tensors[path] for path in self.inputs])

    def named(self, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the results by name for the values of the graph's outputs, which are checked.

        Raises:
            Exception: the error of a check that does not hold.
        """
        return dict(zip(self.outputs, self._finished(outputs), strict=True))

    def require_sizes(self, tensors: Mapping[str, Any]) -> None:
        """Raise unless a call takes tensors of these sizes, by name, which have the right dtypes and numbers of axes.

        Raises:
            ShapeError: sizes that differ where they must not, or that it was not saved for.
            FileFormatError: a call would take more than the limits say.
        """
        if self._graph.dims.hints:
            self._sizes([*[tensors[path] for path in self.inputs], *self._given()])

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return bool(self._fields["random"])

    @property
    def raises(self) -> tuple[type[Exception], ...]:
        """The errors that its checks of values raise."""
        return tuple({_error_of(check) for check in self._fields["checks"]})

    def _results(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Compute the results from one value per input."""
        tensors, sizes = self._values(leaves)
        return self._finished(run(self._graph, tensors, sizes))

    def _values(self, leaves: Sequence[Any]) -> tuple[list[Tensor], Mapping[str, Any]]:
        tensors = [
            fitting(self.name, path, leaf, spec)
            for (path, spec), leaf in zip(self.inputs.items(), leaves, strict=True)
        ]
        tensors += [one.read() if isinstance(one, Variable) else one for one in self._given()]
        return tensors, self._sizes(tensors)

    def _finished(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Check the values of the graph's outputs, and return the results among them."""
        count = len(self.outputs)
        after_results = [*outputs[count:]]
        if self._fields["random"]:
            default_generator().state = after_results.pop(0)
        for flag, check in zip(_flags(after_results), self._fields["checks"], strict=True):
            require(flag, _error_of(check), f"{check['text']}\n  at {check['where']}")
        return [*outputs[:count]]

    def _given(self) -> Iterator[Any]:
        state = default_generator().named_variables()["state"]
        return (state if one is RANDOM else one for one in self._weights)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        names = self._fields["parameters"]
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or {*given, *kwargs} != {*names} or {*given} & {*kwargs}:
            raise ArgumentTypeError(
                f"{self.name}: takes {', '.join(names) or 'nothing'}",
                got=", ".join([*map(describe, args), *[f"{k}={describe(v)}" for k, v in kwargs.items()]])
            )
        given |= kwargs
        structures = zip(names, self._fields["arguments"], strict=True)
        leaves = [leaf for name, one in structures for leaf in taken_apart(one, given[name], name, self.name)]
        return [leaf for _, leaf in sorted(leaves, key=lambda pair: pair[0])]

    def _sizes(self, tensors: Sequence[Any]) -> Mapping[str, Any]:
        if not self._graph.dims.hints:
            return {}
        sizes = bind_sizes(self._graph, tensors)
        for guard in self._graph.dims.guards:
            if not guard.holds(sizes):
                raise ShapeError(f"{self.name}: was saved for sizes where {guard.sentence()}",
                                 got=", ".join([f"{name}={size}" for name, size in sizes.items()]),
                                 hint="Save it with a spec of these sizes.")
        numbers = tuple(sizes.values())
        if numbers not in self._allowed and all([type(size) is int for size in numbers]):
            self._limits.require(self.name, self._graph, sizes)
            if len(self._allowed) >= _REMEMBERED:
                self._allowed.clear()
            self._allowed.add(numbers)
        return sizes

    def __repr__(self) -> str:
        inputs = ", ".join([f"{path}: {spec}" for path, spec in self.inputs.items()])
        specs = self._graph.output_specs[: len(self.outputs)]
        results = ", ".join([f"{name}: {spec}" for name, spec in zip(self.outputs, specs, strict=True)])
        return f"{self.name}({inputs}) -> {results}"


class Artifact:
    """A loaded artifact, with its functions as attributes.

    Attributes:
        functions: the functions by name.
        metadata: the texts that were saved with them.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        weights: Mapping[str, Any],
        metadata: Mapping[str, str],
        recorded: Mapping[str, samples.Recorded],
    ) -> None:
        self.functions = MappingProxyType(dict(functions))
        self.metadata = MappingProxyType(dict(metadata))
        self._weights = weights
        self._samples = recorded

    def __getattr__(self, name: str) -> Any:
        functions = self.__dict__.get("functions", {})  # none while the artifact is being copied
        function = functions.get(name)
        if function is None:
            raise AttributeError(f"the artifact has no function {name!r}, but {', '.join(functions)}")
        return function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, if the artifact has one only.

        Raises:
            ArgumentError: it has several; call one by its name.
        """
        if len(self.functions) != 1:
            names = ", ".join(f"artifact.{name}" for name in self.functions)
            raise ArgumentError("artifact: it has several functions", got=names, hint="Call one by its name.")
        (function,) = self.functions.values()
        return function(*args, **kwargs)

    def __copy__(self) -> Artifact:
        return type(self)(self.functions, self._weights, self.metadata, self._samples)

    def __deepcopy__(self, memo: dict[int, Any]) -> Artifact:
        functions = {name: copy.deepcopy(function, memo) for name, function in self.functions.items()}
        weights = {path: copy.deepcopy(one, memo) for path, one in self._weights.items()}
        return type(self)(functions, weights, self.metadata, self._samples)

    def __reduce__(self) -> NoReturn:
        raise _not_pickled("an artifact")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def named_variables(self) -> dict[str, Variable]:
        """Return the weights that are Variables, by path."""
        return {path: one for path, one in self._weights.items() if isinstance(one, Variable)}

    def variables(self) -> list[Variable]:
        """Return the weights that are Variables."""
        return [*self.named_variables().values()]

    def sample(self, name: str) -> Mapping[str, Any] | None:
        """Return the arguments by name that a function was saved with as its sample; None if there are none."""
        return self._samples[name].inputs if name in self._samples else None

    def self_test(self) -> tuple[str, ...]:
        """Run the functions on the samples that they were saved with, eagerly and compiled.

        Returns:
            The names of the functions that have samples.

        Raises:
            CheckError: a result is not that of the sample: floats may differ by the square root of their dtype's
                epsilon, times the largest element, and everything else not at all.
            ArgumentError: there is no sample.
        """
        if not self._samples:
            raise ArgumentError("self_test: the artifact has no sample",
                                hint="Save it with sample=hf.export.Sample((x,), f(x)).")
        for name, sample in self._samples.items():
            samples.test(name, self.functions[name].by_name, sample)
        return tuple(self._samples)

    def __repr__(self) -> str:
        return "\n".join(["Artifact", *[f"  {one!r}" for one in self.functions.values()]])


@with_foreign_keywords
def load(path: PathLike, *, limits: Limits | None = None, copy: bool = False, digest: str | None = None) -> Artifact:
    """Load an artifact that `save` wrote.

    Loading runs nothing, imports none of the author's code, and writes nothing. Calling a function computes what its
    author wrote: a stranger's function may take long and need much memory, unless `limits` say how much.

    Args:
        path: the directory.
        limits: limits on what is read, and on what calls may take.
        copy: whether to read the weights into memory and compare their digest. Otherwise their file is mapped, which
            is only safe in a directory that nobody else writes to.
        digest: the sha256 of ``manifest.json`` in hexadecimal, from a trusted source. The digests inside the manifest
            only detect damage.

    Raises:
        FileError: a file cannot be read, is a link, or is not a regular file.
        FileFormatError: it is not an artifact, or of a version that this hybridflow does not know.

    Example: see `save`.
    """
    require_eager("export")
    require_path("export.load", path, "hf.export.load(path)")
    folder, limits_ = Path(path), limits or Limits()
    manifest = _manifest(folder, limits_, digest)
    try:
        fields, files = manifest["functions"], manifest["files"]
        expected = {MANIFEST, WEIGHTS, *[f"{name}.ir" for name in fields], *({SAMPLE} & {*files})}
        if {*files, MANIFEST} != expected:
            raise FileFormatError(f"it names the files {shown(sorted(files))}, not {shown(sorted(expected))}")
        texts = {name: _text(folder / f"{name}.ir", limits_, files[f"{name}.ir"]["sha256"]) for name in fields}
        weights = _weights(folder / WEIGHTS, manifest, limits_, copy)
        functions: dict[str, Function] = {}
        nodes = limits_.nodes
        for name, text in texts.items():
            graph = parse(text, nodes=nodes, tokens=limits_.tokens, depth=limits_.depth)
            _check(graph, manifest.get("operations", {}))
            nodes -= sum(1 for _ in graph.walk())
            limits_.require(name, graph)
            functions[name] = _function(name, graph, fields[name], weights, limits_)
        recorded = _samples(folder / SAMPLE, files, functions, limits_, copy) if SAMPLE in files else {}
        return Artifact(functions, weights, manifest["metadata"], recorded)
    except HybridflowError as error:
        if isinstance(error, errors.FileError):
            raise
        raise FileFormatError(f"export: {shown(str(folder))}: {error}"[:1900]) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileFormatError(
            f"export: {shown(str(folder))}: {MANIFEST} lacks an entry or has a wrong one: {shown(repr(error))}"
        ) from None


def _manifest(folder: Path, limits: Limits, digest: str | None) -> dict[str, Any]:
    try:
        content = _read(folder / MANIFEST, limits.text)
    except errors.FileError as error:
        if not isinstance(error, errors.FileMissingError) and os.path.isdir(folder):
            raise  # the manifest is there, and is no regular file
        raise other_kind(error, folder, "export", "hf.export.load", "artifact") from None
    if digest is not None and hashlib.sha256(content).hexdigest() != digest.lower():
        raise FileFormatError(f"export: {str(folder)!r} is not the artifact with that digest", got=digest[:80])
    try:
        manifest = json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"export: {shown(str(folder))}: {MANIFEST} is no JSON: {shown(str(error))}") from None
    if not isinstance(manifest, dict) or cast("dict[str, Any]", manifest).get("format") != FORMAT:
        raise FileFormatError(f"export: {shown(str(folder))} is no artifact of hybridflow")
    version = manifest.get("version")
    if version != VERSION:
        raise FileFormatError(
            f"export: {shown(str(folder))} is of version {shown(version)} of the format, and this hybridflow "
            f"reads version {VERSION}", hint="Load it with the hybridflow that wrote it, and save it again."
        )
    return cast("dict[str, Any]", manifest)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key occurs twice")
    return mapping


def _read(path: Path, limit: int) -> bytes:
    with reader.opened(path, "export", follow=False) as handle, open(handle, "rb", closefd=False) as file:
        content = file.read(min(limit, os.fstat(handle).st_size) + 1)  # room for the whole limit costs memory
    if len(content) > limit:
        raise FileFormatError(f"export: {shown(str(path))} has more than {limit} bytes")
    return content


def _text(path: Path, limits: Limits, digest: str) -> str:
    content = _read(path, limits.text)
    if hashlib.sha256(content).hexdigest() != digest:
        raise FileFormatError(f"{path.name} has another digest")
    return content.decode()


def _arrays(path: Path, files: Mapping[str, Any], limits: Limits, copy: bool) -> dict[str, Any]:
    """Return the arrays of a file, whose digest is compared if they are read into memory."""
    size = path.lstat().st_size if path.exists() else 0
    if size > limits.bytes:
        raise FileFormatError(f"{path.name} has {size} bytes, more than {limits.bytes}")
    arrays, metadata = reader.read(path, what="export", copy=copy, follow=False)
    if copy and writer.digest_of(arrays, metadata) != files[path.name]["sha256"]:
        raise FileFormatError(f"{path.name} has another digest")
    return dict(arrays)


def _samples(
    path: Path, files: Mapping[str, Any], functions: Mapping[str, Function], limits: Limits, copy: bool
) -> dict[str, samples.Recorded]:
    return samples.recorded(_arrays(path, files, limits, copy), functions)


def _weights(path: Path, manifest: dict[str, Any], limits: Limits, copy: bool) -> dict[str, Any]:
    arrays = _arrays(path, manifest["files"], limits, copy)
    trained, leaves = {*manifest["trainable"]}, {*manifest["leaves"]}
    if absent := (trained | leaves) - {*arrays}:
        raise FileFormatError(f"weights that are trainable are not there: {shown(sorted(absent))}")
    weights: dict[str, Any] = {}
    for name, array in arrays.items():
        weights[name] = Variable(new_tensor(array), name=name, trainable=name in trained)
        if name in leaves:
            weights[name].require_gradient()
    return weights


def _check(graph: Graph, versions: Mapping[str, Any]) -> None:
    """Upgrade the operations of a parsed graph, and check that it is valid for an artifact.

    Args:
        graph: the graph.
        versions: the versions of its operations by name; an operation without one is of version 1.
    """
    for node in graph.walk():
        _upgrade(node, versions.get(node.op.name, 1))
        here_only = _HERE_ONLY & node.op.traits
        if here_only or node.op is INPUT:
            raise FileFormatError(f"{node.op.name} is an operation that no artifact has")
    try:
        verify(graph)
    except HybridflowError:
        raise
    except Exception as error:  # an op's rule met attributes that no trace produces
        raise FileFormatError(f"an operation has attributes that it cannot have: {shown(repr(error))}") from error


def _upgrade(node: Node, version: Any) -> None:
    """Make a node that was written by another version of its operation one of this version.

    Raises:
        FileFormatError: a version that this hybridflow does not know.
    """
    newest = node.op.version
    if type(version) is not int or not 1 <= version <= newest:
        raise FileFormatError(
            f"{node.op.name} is of version {shown(version)}, and this hybridflow knows it up to version {newest}",
            hint="Load it with the hybridflow that wrote it, or a newer one."
        )
    for upgrade in node.op.upgrades[version - 1 :]:
        node.attrs = upgrade(node.attrs)


def _function(
    name: str, graph: Graph, fields: Mapping[str, Any], weights: Mapping[str, Any], limits: Limits
) -> Function:
    if _NAME.fullmatch(name) is None or name in RESERVED:
        raise FileFormatError(f"a function cannot be called {shown(name)}")
    inputs, outputs, paths, checks = (fields[key] for key in ("inputs", "outputs", "weights", "checks"))
    parameters, arguments = fields["parameters"], fields["arguments"]
    for texts in (inputs, outputs, parameters):
        if not isinstance(texts, list) or not all([isinstance(one, str) for one in cast("list[Any]", texts)]):
            raise FileFormatError(f"{name}: its names are no texts")
        if len({*texts}) != len(cast("list[Any]", texts)):
            raise FileFormatError(f"{name}: a name occurs twice")
    checked({"list": arguments}, len(inputs))
    checked(fields["result"], len(outputs))
    if len(parameters) != len(arguments) or len(inputs) + len(paths) != len(graph.inputs):
        raise FileFormatError(f"{name}: its inputs are not those of its graph")
    after = [_STATE] if fields["random"] else []
    after += [TensorSpec(() if len(checks) == 1 else (len(checks),), "bool")] if checks else []
    if not outputs or len(graph.outputs) != len(outputs) + len(after) or [*graph.output_specs[len(outputs) :]] != after:
        raise FileFormatError(f"{name}: its outputs are not those of its graph")
    for check in checks:
        _error_of(check)
    specs = graph.input_specs[len(inputs) :]
    captured: list[Any] = [RANDOM if path == RANDOM else weights[path] for path in paths]
    for path, one, spec in zip(paths, captured, specs, strict=True):
        own = _STATE if one is RANDOM else one.spec
        if own != spec:
            raise FileFormatError(f"{name}: {shown(path)} is {own} and {spec} in the graph")
    symbols = {size for spec in graph.input_specs[: len(inputs)] for size in map(str, spec.shape)}
    if not {*graph.dims.hints} <= symbols:
        raise FileFormatError(f"{name}: a size is not that of an input")
    return Function(name, graph, fields, captured, limits)


def _flags(outputs: list[Tensor]) -> list[Tensor]:
    """Return the conditions of the checks one by one; a graph returns several in a single tensor."""
    if not outputs:
        return []
    (flags,) = outputs
    return [flags] if flags.ndim == 0 else [flags[number] for number in range(flags.shape[0])]


def _error_of(check: Mapping[str, Any]) -> type[Exception]:
    classes = {one.__name__: one for one in PLAIN_ERRORS}
    kind = classes.get(check["error"]) or vars(errors).get(check["error"])
    if not isinstance(kind, type) or not issubclass(kind, (HybridflowError, *PLAIN_ERRORS)):
        raise FileFormatError(f"it raises {shown(check['error'])}, which hybridflow does not know")
    if not isinstance(check["text"], str) or not isinstance(check["where"], str):
        raise FileFormatError(f"a check has no text: {shown(check)}")
    return cast("type[Exception]", kind)


# -- run a loaded graph on tensors, node by node: eagerly, in a trace, or under a tape --------------------------------


def run(graph: Graph, tensors: Sequence[Tensor], sizes: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Compute a graph's outputs.

    Args:
        graph: the graph.
        tensors: one per input; in a trace, their sizes may be open.
        sizes: the size of each of the graph's symbols, as `hybridflow.ir.evaluate.bind_sizes` returns them.
    """
    tracer = cast(Any, current().tracer)
    scope = DimScope() if tracer is None else tracer.dims
    tried: set[Any] = set()

    def rebind(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
        with _hybridflows_errors(lambda: format_node(node)):
            sized = {name: _sized_in(value, sizes, scope) for name, value in attrs.items()}
            if tracer is None:
                step = None if attrs.get("residuals") else _STEP_BY_STEP.get(node.op)
                computed = None if step is None else step(inputs, node.attrs, sizes)
                if computed is None:
                    return bind(node.op, tuple(inputs), sized)
                return computed[0] if len(computed) == 1 else computed
            outer, tracer.place = tracer.place, node.where
            try:
                _try_lowering(node.op, inputs, sized, tried)
                return bind(node.op, tuple(inputs), sized)
            finally:
                tracer.place = outer

    with _hybridflows_errors(lambda: graph.name):
        return evaluate(graph, tensors, rebind, sizes=sizes)


def _try_lowering(op: Op, inputs: list[Any], attrs: dict[str, Any], tried: set[Any]) -> None:
    """Lower an operation whose sizes are known, without running it: JAX rejects some attributes that NumPy takes.

    Args:
        op, inputs, attrs: the operation.
        tried: the operations that were lowered already; this one is added.
    """
    specs = tuple([one.spec for one in inputs])
    key = op.name, attr_key(tuple(sorted(attrs.items()))), specs
    if key in tried or op.has("nested") or not all([type(size) is int for one in specs for size in one.shape]):
        return
    tried.add(key)
    with enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in specs]
        jax.eval_shape(lambda *xs: op.lower(*xs, **attrs), *shapes)


@contextmanager
def _hybridflows_errors(what: Callable[[], str]) -> Generator[None]:
    """Raise `FileFormatError` for errors of Python and JAX in a ``with`` block.

    A traced graph raises none of these. A changed artifact may: it can have attributes that no trace makes and that
    shape rules do not check.
    """
    try:
        yield
    except HybridflowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"a graph of an artifact cannot run: {shown(repr(error))}", got=shown(what())) from error


def _branch(inputs: list[Any], attrs: dict[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Run one of two graphs."""
    return run(attrs["true" if bool(inputs[0]) else "false"], inputs[1:], sizes)


def _loop(inputs: list[Any], attrs: dict[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Run a loop's body graph while its condition graph returns true."""
    if attrs["bound"] is not None:
        return None
    carry, rest = inputs[: attrs["carry"]], inputs[attrs["carry"] :]
    while bool(run(attrs["cond"], [*carry, *rest], sizes)[0]):
        carry = [*run(attrs["body"], [*carry, *rest], sizes)]
    return tuple(carry)


def _scan(inputs: list[Any], attrs: dict[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Run a scan's body graph on each row of its sequences."""
    count, end = attrs["carry"], attrs["carry"] + attrs["sequences"]
    length = substitute(attrs["length"], sizes)
    if attrs.get("counted") or length == 0:
        return None
    carry, sequences, rest = inputs[:count], inputs[count:end], inputs[end:]
    rows: list[tuple[Tensor, ...]] = []
    for number in reversed(range(length)) if attrs["reverse"] else range(length):
        results = run(attrs["body"], [*carry, *[one[number] for one in sequences], *rest], sizes)
        carry = [*results[:count]]
        rows.append(results[count:])
    columns = zip(*(rows[::-1] if attrs["reverse"] else rows), strict=True)
    return (*carry, *[stack(list(column)) for column in columns])


_STEP_BY_STEP = {COND: _branch, WHILE: _loop, SCAN: _scan}
"""Functions that run ops with nested graphs step by step, as eager code runs the original functions.

Each returns None for a case that it does not handle; that case runs as one op.
"""


def sized(graph: Graph, sizes: Mapping[str, Any], scope: DimScope) -> Graph:
    """Return a graph with its symbols replaced by the given sizes, which may be symbols of another scope."""
    moved: dict[Edge, Edge] = {}
    inputs: list[Node] = []
    for node in graph.inputs:
        copy = input_node(_spec(node.spec(), sizes), str(node.attrs["name"]), where=node.where)
        moved[node, 0] = (copy, 0)
        inputs.append(copy)
    nodes: list[Node] = []
    for node in graph.nodes:
        attrs = {name: _sized_in(substitute(value, sizes), sizes, scope) for name, value in node.attrs.items()}
        outputs = tuple([_spec(spec, sizes) for spec in node.specs])
        copy = make_node(node.op, tuple([moved[edge] for edge in edges_of(node)]), attrs, outputs, where=node.where)
        moved.update({(node, index): (copy, index) for index in range(len(outputs))})
        nodes.append(copy)
    return Graph(graph.name, tuple(inputs), tuple(nodes), tuple([moved[edge] for edge in graph.outputs]), scope)


def _sized_in(value: Any, sizes: Mapping[str, Any], scope: DimScope) -> Any:
    """Return an attribute's value with `sized` applied to every graph in it."""
    if isinstance(value, Graph):
        return sized(value, sizes, scope)
    if type(value) is tuple:
        return tuple([_sized_in(item, sizes, scope) for item in cast("tuple[Any, ...]", value)])
    return value


def _spec(spec: TensorSpec, sizes: Mapping[str, Any]) -> TensorSpec:
    return make_spec(tuple([substitute(size, sizes) for size in spec.shape]), spec.dtype)
