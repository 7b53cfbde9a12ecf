"""``tf.saved_model``: signatures of a session as an artifact of `hf.export`, which holds data and no code."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import hybridflow as hf
from hybridflow.compat.v1.functions import placeholder
from hybridflow.compat.v1.graph import Tensor, added
from hybridflow.compat.v1.session import Session
from hybridflow.core.errors import ArgumentError

_KEY = "tensorflow_v1"
_DEFAULT = "serving_default"


class TensorInfo(NamedTuple):
    """A tensor of a signature.

    Attributes:
        name: its name in the graph, such as ``x:0``.
        dtype: its dtype.
        tensor: the tensor itself, where the signature is being made.
    """

    name: str
    dtype: Any
    tensor: Tensor | None = None


class SignatureDef(NamedTuple):
    """Inputs and outputs of a function: tensors by the names that users of the artifact know."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    method_name: str = ""


class MetaGraphDef(NamedTuple):
    """What `loader.load` returns: signatures by name."""

    signature_def: dict[str, SignatureDef]


def build_tensor_info(tensor: Tensor) -> TensorInfo:
    """Return a tensor as a part of a signature."""
    return TensorInfo(tensor.name, tensor.dtype, tensor)


def build_signature_def(
    inputs: Mapping[str, TensorInfo], outputs: Mapping[str, TensorInfo], method_name: str = ""
) -> SignatureDef:
    """Return a signature."""
    return SignatureDef(dict(inputs), dict(outputs), method_name)


def predict_signature_def(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> SignatureDef:
    """Return a signature of tensors by name."""
    return SignatureDef(
        {name: build_tensor_info(one) for name, one in inputs.items()},
        {name: build_tensor_info(one) for name, one in outputs.items()},
    )


class SavedModelBuilder:
    """Writes signatures of a session, with its Variables' values, as an artifact; `hf.export.load` reads it too.

    Args:
        export_dir: the directory, which must not exist.
    """

    def __init__(self, export_dir: str | os.PathLike[str]) -> None:
        self._path = os.fspath(export_dir)
        self._functions: dict[str, Any] = {}
        self._signatures: dict[str, Any] = {}

    def add_meta_graph_and_variables(
        self, sess: Session, tags: Sequence[str], signature_def_map: Mapping[str, SignatureDef] | None = None
    ) -> None:
        """Add the signatures of a session.

        Args:
            sess: the session.
            tags: not used: an artifact has one graph per signature.
            signature_def_map: signatures by name.

        Raises:
            ArgumentError: there are no signatures, or a Variable has no value in the session.
        """
        del tags
        if not signature_def_map:
            raise ArgumentError("SavedModelBuilder: there is no signature",
                                hint="Pass signature_def_map={'serving_default': s}.")
        for name, signature in signature_def_map.items():
            inputs, outputs = _tensors(signature.inputs), _tensors(signature.outputs)
            function = _keyed(sess.function(outputs, inputs), [*signature.inputs], [*signature.outputs])
            specs = [
                hf.TensorSpec([size.value for size in one.get_shape()], one.dtype, key)
                for key, one in zip(signature.inputs, inputs, strict=True)
            ]
            self._functions[name] = (function, *specs)
            self._signatures[name] = {
                "inputs": {key: one.name for key, one in zip(signature.inputs, inputs, strict=True)},
                "outputs": {key: one.name for key, one in zip(signature.outputs, outputs, strict=True)},
                "method_name": signature.method_name,
            }

    def save(self, as_text: bool = False) -> str:
        """Write the artifact and return its directory."""
        del as_text
        hf.export.save(self._path, metadata={_KEY: json.dumps(self._signatures)}, **self._functions)
        return self._path


def _tensors(infos: Mapping[str, TensorInfo]) -> list[Tensor]:
    return [one.tensor for one in infos.values() if one.tensor is not None]


def _keyed(function: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Return a function whose parameters and results have the names of a signature."""

    def call(*values: Any) -> dict[str, Any]:
        return dict(zip(outputs, function(*values), strict=True))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    cast(Any, call).__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in inputs])
    return call


def simple_save(session: Session, export_dir: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Write one signature of a session, ``serving_default``, as an artifact."""
    maker = SavedModelBuilder(export_dir)
    maker.add_meta_graph_and_variables(session, ["serve"], {_DEFAULT: predict_signature_def(inputs, outputs)})
    maker.save()


def load(sess: Session, tags: Sequence[str], export_dir: str | os.PathLike[str]) -> MetaGraphDef:
    """Add an artifact's signatures to a session's graph, under the saved names; weights become constants.

    Args:
        sess: the session.
        tags: not used.
        export_dir: the artifact's directory.

    Returns:
        The signatures; ``graph.get_tensor_by_name`` finds their tensors.
    """
    del tags
    loaded = hf.export.load(export_dir, copy=True)
    signatures: dict[str, SignatureDef] = {}
    with sess.graph.as_default() as graph:
        for name, names in json.loads(loaded.metadata[_KEY]).items():
            function: Any = getattr(loaded, name)
            specs = dict(zip(names["inputs"], function.inputs.values(), strict=True))
            inputs = {
                key: placeholder(spec.dtype, list(spec.shape), names["inputs"][key].partition(":")[0])
                for key, spec in specs.items()
            }
            outputs = added(function, tuple(inputs.values()), {}, name)
            for key, tensor in [*inputs.items(), *outputs.items()]:
                label = (names["inputs"] | names["outputs"])[key].partition(":")[0]
                graph.named.setdefault(label, tensor)
            signatures[name] = predict_signature_def(
                inputs, {key: graph.get_tensor_by_name(label) for key, label in names["outputs"].items()}
            )
    return MetaGraphDef(signatures)


builder = SimpleNamespace(SavedModelBuilder=SavedModelBuilder)
loader = SimpleNamespace(load=load)
utils = SimpleNamespace(build_tensor_info=build_tensor_info)
signature_def_utils = SimpleNamespace(
    build_signature_def=build_signature_def, predict_signature_def=predict_signature_def
)
tag_constants = SimpleNamespace(SERVING="serve", TRAINING="train")
signature_constants = SimpleNamespace(
    DEFAULT_SERVING_SIGNATURE_DEF_KEY=_DEFAULT, PREDICT_METHOD_NAME="tensorflow/serving/predict",
    CLASSIFY_METHOD_NAME="tensorflow/serving/classify", REGRESS_METHOD_NAME="tensorflow/serving/regress",
    PREDICT_INPUTS="inputs", PREDICT_OUTPUTS="outputs", CLASSIFY_INPUTS="inputs",
    CLASSIFY_OUTPUT_CLASSES="classes", CLASSIFY_OUTPUT_SCORES="scores", REGRESS_INPUTS="inputs",
    REGRESS_OUTPUTS="outputs",
)
