"""Requests and responses of the Open Inference Protocol v2 (REST) and of TensorFlow Serving: bytes to tensors and back.

Pure functions without a server. A bad request raises `Refused`, with the status and a sentence for the response.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.dtypes import as_dtype
from hybridflow.core.errors import HybridflowError
from hybridflow.core.spec import TensorSpec

Array = np.ndarray[Any, Any]
NAMES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "bfloat16": "BF16", "float32": "FP32",
    "float64": "FP64",
}
"""The protocol's names of dtypes."""
DTYPES = {name: as_dtype(dtype) for dtype, name in NAMES.items()}
TF_NAMES = {
    "bool": "DT_BOOL", "float16": "DT_HALF", "bfloat16": "DT_BFLOAT16", "float32": "DT_FLOAT", "float64": "DT_DOUBLE",
    **{name: f"DT_{name.upper()}" for name in NAMES if "int" in name},
}
DEEPEST = 32
"""The deepest nesting of lists in a tensor."""


class Refused(HybridflowError):
    """A request that gets an error response.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Spec(NamedTuple):
    """A dtype, and a shape with texts for open sizes: what another process, without the graph, knows of a tensor."""

    dtype: Any
    shape: tuple[int | str, ...]


class Signature(NamedTuple):
    """What a function takes and returns, by name."""

    inputs: Mapping[str, TensorSpec | Spec]
    outputs: Mapping[str, TensorSpec | Spec]

    def __reduce__(self) -> Any:
        """Return how another process makes it."""
        return Signature, tuple([{k: Spec(v.dtype, _expected_shape(v)) for k, v in specs.items()} for specs in self])


@lru_cache(1024)
def _expected_shape(spec: TensorSpec | Spec) -> tuple[int | str, ...]:
    """Return a shape with open sizes as texts, which are compared faster."""
    return tuple([size if type(size) is int else str(size) for size in spec.shape])


class InferRequest(NamedTuple):
    """A request of the v2 protocol.

    Attributes:
        tensors: the inputs by name.
        outputs: the wanted outputs, each with whether it is wanted in binary.
        id: the request's id, or None.
    """

    tensors: dict[str, Array]
    outputs: dict[str, bool]
    id: str | None


# -- JSON -------------------------------------------------------------------------------------------------------------


def loads(raw: bytes | memoryview) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        parsed = _parse(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(parsed, dict):
        raise Refused(f"the body must be a JSON object, got {_kind(parsed)}")
    return cast("dict[str, Any]", parsed)


def _parse(raw: bytes | memoryview) -> Any:
    try:
        import orjson
    except ImportError:
        return json.loads(bytes(raw), parse_constant=_no_constant)
    return orjson.loads(raw)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def dumps(value: Any) -> bytes:
    """Return a value as JSON."""
    try:
        import orjson
    except ImportError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    return orjson.dumps(value)


_KINDS = {
    dict: "an object", list: "a list", str: "a text", int: "an integer", float: "a number", bool: "a boolean",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _member(mapping: Mapping[str, Any], key: str, kind: type, what: str, default: Any = None) -> Any:
    """Return a member of a JSON object that must be of a type if it is there."""
    value = mapping.get(key, default)
    if value is not default and type(value) is not kind:
        raise Refused(f"{what}: {key!r} must be {_KINDS[kind]}, got {_kind(value)}")
    return value


# -- tensors ----------------------------------------------------------------------------------------------------------


def from_lists(data: Any, dtype: np.dtype[Any], name: str) -> Array:
    """Return nested lists of JSON as an array.

    Raises:
        Refused: the lists are ragged, an element is of another type, or the dtype cannot hold a number.
    """
    shape: list[int] = []
    level: list[Any] = [data]
    while type(level[0]) is list:
        sizes = {len(one) if type(one) is list else -1 for one in level}
        if len(sizes) != 1 or len(shape) >= DEEPEST:
            what = "is nested too deeply" if len(shape) >= DEEPEST else "has lists of different lengths"
            raise Refused(f"input {name!r}: its data {what} at depth {len(shape)}")
        shape.append(sizes.pop())
        level = list(chain.from_iterable(level))
        if not level:
            return np.zeros(shape, dtype)
    kind = "bool" if dtype.kind == "b" else "int" if dtype.kind in "iu" else "float"
    allowed = {"bool": {bool}, "int": {int}, "float": {int, float}}[kind]
    if stray := {*map(type, level)} - allowed:
        wrong = next(one for one in level if type(one) in stray)
        wanted = {"bool": "booleans", "int": "integers", "float": "numbers"}[kind]
        raise Refused(f"input {name!r}: {NAMES[str(dtype)]} needs {wanted}, got {_quoted(wrong)}, {_kind(wrong)}")
    try:
        if kind != "float":
            return np.array(level, dtype).reshape(shape)
        with np.errstate(over="ignore"):
            array = np.array(level, np.float64).astype(dtype)
    except OverflowError:
        raise Refused(f"input {name!r}: a number is out of the range of {NAMES[str(dtype)]}") from None
    if not np.isfinite(array).all():
        raise Refused(f"input {name!r}: a number is out of the range of {NAMES[str(dtype)]}")
    return array.reshape(shape)


def to_lists(array: Array) -> Any:
    """Return an array as nested lists, with None for what is not finite."""
    if array.dtype.kind in "biu":
        return array.tolist()
    wide = array if array.dtype.kind == "f" and array.dtype.itemsize > 1 else array.astype(np.float32)
    finite = np.isfinite(wide)
    return wide.tolist() if finite.all() else np.where(finite, wide.astype(object), cast(Any, None)).tolist()


PIECE = 1 << 13
"""The number of elements that are written at a time: meanwhile no other thread runs.

