"""`hf.data`: batches, orders, positions, and the thread that makes them ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import Photos
from processes import run_python

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError, WorkerError


def values(batches: Any) -> list[list[int]]:
    return [one.numpy().tolist() for one in batches]


def test_structures_and_sequences():
    x = np.arange(6).reshape(3, 2)
    (single,) = [one.numpy() for one in hf.data.Batches(x, 5)]
    np.testing.assert_array_equal(single, x)
    first = next(iter(hf.data.Batches({"x": x, "y": (x, x)}, 2)))
    assert first["x"].shape == (2, 2)
    assert first["y"][1].shape == (2, 2)
    examples = [(np.float32(i), {"n": i}) for i in range(5)]
    a, b = next(iter(hf.data.Batches(examples, 3)))
    assert a.numpy().tolist() == b["n"].numpy().tolist() == [0, 1, 2]


def test_batches_do_not_change_with_the_data():
    x = np.arange(4)
    batch = next(iter(hf.data.Batches(x, 2)))
    x[:] = 9
    assert batch.numpy().tolist() == [0, 1]


def test_orders_are_the_seeds_and_cover_all():
    data, again = (hf.data.Batches(np.arange(10), 3, shuffle=True, seed=4) for _ in range(2))
    epochs = [values(data) for _ in range(3)]
    assert epochs == [values(again) for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert all(sorted(chain(*one)) == list(range(10)) for one in epochs)
    assert len(values(hf.data.Batches(np.arange(10), 3, drop_last=True))) == 3


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_a_position_is_taken_up(ahead: int, stop: int):
    def make() -> Any:
        data = hf.data.Batches(np.arange(10), 3, shuffle=True, seed=4)
        return data.prefetch(ahead) if ahead else data

    def forever(data: Any) -> Any:
        while True:
            for one in data:
                yield one.numpy().tolist(), data.state()

    straight = forever(make())
    expected = [next(straight)[0] for _ in range(10)]
    begun = forever(make())
    seen = [next(begun) for _ in range(stop)]
    begun.close()
    other = make()
    other.restore(seen[-1][1])
    rest = forever(other)
    assert [one for one, _ in seen] + [next(rest)[0] for _ in range(10 - stop)] == expected
    for one in (straight, rest):
        one.close()


def threads() -> int:
    return sum(one.name == "hybridflow-prefetch" for one in threading.enumerate())


def test_the_thread_ends_with_the_loop():
    def endless() -> Any:
        while True:
            yield 1

    for _ in hf.data.prefetch(endless(), 2):
        assert threads() == 1
        break
    assert threads() == 0
    assert list(hf.data.prefetch(range(3))) == [0, 1, 2]
    assert threads() == 0


def test_errors_arrive_with_their_place():
    def broken(batch: Any) -> Any:
        raise KeyError("planted")

    data = hf.data.Batches(np.arange(4), 2).map(broken).prefetch(2)
    with pytest.raises(KeyError, match="planted") as caught:
        list(data)
    assert "broken" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert threads() == 0


def test_wrong_data_is_refused():
    with pytest.raises(ArgumentError, match=r"there is no batch\n  got: 0 examples"):
        hf.data.Batches(np.zeros((0, 3)), 2)
    with pytest.raises(ArgumentError, match="drop_last=True"):
        hf.data.Batches(np.zeros(3), 4, drop_last=True)
    with pytest.raises(ShapeError, match=r"\(3,\), \(4,\)"):
        hf.data.Batches((np.zeros(3), np.zeros(4)), 2)
    with pytest.raises(ArgumentError, match="size must be"):
        hf.data.Batches(np.zeros(3), 0)
    with pytest.raises(ArgumentTypeError, match="no rows and no examples"):
        hf.data.Batches(3, 2)
    with pytest.raises(ArgumentError, match="no position"):
        hf.data.Batches(np.zeros(3), 2).restore({"epoch": 0})


def test_a_loop_that_was_left_does_not_hold_up_the_end_of_the_program():
    code = """
        import hybridflow as hf
        data = iter(hf.data.prefetch(range(1000), 2))
        print(next(data))
    """
    assert run_python(code, timeout=60) == "0\n"


# -- examples that are loaded one by one -----------------------------------------------------------------------------


def numbers(batches: Any) -> list[list[int]]:
    return [number.numpy().tolist() for _, number, _ in batches]


def test_workers_give_the_batches_of_one_process_and_their_position_is_taken_up():
    lengths = [number % 5 + 1 for number in range(23)]
    for more in ({}, {"lengths": lengths}):
        options: Any = {"shuffle": True, "seed": 3, "pad": -1, **more}
        one, several = hf.data.Batches(Photos(), 4, **options), hf.data.Batches(Photos(), 4, workers=2, **options)
        processes: set[int] = set()
        for _ in range(2):
            for (a, n, _), (b, m, process) in zip(one, several, strict=True):
                np.testing.assert_array_equal(a, b)
                assert n.tolist() == m.tolist()
                processes.update(process.tolist())
        assert len(processes) in (1, 2)  # the first may be quick enough for all
        assert os.getpid() not in processes
        begun = iter(several)
        seen = [next(begun)[1].tolist() for _ in range(2)]
        position = several.state()
        begun.close()
        several.restore(position)
        one.restore({**position, "batch": 0})
        assert seen + numbers(several) == numbers(one)


def test_an_example_that_cannot_be_loaded_is_named():
    for workers in (0, 2):
        for wrong, kind, text in (({"broken": 7}, FileNotFoundError, r"7\.png"),
                                  ({"odd": 5}, RuntimeError if workers else Exception, "it is odd")):
            data = hf.data.Batches(Photos(**wrong), 4, pad=0, workers=workers)
            with pytest.raises(kind, match=text) as caught:
                list(data)
            assert f"example {next(iter(wrong.values()))} of a Photos" in caught.value.__notes__[0]
            assert data.state()["batch"] == 1


def test_a_worker_that_is_killed_ends_the_loop_with_a_sentence_and_the_next_loop_has_new_ones():
    data = hf.data.Batches(Photos(fatal=9), 4, pad=0, workers=1)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"a worker process ended(.|\n)*workers=1, waiting for examples 8, 9"):
            list(data)


@pytest.mark.skipif(not Path("/proc").exists(), reason="it looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
def test_workers_end_with_the_program(sent: signal.Signals):
    with subprocess.Popen([sys.executable, Path(__file__).with_name("photos.py")], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        workers = {int(one) for _ in range(4) for one in program.stdout.readline().split()}
        assert workers
        if sent == signal.SIGINT:
            os.killpg(program.pid, sent)  # as a terminal does: to all of them
        else:
            program.send_signal(sent)
        program.wait(60)
        ends = time.monotonic() + 60
        while any(Path(f"/proc/{one}").exists() for one in workers) and time.monotonic() < ends:
            time.sleep(0.1)
        assert not [one for one in workers if Path(f"/proc/{one}").exists()]
        if sent == signal.SIGINT:
            assert program.stderr.read().count("Traceback") == 1


def test_what_workers_pad_and_lengths_refuse():
    x = np.arange(4)
    for make, text in (
        (lambda: hf.data.Batches(x, 2, workers=1), "arrays are there already"),
        (lambda: hf.data.Batches([lambda: 1], 1, workers=1), r"cannot be pickled(.|\n)*Define their class in a module"),
        (lambda: hf.data.Batches(x, 2, lengths=[1]), r"4 examples, lengths of shape \(1,\)"),
        (lambda: list(hf.data.Batches(Photos(), 4)), r"different shapes\n  got: \(1,\), \(2,\).*\n  Give pad=0"),
        (lambda: list(hf.data.Batches([x, x[None]], 2, pad=0)), "the same number of axes"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


def test_lengths_put_like_examples_together():
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    for shuffle in (False, True):
        batches = values(hf.data.Batches(list(range(1000)), 8, lengths=lengths, shuffle=shuffle, seed=1))
        assert sorted(chain(*batches)) == list(range(1000))
        assert max(np.ptp(lengths[one]) for one in batches) < 30
    assert batches != sorted(batches, key=lambda one: lengths[one[0]])


# -- streams ------------------------------------------------------------------------------------------------------


def test_a_stream_has_no_end_and_its_position_is_taken_up():
    data = hf.data.stream(count, 3).map(lambda batch: batch * 2)
    begun = iter(data)
    assert [next(begun).tolist() for _ in range(2)] == [[0, 2, 4], [6, 8, 10]]
    again = hf.data.stream(count, 3)
    again.restore(data.state())
    assert next(iter(again.prefetch(1))).tolist() == [6, 7, 8]


def test_a_stream_that_ends_is_read_once_unless_it_is_a_function():
    once, whole = hf.data.stream(iter(range(5)), 2), hf.data.stream(lambda: iter(range(5)), 2, drop_last=True)
    assert [values(once), values(once)] == [[[0, 1], [2, 3], [4]], []]
    assert [values(whole), values(whole)] == [[[0, 1], [2, 3]]] * 2
    ((ids, length),) = hf.data.stream([(np.array([1]), 1), (np.array([2, 3]), 2)], 2, pad=0)
    assert (ids.tolist(), length.tolist()) == ([[1, 0], [2, 3]], [1, 2])
    for wrong, text in ((lambda: hf.data.stream(3, 2), "an int has no examples"),
                        (lambda: hf.data.stream([], 0), "size=0"),
                        (lambda: once.restore({"batch": -1}), "no position in a stream")):
        with pytest.raises((TypeError, ValueError), match=text):
            wrong()



def test_a_class_of_a_notebook_is_refused_before_a_worker_starts():
    said = run_python("""
        import hybridflow as hf

        class Own:
            def __len__(self): return 4
            def __getitem__(self, number): return number

        for data in (Own(), [Own(), 1]):
            try:
                hf.data.Batches(data, 2, workers=1)
            except ValueError as error:
                print(error)
    """)
    assert said.count("other processes, which have no Own") == said.count("Define it in a module") == 2


def test_data_says_how_it_was_made():
    x = np.zeros((5, 2))
    for data, text in (
        (hf.data.Batches((x, x), 2), "Batches(5 examples, size=2)"),
        (hf.data.Batches([1], 1, pad=0.0, shuffle=True, seed=3),
         "Batches(1 examples, size=1, shuffle=True, pad=0.0, seed=3)"),
        (hf.data.Batches([1], 1, drop_last=True).prefetch(2),
         "Batches(1 examples, size=1, drop_last=True).prefetch(2)"),
        (hf.data.stream([1], 3, pad=0.0), "Stream(size=3, pad=0.0)"),
        (hf.metrics.TopK(2), "TopK(k=2)"), (hf.metrics.Accuracy(), "Accuracy()"),
        (hf.nn.LayerNorm(epsilon=1e-3), "LayerNorm(epsilon=0.001)"), (hf.nn.LayerNorm(), "LayerNorm()"),
        (hf.nn.BatchNorm(momentum=0.2), "BatchNorm(momentum=0.2)"), (hf.nn.Dropout(0.3), "Dropout(0.3)"),
        (hf.optim.EMA([hf.Variable(1.0)], 0.9), "EMA(1 parameters, decay=0.9)"),
        (hf.optim.SGD([hf.Variable(1.0)], hf.optim.cosine(0.1, 9)),
         "SGD(rate=cosine(final=0.0, start=0.1, steps=9), momentum=0.0, nesterov=False, decay=0.0)"),
    ):
        assert repr(data) == text
