"""What PyTorch calls the options of layers and optimizers, and attributes of models and optimizers."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentTypeError, FileError, ForeignNameError
from hybridflow.core.foreign_names import KEYWORDS

DATA = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)


def weights():
    return [hf.Variable(DATA, name="w", requires_grad=True)]


# -- optimizers ---------------------------------------------------------------------------------------------------

SETTINGS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0, "weight_decay": 0.0},
    "Adam": {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "amsgrad": False, "foreach": True},
    "AdamW": {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.3},
    "RMSprop": {"lr": 0.1, "alpha": 0.5, "eps": 1e-3, "centered": True},
    "Adagrad": {"lr": 0.1, "eps": 1e-3},
    "Adadelta": {"lr": 0.1, "rho": 0.5, "eps": 1e-3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_optimizers_take_torchs_keywords_and_do_its_steps(name):
    torch = pytest.importorskip("torch")
    theirs = [torch.nn.Parameter(torch.tensor(DATA))]
    ours = weights()
    pairs = [(getattr(torch.optim, name)(params=theirs, **SETTINGS[name]), theirs[0]),
             (getattr(hf.optim, name)(params=ours, **SETTINGS[name]), ours[0])]
    for optimizer, w in pairs:
        for _ in range(3):
            optimizer.zero_grad()
            ((w * w).sum() + w.sum()).backward()
            optimizer.step()
    np.testing.assert_allclose(ours[0].numpy(), theirs[0].detach().numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "Adadelta"])
def test_coupled_decay_is_an_error_that_names_ours(name):
    with pytest.raises(TypeError, match=rf"{name}: takes no keyword 'weight_decay'(.|\n)*decay= is decoupled"):
        getattr(hf.optim, name)(weights(), weight_decay=0.1)


@pytest.mark.parametrize(("make", "told"), [
    (lambda w: hf.optim.Adam(w, amsgrad=True), "optax.amsgrad"),
    (lambda w: hf.optim.SGD(w, weight_decay=0.1), "optax.add_decayed_weights"),
    (lambda w: hf.nn.softmax_cross_entropy(DATA, DATA, from_logits=False), "take logits"),
    (lambda w: hf.nn.mse(DATA, DATA, sample_weight=DATA), "Multiply the losses by it"),
    (lambda w: hf.nn.kl_div(DATA, DATA, log_target=True), "hf.exp"),
])
def test_options_that_are_absent_say_what_to_write(make, told):
    with pytest.raises(TypeError, match=rf"takes no keyword(.|\n)*{told}"):
        make(weights())


def test_the_rules_that_hints_name_are_torchs():
    torch, optax = pytest.importorskip("torch"), pytest.importorskip("optax")
    rule = optax.chain(optax.add_decayed_weights(0.2), optax.adam(0.1))
    theirs, ours = torch.nn.Parameter(torch.tensor(DATA)), weights()
    for optimizer, w in (
        (torch.optim.Adam([theirs], 0.1, weight_decay=0.2), theirs), (hf.optim.Optax(ours, rule), ours[0])
    ):
        for _ in range(5):
            optimizer.zero_grad()
            ((w * w).sum() + w.sum()).backward()
            optimizer.step()
    np.testing.assert_allclose(ours[0].numpy(), theirs.detach().numpy(), rtol=2e-5, atol=1e-5)


def test_lbfgs_takes_torchs_keywords():
    options = {"max_iter": 3, "max_eval": 5, "history_size": 2, "line_search_fn": "strong_wolfe",
               "tolerance_grad": 1e-3, "tolerance_change": 1e-4}
    optimizer = hf.optim.LBFGS(weights(), lr=1, **options)
    assert (optimizer._iterations, optimizer._evaluations, optimizer._history) == (3, 5, 2)
    assert (optimizer._line_search, optimizer._tolerance, optimizer._least_change) == ("strong_wolfe", 1e-3, 1e-4)


def test_a_setting_cannot_be_given_twice_or_be_unknown():
    with pytest.raises(TypeError, match="rate is given twice\n  got: rate=, lr="):
        hf.optim.SGD(weights(), rate=0.1, lr=0.2)
    with pytest.raises(TypeError, match="multiple values for argument 'rate'"):
        hf.optim.SGD(weights(), 0.1, lr=0.2)
    with pytest.raises(TypeError, match=r"takes no keyword 'speed'\n  It takes: target, rate, momentum"):
        hf.optim.SGD(weights(), speed=0.2)


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_the_rate_has_other_names(name):
    optimizer = hf.optim.SGD(weights(), 0.5)
    assert getattr(optimizer, name).item() == 0.5
    setattr(optimizer, name, 0.25)
    assert optimizer.rate.item() == getattr(optimizer, name).item() == 0.25
    before = optimizer._target["w"].numpy().copy()
    optimizer.update([hf.ones((4, 3))])
    np.testing.assert_allclose(optimizer._target["w"].numpy(), before - 0.25, rtol=1e-6)
    with pytest.raises(ValueError, match="finite"):
        setattr(optimizer, name, float("nan"))


@pytest.mark.parametrize("make", [hf.optim.SGD, hf.optim.AdamW, hf.optim.LBFGS], ids=["SGD", "AdamW", "LBFGS"])
def test_assigning_what_an_optimizer_does_not_have_raises(make):
    optimizer = make(weights())
    with pytest.raises(ForeignNameError, match=r"Use opt\.rate"):
        optimizer.param_groups = []
    for name in ("momentum", "weight_decay", "rates", "closure"):
        with pytest.raises(AttributeError, match=f"it has no attribute {name!r}(.|\n)*Assign rate"):
            setattr(optimizer, name, 0.1)
        assert not hasattr(optimizer, name)
    with pytest.raises(AttributeError):
        optimizer.steps = 3


def test_an_own_optimizer_may_have_own_attributes():
    class Mine(hf.optim.SGD):
        def __init__(self, target):
            super().__init__(target, lr=0.1)
            self.calls = 0

    optimizer = Mine(weights())
    optimizer.calls += 1
    optimizer.lr = 0.5
    assert (optimizer.calls, optimizer.rate.item()) == (1, 0.5)


def test_an_optimizer_of_nothing_is_an_error():
    for nothing in ([], {}, (), hf.nn.Sequential(hf.nn.Linear(3)).parameters()):
        with pytest.raises(ValueError, match=r"AdamW: there is nothing to optimize(.|\n)*the model itself"):
            hf.optim.AdamW(nothing)
    model = hf.nn.Sequential(hf.nn.Linear(3))
    optimizer = hf.optim.AdamW(model)  # its sizes are those of the first call
    hf.sum(model(hf.ones((2, 4)))).backward()
    optimizer.step()
    assert int(optimizer.steps) == 1


def test_a_missing_gradient_names_the_way_that_was_used():
    used, unused = weights()[0], hf.Variable([1.0], name="unused", requires_grad=True)
    optimizer = hf.optim.SGD([used, unused])
    hf.sum(used).backward()
    with pytest.raises(hf.optim.optimizer.GradientError, match=r"got: unused\n  \.backward\(\)") as stored:
        optimizer.step()
    assert "tape" not in str(stored.value)
    with pytest.raises(hf.optim.optimizer.GradientError, match=r"tape\.why_none"):
        optimizer.update([hf.ones((4, 3)), None])


# -- layers -------------------------------------------------------------------------------------------------------


def test_signatures_are_those_that_are_written():
    assert list(inspect.signature(hf.nn.Dropout).parameters) == ["rate"]
    assert list(inspect.signature(hf.nn.LayerNorm).parameters) == ["size", "epsilon", "scale", "bias", "dtype"]
    assert list(inspect.signature(hf.optim.SGD).parameters)[:3] == ["target", "rate", "momentum"]


def test_functions_with_such_an_option_take_the_keywords():
    from hybridflow.ops import page

    mapped = {"epsilon", "slope"} & {ours for row in KEYWORDS for ours in row.ours}
    for path, (_, function) in page.public_paths().items():
        parameters = inspect.signature(function).parameters
        if mapped & parameters.keys():
            assert "other" in parameters, path
    assert hf.nn.layer_norm(DATA, eps=1e-2).tolist() == hf.nn.layer_norm(DATA, epsilon=1e-2).tolist()
    assert mapped == {"epsilon", "slope"}


def test_keywords_of_layers_in_own_classes_and_compiled_functions():
    class Half(hf.nn.Dropout):
        def __init__(self, p=0.5):
            super().__init__(p=p)

    assert Half(p=0.25).rate == 0.25
    with pytest.raises(TypeError, match="unexpected keyword argument 'rate'"):
        Half(rate=0.1)  # an own class says itself what it takes
    x = hf.asarray(DATA)
    norm = hf.compile(lambda x: hf.nn.LayerNorm(normalized_shape=3, eps=1e-2)(x))
    np.testing.assert_allclose(norm(x), hf.nn.LayerNorm(3, epsilon=1e-2)(x), rtol=1e-6)


def test_model_of_a_page_about_torch():
    def convnet(nn):
        return nn.Sequential(
            nn.Conv2d(in_channels=1, out_channels=4, kernel_size=3, padding=1), nn.BatchNorm2d(4, eps=1e-3),
            nn.ReLU(), nn.MaxPool2d(kernel_size=2), nn.Flatten(), nn.Dropout(p=0.0), nn.Linear(16, 3),
            nn.LogSoftmax(dim=1),
        )

    torch = pytest.importorskip("torch")
    theirs, ours = convnet(torch.nn), convnet(hf.nn)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((2, 1, 4, 4)).astype(np.float32)
    expected = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours(x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(hf.compile(ours)(x), expected, rtol=1e-4, atol=1e-5)
    assert "(7): log_softmax(axis=1)" in repr(ours)


# -- models -------------------------------------------------------------------------------------------------------


class Blocks(hf.nn.Module):
    def __init__(self):
        self.blocks = hf.nn.ModuleList([hf.nn.Linear(3, 3) for _ in range(2)])
        self.heads = hf.nn.ModuleDict({"a": hf.nn.Linear(3, 1)})

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x)


def test_lists_and_dicts_are_parts_of_models():
    model = Blocks()
    assert [*model.named_parameters()][::2] == ["blocks.0.weight", "blocks.1.weight", "heads.a.weight"]
    assert isinstance(model.blocks, hf.nn.ModuleList)
    model.blocks.append(hf.nn.Linear(3, 3))
    assert len(model.parameters()) == 8


@pytest.mark.parametrize("mode", [lambda fn: fn, hf.compile], ids=["eager", "compiled"])
def test_zero_grad_and_modules_of_a_model(mode):
    model, x = Blocks(), hf.asarray(DATA)
    optimizer = hf.optim.SGD(model, lr=0.1)

    @mode
    def step(x):
        model.zero_grad()
        loss = hf.mean(model(x) ** 2)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert model.zero_grad() is None
    assert all(one.grad is None for one in model.parameters())
    assert [type(one).__name__ for one in model.modules()] == ["Blocks", "Linear", "Linear", "Linear"]


def test_models_may_use_the_names_themselves():
    class Tree(hf.nn.Module):
        def __init__(self):
            self.children, self.float = [hf.nn.Linear(3, 3)], 2.0

        def apply(self, x):
            return self.children[0](x) * self.float

        def forward(self, x):
            return self.apply(x)

    model, x = Tree(), hf.asarray(DATA)
    np.testing.assert_allclose(hf.compile(model)(x), model(x), rtol=1e-5)
    assert [*model.named_parameters()] == ["children.0.weight", "children.0.bias"]
    assert {"children", "float", "apply"} <= set(dir(model))


@pytest.mark.parametrize("name", ["to", "cuda", "cpu", "half", "children", "apply", "add_module", "requires_grad_"])
def test_methods_of_torchs_modules_say_what_to_write(name):
    with pytest.raises(AttributeError, match=rf"model\.{name}: it is a name of PyTorch\n  Use "):
        getattr(Blocks(), name)


def test_named_parameters_say_that_they_are_a_dict():
    from hybridflow.foreign_page import PATH

    for method in (hf.nn.Module.named_parameters, hf.nn.Module.named_buffers, hf.nn.Module.named_modules):
        assert ".items()" in method.__doc__
    assert re.search(r"named_parameters\(\).*\.items\(\)", PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("call", "write"),
    [
        (lambda net, spec: hf.save(net, "path"), "hf.save(path, values)"),
        (lambda net, spec: hf.load(net, "path"), "hf.load(path, into=model)"),
        (lambda net, spec: hf.export.load(net), "hf.export.load(path)"),
        (lambda net, spec: hf.export.save(net, "path", spec), "hf.export.save(path, function, *specs)"),
        (lambda net, spec: hf.export.onnx(net, spec, "path"), "hf.export.onnx(path, function, *specs)"),
        (lambda net, spec: hf.export.stablehlo(net, "path", spec), "hf.export.stablehlo(path, function, *specs)"),
    ],
)
def test_what_writes_and_reads_files_says_that_the_path_comes_first(call, write):
    net, spec = hf.nn.Linear(2, 2), hf.TensorSpec([None, 2])
    with pytest.raises(TypeError, match=rf"the path comes first\n  got: Linear\n  Write {re.escape(write)}"):
        call(net, spec)
    for impossible in ("a\0b", b"a\0b", "\ud800"):
        with pytest.raises(FileError, match="is no name of a file"):
            call(impossible, spec)


def test_split_by_dim_is_refused_for_it_means_the_size_of_a_part():
    with pytest.raises(TypeError, match=r"split: takes no keyword 'dim'\n  torch is given the size of a part"):
        hf.split(hf.ones((4, 3)), 2, dim=0)
    with pytest.raises(TypeError, match="the size of a part"):
        hf.compile(lambda x: hf.split(x, 2, dim=0))(hf.ones((4, 3)))


@pytest.mark.parametrize(
    "usual",
    [{"mode": "reduce-overhead"}, {"fullgraph": True}, {"jit_compile": True}, {"keep_unused": False},
     {"reduce_retracing": True}],
)
def test_compile_takes_options_that_ask_for_what_it_does(usual):
    compiled = hf.compile(**usual)(lambda x: x * 2)
    np.testing.assert_array_equal(compiled(hf.asarray(DATA)), DATA * 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hf.compile(abs, fullgraph=False), "one graph or an error"),
        (lambda: hf.compile(abs, mode="lite"), "XLA has one mode"),
        (lambda: hf.compile(abs, static_argnums=(0,)), "static_argnames="),
        (lambda: hf.compile(abs, donate_argnums=(0,)), "v.assign"),
        (lambda: hf.compile(abs, whole=True), "takes no keyword 'whole'.*\n.*It takes: input_signature"),
        (lambda: hf.autocast(device_type="cuda", dtype="float16"), "holds on every device"),
        (lambda: hf.autocast("cuda", dtype="float16"), "dtype is given twice.*\n.*'cuda' by position, dtype='float16'"),
    ],
)
def test_options_of_other_packages_compilers_say_what_to_write(call, text):
    with pytest.raises(ArgumentTypeError, match=text):
        call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hf.train.fit(abs, DATA, DATA, loss=abs, optimizer=None, validation_split=0.1), "validation=\\(x, y"),
        (lambda: hf.train.fit(abs, DATA, DATA, loss=abs, optimizer=None, epoch=1), "Did you mean epochs=\\?"),
        (lambda: hf.grad(abs, argnum=0), "Did you mean argnums="),
        (lambda: hf.while_loop(abs, abs, 0, max_iteration=3), "Did you mean max_iterations="),
        (lambda: hf.data.Batches(DATA, 2, shufle=True), "Did you mean shuffle="),
        (lambda: hf.nn.Linear(3, 3, bais=False), "Did you mean bias="),
        (lambda: hf.sum(hf.ones(3), axs=0), "Did you mean axis="),
        (lambda: hf.sum(hf.ones(3), dmi=0), "Did you mean axis="),
        (lambda: hf.optim.Adam([], leraning_rate=0.1), "Did you mean rate="),
        (lambda: hf.optim.SGD([], momentm=0.1), "Did you mean momentum="),
        (lambda: hf.compare(hf.sin, hf.ones(3), repeat=2), "neither it nor sin takes(.|\n)*Did you mean repeats="),
    ],
)
def test_unknown_keywords_say_which_was_meant(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_functions_take_the_keywords_of_other_packages():
    assert len([*hf.data.Batches(DATA, batch_size=2)]) == len([*hf.data.Batches(DATA, 2)])
    x = hf.asarray(DATA)
    assert hf.vmap(hf.sum, in_dims=1)(x).tolist() == hf.vmap(hf.sum, in_axes=1)(x).tolist()
    model, loss = hf.nn.Linear(DATA.shape[1], 1), hf.nn.mse
    given = {"loss": loss, "optimizer": hf.optim.SGD(model, lr=0.0), "progress": False}
    target = np.zeros((len(DATA), 1), np.float32)
    assert "val_loss" in hf.train.fit(model, DATA, target, validation_data=(DATA, target), **given)


def options_of(function):
    """Return the names of a function's options; none of an operation, and of a function that passes names on."""
    parameters = inspect.signature(function).parameters.values()
    passes_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    return () if passes_on or hasattr(function, "op") else [
        one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


FUNCTIONS = [
    pytest.param(getattr(module, name), id=f"{module.__name__.rpartition('.')[2]}.{name}")
    for module in (hf.export, hf.train, hf.data, hf.optim, hf.optimize, hf.integrate, hf.prune, hf.quantize)
    for name in dir(module) if inspect.isfunction(getattr(module, name)) and options_of(getattr(module, name))
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_with_options_say_what_they_take(function):
    name, wanted = function.__name__, options_of(function)[-1]
    with pytest.raises(ArgumentTypeError, match=rf"{name}: takes no keyword 'no_such_word'\n  .*It takes: .*{wanted}"):
        function(no_such_word=1)
    with pytest.raises(ArgumentTypeError, match=rf"takes no keyword '{wanted}_'\n  Did you mean {wanted}=\?"):
        function(**{f"{wanted}_": 1})