The pieces become one body in a single `bytes.join`, which is the only way to copy many bytes while other threads run.
"""


def _text(array: Array) -> list[bytes]:
    """Return an array as nested lists of JSON, in pieces."""
    if array.size <= PIECE or not array.ndim:
        return [_text_at_once(array)]
    if array[0].size > PIECE:
        return _listed(map(_text, array))
    rows = PIECE // array[0].size
    return _listed([_text_at_once(array[start : start + rows])[1:-1]] for start in range(0, len(array), rows))


def _text_at_once(array: Array) -> bytes:
    try:
        import orjson
    except ImportError:
        return dumps(to_lists(array))
    if not array.ndim:
        return dumps(to_lists(array))
    with np.errstate(invalid="ignore"):
        wide = array if array.dtype.kind in "biu" else array.astype(np.float64)
    return orjson.dumps(np.ascontiguousarray(wide), option=orjson.OPT_SERIALIZE_NUMPY)


def _listed(items: Iterable[list[bytes]], ends: bytes = b"[]") -> list[bytes]:
    """Return the pieces of a list, or object, of the pieces of its items."""
    between = [part for item in items for part in (b",", *item)]
    return [ends[:1], *between[1:], ends[1:]]


def _octets(array: Array) -> list[bytes]:
    """Return an array's bytes, in pieces."""
    flat = array.reshape(-1)
    return [flat[start : start + PIECE * 8].tobytes() for start in range(0, flat.size, PIECE * 8)]


def require_fit(tensors: Mapping[str, Array], signature: Signature) -> None:
    """Raise unless tensors have the names, dtypes and shapes that a function takes."""
    if {*tensors} != {*signature.inputs}:
        wanted, got = [", ".join(map(_quoted, names)) or "nothing" for names in (signature.inputs, tensors)]
        raise Refused(f"the inputs must be {wanted}, got {got}")
    sizes: dict[str, int] = {}
    for name, array in tensors.items():
        spec = signature.inputs[name]
        if array.dtype != spec.dtype:
            raise Refused(f"input {name!r} must be {NAMES[str(spec.dtype)]}, got {NAMES[str(array.dtype)]}")
        fits = len(array.shape) == len(spec.shape)
        for wanted, got in zip(_expected_shape(spec), array.shape, strict=False):
            fits = fits and got == (sizes.setdefault(wanted, got) if isinstance(wanted, str) else wanted)
        if not fits:
            raise Refused(f"input {name!r} must have the shape {shape_text(spec)}, got {[*array.shape]}")


def shape_text(spec: TensorSpec | Spec) -> str:
    """Return a shape with the names of its open sizes."""
    return f"[{', '.join(map(str, spec.shape))}]"


def shape_of(spec: TensorSpec | Spec) -> list[int]:
    """Return a shape with -1 for its open sizes."""
    return [size if type(size) is int else -1 for size in spec.shape]


# -- Open Inference Protocol v2 ---------------------------------------------------------------------------------------


def read_v2(body: bytes | memoryview, header_length: str | None, signature: Signature) -> InferRequest:
    """Read an inference request.

    Args:
        body: the body: JSON, with the binary tensors behind it.
        header_length: the header ``Inference-Header-Content-Length``: how long the JSON is; None if it is the body.
        signature: what the function takes and returns.
    """
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
            raise Refused(f"Inference-Header-Content-Length must be a number of bytes, got {_quoted(header_length)}")
        length = int(header_length)
        if length > len(body):
            raise Refused(f"Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes")
    request, binary = loads(body[:length]), memoryview(body)[length:]
    identity = _member(request, "id", str, "the request")
    tensors: dict[str, Array] = {}
    for given in _member(request, "inputs", list, "the request", ()):
        if type(given) is not dict:
            raise Refused(f"each of the inputs must be an object, got {_kind(given)}")
        name, array, used = _v2_tensor(cast("dict[str, Any]", given), binary, signature)
        if name in tensors:
            raise Refused(f"input {name!r} is given twice")
        tensors[name] = array
        binary = binary[used:]
    if len(binary):
        raise Refused(f"{len(binary)} bytes are left behind the binary tensors")
    require_fit(tensors, signature)
    return InferRequest(tensors, _v2_outputs(request, signature), identity)


