"""The ways in which hybridflow calls a user's code while a function is traced, crossed with the code that it calls.

A place is a part of a program that the user writes, such as the model's ``forward`` or the loss. A way in runs the
program by something of hybridflow's that calls that part: training, export, a transformation. Each way gives the same
numbers eagerly, where it calls the user's code as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hybridflow as hf
from hybridflow import nn

X = np.asarray([1.0, 2.0], np.float32)
Y = np.asarray([0.5, 0.5], np.float32)


class Program(NamedTuple):
    """What a user writes."""

    model: Any
    loss: Any
    metric: Any
    rate: Any
    optimizer: Any
    hook: Any


# -- places -------------------------------------------------------------------------------------------------------


def alone(x: Any) -> Any:
    """Return a value as it is."""
    return x


def through(f: Any, x: Any) -> Any:
    """Call a function."""
    return f(x)


class Scale(nn.Module):
    """A module with one parameter."""

    def __init__(self, f: Any = alone) -> None:
        self.w = hf.Variable(1.0, name="w")
        self.f = f

    def forward(self, x: Any) -> Any:
        return self.f(x * self.w)


class ByMethod(Scale):
    """A model that calls a method of its own."""

    def method(self, x: Any) -> Any:
        return self.f(x)

    def forward(self, x: Any) -> Any:
        return self.method(x * self.w)


class ByHelper(Scale):
    """A model that calls a helper."""

    def forward(self, x: Any) -> Any:
        return through(self.f, x * self.w)


class ByCall(Scale):
    """A model that is written as ``__call__``."""

    def __call__(self, x: Any) -> Any:
        return self.f(x * self.w)


class Around(nn.Module):
    """A model with a part."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Counting(Scale):
    """A model that counts its calls."""

    count = 0

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.w


class Loss:
    """A loss that is an object, which cannot be referenced weakly."""

    __slots__ = ("f",)

    def __init__(self, f: Any = alone) -> None:
        self.f = f

    def __call__(self, prediction: Any, target: Any) -> Any:
        return self.f((prediction - target) ** 2)


class Error(hf.metrics.Metric):
    """A user's metric."""

    def __init__(self, f: Any = alone) -> None:
        super().__init__(total=())
        self.f = f

    def update(self, prediction: Any, target: Any) -> None:
        self._add("total", self.f(hf.abs(prediction - target)))

    def result(self) -> Any:
        return self._read("total")


def optimizer_with(f: Any) -> Any:
    """Return a class of optimizers that changes gradients first."""

    class Changing(hf.optim.SGD):
        def update(self, gradients: Any) -> None:
            super().update({name: f(one) for name, one in gradients.items()})

    return Changing


PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "forward": lambda f: {"model": Scale(f)},
    "a method": lambda f: {"model": ByMethod(f)},
    "a helper": lambda f: {"model": ByHelper(f)},
    "__call__": lambda f: {"model": ByCall(f)},
    "a part": lambda f: {"model": Around(Scale(f))},
    "an activation": lambda f: {"model": nn.Sequential(Scale(), f)},
    "a loss": lambda f: {"loss": lambda prediction, target: f((prediction - target) ** 2)},
    "a loss object": lambda f: {"loss": Loss(f)},
    "a metric": lambda f: {"metric": lambda prediction, target: f(hf.abs(prediction - target))},
    "a metric object": lambda f: {"metric": Error(f)},
    "a schedule": lambda f: {"rate": lambda step: f(0.01)},
    "an optimizer": lambda f: {"optimizer": optimizer_with(f)},
    "a hook": lambda f: {"hook": f},
}
"""The parts of a program that calls a user's function there, by the name of the place."""


def program(place: str, f: Any) -> Program:
    """Return a program that calls a function at a place."""
    usual = {"model": Scale(), "loss": Loss(), "metric": Error(), "rate": 0.01, "optimizer": hf.optim.SGD, "hook": None}
    return Program(**{**usual, **PLACES[place](f)})


MODEL = ("forward", "a method", "a helper", "__call__", "a part", "an activation")
LOSS = ("a loss", "a loss object")
METRIC = ("a metric", "a metric object")
UPDATE = ("a schedule", "an optimizer")


# -- ways in ------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """A way in: the places that it calls, and a function that makes a run of a program, compiled or eager."""

    places: tuple[str, ...]
    make: Callable[[Program, Callable[[Any], Any]], Callable[[], Any]]


WAYS: dict[str, Way] = {}


def way(name: str, *places: str) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        WAYS[name] = Way(places, make)
        return make

    return add


def eagerly(function: Any) -> Any:
    """Stand for `hf.compile` where a program runs eagerly."""
    return function


def fitting(program: Program, compile: Any, **options: Any) -> Callable[[], Any]:
    optimizer = program.optimizer(program.model, program.rate)
    variables = program.model.parameters()

    def run() -> Any:
        variables[0].assign(1.0)
        history = hf.train.fit(
            program.model, X, Y, loss=program.loss, optimizer=optimizer, metrics={"m": program.metric},
            batch_size=2, shuffle=False, compile=compile is not eagerly, progress=False, **options,
        )
        return [history, variables[0]]

    return run


