"""Schedules of pipelines: complete, in order, within memory, and with the bubble that the formula says."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.nested.schedules import SCHEDULES, Action, places

SIZES = st.integers(1, 8), st.integers(1, 20), st.integers(1, 3)
few = settings(max_examples=20)
schedule_of = hf.distribute.pipeline_schedule


def share(schedule):
    """Return the bubble as a fraction."""
    ticks = len(schedule.table) * schedule.devices
    return Fraction(sum(one is None for row in schedule.table for one in row), ticks)


@pytest.mark.always
@few
@given(*SIZES, st.sampled_from(SCHEDULES), st.booleans())
def test_every_pass_runs_once_after_what_it_needs(devices, microbatches, several, name, forward_only):
    stages = devices * (several if name == "interleaved" else 1)
    schedule = schedule_of(name, stages, microbatches, devices=devices, forward_only=forward_only)
    when = {action: tick for tick, _, action in schedule.actions()}
    kinds = (False,) if forward_only else (False, True)
    everything = {Action(s, m, back) for s in range(stages) for m in range(microbatches) for back in kinds}
    assert set(when) == everything
    assert len(list(schedule.actions())) == len(everything)
    for tick, device, action in schedule.actions():
        stage, number, backward = action
        assert device == stage % devices
        if backward:
            assert when[Action(stage, number, False)] < tick
        before = Action(stage + 1, number, True) if backward else Action(stage - 1, number, False)
        assert before not in when or when[before] < tick


@few
@given(*SIZES)
def test_the_bubble_is_exactly_the_formula(devices, microbatches, several):
    for name in ("gpipe", "1f1b"):
        schedule = schedule_of(name, devices, microbatches)
        assert share(schedule) == Fraction(devices - 1, microbatches + devices - 1)
        assert schedule.bubble == pytest.approx(float(share(schedule)))
    whole = microbatches * devices  # interleaved: a multiple of the devices
    schedule = schedule_of("interleaved", devices * several, whole, devices=devices)
    assert share(schedule) == Fraction(devices - 1, several * whole + devices - 1)
    forward = schedule_of("1f1b", devices, microbatches, forward_only=True)
    assert len(forward.table) == microbatches + devices - 1


@few
@given(*SIZES[:2])
def test_1f1b_keeps_no_more_microbatches_than_stages_remain(devices, microbatches):
    for name, limit in (("1f1b", lambda device: devices - device), ("gpipe", lambda _: microbatches)):
        under_way = [0] * devices
        for _, device, action in schedule_of(name, devices, microbatches).actions():
            under_way[device] += -1 if action.backward else 1
            assert under_way[device] <= limit(device)


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 9)), max_size=40))
def test_places_are_never_shared_at_the_same_time(lives):
    lives = [(number, device, first, first + length) for number, (device, first, length) in enumerate(lives)]
    found = places(lives)
    most = 0
    for a, device, first, last in lives:
        for b, other, start, end in lives:
            if a != b and device == other and found.of[a] == found.of[b]:
                assert last <= start or end <= first
        most = max(most, sum(other == device and start <= first < end for _, other, start, end in lives))
    assert found.needed == most


def test_a_schedule_is_text_and_a_picture(tmp_path):
    schedule = schedule_of("interleaved", 4, 2, devices=2)
    lines = str(schedule).splitlines()
    assert lines[0] == "interleaved: 4 stages, 2 micro-batches, 10 ticks, 20.0 % of them waiting"
    assert re.sub(" +", " ", lines[1]) == "device 0: F0/0 F1/0 F0/2 F1/2 . B0/2 . B1/2 B0/0 B1/0"
    schedule.to_svg(tmp_path / "schedule.svg")
    picture = (tmp_path / "schedule.svg").read_text(encoding="utf-8")
    assert picture.count("<rect") == 1 + 16
    assert "tick 0: forward of micro-batch 0, stage 0" in picture
    assert "20.0 % of them waiting" in picture


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: schedule_of("zero", 2, 2), ValueError, r"'zero' is not one of \['gpipe', '1f1b', 'interleaved'\]"),
        (lambda: schedule_of("1f1b", 2.0, 2), TypeError, "stages is a float"),
        (lambda: schedule_of("1f1b", 2, 0), ValueError, "microbatches=0"),
        (lambda: schedule_of("1f1b", 4, 2, devices=2), ValueError, "4 stages for 2 devices"),
        (lambda: schedule_of("interleaved", 5, 2, devices=2), ValueError, "2 stages or a multiple of it"),
    ],
)
def test_bad_schedules(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("compiled", [False, True])
def test_without_a_mesh_a_pipeline_is_a_loop(compiled):
    stages = [lambda x: x * 2.0, lambda x: hf.sin(x)]

    def value(x):
        return hf.distribute.pipeline(stages, x, loss=lambda y: hf.mean(y), microbatches=3)

    x = hf.asarray([[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]])
    run = hf.compile(value) if compiled else value
    assert run(x).item() == pytest.approx(hf.mean(hf.sin(2.0 * x)).item())
    gradient = (hf.compile(hf.grad(value)) if compiled else hf.grad(value))(x)
    assert gradient.numpy() == pytest.approx(2 * hf.cos(2.0 * x).numpy() / 6)
    with pytest.raises(ValueError, match="cannot be cut into 3 equal micro-batches"):
        run(x[:4])
