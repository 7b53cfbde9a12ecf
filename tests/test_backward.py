"""`.backward()`: torch's documented rules, each run by both, and what is ours alone."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.autodiff import gradients_on_demand

RULES: list[Callable[[Any], Any]] = []


def rule(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Collect a rule: a program of `m`, hybridflow or torch, that must give both the same."""
    RULES.append(function)
    return function


def leaf(m: Any, value: Any = (1.0, 2.0, 3.0)) -> Any:
    return m.tensor(value, requires_grad=True)


def fails(call: Callable[[], Any]) -> bool:
    """Whether a call raises what torch raises: a RuntimeError."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError):
        return True
    return False


@rule
def a_scalar_needs_no_gradient(m: Any) -> Any:
    x = leaf(m)
    (x * x).sum().backward()
    return x.grad


@rule
def one_element_of_any_rank_needs_none_either(m: Any) -> Any:
    x = leaf(m, [[2.0]])
    (x * x * x).backward()
    return x.grad


@rule
def several_elements_need_one(m: Any) -> Any:
    x = leaf(m)
    y = x * x
    return fails(y.backward), x.grad


@rule
def a_vector_jacobian_product(m: Any) -> Any:
    x = leaf(m)
    (x * x).backward(m.tensor([1.0, 10.0, 100.0]))
    return x.grad


@rule
def a_gradient_by_keyword(m: Any) -> Any:
    x = leaf(m)
    (x * x).backward(gradient=m.tensor([1.0, 0.0, -1.0]))
    return x.grad


@rule
def a_gradient_of_another_shape_fails(m: Any) -> Any:
    x = leaf(m)
    y = x * x
    return fails(lambda: y.backward(m.tensor([1.0, 2.0]))), x.grad


@rule
def gradients_accumulate(m: Any) -> Any:
    x = leaf(m)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    return x.grad


@rule
def until_they_are_forgotten(m: Any) -> Any:
    x = leaf(m)
    (x * 2).sum().backward()
    x.grad = None
    (x * 3).sum().backward()
    return x.grad


@rule
def no_gradient_before_backward(m: Any) -> Any:
    x = leaf(m)
    (x * 2).sum()
    return x.grad


@rule
def a_second_backward_fails(m: Any) -> Any:
    x = leaf(m)
    y = (x * x).sum()
    y.backward()
    return fails(y.backward), x.grad


@rule
def unless_the_graph_was_retained(m: Any) -> Any:
    x = leaf(m)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, fails(y.backward)


@rule
def through_a_part_that_was_freed_too(m: Any) -> Any:
    x = leaf(m)
    shared = x.exp()
    first, second = (shared * 2).sum(), (shared * shared).sum()
    first.backward()
    return fails(second.backward), x.grad


@rule
def parts_that_were_not_freed_still_work(m: Any) -> Any:
    x = leaf(m)
    first, second = (x * x).sum(), x.exp().sum()
    first.backward()
    second.backward()
    return x.grad


@rule
def what_needs_no_gradient_has_no_backward(m: Any) -> Any:
    x = m.tensor([1.0])
    return fails((x * 2).backward), x.requires_grad, (x * 2).requires_grad, (x * 2).grad_fn is None


@rule
def requires_grad_spreads(m: Any) -> Any:
    x, c = leaf(m), m.tensor([1.0, 1.0, 1.0])
    return x.requires_grad, c.requires_grad, (x + c).requires_grad, (c + x).requires_grad, (c * c).requires_grad


@rule
def leaves(m: Any) -> Any:
    x, c = leaf(m), m.tensor([1.0, 1.0, 1.0])
    return x.is_leaf, c.is_leaf, (c * 2).is_leaf, (x * 2).is_leaf, (x * 2).detach().is_leaf


@rule
def grad_fn_of_leaves_and_others(m: Any) -> Any:
    x = leaf(m)
    return x.grad_fn is None, (x * 2).grad_fn is None, (x * 2).detach().grad_fn is None


@rule
def grad_fn_is_walked_to_the_leaves(m: Any) -> Any:
    x = leaf(m)
    found = ((x * x).exp().sum()).grad_fn
    depth = 0
    while found is not None and found.next_functions:
        found, _ = found.next_functions[0]
        depth += 1
    return depth


@rule
def what_needs_no_gradient_is_none_in_next_functions(m: Any) -> Any:
    x, c = leaf(m), m.tensor([1.0, 1.0, 1.0])
    return [one is None for one, _ in (x * c).grad_fn.next_functions]


@rule
def a_leaf_that_is_set_later(m: Any) -> Any:
    x = m.tensor([1.0, 2.0])
    before = x * 2
    same = x.requires_grad_() is x
    (x * x).sum().backward()
    return same, before.requires_grad, x.requires_grad, x.grad


@rule
def set_as_an_attribute(m: Any) -> Any:
    x = m.tensor([1.0, 2.0])
    x.requires_grad = True
    (x * x).sum().backward()
    x.requires_grad = False
    return x.requires_grad, (x * 2).requires_grad, x.grad


@rule
def what_is_no_leaf_cannot_stop(m: Any) -> Any:
    y = leaf(m) * 2
    return fails(lambda: y.requires_grad_(False)), y.requires_grad_(True).requires_grad


@rule
def integers_cannot_require_gradients(m: Any) -> Any:
    x = m.tensor([1, 2])
    return fails(x.requires_grad_), fails(lambda: m.tensor([1, 2], requires_grad=True)), x.requires_grad


@rule
def comparisons_require_none(m: Any) -> Any:
    x = leaf(m)
    return (x > 2.0).requires_grad, (x == x).requires_grad, m.argmax(x).requires_grad, (x > 2.0).is_leaf


@rule
def a_mask_made_of_a_comparison(m: Any) -> Any:
    x = leaf(m, [-1.0, 2.0, 3.0])
    m.where(x > 0.0, x * x, m.tensor([0.0, 0.0, 0.0])).sum().backward()
    return x.grad


@rule
def detach_stops(m: Any) -> Any:
    x = leaf(m)
    y = x * x
    (y * y.detach()).sum().backward()
    return x.grad, y.detach().requires_grad


@rule
def a_detached_value_can_be_a_leaf_of_its_own(m: Any) -> Any:
    x = leaf(m)
    y = (x * x).detach().requires_grad_()
    (y * y).sum().backward()
    return x.grad, y.grad


@rule
def no_grad_records_nothing(m: Any) -> Any:
    x = leaf(m)
    with m.no_grad():
        y = x * 2
        inside = x.requires_grad, m.is_grad_enabled()
    return y.requires_grad, y.is_leaf, inside, m.is_grad_enabled(), (x * 2).requires_grad


@rule
def no_grad_as_decorator(m: Any) -> Any:
    x = leaf(m)

    @m.no_grad()
    def double(v: Any) -> Any:
        return v * 2

    return double(x).requires_grad, double.__name__, (x * 2).requires_grad


@rule
def enable_grad_inside(m: Any) -> Any:
    x = leaf(m)
    with m.no_grad():
        with m.enable_grad():
            y = x * 2
        z = x * 2
    return y.requires_grad, z.requires_grad


@rule
def no_grad_ends_with_an_error(m: Any) -> Any:
    x = leaf(m)
    failed = False
    try:
        with m.no_grad():
            raise KeyError
    except KeyError:
        failed = True
    return failed, (x * 2).requires_grad


@rule
def a_constant_part_of_a_result(m: Any) -> Any:
    x = leaf(m)
    with m.no_grad():
        scale = x.sum()
    (x / scale).sum().backward()
    return x.grad


@rule
def a_hook_sees_the_gradient(m: Any) -> Any:
    x, seen = leaf(m), []
    y = x * 2
    y.register_hook(seen.append)
    (y * y).sum().backward()
    return seen, x.grad


@rule
def a_hook_changes_it(m: Any) -> Any:
    x = leaf(m)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    (y * y).sum().backward()
    return x.grad


@rule
def hooks_run_in_order(m: Any) -> Any:
    x = leaf(m)
    y = x * 2
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    return x.grad


@rule
def a_removed_hook_is_gone(m: Any) -> Any:
    x = leaf(m)
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    handle.remove()
    handle.remove()
    y.sum().backward()
    return x.grad


@rule
def a_hook_on_a_leaf(m: Any) -> Any:
    x = leaf(m)
    x.register_hook(lambda g: g * 10)
    (x * x).sum().backward()
    (x * x).sum().backward()
    return x.grad


@rule
def a_hook_is_called_once_with_the_sum(m: Any) -> Any:
    x, seen = leaf(m), []
    y = x * 2
    y.register_hook(seen.append)
    (y * y + y.exp() + y).sum().backward()
    return seen, x.grad


@rule
def a_hook_needs_a_gradient(m: Any) -> Any:
    return fails(lambda: m.tensor([1.0]).register_hook(print))


@rule
def retained_gradients(m: Any) -> Any:
    x = leaf(m)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.retains_grad, x.retains_grad, y.grad, x.grad


@rule
def a_retained_gradient_is_the_hooked_one(m: Any) -> Any:
    x = leaf(m)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    return y.grad, x.grad


@rule
def retaining_needs_a_gradient(m: Any) -> Any:
    return fails(m.tensor([1.0]).retain_grad), leaf(m).retain_grad()


@rule
def a_gradient_can_be_set(m: Any) -> Any:
    x = leaf(m)
    x.grad = m.tensor([1.0, 1.0, 1.0])
    (x * x).sum().backward()
    return x.grad


@rule
def but_only_of_the_right_shape(m: Any) -> Any:
    x = leaf(m)

    def assign() -> None:
        x.grad = m.tensor([1.0])

    return fails(assign), x.grad


@rule
def gradients_have_none_of_their_own(m: Any) -> Any:
    x = leaf(m)
    (x * x).sum().backward()
    return x.grad.requires_grad, x.grad.grad_fn is None


@rule
def a_leaf_used_twice(m: Any) -> Any:
    x = leaf(m)
    (x * x + x * x.exp()).sum().backward()
    return x.grad


@rule
def two_leaves(m: Any) -> Any:
    x, w = leaf(m), leaf(m, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    (w @ x).sum().backward()
    return x.grad, w.grad


@rule
def a_leaf_is_its_own_result(m: Any) -> Any:
    x = leaf(m, 3.0)
    x.backward()
    x.backward()
    return x.grad


@rule
def unused_leaves_get_none(m: Any) -> Any:
    x, unused = leaf(m), leaf(m)
    (x * x).sum().backward()
    return unused.grad


@rule
def broadcast_gradients_have_their_leafs_shape(m: Any) -> Any:
    x, b = leaf(m, [[1.0, 2.0], [3.0, 4.0]]), leaf(m, [1.0, 1.0])
    ((x + b) * x).sum().backward()
    return b.grad, x.grad


@rule
def an_index_and_its_gradient(m: Any) -> Any:
    x = leaf(m)
    (x[1:] * x[0]).sum().backward()
    return x.grad


@rule
def python_control_flow(m: Any) -> Any:
    x = leaf(m, 3.0)
    y = x
    while y < 100.0:
        y = y * x
    y.backward()
    return y.detach(), x.grad


@rule
def stacked_leaves(m: Any) -> Any:
    x, y = leaf(m, 1.0), leaf(m, 2.0)
    (m.stack([x, y, x]) * m.tensor([1.0, 10.0, 100.0])).sum().backward()
    return x.grad, y.grad


@rule
def a_step_by_hand(m: Any) -> Any:
    x = leaf(m)
    for _ in range(3):
        (x * x * x).sum().backward()
        x = (x - 0.01 * x.grad).detach().requires_grad_()
    return x.detach()


def plain(value: Any) -> Any:
    """Return a rule's answer in Python values."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return np.asarray(value.detach().numpy())


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, list):
        assert isinstance(theirs, list)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    else:
        assert (type(ours), ours) == (type(theirs), theirs)


