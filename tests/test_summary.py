"""What `hf.summary` writes, read back with TensorBoard's own reader."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, MissingPackageError, ShapeError

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def read(logdir):
    found = EventAccumulator(str(logdir))
    found.Reload()
    return found


def values(events, name):
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in events.Tensors(name)]


@pytest.mark.parametrize("compiled", [False, True])
def test_scalars_are_read_back_in_order(compiled, tmp_path: Path):
    with hf.summary.Writer(tmp_path) as writer:

        def step(x, number):
            loss = hf.mean(x * x)
            writer.scalar("train/loss", loss, number)
            return loss

        run = hf.compile(step) if compiled else step
        losses = [float(run(hf.asarray([1.0, float(i)]), hf.asarray(i))) for i in range(4)]
    found = values(read(tmp_path), "train/loss")
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert [float(value) for _, value in found] == losses


@pytest.mark.parametrize("compiled", [False, True])
def test_histograms_count_every_finite_value(compiled, tmp_path: Path):
    data = np.r_[np.linspace(-1, 1, 101), np.nan, np.inf].astype(np.float32)
    with hf.summary.Writer(tmp_path) as writer:

        def write(x):
            writer.histogram("weights", x, 3, buckets=10)
            return x + 1

        (hf.compile(write) if compiled else write)(hf.asarray(data))
    events = read(tmp_path)
    ((number, buckets),) = values(events, "weights")
    assert number == 3
    assert buckets.shape == (10, 3)
    counts, edges = np.histogram(data[:101].astype(np.float64), 10)
    np.testing.assert_array_equal(buckets[:, 2], counts)
    np.testing.assert_allclose(buckets[:, 0], edges[:-1])
    assert "2 of 103 values are not finite" in events.SummaryMetadata("weights").summary_description


@pytest.mark.parametrize("channels", [None, 1, 3, 4])
@pytest.mark.parametrize("compiled", [False, True])
def test_images_are_read_back_to_the_last_pixel(channels, compiled, tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    shape = (5, 7) if channels is None else (5, 7, channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with hf.summary.Writer(tmp_path) as writer:

        def write(x):
            writer.image("sample", x, 0)
            writer.image("floats", hf.astype(x, hf.float32) / 255.0, 0)
            return x

        (hf.compile(write) if compiled else write)(hf.asarray(pixels))
    events = read(tmp_path)
    for name in ("sample", "floats"):
        (event,) = events.Images(name)
        read_back = np.asarray(image.open(io.BytesIO(event.encoded_image_string)))
        np.testing.assert_array_equal(read_back, pixels.reshape(read_back.shape))


def test_texts_are_read_back(tmp_path: Path):
    with hf.summary.Writer(tmp_path) as writer:
        writer.text("notes", "*learning rate* 0.1", 1)
    ((number, text),) = values(read(tmp_path), "notes")
    assert (number, text.item().decode()) == (1, "*learning rate* 0.1")


def test_graphs_have_every_operation_once_and_whole_edges(tmp_path: Path):
    @hf.compile
    def model(x):
        with hf.name_scope("encoder"):
            y = hf.tanh(x)
        return hf.while_loop(lambda y: hf.sum(y) < 3.0, lambda y: y * 2 + 1, (y,))[0]

    x = hf.asarray([0.5, 0.25])
    with hf.summary.Writer(tmp_path) as writer:
        writer.graph(model, x)
    found = read(tmp_path).Graph()
    names = [node.name for node in found.node]
    assert len(set(names)) == len(names)
    assert all(source.partition(":")[0] in names for node in found.node for source in node.input)
    assert "encoder/tanh" in names
    operations = [node.op for node in found.node if node.op not in ("Placeholder", "Identity")]
    assert sorted(operations) == sorted(node.op.name for node in model.graph(x).walk())
    assert any(name.startswith("while_bodies/") for name in names)


def test_variables_and_their_assignments_have_tensorflows_operations(tmp_path: Path):
    given, held = hf.Variable([1.0, 2.0], name="given"), hf.Variable(0.0, name="steps")

    @hf.compile
    def step(x, variable):
        held.assign_add(1.0)
        variable.assign_sub(x * held)
        return hf.sum(variable)

    with hf.summary.Writer(tmp_path) as writer:
        writer.graph(step, hf.asarray([1.0, 1.0]), given)
    found = {node.name: node for node in read(tmp_path).Graph().node}
    inputs = {name: node.op for name, node in found.items() if node.op in ("VariableV2", "Placeholder")}
    assert inputs == {"x": "Placeholder", "given": "VariableV2", "steps": "VariableV2"}
    writes = {name: list(node.input) for name, node in found.items() if node.op == "Assign"}
    assert writes.keys() == {"given_assign", "steps_assign"}
    assert writes["steps_assign"][0] == "steps"
    assert found[writes["steps_assign"][1]].op == "add"
    assert found[writes["given_assign"][1]].op == "subtract"
    assert [node.op for name, node in found.items() if name.startswith("output")] == ["Identity"]


def test_a_write_in_a_branch_that_is_not_taken_does_not_happen(tmp_path: Path):
    with hf.summary.Writer(tmp_path) as writer:

        @hf.compile
        def step(x, number):
            if x > 0:
                writer.scalar("positive", x, number)
            return x

        for number, x in enumerate([1.0, -1.0, 2.0]):
            step(hf.asarray(x), hf.asarray(number))
    assert [number for number, _ in values(read(tmp_path), "positive")] == [0, 2]


def test_a_gradient_writes_once_per_call(tmp_path: Path):
    with hf.summary.Writer(tmp_path) as writer:

        def loss(x):
            y = hf.sum(x * x)
            writer.scalar("loss", y, 0)
            return y

        hf.compile(hf.grad(loss))(hf.asarray([3.0]))
        hf.grad(loss)(hf.asarray([3.0]))
    assert [float(value) for _, value in values(read(tmp_path), "loss")] == [9.0, 9.0]


def test_what_cannot_be_written_says_so_and_leaves_the_file_usable(tmp_path: Path):
    with hf.summary.Writer(tmp_path) as writer:
        with pytest.raises(ShapeError, match=r"'a' must have one element\n.*shape \(2,\)"):
            writer.scalar("a", hf.asarray([1.0, 2.0]), 0)
        with pytest.raises(ArgumentTypeError, match=r"the step of 'a' must be an integer\n.*0\.5"):
            writer.scalar("a", 1.0, 0.5)
        with pytest.raises(ArgumentTypeError, match=r"'a' must be real numbers\n.*complex"):
            writer.scalar("a", hf.asarray(1j), 0)
        with pytest.raises(ShapeError, match=r"shape \(2, 2, 2\)"):
            writer.image("a", hf.zeros((2, 2, 2)), 0)
        with pytest.raises(ArgumentTypeError, match=r"uint8, or floats from 0 to 1\n.*int32"):
            writer.image("a", hf.zeros((2, 2), dtype=hf.int32), 0)
        with pytest.raises(ArgumentError, match="buckets=0"):
            writer.histogram("a", hf.zeros(2), 0, buckets=0)
        with pytest.raises(ArgumentTypeError, match="int is not a graph"):
            writer.graph(3)
        writer.scalar("b", 1.0, 0)
    assert read(tmp_path).Tags()["tensors"] == ["b"]


def test_writing_after_close_is_an_error(tmp_path: Path):
    writer = hf.summary.Writer(tmp_path)
    writer.scalar("a", 1.0, 0)
    writer.close()
    writer.close()
    with pytest.raises(ArgumentError, match="was closed"):
        writer.scalar("a", 1.0, 1)
    assert len(values(read(tmp_path), "a")) == 1


def test_flush_makes_it_readable_before_close(tmp_path: Path):
    with hf.summary.Writer(tmp_path) as writer:
        writer.scalar("a", 2.5, 7)
        writer.flush()
        assert [(number, float(value)) for number, value in values(read(tmp_path), "a")] == [(7, 2.5)]


def test_without_tensorboard_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'hybridflow\[tensorboard\]'"):
        hf.summary.Writer(tmp_path)
