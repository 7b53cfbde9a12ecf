"""`hf.export.save`: write functions to a directory, with their graphs as text and their weights."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.backend.files import sync_directory, whole_file
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ExportError, FileError, HybridflowError
from hybridflow.core.functions import as_traced, is_whole
from hybridflow.core.node import Edge, Node, format_where, short_where
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, new_tensor
from hybridflow.core.variable import Variable
from hybridflow.export.samples import Sample, arrays_of, by_function
from hybridflow.export.structure import structure_of
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph, input_node, reading_from
from hybridflow.ir.parser import parse
from hybridflow.ir.printer import format_node, print_graph
from hybridflow.nn.state import set_mode
from hybridflow.ops.random import default_generator
from hybridflow.passes.dead_code import dead_code
from hybridflow.passes.dead_residuals import dead_residuals
from hybridflow.saving import writer
from hybridflow.saving.files import texts_of
from hybridflow.saving.parts import once
from hybridflow.saving.reader import PathLike, file_error, require_path
from hybridflow.saving.values import on_host, require_eager, snapshot_of
from hybridflow.tracing.calls import output_tensor
from hybridflow.tracing.costing import Specs
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.trace import Trace

FORMAT = "hybridflow artifact"
VERSION = 1
MANIFEST, WEIGHTS, SAMPLE = "manifest.json", "weights.safetensors", "sample.safetensors"
RANDOM = "random state"
"""The marker that stands in the list of weights for the state of the reader's `hf.random`."""
_LARGE = 256
"""The largest constant, in bytes, that the text holds; larger ones become weights."""


class Function(NamedTuple):
    """A function in the form in which it is written.

    Attributes:
        text: the text of the graph.
        fields: the function's entry in the manifest.
        specs: the specs of its inputs and of its outputs.
        versions: the versions of its operations, by name.
    """

    text: str
    fields: dict[str, Any]
    specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]]
    versions: dict[str, int]


class Weights:
    """The weights of all functions, each stored once, by path.

    Attributes:
        values: the Variables, tensors and arrays.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._paths: dict[int, str] = {}
        self._kept: list[Any] = []

    def path_of(self, value: Any, name: str) -> str:
        """Return the unique path of a value, and store the value if it is new."""
        key = id(value)
        if key not in self._paths:
            path, count = name, 1
            while path in self.values:
                count += 1
                path = f"{name}_{count}"
            self._paths[key] = path
            self.values[path] = value
            self._kept.append(value)  # so that its id is not reused
        return self._paths[key]

    def kinds(self) -> dict[str, list[str]]:
        """Return the paths of the trainable Variables, and of the Variables that are leaves of `.backward()`."""
        variables = {path: one for path, one in self.values.items() if isinstance(one, Variable)}
        return {
            "trainable": sorted([path for path, one in variables.items() if one.trainable]),
            "leaves": sorted([path for path, one in variables.items() if one._notes is not None]),
        }


def save(
    path: PathLike,
    function: Callable[..., Any] | None = None,
    /,
    *specs: Any,
    sample: Sample | Mapping[str, Sample] | None = None,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
    **functions: tuple[Any, ...],
) -> None:
    """Save functions so that they run without their Python source.

    The functions are traced, not run. The directory holds ``manifest.json``, a graph as text for each function, and
    the weights in ``weights.safetensors``. A loaded function draws random numbers from the reader's `hf.random`.

    A module, or a method of one, is exported in evaluation mode whatever mode it is in: without dropout, and with the
    moving averages of batch normalisation. Other functions are exported as they are, with the modes of the modules
    that they call; a function that would update a moving average raises an error.

    Args:
        path: the directory.
        function: a function or module; the artifact calls it ``predict``.
        specs: its arguments: `hf.TensorSpec`, or lists, tuples and dicts of them. None leaves a size open. A name also
            leaves a size open; equal names mean equal sizes, and the loaded function keeps the names.
        sample: arguments and the result that the function returns for them, by which ``self_test()`` checks the loaded
            function; for several functions, a mapping from names to samples.
        metadata: texts to store with the functions.
        overwrite: whether to replace an existing artifact.
        functions: several functions by name, each with its specs: ``predict=(f, spec), embed=(g, spec)``.

    Raises:
        ExportError: a function assigns Variables, calls Python, or uses other values that cannot be written as text;
            the error names the line.
        ArgumentTypeError, DTypeError, ShapeError: a sample does not fit the function's specs.
        ArgumentTypeError: the arguments are in another order.
        FileThereError: the path exists already.
        FileError: the directory cannot be written.

    Example:
        >>> import hybridflow as hf
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> net = hf.nn.Sequential(hf.nn.Linear(4, 3), hf.nn.Dropout(0.5))
        >>> hf.export.save(os.path.join(folder.name, "net.hf"), net, hf.TensorSpec([None, 4]))
        >>> loaded = hf.export.load(os.path.join(folder.name, "net.hf"), copy=True)
        >>> loaded.predict(hf.ones((2, 4))).shape
        (2, 3)
        >>> folder.cleanup()
    """
    require_eager("export")
    require_path("export", path, "hf.export.save(path, function, *specs)")
    target = Path(path)
    texts = texts_of(metadata or {}, "export")
    to_save = {**({} if function is None else {"predict": (function, *specs)}), **functions}
    _check_names(to_save, specs if function is None else ())
    if os.path.lexists(target) and not overwrite:
        raise writer.there("export", target)
    weights = Weights()
    made = {name: _function(name, given[0], given[1:], weights) for name, given in to_save.items()}
    raw = snapshot_of(weights.values, "export", copy=False)
    arrays = {WEIGHTS: {one: on_host(value) for one, value in raw.items()}}
    for name, one in by_function(sample, [*made]).items():
        arrays.setdefault(SAMPLE, {}).update(arrays_of(name, one, made[name].fields, made[name].specs))
    for one in arrays.values():
        writer.check(one, "export")
    once("export", lambda: _write(target, made, arrays, weights.kinds(), texts))


def _check_names(wanted: Mapping[str, Any], stray: tuple[Any, ...]) -> None:
    if not wanted or stray:
        raise ArgumentTypeError("export: no function is given",
                                hint="Write save(path, f, spec) or save(path, predict=(f, spec)).")
    for name, given in wanted.items():
        if not name.isidentifier() or name.startswith("_") or name in RESERVED or not name.isascii():
            raise ArgumentError(f"export: a function cannot be called {name!r}",
                                hint="Choose an identifier that is no attribute of an artifact.")
        if not isinstance(cast(object, given), tuple) or not given or not callable(given[0]):
            raise ArgumentTypeError(f"export: {name} must be a function and its specs, (f, spec)", got=repr(given)[:80],
                                    hint=f"Write save(path, f, spec) or save(path, {name}=(f, spec)).")


RESERVED = ("functions", "metadata", "named_variables", "self_test", "variables")
"""Attributes of an `Artifact`, which no function's name may shadow."""


