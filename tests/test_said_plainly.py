"""What reports and errors say: one number for one thing, sizes in words, Variables once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.cli.artifacts import lines_of
from hybridflow.core.dims import DimScope, Guard
from hybridflow.core.errors import HybridflowError
from hybridflow.export.artifact import is_training


def linear_step():
    w, b = hf.Variable(np.ones((3, 1), np.float32), name="w"), hf.Variable([0.0], name="b")
    optimizer = hf.optim.SGD([w, b], rate=0.1)

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean((x @ w + b - y) ** 2) + 0 * hf.sum(x * 3)  # which a pass may drop
        optimizer.update(tape.gradient(loss, [w, b]))
        return loss

    return step, (hf.ones((7, 3)), hf.ones((7, 1)))


def test_compare_and_cost_count_the_same():
    step, args = linear_step()
    assert hf.compare(step, *args, repeats=2).flops == hf.cost(step, *args).flops > 0


def test_the_row_of_the_largest_difference_says_of_what():
    rows = {row[0]: row[1:] for row in hf.compare(lambda x: hf.exp(x), hf.ones((4,)), repeats=2).rows()}
    eager, compiled = rows["results: largest difference"]
    assert eager == ""
    assert compiled.startswith("from eager: ")


def test_memory_says_what_is_a_sum_and_what_is_stored_at_once():
    step, args = linear_step()
    remarks = {what: remark for what, _, remark in hf.cost(step, *args).memory.rows()}
    assert remarks["activations"].endswith("their sum")
    assert remarks["temporaries"].startswith("the most stored at once")


def test_explain_says_a_variable_once():
    step, args = linear_step()
    step = hf.compile(step)
    step(*args)
    text = str(step.explain())
    line = next(line for line in text.splitlines() if "Variables:" in line)
    assert line.strip() == "Variables: reads and writes w, b, optimizer.steps; reads optimizer.rate"
    assert "donated: the buffers of all Variables that it writes" in text


def test_a_long_list_of_variables_is_cut():
    many = [hf.Variable(float(i), name=f"v{i}") for i in range(30)]
    fn = hf.compile(lambda x: sum([v * x for v in many]))
    fn(2.0)
    assert "more, in .variables" in str(fn.explain())
    assert len(fn.explain()[0].variables) == 30


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["==", "<", "<=", ">", ">="]), st.booleans(), st.integers(0, 4), st.integers(0, 4))
def test_words_of_a_comparison_are_true_where_it_holds(compare, answer, right, size):
    guard = Guard(DimScope().symbol("n", 3), compare, right, answer)
    words = {"is": "==", "is not": "!=", "is below": "<", "is at least": ">=", "is above": ">", "is at most": "<="}
    name, _, said = guard.sentence().partition(" ")
    phrase, _, number = said.rpartition(" ")
    assert name == "n"
    assert eval(f"{size} {words[phrase]} {number}") == guard.holds({"n": size})


def test_open_sizes_have_the_names_of_parameters_and_specs(tmp_path):
    def shrink(image):
        return image[1:] if image.shape[0] != 0 else image

    hf.export.save(tmp_path / "a", shrink, hf.TensorSpec([None, 2]))
    hf.export.save(tmp_path / "b", shrink, hf.TensorSpec([None, 2], name="pixels"))
    texts = ["\n".join(lines_of(tmp_path / one, hf.export.load(tmp_path / one))) for one in "ab"]
    for text, name in zip(texts, ("image_0", "pixels_0"), strict=True):
        assert f"sizes left open: {name}" in text
        assert f"only for sizes where {name} is not 0" in text
    x = np.ones((3, 2), np.float32)
    assert hf.export.load(tmp_path / "b").predict(x).shape == (2, 2)


def test_open_sizes_of_a_module_have_the_names_of_its_forward():
    net = hf.nn.Sequential(hf.nn.Linear(3, 2))
    for name, spec in (("x_0", hf.TensorSpec([None, 3])), ("rows_0", hf.TensorSpec([None, 3], name="rows"))):
        assert str(hf.cost(net, spec).flops) == f"14*{name}"
        assert f"({name}, 2)" in str(hf.nn.summary(net, spec))
        assert str(hf.compile(net).graph(spec).output_specs[0]) == f"f32[{name},2]"


def test_the_mode_that_is_exported_is_known():
    net = hf.nn.Sequential(hf.nn.Linear(3, 2), hf.nn.Dropout(0.5))
    assert is_training(net)
    assert is_training(net.forward)
    assert is_training(hf.compile(net))
    assert not is_training(net.eval())
    assert not is_training(lambda x: net(x))
    assert "evaluation mode whatever mode it is in" in " ".join(hf.export.save.__doc__.split())


def test_vmap_of_several_models_names_stack():
    models = [hf.nn.Linear(3, 2) for _ in range(2)]
    with pytest.raises(TypeError, match=r"hf\.nn\.stack"):
        hf.vmap(models)
    with pytest.raises(TypeError, match=r"vmap: an int is no function(.|\n)*Give a function of one example"):
        hf.vmap(3)
    x = hf.ones((3,))
    both = hf.vmap(lambda model: model(x))(hf.nn.stack(models))  # as the error says
    np.testing.assert_allclose(both, [model(x).numpy() for model in models], rtol=1e-5)


class ForeignTensor:
    """Stands for PyTorch's tensor: only its name and its module are looked at."""