def _v2_tensor(given: dict[str, Any], binary: memoryview, signature: Signature) -> tuple[str, Array, int]:
    """Return an input's name, its value, and how many binary bytes it took."""
    name = _member(given, "name", str, "an input", "")
    if name not in signature.inputs:
        expected = ", ".join(map(_quoted, signature.inputs)) or "nothing"
        raise Refused(f"there is no input {_quoted(name)}; the inputs are {expected}")
    what = f"input {name!r}"
    kind = _member(given, "datatype", str, what, "")
    if kind not in DTYPES:
        wanted = NAMES[str(signature.inputs[name].dtype)]
        raise Refused(f"{what}: the datatype {_quoted(kind)} is not supported; it must be {wanted}")
    dtype, shape = DTYPES[kind], _member(given, "shape", list, what, ())
    if len(shape) > DEEPEST or not all([type(size) is int and 0 <= size < 1 << 40 for size in shape]):
        raise Refused(f"{what}: the shape must be a list of sizes, got {_quoted(shape)}")
    count = math.prod(shape)
    parameters = _member(given, "parameters", dict, what, {})
    size = _member(parameters, "binary_data_size", int, what)
    if size is not None:
        if "data" in given:
            raise Refused(f"{what} has both data and binary_data_size")
        if size != count * dtype.itemsize or size > len(binary):
            expected = f"{count * dtype.itemsize} bytes for {kind} {_quoted(shape)}"
            raise Refused(f"{what} needs {expected}, got binary_data_size {size}, and {len(binary)} bytes are there")
        octets = np.frombuffer(binary[:size], np.uint8)
        if dtype.kind == "b" and octets.size and octets.max() > 1:
            raise Refused(f"{what}: a BOOL must be a byte 0 or 1, got {octets.max()}")
        return name, octets.view(dtype).reshape(shape) if size else np.zeros(shape, dtype), size
    if type(given.get("data")) is not list:
        raise Refused(f"{what}: data must be a list, got {_kind(given.get('data'))}")
    array = from_lists(given["data"], dtype, name)
    if array.size != count or (array.ndim > 1 and [*array.shape] != shape):
        raise Refused(f"{what} has the shape {_quoted(shape)}, and data of the shape {[*array.shape]}")
    return name, array.reshape(shape), 0


def _v2_outputs(request: Mapping[str, Any], signature: Signature) -> dict[str, bool]:
    """Return the wanted outputs, each with whether it is wanted in binary."""
    parameters = _member(request, "parameters", dict, "the request", {})
    binary = _member(parameters, "binary_data_output", bool, "the request", False)
    wanted = _member(request, "outputs", list, "the request", ())
    outputs: dict[str, bool] = {}
    for one in wanted:
        name = one.get("name") if type(one) is dict else None
        if type(name) is not str or name not in signature.outputs:
            names = ", ".join(map(_quoted, signature.outputs))
            raise Refused(f"there is no output {_quoted(name)}; the outputs are {names}")
        own = _member(one, "parameters", dict, f"output {name!r}", {})
        if "classification" in own:
            raise Refused(f"output {name!r}: classification is not supported")
        outputs[name] = _member(own, "binary_data", bool, f"output {name!r}", binary)
    return outputs or dict.fromkeys(signature.outputs, bool(binary))


