"""Tests that the script for a GPU runs anywhere, goes on after a failure and ends in time; and of what it counts."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hybridflow as hf

from . import gpu, reading
from .gpu_rows import GpuRow
from .programs import facts, hlo_facts, stablehlo_facts
from .registry import Row


def lines_of(path: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if line["kind"] == kind]


def test_rows_run_and_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "figures.jsonl"
    assert gpu.main(["gpu_vae", "gpu_dropout", "--small", "--no-tests", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "a compiled step is the eager one" in printed
    assert " failed: " not in printed
    rows = lines_of(path, "row")
    assert [row["name"] for row in rows] == ["gpu_vae", "gpu_dropout"]
    for row in rows:
        assert row["error"] is None
        assert all(side["seconds"] > 0 and side["first_call"] > 0 for side in row["sides"])
    found = {(line["row"], line["side"]): line for line in lines_of(path, "facts")}
    ours = found["gpu_vae", "hybridflow"]
    assert ours["hlo"]["donated"] == 31  # 10 parameters, two means each, and the count
    assert ours["stablehlo"]["donated"] == 31
    assert ours["memory"]["peak"] > 0
    assert ours["host"]["alone"] > 0
    assert lines_of(path, "end") == [{"kind": "end", "at": lines_of(path, "end")[0]["at"], "rows": 2}]


def planted(build: Any, seconds: float = 0.0) -> GpuRow:
    return GpuRow(Row(build.__name__, "gpu", "planted", build, 1, "call", {}, 1e-4), seconds)


def test_a_failure_is_reported_and_the_next_row_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fails(case: Any) -> None:
        raise RuntimeError("planted")

    def differs(case: Any) -> None:
        case.ours(lambda: hf.ones(2))
        case.peer("peer", lambda: jnp.zeros(2))

    def peer_fails(case: Any) -> None:
        case.ours(lambda: hf.ones(2))
        case.peer("good", lambda: jnp.ones(2))
        case.peer("bad", lambda: jnp.ones(2) + jnp.ones(3))

    def long(case: Any) -> None:
        raise AssertionError("it does not begin")

    path = tmp_path / "figures.jsonl"
    monkeypatch.setattr(gpu, "ROWS", [planted(fails), planted(differs), planted(peer_fails), planted(long, 1e6)])
    monkeypatch.setattr(gpu, "EFFORT", gpu.SMOKE)
    assert gpu.main(["--no-tests", "--out", str(path), "--minutes", "1"]) == 1
    first, second, third = lines_of(path, "row")
    assert first["error"].endswith("RuntimeError: planted")
    assert "the sides disagree: peer, result 0: differs by 1" in second["error"]
    assert [side["name"] for side in second["sides"]] == ["hybridflow", "peer"]
    assert third["error"] is None
    assert [side["name"] for side in third["sides"]] == ["hybridflow", "good"]
    assert "bad failed: " in third["notes"][0]
    assert [line["row"] for line in lines_of(path, "left out")] == ["long"]
    assert "long: left out, it may take" in capsys.readouterr().out


def test_what_is_counted_in_a_program():
    def step(x: Any, w: Any) -> Any:
        return jnp.tanh(x.T @ w).astype(jnp.float16)

    x, w = jnp.ones((4, 3)), jnp.ones((4, 3))
    found = facts(jax.jit(step).lower(x, w))
    assert found["stablehlo"]["dot_general"] == found["stablehlo"]["dot_general f32 x f32 -> f32"] == 1
    assert found["stablehlo"]["convert"] == 1
    assert found["stablehlo"]["functions"] == 1
    assert "donated" not in found["stablehlo"]
    assert found["memory"]["argument"] == 2 * 4 * 4 * 3
    donated = facts(jax.jit(lambda x: x + 1, donate_argnums=0).lower(x))
    assert (donated["stablehlo"]["donated"], donated["hlo"]["donated"]) == (1, 1)
    ours = facts(hf.compile(lambda x: hf.tanh(x) + 1).lower(hf.ones((4, 3))))
    assert ours["stablehlo"]["tanh"] == 1


def test_what_a_gpu_is_given_is_read_without_one(capsys: pytest.CaptureFixture[str]):
    assert reading.main(["gpu_vae", "--small"]) == 0
    printed = capsys.readouterr().out
    assert "exponential_minus_one" in printed
    assert "dot_general" not in printed  # as many on both sides


def test_a_processors_ways_are_not_a_gpus():
    step = hf.compile(lambda x: hf.sum(hf.tanh(x), axis=1))
    x = hf.ones((256, 256))
    on_host = stablehlo_facts(step.lower(x).as_text("stablehlo"))
    assert on_host["dot_general"] == 1  # a product with ones
    assert "dot_general" not in stablehlo_facts(reading.ours(step, [x]))


HLO = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (2, {}, must-alias) }

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %t.1 = f32[2]{0} tanh(%p), metadata={op_name="f"}
}

%command_buffer (q: f32[2]) -> f32[2] {
  %q = f32[2]{0} parameter(0)
  ROOT %fusion.2 = f32[2]{0} fusion(%q), kind=kLoop, calls=%fused
}

ENTRY %main (a: f32[2], b: f32[2,2]) -> (f32[2], f32[2]) {
  %a = f32[2]{0} parameter(0)
  %b = f32[2,2]{1,0} parameter(1)
  %fusion = f32[2]{0} fusion(%a), kind=kLoop, calls=%fused
  %gemm.1 = (f32[2]{0}, s8[64]{0}) custom-call(%fusion, %b), custom_call_target="__cublas$gemm"
  %get.1 = f32[2]{0} get-tuple-element(%gemm.1), index=0
  %call.3 = f32[2]{0} call(%get.1), to_apply=%command_buffer
  %bitcast.4 = f32[2]{0} bitcast(%call.3)
  %copy.2 = f32[2]{0} copy(%bitcast.4)
  ROOT %tuple = (f32[2]{0}, /*index=1*/f32[2]{0}) tuple(%get.1, %copy.2)
}
"""