def _function(name: str, function: Any, specs: tuple[Any, ...], weights: Weights) -> Function:
    return _written(name, *traced(name, function, specs, weights))


def _written(name: str, graph: Graph, fields: dict[str, Any]) -> Function:
    _require_text(name, graph)
    specs = graph.input_specs[: len(fields["inputs"])], graph.output_specs[: len(fields["outputs"])]
    versions = {node.op.name: node.op.version for node in graph.walk()}
    return Function(print_graph(graph, elide=None) + "\n", fields, specs, versions)


def write_functions(
    target: Path, functions: Mapping[str, tuple[Graph, dict[str, Any]]], weights: Weights, metadata: Mapping[str, str],
    *, overwrite: bool,
) -> None:
    """Write functions that have graphs already.

    Args:
        target: the directory.
        functions: the graphs and entries in the manifest, as `traced` returns them, by name.
        weights: the values of their weights.
        metadata: texts to store with them.
        overwrite: whether to replace an existing artifact.

    Raises:
        FileThereError: the path exists already.
        FileError: the directory cannot be written.
    """
    require_eager("export")
    if os.path.lexists(target) and not overwrite:
        raise writer.there("export", target)
    made = {name: _written(name, *given) for name, given in functions.items()}
    raw = snapshot_of(weights.values, "export", copy=False)
    arrays = {WEIGHTS: {one: on_host(value) for one, value in raw.items()}}
    writer.check(arrays[WEIGHTS], "export")
    once("export", lambda: _write(target, made, arrays, weights.kinds(), dict(metadata)))


