"""`hf.distribute.pipeline`: values and gradients of all schedules are those of a plain loop, with other axes too."""

from __future__ import annotations

import os
import re
from collections import Counter

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, DTypeError, GradientError, ShapeError, TraceError

RNG = np.random.default_rng(0)
WIDTH = 16


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def squares(y, target):
    return hf.mean((y - target) ** 2)


class Block(nn.Module):
    """A residual block, split over an axis or not."""

    def __init__(self, axis=None):
        self.up = nn.Linear(WIDTH, 32, layouts=f"column:{axis}" if axis else None)
        self.down = nn.Linear(32, WIDTH, layouts=f"row:{axis}" if axis else None)

    def forward(self, x):
        return x + self.down(hf.tanh(self.up(x)))


def blocks(count, axis=None):
    nn.init.seed(0)
    return [Block(axis) for _ in range(count)]


def variables_of(stages):
    found = {id(v): v for stage in stages if isinstance(stage, nn.Module) for v in stage.parameters()}
    return list(found.values())


def both(stages, mesh, x, *targets, loss=squares, batch=None, more=(), wrt_x=False, **options):
    """Return the loss and gradients of one device (in float64, sequential) and of a mesh, and the program's trace."""
    variables = [*variables_of(stages), *more]

    def step(x, *targets):
        with hf.GradientTape() as tape:
            if wrt_x:
                tape.watch(x)
            value = hf.distribute.pipeline(stages, x, *targets, loss=loss, **options)
        return value, tape.gradient(value, [*variables, *([x] if wrt_x else [])])

    one = step(*map(hf.asarray, (x, *targets)))
    compiled = hf.compile(step, mesh=mesh, batch=batch)
    return one, compiled(*map(hf.asarray, (x, *targets))), compiled


def require_same(one, other):
    """Hold a value and gradients to those of one device, within 1e-6 of the largest of each."""
    np.testing.assert_allclose(one[0].numpy(), other[0].numpy(), rtol=1e-6)
    assert [None if g is None else (g.shape, g.dtype) for g in one[1]] == [
        None if g is None else (g.shape, g.dtype) for g in other[1]
    ]
    gradients = [(a.numpy(), b.numpy()) for a, b in zip(one[1], other[1], strict=True) if a is not None]
    largest = max(np.abs(a).max() for a, _ in gradients)
    assert largest > 0
    for a, b in gradients:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * largest)


CASES = [
    ({"stage": 4}, 4, 8, "1f1b"),
    ({"stage": 4}, 4, 2, "gpipe"),
    ({"stage": 2}, 4, 3, "interleaved"),
    ({"stage": 2, "data": 2, "model": 2}, 2, 4, "1f1b"),
]
MORE = [
    ({"stage": 4}, 4, 8, "gpipe"),
    ({"stage": 4}, 4, 2, "1f1b"),
    ({"stage": 4}, 4, 1, "gpipe"),
    ({"stage": 2}, 6, 4, "interleaved"),
    ({"stage": 4}, 8, 6, "interleaved"),
    ({"stage": 1}, 1, 4, "1f1b"),
    ({"stage": 1}, 3, 2, "interleaved"),
    ({"data": 2, "stage": 2}, 2, 4, "1f1b"),
    ({"data": 2, "stage": 2, "model": 2}, 4, 4, "interleaved"),
]