def write_v2(
    model: str, version: str, request: InferRequest, results: Mapping[str, Array]
) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of an inference response."""
    tensors: list[list[bytes]] = []
    parts: list[bytes] = []
    for name, binary in request.outputs.items():
        array = results[name]
        output: dict[str, Any] = {"name": name, "datatype": NAMES[str(array.dtype)], "shape": [*array.shape]}
        if binary:
            parts += _octets(array)
            output["parameters"] = {"binary_data_size": array.nbytes}
            tensors.append([dumps(output)])
        else:
            tensors.append([dumps(output)[:-1], b',"data":', *_text(array.reshape(-1)), b"}"])
    response = {"model_name": model, "model_version": version}
    if request.id is not None:
        response["id"] = request.id
    head = [dumps(response)[:-1], b',"outputs":', *_listed(tensors), b"}"]
    if not any(request.outputs.values()):
        return b"".join(head), {"content-type": "application/json"}
    length = str(sum(map(len, head)))
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": length}
    return b"".join([*head, *parts]), headers


def metadata_v2(model: str, versions: Sequence[str], signature: Signature) -> dict[str, Any]:
    """Return the metadata of a model."""

    def described(specs: Mapping[str, TensorSpec | Spec]) -> list[dict[str, Any]]:
        return [{"name": k, "datatype": NAMES[str(v.dtype)], "shape": shape_of(v)} for k, v in specs.items()]

    return {
        "name": model, "versions": [*versions], "platform": "hybridflow",
        "inputs": described(signature.inputs), "outputs": described(signature.outputs),
    }


# -- TensorFlow Serving -----------------------------------------------------------------------------------------------


def read_predict(
    body: bytes | memoryview, signatures: Mapping[str, Signature], usual: str
) -> tuple[str, dict[str, Array], bool]:
    """Read the body of a ``:predict`` request.

    Args:
        body: the body.
        signatures: those of the model's functions, by name.
        usual: the function of a request that names none.

    Returns:
        The function's name, its inputs by name (none if there is no such function), and whether the response is in the
        row format.
    """
    request = loads(body)
    name = request.get("signature_name")
    if name is not None and type(name) is not str:
        raise Refused("'signature_name' must be a text")
    name = usual if name in (None, "", "serving_default") else name
    tensors, rows = read_tf(request, signatures[name]) if name in signatures else ({}, False)
    return name, tensors, rows


def read_tf(request: Mapping[str, Any], signature: Signature) -> tuple[dict[str, Array], bool]:
    """Read a ``:predict`` request.

    Returns:
        The inputs by name, and whether the response is in the row format.
    """
    rows, columns = "instances" in request, "inputs" in request
    if rows == columns:
        raise Refused("the request must have one of 'instances' and 'inputs'")
    given = request["instances"] if rows else request["inputs"]
    if rows and type(given) is not list:
        raise Refused(f"'instances' must be a list, got {_kind(given)}")
    names = [*signature.inputs]
    named: dict[str, Any]
    if rows and given and type(given[0]) is dict:
        if not all([type(row) is dict and {*row} == {*given[0]} for row in given]):
            raise Refused("each of the instances must be an object with the same names")
        named = {name: [row[name] for row in given] for name in given[0]}
    elif not rows and type(given) is dict:
        named = cast("dict[str, Any]", given)
    elif len(names) == 1:
        named = {names[0]: given}
    else:
        raise Refused(f"the inputs {', '.join(map(_quoted, names))} must be given by name")
    if {*named} != {*names}:
        wanted, got = [", ".join(map(_quoted, one)) or "nothing" for one in (names, named)]
        raise Refused(f"the inputs must be {wanted}, got {got}")
    tensors = {name: from_lists(named[name], np.dtype(signature.inputs[name].dtype), name) for name in names}
    require_fit(tensors, signature)
    return tensors, rows


def write_tf(results: Mapping[str, Array], rows: bool) -> bytes:
    """Return the body of a ``:predict`` response."""
    arrays = [*results.values()]
    if not rows:
        return b"".join([b'{"outputs":', *(_text(arrays[0]) if len(arrays) == 1 else _members(results)), b"}"])
    lengths = {len(one) if one.ndim else -1 for one in arrays}
    if len(lengths) != 1 or -1 in lengths:
        raise Refused("the results are not one for each instance; ask with 'inputs' instead of 'instances'")
    if len(arrays) == 1:
        return b"".join([b'{"predictions":', *_text(arrays[0]), b"}"])
    (length,) = lengths
    at_once = PIECE * length // max(1, sum([one.size for one in arrays]))
    if at_once <= 1:
        listed = _listed(_members(dict(zip(results, row, strict=True))) for row in zip(*arrays, strict=True))
    else:
        listed = _listed(
            [dumps([dict(zip(results, row, strict=True)) for row in zip(*lists, strict=True)])[1:-1]]
            for start in range(0, length, at_once)
            for lists in [[to_lists(one[start : start + at_once]) for one in arrays]]
        )
    return b"".join([b'{"predictions":', *listed, b"}"])


def _members(arrays: Mapping[str, Array]) -> list[bytes]:
    """Return the pieces of an object of arrays."""
    return _listed(([dumps(name), b":", *_text(array)] for name, array in arrays.items()), b"{}")


def metadata_tf(model: str, version: str, functions: Mapping[str, Signature]) -> dict[str, Any]:
    """Return the metadata of a model as TensorFlow Serving does."""

    def described(specs: Mapping[str, TensorSpec | Spec]) -> dict[str, Any]:
        return {
            name: {"dtype": TF_NAMES[str(spec.dtype)], "name": name,
                   "tensor_shape": {"dim": [{"size": str(size), "name": ""} for size in shape_of(spec)],
                                    "unknown_rank": False}}
            for name, spec in specs.items()
        }

    signatures = {
        name: {"inputs": described(one.inputs), "outputs": described(one.outputs),
               "method_name": "tensorflow/serving/predict"}
        for name, one in functions.items()
    }
    return {
        "model_spec": {"name": model, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }
