"""Operations that users register have what the package's own have."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.core.errors import CheckError, ParityError, ParseError
from hybridflow.core.op import REGISTRY
from hybridflow.xla.store.fingerprint import NotPlain, fingerprint


def samples(rng):
    yield hf.ops.Sample((rng.standard_normal((2, 3)).astype(np.float32),), {"b": 4.0})
    yield hf.ops.Sample((rng.standard_normal(5),))
    yield hf.ops.Bad((np.array([1, 2], np.int32),), error=TypeError, text="squareplus takes floats")


def floats(x, *, b):
    del b
    if x.dtype.kind != "f":
        raise TypeError(f"squareplus takes floats, not {x.dtype}")
    return x


@pytest.fixture(scope="module")
def squareplus():
    return made("tests.squareplus")


@pytest.fixture(scope="module", autouse=True)
def registry():
    """Leave the registry as it was, for the tests of all operations."""
    yield
    for name in [one for one in REGISTRY if one.startswith("tests.")]:
        del REGISTRY[name]


def made(name, **changes):
    given = {
        "kernel": lambda x, *, b: ((x + np.sqrt(x * x + b)) / 2).astype(x.dtype),
        "lower": lambda x, *, b=1.0: (x + jnp.sqrt(x * x + b)) / 2,
        "infer": floats,
        "vjp": lambda F, g, y, x, *, b: (g * (1 + x / F.sqrt(x * x + b)) / 2,),
        "saves": [0],
        "flops": lambda y, x, *, b: 5 * x.size,
        "samples": samples,
        "traits": ["pointwise"],
    }
    return hf.ops.register(name, **{**given, **changes})


def expected(x, b=1.0):
    return (x + np.sqrt(x * x + b)) / 2


X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def test_every_check_is_run_on_it(squareplus):
    hf.testing.check_op(squareplus)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("kernel", lambda x, *, b: ((x + np.sqrt(x * x + 1.001 * b)) / 2).astype(x.dtype), "results differ"),
        ("vjp", lambda F, g, y, x, *, b: (g * (1.001 + x / F.sqrt(x * x + b)) / 2,), "difference"),
        ("saves", [], "TensorSpec"),
        ("traits", ["pointwise", "idempotent"], "idempotent"),
    ],
)
def test_faults_in_it_are_caught(name, change, text):
    faulty = made(f"tests.faulty_{name}", **{name: change})
    with pytest.raises((CheckError, ParityError, TypeError), match=text):
        hf.testing.check_op(faulty)


def test_values_gradients_and_vmap_eager_and_compiled(squareplus):
    def program(x):
        y, pull = hf.vjp(lambda v: squareplus(v, b=2.0) * v, x)
        slopes = hf.vmap(hf.grad(lambda row: hf.sum(squareplus(row))))(x)
        return y, pull(hf.ones_like(y)), hf.vmap(squareplus)(x), slopes

    hf.testing.assert_same(program, hf.asarray(X))
    y, _, each, slopes = hf.compile(program)(hf.asarray(X))
    np.testing.assert_allclose(y, expected(X, 2.0) * X, rtol=1e-6)
    np.testing.assert_allclose(each, expected(X), rtol=1e-6)
    np.testing.assert_allclose(slopes, (1 + X / np.sqrt(X * X + 1)) / 2, rtol=1e-6)
    hf.testing.check_gradients(lambda v: squareplus(v, b=0.5), [X])


def test_a_rule_that_is_not_given_is_the_lowerings():
    f = hf.ops.register("tests.cubed", lower=lambda x: x**3, traits=["pointwise"], samples=lambda rng: [
        hf.ops.Sample((rng.standard_normal(4).astype(np.float32),))])
    hf.testing.check_op(f)
    np.testing.assert_allclose(hf.grad(lambda x: hf.sum(f(x)))(hf.asarray(X)), 3 * X**2, rtol=1e-6)
    hf.testing.check_gradients(f, [X])


def test_its_text_is_read_again_and_artifacts_name_it(squareplus, tmp_path):
    graph = hf.compile(lambda x: squareplus(x, b=3.0)).graph(hf.asarray(X))
    text = hf.ir.print_graph(graph)
    assert "tests.squareplus(%x) {b=3.0}" in text
    assert hf.ir.print_graph(hf.ir.parse(text)) == text
    path = tmp_path / "f.hf"
    hf.export.save(path, lambda x: squareplus(x, b=3.0), hf.TensorSpec([None, 3]))
    np.testing.assert_allclose(hf.export.load(path).predict(X), expected(X, 3.0), rtol=1e-6)
    code = f"""
import hybridflow as hf
try:
    hf.export.load({str(path)!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    said = run_python(code)
    assert "tests.squareplus" in said
    assert "is registered when that is imported" in said
    with pytest.raises(ParseError, match="is registered when that is imported"):
        hf.ir.parse(text.replace("tests.squareplus", "zzz.qqq"))


def test_executables_with_it_are_not_those_of_another_lowering(squareplus):
    with pytest.raises(NotPlain):
        fingerprint(hf.compile(squareplus).graph(hf.asarray(X)), {})
    direct = hf.ops.register("tests.direct", lower=jnp.sinc, traits=["pointwise"])
    with pytest.raises(NotPlain):
        fingerprint(hf.compile(direct).graph(hf.asarray(X)), {})


def test_what_cannot_be_registered(squareplus):
    for name, options, text in (
        ("squareplus", {}, "Put your package's name in front"),
        ("tests.squareplus", {}, "The name is taken"),
        ("tests.shapeless", {"traits": []}, "Pass infer="),
        ("tests.traits", {"traits": ["pointwise", "quick"]}, "Traits are pointwise"),
    ):
        with pytest.raises(ValueError, match=text):
            hf.ops.register(name, **{"lower": jnp.sin, "traits": ["pointwise"], **options})
    with pytest.raises(ValueError, match="a variable number of parameters"):
        hf.ops.register("tests.open", lower=lambda *xs: xs[0], traits=["pointwise"])
    with pytest.raises(TypeError, match=r"missing a required argument: 'x'"):
        squareplus()
    assert "tests.open" not in REGISTRY
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hf.ops.nonsense  # noqa: B018
