"""The Open Inference Protocol v2 over gRPC; it needs the extra ``grpc``.

Requests are converted to those of HTTP, with the same checks and errors, and computed by the same application.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from hybridflow.serve import protocol
from hybridflow.serve.app import App, Response, size_of
from hybridflow.serve.models import Model, Servable
from hybridflow.serve.protocol import DTYPES, PIECE, Refused

Handler = Callable[[App, Any], Awaitable[Any]]
_CODES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 413: "INVALID_ARGUMENT",
          503: "RESOURCE_EXHAUSTED", 504: "DEADLINE_EXCEEDED"}
"""The codes of gRPC by the status that HTTP has for the same."""
_FIELDS = {"BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents", "UINT32": "uint_contents",
           "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents"}
"""The fields of typed contents, by the datatype whose numbers they hold as they are."""


async def start(app: App, address: str, certificate: tuple[bytes, bytes] | None) -> Any:
    """Serve an application's models over gRPC; the caller ends it with its ``stop``.

    Args:
        app: the application.
        address: host and port; several processes may share one.
        certificate: the key and the certificate for TLS; None for plain connections.
    """
    import grpc

    classes = messages()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _answering(app, grpc, name, handler), _reading(classes[f"{name}Request"].FromString),
            classes[f"{name}Response"].SerializeToString,
        )
        for name, handler in _HANDLERS.items()
    }
    options = {"max_receive_message_length": app.options.body, "max_send_message_length": -1, "so_reuseport": 1}
    server = grpc.aio.server(options=[(f"grpc.{key}", value) for key, value in options.items()])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    if certificate is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, grpc.ssl_server_credentials([certificate]))
    await server.start()
    return server


def _reading(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a function that parses a message, or returns why it cannot: gRPC would call that the server's fault."""

    def read(raw: bytes) -> Any:
        try:
            return parse(raw)
        except Exception as error:
            return Refused(f"the request is no message of the protocol: {error}")

    return read