@pytest.mark.parametrize("program", RULES, ids=[one.__name__ for one in RULES])
def test_torch_and_hybridflow_keep_the_same_rule(program):
    torch = pytest.importorskip("torch")
    assert_same(plain(program(hf)), plain(program(torch)))


def test_there_are_forty_rules():
    assert len(RULES) >= 40


# -- what is ours -------------------------------------------------------------------------------------------------


def test_a_variable_is_a_leaf_if_it_says_so():
    w = hf.Variable([1.0, 2.0], requires_grad=True, name="w")
    plain_variable = hf.Variable([1.0, 2.0])
    assert w.requires_grad
    assert w.is_leaf
    assert w.grad is None
    assert w.grad_fn is None
    assert not plain_variable.requires_grad
    assert not (plain_variable * 2).requires_grad
    (w * w * plain_variable).sum().backward()
    (w * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [5.0, 11.0]
    assert plain_variable.grad is None
    w.zero_grad()
    assert w.grad is None
    w.assign([5.0, 5.0])
    w.sum().backward()
    assert w.grad.tolist() == [1.0, 1.0]
    w.grad = [7.0, 7.0]
    assert w.grad.tolist() == [7.0, 7.0]


def test_a_variables_reads_are_one_leaf_with_one_hook_call():
    w = hf.Variable(2.0, requires_grad=True)
    seen: list[Any] = []
    w.register_hook(lambda g: seen.append(g.item()) or g * 2)
    first = w * 3
    with hf.GradientTape():
        second = w * w
    (first + second).backward()
    assert seen == [7.0]
    assert w.grad.item() == 14.0


def test_an_assignment_leaves_what_was_computed_alone():
    w = hf.Variable(2.0, requires_grad=True)
    y = w * w
    w.assign(10.0)
    y.backward()
    assert w.grad.item() == 4.0


def test_whether_a_variable_requires_a_gradient_is_fixed():
    w = hf.Variable(2.0)
    assert w.requires_grad_(False) is w
    with pytest.raises(TypeError, match="was made with requires_grad=False, and keeps it"):
        w.requires_grad_()
    with pytest.raises(TypeError, match="int32 has no gradient"):
        hf.Variable([1, 2], requires_grad=True)


def test_zero_underscore_names_zero_grad():
    x = hf.tensor([1.0], requires_grad=True)
    x.sum().backward()
    with pytest.raises(TypeError, match=r"Instead of x\.grad\.zero_\(\), call x\.zero_grad\(\)"):
        x.grad.zero_()
    x.zero_grad()
    assert x.grad is None


def test_messages():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    for kind in (ValueError, RuntimeError):  # the second one is PyTorch's
        with pytest.raises(kind, match=r"has shape \(2,\), so its gradient must be given"):
            y.backward()
    with pytest.raises(ValueError, match=r"the gradient has shape \(3,\), the tensor \(2,\)"):
        y.backward([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="the gradient is float64, the tensor float32"):
        y.backward(np.ones(2))
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        hf.tensor([1.0]).backward()
    with pytest.raises(TypeError, match="the hook cannot be called"):
        y.register_hook(3)  # pyright: ignore[reportArgumentType]
    y.register_hook(lambda g: g[:1])
    with pytest.raises(ValueError, match=r"what the hook returned: the gradient has shape \(1,\), the tensor \(2,\)"):
        y.backward([1.0, 1.0])
    assert x.grad is None
    with pytest.warns(UserWarning, match="keeps no gradient"):
        assert y.grad is None
    with pytest.raises(RuntimeError, match="only a leaf that requires a gradient can be given one"):
        y.grad = y.detach()
    with pytest.raises(RuntimeError, match="only a leaf can stop requiring a gradient"):
        y.requires_grad = False


def test_a_backward_that_fails_changes_nothing():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    w = hf.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2

    def refuse(g: Any) -> None:
        raise KeyError("no")

    handle = y.register_hook(refuse)
    z = (y * w).sum()
    with pytest.raises(KeyError):
        z.backward()
    assert x.grad is None
    assert w.grad is None
    handle.remove()
    z.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert w.grad.tolist() == [2.0, 4.0]


def test_the_freed_graph_is_named():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.exp(x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"call that one with retain_graph=True"):
        y.backward()
    with pytest.raises(RuntimeError, match=r"call that one with retain_graph=True"):
        tape.gradient(y, x)


def test_a_tape_and_backward_share_the_nodes():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = (x * x * x).sum()
    y.backward(retain_graph=True)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), x.grad.numpy())