ForeignTensor.__name__, ForeignTensor.__module__ = "Tensor", "torch"
X = hf.ones((2, 3))
def open_beside_number():
    f = hf.compile(lambda x: x + hf.zeros((8, 5)), input_signature=[hf.TensorSpec([None, 5])])
    return f(hf.ones((4, 5)))


MISTAKES = {
    "parentheses are forgotten": (lambda: hf.nn.Sequential(hf.nn.Dropout), r"class Dropout.*\n.*Dropout\(\)"),
    "many elements as a condition": (lambda: bool(X > 0), "bool: needs exactly one.*\n.*\n.*hf.where"),
    "a traced number of elements": (lambda: hf.compile(hf.arange)(hf.asarray(3)), "arange: how many.*\n.*\n.*mask"),
    "a tape that never recorded": (lambda: hf.GradientTape().gradient(X, X), "gradient: the tape has never recorded"),
    "an open size beside a number": (open_beside_number, "x_0 against 8 .*\n.*\n.*it as 8, or .*zeros_like"),
    "a tensor of PyTorch": (lambda: X + ForeignTensor(), "torch.Tensor, the other .*\n.*detach"),
    "a tensor of PyTorch on the left": (lambda: ForeignTensor() * X, "torch.Tensor, the other .*\n.*detach"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_with_the_next_step(mistake):
    call, text = MISTAKES[mistake]
    with pytest.raises(HybridflowError, match=text):
        call()


X = hf.ones((2,))
RESULT = hf.sum(X)
TAKE_FUNCTIONS = {
    "compile": lambda: hf.compile(RESULT), "compare": lambda: hf.compare(RESULT, X), "cost": lambda: hf.cost(RESULT, X),
    "grad": lambda: hf.grad(RESULT), "value_and_grad": lambda: hf.value_and_grad(RESULT),
    "vjp": lambda: hf.vjp(RESULT, X), "jvp": lambda: hf.jvp(RESULT, (X,), (X,)),
    "jacobian": lambda: hf.jacobian(RESULT), "hessian": lambda: hf.hessian(RESULT),
    "hvp": lambda: hf.hvp(RESULT, (X,), (X,)), "vmap": lambda: hf.vmap(RESULT),
    "checkpoint": lambda: hf.checkpoint(RESULT), "scan": lambda: hf.scan(RESULT, X, X),
    "cond": lambda: hf.cond(True, RESULT, RESULT), "while_loop": lambda: hf.while_loop(RESULT, RESULT, X),
    "associative_scan": lambda: hf.associative_scan(RESULT, X), "custom_gradient": lambda: hf.custom_gradient(RESULT),
    "locate": lambda: hf.debugging.locate(RESULT, X), "table": lambda: hf.debugging.table(RESULT, X),
    "assert_same": lambda: hf.testing.assert_same(RESULT, X), "profile": lambda: hf.profile(RESULT, X),
    "check_gradients": lambda: hf.testing.check_gradients(RESULT, X), "to_jax": lambda: hf.to_jax(RESULT),
    "pure_callback": lambda: hf.pure_callback(RESULT, X), "from_jax": lambda: hf.from_jax(RESULT),
}


@pytest.mark.parametrize("name", TAKE_FUNCTIONS)
def test_a_result_in_the_place_of_a_function_is_named(name):
    with pytest.raises(TypeError, match=rf"^{name}: (a Tensor is n|takes a f)(.|\n)*\n  (Pass|Give|Write) .*[.:]$"):
        TAKE_FUNCTIONS[name]()


SIZES = {
    "ones": lambda x, n: hf.ones((n,)), "zeros": lambda x, n: hf.zeros(n), "full": lambda x, n: hf.full((n, 2), 1.0),
    "reshape": lambda x, n: x.reshape(n, 2), "broadcast_to": lambda x, n: hf.broadcast_to(x, (n, 4)),
    "tile": lambda x, n: hf.tile(x, (n,)), "repeat": lambda x, n: hf.repeat(x, n), "eye": lambda x, n: hf.eye(n),
    "normal": lambda x, n: hf.random.normal((n,)), "pad": lambda x, n: hf.pad(x, (0, n)),
    "linspace": lambda x, n: hf.linspace(0, 1, n), "one_hot": lambda x, n: hf.nn.one_hot(hf.asarray([0, 1]), n),
    "arange": lambda x, n: hf.arange(n), "empty": lambda x, n: hf.empty((n,)), "slice": lambda x, n: x[:n],
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_depends_on_a_value_says_what_to_write(name):
    with pytest.raises(RuntimeError, match=r"Python number|bound|For n elements from i on"):
        hf.compile(SIZES[name])(hf.ones((4,)), hf.asarray(2))
