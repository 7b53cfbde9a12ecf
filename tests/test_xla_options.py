"""The table of XLA options: every row's reason, and the versions it is for; the shim of jax's versions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.backend import jax_shim, options
from hybridflow.backend.fusion import inlines_nothing_often
from hybridflow.backend.options import (
    CALL_OPTIONS,
    EAGER_OPTIONS,
    GATHER_OPTIONS,
    MESH_OPTIONS,
    OPTIONS,
    PIECE,
    PIECE_OPTIONS,
    PRODUCT_OPTIONS,
    XlaOption,
    call_options,
    compiler_options,
    jaxlib_version,
)
from hybridflow.xla.executable import compile_graph

CPU_ONLY = pytest.mark.skipif(jax.default_backend() != "cpu", reason="an option of the CPU backend")

CRASH = """
    import numpy as np
    import hybridflow as hf

    shape = (3, 1, 2, 2, 8, 8, 8)
    a, b = hf.asarray(np.full(shape, 2, np.float32)), hf.asarray(np.full(shape, 3, np.float32))

    def f(a, b):
        return hf.sum(a * b, axis=3)

    def check(result, value=12.0):
        assert result.shape == (3, 1, 2, 8, 8, 8)
        assert (result.numpy() == value).all()

    for _ in range(3):
        check(f(a, b))
        check(hf.compile(f)(a, b))
        low = a.astype(hf.bfloat16), b.astype(hf.bfloat16)
        check(f(*low))
        check(hf.compile(f)(*low))
    with hf.GradientTape() as tape:
        tape.watch([a, b])
        y = hf.compile(f)(a, b)
    check(y)
    da, db = tape.gradient(y, [a, b])
    assert (da.numpy() == 3).all() and (db.numpy() == 2).all()
    # the product and the sum in one operation's own executable: a loop that runs eagerly, and a gradient
    def step(carry, x):
        return carry, f(*x)
    _, ys = hf.compile(lambda a, b: hf.scan(step, 0.0, (a[None], b[None])))(a, b)
    check(ys[0])
    def inner(a, b):
        with hf.GradientTape() as tape:
            tape.watch(a)
            y = hf.sum(f(a, b) * f(b, a))
        return tape.gradient(y, a)
    assert (hf.compile(inner)(a, b).numpy() == inner(a, b).numpy()).all()
    print("survived")