def test_why_none_tells_tapes_from_leaves():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    with hf.GradientTape(persistent=True) as tape:
        y = (x * x).sum()
    assert tape.gradient(y, x) is None
    assert "requires_grad is for .backward()" in tape.why_none(y, x)
    w = hf.Variable(2.0, requires_grad=True)
    with hf.GradientTape(persistent=True) as tape:
        with hf.no_grad():
            z = w * w
        t = w * 3
    assert tape.gradient(z, w) is None
    assert tape.gradient(t, w).item() == 3.0
    assert "no path" in tape.why_none(z, w)


def test_a_gradient_of_what_requires_one_can_be_differentiated_again():
    x = hf.tensor(3.0, requires_grad=True)
    slope = hf.grad(lambda v: v * v * v)(x)
    assert slope.requires_grad
    slope.backward()
    assert x.grad.item() == 18.0
    value, _ = hf.value_and_grad(lambda v: v * v)(x)
    x.zero_grad()
    value.backward()
    assert x.grad.item() == 6.0


def test_custom_gradients():
    @hf.custom_gradient
    def double(x: Any) -> Any:
        return x * 2, lambda g: g * 100

    x = hf.tensor([1.0, 2.0], requires_grad=True)
    double(x).sum().backward()
    assert x.grad.tolist() == [100.0, 100.0]
    assert not double(x.detach()).requires_grad