def traced(
    name: str, function: Any, specs: tuple[Any, ...], weights: Weights
) -> tuple[Graph, dict[str, Any]]:
    """Return a function's graph, whose inputs are the tensors and then the weights, and its entry in the manifest.

    Args:
        name: the function's name.
        function: the function, which is traced but not run.
        specs: its arguments: specs, or structures of them.
        weights: the collection that the values of its weights are added to.

    Raises:
        ExportError: the function assigns Variables or calls Python.
    """
    given: list[tuple[str, Any]] = []
    python_function = function.python_function if isinstance(function, CompiledFunction) else function
    parameters = _parameters(python_function, len(specs))
    structure = [
        structure_of(spec, given, parameter, what="a spec") for parameter, spec in zip(parameters, specs, strict=True)
    ]
    for path, spec in given:
        if not isinstance(spec, TensorSpec):
            raise ArgumentTypeError(
                f"export: {name}: {path} is a {type(spec).__name__}", got=repr(spec)[:80],
                hint="Give a hf.TensorSpec for each tensor, and bind other arguments by a function around it."
            )
    results: list[tuple[str, Any]] = []
    shapes: list[Any] = []

    def flat(*args: Any) -> Any:
        results.clear()
        shapes[:] = [structure_of(as_traced(python_function)(*args), results, what="the result")]
        return tuple([output_tensor(name, one) for _, one in results])

    cast(Any, flat).__signature__ = _signature(parameters, specs)
    with evaluating(python_function):
        trace, signature, _ = CompiledFunction(flat, name=name)._trace_of(Specs(specs, {}))
    if trace.returns_none or not results:
        raise ExportError(f"export: {name} has no result")
    graph, fields = _with_weights(name, trace, signature, python_function, weights)
    names = ["output" if not path else path if not path[0].isdigit() else f"output_{path}" for path, _ in results]
    return graph, {
        "parameters": parameters, "arguments": structure,
        "inputs": [path for path, _ in given], "specs": [str(one) for one in graph.input_specs[: len(given)]],
        "result": shapes[0], "outputs": names, **fields,
    }


def _parameters(function: Any, count: int) -> list[str]:
    """Return the names of a function's first parameters."""
    called = function.forward if is_whole(function) and hasattr(function, "forward") else function
    try:
        signature = inspect.signature(called)
        signature.bind(*[None] * count)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"export: {count} specs do not fit the function: {error}") from None
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one.name for one in signature.parameters.values() if one.kind in kinds]
    return [*names, *[f"input_{number}" for number in range(len(names), count)]][:count]


def _signature(parameters: list[str], specs: tuple[Any, ...]) -> inspect.Signature:
    """Return a signature by which open sizes are named: after the specs that have a name, or the parameters."""
    names = [getattr(spec, "name", None) or parameter for parameter, spec in zip(parameters, specs, strict=True)]
    if len(set(names)) < len(names) or not all([name.isidentifier() and not iskeyword(name) for name in names]):
        names = parameters
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])


def _modules_of(function: Any) -> list[Any]:
    """Return the modules of a module, or of the module that owns a method."""
    owner = getattr(function, "__self__", function)
    return [*owner.named_modules().values()] if is_whole(owner) else []


def is_training(function: Any) -> bool:
    """Whether a module, or the module that owns a method, is in training mode; evaluation mode is exported."""
    return any([one.training for one in _modules_of(getattr(function, "python_function", function))])


@contextmanager
def evaluating(function: Any) -> Generator[None]:
    """Return a context in which a module, or the module that owns a method, is in evaluation mode."""
    owner = getattr(function, "__self__", function)
    modules = _modules_of(function)
    before = [one.training for one in modules]
    try:
        if modules:
            set_mode(owner, False)
        yield
    finally:
        for one, mode in zip(modules, before, strict=True):
            one.training = mode


def _with_weights(
    name: str, trace: Trace, signature: Any, function: Any, weights: Weights
) -> tuple[Graph, dict[str, Any]]:
    """Return a trace's graph with the weights as inputs after the arguments, and the manifest's fields on them."""
    graph = trace.raw_graph
    variables = trace.variables(signature)
    values = (*trace.captures, *variables)
    first = len(graph.inputs) - len(values)
    paths_by_id = _paths(function)
    state = default_generator().named_variables()["state"]
    paths = [*[f"{name}.number_{number}" for number in range(trace.arguments, first)]]
    for path, number in zip(paths, _numbers(name, trace, first), strict=True):
        weights.path_of(number, path)
    for position, value in enumerate(values):
        own = paths_by_id.get(id(value)) or getattr(value, "name", None) or f"{name}.constant_{position}"
        paths.append(RANDOM if value is state else weights.path_of(value, own))
    moved: dict[Edge, Edge] = {}
    inputs: list[Node] = [*graph.inputs]
    for number, node in enumerate([one for one in graph.nodes if one.op is CONSTANT]):
        array = node.attrs["value"].array
        if array.nbytes > _LARGE:
            lifted = input_node(node.spec(), f"large_{number}", where=node.where)
            moved[node, 0] = (lifted, 0)
            inputs.append(lifted)
            paths.append(weights.path_of(array, f"{name}.constant_{number}"))
    graph = reading_from(graph, moved)
    nodes = tuple([one for one in graph.nodes if (one, 0) not in moved])
    for number, index in enumerate(trace.assigned):
        variable = trace.states[index].variable
        if variables[index] is not state:
            node = graph.outputs[trace.plan.count + number][0]
            raise ExportError(
                f"export: {name} assigns Variable {variable.name!r} at {node.location}",
                hint="An artifact's functions change nothing: return the new value; modules: model.eval()."
            )
    for node in graph.nodes:
        if has_effect(node):
            raise ExportError(f"export: {name} calls {node.op.name} at {node.location}, which only this program can do",
                              got=format_node(node)[:200])
    checks = [
        {"error": one.error.__name__, "text": one.text, "where": short_where(one.where)} for one in trace.checks
    ]
    _check_errors(name, trace)
    fields = {"weights": paths, "random": bool(trace.assigned), "checks": checks}
    whole = Graph(name, tuple(inputs), nodes, graph.outputs, graph.dims)
    return dead_code(dead_residuals(whole)), fields


