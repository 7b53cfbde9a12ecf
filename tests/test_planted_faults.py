"""The automatic checks are tested themselves: each must catch the fault planted in a copy of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from jax import lax

import hybridflow as hf
from hybridflow.core.errors import CheckError
from hybridflow.core.op import REGISTRY, Bad, MultiplyAdds, Op, Sample, Saves, on_host
from hybridflow.core.spec import make_spec
from hybridflow.ops.index_keys import numpy_index
from hybridflow.testing.calls import capture
from hybridflow.testing.checks import CALL_CHECKS, OP_CHECKS, TRAIT_CHECKS, samples_of


def broken(name: str, **changes: Any) -> Op:
    """Return a copy of a record with a fault, and with caches of its own."""
    return replace(REGISTRY[name], jitted={}, accepted=set(), **changes)


def caught_by(check: str, op: Op) -> list[str]:
    """Return what a check says about the op's samples."""
    texts: list[str] = []
    for sample in samples_of(REGISTRY[op.name], 0):
        if isinstance(sample, Sample):
            for call in capture(op, sample):
                try:
                    CALL_CHECKS[check](call)
                except CheckError as error:
                    texts.append(str(error))
    return texts


def _no_unbroadcast(F: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    return g * b, g * a


def _reads_unsaved(F: Any, g: Any, y: Any, x: Any) -> Any:
    return (g * F.exp(x),)


def _int_of_sizes(x: Any, *, axes: Any) -> Any:
    return make_spec(tuple([int(x.shape[axis]) * 1 for axis in reversed(axes)]), x.dtype)


def _onnx_without_nan(o: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return o.ReduceMax(o.Where(o.IsNaN(x), -np.inf, x) if x.dtype.kind == "f" else x, o.ints(axis), keepdims=keepdims)


def _onnx_of_another_residual(o: Any, x: Any, *scale: Any, residuals: bool = False, **attrs: Any) -> Any:
    found = REGISTRY["rms_norm"].onnx(o, x, *scale, residuals=residuals, **attrs)
    return (found[0], found[1] * 1.001) if residuals else found


def _onnx_without_cast(o: Any, x: Any, *, dtype: Any) -> Any:
    x.dtype = dtype
    return o.Identity(x)


def _through_a_view(x: Any, y: Any) -> Any:
    result = np.zeros_like(np.asarray(x - y))
    result.reshape(-1)[...] = (x - y).reshape(-1)  # lost if the result is not in row-major order: then this is a copy
    return result


def _host_through_a_view(g: Any, y: Any, x: Any, labels: Any) -> Any:
    result = np.exp(x - y[1][..., None])
    result.reshape(-1, x.shape[-1])[np.arange(labels.size), labels.reshape(-1)] -= 1
    return result * g[..., None], None


def _of_labels(F: Any, g: Any, y: Any, x: Any, labels: Any) -> Any:
    return cast("Any", REGISTRY["softmax_cross_entropy_integer"].vjp)(F, g, y, x, labels)


FAULTS = {
    "coefficient off by 0.1 % against differences": (
        "vjp_is_finite_difference",
        broken("tanh", vjp=lambda F, g, y, x: (g * (1 - 1.001 * y * y),)),
        "central differences give",
    ),
    "coefficient off by 0.1 % against jax": (
        "vjp_is_jax_vjp",
        broken("tanh", vjp=lambda F, g, y, x: (g * (1 - 1.001 * y * y),)),
        "jax.vjp of the lowering gives",
    ),
    "first order right, second order cut": (
        "vjp_is_jax_vjp",
        broken("sin", vjp=lambda F, g, y, x: (g * F.stop_gradient(F.cos(x)),)),
        "second-order gradient of input 0",
    ),
    "missing unbroadcast": ("gradient_fits_its_input", broken("multiply", vjp=_no_unbroadcast), "the input f32"),
    "gradient in another dtype": (
        "gradient_fits_its_input",
        broken("exp", vjp=lambda F, g, y, x: (F.astype(g * y, dtype=np.dtype(np.float64)),)),
        "is f64",
    ),
    "no gradient where there is one": (
        "vjp_is_finite_difference",
        broken("exp", vjp=lambda F, g, y, x: (None,)),
        "central differences give",
    ),
    "Stops on a smooth op": (
        "vjp_is_finite_difference",
        broken("exp", vjp=REGISTRY["floor"].vjp),
        "central differences give",
    ),
    "dishonest saves: reads an input": (
        "saves_is_honest",
        broken("exp", vjp=_reads_unsaved, saves=Saves(y=True)),
        "reads what is not saved",
    ),
    "dishonest saves: reads the result": (
        "saves_is_honest",
        broken("tanh", saves=Saves(x=(0,))),
        "reads what is not saved",
    ),
    "wrong lowering": ("kernel_is_lowering", broken("exp", lower=lambda x: lax.exp(x) * 1.0001), "off the float64"),
    "wrong kernel": ("kernel_is_lowering", broken("floor", kernel=np.trunc), "kernel and lowering differ"),
    "a kernel that writes through a view": (
        "layout_in_memory_changes_nothing",
        broken("subtract", kernel=_through_a_view),
        "row-major inputs give",
    ),
    "a rule for NumPy arrays that writes through a view": (
        "layout_in_memory_changes_nothing",
        broken("softmax_cross_entropy_integer", vjp=on_host(_of_labels, _host_through_a_view)),
        "the gradient of input 0, of inputs in column-major order",
    ),
    "kernel of another dtype": (
        "kernel_is_lowering",
        broken("sum", kernel=lambda x, axis, keepdims: np.sum(x, axis=axis, keepdims=keepdims)),
        "against i32",
    ),
    "lowering that ignores a sign of zero": (
        "kernel_is_lowering",
        broken("sign", kernel=lambda x: np.where(x == 0, x, np.sign(x))),
        "kernel and lowering differ",
    ),
    "inaccurate accumulation": (
        "kernel_is_lowering",
        broken("sum", lower=lambda x, axis, keepdims: lax.reduce_sum(x.astype("bfloat16"), axis).astype(x.dtype)),
        "off the float64 result",
    ),
    "wrong infer": (
        "infer_is_real",
        broken("permute_dims", infer=lambda x, *, axes: make_spec(x.shape, x.dtype)),
        "infer says",
    ),
    "infer of another dtype": (
        "infer_is_real",
        broken("equal", infer=lambda a, b: make_spec(np.broadcast_shapes(a.shape, b.shape), a.dtype)),
        "infer says",
    ),
    "infer right for integers, wrong for symbols": (
        "infer_is_real",
        broken(
            "square",
            infer=lambda x: make_spec(tuple([s if type(s) is int else s + 1 for s in x.shape]), x.dtype),
        ),
        "infer with symbolic sizes",
    ),
    "lowering that needs 64 bits": (
        "infer_is_real",
        broken("argmax", lower=lambda x, axis: lax.argmax(x, axis, np.int32).astype(float).astype(np.int32) + 0.0),
        "infer",
    ),
    "negative flops": ("flops_are_valid", broken("exp", flops=lambda y, *xs: -1), "not a number from 0 on"),
    "flops that are no number": ("flops_are_valid", broken("exp", flops=lambda y, *xs: None), "not a number"),
    "false commutative": (
        "traits_hold",
        broken("subtract", traits=frozenset({"pointwise", "commutative"})),
        "trait commutative does not hold",
    ),
    "false pointwise": (
        "traits_hold",
        broken("flip", traits=frozenset({"pointwise"})),
        "trait pointwise does not hold",
    ),
    "false layout": ("traits_hold", broken("exp", traits=frozenset({"layout"})), "trait layout does not hold"),
    "false identity": ("traits_hold", broken("negative", traits=frozenset({"identity"})), "identity does not hold"),
    "false involution": ("traits_hold", broken("exp", traits=frozenset({"involution"})), "involution does not hold"),
    "false idempotent": ("traits_hold", broken("negative", traits=frozenset({"idempotent"})), "idempotent does not"),
    "false picks": ("traits_hold", broken("sum", traits=frozenset({"picks"})), "trait picks does not hold"),
    "false product": ("traits_hold", broken("add", traits=frozenset({"product"})), "trait product does not hold"),
    "false order": ("traits_hold", broken("maximum", traits=frozenset({"order"})), "trait order does not hold"),
    "false kernel gradient": (
        "traits_hold",
        broken("conv_kernel_gradient", kernel=lambda x, g, *, shape, **attrs: np.ones(shape, x.dtype)),
        "trait kernel_gradient does not hold",
    ),
    "false shift": ("traits_hold", broken("multiply", traits=frozenset({"shift"})), "trait shift does not hold"),
    "false slice": (
        "traits_hold",
        broken("getitem", traits=frozenset({"slice"}), kernel=lambda x, *, index: x[numpy_index(index)] * 0),
        "trait slice does not hold",
    ),
    "false placement": (
        "traits_hold",
        broken("slice_scatter", traits=frozenset({"placement"}), kernel=lambda x, shape, index: np.ones(shape)),
        "trait placement does not hold",
    ),
    "false matrix_product": (
        "traits_hold",
        broken("multiply", traits=frozenset({"matrix_product"})),
        "trait matrix_product does not hold",
    ),
    "false dot": (
        "traits_hold", broken("multiply", traits=frozenset({"dot"})), "its lowering holds no dot_general"
    ),
    "false unit_zero": ("traits_hold", broken("add", traits=frozenset({"unit_zero"})), "unit_zero does not hold"),
    "ONNX of another axis": (
        "onnx_is_kernel",
        broken("softmax", onnx=lambda o, x, *, axis: o.Softmax(x, axis=0)),
        "the ONNX model and the kernel differ",
    ),
    "ONNX of swapped operands": ("onnx_is_kernel", broken("subtract", onnx=lambda o, a, b: b - a), "kernel differ"),
    "ONNX that rounds another way": ("onnx_is_kernel", broken("floor_divide", onnx="Div"), "the kernel differ"),
    "ONNX that forgets NaN": ("onnx_is_kernel", broken("max", onnx=_onnx_without_nan), "the kernel differ"),
    "ONNX of another hidden output": ("onnx_is_kernel", broken("rms_norm", onnx=_onnx_of_another_residual), "output 1"),
    "ONNX without a cast": ("onnx_is_kernel", broken("astype", onnx=_onnx_without_cast), "ONNX model is not valid"),
    "false unit_one": ("traits_hold", broken("add", traits=frozenset({"unit_one"})), "unit_one does not hold"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(fault: str):
    check, op, text = FAULTS[fault]
    texts = caught_by(check, op)
    assert texts, f"{check} sees nothing"
    assert any(text in one for one in texts), texts[0]
    assert all(f"  got: {op.name}(" in one for one in texts)


@pytest.mark.parametrize("fault", sorted({(check, op.name) for check, op, _ in FAULTS.values()}))
def test_the_sound_record_passes(fault: tuple[str, str]):
    check, name = fault
    assert caught_by(check, REGISTRY[name]) == []


def test_every_check_has_a_planted_fault():
    planted = {check for check, _, _ in FAULTS.values()}
    # Planted below, in a public function and in the record that it binds.
    assert set(CALL_CHECKS) - planted == {"symbolic_trace_is_real", "onnx_keeps_open_sizes"}


def test_a_public_function_that_fixes_sizes_is_caught():
    record = REGISTRY["flip"]

    def public(x: Any, *, axis: Any = None) -> Any:
        del axis
        if any(type(size) is not int for size in x.shape):
            return hf.negative(hf.flip(x))
        return hf.flip(x)

    op = replace(record, public=public, jitted={}, accepted=set())
    (call, *_) = capture(op, Sample((np.ones((2, 3), np.float32),)))
    with pytest.raises(CheckError, match="a trace with symbolic sizes gives another output 0"):
        CALL_CHECKS["symbolic_trace_is_real"](call)


def test_an_onnx_column_that_is_wrong_of_open_sizes_is_caught(monkeypatch: pytest.MonkeyPatch):
    record = REGISTRY["flip"]
    build: Any = record.onnx

    def column(o: Any, x: Any, *, axis: Any) -> Any:
        return build(o, x, axis=axis) if all(type(size) is int for size in x.shape) else o.Identity(x)

    (call, *_) = capture(record, Sample((np.arange(6, dtype=np.float32).reshape(2, 3),)))
    monkeypatch.setattr(record, "onnx", column)
    CALL_CHECKS["onnx_is_kernel"](call)
    with pytest.raises(CheckError, match="an ONNX model with symbolic sizes gives another output 0"):
        CALL_CHECKS["onnx_keeps_open_sizes"](call)


def _bad(name: str, bad: Bad) -> Op:
    return broken(name, samples=lambda rng: [bad])


@pytest.mark.parametrize(
    ("check", "op", "text"),
    [
        ("bad_samples_raise", _bad("exp", Bad((1.0,))), "raises nothing eagerly"),
        ("bad_samples_raise", _bad("max", Bad((np.ones(2) > 0,), error=ValueError)), "raises DTypeError eagerly"),
        ("bad_samples_raise", _bad("max", Bad((np.ones(2) > 0,), error=TypeError, text="xyz")), "raises another text"),
        ("methods_are_installed", broken("exp", method=("no_such",)), "tensors have no method no_such"),
        ("methods_are_installed", broken("exp", method=("log",)), "gives another result"),
        (
            "saves_no_more_than_is_read", broken("exp", saves=Saves(x=(0,), y=True)),
            "exp: its gradient rule does not read what `saves` keeps: input 0",
        ),
        ("samples_reach_the_op", broken("power", samples=lambda rng: [Sample((np.ones(2), 2))]), "none of its 1 good"),
        (
            "flops_are_xlas", broken("matmul", flops=MultiplyAdds(lambda y, a, b: 2 * y.size * a.shape[-1])),
            r"matmul\(f32\[3,4\], f32\[4,2\]\) has 96 FLOPs by its record, 48 by XLA",
        ),
        (
            "flops_are_xlas", broken("conv", flops=MultiplyAdds(lambda y, x, kernel, **attrs: y.size * kernel.size)),
            "conv.* FLOPs by its record",
        ),
        (
            "flops_are_xlas", broken("matmul", flops=MultiplyAdds(lambda y, a, b: y.size * a.shape[-1] * 9 // 8)),
            "no sample has XLA's FLOPs",
        ),
    ],
)
def test_faults_of_records_are_caught(check: str, op: Op, text: str):
    with pytest.raises(CheckError, match=text):
        OP_CHECKS[check](op, 0)


def test_check_op_lists_what_failed():
    op = broken("tanh", vjp=lambda F, g, y, x: (g * (1 - 1.001 * y * y),))
    with pytest.raises(CheckError, match="vjp_is_finite_difference, sample 0") as caught:
        hf.testing.check_op(op)
    assert str(caught.value).startswith("tanh: ")


def test_every_checkable_trait_is_checked():
    unchecked = {
        "effect", "nested", "source", "tensor_rule", "conversion", "log_sum", "inner", "own_rule",
        "foreign", "low_precision", "full_precision", "named", "reads_never",
        "collective", "gathers", "places", "stages", "updates",  # what they say shows on a mesh: tests/meshes
        "inline",  # what it says shows in compiled functions that compare: test_picked_values
    }
    from hybridflow.core.op import TRAITS

    assert set(TRAITS) - set(TRAIT_CHECKS) == unchecked