def test_compiled_calls_are_recorded():
    @hf.compile
    def f(x: Any) -> Any:
        return hf.sum(hf.tanh(x) * x)

    x = hf.tensor(np.linspace(-1.0, 1.0, 5, dtype=np.float32), requires_grad=True)
    f(x.detach())
    y = f(x)
    assert y.requires_grad
    assert not f(x.detach()).requires_grad
    y.backward()
    expected = hf.grad(f.python_function)(x.detach())
    np.testing.assert_allclose(x.grad.numpy(), expected.numpy(), rtol=1e-6)
    with hf.no_grad():
        assert not f(x).requires_grad
    assert f.trace_count == 1


def test_compiled_calls_record_captured_leaves():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    w = hf.Variable([3.0, 4.0], requires_grad=True)
    f = hf.compile(lambda v: hf.sum(v * x * w))
    for count in (1.0, 2.0):
        f(hf.asarray([1.0, 1.0])).backward()
        assert x.grad.tolist() == [3.0 * count, 4.0 * count]
        assert w.grad.tolist() == [1.0 * count, 2.0 * count]


def test_print_and_walk():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    fn = y.grad_fn
    assert fn.name == "sum"
    assert "test_backward.py" in repr(fn)
    assert fn == y.grad_fn
    assert len({fn, y.grad_fn}) == 1
    assert str(fn).splitlines() == [
        "sum -> f32[]",
        "  multiply -> f32[2]",
        "    accumulate_grad -> f32[2]",
        "    accumulate_grad -> f32[2]",
    ]
    z = x
    for _ in range(40):
        z = z * z
    assert str(z.grad_fn).splitlines()[-1] == "... stopped after 60 lines"


