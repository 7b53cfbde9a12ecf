"""Forked processes: what needs XLA's threads, which the child lacks, says so at once; the rest goes on working."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.processes import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

_SCRIPT = """
import json, os, select, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import hybridflow as hf

x = hf.asarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8))
large = hf.asarray(np.linspace(0, 1, 1 << 20, dtype=np.float32))
weights = hf.Variable(np.ones((8, 8), np.float32))
called, stateful = hf.compile(lambda x: hf.tanh(x) @ x), hf.compile(lambda x: weights.assign_add(x @ x))
of_large, fresh = hf.compile(lambda x: hf.cumulative_sum(hf.tanh(x))), hf.compile(lambda x: hf.sin(x))


def eagerly():
    with hf.config.run_eagerly():
        return called(x).numpy().sum()


def pending_read():
    try:
        return 0 * pending.numpy().sum() + 1
    except hf.errors.ForkError:
        return 1


ACTS = {
    "add": lambda: (x + x).numpy().sum(),
    "product": lambda: (x @ x).numpy().sum(),
    "shared": lambda: (large + large).numpy().sum(),
    "sum": lambda: hf.sum(large).item(),
    "variable": lambda: (weights.assign_add(x) + 1).numpy().sum(),
    "gradient": lambda: hf.grad(lambda x: hf.sum(x * x))(x).numpy().sum(),
    "run_eagerly": eagerly,
    "pending": pending_read,
    "synchronize": lambda: hf.synchronize() or 1,
    "draw": lambda: hf.random.normal((4,)).numpy().sum(),
    "large draw": lambda: hf.random.normal((1 << 18,)).numpy().sum(),
    "erf": lambda: hf.erf(x).numpy().sum(),
    "bfloat16": lambda: (x.astype("bfloat16") + 1).numpy().sum(),
    "called": lambda: called(x).numpy().sum(),
    "stateful": lambda: stateful(x).numpy().sum(),
    "fresh": lambda: fresh(x).numpy().sum(),
    "lower": lambda: len(fresh.lower(x).as_text("hlo")),
    "gradient of called": lambda: tape.gradient(recorded, x).numpy().sum(),
}


def in_child(act):
    # What the act gives in a forked child: a number, an error's class and text, or that it never ended.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = float(act())
        except BaseException as error:
            found = [type(error).__name__, str(error), isinstance(error, RuntimeError)]
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    ended = select.select([reader], [], [], 60)[0]
    text = os.read(reader, 1 << 16) if ended else b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(text) if text else "hangs"


pending = large
if os.environ["SITUATION"] == "after XLA":
    with hf.GradientTape() as tape:
        tape.watch(x)
        recorded = hf.sum(called(x))
    called(x), stateful(x), hf.random.normal((4,)), hf.erf(x), called(x)
    pending = of_large(large)
    chosen = ACTS
else:
    (x + x) @ weights, large + large
    chosen = [name for name in ACTS if name != "gradient of called"]
json.dump({name: in_child(ACTS[name]) for name in chosen}, sys.stdout)
"""
_ON_THE_HOST = {
    "add", "product", "shared", "sum", "variable", "gradient", "run_eagerly", "pending", "synchronize"
}


def _children(situation: str, **environment: str) -> dict[str, Any]:
    return json.loads(run_python(_SCRIPT, timeout=300, SITUATION=situation, **environment))


def test_a_child_of_a_process_with_xla_works_on_the_host_and_refuses_the_rest_at_once():
    found = _children("after XLA")
    for name, outcome in found.items():
        if name in _ON_THE_HOST:
            assert isinstance(outcome, float), (name, outcome)
            continue
        assert isinstance(outcome, list), (name, outcome)
        kind, text, is_runtime_error = outcome
        assert (kind, is_runtime_error) == ("ForkError", True), (name, outcome)
        assert "cannot run in this process: it was forked" in text
        assert "get_context('spawn')" in text
    assert "the compiled function '<lambda>'" in found["called"][1]
    assert "add runs XLA" in found["bfloat16"][1]


def test_a_child_of_a_process_without_xla_can_do_everything():
    found = _children("before XLA", JAX_PLATFORMS="cpu")
    assert all(isinstance(outcome, float) for outcome in found.values()), found
