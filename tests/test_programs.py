"""Random programs: eager = compiled = jax, values and gradients.

More of them than in CI: ``pytest tests/test_programs.py --hypothesis-profile=thorough``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from programs import Program, programs

import hybridflow as hf
from hybridflow.analysis.parity import with_gradients
from hybridflow.analysis.rehearsal import rehearsed
from hybridflow.analysis.same import judge
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import HybridflowError
from hybridflow.core.tensor import host_array

few = settings(max_examples=settings().max_examples * 2 // 3)


@few
@given(programs())
def test_eager_is_compiled(program: Program) -> None:
    hf.testing.assert_same(program.function(), *program.inputs, gradients=True)


@few
@given(programs())
def test_recorded_is_eager(program: Program) -> None:
    gradients = hf.compile(with_gradients(program.function()))
    with rehearsed(gradients, (tuple(program.inputs), {})) as found:
        trace = found.trace
        arrays = [host_array(leaf.value) for leaf in found.signature.leaves]
        arrays += [np.array(variable.current()) for variable in found.variables]
        with hf.config.run_eagerly():
            eager = gradients(*program.inputs)
        found.restore()
        recorded = with_gradients(hf.compile(program.function()))(*program.inputs)
    assert list(eager) == list(recorded)
    results = [[host_array(t) for t in one.values()] for one in (eager, recorded)]
    order = [list(eager).index(name) for name in sorted(eager)]  # the graph's outputs are in jax's order
    ordered = [[found[i] for i in order] for found in results]
    for judgement in judge(trace.raw_graph, arrays, *ordered):
        assert judgement.same, judgement


@few
@given(programs())
def test_errors_are_the_same_too(program: Program) -> None:
    for upto, step in program.errors:
        found = []
        for compile in (lambda fn: fn, hf.compile):
            with pytest.raises(HybridflowError) as caught:
                compile(program.function(upto=upto, extra=step))(*program.inputs)
            found.append((type(caught.value), str(caught.value).splitlines()[0]))
        assert found[0] == found[1]


@few
@given(programs(for_jax=True))
def test_values_are_those_of_jax(program: Program) -> None:
    require_same(program.function(), program.inputs, jax.jit(program.jax_function()))


@few
@given(programs(for_jax=True))
def test_gradients_are_those_of_jax(program: Program) -> None:
    floats = [i for i, a in enumerate(program.inputs) if is_differentiable(a.dtype)]
    run = program.jax_function()

    def loss(chosen: list[Any]) -> Any:
        arrays = list(program.inputs)
        for i, a in zip(floats, chosen, strict=True):
            arrays[i] = a
        return sum([jnp.sum(y) for y in run(*arrays) if jnp.issubdtype(y.dtype, jnp.floating)], jnp.float32(0))

    expected = jax.jit(jax.grad(loss, allow_int=True))([program.inputs[i] for i in floats]) if floats else []
    names = [f"gradient of argument [{i}]" for i in floats]
    compiled = hf.compile(with_gradients(program.function()))
    found = compiled(*program.inputs)
    present = [(name, g) for name, g in zip(names, expected, strict=True) if name in found]
    for name, g in zip(names, expected, strict=True):
        if name not in found:
            assert not np.asarray(g).any(), f"{name} is None, and not zero in jax"
    ordered = dict(sorted((name, np.asarray(g)) for name, g in present))
    if ordered:
        require_same(compiled.python_function, program.inputs, lambda *_: list(ordered.values()))


@settings(max_examples=20)
@given(programs(for_jax=True))
def test_vmap_gives_every_slice_its_own_result(program: Program) -> None:
    assume(program.inputs)
    mapped = hf.vmap(program.function())

    def last_slice(*inputs: Any) -> list[Any]:
        results = mapped(*[np.stack([np.zeros_like(a), np.asarray(a)]) for a in inputs])
        return [y[1] for y in jax.tree_util.tree_leaves(results)]

    require_same(program.function(), program.inputs, last_slice)


def require_same(function: Any, inputs: list[Any], expected: Any) -> None:
    """Judge a hybridflow function's eager results against other ones, by the one definition of the same."""
    compiled = hf.compile(function)
    trace, signature = compiled._trace_for(tuple(inputs), {})
    assert not trace.variables(signature)
    with hf.config.run_eagerly():
        results = [host_array(t) for t in jax.tree_util.tree_leaves(compiled(*inputs))]
    arrays = [host_array(leaf.value) for leaf in signature.leaves]
    others = [np.asarray(y) for y in expected(*inputs)]
    for judgement in judge(trace.raw_graph, arrays, results, others):
        assert judgement.same, judgement