def test_nothing_is_recorded_or_kept_alive_without_a_leaf():
    x = hf.asarray(np.ones(4, np.float32))
    gone = weakref.ref(x)
    y = x * 2 + 1
    assert y._edge is None
    del x
    assert gone() is None


def test_what_a_backward_freed_is_freed_at_once():
    gc.disable()
    try:
        x = hf.tensor(np.ones(4, np.float32), requires_grad=True)
        y = hf.exp(x)
        saved = weakref.ref(y)
        loss = (y * y).sum()
        del y
        loss.backward()
        assert saved() is None
        node = weakref.ref(loss.grad_fn._node)
        del loss
        assert node() is None
    finally:
        gc.enable()


def test_a_comparison_keeps_nothing_alive():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    assert (x > 1.0)._edge is None
    assert (x * 2).astype(hf.int32).requires_grad is False


def test_other_threads_record_too():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    found: list[Any] = []

    def work() -> None:
        (x * x).sum().backward()
        found.append(x.grad)

    thread = threading.Thread(target=work)
    with hf.no_grad():
        thread.start()
        thread.join()
    assert found[0].tolist() == [2.0, 4.0]


def test_a_new_tensor_is_a_leaf_of_its_own():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    y = hf.tensor(x * 3, requires_grad=True)
    assert y.is_leaf
    (y * y).sum().backward()
    assert x.grad is None
    assert y.grad.tolist() == [6.0, 12.0]


