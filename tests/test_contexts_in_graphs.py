"""What is set around code, in every construct that makes a graph of its own, wherever it is set.

That is `hf.max_iterations`, `hf.device`, `hf.name_scope` and `hf.config`; and the line of an error is the user's.

test_no_grad_in_graphs.py and test_autocast_in_graphs.py do the same for the gradient mode and for autocast.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from processes import run_python
from reference import without_xla

import hybridflow as hf
from hybridflow.core.errors import IndexRangeError, LayoutError, ShapeError, TraceError

X = 1.3
Body = Callable[[Any], Any]


def until_20(x):
    y = x
    while y < 20:
        y = y * x + 0.5
    return y


# -- constructs -------------------------------------------------------------------------------------------------------


def in_vmap(body):
    return lambda x: hf.vmap(body)(hf.stack([x, x + 0.1]))[0]


def in_cond(body):
    return lambda x: hf.cond(x > 0, body, lambda v: v, x)


def in_branch(body):
    def f(x):
        if x > 0:
            y = body(x)
        else:
            y = x
        return y

    return f


def in_scan(body):
    return lambda x: hf.scan(lambda c, row: (c + body(row) * 0.1, c), x, hf.stack([x, x]))[0]


def in_loop(body):
    def f(x):
        total = x * 0
        for row in hf.stack([x, x + 0.2]):
            total = total + body(row)
        return total

    return f


def in_custom_gradient(body):
    @hf.custom_gradient
    def f(x):
        return body(x), lambda g: g * 2 * x

    return f


def in_tape(body):
    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = body(x)
        return tape.gradient(y, x)

    return f


def in_jvp(body):
    return lambda x: hf.jvp(body, (x,), (x,))[1]


CONSTRUCTS: list[Callable[[Body], Body]] = [
    lambda body: body, hf.checkpoint, hf.compile, in_vmap, in_cond, in_branch, in_scan, in_loop, in_custom_gradient,
    in_tape, in_jvp,
]
AROUND = [lambda body: body, hf.compile, in_branch, in_scan, hf.checkpoint]
NAMES = ["alone", "checkpoint", "compile", "vmap", "cond", "branch", "scan", "loop", "custom gradient", "tape", "jvp"]

# -- places -----------------------------------------------------------------------------------------------------------

Context = Callable[[], AbstractContextManager[Any]]


def within(body: Body, context: Context) -> Body:
    def f(x):
        with context():
            return body(x)

    return f


def programs(number: int, body: Body, context: Context) -> dict[str, tuple[Body, Context | None]]:
    """Return functions with the body in a construct and in one around it, and the context to call each in."""
    made: dict[str, tuple[Body, Context | None]] = {}
    for index, around in enumerate(AROUND):
        build = CONSTRUCTS[number]
        made[f"{index} outside"] = around(build(body)), context
        made[f"{index} around"] = within(around(build(body)), context), None
        made[f"{index} inside"] = around(build(within(body, context))), None
        made[f"{index} decorated"] = around(build(context()(body))), None  # pyright: ignore[reportCallIssue]
    return made


def called(function: Body, context: Context | None) -> Any:
    return (function if context is None else within(function, context))(hf.asarray(X))


def gradient(function: Body) -> Body:
    return lambda x: hf.grad(lambda v: hf.sum(function(v)))(x)


@pytest.mark.parametrize("number", range(len(CONSTRUCTS)), ids=NAMES)
def test_the_largest_count_of_steps(number: int):
    plain = CONSTRUCTS[number](within(until_20, lambda: hf.max_iterations(30)))
    with without_xla():
        for name, (function, context) in programs(number, until_20, lambda: hf.max_iterations(30)).items():
            around = AROUND[int(name[0])]
            for way in (lambda f: f, gradient):
                expected = np.asarray(called(way(around(plain)), None))
                found = np.asarray(called(hf.compile(way(function)), context))
                np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
        for function, context in programs(number, until_20, lambda: hf.max_iterations(2)).values():
            with pytest.raises(TraceError, match="would go on after 2 steps"):
                called(hf.compile(function), context)


def devices() -> None:
    """Print the programs that compute on another device compiled than eagerly; it needs two devices."""
    body = lambda x: x * 2.0 + hf.ones(())  # noqa: E731
    count = 0
    for number, index in itertools.product(range(len(CONSTRUCTS)), (0, 1)):
        for name, (function, context) in programs(number, body, functools.partial(hf.device, f"cpu:{index}")).items():
            if name[0] > "1":
                continue  # one construct around it is enough here
            eager, compiled = called(function, context), called(hf.compile(function), context)
            count += 1
            if str(eager.device) != str(compiled.device) or abs(eager.item() - compiled.item()) > 1e-5:
                print(NAMES[number], index, name, eager.device, compiled.device)
    print(count)


def test_the_device():
    code = "import sys; sys.path.insert(0, 'tests'); import test_contexts_in_graphs as t; t.devices()"
    assert run_python(code, XLA_FLAGS="--xla_force_host_platform_device_count=2").split() == ["176"]


@pytest.mark.parametrize("number", range(len(CONSTRUCTS)), ids=NAMES)
def test_the_name_scope(number: int):
    made = programs(number, lambda x: hf.sin(x) * 2.0, functools.partial(hf.name_scope, "given"))
    for name, (function, context) in made.items():
        for way in (lambda f: f, gradient):
            graph = hf.compile(way(function)).graph
            scopes = {
                node.scope_name
                for node in (graph if context is None else within(graph, context))(hf.asarray(X)).walk()
                if node.op.name in ("sin", "cos")
            }
            assert scopes or (NAMES[number], way) == ("custom gradient", gradient), name
            assert all(["given" in scope.split("/") for scope in scopes]), (name, scopes)


TABLE = hf.asarray([1.0, 2.0, 3.0])


def other_shapes(x):
    y = hf.ones((2,)) * x
    return hf.sum(y + hf.ones((3,)))


def outside_of_the_table(x):
    index = hf.astype(x * 0 + 7, "int32")
    return TABLE[index] * x


@pytest.mark.parametrize("body", [other_shapes, outside_of_the_table])
@pytest.mark.parametrize("number", range(len(CONSTRUCTS)), ids=NAMES)
def test_errors_name_the_line(number: int, body: Body):
    line = inspect.getsourcelines(body)[1] + 2
    for around, way in itertools.product(AROUND, (lambda f: f, gradient)):
        for mode in (lambda f: f, hf.compile):
            if mode is not hf.compile and body is outside_of_the_table and hf.compile in (around, CONSTRUCTS[number]):
                continue  # it is compiled already
            function = mode(way(around(CONSTRUCTS[number](body))))
            with pytest.raises((ShapeError, IndexRangeError)) as raised:
                called(function, None).item()
            text = "".join(traceback.format_exception(raised.value))
            assert f'{__file__}", line {line}' in text or f"{__file__}:{line}" in text, text


@pytest.mark.parametrize("setting", ["matmul_precision", "checks", "verify", "cache", "threads", "run_eagerly"])
@pytest.mark.parametrize("number", range(len(CONSTRUCTS)), ids=NAMES)
def test_settings_of_the_process_are_set_around_calls(number: int, setting: str):
    options = {"matmul_precision": ("high",), "threads": (1,), "cache": (False,)}.get(setting, ())
    context = functools.partial(getattr(hf.config, setting), *options)
    function = CONSTRUCTS[number](within(lambda x: x * 2.0, context))
    before = hf.config.SETTINGS.matmul_precision, hf.config.SETTINGS.checks, hf.config.SETTINGS.eager
    with pytest.raises(TraceError, match=f"{setting}: a compiled function cannot change a setting of the process"):
        called(hf.compile(function), None)
    assert (hf.config.SETTINGS.matmul_precision, hf.config.SETTINGS.checks, hf.config.SETTINGS.eager) == before


def meshes(index: int) -> None:
    """Print the programs that compute otherwise for a mesh than eagerly without one; it needs two devices."""
    mesh, rows = hf.Mesh({"data": 2}), hf.asarray([0.3, -0.7, 1.1, 0.4])
    on_mesh = functools.partial(hf.compile, mesh=mesh, batch="data")
    part = functools.partial(hf.compile, mesh=mesh, in_layouts={"rows": ("data",)})
    counts, around = {"same": 0, "refused": 0}, AROUND[index]
    for number in range(len(CONSTRUCTS)):

        def outside(rows, number=number):
            body = lambda x: hf.mean(hf.tanh(rows * x)) + hf.max(rows)  # noqa: E731
            return around(CONSTRUCTS[number](body))(hf.mean(rows) + X)

        def inside(rows, wrap, number=number):
            made = wrap(lambda rows, x: hf.tanh(rows * x) + hf.max(rows))
            body = lambda x: hf.mean(made(rows, x))  # noqa: E731
            return around(CONSTRUCTS[number](body))(hf.mean(rows) + X)

        for way in (lambda f: f, gradient):
            expected = way(outside)(rows)
            plain = way(lambda rows: inside(rows, lambda f: f))(rows)
            for name, run, wanted in (
                ("outside", on_mesh(way(outside)), expected),
                ("inside of one", on_mesh(way(lambda rows, inside=inside: inside(rows, part))), plain),
                ("inside of none", hf.compile(way(lambda rows, inside=inside: inside(rows, part))), plain),
                ("inside, eager", way(lambda rows: inside(rows, part)), plain),
            ):
                try:
                    found = run(rows)
                except LayoutError:
                    counts["refused"] += 1
                    continue
                if np.allclose(found, wanted, rtol=1e-5, atol=1e-6):
                    counts["same"] += 1
                else:
                    print(NAMES[number], name, found, wanted)
    print(f"same {counts['same']}, refused {counts['refused']} of {sum(counts.values())}")


@pytest.mark.parametrize("around", [0, *[pytest.param(one, marks=pytest.mark.rest) for one in range(1, len(AROUND))]])
def test_the_mesh(around: int):
    code = f"import sys; sys.path.insert(0, 'tests'); import test_contexts_in_graphs as t; t.meshes({around})"
    printed = run_python(code, XLA_FLAGS="--xla_force_host_platform_device_count=2", timeout=300)
    assert re.fullmatch(r"same [1-9]\d*, refused \d+ of 88\n", printed), printed