@pytest.mark.parametrize(
    ("sizes", "count", "microbatches", "schedule"), [*CASES, *(MORE if os.environ.get("HYBRIDFLOW_PIPELINES") else [])],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_schedules_and_other_axes(sizes, count, microbatches, schedule):
    mesh = hf.Mesh(sizes)
    stages = blocks(count, "model" if "model" in sizes else None)
    if "model" in sizes:
        for stage in stages:
            hf.distribute.shard(stage, mesh, fsdp="data")
    batch = "data" if "data" in sizes else None
    one, other, _ = both(
        stages, mesh, normal(microbatches * 4, 5, WIDTH), normal(microbatches * 4, 5, WIDTH), batch=batch,
        microbatches=microbatches, schedule=schedule, wrt_x=True,
    )
    require_same(one, other)


class Reader(nn.Module):
    """A transformer block with one more product, by einsum."""

    def __init__(self):
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiHeadAttention(WIDTH, 2)
        self.mix = hf.Variable(normal(WIDTH, WIDTH) / 4)

    def forward(self, x):
        return x + hf.einsum("bth,hk->btk", self.attention(self.norm(x)), self.mix)


def test_gradients_are_reduced_over_data_once_per_step():
    nn.init.seed(0)
    stages, mesh = [nn.Embedding(11, WIDTH), Reader()], hf.Mesh({"data": 2, "stage": 2})
    tokens = RNG.integers(0, 11, (16, 6)).astype(np.int32)
    target = normal(16, 6, WIDTH)
    stages[1](stages[0](tokens))  # the attention makes its weights
    one, other, compiled = both(stages, mesh, tokens, target, batch="data", microbatches=4)
    require_same(one, other)
    report = hf.cost(compiled, tokens, target)
    reduced = [row for row in report.communication.rows if row.axes == ("data",) and row.bytes > 4]
    assert len(reduced) >= len(variables_of(stages))
    assert {(row.kind, row.runs) for row in reduced} == {("all-reduce", 1)}
    check = report.against_xla()
    assert check.sent == check.xla_sent


def test_a_gradient_that_no_sum_gives_is_reduced_for_each_microbatch():
    """The gradient of the weight passes through a product with itself, and is no plain sum over rows."""
    weight, mesh = hf.Variable(normal(WIDTH, WIDTH)), hf.Mesh({"data": 2, "stage": 2})
    stages = [lambda x: x @ hf.tanh(weight), lambda x: x]
    x = normal(16, WIDTH)
    one, other, compiled = both(stages, mesh, x, x, batch="data", microbatches=4, more=[weight])
    require_same(one, other)
    rows = [row for row in hf.cost(compiled, x, x).communication.rows if row.shape == (WIDTH, WIDTH)]
    assert [row.runs for row in rows if row.axes == ("data",)] == [4]


def unlike():
    """Return stages of different shapes and structures: tokens in, logits out, the first and last share a matrix."""
    nn.init.seed(1)
    table = hf.Variable(normal(11, WIDTH), name="table")
    scale = hf.asarray(normal(24))
    narrow, wide = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
    return [
        lambda given: {"h": hf.take(table, given["tokens"], axis=0), "mask": given["mask"]},
        lambda value: (narrow(value["h"]) * scale, value["mask"]),
        lambda value: (wide(nn.gelu(value[0])), hf.astype(value[1], hf.float32)),
        lambda value: (value[0] * value[1][..., None]) @ table.T,
    ], [table, *narrow.parameters(), *wide.parameters()]


@pytest.mark.parametrize("schedule", ["1f1b"])
def test_stages_of_different_shapes_share_a_variable(schedule):
    stages, variables = unlike()
    given = {"tokens": RNG.integers(0, 11, (12, 3)).astype(np.int32), "mask": RNG.integers(0, 2, (12, 3)) > 0}
    labels = RNG.integers(0, 11, (12, 3)).astype(np.int32)
    mesh = hf.Mesh({"stage": 4})

    def step(tokens, mask, labels):
        with hf.GradientTape() as tape:
            value = hf.distribute.pipeline(
                stages, {"tokens": tokens, "mask": mask}, labels, microbatches=3, schedule=schedule,
                loss=lambda y, labels: hf.mean(nn.softmax_cross_entropy(y, labels)),
            )
        return value, tape.gradient(value, variables)

    one = step(hf.asarray(given["tokens"]), hf.asarray(given["mask"]), hf.asarray(labels))
    require_same(one, hf.compile(step, mesh=mesh)(given["tokens"], given["mask"], labels))


def test_each_stage_counts_in_a_cost_report():
    """Equal stages are in XLA's program once, and all count: in the total, and in the rows of the modules."""
    stages, x = blocks(4), normal(32, 5, WIDTH)

    def step(x):
        with hf.GradientTape() as tape:
            value = hf.distribute.pipeline(stages, x, x, loss=squares, microbatches=8)
        return value, tape.gradient(value, variables_of(stages))

    plain, report = hf.cost(step, x), hf.cost(hf.compile(step, mesh=hf.Mesh({"stage": 4})), x)
    assert report.macs == plain.macs == sum([row.macs for row in report.layers])
    assert [row.macs for row in report.layers if row.macs] == [row.macs for row in plain.layers if row.macs]


def test_the_loss_alone_and_its_square():
    stages, mesh = blocks(2), hf.Mesh({"stage": 2})
    x, target = normal(8, WIDTH), normal(8, WIDTH)

    def value(x, target):
        return hf.distribute.pipeline(stages, x, target, loss=squares, microbatches=4)

    def square(x, target):
        with hf.GradientTape() as tape:
            loss = value(x, target) ** 2
        return loss, tape.gradient(loss, variables_of(stages))

    np.testing.assert_allclose(value(x, target).numpy(), hf.compile(value, mesh=mesh)(x, target).numpy(), rtol=1e-6)
    require_same(square(hf.asarray(x), hf.asarray(target)), hf.compile(square, mesh=mesh)(x, target))
    gradient = hf.grad(value)
    np.testing.assert_allclose(
        gradient(hf.asarray(x), target).numpy(), hf.compile(gradient, mesh=mesh)(x, target).numpy(), atol=1e-6
    )


def test_two_pipelines_in_one_program_run_once_each():
    stages, mesh = blocks(2), hf.Mesh({"stage": 2})
    x = normal(8, WIDTH)

    def step(x):
        with hf.GradientTape() as tape:
            first = hf.distribute.pipeline(stages, x, x, loss=squares, microbatches=4)
            second = hf.distribute.pipeline(stages, x, x, loss=lambda y, t: hf.mean(y * t), microbatches=4)
            total = first + 2.0 * second
        return (total, first, second), tape.gradient(total, variables_of(stages))

    one, compiled = step(hf.asarray(x)), hf.compile(step, mesh=mesh)
    other = compiled(x)
    for a, b in zip(one[0], other[0], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    require_same((one[0][0], one[1]), (other[0][0], other[1]))
    said = str(compiled.explain())
    assert "one_pipeline" in said
    assert said.count("pipeline: 1f1b of 2 stages on 2 devices, 4 micro-batches at mesh_pipeline.py:") == 2
    assert "each device waits 2 of 10 ticks, a bubble of 20.0%" in said
    assert "no layout asked for it" not in said


def test_a_step_with_an_optimizer_trains_as_on_one_device():
    x, target, losses = normal(16, WIDTH), normal(16, WIDTH), []
    mesh = hf.Mesh({"data": 2, "stage": 2})
    for on in (None, mesh):
        model = nn.Sequential(*blocks(2))
        if on is not None:
            hf.distribute.shard(model, mesh, fsdp="stage")
        optimizer = hf.optim.AdamW(model, rate=0.01, clip=1.0)

        def step(x, target, model=model, optimizer=optimizer):
            with hf.GradientTape() as tape:
                loss = hf.distribute.pipeline(list(model), x, target, loss=squares, microbatches=4)
            optimizer.update(tape.gradient(loss, model))
            return loss

        run = step if on is None else hf.compile(step, mesh=on, batch="data")
        losses.append([run(x, target).item() for _ in range(4)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][3] < losses[0][0]


def test_each_device_keeps_a_part_of_the_weights_and_slots():
    """Split over the stages' axis, weights, slots and XLA's peak shrink; what a device needs comes by all-to-all."""
    mesh, x, peaks, losses = hf.Mesh({"data": 2, "stage": 2}), normal(16, WIDTH), [], []
    parts, count = 2, 4
    for split in (None, "stage"):
        nn.init.seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, 256), hf.tanh, nn.Linear(256, WIDTH))
                                for _ in range(count)])
        if split:
            hf.distribute.shard(model, mesh, fsdp=split)
        optimizer = hf.optim.AdamW(model, rate=0.01)

        def step(x, model=model, optimizer=optimizer):
            with hf.GradientTape() as tape:
                loss = hf.distribute.pipeline(list(model), x, x, loss=squares, microbatches=4, schedule="interleaved")
            optimizer.update(tape.gradient(loss, model))
            return loss

        run = hf.compile(step, mesh=mesh, batch="data")
        report = hf.cost(run, x)
        check, held = report.against_xla(), report.memory.bytes
        peaks.append((held["parameters"], held["slots"], check.xla_peak))
        assert check.sent == check.xla_sent
        assert ("all-to-all" in check.xla_sent) == bool(split)
        assert ("all-gather" in check.xla_sent) != bool(split)
        assert held["peak"] == pytest.approx(check.xla_peak, rel=0.25)
        losses.append([run(x).item() for _ in range(3)])
    whole, divided = peaks
    assert whole[:2] == tuple([parts * one for one in divided[:2]])
    assert divided[2] < {2: 0.8, 4: 0.5}[parts] * whole[2]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_gradients_of_weights_in_parts():
    nn.init.seed(0)
    mesh = hf.Mesh({"stage": 4, "data": 2})
    stages, more = unlike_split(mesh)
    tokens, target = RNG.integers(0, 12, (16, 3)).astype(np.int32), normal(16, 3, 12)
    one, other, compiled = both(stages, mesh, tokens, target, batch="data", microbatches=4, more=more)
    require_same(one, other)
    assert "all-to-all" in hf.cost(compiled, tokens, target).communication.bytes