def test_what_is_counted_in_optimised_hlo():
    assert hlo_facts(HLO) == {
        "operations": 13, "kernels": 4, "donated": 2, "custom_calls": {"__cublas$gemm": 1},
        "by_kind": {"fusion": 2, "custom-call": 1, "copy": 1, "call": 1},
        "launched": {"fusion": 2, "custom-call": 1, "copy": 1},
    }
    several = hlo_facts(f"one: runs 2 times\n{HLO}\nanother\n{HLO}")
    assert (several["kernels"], several["donated"]) == (8, 4)


def test_what_is_counted_in_stablehlo():
    text = """module @jit_f {
  func.func public @main(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2xf32> {
    %0 = stablehlo.optimization_barrier %arg0 : tensor<2xf32>
    %1 = stablehlo.custom_call @Sharding(%0) : (tensor<2xf32>) -> tensor<2xf32>
    %2:2 = "stablehlo.while"(%1, %0) ({
      stablehlo.return %0 : tensor<2xf32>
    }) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %3 = call @g(%1) : (tensor<2xf32>) -> tensor<2xf32>
    return %3 : tensor<2xf32>
  }
}
"""
    assert stablehlo_facts(text) == {
        "optimization_barrier": 1, "custom_call Sharding": 1, "while": 1, "call": 1, "donated": 1, "functions": 1,
    }


def test_a_row_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ended = threading.Event()
    monkeypatch.setattr(gpu.os, "_exit", lambda code: ended.set() if code == 3 else None)
    out = gpu.Out(tmp_path / "figures.jsonl")
    watch = gpu.Watch(out, 0.05)
    watch.row = "slow"
    assert ended.wait(10)
    out.close()
    assert [line["row"] for line in lines_of(tmp_path / "figures.jsonl", "ended")] == ["slow"]