def _answering(app: App, grpc: Any, name: str, handler: Handler) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the function that answers calls of a method."""

    async def answer(request: Any, context: Any) -> Any:
        began, status, identity = time.monotonic(), 200, app.identity("")
        model: Model | None = None
        try:
            if not name.startswith("Server"):
                _authorize(app, dict(context.invocation_metadata()))
            if isinstance(request, Refused):
                raise request
            if name == "ModelInfer":
                model = _model(app, request.model_name, request.model_version)
            return await handler(app, request)
        except Refused as error:
            status, text = error.status, str(error)
        except asyncio.CancelledError:  # the client went away
            status = 499
            raise
        except Exception as error:  # a fault of the server or of a model's program: this request's alone
            app.log({"id": identity, "fault": "".join(traceback.format_exception(error))}, always=True)
            status, text = 500, f"the server failed; its log tells why at the request {identity}"
        finally:
            took = time.monotonic() - began
            app.count(Response(status, b"", {}, model), took)
            app.log({"id": identity, "path": f"/{SERVICE}/{name}", "status": status, "seconds": round(took, 6)})
        await context.abort(getattr(grpc.StatusCode, _CODES.get(status, "INTERNAL")), text)

    return answer


def _authorize(app: App, metadata: Mapping[str, Any]) -> None:
    token = app.options.token
    given = str(metadata.get("authorization", ""))
    if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise Refused("this server needs the metadata 'authorization: Bearer TOKEN'", 401)


def _model(app: App, name: str, version: str) -> Model:
    return app.models.model(name, version or None)


async def _live(app: App, request: Any) -> Any:
    return messages()["ServerLiveResponse"](live=True)


async def _ready(app: App, request: Any) -> Any:
    return messages()["ServerReadyResponse"](ready=app.serves)


async def _model_ready(app: App, request: Any) -> Any:
    try:
        _model(app, request.name, request.version)
    except Refused:
        return messages()["ModelReadyResponse"](ready=False)
    return messages()["ModelReadyResponse"](ready=True)


async def _server_metadata(app: App, request: Any) -> Any:
    return messages()["ServerMetadataResponse"](name="hybridflow", version="1", extensions=["binary_tensor_data"])


async def _model_metadata(app: App, request: Any) -> Any:
    model = _model(app, request.name, request.version)
    signature = model.function().signature
    return messages()["ModelMetadataResponse"](
        **protocol.metadata_v2(request.name, [*app.models.models[request.name]], signature)
    )


async def _infer(app: App, request: Any) -> Any:
    model = _model(app, request.model_name, request.model_version)
    app.batcher.require_room(model.name)
    servable = model.function()
    parsed = await app.aside.call(model.name, request.ByteSize(), 0, _read, request, servable)
    results = await app.computed(servable, parsed.tensors, _stays)
    size = size_of(results.values())
    return await app.aside.call(model.name, size, 0, _written, request.id, model, parsed.outputs, results)


def _written(identity: str, model: Model, outputs: Iterable[str], results: Mapping[str, Any]) -> Any:
    response = messages()["ModelInferResponse"](model_name=model.name, model_version=model.version, id=identity)
    for name in outputs:
        array = results[name]
        response.outputs.add(name=name, datatype=protocol.NAMES[str(array.dtype)], shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
    return response


def _read(request: Any, servable: Servable) -> protocol.InferRequest:
    head, binary = as_v2(request)
    return protocol.read_v2(head + binary, str(len(head)), servable.signature)


async def _stays() -> dict[str, Any]:
    """Wait for ever: gRPC cancels the call itself when its client goes away."""
    await asyncio.Event().wait()
    raise AssertionError


def as_v2(request: Any) -> tuple[bytes, bytes]:
    """Convert an inference request to the JSON of an HTTP request, and the binary tensors that follow it.

    Raises:
        Refused: the numbers of raw tensors and of inputs differ.
    """
    contents = request.raw_input_contents
    if contents and len(contents) != len(request.inputs):
        raise Refused(f"raw_input_contents has {len(contents)} tensors for {len(request.inputs)} inputs")
    inputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for number, one in enumerate(request.inputs):
        tensor: dict[str, Any] = {"name": one.name, "datatype": one.datatype, "shape": [*one.shape]}
        if contents:
            raw.append(contents[number])
            tensor["parameters"] = {"binary_data_size": len(raw[-1])}
        elif [field.name for field, _ in one.contents.ListFields()] == [_FIELDS.get(one.datatype)]:
            raw.append(_octets(getattr(one.contents, _FIELDS[one.datatype]), DTYPES[one.datatype]))
            tensor["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            tensor["data"] = [value for _, values in one.contents.ListFields() for value in values]
        inputs.append(tensor)
    outputs = [{"name": one.name, "parameters": _parameters(one.parameters)} for one in request.outputs]
    try:
        head = protocol.dumps({"inputs": inputs, "outputs": outputs})
    except (TypeError, ValueError):  # bytes, or numbers that JSON has not
        raise Refused("contents must be numbers or booleans; others go in raw_input_contents") from None
    return head, b"".join(raw)


def _octets(values: Any, dtype: Any) -> bytes:
    """Return the bytes of a field of numbers; other threads run between its pieces."""
    return b"".join([np.fromiter(values[start : start + PIECE], dtype).tobytes()
                     for start in range(0, len(values), PIECE)])


def _parameters(given: Any) -> dict[str, Any]:
    return {key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in given.items()}


_HANDLERS: dict[str, Handler] = {
    "ServerLive": _live, "ServerReady": _ready, "ModelReady": _model_ready, "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata, "ModelInfer": _infer,
}


# -- the messages of the Open Inference Protocol v2 over gRPC, made from a table: protobuf's compiler is not needed ---
# Reference: https://github.com/kserve/open-inference-protocol (specification/protocol/inference_grpc.md).

PACKAGE, SERVICE = "inference", "inference.GRPCInferenceService"
_TENSOR = ("name:string", "datatype:string", "shape:int64*", "parameters:InferParameter{}", "contents:Contents")
_INFER = ("model_name:string", "model_version:string", "id:string", "parameters:InferParameter{}")
_NAMED = ("name:string", "version:string")
MESSAGES: dict[str, tuple[str, ...]] = {
    "InferParameter": ("bool_param:bool", "int64_param:int64", "string_param:string", "double_param:double",
                       "uint64_param:uint64"),
    "Contents": ("bool_contents:bool*", "int_contents:int32*", "int64_contents:int64*", "uint_contents:uint32*",
                 "uint64_contents:uint64*", "fp32_contents:float*", "fp64_contents:double*", "bytes_contents:bytes*"),
    "InputTensor": _TENSOR,
    "OutputTensor": _TENSOR,
    "WantedTensor": ("name:string", "parameters:InferParameter{}"),
    "TensorMetadata": ("name:string", "datatype:string", "shape:int64*"),
    "ServerLiveRequest": (), "ServerLiveResponse": ("live:bool",),
    "ServerReadyRequest": (), "ServerReadyResponse": ("ready:bool",),
    "ModelReadyRequest": _NAMED, "ModelReadyResponse": ("ready:bool",),
    "ServerMetadataRequest": (), "ServerMetadataResponse": ("name:string", "version:string", "extensions:string*"),
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse": ("name:string", "versions:string*", "platform:string", "inputs:TensorMetadata*",
                              "outputs:TensorMetadata*"),
    "ModelInferRequest": (*_INFER, "inputs:InputTensor*", "outputs:WantedTensor*", "raw_input_contents:bytes*"),
    "ModelInferResponse": (*_INFER, "outputs:OutputTensor*", "raw_output_contents:bytes*"),
}
"""Each message's fields in the order of their numbers: name and type, with * if repeated and {} if a map from texts."""


@cache
def messages() -> dict[str, Any]:
    """Return the messages' classes by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        _describe(descriptor_pb2, file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()  # its own, apart from a client's messages in the same process
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def _describe(kinds: Any, made: Any, fields: tuple[str, ...]) -> None:
    proto = kinds.FieldDescriptorProto
    choice = made.name == "InferParameter"
    if choice:
        made.oneof_decl.add(name="parameter_choice")
    for number, text in enumerate(fields, 1):
        name, _, kind = text.partition(":")
        several, kind = kind.endswith(("*", "{}")), kind.rstrip("*{}")
        field = made.field.add(name=name, number=number)
        if text.endswith("{}"):
            entry = made.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=proto.TYPE_STRING)
            entry.field.add(name="value", number=2, label=1, type=proto.TYPE_MESSAGE, type_name=f".{PACKAGE}.{kind}")
            kind = f"{made.name}.{entry.name}"
        field.label = proto.LABEL_REPEATED if several else proto.LABEL_OPTIONAL
        if choice:
            field.oneof_index = 0
        if kind.split(".")[0] in MESSAGES:
            field.type, field.type_name = proto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            field.type = getattr(proto, f"TYPE_{kind.upper()}")