def _check_errors(name: str, trace: Trace) -> None:
    if trace.handles_errors:
        raise ExportError(f"export: {name} may go on where {trace.checks[0].error.__name__} is raised at "
                          f"{format_where(trace.checks[0].where)}, as its `except` says",
                          hint="An artifact only raises it: choose by the tensor itself, with an `if` or hf.where.")
    for one in trace.checks:
        if one.example is not None or (not issubclass(one.error, HybridflowError) and one.error not in PLAIN_ERRORS):
            raise ExportError(
                f"export: {name} raises {one.error.__name__} at {format_where(one.where)}, a class that only "
                "this program has", hint="Use hf.debugging.check(condition, message)."
            )


PLAIN_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, AssertionError, ArithmeticError, ZeroDivisionError)
"""The built-in exceptions that an artifact's functions may raise."""


def _numbers(name: str, trace: Trace, end: int) -> list[Tensor]:
    """Return the current values of the inputs that are Python numbers from outside the function."""
    if trace.numbers is None:
        return []
    answer = () if trace.guards is None else trace.guards.hold()
    if answer is False:
        raise ExportError(f"export: {name} reads Python numbers that changed while it was saved")
    arrays = trace.numbers([*answer] if isinstance(answer, tuple) else [])
    if len(arrays) != end - trace.arguments:
        raise ExportError(f"export: {name} takes Python numbers", hint="Give tensors, or bind them before.")
    return [new_tensor(np.asarray(one)) for one in arrays]


def _paths(function: Any) -> dict[int, str]:
    """Return the paths of a module's Variables, keyed by the Variable's id."""
    owner = getattr(function, "__self__", function)
    if not is_whole(owner):
        return {}
    named = {**owner.named_parameters(), **owner.named_buffers()}
    return {id(one): path for path, one in named.items()}


def _require_text(name: str, graph: Graph) -> None:
    """Raise if the graph cannot be written as text and read back unchanged."""
    for node in graph.walk():
        for line in format_node(node, elide=None, lines=False).splitlines():
            if "opaque(" in line:
                raise ExportError(
                    f"export: {name} calls {node.op.name} at {node.location} with what only this program has",
                    got=line.strip()[:200], hint="hf.from_jax and hf.pure_callback cannot be exported."
                )
    text = print_graph(graph, elide=None)
    if print_graph(parse(text), elide=None) != text:
        raise ExportError(f"export: {name} cannot be read back as it was written")


def _write(
    target: Path,
    functions: Mapping[str, Function],
    arrays: Mapping[str, Mapping[str, Any]],
    kinds: dict[str, list[str]],
    texts: Mapping[str, str],
) -> None:
    """Write the directory under a temporary name beside the target, and rename it when it is complete."""
    replaced = os.path.lexists(target)
    if replaced and not (target / MANIFEST).is_file():
        raise FileError(f"export: {str(target)!r} exists and is no artifact, so it is not replaced")
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        unfinished.mkdir()
        files: dict[str, Any] = {}
        for name, one in functions.items():
            with whole_file(unfinished / f"{name}.ir", durable=True) as file:
                file.write(one.text.encode())
            files[f"{name}.ir"] = {"sha256": hashlib.sha256(one.text.encode()).hexdigest()}
        for name, values in arrays.items():
            writer.write(unfinished / name, values, {}, what="export", replace=False)
            files[name] = {"sha256": writer.digest_of(values, {})}
        manifest = {
            "format": FORMAT, "version": VERSION, "files": files, "metadata": dict(texts), **kinds,
            "functions": {name: one.fields for name, one in functions.items()},
            "operations": {name: version for one in functions.values() for name, version in one.versions.items()},
        }
        with whole_file(unfinished / MANIFEST, durable=True) as file:
            file.write((json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
        sync_directory(unfinished)
        if replaced:
            old = target.with_name(f".{target.name}.{secrets.token_hex(8)}.old")
            target.rename(old)
            unfinished.rename(target)
            shutil.rmtree(old)
        else:
            unfinished.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, FileError):
            raise
        raise file_error(FileError, "export", target, "cannot be written", error) from error