def unlike_split(mesh):
    """Return unlike stages, the first and last of which share a matrix, with Variables in parts along the stages."""
    table = hf.Variable(normal(12, WIDTH), layout=("stage", None), mesh=mesh, name="table")
    middle = blocks(2)
    for block in middle:
        hf.distribute.shard(block, mesh, fsdp="stage")
    return [lambda tokens: hf.take(table, tokens, axis=0), *middle, lambda x: x @ table.T], [table]


def test_low_precision_and_checkpoints():
    stages, mesh = blocks(2), hf.Mesh({"stage": 2})
    wrapped = [hf.checkpoint(stage) for stage in stages]
    x = normal(8, WIDTH)

    def step(x):
        with hf.GradientTape() as tape, hf.autocast("bfloat16"):
            loss = hf.distribute.pipeline(wrapped, x, x, loss=squares, microbatches=4)
        return loss, tape.gradient(loss, variables_of(stages))

    one, other = step(hf.asarray(x)), hf.compile(step, mesh=mesh)(x)
    np.testing.assert_allclose(one[0].numpy(), other[0].numpy(), rtol=2e-2)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=3e-2 * np.abs(a.numpy()).max() + 1e-6)


def test_checks_of_stages_hold_for_every_microbatch():
    stages, mesh = blocks(2), hf.Mesh({"stage": 2})

    def checked(value):
        hf.debugging.check(hf.all(value < 100.0), "too large")
        return stages[1](value)

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.distribute.pipeline([stages[0], checked], x, x, loss=squares, microbatches=4)
        return loss, tape.gradient(loss, variables_of(stages))

    run, x = hf.compile(step, mesh=mesh), normal(8, WIDTH)
    require_same(step(hf.asarray(x)), run(x))
    x[5] += 1000.0
    for one in (step, run):
        with pytest.raises(AssertionError, match="too large"):
            one(hf.asarray(x))[0].item()


