"""`hf.simulate` and `hybridflow simulate`: published step times and memory, closed forms, and what cannot be done."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import megatron
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.analysis.simulation.links import collective_seconds, link_of
from hybridflow.analysis.simulation.sweep import factorings
from hybridflow.cli.main import main
from hybridflow.core.errors import ArgumentError, ArgumentTypeError

A100 = hf.Hardware.load("a100-80gb")
EXACT = dataclasses.replace(A100, attainable={"products": 1.0, "others": 1.0, "memory": 1.0, "links": 1.0})


@pytest.mark.parametrize("name", ["1.7B", "7.5B", "18.4B"])
def test_published_step_times_of_data_and_tensor_parallel_training(name):
    row = megatron.ROWS[name]
    found = megatron.simulated(row)
    assert found.devices == row.devices
    assert found.seconds == pytest.approx(row.seconds, rel=0.3)
    assert found.bubble == 0


@pytest.mark.parametrize("name", ["39.1B", "145.6B"])
def test_published_step_times_with_a_pipeline(name):
    row = megatron.ROWS[name]
    found = megatron.piped(row)
    parameters = row.layers * 12 * row.hidden**2 / (row.tensor * row.stages)
    reduced = collective_seconds("all-reduce", 2 * parameters, link_of(
        {"data": row.replicas, "stage": row.stages, "model": row.tensor}, ["data"], A100
    ))
    assert found.seconds + reduced == pytest.approx(row.seconds, rel=0.3)
    assert found.share("bubble") == pytest.approx(row.bubble, rel=0.3)


def state_bytes(stage):
    """The bytes of model states on each of 64 devices, with 7.5 billion parameters, for a stage of ZeRO."""
    rows, columns = 75_008, 99_968
    split, whole = ("data", None), (None, None)

    def step(x, weight, master, first, second):
        with hf.GradientTape() as tape:
            tape.watch(weight)
            loss = hf.mean(x @ weight)
        return tape.gradient(loss, weight), master + first + second

    layouts = {"x": split, "weight": split if stage == 3 else whole,
               **dict.fromkeys(("master", "first", "second"), split if stage else whole)}
    compiled = hf.compile(step, mesh=hf.Mesh({"data": 1}), in_layouts=layouts,
                          out_layouts=(split if stage >= 2 else whole, split if stage else whole))
    wide = [hf.TensorSpec((rows, columns)) for _ in range(3)]
    found = hf.simulate(compiled, hf.TensorSpec((64, rows), "bfloat16"), hf.TensorSpec((rows, columns), "bfloat16"),
                        *wide, mesh={"data": 64}, hardware=A100)
    held = found.cost.memory
    gradient = sum([one.bytes for one in held.results if one.spec.startswith("bf16")])
    return sum([one.bytes for one in held.arguments if one.name != "x"]) + gradient


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_published_memory_of_model_states(stage, gigabytes):
    """Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, figure 1.

    There are 7.5 billion parameters, 64 devices, and 12 bytes of optimizer states per parameter (arXiv:1910.02054).
    """
    assert state_bytes(stage) / 1e9 == pytest.approx(gigabytes, rel=0.1)


def test_products_are_divided_as_their_layouts_say():
    mesh = hf.Mesh({"data": 1, "model": 1})
    size = hf.TensorSpec([4096, 4096])
    once = 2 * 4096**3 / A100.products["float32"]
    there: Any = {"mesh": {"data": 2, "model": 4}, "hardware": EXACT}
    split = hf.compile(lambda x, w: x @ w, mesh=mesh, in_layouts={"x": ("data", "model"), "w": ("model", None)})
    found = hf.simulate(split, size, size, **there)
    assert found.compute == pytest.approx(once / 8)
    (sent,) = found.collectives
    n, count = 4, 2048 * 4096 * 4
    assert (sent.row.kind, sent.row.bytes, sent.is_inside) == ("all-reduce", count, True)
    assert sent.seconds == pytest.approx(2 * (n - 1) * 3.4e-6 + 2 * (n - 1) / n * count / 300e9)
    assert found.seconds == found.compute + found.communication == found.compute + sent.seconds
    repeated = hf.simulate(hf.compile(lambda x, w: x @ w, mesh=mesh), size, size, **there)
    assert repeated.compute == pytest.approx(once)
    alone = hf.simulate(lambda x, w: x @ w, size, size, hardware=EXACT)
    assert (alone.compute, alone.mesh, alone.devices, alone.collectives) == (pytest.approx(once), {}, 1, ())


def test_pointwise_operations_move_what_they_read_and_write():
    def chain(x):
        return hf.tanh(hf.exp(x * 2) + 1)

    found = hf.simulate(chain, hf.TensorSpec([2**24]), hardware=EXACT)
    assert found.seconds == pytest.approx(2 * 2**24 * 4 / 2.039e12)
    looped = hf.simulate(lambda x: hf.scan(lambda c, _: (chain(c), None), x, hf.zeros((5, 1)))[0],
                         hf.TensorSpec([2**24]), hardware=EXACT)
    assert looped.seconds == pytest.approx(5 * found.seconds, rel=0.01)


def test_collectives_are_rings():
    link = link_of({"data": 4}, ["data"], EXACT)
    size = 1e9
    gathered, reduced = collective_seconds("all-gather", size, link), collective_seconds("all-reduce", size, link)
    scattered = collective_seconds("reduce-scatter", size / 4, link)
    assert reduced == pytest.approx(gathered + scattered)
    assert collective_seconds("collective-permute", size, link) == pytest.approx(3.4e-6 + size / 300e9)
    assert collective_seconds("all-reduce", size, link_of({"data": 1}, ["data"], EXACT)) == 0


def test_the_last_axis_of_a_mesh_is_in_one_node():
    mesh = {"data": 16, "model": 8}
    inside, outside = link_of(mesh, ["model"], EXACT), link_of(mesh, ["data"], EXACT)
    assert (inside.is_inside, inside.devices, inside.bandwidth) == (True, 8, 300e9)
    assert (outside.is_inside, outside.devices, outside.bandwidth) == (False, 16, 25e9)
    both = link_of(mesh, ["data", "model"], EXACT)
    assert (both.devices, both.bandwidth) == (128, 200e9)  # eight adapters of a node
    assert both.latency == pytest.approx(7 * 3.4e-6 + 15 * 14e-6)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8)])
def test_the_bubble_of_a_pipeline(stages, microbatches):
    layers = [nn.Linear(1024, 1024) for _ in range(stages)]
    weights = [one.weight for one in layers]

    def step(x, y):
        with hf.GradientTape() as tape:
            tape.watch(x)
            loss = hf.distribute.pipeline(layers, x, y, loss=lambda a, b: hf.mean((a - b) ** 2),
                                          microbatches=microbatches, schedule="gpipe")
        return loss, tape.gradient(loss, [x, *weights])

    fast = dataclasses.replace(EXACT, inside={"bandwidth": 1e30, "latency": 1e-30})
    spec = hf.TensorSpec([microbatches * 1024, 1024])
    found = hf.simulate(hf.compile(step, mesh=hf.Mesh({"stage": 1})), spec, spec, mesh={"stage": stages}, hardware=fast)
    ideal = (stages - 1) / (microbatches + stages - 1)
    assert ideal <= found.share("bubble") < 1.1 * ideal  # the last stage computes the loss too
    assert "In a pipeline each tick" in str(found)


def model_step(mesh: hf.Mesh) -> Any:
    """Return a compiled step of a tensor parallel model."""
    model = nn.Sequential(nn.Linear(64, 256, layouts="column:model"), nn.gelu, nn.Linear(256, 64, layouts="row:model"))
    hf.distribute.shard(model, mesh)

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(model(x) ** 2)
        return loss, tape.gradient(loss, model)

    return hf.compile(step, mesh=mesh, batch="data")


def test_a_sweep_has_the_fastest_mesh_that_fits_first(tmp_path: Path):
    step = model_step(hf.Mesh({"data": 1, "model": 1}))
    spec = hf.TensorSpec([2**16, 64])
    found = hf.simulate_meshes(step, spec, devices=12, hardware=A100)
    assert [one.mesh for one in found.simulations if one.mesh["model"] in (3, 6, 12)] == []
    assert len(found.simulations) == 3
    assert sum(["dimension 0 of size 256 cannot be divided" in note for note in found.notes]) == 3
    times = [one.seconds for one in found.simulations]
    assert times == sorted(times)
    assert found.best is found.simulations[0]
    assert found.best.seconds == hf.simulate(step, spec, mesh=found.best.mesh, hardware=A100).seconds
    most = min([one.memory for one in found.simulations])
    small = hf.simulate_meshes(step, spec, devices=12, hardware=dataclasses.replace(A100, memory_bytes=most))
    assert [one.fits for one in small.simulations] == [True, False, False]
    nothing = hf.simulate_meshes(step, spec, devices=4, hardware=dataclasses.replace(A100, memory_bytes=1))
    assert nothing.best is None
    small.to_svg(tmp_path / "meshes.svg")
    text = (tmp_path / "meshes.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text.count(": too much") == 2
    assert "data=12, model=1" in str(found)
    assert "is not possible" in found._repr_html_()


@pytest.mark.parametrize(("number", "axes"), [(1, 1), (12, 2), (64, 3), (7, 2)])
def test_factorings(number, axes):
    made = list(factorings(number, axes))
    assert len(made) == len(set(made))
    assert all(math.prod(one) == number and len(one) == axes for one in made)
    assert {tuple(sorted(one)) for one in made} >= {tuple(sorted((number, *[1] * (axes - 1))))}


@pytest.mark.parametrize("name", hf.Hardware.shipped())
def test_shipped_hardware_names_its_sources(name):
    found = hf.Hardware.load(name)
    assert {"products", "others", "memory_bytes", "memory_bandwidth", "devices_per_node", "inside", "between",
            "attainable"} == set(found.sources)
    assert found.products["bfloat16"] > found.products["float32"]
    assert found.inside["bandwidth"] > found.between["bandwidth"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("memory_bytes = 80e9", "", "memory_bytes is missing"),
        ("memory_bytes = 80e9", "memory_bytes = -1", "memory_bytes = -1 is no positive number"),
        ("products = 0.75", "products = 1.5", "attainable.products = 1.5 is more than 1"),
        ("latency = 3.4e-6", "delay = 1", "inside has ['bandwidth', 'delay']"),
        ("devices_per_node = 8", "devices_per_node = 8\nspeed = 1", "speed is unknown"),
        ("[between]", "[[between]]", "between is no table"),
        ('platform = "cuda"', "platform = 1", "platform is no text"),
        ("memory_bytes = 80e9", "memory_bytes", "is not TOML"),
    ],
)
def test_a_hardware_file_with_a_fault(old, new, text, tmp_path: Path):
    folder = Path(hf.analysis.__file__).parent / "simulation" / "machines"
    whole = (folder / "a100-80gb.toml").read_text(encoding="utf-8")
    assert old in whole
    path = tmp_path / "own.toml"
    path.write_text(whole)
    assert hf.Hardware.load(path) == A100
    path.write_text(whole.replace(old, new, 1))
    with pytest.raises(ArgumentError, match=re.escape(text)):
        hf.Hardware.load(path)


def test_what_cannot_be_simulated():
    with pytest.raises(ArgumentError, match=r"there is no 'a100-80g'(.|\n)*Did you mean 'a100-80gb'"):
        hf.simulate(hf.tanh, hf.TensorSpec([4]), hardware="a100-80g")
    with pytest.raises(ArgumentTypeError, match="hardware is a name"):
        hf.simulate(hf.tanh, hf.TensorSpec([4]), hardware=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="leaves a size open"):
        hf.simulate(lambda x: hf.tanh(x), hf.TensorSpec([None]), hardware=A100)
    with pytest.raises(ArgumentError, match="compiled for no mesh"):
        hf.simulate_meshes(lambda x: hf.tanh(x), hf.TensorSpec([4]), devices=4, hardware=A100)
    with pytest.raises(ArgumentError, match="devices=0"):
        hf.simulate_meshes(lambda x: hf.tanh(x), hf.TensorSpec([4]), devices=0, hardware=A100, axes=["data"])


PROGRAM = """
import hybridflow as hf