"""


@CPU_ONLY
def test_a_program_that_crashes_jaxlib():
    """jaxlib 0.10.2 dies of `jit(lambda a, b: jnp.sum(a * b, axis=3))` on these shapes."""
    assert run_python(CRASH).strip() == "survived"


def test_excess_precision_is_off():
    rng = np.random.default_rng(0)
    a, b = (hf.asarray(rng.standard_normal((64, 64)).astype(np.float32)).astype(hf.bfloat16) for _ in range(2))

    def f(a, b):
        return hf.matmul(a, b).astype(hf.float32), ((a * b) * b + a).astype(hf.float32)

    for eager, compiled in zip(f(a, b), hf.compile(f)(a, b), strict=True):
        np.testing.assert_array_equal(eager.numpy(), compiled.numpy())
        rounded = eager.astype(hf.bfloat16).astype(hf.float32)
        np.testing.assert_array_equal(eager.numpy(), rounded.numpy())
    loose = jax.jit(lambda a, b: jnp.matmul(a, b).astype(jnp.float32))(*[np.asarray(t) for t in (a, b)])
    if jaxlib_version() < (0, 11):  # later ones round a matmul by themselves
        assert (np.asarray(loose) != f(a, b)[0].numpy()).any()


@CPU_ONLY
@pytest.mark.parametrize("fn", [
    lambda x, y: x / y / 3e38, lambda x, y: x / (y / x), lambda x, y: x[:, None] / y[:1], lambda x, y: hf.log(x**y),
    lambda x, y: abs(x) >= 0, lambda x, y: x * (x > 0), lambda x, y: x / hf.exp(y), lambda x, y: (x / y) / (x / 2.5),
    lambda x, y: hf.astype(x > y, "float64") * y, lambda x, y: hf.nn.softsign(x) / 2 * y,
    lambda x, y: hf.log(hf.rsqrt(x)), lambda x, y: hf.reciprocal(hf.where(x >= 1, x, 1.0) * 2e-38) / 0.3,
])
def test_the_algebra_of_xla_changes_nothing(fn):
    numbers = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0, 0.3, 2.0, 50.0, -3.0, 1e9, 3e38], np.float32)
    x, y = [np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(numbers, numbers)]
    eager, compiled = fn(hf.asarray(x), hf.asarray(y)).numpy(), hf.compile(fn)(x, y).numpy()
    if eager.dtype == np.float32:
        tiny = np.finfo(np.float32).tiny
        eager, compiled = [np.where(abs(z) < tiny, np.copysign(np.float32(0), z), z) for z in (eager, compiled)]
        np.testing.assert_array_equal(np.signbit(eager) & (eager == 0), np.signbit(compiled) & (compiled == 0))
    np.testing.assert_allclose(compiled.astype(np.float64), eager.astype(np.float64), rtol=1e-5)


@CPU_ONLY
def test_eager_operations_are_compiled_quickly():
    quick, full = compiler_options(eager=True), compiler_options()
    present = [row for row in EAGER_OPTIONS if row.until is None or jaxlib_version() < row.until]
    assert quick == {**full, **{row.name: row.value for row in present}}
    times = {True: [], False: []}
    x = np.ones((37, 53), np.float32)
    for n in range(4):
        for eager in (True, False):
            lowered = jax.jit(
                lambda x, n=n: jax.nn.log_softmax(jnp.sin(x) + n), compiler_options=compiler_options(eager=eager)
            ).lower(x)
            start = time.perf_counter()
            compiled = lowered.compile()
            times[eager].append(time.perf_counter() - start)
            np.testing.assert_allclose(compiled(x), jax.nn.log_softmax(np.sin(x) + n), rtol=1e-5)
    assert min(times[True]) < min(times[False])


def passes_of_xla(compiling, directory):
    """Return the names of XLA's passes in the order in which they began while something was compiled."""
    with jax.profiler.trace(directory):
        compiling()
    (file,) = directory.glob("**/*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [(event.start_ns, event.name) for plane in planes for line in plane.lines for event in line.events]
    return [name.partition("#")[0] for _, name in sorted(events)]


CALLS = """
graph f(%x: f32[8,8], %y: f32[8,8]) -> (f32[8,8]) {
  %0 = exp(%x) : f32[8,8]
  %1 = fusion_break(%0) : f32[8,8]
  %2 = tanh(%1) : f32[8,8]
  %3 = fusion_break(%2) : f32[8,8]
  return %3
}
"""
TIED_TWICE = CALLS.replace("return %3", "%4 = tied(%3, %y) : f32[8,8]\n  %5 = tied(%y, %4) : f32[8,8]\n  return %5")


@CPU_ONLY
def test_functions_are_copied_per_call_only_when_they_are_optimised(tmp_path, monkeypatch):
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    found = []

    def late(text, directory):
        graph = hf.ir.parse(text)
        passes = passes_of_xla(lambda: found.append(compile_graph(graph, sizes={})), tmp_path / directory)
        return passes.index("fusion") < passes.index("flatten-call-graph")

    with hf.config.cache(False):
        assert late(CALLS, "with")
        assert not late(TIED_TWICE, "with functions of jax's")
        monkeypatch.setattr("hybridflow.xla.executable.call_options", lambda backend: {})
        assert not late(CALLS, "without")
    one, _, other = (np.asarray(executable.call(x, x)[0]) for executable in found)
    np.testing.assert_array_equal(one, other)


def test_what_is_called_more_than_once_is_read_from_the_lowered_program():
    kept = '%0 = call @kept(%arg0) {mhlo.frontend_attributes = {inlineable = "false"}} : (f) -> f'
    custom = "%1 = stablehlo.custom_call @LayoutConstraint(%0) : (f) -> f"
    once, nested = "%2 = call @once(%1) : (f) -> f", "%3 = func.call @nested(%2) : (f) -> f"
    assert inlines_nothing_often("\n".join([kept, kept, custom, custom, once, nested]))
    assert not inlines_nothing_often("\n".join([kept, once, once]))
    assert not inlines_nothing_often("\n".join([nested, kept, nested]))


@CPU_ONLY
def test_xla_chooses_what_a_library_computes_on_a_mesh():
    """A product of 128 x 512 by 512 x 128 has 16.8 million operations."""
    (row,) = MESH_OPTIONS
    run = hf.compile(lambda a, b: a @ b, mesh=hf.Mesh({"data": 1}), batch="data", in_layouts={"b": (None, None)})
    a, b = np.ones((128, 512), np.float32), np.ones((512, 128), np.float32)
    executable = run.lower(a, b).executable
    assert (row.name in executable.options) == (jaxlib_version() < row.since)
    if row.since <= jaxlib_version():
        assert executable.compiled.as_text().count("__ynn_fusion") == 1
        assert row.name in hf.compile(lambda a, b: a @ b).lower(a, b).executable.options
    np.testing.assert_array_equal(run(a, b).numpy(), np.full((128, 128), 512))


@CPU_ONLY
def test_large_products_are_left_to_a_library(monkeypatch):
    """A product of 128 x 512 by 512 x 128 has 16.8 million operations; the sum is the one that crashes jaxlib."""

    def f(a, b, c, d):
        return hf.tanh(a @ b), hf.sum(c * d, axis=3)

    def library(*args):
        compiled = hf.compile(f)
        found = compiled(*args)
        executable = compiled.lower(*args).executable
        row = PRODUCT_OPTIONS[0]
        kinds = executable.compiled.as_text().count("__ynn_fusion")
        if jaxlib_version() < row.until:
            assert (executable.options[row.name] in [one.value for one in PRODUCT_OPTIONS]) == (kinds == 1)
        else:
            assert not kinds
        return kinds, found

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((128, 512)) / 20, rng.standard_normal((512, 128))
    c, d = np.full((3, 1, 2, 2, 8, 8, 8), 2, np.float32), np.full((3, 1, 2, 2, 8, 8, 8), 3, np.float32)
    kinds, (product, total) = library(*map(hf.asarray, (a.astype(np.float32), b.astype(np.float32), c, d)))
    assert kinds == (jaxlib_version() < (0, 11))
    np.testing.assert_allclose(product, np.tanh(a @ b), rtol=0, atol=1e-5)
    assert (total.numpy() == 12).all()
    assert library(*map(hf.asarray, (a[:8].astype(np.float32), b.astype(np.float32), c, d)))[0] == 0
    assert library(*map(hf.asarray, (a, b, c, d)))[0] == 0
    monkeypatch.setattr("hybridflow.ir.costs.MOST_PRODUCTS", 0)
    assert library(*map(hf.asarray, (a.astype(np.float32), b.astype(np.float32), c, d)))[0] == 0


@CPU_ONLY
@pytest.mark.parametrize("cores", [1, 2])
def test_wide_convolutions_are_left_to_a_library(cores, monkeypatch):
    """Those of 32 channels and more, alone and beside large products, on one core, and never the sums around them."""

    def f(x, kernel, a):
        y = hf.nn.conv(x, kernel, padding="same")
        return hf.sum(y * y, axis=(2, 3)), a @ a

    def library(channels, size):
        x, kernel = (rng.standard_normal((*shape, 6, 6)).astype(np.float32) for shape in ((2, 16), (channels, 16)))
        kernel = kernel[..., :3, :3]
        args = [hf.asarray(one) for one in (x, kernel, np.ones((size, size), np.float32))]
        compiled = hf.compile(f)
        sums, product = compiled(*args)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
        expected = np.square(np.einsum("nchwij,ocij->nohw", windows.astype(np.float64), kernel)).sum((2, 3))
        np.testing.assert_allclose(sums, expected, rtol=1e-5)
        assert (product.numpy() == size).all()
        return compiled.lower(*args).executable.compiled.as_text().count("__ynn_fusion")

    rng = np.random.default_rng(0)
    monkeypatch.setattr("hybridflow.backend.options.usable_cores", lambda *names: cores)
    there = jaxlib_version() < (0, 11)
    assert [library(16, 4), library(32, 4), library(32, 256)] == [0, there * (cores == 1), there * (3 - cores)]


@CPU_ONLY
def test_temporary_memory_in_pieces(capfd):
    """A program whose values would not fit in a piece gets no limit, of which XLA would warn."""
    rng = np.random.default_rng(0)
    kernel = hf.asarray(rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12)

    def convolutions(x, kernel):
        ends = []
        for step in range(6):
            x = hf.nn.conv(x, kernel, padding="same") * (step + 1.0)
            ends.append(hf.sum(x, axis=(1, 2, 3)))
        return ends

    def limit(function, *args):
        compiled = hf.compile(function)
        hf.testing.assert_same(function, *args)
        return compiled.lower(*args).executable.options.get("xla_multiheap_size_constraint_per_heap")

    images = [hf.asarray(rng.standard_normal((size, 16, 64, 64)).astype(np.float32)) for size in (16, 48)]
    found = [limit(convolutions, images[0], kernel), limit(convolutions, images[1], kernel)]
    assert [*found, limit(lambda x: x @ x, kernel)] == [PIECE, None, None]
    rows = [hf.ones((64, size)) for size in (1 << 15, 9)]
    assert [limit(lambda x: hf.scan(lambda c, row: (c + row, c), x[0], x), x) for x in rows] == [PIECE, None]
    assert "larger than the per-heap size limit" not in capfd.readouterr().err
    one, whole = (
        jax.jit(hf.to_jax(convolutions), compiler_options=options).lower(np.asarray(images[0]), np.asarray(kernel))
        .compile().memory_analysis().temp_size_in_bytes
        for options in (compiler_options(many_small_values=True), compiler_options())
    )
    assert one <= 1.5 * whole


class Options:
    """Bytes of options, as jaxlib's are."""

    def __init__(self, encoded):
        self.encoded = encoded

    def SerializeAsString(self):
        return self.encoded

    ParseFromString = classmethod(lambda cls, encoded: cls(encoded))


def test_extra_options_are_those_of_one_compilation_alone():
    lowered = jax.jit(lambda x: (x + 1,)).lower(1.0)
    client = lowered._lowering.compile_args["backend"]
    compiled = jax_shim.compile_with(lowered, {"xla_some_option": "of a value " * 20})
    again = jax_shim.load_executable(jax_shim.save_executable(compiled), 1, 1, jax.devices()[0])
    assert compiled(2.0)[0] == again(2.0)[0] == 3.0
    assert lowered._lowering.compile_args["backend"] is client
    assert compiled._executable._unloaded_executable.backend is client
    seen = []

    class Client:
        platform = "cpu"

        def compile_and_load(self, module, *, compile_options):
            seen.append((module, compile_options.encoded))

    extra = jax_shim._ClientWithOptions(Client(), {"a": "b" * 200})
    extra.compile_and_load("module", compile_options=Options(b"jax's"))
    entry = b"\n\x01a\x12\xc8\x01" + b"b" * 200  # fields 1 and 2: a string of 1, a string of 200 = 0xc8 0x01
    table = b"\xa2\x1f\xce\x01" + entry  # field 500, of 206 bytes
    assert seen == [("module", b"jax's" + b"\x1a\xd5\x01" + b"\x1a\xd2\x01" + table)]
    assert extra.platform == "cpu"


def test_every_row_has_a_reason_and_a_test():
    extra = (PRODUCT_OPTIONS, MESH_OPTIONS, GATHER_OPTIONS, PIECE_OPTIONS)
    for table in (OPTIONS + EAGER_OPTIONS + CALL_OPTIONS, *extra):
        for before, row in itertools.combinations(table, 2):  # of one name, one row at a time, or one for few cores
            few = row.most_cores is not None and before.most_cores is None
            assert before.name != row.name or before.until == row.since or few
    for row in itertools.chain(OPTIONS, EAGER_OPTIONS, CALL_OPTIONS, *extra):
        assert row.why
        file, _, test = row.test.partition("::")
        assert f"def {test}(" in (Path(__file__).parent.parent / file).read_text(encoding="utf-8")
        assert row.until is None or row.since < row.until


def test_rows_apply_to_their_backend_and_versions(monkeypatch):
    def row(name, backend="cpu", since=(0, 10), until=None):
        return XlaOption(name, True, backend, since, until, "", "")

    rows = (row("always"), row("gpu", "gpu"), row("any", "*"), row("later", since=(0, 11)), row("gone", until=(0, 11)))
    monkeypatch.setattr(options, "OPTIONS", rows)
    monkeypatch.setattr(options, "EAGER_OPTIONS", (row("eager"),))
    monkeypatch.setattr(options, "PRODUCT_OPTIONS", (dataclasses.replace(row("any"), value="other"),))
    monkeypatch.setattr(options, "CALL_OPTIONS", (row("calls"), row("calls later", since=(0, 11))))
    monkeypatch.setattr(options, "jaxlib_version", lambda: (0, 10, 2))
    assert list(compiler_options(backend="cpu")) == ["always", "any", "gone"]
    assert list(compiler_options(backend="gpu")) == ["gpu", "any"]
    assert list(compiler_options(backend="cpu", eager=True)) == ["always", "any", "gone", "eager"]
    large = compiler_options(backend="cpu", large_products=True)
    assert large == {**compiler_options(backend="cpu"), "any": "other"}
    assert compiler_options(backend="gpu", large_products=True) == compiler_options(backend="gpu")
    assert list(call_options("cpu")) == ["calls"]
    assert not call_options("gpu")
    monkeypatch.setattr(options, "jaxlib_version", lambda: (0, 11, 0))
    assert list(compiler_options(backend="cpu")) == ["always", "any", "later"]


def test_a_jaxlib_newer_than_the_table_is_asked(monkeypatch):
    def row(name, value):
        return XlaOption(name, value, "*", (0, 10), None, "of a reason", "")

    rows = (row("xla_allow_excess_precision", False), row("xla_no_such_option", True))
    monkeypatch.setattr(options, "OPTIONS", rows)
    monkeypatch.setattr(options, "jaxlib_version", lambda: (99, 0))
    with pytest.warns(UserWarning, match=r"xla_no_such_option, which is left out .* because of a reason"):
        assert compiler_options() == {"xla_allow_excess_precision": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiler_options() == {"xla_allow_excess_precision": False}  # it was said once


def test_a_jaxlib_newer_than_the_table_gets_nothing_for_speed_alone(monkeypatch):
    names = {row.name for row in OPTIONS if not row.for_speed}
    tables = EAGER_OPTIONS + PRODUCT_OPTIONS + MESH_OPTIONS + CALL_OPTIONS + PIECE_OPTIONS
    slow = {row.name for row in tables if row.for_speed} - names
    newest = options.MEASURED[-1]
    for version, measured in ((newest, True), ((newest[0], newest[1] + 1, 0), False)):
        monkeypatch.setattr(options, "jaxlib_version", lambda version=version: version)
        asked = compiler_options(eager=True, large_products=True, many_small_values=True, backend="cpu")
        used = {*asked, *call_options("cpu")}
        assert names <= used | {"xla_cpu_use_fusion_emitters"}
        assert bool(used & slow) == measured


def test_the_options_are_those_of_every_executable(monkeypatch):
    seen = []
    jit = jax.jit

    def spying(function, **keywords):
        seen.append(keywords.get("compiler_options"))
        return jit(function, **keywords)

    monkeypatch.setattr(jax, "jit", spying)
    x = hf.asarray([1.0, 2.0])
    f = hf.compile(lambda x: hf.sum(hf.tanh(x)))
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    tape.gradient(y, x)
    f(x)
    x.astype(hf.bfloat16) * 1.5
    assert len(seen) >= 3
    for one in seen:
        assert {**one, **compiler_options()} == one


# -- jax's versions -----------------------------------------------------------------------------------------------


def test_the_version_is_read_as_numbers():
    assert jax.__version__.startswith(".".join(map(str, jax_shim.JAX_VERSION)))
    assert jax_shim.JAX_VERSION >= (0, 10)
    assert jaxlib_version() >= (0, 10)


def test_64_bits_are_on_inside_the_context_only():
    assert not jax.config.jax_enable_x64
    with jax_shim.enable_x64():
        assert jnp.asarray(np.float64(1)).dtype == np.float64
        with jax_shim.enable_x64(False):
            assert jnp.asarray(np.float64(1)).dtype == np.float32
        assert jnp.asarray(np.int64(1)).dtype == np.int64
    assert jnp.asarray(np.float64(1)).dtype == np.float32


def test_programs_name_operations_but_no_lines_and_jax_keeps_its_setting():
    def lines() -> int:
        return jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]

    before = lines()
    lowered = hf.compile(lambda x: hf.tanh(x) + 1.0).lower(hf.asarray([1.0, 2.0]))
    text = lowered.as_text("hlo")
    assert "op_name=" in text
    assert "source_line=" not in text
    assert "stack_frame_id=" not in text
    assert lines() == before
    with contextlib.suppress(KeyError), jax_shim.without_locations():
        with jax_shim.without_locations():
            assert lines() == 0
        assert lines() == 0
        raise KeyError
    assert lines() == before
    jax.config.update("jax_traceback_in_locations_limit", before + 1)
    try:
        with jax_shim.without_locations():
            jax.config.update("jax_traceback_in_locations_limit", 7)  # a user's own change in the meantime stays
        assert lines() == 7
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def compiled(function, inputs=2):
    return jax.jit(function).lower(*[jax.ShapeDtypeStruct((3,), np.float32)] * inputs).compile()


def test_direct_calls_are_jax_s_own():
    program = compiled(lambda x, y: (x + y, x * y))
    direct = jax_shim.direct_call(program)
    assert type(direct) is type(jax.jit(abs))  # else calls cost more, on this jax
    x, y = np.float32([1, 2, 3]), jnp.float32([4, 5, 6])
    for one, same in zip(direct(x, y), program(x, y), strict=True):
        np.testing.assert_array_equal(one, same)
    with pytest.raises(TypeError, match=r"float32\[3\]"):
        direct(x, y[:2])
    assert jax_shim.direct_call(abs) is abs


@pytest.mark.parametrize("container", [list, tuple])
def test_a_lone_output_comes_alone(container):
    program = compiled(lambda x, y: container([x + y]))
    alone = jax_shim.direct_call(program, alone=True)
    assert type(alone) is type(jax.jit(abs))
    x, y = np.float32([1, 2, 3]), jnp.float32([4, 5, 6])
    for _ in range(3):  # the first call is another one
        np.testing.assert_array_equal(alone(x, y), program(x, y)[0], strict=True)
    with pytest.raises(TypeError, match=r"float32\[3\]"):
        alone(x, y[:2])
    np.testing.assert_array_equal(jax_shim.direct_call(lambda *xs: program(*xs), alone=True)(x, y), x + y)


def test_bare_calls_run_what_is_there_and_nothing_else():
    program = compiled(lambda x, y: (x / y, x))
    into = jax_shim.bare_call(program, jax_shim.call_into(program))
    assert into is not None  # else calls that update Variables cost more, on this jax

    def bare(arrays: list[Any]) -> Any:
        held: list[Any] = []
        into(arrays, held)
        (results,) = held
        return results

    x, y = jnp.float32([1, 2, 3]), jnp.float32([4, 5, 6])
    for one, same in zip(bare([x, y]), program(x, y), strict=True):
        np.testing.assert_array_equal(one, same)
        assert (one.aval, one.sharding) == (same.aval, same.sharding)
    with pytest.raises(TypeError):
        bare([x, np.ones(3, np.float32)])
    zero = y * 0
    with jax.debug_nans(True), pytest.raises(Exception, match="'nan'"):
        bare([zero, zero])
    with jax.debug_infs(True), pytest.raises(Exception, match="'inf'"):
        bare([x, zero])
    assert np.isnan(bare([zero, zero])[0]).all()


def test_programs_that_need_more_have_no_bare_call():
    spec = jax.ShapeDtypeStruct((3,), np.float32)
    needs_more = [
        compiled(lambda x, y: x + 1),  # jax leaves `y` out
        compiled(lambda x: jax.pure_callback(np.sin, spec, x), 1),
        compiled(lambda x: jax_shim.ordered_callback(np.sin, spec, x), 1),
    ]
    assert [jax_shim.bare_call(program, program) for program in needs_more] == [None] * 3
    assert jax_shim.bare_call(abs, abs) is None


def test_bare_calls_are_for_processes_with_one_device():
    code = """
import jax, numpy as np
from hybridflow.backend.jax_shim import bare_call
program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((3,), np.float32)).compile()
print(jax.device_count(), bare_call(program, program) is None)
"""
    printed = run_python(code, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert printed.split() == ["2", "True"]


def test_only_the_shim_imports_what_is_semi_public():
    package = Path(hf.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "jax_shim.py":
            assert "jax.extend" not in text, path
            assert "jax.experimental" not in text, path
            assert "jax.enable_x64" not in text, path
        private = [line for line in text.splitlines() if "jax._src" in line]
        # Whether XLA has begun has no other name; where this one is gone, it is taken to have.
        assert all(path.name == "jax_shim.py" and "backends_are_initialized" in line for line in private), path
