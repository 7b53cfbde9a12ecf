"""Parts of a run's checkpoint elsewhere, and what a run says that does not fit its checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

import hybridflow as hf


def trained(directory, make=hf.optim.Adam):
    net = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.relu, hf.nn.Linear(4, 2))
    optimizer = make(net)
    data = hf.data.Batches(np.ones((4, 3), np.float32), 2)
    run = hf.train.Run(directory, model=net, optimizer=optimizer, data=data, progress=False)
    for x in run.steps(2):
        hf.sum(net(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
    run.checkpoint().wait()
    return net, optimizer


def test_the_model_of_a_checkpoint_is_loaded_alone(tmp_path):
    net, optimizer = trained(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    assert "random.state" in hf.load(path)
    hf.random.seed(7)
    expected = hf.random.normal((2,)).tolist()
    hf.random.seed(7)
    other = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.relu, hf.nn.Linear(4, 2))
    hf.random.seed(7)
    hf.load(path, into=other, mapping={"model": "", "optimizer": None})
    for ours, theirs in zip(other.parameters(), net.parameters(), strict=True):
        assert np.array_equal(ours.numpy(), theirs.numpy())
    assert hf.random.normal((2,)).tolist() == expected  # the random numbers go on as before
    again = hf.optim.Adam(other)
    hf.load(path, into={"model": other, "optimizer": again})
    assert int(again.steps) == int(optimizer.steps) == 2


def test_a_model_takes_its_part_of_a_checkpoint(tmp_path):
    net, optimizer = trained(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    for strict in (True, False):
        other = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.relu, hf.nn.Linear(4, 2))
        found = hf.load(path, into=other, strict=strict)
        assert all(np.array_equal(a, b) for a, b in zip(other.parameters(), net.parameters(), strict=True))
        assert (found.missing, found.extra) == ([], [])
        again = hf.optim.Adam(other)
        hf.load(path, into=again, strict=strict)
        assert int(again.steps) == int(optimizer.steps) == 2
    wider = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.relu, hf.nn.Linear(4, 2), hf.nn.Linear(2, 2))
    assert hf.load(path, into=wider, strict=False).missing == ["3.weight", "3.bias"]
    with pytest.raises(ValueError, match="missing: 3"):
        hf.load(path, into=wider)
    for load in (lambda: hf.load(path, into={"other": other}, strict=False),
                 lambda: other.load_state_dict({"net.0.weight": np.zeros((4, 3))}, strict=False)):
        with pytest.raises(ValueError, match=r"missing: (.|\n)*extra: (.|\n)*No path is the same"):
            load()


def test_other_values_that_nobody_takes_are_errors_still(tmp_path):
    net, _ = trained(tmp_path / "run")
    (path,) = (tmp_path / "run").glob("*.safetensors")
    with pytest.raises(ValueError, match=r"extra: optimizer\.(?:.|\n)*strict=False takes"):
        hf.load(path, into=net, mapping={"model": ""})
    plain = tmp_path / "plain.safetensors"
    hf.save(plain, {"model": net, "random": {"state": hf.ones((2,))}})
    with pytest.raises(ValueError, match=r"extra: random\.state"):
        hf.load(plain, into=net, mapping={"model": ""})


def test_a_run_names_a_step_that_there_is(tmp_path):
    net, _ = trained(tmp_path)
    with pytest.raises(ValueError, match="Run: the values do not fit") as caught:
        hf.train.Run(tmp_path, model=net, optimizer=hf.optim.SGD(net, momentum=0.9), progress=False)
    text = str(caught.value)
    assert "Resume with what the run was started with" in text
    other = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.relu, hf.nn.Linear(4, 2))
    call = text[text.index("hf.load(") : text.index(" takes the model alone")]
    eval(call, {"hf": hf, "model": other})
    assert np.array_equal(other[0].weight.numpy(), net[0].weight.numpy())
