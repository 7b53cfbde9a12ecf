"""The generated stub of tensor methods is current, and says what the run time does."""

import ast
import inspect
import sys

import pytest

import hybridflow as hf
from hybridflow import later
from hybridflow.core.methods import TensorMethods
from hybridflow.core.op import REGISTRY
from hybridflow.ops import stubs


def test_stub_is_current(capsys):
    assert stubs.main(["--check"]) == 0, capsys.readouterr().err


def test_stub_lists_every_installed_method():
    (class_,) = [node for node in ast.parse(stubs.stub_text()).body if isinstance(node, ast.ClassDef)]
    listed = {node.name for node in class_.body if isinstance(node, ast.FunctionDef)}
    installed = {
        name for name, value in vars(TensorMethods).items() if inspect.isfunction(value) or isinstance(value, property)
    }
    assert listed == installed
    assert {"__add__", "__rsub__", "__getitem__", "sum", "T", "at"} <= listed


SHARED = {"conv_input_gradient", "conv_kernel_gradient", "jax_function"}
"""Operations that other modules of the package call, and no public names."""


def test_public_operations_are_listed():
    """Type checkers and star imports read ``__all__``: a family's own public operations are there, inner ones not."""
    later.register_rest()
    for op in REGISTRY.values():
        module = sys.modules[getattr(op.public, "__module__", None) or "hybridflow"]
        name, listed = getattr(op.public, "__name__", ""), getattr(module, "__all__", None)
        if listed is not None and vars(module).get(name) is op.public:
            hidden = op.has("inner") or name in SHARED or name.startswith("_")
            assert (name in listed) is not hidden, name


def test_methods_that_take_more_than_their_functions():
    x = hf.arange(6)
    assert x.reshape(2, 3).shape == x.reshape((2, 3)).shape == x.reshape(2, -1).shape == (2, 3)
    assert x.reshape(-1).shape == (6,)
    assert x.reshape(3, 2).T.shape == x.reshape(3, 2).mT.shape == (2, 3)
    with pytest.raises(ValueError, match=r"\.T: needs exactly 2 dimensions, there are 1"):
        x.T  # noqa: B018