@way("fit", *MODEL, *LOSS, *METRIC, *UPDATE)
def fit(program: Program, compile: Any) -> Callable[[], Any]:
    return fitting(program, compile)


@way("fit, validating", *MODEL, *LOSS, *METRIC)
def fit_validating(program: Program, compile: Any) -> Callable[[], Any]:
    return fitting(program, compile, validation=(X, Y))


@way("fit in parts", *MODEL, *LOSS, *METRIC, *UPDATE)
def fit_in_parts(program: Program, compile: Any) -> Callable[[], Any]:
    return fitting(program, compile, parts=2)


@way("fit with a loss scale", *MODEL, *LOSS, *UPDATE)
def fit_scaled(program: Program, compile: Any) -> Callable[[], Any]:
    return fitting(program, compile, loss_scale=hf.LossScale(1.0))


@way("fit a function", *MODEL)
def fit_function(program: Program, compile: Any) -> Callable[[], Any]:
    model = program.model
    optimizer, variable = hf.optim.SGD(model, 0.01), model.parameters()[0]

    def function(x: Any) -> Any:
        return model(x)

    def run() -> Any:
        variable.assign(1.0)
        history = hf.train.fit(function, X, Y, loss=program.loss, optimizer=optimizer, compile=compile is not eagerly,
                               progress=False)
        return [history, variable]

    return run


@way("predict", *MODEL)
def predict(program: Program, compile: Any) -> Callable[[], Any]:
    return lambda: hf.train.predict(program.model, X, compile=compile is not eagerly)


@way("predict of a function", *MODEL)
def predict_function(program: Program, compile: Any) -> Callable[[], Any]:
    function = lambda x: program.model(x)  # noqa: E731
    return lambda: hf.train.predict(function, X, compile=compile is not eagerly)


@way("predict on a mesh", *MODEL)
def predict_on_a_mesh(program: Program, compile: Any) -> Callable[[], Any]:
    mesh = None if compile is eagerly else hf.Mesh({"data": 1})
    return lambda: hf.train.predict(program.model, X, compile=compile is not eagerly, mesh=mesh)


@way("evaluate", *MODEL, *METRIC)
def evaluate(program: Program, compile: Any) -> Callable[[], Any]:
    return lambda: hf.train.evaluate(program.model, X, Y, metrics=program.metric, compile=compile is not eagerly)


@way("export", *MODEL)
def export(program: Program, compile: Any) -> Callable[[], Any]:
    if compile is eagerly:
        return lambda: program.model(hf.asarray(X))

    def run() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            hf.export.save(Path(folder, "a"), program.model, hf.TensorSpec([2]))
            return hf.export.load(Path(folder, "a"), copy=True).predict(X)

    return run


@way("export of a method", "forward", "a method", "a helper")
def export_of_a_method(program: Program, compile: Any) -> Callable[[], Any]:
    if compile is eagerly:
        return lambda: program.model(hf.asarray(X))

    def run() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            hf.export.save(Path(folder, "a"), named=(program.model.forward, hf.TensorSpec([2])))
            return hf.export.load(Path(folder, "a"), copy=True).named(X)

    return run


@way("to_jax", *MODEL)
def to_jax(program: Program, compile: Any) -> Callable[[], Any]:
    if compile is eagerly:
        return lambda: program.model(hf.asarray(X))
    return lambda: hf.to_jax(program.model, freeze_variables=True)(X)


@way("compile", *MODEL)
def compile_(program: Program, compile: Any) -> Callable[[], Any]:
    function = compile(lambda x: program.model(x))
    return lambda: function(X)


@way("compile of the model", *MODEL)
def compile_model(program: Program, compile: Any) -> Callable[[], Any]:
    function = compile(program.model)
    return lambda: function(hf.asarray(X))


@way("a step of one's own", *MODEL, *LOSS, "a metric object", *UPDATE)
def own_step(program: Program, compile: Any) -> Callable[[], Any]:
    model, metric = program.model, program.metric
    optimizer, variable = program.optimizer(model, program.rate), model.parameters()[0]

    @compile
    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            prediction = model(x)
            loss = hf.mean(program.loss(prediction, y))
        metric.update(prediction, y)
        parameters = model.named_parameters()
        optimizer.update(tape.gradient(loss, parameters))
        return loss

    def run() -> Any:
        variable.assign(1.0)
        metric.reset()
        with hf.train.Run(None, model=model, optimizer=optimizer, data=[(X, Y)], progress=False) as training:
            for x, y in training.steps(1):
                loss = step(hf.asarray(x), hf.asarray(y))
        return [loss, variable, metric.result()]

    return run