def test_copies_and_pickles_of_variables_are_leaves():
    w = hf.Variable([1.0], requires_grad=True, name="w")
    w.sum().backward()
    for twin in (copy.copy(w), copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert twin.requires_grad
        assert twin.grad is None
        assert twin.name == "w"
        twin.sum().backward()
        assert twin.grad.tolist() == [1.0]


def test_no_grad_without_parentheses_pauses_tapes_too():
    x = hf.asarray(3.0)

    @hf.no_grad
    def square(v: Any) -> Any:
        return v * v

    with hf.GradientTape() as tape:
        tape.watch(x)
        y = square(x) * x
    assert tape.gradient(y, x).item() == 9.0
    with hf.no_grad(), hf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x).item() == 6.0


SQUARE = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32) + 3 * np.eye(3, dtype=np.float32)
FLOWS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: hf.vmap(lambda row: hf.sum(hf.tanh(row) * row))(x).sum(),
    "jvp": lambda x: hf.jvp(lambda v: hf.sum(v * v * v), (x,), (hf.ones_like(x),))[1],
    "grad": lambda x: (hf.grad(lambda v: hf.sum(v * v * v))(x) * x).sum(),
    "vjp": lambda x: hf.vjp(lambda v: v * v * v, x)[1](x)[0].sum(),
    "inv": lambda x: hf.linalg.inv(x).sum(),
    "at": lambda x: (x.at[0].set(x[1] * 2) * x).sum(),
    "cond": lambda x: hf.cond(x.sum() > 0, lambda v: v * v, lambda v: v, x).sum(),
    "scan": lambda x: hf.scan(lambda c, row: (c * row, c), hf.ones((3,)), x)[0].sum(),
    "compiled": hf.compile(lambda x: (x * x).sum()),
    "hidden outputs": lambda x: hf.nn.softmax(hf.nn.layer_norm(x)).max(),
    "iteration": lambda x: sum(row.sum() * i for i, row in enumerate(x)),
    "nested sequence": lambda x: (hf.asarray([x[0, 0], x[1, 1]]) ** 2).sum(),
    "array on the left": lambda x: (SQUARE + x * SQUARE).sum(),
}


