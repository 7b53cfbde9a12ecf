"""Names of PyTorch, NumPy, TensorFlow and JAX work as they do there, or say what to write instead."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import foreign, foreign_page, later
from hybridflow.compat import v1
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ForeignNameError
from hybridflow.core.foreign_hints import HINTS
from hybridflow.core.foreign_names import KEYWORDS, NAMES
from hybridflow.core.methods import TensorMethods
from tests import foreign_corpus, modes

ROWS = foreign.rows()
_RNG = np.random.default_rng(3)
INPUTS = {
    "x": _RNG.standard_normal((2, 3)).astype(np.float32),
    "y": _RNG.uniform(0.5, 2, (2, 3)).astype(np.float32),
    "m": np.array([[True, False, True], [False, False, True]]),
    "i": np.array([2, 0]),
    "w": _RNG.standard_normal((4, 3)).astype(np.float32),
    "b": _RNG.standard_normal(4).astype(np.float32),
    "s": np.array([[2.0, 1.0], [0.5, 3.0]], np.float32),
    "v": _RNG.standard_normal(3).astype(np.float32),
    "n": np.array([[1, 0, 3], [4, 5, 6]], np.int32),
    "k": np.array([[1, 2, 3], [4, 5, 6]], np.int32),
}


def functions(path, head, expressions):
    """Return the expressions as functions of a module whose source is found, so that it is converted."""
    lines = [head, *[f"def f{i}({', '.join(INPUTS)}):\n    return {text}" for i, text in enumerate(expressions)]]
    path.write_text("\n".join(lines), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [getattr(module, f"f{i}") for i in range(len(expressions))]


def same(found, expected, text):
    if isinstance(expected, tuple | list) and not hasattr(expected, "numel"):
        assert len(found) == len(expected), text
        for a, b in zip(found, expected, strict=True):
            same(a, b, text)
        return
    if hasattr(expected, "detach"):
        expected = expected.detach().to("cpu").numpy()
    if isinstance(found, hf.Tensor):
        assert found.dtype.kind == np.asarray(expected).dtype.kind, text
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, text
    np.testing.assert_allclose(found, expected, rtol=2e-3 if expected.dtype == np.float16 else 2e-5, atol=1e-6,
                               err_msg=text)


def agree(ours, theirs, expressions, convert, *, compiled=True):
    """Compare all expressions, eager and compiled, in one compiled call."""
    given = {name: hf.asarray(value) for name, value in INPUTS.items()}
    expected = [fn(**{name: convert(value) for name, value in INPUTS.items()}) for fn in theirs]
    for text, fn, value in zip(expressions, ours, expected, strict=True):
        same(fn(**given), value, text)
    if not compiled:
        return
    compiled = hf.compile(lambda: [fn(**given) for fn in ours])()
    for text, found, value in zip(expressions, compiled, expected, strict=True):
        same(found, value, f"compiled: {text}")


def test_expressions_of_pytorch_give_its_results(tmp_path):
    torch = pytest.importorskip("torch")
    texts = foreign_corpus.TORCH
    theirs = functions(tmp_path / "of_torch.py", "import torch\nimport torch.nn.functional as F", texts)
    ours = functions(tmp_path / "of_hf.py", "import hybridflow as torch\nF = torch.nn.functional", texts)
    agree(ours, theirs, texts, lambda value: torch.as_tensor(value.copy()))
    assert len(texts) > 150


def test_layers_of_pytorch_give_its_results(tmp_path):
    torch = pytest.importorskip("torch")
    texts = foreign_corpus.LAYERS
    theirs = functions(tmp_path / "layers_of_torch.py", "import torch", texts)
    ours = functions(tmp_path / "layers_of_hf.py", "import hybridflow as torch", texts)
    agree(ours, theirs, texts, lambda value: torch.as_tensor(value.copy()), compiled=False)


def test_expressions_of_numpy_give_its_results(tmp_path):
    texts = foreign_corpus.NUMPY
    theirs = functions(tmp_path / "of_numpy.py", "import numpy as np", texts)
    ours = functions(tmp_path / "of_hf.py", "import hybridflow as np", texts)
    agree(ours, theirs, texts, np.copy)


@pytest.mark.parametrize("mode", [lambda fn: fn, hf.compile], ids=["eager", "compiled"])
def test_expressions_that_say_what_to_write(mode, tmp_path):
    texts = list(foreign_corpus.HINTS)
    ours = functions(tmp_path / "of_hf.py", "import hybridflow as hf\ntorch = hf\nF = hf.nn", texts)
    given = {name: hf.asarray(value) for name, value in INPUTS.items()}
    for text, fn in zip(texts, ours, strict=True):
        with pytest.raises((AttributeError, TypeError), match=re.escape(foreign_corpus.HINTS[text])):
            mode(fn)(**given)


# -- the table ----------------------------------------------------------------------------------------------------


def _places(package, prefix):
    """Return where the names of a prefix are in a package."""
    if package == "numpy":
        return {"hf": [np], "x": [np.ndarray], "hf.random": [np.random]}[prefix]
    if package == "jax":
        return {"hf": [jnp, jax], "x": [type(jnp.zeros(1))], "hf.nn": [jax.nn], "hf.random": [jax.random]}[prefix]
    torch = pytest.importorskip("torch")
    return {
        "hf": [torch], "x": [torch.Tensor], "hf.nn": [torch.nn.functional, torch.nn], "hf.optim": [torch.optim],
        "hf.data": [torch.utils.data], "hf.nn.init": [torch.nn.init], "hf.nn.utils": [torch.nn.utils],
            "model": [torch.nn.Module],
        "opt": [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])],
    }[prefix]


@pytest.mark.parametrize("package", ["torch", "numpy", "jax"])
def test_names_are_those_of_the_packages(package):
    for name, row in ROWS.items():
        if package in row.packages.split():
            prefix, _, last = name.rpartition(".")
            assert any(hasattr(place, last) for place in _places(package, prefix)), f"{package} has no {name}"


def optimizer():
    return hf.optim.SGD([hf.Variable([1.0], name="w")])


def test_names_are_there_once_and_none_is_ours():
    assert len(ROWS) == len(NAMES) + len(HINTS)
    own = {"hf": {*vars(hf), *later.MODULES, *later.NAMES}, "hf.nn": set(vars(hf.nn)),
           "hf.random": set(vars(hf.random)), "x": {*dir(hf.asarray(1.0)), *dir(hf.Variable(1.0))},
           "hf.optim": set(vars(hf.optim)), "hf.data": set(vars(hf.data)), "hf.nn.init": set(vars(hf.nn.init)),
           "hf.metrics": set(vars(hf.metrics)), "hf.train": set(vars(hf.train)), "v1": set(vars(v1)),
           **{f"v1.{part}": set(vars(getattr(v1, part))) for part in ("layers", "nn", "summary", "train")},
           "model": set(dir(hf.nn.Identity())), "opt": set(dir(optimizer())), "hf.nn.utils": set()}
    for name in ROWS:
        prefix, _, last = name.rpartition(".")
        assert last not in own[prefix], f"{name} is hybridflow's"


def test_every_name_that_works_is_tried():
    text = "\n".join(foreign_corpus.TORCH + foreign_corpus.NUMPY)
    names = [foreign.name_of(row) for row in NAMES if {"torch", "numpy"} & set(row.packages.split())]
    untried = {name for name in names if not re.search(rf"\.{name.rpartition('.')[2]}\b", text)}
    assert untried == {
        "hf.manual_seed", "x.cuda",  # no value to compare, no such device
        "hf.nn.ModuleList", "hf.nn.ModuleDict", "model.modules", "model.zero_grad",  # tests/test_foreign_keywords.py
        *[name for name in names if name.startswith("hf.nn.init.")],  # below
    }


def test_every_name_means_something_or_raises():
    known = {"hf": hf, "x": hf.asarray([[1.0, 2.0]]), "model": hf.nn.Identity(), "opt": optimizer(),
             "v1": v1}
    for name, row in ROWS.items():
        value = eval(name.rpartition(".")[0], known)
        last = name.rpartition(".")[2]
        if row in HINTS:
            assert not hasattr(value, last), name
            with pytest.raises(ForeignNameError, match=re.escape(row.ours)):
                getattr(value, last)
        else:
            assert getattr(value, last) is not None, name


def test_initial_values_are_assigned():
    w = hf.Variable(hf.zeros((3, 3)))
    init = hf.nn.init
    assert init.constant_(w, 2.0).numpy().tolist() == [[2.0] * 3] * 3
    assert (init.zeros_(w).numpy().tolist(), init.ones_(w).numpy().tolist()) == ([[0.0] * 3] * 3, [[1.0] * 3] * 3)
    for drawn in (init.normal_(w, 5.0, 0.1), init.uniform_(w, 4.0, 6.0)):
        assert ((drawn.numpy() > 4.0) & (drawn.numpy() < 6.0)).all()
    assert np.abs(init.xavier_uniform_(w).numpy()).max() < 1.0 > np.abs(init.xavier_normal_(w, 0.1).numpy()).max()
    turned = init.orthogonal_(w).numpy()
    np.testing.assert_allclose(turned @ turned.T, np.eye(3), atol=1e-5)


def test_names_of_tensorflow():
    x = hf.asarray([[1.0, 2.0], [3.0, 5.0]])
    assert hf.math.reduce_sum(x, axis=1).tolist() == [3.0, 8.0]
    assert hf.reduce_mean(x).item() == 2.75
    assert hf.reduce_max(x, axis=0, keepdims=True).tolist() == [[3.0, 5.0]]
    assert hf.reduce_min(x).item() == 1.0
    assert hf.reduce_prod(x).item() == 30.0
    assert hf.reduce_all(x > 0).item()
    assert not hf.reduce_any(x < 0).item()
    assert hf.reduce_std(x).item() == hf.std(x).item()
    assert hf.reduce_variance(x).item() == hf.var(x).item()
    assert hf.reduce_logsumexp(x).item() == hf.logsumexp(x).item()
    assert hf.cast(x, hf.int32).dtype == hf.constant([1]).dtype == hf.convert_to_tensor([1.5], dtype="int32").dtype
    assert hf.range(3).tolist() == [0, 1, 2]
    assert hf.reverse(x, axis=[0]).tolist() == [[3.0, 5.0], [1.0, 2.0]]


def test_they_are_no_names_of_hybridflow():
    x, v = hf.asarray([1.0]), hf.Variable([1.0])
    assert x.view(1).tolist() == v.view(1).tolist() == [1.0]
    for value in (x, v, hf, hf.nn, hf.optim, hf.data, hf.nn.Identity(), optimizer()):
        assert not {"view", "transpose", "cat", "cross_entropy", "functional", "lr", "modules"} & set(dir(value))
    assert "sum" in dir(x)
    assert "name" in dir(v)
    for kind in (hf.Tensor, hf.Variable, hf.nn.Module, hf.optim.Optimizer):  # it would slow down all attributes
        assert not hasattr(kind, "__getattr__")
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nothing'"):
        x.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="module 'hybridflow' has no attribute 'nothing'"):
        hf.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'hybridflow\.nn' has no attribute 'nothing'"):
        hf.nn.nothing  # noqa: B018


def test_gradients_flow_through_them():
    x = hf.asarray([[1.0, -2.0], [3.0, 4.0]])
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x.view(4).masked_fill(hf.asarray([True, False, False, False]), 0.0).cumsum(0).sum()
    assert tape.gradient(y, x).tolist() == [[0.0, 3.0], [2.0, 1.0]]


# -- keywords -----------------------------------------------------------------------------------------------------


OWN_KEYWORDS = ("hf.random.", "hf.quantize.")
"""Functions whose keywords are no other package's: draws, and the operations that have ONNX's names."""


def test_keywords_are_taken_wherever_there_is_an_axis():
    for path, (_, function) in page_functions().items():
        parameters = inspect.signature(function).parameters
        if {"axis", "axes", "keepdims"} & parameters.keys() and not path.startswith(OWN_KEYWORDS):
            assert "other" in parameters, f"{path} does not take dim= and keepdim="
            with pytest.raises(TypeError, match="takes no keyword 'colour'"):
                function(*[1.0 for p in parameters.values() if p.default is p.empty and p.kind < 2], colour=1)


def page_functions():
    from hybridflow.ops import page

    return page.public_paths()


def test_keywords_that_are_refused():
    x = hf.asarray([[1.0, 2.0]])
    with pytest.raises(TypeError, match=r"axis is given twice\n  got: axis=, dim="):
        x.sum(1, dim=1)
    text = r"sum: takes no keyword 'axs'\n  Did you mean axis=\? It takes: axis, dtype, keepdims\."
    with pytest.raises(TypeError, match=text):
        x.sum(axs=1)
    with pytest.raises(TypeError, match=r"hf\.where"):
        hf.sum(x, where=x > 0)
    assert hf.nn.mse(x, x, reduction="none").shape == (1, 2)  # which is what it does
    with pytest.raises(TypeError, match=r"Leave it out and use hf\.mean"):
        hf.nn.mse(x, x, reduction="mean")
    assert {row.name for row in KEYWORDS} >= {"dim", "dims", "keepdim", "out", "name"}


NET = hf.nn.Linear(3, 2)
KEYWORDS_OF_METHODS = {
    "x.sum().backward(create_graph=False)": None,
    "x.sum().backward(create_graph=True)": r"hf\.grad or a tape",
    "x.sum().backward(inputs=[x])": "It takes: gradient, retain_graph",
    "x.to('cpu', non_blocking=True)": None,
    "w.to('cpu', non_blocking=True)": None,
    "x.to(memory_format=3)": "It takes: dtype, device",
    "hf.tensor([1.0], pin_memory=True)": None,
    "hf.checkpoint(hf.sin, use_reentrant=False, preserve_rng_state=True)(x)": None,
    "hf.checkpoint(hf.sin, x, use_reentrant=False)": r"hf\.checkpoint\(fn\)\(x\)",
    "hf.checkpoint(hf.sin, context_fn=print)": "It takes: policy",
    "NET.parameters(recurse=True)": None,
    "NET.parameters(recurse=False)": "named_parameters",
    "NET.named_parameters(prefix='m')": "It takes: none",
    "NET.state_dict(keep_vars=True)": "named_parameters",
    "NET.load_state_dict(NET.state_dict(), assign=True)": "assigned to the parameters there are",
}


@pytest.mark.parametrize("text", KEYWORDS_OF_METHODS)
def test_keywords_of_methods(text):
    space = {"hf": hf, "NET": NET, "x": hf.tensor([1.0, 2.0], requires_grad=True), "w": hf.Variable([1.0])}
    if KEYWORDS_OF_METHODS[text] is None:
        eval(text, space)
        return
    with pytest.raises(ArgumentTypeError, match=KEYWORDS_OF_METHODS[text]):
        eval(text, space)


def test_a_variable_has_what_a_tensor_has():
    """In PyTorch, a parameter is a tensor."""
    assert {name for name in dir(hf.Tensor) if not name.startswith("_")} <= set(dir(hf.Variable))
    w = hf.Variable([1.0, 2.0])
    assert (w.tolist(), w.nbytes, hf.compile(lambda: w.nbytes)()) == ([1.0, 2.0], 8, 8)


# -- NumPy's functions --------------------------------------------------------------------------------------------


def test_functions_of_numpy_on_tensors():
    x = hf.asarray([[1.0, 2.0], [3.0, 4.0]])

    def loss(x):
        return np.sum(np.exp(x) * np.float32(2) + np.mean(x, axis=0)) + np.max(x) + np.std(x, ddof=1)

    expected = loss(x.numpy())
    for fn in (loss, hf.compile(loss)):
        found = fn(x)
        assert type(found) is hf.Tensor
        assert found.item() == pytest.approx(expected, rel=1e-6)
        gradient = hf.grad(fn)(x)
        np.testing.assert_allclose(gradient, hf.grad(lambda x: hf.sum(2 * hf.exp(x)) + 2 * hf.sum(hf.mean(x, 0))
                                                     + hf.max(x) + hf.std(x, correction=1))(x), rtol=1e-5)
    assert type(np.arctan2(x, np.ones(2, np.float32))) is hf.Tensor
    for call in (lambda: np.add.reduce(x), lambda: np.frexp(x), lambda: np.exp(x, where=x > 1)):
        with pytest.raises(TypeError, match=r"it is not done to tensors(.|\n)*Use the functions of hf"):
            call()


# -- the page -----------------------------------------------------------------------------------------------------


def test_page_is_current(capsys):
    assert foreign_page.main(["--check"]) == 0, capsys.readouterr().err
    text = foreign_page.PATH.read_text(encoding="utf-8")
    for row in (*NAMES, *HINTS):
        assert f"| `{foreign.name_of(row)}" in text


def test_installed_names_are_not_in_the_stub():
    assert "view" in vars(TensorMethods)
    assert "def view(" not in (foreign_page.PATH.parent / "core" / "methods.pyi").read_text(encoding="utf-8")


def test_a_reduction_of_losses_that_is_none_of_torchs_is_an_error():
    x = hf.ones((2, 3))
    with pytest.raises(ArgumentError, match="reduction='batchmean'"):
        hf.nn.mse_loss(x, x, reduction="batchmean")
    with pytest.raises(ArgumentError, match="one of mean, sum, none"):
        hf.nn.CrossEntropyLoss(reduction=3)(x, hf.zeros(2, dtype=hf.int32))


# -- public modules ------------------------------------------------------------------------------------------------

PUBLIC = (
    "hf", "hf.nn", "hf.nn.init", "hf.random", "hf.linalg", "hf.fft", "hf.special", "hf.config", "hf.data",
    "hf.debugging", "hf.distribute", "hf.export", "hf.integrate", "hf.metrics", "hf.models", "hf.optim",
    "hf.optimize", "hf.prune", "hf.quantize", "hf.serve", "hf.summary", "hf.testing", "hf.train", "hf.tree", "hf.ir",
    "hf.ops", "hf.compat", "hf.compat.v1",
)


def module_at(path):
    return functools.reduce(getattr, path.split(".")[1:], hf)


@pytest.mark.parametrize("path", PUBLIC)
def test_dir_shows_public_names_only(path):
    for name in dir(module_at(path)):
        value = getattr(module_at(path), name)
        if name.startswith("__") and name.endswith("__"):
            continue
        assert not name.startswith("_")
        if isinstance(value, types.ModuleType):
            families = [f"hf.ops.{family}" for family in ("fft", "linalg", "random", "special")]
            assert f"{path}.{name}" in {*PUBLIC, "hf.analysis", *families} or (
                path == "hf.compat.v1"
            )
        elif callable(value) and path != "hf.compat.v1":  # TensorFlow 1's names for types
            assert value.__module__.startswith("hybridflow")


@pytest.mark.parametrize("path", PUBLIC)
def test_a_misspelled_name_says_what_was_meant(path):
    module, label = module_at(path), "v1" if path == "hf.compat.v1" else path
    own = [name for name in dir(module) if len(name) > 5 and not name.startswith("_")]
    for name in own[::5]:
        wrong = name[:-2] + name[-1] + name[-2] + "x"  # two letters in the wrong order, and one too many
        if foreign.hint_of(path, wrong) is not None:
            continue  # `uint61x` looks like a dtype of other packages
        with pytest.raises(AttributeError, match=rf"has no attribute '{wrong}'\. Did you mean {label}\.\w+\?"):
            getattr(module, wrong)


def test_a_name_of_another_module_says_where_it_is():
    for wrong, right in {"hf.Linear": "hf.nn.Linear", "hf.nn.Adam": "hf.optim.Adam"}.items():
        assert module_at(right) is not None
        with pytest.raises(AttributeError, match=rf"Did you mean {right}\?"):
            module_at(wrong)


CALLED = (
    "x.size(0)", "x.size()", "x.size(-1)", "x.size(dim=0)", "hf.sum(x * x.size(0))", "[x.size(i) for i in range(2)]",
    "(lambda y: y.size(1))(x)", "x.reshape((x.size(0), -1))", "max(x.size(0), 1) + x.T.size(0)",
)
READ = (
    "x.size", "(x.size).bit_length()", "x.size.bit_length()", "callable(x.size)", "getattr(x, 'size')", "type(x.size)",
    "x.T.size + x.sum().size", "Other().size(x)", "(lambda size: size(x))(hf.numel)", "abs(x.size)",
)


class Other:
    def size(self, x):
        return x.size


@pytest.mark.parametrize(("kind", "names"), [(hf.asarray, 0), (hf.Variable, 0), (hf.asarray, 300)])
def test_a_size_that_is_called(kind, names, tmp_path):
    # Of many names, the last ones take a longer argument of the opcode.
    unused = "; ".join(["0", *[f"x.a{number}" for number in range(names)]])
    lines = [f"def f{i}(x):\n    if x is None: {unused}\n    return {one}\n" for i, one in enumerate(CALLED + READ)]
    space = modes.program("".join(lines), tmp_path / "f.py", hf=hf, Other=Other)
    functions = [space[f"f{i}"] for i in range(len(lines))]
    x, tracer = kind(INPUTS["x"]), sys.gettrace()
    for number, one in enumerate(functions[: len(CALLED)]):
        for mode in (lambda f: f, hf.compile, functools.partial(hf.compile, dynamic=True), hf.no_convert):
            sys.settrace((lambda *args: None) if number % 2 else tracer)
            with pytest.raises(ArgumentTypeError, match=r"size: .* cannot be called\n  .* x\.shape\[axis\]"):
                mode(one)(x)
            sys.settrace(tracer)
    for text, one in zip(READ, functions[len(CALLED) :], strict=True):
        expected = eval(text, {"hf": hf, "x": kind(INPUTS["x"]), "Other": Other})
        assert one(x) == expected
        assert isinstance(expected, type) or hf.compile(one)(x) == expected
    assert (space["f9"](x), type(x.size)) == (6, int)
