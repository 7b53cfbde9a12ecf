"""Specs in the place of tensors: what may be asked of a compiled function without calling it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError

SPEC, OPEN = hf.TensorSpec([4, 3]), hf.TensorSpec([None, 3])


def centred(x: Any, scale: Any = 2.0) -> Any:
    return (x - hf.mean(x, axis=0)) * scale


@pytest.mark.parametrize("stage", ["graph", "optimized", "stablehlo", "hlo"])
def test_a_spec_lowers_as_a_tensor_of_it_does(stage: str):
    x = hf.asarray(np.ones((4, 3), np.float32))
    f = hf.compile(centred, name="f")
    from_spec = f.lower(SPEC).as_text(stage)
    assert f.graph(SPEC) is not None
    assert (f.trace_count, f.compile_count) == (1, 1)
    assert f.lower(x).as_text(stage) == from_spec
    f(x)
    assert (f.trace_count, f.compile_count) == (1, 1)  # the call runs what the spec made


def test_specs_in_structures_and_by_name():
    f = hf.compile(lambda pair, *, more: pair["a"] @ pair["b"] + more)
    given = {"a": SPEC, "b": hf.TensorSpec([3, 2])}
    graph = f.graph(given, more=hf.asarray(1.0))
    assert [str(spec) for spec in graph.output_specs] == ["f32[4,2]"]
    assert "dot" in f.lower(given, more=1.0).as_text("stablehlo")


def test_a_size_that_is_left_open_stays_open():
    f = hf.compile(centred)
    graph = f.graph(OPEN)
    assert str(graph.output_specs[0]) == "f32[x_0,3]"
    lowered = f.lower(OPEN)
    assert "f32[x_0,3]" in lowered.as_text("graph")
    assert "f32[x_0,3]" in lowered.as_text("optimized")
    for stage in ("stablehlo", "hlo"):
        with pytest.raises(ArgumentError, match="XLA compiles centred for sizes, and one of them is open"):
            lowered.as_text(stage)
    with pytest.raises(ArgumentError, match="Give a TensorSpec without None"):
        lowered.executable  # noqa: B018
    for size in (2, 5):
        f(hf.ones((size, 3)))
    assert (f.trace_count, f.compile_count) == (1, 2)


def test_specs_take_no_memory():
    f = hf.compile(lambda x: hf.sum(x * 2))
    huge = hf.TensorSpec([1 << 20, 1 << 20])
    assert str(f.graph(huge).input_specs[0]) == "f32[1048576,1048576]"
    assert "1048576x1048576xf32" in f.lower(huge).as_text("stablehlo")


def test_methods_take_specs():
    class Model:
        def __init__(self):
            self.w = hf.Variable(np.ones((3, 2), np.float32))

        @hf.compile
        def __call__(self, x: Any) -> Any:
            return x @ self.w

    model = Model()
    assert str(model.__call__.graph(OPEN).output_specs[0]) == "f32[x_0,2]"
    assert "dot" in model.__call__.lower(SPEC).as_text("hlo")
    assert model.__call__.concrete(OPEN)(hf.ones((2, 3))).shape == (2, 2)


def test_specs_meet_an_input_signature():
    f = hf.compile(centred, input_signature=[OPEN])
    f(hf.ones((2, 3)))
    assert str(f.graph(OPEN).output_specs[0]) == "f32[x_0,3]"
    assert "tensor<4x3xf32>" in f.lower(SPEC).as_text("stablehlo")
    assert f.trace_count == 1
    with pytest.raises(TypeError, match="its input_signature is"):
        f.graph(hf.TensorSpec([3]))
