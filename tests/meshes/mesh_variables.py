"""Meshes, layouts, and Variables that lie on several devices."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.mesh import lies_on_several


def parts(variable):
    """Return the shape of the part on each device."""
    return {shard.data.shape for shard in variable._value.addressable_shards}


def test_a_mesh_has_a_shape_and_a_size():
    mesh = hf.Mesh({"data": 2, "model": -1})
    assert mesh.shape == {"data": 2, "model": 4}
    assert mesh.size == 8
    assert mesh == hf.Mesh({"data": 2, "model": 4})
    assert mesh != hf.Mesh({"model": 2, "data": 4})
    assert hash(mesh) == hash(copy.deepcopy(mesh))
    assert repr(mesh) == "Mesh({'data': 2, 'model': 4})"
    assert hf.Mesh({"data": 2}, devices=["cpu:5", "cpu:6"]).devices[0].id == 5


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ({"data": 16}, hf.LayoutError, "needs 16 devices, there are 8"),
        ({"data": 3, "model": -1}, hf.LayoutError, "8 devices cannot be divided by 3"),
        ({"data": -1, "model": -1}, hf.LayoutError, "several sizes are -1"),
        ({"data": 0}, hf.LayoutError, "axis 'data' has size 0"),
        ({}, hf.LayoutError, "no axis is given"),
        ({"data": 2.0}, TypeError, "an axis is a name with an integer"),
        ({1: 2}, TypeError, "an axis is a name with an integer"),
        (8, TypeError, "sizes are a mapping"),
    ],
)
def test_bad_meshes(sizes, error, text):
    with pytest.raises(error, match=text):
        hf.Mesh(sizes)


@pytest.mark.parametrize(
    ("shape", "layout", "text"),
    [
        ((10, 4), ("data", None), r"Variable 'w': dimension 0 of size 10 cannot be divided by 4[\s\S]*Pad .* to 12"),
        ((8, 4), ("rows", None), "Variable 'w': the mesh has no axis 'rows'"),
        ((8, 4), ("data", "data"), "the mesh axis 'data' is used twice"),
        ((8, 4), (("data", "model"), "model"), "the mesh axis 'model' is used twice"),
        ((8, 4), ("data",), "the layout has 1 entries, the tensor 2 dimensions"),
        ((8, 4), "data", "a layout is a tuple"),
        ((8, 4), (0, None), "a layout is a tuple"),
    ],
)
def test_bad_layouts(shape, layout, text):
    with pytest.raises(hf.LayoutError, match=text):
        hf.Variable(np.zeros(shape), name="w", layout=layout, mesh=hf.Mesh({"data": 4, "model": 2}))
    with pytest.raises(ValueError, match="Variable 'w'"):
        hf.Variable(np.zeros((8, 4)), name="w", layout=("data", None))


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        (("data", None), (2, 6)), ((None, "model"), (8, 3)), (("data", "model"), (2, 3)), (None, (8, 6)),
        ((("data", "model"), None), (1, 6)), ((None, None), (8, 6)),
    ],
)
def test_eager_code_sees_the_values_of_one_device(layout, part):
    value = np.arange(48.0, dtype=np.float32).reshape(8, 6)
    mesh = hf.Mesh({"data": 4, "model": 2})
    v = hf.Variable(value, layout=layout, mesh=mesh)
    assert v.layout == (layout or (None, None))
    assert v.mesh is mesh
    assert parts(v) == {part}
    assert repr(v) == repr(hf.Variable(value, name=v.name))
    np.testing.assert_array_equal((v + v).numpy(), value + value)
    np.testing.assert_array_equal(v[1:3].numpy(), value[1:3])
    with hf.GradientTape() as tape:
        y = hf.sum(v * v)
    np.testing.assert_array_equal(tape.gradient(y, v).numpy(), 2 * value)
    for change in (v.assign, v.assign_add, v.assign_sub):
        change(value)
        assert parts(v) == {part}
    np.testing.assert_array_equal(v.numpy(), value)
    v.assign(v.at[0].set(1.0))
    assert parts(v) == {part}
    assert float(v[0, 0]) == 1.0


def test_copies_keep_the_layout(mesh):
    v = hf.Variable(np.arange(8.0), layout=("data",), mesh=mesh)
    again = copy.deepcopy(v)
    assert again.layout == ("data",)
    assert parts(again) == {(1,)}
    assert pickle.loads(pickle.dumps(v)).layout is None  # other processes may have other devices
    like = hf.Variable(np.zeros(8), like=v)
    assert like.layout == ("data",)
    assert parts(like) == {(1,)}
    assert hf.Variable(0.0, like=v).layout is None


def test_a_gradient_lies_like_its_variable(mesh):
    v = hf.Variable(np.arange(8.0, dtype=np.float32), layout=("data",), mesh=mesh, requires_grad=True)
    hf.sum(v * v).backward()
    np.testing.assert_array_equal(v.grad.numpy(), 2 * np.arange(8.0))
    hf.optim.Adam([v], rate=0.1).update([v.grad])
    assert parts(v) == {(1,)}
    v.zero_grad()


def test_gather_is_a_value_on_one_device(mesh):
    v = hf.Variable(np.arange(8.0), layout=("data",), mesh=mesh)
    made = hf.distribute.gather(v)
    assert not lies_on_several(made._value)
    np.testing.assert_array_equal(made.numpy(), np.arange(8.0))
    with pytest.raises(hf.LayoutError, match="gather: a compiled function's values have no place"):
        hf.compile(hf.distribute.gather)(made)


def test_asarray_of_a_sharded_array_says_that_it_gathers(mesh):
    v = hf.Variable(np.arange(8.0), layout=("data",), mesh=mesh)
    with pytest.warns(hf.LayoutWarning, match="asarray: gathers an array that lies on 8 devices"):
        made = hf.asarray(v._value)
    np.testing.assert_array_equal(made.numpy(), np.arange(8.0))


def test_saving_takes_the_whole_and_loading_keeps_the_layout(mesh, tmp_path):
    v = hf.Variable(np.arange(8.0), layout=("data",), mesh=mesh, name="v")
    hf.save(tmp_path / "v.safetensors", {"v": v})
    v.assign(np.zeros(8))
    hf.load(tmp_path / "v.safetensors", into={"v": v})
    np.testing.assert_array_equal(v.numpy(), np.arange(8.0))
    assert parts(v) == {(1,)}
