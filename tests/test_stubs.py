"""The generated stub of tensor methods is current, and says what the run time does."""

import ast
import inspect

import pytest

import hybridflow as hf
from hybridflow.core.methods import TensorMethods
from hybridflow.ops import stubs


def test_stub_is_current(capsys):
    assert stubs.main(["--check"]) == 0, capsys.readouterr().err


def test_stub_lists_every_installed_method():
    (class_,) = [node for node in ast.parse(stubs.stub_text()).body if isinstance(node, ast.ClassDef)]
    listed = {node.name for node in class_.body if isinstance(node, ast.FunctionDef)}
    installed = {
        name
        for name, value in vars(TensorMethods).items()
        if inspect.isfunction(value) or isinstance(value, property)
    }
    assert listed == installed
    assert {"__add__", "__rsub__", "__getitem__", "sum", "T", "at"} <= listed


def test_methods_that_take_more_than_their_functions():
    x = hf.arange(6)
    assert x.reshape(2, 3).shape == x.reshape((2, 3)).shape == x.reshape(2, -1).shape == (2, 3)
    assert x.reshape(-1).shape == (6,)
    assert x.reshape(3, 2).T.shape == x.reshape(3, 2).mT.shape == (2, 3)
    with pytest.raises(ValueError, match=r"\.T: needs exactly 2 dimensions, there are 1"):
        x.T  # noqa: B018
