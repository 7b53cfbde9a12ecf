"""Calls of small compiled functions, to measure the cost of the call itself."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, row


@row("compiled x + y, 64 floats on the device", aims={"jax.jit": 1.3})
def call_device(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    keep = hf.compile(lambda x: x + 0.0)
    x, y = keep(hf.asarray(a)), keep(hf.asarray(b))
    jx, jy = jnp.asarray(a), jnp.asarray(b)
    f, g = hf.compile(lambda x, y: x + y), jax.jit(lambda x, y: x + y)
    case.ours(lambda: f(x, y))
    case.peer("jax.jit", lambda: g(jx, jy))


@row("compiled x + y, 64 floats, fresh on the host", aims={"jax.jit": 1.2})
def call_host(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    f, g = hf.compile(lambda x, y: x + y), jax.jit(lambda x, y: x + y)
    case.ours(lambda xy: f(*xy), prepare=lambda: (hf.asarray(a), hf.asarray(b)))
    case.peer("jax.jit", lambda xy: g(*xy), prepare=lambda: (a.copy(), b.copy()))


@row("compiled update of 50 Variables of 64 floats", aims={"jax.jit": 0.6, "jax.jit, donated": 1.15})
def call_variables(case: Case) -> None:
    values = [case.normal(64) for _ in range(50)]
    variables = [hf.Variable(value) for value in values]
    half = np.float32(0.5)

    @hf.compile
    def update() -> None:
        for variable in variables:
            variable.assign(variable * 0.5 + 0.5)

    case.ours(update, state=lambda: [variable.read() for variable in variables])

    def step(arrays: list[Any]) -> list[Any]:
        return [array * half + half for array in arrays]

    for name, jitted in (("jax.jit", jax.jit(step)), ("jax.jit, donated", jax.jit(step, donate_argnums=0))):
        held = [[jnp.asarray(value) for value in values]]

        def theirs(jitted: Any = jitted, held: Any = held) -> None:
            held[0] = jitted(held[0])

        case.peer(name, theirs, state=lambda held=held: held[0])




@row("compiled x + y + z, trace with 4 guards", aims={"jax.jit": 1.5})
def call_guards(case: Case) -> None:
    arrays = [case.normal(64) for _ in range(3)]
    keep = hf.compile(lambda x: x + 0.0)
    x, y, z = [keep(hf.asarray(array)) for array in arrays]
    jx, jy, jz = [jnp.asarray(array) for array in arrays]
    state = types.SimpleNamespace(a=True, b=True, c=True, d=True)

    @hf.compile
    def f(x: Any, y: Any, z: Any) -> Any:
        return x + y + z if state.a and state.b and state.c and state.d else x

    g = jax.jit(lambda x, y, z: x + y + z)
    case.ours(lambda: f(x, y, z))
    case.peer("jax.jit", lambda: g(jx, jy, jz))


@row("compiled x + y, trace with 20 guards", aims={"no guards": 1.2})
def call_many_guards(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    keep = hf.compile(lambda x: x + 0.0)
    x, y = keep(hf.asarray(a)), keep(hf.asarray(b))
    state = types.SimpleNamespace(**{f"n{i}": i for i in range(20)})

    @hf.compile
    def f(x: Any, y: Any) -> Any:
        total = (
            state.n0 + state.n1 + state.n2 + state.n3 + state.n4 + state.n5 + state.n6 + state.n7 + state.n8
            + state.n9 + state.n10 + state.n11 + state.n12 + state.n13 + state.n14 + state.n15 + state.n16
            + state.n17 + state.n18 + state.n19
        )
        return x + y if total else x

    plain = hf.compile(lambda x, y: x + y)
    case.ours(lambda: f(x, y))
    case.peer("no guards", lambda: plain(x, y))


@row("compiled x + y * rate, a Python float argument", aims={"jax.jit": 1.6})
def call_float(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    keep = hf.compile(lambda x: x + 0.0)
    x, y = keep(hf.asarray(a)), keep(hf.asarray(b))
    jx, jy = jnp.asarray(a), jnp.asarray(b)
    f, g = hf.compile(lambda x, y, rate: x + y * rate), jax.jit(lambda x, y, rate: x + y * rate)
    case.ours(lambda: f(x, y, 0.5))
    case.peer("jax.jit", lambda: g(jx, jy, 0.5))