@pytest.mark.parametrize("name", FLOWS)
def test_backward_gives_what_a_tape_gives(name):
    flow = FLOWS[name]
    x, w, watched = hf.tensor(SQUARE, requires_grad=True), hf.Variable(SQUARE, requires_grad=True), hf.asarray(SQUARE)
    with hf.GradientTape() as tape:
        tape.watch(watched)
        y = flow(watched)
    expected = tape.gradient(y, watched).numpy()
    for leaf_ in (x, w):
        flow(leaf_).backward()
        np.testing.assert_allclose(leaf_.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_what_was_freed_is_not_kept_alive_by_its_operation():
    x = hf.tensor([1.0, 2.0], requires_grad=True)

    def run() -> Any:
        f = hf.compile(lambda v: (v * v).sum())
        f(x).backward()
        return weakref.ref(f)

    gone = run()
    gc.collect()
    assert gone() is None


UNARY = [lambda m, x: m.tanh(x), lambda m, x: m.exp(x * 0.3), lambda m, x: x * x, lambda m, x: m.sin(x)]
BINARY = [lambda m, a, b: a * b, lambda m, a, b: a + b, lambda m, a, b: a - b * 0.5]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 99), st.integers(0, 9)), max_size=8))
def test_random_graphs_give_what_torch_gives(steps):
    torch = pytest.importorskip("torch")
    results: list[Any] = []
    for m in (hf, torch):
        x, w = leaf(m, [0.3, -0.7, 1.1]), leaf(m, [0.9, 0.2, -0.4])
        values = [x, w]
        for unary, binary, pick, special in steps:
            value = UNARY[unary](m, BINARY[binary](m, values[pick % len(values)], values[-1]))
            if special == 0:
                value = value.detach()
            elif special == 1 and value.requires_grad:
                value.register_hook(lambda g: g * 0.5)
            values.append(value)
        if values[-1].requires_grad:
            values[-1].sum().backward()
        results.append([x.grad, w.grad])
    assert_same(plain(results[0]), plain(results[1]))


def by_tape(function: Any, x: Any, **kwargs: Any) -> Any:
    with hf.GradientTape(**kwargs) as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


@pytest.mark.parametrize("power", [3, 4])
def test_a_tapes_gradient_of_what_requires_one_can_be_gone_back_from(power: int):
    """Twice: the first gradient is asked of a tape, the next of `.backward()` or of another tape."""
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    slope = by_tape(lambda v: hf.sum(v**power), x)
    assert slope.requires_grad
    assert not slope.is_leaf
    assert slope.grad_fn is not None
    (slope * hf.asarray([1.0, 10.0])).sum().backward()
    value = power * (power - 1) * x.numpy() ** (power - 2)
    np.testing.assert_allclose(x.grad.numpy(), value * [1.0, 10.0], rtol=1e-6)
    x.zero_grad()
    by_tape(lambda v: hf.sum(by_tape(lambda u: hf.sum(u**power), v)), x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), value * (power - 2) / x.numpy(), rtol=1e-6)


def test_a_gradient_penalty_through_a_model_of_modules():
    def total(wrap: Any) -> list[Any]:
        hf.random.seed(0)
        model = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.tanh, hf.nn.Linear(4, 1))
        x = hf.asarray([[1.0, 2.0, 3.0], [0.5, -1.0, 0.0]])

        def penalty() -> Any:
            with hf.GradientTape() as tape:
                loss = hf.mean(model(x) ** 2)
            return sum(hf.sum(one * one) for one in tape.gradient(loss, model.parameters())) + loss

        wrap(lambda: penalty().backward())()
        return [one.grad.numpy() for one in model.parameters()]

    for eager, compiled in zip(total(lambda f: f), total(hf.compile), strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-5, atol=1e-6)


