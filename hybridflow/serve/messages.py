"""The messages of the Open Inference Protocol v2 over gRPC, made from a table: protobuf's compiler is not needed.

Reference: https://github.com/kserve/open-inference-protocol (specification/protocol/inference_grpc.md).
"""

from __future__ import annotations

from functools import cache
from typing import Any

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