@pytest.mark.parametrize(
    ("sizes", "count", "schedule"), [({"stage": 2}, 2, "gpipe"), ({"data": 2, "stage": 2}, 4, "interleaved")],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_draws_and_statistics_are_those_of_the_loop(sizes, count, schedule):
    """Dropout, batch normalisation and a draw in the loss: bits of draws, statistics and the generator's last state."""
    x, found, mesh = normal(128, WIDTH), [], hf.Mesh(sizes)
    for on in (None, mesh):
        stages = [nn.Sequential(block, nn.BatchNorm(WIDTH), nn.Dropout(0.5)) for block in blocks(count)]
        variables = variables_of(stages)
        run_as = [hf.checkpoint(stages[0]), *stages[1:]]

        def step(x, run_as=run_as, variables=variables):
            with hf.GradientTape() as tape:
                value = hf.distribute.pipeline(
                    run_as, x, x, loss=lambda y, t: squares(y, t) + hf.random.normal(()), microbatches=4,
                    schedule=schedule,
                )
            return value, tape.gradient(value, variables)

        hf.random.seed(3)
        run = step if on is None else hf.compile(step, mesh=on, batch="data" if "data" in sizes else None)
        made = [run(hf.asarray(x)) for _ in range(2)]
        found.append((made, [stage.state_dict() for stage in stages], hf.random.uniform((3,)).numpy()))
    (one, states, draw), (other, states_there, draw_there) = found
    for a, b in zip(one, other, strict=True):
        require_same(a, b)
    assert one[0][0].numpy() != one[1][0].numpy()
    np.testing.assert_array_equal(draw, draw_there)
    for own, there in zip(states, states_there, strict=True):
        for name, value in own.items():
            np.testing.assert_allclose(there[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_stages_that_draw_and_are_equal_run_in_one_branch(monkeypatch):
    stages = [nn.Sequential(block, nn.Dropout(0.5)) for block in blocks(3)]
    made = []
    monkeypatch.setattr(jax.lax, "switch", lambda *a, switch=jax.lax.switch: made.append(len(a[1])) or switch(*a))
    both([*stages, lambda x: x], hf.Mesh({"stage": 4}), normal(8, WIDTH), normal(8, WIDTH), microbatches=2)
    assert made[-1] == 7  # waiting; the first, the middle and the last stages, forward and backward


def test_a_variable_that_its_stage_assigns_and_multiplies_by():
    """Each micro-batch reads what the one before wrote; the gradient is the sum over the reads, as in the loop."""
    x, mesh, found = normal(16, WIDTH), hf.Mesh({"data": 2, "stage": 2}), []
    for on in (None, mesh):
        scale, (block,) = hf.Variable(normal(WIDTH) * 0 + 1), blocks(1)

        def step(x, scale=scale, block=block):
            before = scale * 1.0

            def grow(x):
                y = x * scale * before
                scale.assign(scale * 1.5)
                return y * scale

            with hf.GradientTape() as tape:
                value = hf.distribute.pipeline([block, grow], x, x, loss=squares, microbatches=4)
            return value, tape.gradient(value, [scale, *block.parameters()])

        made = (step if on is None else hf.compile(step, mesh=on, batch="data"))(hf.asarray(x))
        found.append((made, scale.numpy()))
    require_same(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], np.full(WIDTH, 1.5**4, np.float32))
    np.testing.assert_array_equal(found[1][1], found[0][1])


def test_1f1b_needs_at_most_seven_tenths_of_the_temporaries_of_gpipe(monkeypatch):
    made = []
    compile_ = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda self, *a, **k: made.append(compile_(self, *a, **k)) or made[-1]
    )
    x, sizes = normal(16 * 32, WIDTH), {}
    for schedule in ("gpipe", "1f1b"):
        made.clear()
        both(blocks(4), hf.Mesh({"stage": 4}), x, x, microbatches=16, schedule=schedule)
        sizes[schedule] = max(one.memory_analysis().temp_size_in_bytes for one in made)
        kinds = Counter(re.findall(r"(all-\w+|collective-permute)(?:-start)?\(", made[-1].as_text()))
        assert kinds["collective-permute"] == 2  # in the loop: one to the next device, one to the device before
    assert sizes["1f1b"] <= 0.7 * sizes["gpipe"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"microbatches": 3}, ShapeError, "a batch of 8 cannot be cut into 3 equal micro-batches"),
        ({"microbatches": 0}, ArgumentError, "microbatches=0"),
        ({"microbatches": 2.0}, TypeError, "microbatches is a float"),
        ({"schedule": "2f2b"}, ArgumentError, r"schedule='2f2b' is not one of \['gpipe', '1f1b', 'interleaved'\]"),
        ({"axis": "rows"}, hf.LayoutError, "the mesh has no axis 'rows'"),
        ({"loss": lambda y, t: y - t}, ShapeError, "loss must return one scalar"),
        ({"loss": lambda y, t: hf.argmax(hf.sum(y, axis=0))}, DTypeError, "loss returned int32"),
        ({"stages": 3}, ArgumentError, "3 stages for 2 devices along the axis"),
        ({"stages": 4}, ArgumentError, "4 stages for 2 devices along the axis"),
        ({"stages": 3, "schedule": "interleaved"}, ArgumentError, "2 stages or a multiple of it"),
        ({"stages": 0}, ArgumentError, "stages are a list of functions"),
        ({"targets": [normal(4, WIDTH)]}, ShapeError, "leading sizes differ in the batch"),
        ({"targets": [np.float32(1.0)]}, ShapeError, "leading sizes differ in the batch"),
    ],
)
def test_bad_calls(options, error, text):
    options = {"microbatches": 4, "loss": squares, **options}
    stages, targets = blocks(options.pop("stages", 2)), options.pop("targets", [normal(8, WIDTH)])
    run = hf.compile(
        lambda x, *targets: hf.distribute.pipeline(stages, x, *targets, **options), mesh=hf.Mesh({"stage": 2})
    )
    with pytest.raises(error, match=text):
        run(normal(8, WIDTH), *targets)