def closure_of(program: Program, variable: Any) -> Callable[[], Any]:
    def closure() -> Any:
        loss = hf.mean(program.loss(program.model(hf.asarray(X)), hf.asarray(Y)))
        loss.backward()
        return loss

    variable.requires_grad_()
    return closure


@way("an optimizer's closure", *MODEL, *LOSS)
def closure_(program: Program, compile: Any) -> Callable[[], Any]:
    variable = program.model.parameters()[0]
    closure = closure_of(program, variable)
    optimizer = hf.optim.SGD(program.model, 0.01)
    step = compile(lambda: optimizer.step(closure))

    def run() -> Any:
        variable.assign(1.0)
        optimizer.zero_grad()
        return [step(), variable]

    return run


@way("the closure of L-BFGS", *MODEL, *LOSS)
def lbfgs(program: Program, compile: Any) -> Callable[[], Any]:
    variable = program.model.parameters()[0]
    closure = compile(closure_of(program, variable))

    def run() -> Any:
        variable.assign(1.0)
        optimizer = hf.optim.LBFGS(program.model, 0.01, iterations=1)
        optimizer.zero_grad()
        return [optimizer.step(closure), variable]

    return run


@way("a hook", "a hook")
def hooked(program: Program, compile: Any) -> Callable[[], Any]:
    variable = hf.Variable(1.0, requires_grad=True)
    variable.register_hook(program.hook)

    @compile
    def gradient(x: Any) -> Any:
        hf.sum(x * variable).backward()
        found = variable.grad
        variable.zero_grad()
        return found

    return lambda: gradient(hf.asarray(X))


@way("a mean of the parameters", *MODEL)
def ema(program: Program, compile: Any) -> Callable[[], Any]:
    mean, variable = hf.optim.EMA(program.model, 0.5), program.model.parameters()[0]

    @compile
    def step(x: Any) -> Any:
        variable.assign(hf.sum(program.model(x)))
        mean.update()

    def run() -> Any:
        for one in (variable, *mean.variables()):
            one.assign(1.0)
        step(hf.asarray(X))
        return [variable, *mean.variables()]

    return run


def transformed(make: Callable[[Any], Any]) -> Callable[[Program, Any], Callable[[], Any]]:
    """Return a way in by a compiled function of the model's."""

    def transform(program: Program, compile: Any) -> Callable[[], Any]:
        function = compile(make(program.model))
        return lambda: function(hf.asarray(X))

    return transform


def total(model: Any) -> Callable[[Any], Any]:
    return lambda x: hf.sum(model(x))


def own_gradient(model: Any) -> Any:
    @hf.custom_gradient
    def function(x: Any) -> Any:
        return model(x), model

    return lambda x: hf.vjp(function, x)[1](hf.ones((2,)))


def recomputed(model: Any) -> Any:
    return hf.grad(total(Around(model).recompute("inner")))


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda model: hf.vmap(model),
    "vmap inside": lambda model: lambda x: hf.vmap(model)(x),
    "grad": lambda model: hf.grad(total(model)),
    "vjp": lambda model: lambda x: hf.vjp(model, x)[0],
    "jvp": lambda model: lambda x: hf.jvp(model, (x,), (x,)),
    "jacobian": lambda model: hf.jacobian(model),
    "hessian": lambda model: hf.hessian(lambda x: hf.sum(model(x * x))),
    "checkpoint": lambda model: hf.grad(lambda x: hf.sum(hf.checkpoint(model)(x))),
    "recompute": recomputed,
    "scan": lambda model: lambda x: hf.scan(lambda carry, row: (carry + model(row), carry), 0.0, x),
    "cond": lambda model: lambda x: hf.cond(hf.sum(x) > 0, model, model, x),
    "while_loop": lambda model: lambda x: hf.while_loop(lambda x: hf.sum(hf.abs(model(x))) < 100, model, x, 3),
    "custom_gradient": own_gradient,
    "accumulate_gradients": lambda model: hf.accumulate_gradients(total(model), 2, None, batch_argnums=0,
                                                                  variables=model.parameters()),
    "an input signature": lambda model: lambda x: hf.compile(lambda x: model(x),
                                                             input_signature=[hf.TensorSpec([None])])(x),
}
for _name, _make in TRANSFORMS.items():
    way(_name, *MODEL)(transformed(_make))

PAIRS = [(name, place) for name, one in WAYS.items() for place in one.places]
"""Every way in with every place that it calls."""


def numbers(result: Any) -> list[float]:
    """Return the numbers in the result of a run."""
    leaves = [result]
    found: list[float] = []
    while leaves:
        one = leaves.pop(0)
        if isinstance(one, dict):
            leaves = [*one.values(), *leaves]
        elif isinstance(one, list | tuple):
            leaves = [*one, *leaves]
        else:
            found += np.asarray(hf.asarray(one), np.float64).ravel().tolist()
    return found


__all__ = ["MODEL", "PAIRS", "PLACES", "UPDATE", "WAYS", "Counting", "Loss", "X", "eagerly", "numbers", "program"]
