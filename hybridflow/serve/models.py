"""The models of a server: named and versioned, loaded from artifacts and loaded again when those change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.core.dims import Dim
from hybridflow.core.errors import ArgumentError, FileFormatError, HybridflowError, ShapeError
from hybridflow.export.artifact import MANIFEST
from hybridflow.export.limits import Limits
from hybridflow.export.loaded import Artifact, Function, load
from hybridflow.export.programs import Programs
from hybridflow.ir.costs import graph_cost
from hybridflow.ir.graph import Graph
from hybridflow.nested.rows import why_rows_mix
from hybridflow.serve.protocol import NAMES, Array, Refused, Signature, to_lists
from hybridflow.tracing.function import CompiledFunction

Tensors = Mapping[str, Array]
Key = tuple[tuple[int, ...], ...]
_REMEMBERED = 10_000
"""The number of shapes that are remembered as valid."""
_MOST_PROGRAMS = 32
"""With so many programs for bounds, no more are compiled for the sizes of requests."""
_OPEN_SIZE = 8
"""The size assumed for an open size, where no sample tells one."""


class Servable:
    """A function of a model, ready to be called with arrays.

    Its programs are compiled for the sizes of batches, if it has no other open sizes, and otherwise for all sizes up to
    some bounds. What no program takes runs eagerly, and one is compiled for its sizes meanwhile.

    Args:
        function: the function of the artifact.
        max_batch: the largest number of rows that are computed together.
        sample: arguments by name, of the sizes that are expected; None if there are none.
        model: the model's name.

    Attributes:
        model: the model's name.
        signature: what it takes and returns.
        alone: why requests cannot share a batch; None if they can.
        buckets: the sizes that batches are padded to.
        programs: the programs for bounds; None if no size is open but that of the batch.
    """

    def __init__(self, function: Function, max_batch: int, sample: Tensors | None = None, model: str = "") -> None:
        self.model = model
        outputs = dict(zip(function.outputs, function.graph().output_specs, strict=False))
        for name, spec in [*function.inputs.items(), *outputs.items()]:
            if str(spec.dtype) not in NAMES:
                raise ArgumentError(f"serve: {function.name}: {name} has a dtype that no request can carry",
                                    got=str(spec.dtype))
        self.signature = Signature(dict(function.inputs), outputs)
        self._function = function
        self._compiled = CompiledFunction(function.by_name, name=function.name)
        self._warm: set[Key] = set()
        self._taken: set[Key] = set()
        self._sample = sample
        self._compiling: threading.Thread | None = None
        self.alone = why_alone(function)
        if self.alone is None and (bad := _forbidden(function, max_batch)):
            self.alone = f"it was saved for sizes with {bad}"
        self._symbol = batch_symbol(function) if self.alone is None else None
        self.programs = Programs(function) if {*function.graph().dims.hints} - {self._symbol} else None
        self.buckets = () if self._symbol is None else _buckets(max_batch, few=self.programs is not None)

    @property
    def flops(self) -> str:
        """The number of operations of a call, as text; it may depend on open sizes."""
        return str(graph_cost(self._function.graph()).flops)

    def arguments(self, rows: int) -> dict[str, Array]:
        """Return arguments of a number of rows: the sample's first rows over and over, or zeros."""
        if self._sample is None:
            return {name: np.zeros([rows if str(size) == self._symbol else _OPEN_SIZE if type(size) is not int else size
                                    for size in spec.shape], spec.dtype)
                    for name, spec in self.signature.inputs.items()}
        given = {name: np.asarray(value) for name, value in self._sample.items()}
        if self._symbol is None or not all([len(one) for one in given.values()]):
            return given
        return {name: one.take(np.arange(rows) % len(one), axis=0) for name, one in given.items()}

    def sample(self) -> dict[str, Any]:
        """Return arguments of one row as nested lists, as requests have them."""
        return {name: to_lists(one) for name, one in self.arguments(1).items()}

    @property
    def raises(self) -> tuple[type[Exception], ...]:
        """The errors of the model's checks of values: whoever sent the values is at fault."""
        return self._function.raises

    def rows(self, tensors: Tensors) -> int:
        """Return how many rows a request has, if requests share batches; 0 if they do not."""
        return next(iter(tensors.values())).shape[0] if self.alone is None else 0

    def require_sizes(self, tensors: Tensors) -> None:
        """Raise unless the function takes tensors of these sizes.

        Raises:
            Refused: sizes that differ where they must not, that it was not saved for, or, with 413, beyond its limits.
        """
        key = tuple([one.shape for one in tensors.values()])
        if key in self._taken:
            return
        try:
            self._function.require_sizes(tensors)
        except ShapeError as error:
            raise Refused(str(error)[:2000]) from None
        except FileFormatError as error:
            raise Refused(f"{str(error)[:2000]} (the server's limits: --max-memory, --max-flops)", 413) from None
        if len(self._taken) >= _REMEMBERED:
            self._taken.clear()
        self._taken.add(key)

    def require_batch(self, tensors: Tensors, rows: int) -> None:
        """Raise unless a batch of a number of rows, each like those of some tensors, is within the limits.

        Raises:
            Refused: with 413.
        """
        size = self._bucket(rows)
        self.require_sizes({name: np.broadcast_to(one[:1], (size, *one.shape[1:])) for name, one in tensors.items()})

    def _takes(self, tensors: Tensors, rows: int) -> bool:
        try:
            self.require_batch(tensors, rows)
        except Refused:
            return False
        return True

    def _bucket(self, rows: int) -> int:
        return next(one for one in self.buckets if one >= rows)

    def run(self, tensors: Tensors) -> dict[str, Array]:
        """Compute the results: with a program if one takes these sizes, and eagerly otherwise.

        No request waits for a compilation. The number of programs for other sizes is bounded, so what clients send
        costs neither unbounded time nor memory.
        """
        call: Callable[[Tensors], Mapping[str, Any]] = self._function.by_name
        if _key(tensors) in self._warm:
            call = self._compiled
        elif self.programs is not None:
            sizes = self._sizes(tensors)
            if self.programs.takes(sizes):
                call = self.programs.call
            elif len(self.programs) < _MOST_PROGRAMS and self.programs.why_not is None:
                self._compile_later(self._bounds(sizes))
        given = {name: tensors[name] for name in self.signature.inputs}
        with no_grad():  # a server computes no gradients, so nothing is kept for them
            try:
                results = call(given)
            except self.raises:
                if call == self._function.by_name:
                    raise
                results = self._function.by_name(given)  # its error tells which values are at fault
        return {name: np.asarray(value) for name, value in results.items()}

    def _sizes(self, tensors: Tensors) -> dict[str, int]:
        """Return the open sizes of arguments."""
        axes = [(size, length) for name, spec in self.signature.inputs.items()
                for size, length in zip(spec.shape, tensors[name].shape, strict=True)]
        return {str(size): length for size, length in axes if isinstance(size, Dim) and size.symbol is not None}

    def _compile_later(self, bounds: dict[str, int]) -> None:
        """Compile a program in a thread of its own, unless one is being compiled."""
        if self._compiling is not None and self._compiling.is_alive():
            return
        assert self.programs is not None
        self._compiling = threading.Thread(
            target=self.programs.compile, args=(bounds,), name="hybridflow-compile", daemon=True
        )
        with suppress(RuntimeError):  # there is no room for a thread now; a later request tries again
            self._compiling.start()

    def run_rows(self, tensors: Tensors, rows: int) -> dict[str, Array]:
        """Compute a batch, padded with its first row up to the next bucket if that is within the limits."""
        size = self._bucket(rows)
        if size == rows or not self._takes(tensors, rows):
            return self.run(tensors)
        padded = {k: np.concatenate([v, np.repeat(v[:1], size - rows, axis=0)]) for k, v in tensors.items()}
        return {name: value[:rows] for name, value in self.run(padded).items()}

    def warmups(self) -> Iterable[Callable[[], None]]:
        """Yield functions that each compile a program for sizes that requests are expected to have."""
        for rows in self.buckets or (1,):
            arguments = self.arguments(rows)
            yield lambda arguments=arguments: self._warm_up(arguments)

    def _warm_up(self, arguments: Tensors) -> None:
        try:
            self._function.require_sizes(arguments)
        except (ShapeError, FileFormatError):  # nobody said which sizes to expect
            return
        if self.programs is None:
            self._warm.add(_key(arguments))
        elif not self.programs.compile(self._bounds(self._sizes(arguments))):
            return
        with suppress(*self.raises):  # the program is compiled, but the model's check of the values failed
            self.run(arguments)

    def _bounds(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the bounds of a program for some sizes; the rows of a batch are padded already."""
        assert self.programs is not None
        return self.programs.bounds_for(sizes) | {k: size for k, size in sizes.items() if k == self._symbol}


def _key(tensors: Tensors) -> Key:
    return tuple([tensors[name].shape for name in sorted(tensors)])


def _buckets(max_batch: int, *, few: bool) -> tuple[int, ...]:
    """Return the sizes of batches: powers of two up to the largest, or of eight where `few` are wanted."""
    return (*[1 << n for n in range(0, max_batch.bit_length(), 3 if few else 1) if 1 << n < max_batch], max_batch)


def _forbidden(function: Function, max_batch: int) -> str | None:
    """Return a condition on the batch size that does not hold for all sizes of batches."""
    symbol, dims = batch_symbol(function), function.graph().dims
    for guard in dims.guards:
        if symbol in str(guard):
            if {*dims.hints} != {symbol}:
                return str(guard)
            if not all([guard.holds({symbol: size}) for size in range(1, max_batch + 1)]):
                return str(guard)
    return None


class Model(NamedTuple):
    """One version of a model.

    Attributes:
        name, version: by which requests name it.
        artifact: what was loaded.
        functions: its functions, ready to be called.
        stamp: what tells whether its files were replaced.
    """

    name: str
    version: str
    artifact: Artifact
    functions: Mapping[str, Servable]
    stamp: Any

    @property
    def usual(self) -> str:
        """The function of a request that names none: ``predict`` or the first one."""
        return "predict" if "predict" in self.functions else next(iter(self.functions))

    def function(self, name: str | None = None) -> Servable:
        """Return a function by name; without a name, the usual one."""
        function_name = name or self.usual
        if function_name not in self.functions:
            names = ", ".join(self.functions)
            raise Refused(f"model {self.name!r} has no function {function_name[:80]!r}; its functions are {names}", 404)
        return self.functions[function_name]


class Repository:
    """The models under some paths.

    Args:
        paths: artifacts; directories of versions (``digits/3``); or directories of those.
        max_batch: the largest number of rows that are computed together.
        limits: limits on artifacts.

    Attributes:
        models: the versions of each model that serve, by name.
        faults: why a version on the disk does not serve, by path.
        missing: those of these paths for which no earlier version serves either.
    """

    def __init__(self, paths: Sequence[Path], max_batch: int = 32, limits: Limits | None = None) -> None:
        self._paths, self._max_batch, self._limits = paths, max_batch, limits
        self.models: dict[str, dict[str, Model]] = {}
        self.faults: dict[str, str] = {}
        self.missing: set[str] = set()
        self._failed: dict[Path, Any] = {}
        self._gone: set[tuple[str, str]] = set()

    def refresh(self, compute: Callable[[Callable[[], None], str], None]) -> list[str]:
        """Load what is new or was replaced, and forget what is gone; requests under way keep what they have.

        Args:
            compute: runs a function in the thread of a model, given by name.

        Returns:
            What changed, as lines for the log.
        """
        artifacts = found_in(self._paths)
        lines: list[str] = []
        for (name, version), path in artifacts.items():
            stamp = _stamp(path)
            current = self.models.get(name, {}).get(version)
            if stamp is None or (current and current.stamp == stamp) or self._failed.get(path) == stamp:
                continue
            try:
                model = self._load(name, version, path, stamp)
                for warm_up in [one for function in model.functions.values() for one in function.warmups()]:
                    compute(warm_up, name)
            except HybridflowError as error:
                self._failed[path], self.faults[str(path)] = stamp, str(error)
                if current is None:
                    self.missing.add(str(path))
                consequence = "the version before serves on" if current else "it does not serve"
                lines.append(f"model {name} version {version} is broken, and {consequence}: {error}")
                continue
            self._failed.pop(path, None)
            self.faults.pop(str(path), None)
            self.missing.discard(str(path))
            self.models = {**self.models, name: {**self.models.get(name, {}), version: model}}
            lines.append(f"model {name} version {version} is ready")
        present_paths = {*map(str, artifacts.values())}
        self.faults = {path: why for path, why in self.faults.items() if path in present_paths}
        self.missing &= present_paths
        lines += self._forget(artifacts)
        return lines

    def _load(self, name: str, version: str, path: Path, stamp: Any) -> Model:
        artifact = load(path, copy=True, limits=self._limits)
        functions = {
            key: Servable(one, self._max_batch, artifact.sample(key), name) for key, one in artifact.functions.items()
        }
        return Model(name, version, artifact, functions, stamp)

    def _forget(self, found: Mapping[tuple[str, str], Path]) -> list[str]:
        """Forget versions that are missing twice in a row: replacing a directory takes two renames."""
        absent = {(name, one) for name, versions in self.models.items() for one in versions} - {*found}
        dropped, self._gone = absent & self._gone, absent
        for name, version in dropped:
            others = {key: one for key, one in self.models[name].items() if key != version}
            self.models = {key: one for key, one in {**self.models, name: others}.items() if one}
        return [f"model {name} version {version} is gone" for name, version in sorted(dropped)]

    def model(self, name: str, version: str | None = None) -> Model:
        """Return a version of a model, by default the highest one.

        Raises:
            Refused: with 404, if there is none.
        """
        versions = self.models.get(name)
        if not versions:
            names = ", ".join(self.models) or "none"
            raise Refused(f"there is no model {name[:80]!r}; the models are {names}", 404)
        if version is None:
            return versions[max(versions, key=int)]
        if version not in versions:
            raise Refused(f"model {name!r} has no version {version[:20]!r}; it has {', '.join(versions)}", 404)
        return versions[version]


def found_in(paths: Sequence[Path]) -> dict[tuple[str, str], Path]:
    """Return the artifacts under some paths by name and version.

    Raises:
        ArgumentError: two artifacts have the same name and version.
    """
    artifacts: dict[tuple[str, str], Path] = {}
    for path in paths:
        for name, version, one in _under(path):
            if (name, version) in artifacts and artifacts[name, version] != one:
                raise ArgumentError(f"serve: two artifacts are version {version} of the model {name!r}",
                                    got=f"{artifacts[name, version]}, {one}")
            artifacts[name, version] = one
    return artifacts


def _under(path: Path) -> Iterable[tuple[str, str, Path]]:
    if (path / MANIFEST).exists():
        yield path.stem, "1", path
    elif path.is_dir():
        yield from ((path.stem, one.name, one) for one in _versions(path))
        for folder in sorted({*path.iterdir()} - {*_versions(path)}):
            if folder.name.startswith("."):
                continue
            if (folder / MANIFEST).exists():
                yield folder.stem, "1", folder
            else:
                yield from ((folder.stem, one.name, one) for one in _versions(folder))


def _versions(path: Path) -> list[Path]:
    """Return the directories of a model's versions."""
    if not path.is_dir():
        return []
    return [one for one in sorted(path.iterdir()) if one.name.isascii() and one.name.isdigit() and one.is_dir()]


def _stamp(path: Path) -> Any:
    """Return what changes when an artifact is replaced; None if it is being replaced just now."""
    try:
        folder, manifest = path.stat(), (path / MANIFEST).stat()
    except FileNotFoundError:
        return None
    return folder.st_ino, manifest.st_ino, manifest.st_mtime_ns, manifest.st_size


# -- find out from a graph whether requests may share a batch, and a batch be padded ----------------------------------


def why_alone(function: Function) -> str | None:
    """Return why requests for a function cannot share a batch, or None if they can.

    They can if each row of the results is computed from the same row of the inputs alone, and nothing is drawn at
    random.
    """
    graph, count = function.graph(), len(function.inputs)
    firsts = [spec.shape[0] if spec.shape else None for spec in graph.input_specs[:count]]
    symbols = {str(size) for size in firsts if isinstance(size, Dim)}
    if not firsts or len(symbols) != 1 or not all([isinstance(size, Dim) for size in firsts]):
        return "its inputs have no common open size as their first axis"
    (symbol,) = symbols
    if symbol not in graph.dims.hints:
        return f"its batch size is {symbol}, and no size of its own"
    if function.random:
        return "it draws random numbers"
    results = graph.outputs[: len(function.outputs)]  # the checks may look at all rows
    return why_rows_mix(Graph(graph.name, graph.inputs, graph.nodes, results, graph.dims), symbol)


def batch_symbol(function: Function) -> str:
    """Return the name of the size that is the batch of a function, of which `why_alone` is None."""
    return str(next(iter(function.inputs.values())).shape[0])