def test_a_tapes_gradient_requires_one_only_if_it_depends_on_a_leaf():
    w = hf.Variable([1.0, 2.0], requires_grad=True)
    v = hf.Variable([3.0, 4.0], requires_grad=True)

    def slopes(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.sum(w * x) + hf.sum(v * v) + hf.sum(hf.relu(w * 3.0))
        linear, square = tape.gradient(loss, [w, v])
        return linear.requires_grad, (linear * 2).requires_grad, square.requires_grad, (linear * square).requires_grad

    x = hf.asarray([5.0, 6.0])
    assert slopes(x) == (False, False, True, True)
    assert [bool(one) for one in hf.compile(slopes)(x)] == [*slopes(x)]
    with hf.GradientTape() as tape:
        loss = hf.sum(w * x) + hf.sum(v * v)
    linear, square = tape.gradient(loss, [w, v])
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        hf.sum(linear).backward()
    hf.sum(linear * square).backward()
    assert w.grad is None
    assert v.grad.tolist() == [10.0, 12.0]
    with hf.no_grad():
        assert not by_tape(lambda u: hf.sum(u * u * v), v).requires_grad


def test_going_back_from_a_gradient_meets_hooks_and_retained_values():
    w = hf.Variable([1.0, 2.0], requires_grad=True)
    seen: list[Any] = []
    with hf.GradientTape() as tape:
        middle = w * w
        middle.retain_grad()
        middle.register_hook(lambda g: seen.append(g.tolist()))
        loss = hf.sum(middle**3)
    slope = tape.gradient(loss, w)  # 6 w**5, by 2 w * 3 middle**2
    hf.sum(slope).backward()
    np.testing.assert_allclose(w.grad.numpy(), 30 * w.numpy() ** 4, rtol=1e-6)
    np.testing.assert_allclose(middle.grad.numpy(), 2 * w.numpy() * 6 * w.numpy() ** 2, rtol=1e-6)
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        hf.sum(slope).backward()


def test_a_custom_rule_runs_once_for_a_tapes_gradient():
    calls: list[int] = []

    @hf.custom_gradient
    def cube(x: Any) -> Any:
        def rule(g: Any) -> Any:
            calls.append(1)
            return g * 3 * x * x

        return x**3, rule

    x = hf.tensor(2.0, requires_grad=True)
    slope = by_tape(cube, x)
    slope.backward()
    assert x.grad.item() == 12.0
    assert calls == [1]


def test_what_stands_for_a_gradients_gradient_is_freed_with_it():
    w = hf.Variable(np.ones(1000, np.float32), requires_grad=True)

    def kept() -> Any:
        with hf.GradientTape() as tape:
            middle = hf.exp(w)
            loss = hf.sum(middle * middle)
        return tape.gradient(loss, w), weakref.ref(middle._edge[0])

    slope, node = kept()
    assert node() is not None
    del slope
    assert node() is None


def curved(x: Any) -> Any:
    return hf.exp(-hf.abs(x))


def read_thrice(x: Any) -> Any:
    """A function of x and of a gradient at x, each of which is read several times."""
    slope = by_tape(lambda x: curved(curved(x) * x), x)
    return x * 1.253 + x * -0.921 + slope * 0.548 + slope * -1.836 + x * 0.427 + curved(slope) * slope


def test_a_gradient_that_is_recorded_later_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    xs = np.random.default_rng(0).uniform(-1, 1, 500).astype(np.float32)
    expected = by_tape(read_thrice, hf.asarray(xs)).numpy()
    leaf = hf.tensor(xs, requires_grad=True)
    read_thrice(leaf).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), expected)
    monkeypatch.setattr(gradients_on_demand, "Fraction", lambda number, count: number)  # recorded last instead
    moved = hf.tensor(xs, requires_grad=True)
    read_thrice(moved).sum().backward()
    assert (moved.grad.numpy() != expected).any()


def test_what_is_recorded_later_is_older_than_a_tape_that_began_since():
    x = hf.tensor(3.0, requires_grad=True)
    slope = by_tape(lambda x: x**3, x)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = slope * x
        y.backward(retain_graph=True)
        assert slope.requires_grad
    assert x.grad.item() == 27 + 3 * 18
    assert tape.gradient(y, x).item() == 27


def test_hooks_of_a_gradient_that_is_recorded_later():
    x = hf.tensor(3.0, requires_grad=True)
    slope = by_tape(lambda x: x**3, x)
    early = slope * 2
    seen: list[float] = []
    slope.register_hook(lambda g: seen.append(g.item()))
    (early + slope * slope).backward()
    assert seen == [2 + 2 * 27]
    assert x.grad.item() == (2 + 2 * 27) * 18


def test_several_gradients_of_one_tape_are_recorded_together():
    x, w = hf.tensor(3.0, requires_grad=True), hf.tensor(2.0, requires_grad=True)
    with hf.GradientTape() as tape:
        tape.watch([x, w])
        y = x * x * w
    by_x, by_w = tape.gradient(y, [x, w])
    by_w.backward(retain_graph=True)
    assert x.grad.item() == 6.0
    assert w.grad is None
    (by_x * by_w).backward()
    assert x.grad.item() == 6.0 + 4 * 9 + 12 * 6
    assert w.grad.item() == 6 * 9
