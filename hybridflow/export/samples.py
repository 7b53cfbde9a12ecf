"""Samples: arguments stored in an artifact, with the result that they gave where it was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, CheckError, FileFormatError
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import as_tensor
from hybridflow.export.structure import fitting, taken_apart
from hybridflow.ops.dtype_functions import finfo
from hybridflow.saving.format import shown
from hybridflow.tracing.function import CompiledFunction

Array = np.ndarray[Any, Any]
INPUTS, OUTPUTS = "inputs", "outputs"


class Sample(NamedTuple):
    """Arguments of a function that is saved, and what it returns for them.

    Saving runs nothing, so the result is the caller's to compute.

    Attributes:
        args: the arguments, of the structures and shapes of the specs.
        result: the result; None if it is not known, or drawn at random.
    """

    args: tuple[Any, ...]
    result: Any = None


def by_function(sample: Any, names: list[str]) -> dict[str, Sample]:
    """Return the samples by the functions' names.

    Raises:
        ArgumentTypeError: `sample` is neither a sample nor a mapping of samples.
        ArgumentError: a sample is for a function that is not saved, or one sample is given for several functions.
    """
    if sample is None:
        return {}
    if isinstance(sample, Sample) and len(names) > 1:
        raise ArgumentError(f"export: the sample is of one of {', '.join(names)}",
                            hint="Give a mapping: {name: Sample(...)}.")
    samples: dict[str, Any] = {names[0]: sample} if isinstance(sample, Sample) else sample
    if not isinstance(cast(Any, samples), Mapping) or not all([isinstance(one, Sample) for one in samples.values()]):
        raise ArgumentTypeError("export: sample must be a hf.export.Sample, or several by the functions' names",
                                got=repr(sample)[:80], hint="Write sample=hf.export.Sample((x,), f(x)).")
    if stray := [name for name in samples if name not in names]:
        raise ArgumentError(f"export: there is no function {stray[0]!r} to have a sample", got=str(names)[:80])
    return dict(samples)


def arrays_of(
    name: str, sample: Sample, fields: Mapping[str, Any], specs: tuple[Sequence[Any], Sequence[Any]]
) -> dict[str, Array]:
    """Return a sample's arrays by the names that a file has for them.

    Args:
        name: the function.
        sample: its sample.
        fields: what the manifest says of the function.
        specs: the specs of its inputs and of its outputs.

    Raises:
        ArgumentTypeError, DTypeError, ShapeError: the sample does not fit the function's structures and specs.
        ArgumentError: the function draws random numbers, and the sample has a result.
    """
    if len(sample.args) != len(fields["parameters"]):
        raise ArgumentTypeError(f"export: {name} takes {', '.join(fields['parameters'])}",
                                got=f"a sample of {len(sample.args)}")
    leaves = [
        leaf
        for parameter, structure, value in zip(fields["parameters"], fields["arguments"], sample.args, strict=True)
        for leaf in taken_apart(structure, value, parameter, name)
    ]
    arrays = _named(name, INPUTS, fields["inputs"], leaves, specs[0])
    if sample.result is None:
        return arrays
    if fields["random"]:
        raise ArgumentError(f"export: {name} draws random numbers, so its result is another one each time",
                            hint="Give the sample without a result.")
    results = [*taken_apart(fields["result"], sample.result, "the sample's result", name)]
    return arrays | _named(name, OUTPUTS, fields["outputs"], results, specs[1])


def _named(
    name: str, kind: str, paths: list[str], leaves: list[tuple[int, Any]], specs: Sequence[Any]
) -> dict[str, Array]:
    values = [leaf for _, leaf in sorted(leaves, key=lambda one: one[0])]
    return {
        f"{name}/{kind}/{path}": np.asarray(fitting(name, path, value, spec))
        for path, value, spec in zip(paths, values, specs, strict=True)
    }


class Recorded(NamedTuple):
    """A sample that was read from an artifact.

    Attributes:
        inputs: the arguments' tensors by name.
        outputs: the result's tensors by name; empty if the result is not known.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]


def recorded(arrays: Mapping[str, Array], functions: Mapping[str, Any]) -> dict[str, Recorded]:
    """Return the samples in a file, by function.

    Raises:
        FileFormatError: arrays that are not those of a function.
    """
    samples = {name: Recorded({}, {}) for name in functions}
    for key, array in arrays.items():
        name, _, rest = key.partition("/")
        kind, _, path = rest.partition("/")
        if name not in samples or kind not in (INPUTS, OUTPUTS):
            raise FileFormatError(f"a sample has {shown(key)}, which is of no function")
        getattr(samples[name], kind)[path] = array
    for name, one in samples.items():
        function = functions[name]
        given, expected = [{*one.inputs}, {*one.outputs}], [{*function.inputs}, {*function.outputs}]
        if given[0] not in (set[str](), expected[0]) or given[1] not in (set[str](), expected[1]):
            raise FileFormatError(f"the sample of {name} has not what the function takes and returns")
    return {name: one for name, one in samples.items() if one.inputs or not functions[name].inputs}


def test(name: str, function: Callable[[Mapping[str, Any]], Mapping[str, Any]], sample: Recorded) -> None:
    """Run a function on a sample, eagerly and compiled, and compare what it gives with the sample's result.

    Raises:
        CheckError: the results differ, floats by more than half of their dtype's digits.
    """
    given = {path: as_tensor(array) for path, array in sample.inputs.items()}
    for mode, run in (("eagerly", function), ("compiled", CompiledFunction(function, name=name))):
        results = run(given)
        for path, expected in sample.outputs.items():
            _require_near(f"{name}, {mode}: {path}", np.asarray(results[path]), expected)


def _require_near(what: str, result: Array, expected: Array) -> None:
    spec = TensorSpec(expected.shape, str(expected.dtype))
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise CheckError(f"{what} is {result.dtype}{list(result.shape)}, and was {spec} in the sample")
    if expected.dtype.kind in "biu":
        allowed, largest = 0.0, float(np.sum(result != expected))
    else:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        one, other = result.astype(wide), expected.astype(wide)
        same = (one == other) | ((one != one) & (other != other))
        largest = float(np.max(np.abs(np.where(same, 0, one - other)), initial=0.0))
        scale = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
        allowed = scale * float(np.sqrt(finfo(expected.dtype).eps))
    if not largest <= allowed:
        raise CheckError(
            f"{what} is not what it was in the sample: {largest:.3g} apart, where {allowed:.3g} is allowed",
            hint="Another hybridflow, jax or machine computes something else: compare their versions."
        )