def plain(x):
    return hf.mean(x)

step = hf.compile(plain, mesh=hf.Mesh({"data": 1, "model": 1}), batch="data", name="step")
step_args = (hf.TensorSpec([4096, 8]),)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_command(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "page.html"
    assert main(["simulate", f"{program}:step", "--mesh", "data=256,model=8", "--hardware", "h100-sxm",
                 "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "data=256, model=8" in printed
    assert "all-reduce" in printed
    assert "Assumed" in printed
    assert "H100" in out.read_text(encoding="utf-8")
    picture = tmp_path / "meshes.svg"
    assert main(["simulate", f"{program}:plain", "--shapes", "f32[64,8]", "--devices", "8", "--axes", "data", "--batch",
                 "data", "--hardware", "tpu-v4", "--out", str(picture)]) == 0
    assert "data=8" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mesh", "data"], "'data' is no axis with a size"),
        (["--mesh", "data=2", "--devices", "2"], "give either --mesh or --devices"),
        (["--mesh", "data=3,model=1", "--batch", "data"], "--batch is for functions that are not compiled"),
        (["--mesh", "data=2", "--out", "x.svg"], "End it in .html"),
        (["--mesh", "other=3"], "'data'"),
    ],
)
def test_wrong_commands(arguments, text, program: str, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", f"{program}:step", "--hardware", "a100-80gb", *arguments]) == 2
    assert text in " ".join(capsys.readouterr().err.split())