def test_what_a_pipeline_on_a_mesh_cannot_do():
    mesh, x = hf.Mesh({"stage": 2}), normal(8, WIDTH)
    count = hf.Variable(np.float32(0.0), trainable=False)

    def counting(x):
        count.assign_add(1.0)
        return x * count

    def branching(x):
        return hf.cond(hf.sum(x) > 0, lambda: x + hf.random.normal(x.shape), lambda: x)

    def value(x, stages):
        return hf.distribute.pipeline(stages, x, x, loss=squares, microbatches=4)

    for stages, text in (
        ([counting, counting], "stage 0 assigns Variable 'variable.*', which stage 1 uses too"),
        ([lambda x: x * count, counting], "stage 1 assigns Variable 'variable.*', which stage 0 uses too"),
        ([branching, nn.Dropout(0.5)], "stage 0 assigns Variable 'random_state', which stage 1 uses too"),
    ):
        with pytest.raises(TraceError, match=text):
            hf.compile(value, mesh=mesh)(x, stages)
    assert count.numpy() == 0
    plain = blocks(2)
    second = hf.grad(lambda x: hf.sum(hf.grad(lambda x: value(x, plain))(x)))
    with pytest.raises(GradientError, match="first-order gradients"):
        hf.compile(second, mesh=mesh)(x)
    assert second(hf.asarray(x)).shape == x.shape
    inside = hf.shard_map(lambda x: value(x, plain), mesh, [(None, None)], ())
    with pytest.raises(hf.LayoutError, match=r"inside hf\.shard_map"):
        hf.compile(inside, mesh=mesh)(x)
