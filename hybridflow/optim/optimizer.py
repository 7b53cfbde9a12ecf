"""`Optimizer`: what all optimizers share, from the parameters they take to the state they keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, cast

import numpy as np

from hybridflow.core import structures
from hybridflow.core.attached import attached
from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import context_now, current, is_tracing, made_once
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, float32, float64, int32, kind_of
from hybridflow.core.errors import ArgumentError, DTypeError, GradientError, ShapeError, message
from hybridflow.core.functions import as_traced
from hybridflow.core.keywords import take_foreign_keywords
from hybridflow.core.reprs import function_text
from hybridflow.core.tensor import Tensor, as_tensor, asarray, new_tensor
from hybridflow.core.variable import Variable
from hybridflow.core.variable_log import OPEN_LOGS
from hybridflow.ir.builder import GraphBuilder, add_check, require
from hybridflow.nn.sizes import unsized
from hybridflow.nn.state import deep_copy, not_pickled
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import isfinite
from hybridflow.optim.groups import (
    Group,
    Parameter,
    Rate,
    collected,
    has_one_order,
    number,
    number_of_a_call,
    pattern_of,
)
from hybridflow.optim.rule import Rule
from hybridflow.optim.writes import assign_all, on_host, write
from hybridflow.transforms.clipping import clip_by_global_norm
from hybridflow.transforms.loss_scale import all_finite, write_if

_SHOWN = 8
"""The largest number of names of each kind that a message lists."""
_NONFINITE = ("apply", "skip", "raise")
_GIVEN = "The loss may not depend on it; if a tape gave the gradients, tape.why_none(loss, variable) says why."
_STORED = ".backward() has stored none since zero_grad(): call it before step(), on a loss that depends on all of them."
"""Why gradients can be None: given to `Optimizer.update`, or stored for `Optimizer.step`."""
_OPTIMIZERS = "hybridflow.optim."
"""The package of the optimizers whose settings are compared with other packages' names for them."""


class Optimizer:
    """The base class of all optimizers.

    Args:
        target: a model (an object with ``named_parameters()``), or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable, or a function of the number of updates so far, such as a
            schedule of `hybridflow.optim`.
        clip: the largest norm that all gradients together may have; if theirs is larger, all are scaled down to it, as
            by `hf.clip_by_global_norm`. None does not clip.
        groups: settings for some of the parameters. Each group is a mapping with ``"match"``, a pattern of names, and
            the settings that differ. The first group that matches a parameter counts.
        nonfinite: what an update does if a gradient is not finite. ``"apply"`` does not check; ``"skip"`` changes
            nothing, not even the number of updates; ``"raise"`` raises an error and changes nothing.
        settings: the rule's attributes.
    """

    _defaults: Mapping[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(_OPTIMIZERS):
            take_foreign_keywords(cls)

    def __init__(
        self,
        target: Any,
        rate: Rate,
        *,
        clip: float | None = None,
        groups: Sequence[Mapping[str, Any]] = (),
        nonfinite: str = "apply",
        **settings: Any,
    ) -> None:
        if nonfinite not in _NONFINITE:
            raise ArgumentError(
                f"{self._label()}: nonfinite={nonfinite!r} is none of {', '.join(map(repr, _NONFINITE))}"
            )
        if clip is not None and not clip > 0:
            raise ArgumentError(f"{self._label()}: clip must be positive", got=f"clip={clip!r}")
        whole = hasattr(target, "named_parameters")
        if not whole and not isinstance(target, Variable | list | tuple | Mapping) and isinstance(target, Iterable):
            target = [*cast("Iterable[Any]", target)]
        self._target: Any = target if whole else collected(self._label(), target)
        self._one_order = whole or has_one_order(target)
        self._nested = structures.flatten(target, is_leaf=_is_none)
        if isinstance(self._target, dict) and not self._target:
            raise ArgumentError(f"{self._label()}: there is nothing to optimize", got=repr(target)[:80],
                                hint="Give it Variables, or the model itself if its first call makes the parameters.")
        self._settings = settings
        self._clip = clip
        self._nonfinite = nonfinite
        self._schedule: Any = rate if _is_schedule(rate) else None
        self._given = rate
        self._patterns = [pattern_of(self._label(), group, settings) for group in groups]
        self._found: list[Parameter] | None = None
        self._groups: list[Group] = []
        with made_once():
            self._steps = Variable(0, dtype=int32, name="optimizer.steps", trainable=False)
            self._rate = self._rate_variable(rate, "optimizer.rate")
        self._plain = Group(settings, self._rate, self._schedule)
        for settings_of in (settings, *[{**settings, **group} for group in self._patterns]):
            self._rule_of({k: v for k, v in settings_of.items() if k not in ("match", "rate")})
        if not is_tracing() and self._named() and not self._waits_for_sizes():
            self._parameters()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Setting an unknown one, such as ``lr``, would change nothing, so it is an error.

        Raises:
            AttributeError: there is no such attribute.
        """
        cls = type(self)
        own = cls.__module__.startswith(_OPTIMIZERS) and not name.startswith("_")
        if own and not any([name in vars(base) for base in cls.__mro__]):
            settable = ", ".join([one for one, value in vars(Optimizer).items() if getattr(value, "fset", None)])
            raise AttributeError(
                message(f"{self._label()}: it has no attribute {name!r}, so assigning it would change nothing",
                        got=f"{name}={repr(value)[:60]}",
                        hint=f"Assign {settable}; settings are given when an optimizer is made."),
                name=name, obj=self,
            )
        object.__setattr__(self, name, value)

    # -- parameters, groups and state
    # --------------------------------------------------------------------------------------

    def _label(self) -> str:
        return type(self).__name__

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        """Return the rule for a parameter with `ndim` axes and these settings, and the attributes of its operation."""
        raise NotImplementedError

    def _rate_variable(self, rate: Any, name: str) -> Variable:
        if isinstance(rate, Variable):
            if rate.shape or kind_of(rate.dtype) != "float":
                raise ArgumentError(f"{self._label()}: the rate must be a float of shape ()",
                                    got=f"{rate.name}: {rate.spec}")
            return rate
        first = math.nan if callable(rate) else number(self._label(), rate)
        wide = any([variable.dtype == float64 for variable in self._named().values()])
        return Variable(first, dtype=float64 if wide else float32, name=name, trainable=False)

    def _named(self) -> dict[str, Variable]:
        target = self._target
        parameters = target if isinstance(target, dict) else as_traced(target.named_parameters)()
        return {name: one for name, one in cast("dict[str, Any]", parameters).items() if isinstance(one, Variable)}

    def _waits_for_sizes(self) -> bool:
        """Whether the model has layers whose parameters are made in its first call."""
        modules: Any = getattr(self._target, "named_modules", dict[str, Any])()
        return any([unsized(module) for module in modules.values()])

    def _parameters(self) -> list[Parameter]:
        """Return the parameters with their slots; the slots are made on first use."""
        if self._found is not None:
            return self._found
        named = {name: one for name, one in self._named().items() if one.trainable}
        if not named:
            raise ArgumentError(
                f"{self._label()}: there is nothing to optimize", got=repr(self._target)[:80],
                hint="Give it a model, or trainable Variables; call the model first if its sizes are inferred."
            )
        with made_once():
            groups = self._made_groups(named)
            parameters = [self._with_slots(name, variable, groups[name]) for name, variable in named.items()]
        self._found = parameters
        return parameters

    def _made_groups(self, named: dict[str, Variable]) -> dict[str, Group]:
        """Return the group of each parameter.

        Raises:
            ArgumentError: a pattern matches nothing.
        """
        for pattern in self._patterns:
            match = pattern["match"]
            if not any([fnmatchcase(name, match) for name in named]):
                near = get_close_matches(match, named, n=3, cutoff=0.3) or [*named][:3]
                raise ArgumentError(f"{self._label()}: the group pattern {match!r} matches no parameter",
                                    got=f"{len(named)} parameters", hint=f"Names that are like it: {', '.join(near)}.")
        plain, made = self._plain, [self._group(pattern) for pattern in self._patterns]
        self._groups = [plain, *made]
        return {
            name: next(
                (g for p, g in zip(self._patterns, made, strict=True) if fnmatchcase(name, p["match"])), plain
            )
            for name in named
        }

    def _group(self, pattern: Mapping[str, Any]) -> Group:
        changed = {key: value for key, value in pattern.items() if key not in ("match", "rate")}
        settings = {**self._settings, **changed}
        if "rate" not in pattern:
            return Group(settings, self._rate, self._schedule)
        rate = pattern["rate"]
        schedule = rate if _is_schedule(rate) else None
        return Group(settings, self._rate_variable(rate, f"optimizer.rate[{pattern['match']}]"), schedule)

    def _with_slots(self, name: str, variable: Variable, group: Group) -> Parameter:
        if kind_of(variable.dtype) != "float":
            raise DTypeError(f"{self._label()}: parameter {name!r} is {variable.dtype}", got=str(variable.spec),
                             hint="Optimizers take floats; train the parts of a complex number apart.")
        rule, attrs = self._rule_of(group.settings, variable.ndim)
        slots = tuple([
            Variable(new_tensor(np.zeros(shape, variable.dtype)), name=f"{name}.{slot}", trainable=False, like=variable)
            for slot, shape in zip(rule.slots, rule.shapes(cast(Any, variable.shape)), strict=True)
        ])
        return Parameter(name, variable, slots, rule, attrs, group)

    @property
    def rate(self) -> Tensor:
        """The learning rate of the next update.

        Assigning it makes no new trace. A number replaces the schedule until the next assignment; None restores the
        schedule that the optimizer was made with.

        Example:
            >>> import hybridflow as hf
            >>> opt = hf.optim.SGD([hf.Variable([1.0], name="w")], hf.optim.linear(1.0, 0.0, 4))
            >>> opt.rate = 0.25
            >>> opt.rate.item()
            0.25
            >>> opt.rate = None
            >>> opt.rate.item()
            1.0
        """
        return self._plain.rate_at(self._steps.read())

    @rate.setter
    def rate(self, value: Any) -> None:
        if value is None:
            if self._schedule is None:
                raise ArgumentError(f"{self._label()}: there is no schedule to go back to", got="rate=None",
                                    hint="Assign a number.")
            self._rate.assign(math.nan)
            return
        if _is_schedule(value):
            raise ArgumentError(
                f"{self._label()}: a function of the step cannot be assigned as the rate", got=repr(value)[:80],
                hint="Assign a number, or make the optimizer with a function that chooses between schedules."
            )
        if isinstance(value, int | float):
            value = number_of_a_call(self._label(), value)
        self._rate.assign(cast_to(as_tensor(value), self._rate.dtype) if hasattr(value, "dtype") else value)

    @property
    def steps(self) -> Tensor:
        """The number of updates so far, a scalar int32 tensor."""
        return self._steps.read()

    def variables(self) -> list[Variable]:
        """Return the optimizer's own Variables: the number of updates, the rate, the slots."""
        return [*self._state().values()]

    def named_variables(self) -> dict[str, Variable]:
        """Return the optimizer's own Variables, by their names in `state_dict`."""
        return self._state()

    def _state(self) -> dict[str, Variable]:
        state = {"steps": self._steps, "rate": self._rate}
        for one in self._parameters():
            for slot, variable in zip(one.rule.slots, one.slots, strict=True):
                state[f"{one.name}.{slot}"] = variable
        for pattern, group in zip(self._patterns, self._groups[1:], strict=True):
            if group.rate is not self._rate:
                state[f"rate[{pattern['match']}]"] = group.rate
        return state

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return a copy of the state as NumPy arrays, by name."""
        return {name: np.array(variable.numpy()) for name, variable in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned. If something does not fit, nothing is loaded.

        Raises:
            ArgumentError: keys are missing, unknown or misshaped; the message names all of them.
        """
        mine = self._state()
        arrays = {name: np.asarray(value) for name, value in state.items()}
        wrong = _list_of("missing", [name for name in mine if name not in arrays])
        wrong += _list_of("extra", [name for name in arrays if name not in mine])
        wrong += _list_of("misshaped", [
            f"{name} ({array.dtype}{list(array.shape)}, not {mine[name].spec})" for name, array in arrays.items()
            if name in mine and (array.shape != mine[name].shape or as_dtype(array.dtype) != mine[name].dtype)
        ])
        if wrong:
            raise ArgumentError(f"{self._label()}.load_state_dict: the state is of another optimizer or model",
                                got="; ".join(wrong), hint="Nothing was loaded.")
        assign_all([(variable, asarray(arrays[name])) for name, variable in mine.items()])

    # -- updates --------------------------------------------------------------------------------------------------

    def update(self, gradients: Any) -> None:
        """Update the parameters with gradients.

        Args:
            gradients: the gradients in the structure of `target`, as `GradientTape.gradient` and `hf.grad` return them,
                or a mapping by name.

        Raises:
            ArgumentError: another structure, a parameter that the optimizer does not have, a rate that is not finite.
            GradientError: a gradient that is None.
            ShapeError: a gradient of another shape than its parameter's.
        """
        parameters = self._parameters()
        self._apply(parameters, self._checked(parameters, self._matched(gradients)))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters with their ``.grad``, which `.backward()` accumulated.

        Args:
            closure: a function that computes the loss and calls ``.backward()``; it is called first.

        Returns:
            What the closure returned.
        """
        loss = None if closure is None else as_traced(closure)()
        parameters = self._parameters()
        stored = [cast(Any, one.variable).grad for one in parameters]
        self._apply(parameters, self._checked(parameters, stored, _STORED))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters: they are None until the next `.backward()`.

        Args:
            set_to_none: True.

        Raises:
            ArgumentError: it is False, by which PyTorch means zeros.
        """
        if not set_to_none:
            raise ArgumentError("zero_grad: set_to_none=False", hint="Leave it out: gradients become None.")
        for one in self._parameters():
            cast(Any, one.variable).zero_grad()

    def _matched(self, gradients: Any) -> list[Any]:
        """Return the gradients in the order of the parameters."""
        parameters = self._parameters()
        if isinstance(gradients, list | tuple | dict) and isinstance(self._target, dict):
            leaves, tree = structures.flatten(gradients, is_leaf=_is_none)
            if tree == self._nested[1]:
                return self._by_variable(parameters, self._nested[0], leaves)
        if isinstance(gradients, Mapping):
            return self._by_name(parameters, cast("Mapping[str, Any]", gradients))
        if isinstance(gradients, list | tuple):
            items = list(cast("Sequence[Any]", gradients))
            if not self._one_order:
                raise ArgumentError(
                    f"{self._label()}.update: a list of gradients for parameters in a dict, in which order?",
                    got=f"the keys sorted: {', '.join(self._named())[:80]}",
                    hint="Give what tape.gradient(loss, parameters) returns, or gradients by name."
                )
            if len(items) == len(parameters) and not is_tracing():
                return items  # without a look at the whole model, which a trace must take
            named = self._named()
            if len(items) == len(named):
                by_name = dict(zip(named, items, strict=True))
                return [by_name[one.name] for one in parameters]
            if len(items) == len(parameters):
                return items
            raise ArgumentError(
                f"{self._label()}.update: {len(items)} gradients for {len(parameters)} parameters",
                hint="Give the gradients of the parameters the optimizer was made with, in their order."
            )
        if isinstance(gradients, Tensor) and len(parameters) == 1:
            return [gradients]
        leaves, tree = structures.flatten(gradients, is_leaf=_is_none)
        own, expected = structures.flatten(self._target, is_leaf=_is_none)
        if tree != expected:
            raise ArgumentError(f"{self._label()}.update: the gradients have another structure than the parameters",
                                got=type(gradients).__name__,
                                hint="Give what tape.gradient or hf.grad returned for the model.")
        return self._by_variable(parameters, own, leaves)

    def _by_variable(self, parameters: list[Parameter], own: list[Any], leaves: list[Any]) -> list[Any]:
        self._require_known([(one, leaf) for one, leaf in zip(own, leaves, strict=True) if leaf is not None])
        by_variable = {id(variable): leaf for variable, leaf in zip(own, leaves, strict=True)}
        return [by_variable.get(id(one.variable)) for one in parameters]

    def _by_name(self, parameters: list[Parameter], gradients: Mapping[str, Any]) -> list[Any]:
        extra = [name for name in gradients if name not in self._named()]
        if extra:
            names = [one.name for one in parameters]
            near = [match for name in extra for match in get_close_matches(str(name), names, n=1)]
            raise ArgumentError(f"{self._label()}.update: a gradient of what is no parameter of it",
                                got=", ".join(map(str, extra[:_SHOWN])),
                                hint=f"It has {', '.join(near or [p.name for p in parameters[:_SHOWN]])}.")
        named = self._named()
        self._require_known([(named[name], one) for name, one in gradients.items() if one is not None])
        return [gradients.get(one.name) for one in parameters]

    def checked(self, gradients: Any) -> list[Tensor]:
        """Return the gradients that `update` takes as tensors in the order of the parameters; raise as it does."""
        return self._checked(self._parameters(), self._matched(gradients))

    def _require_known(self, pairs: list[tuple[Any, Any]]) -> None:
        """Check that every parameter with a gradient was known, and not frozen, at the first update.

        Raises:
            ArgumentError: a parameter was added or unfrozen later.
        """
        known = {id(one.variable) for one in self._parameters()}
        late = [one.name for one, _ in pairs if id(one) not in known and isinstance(one, Variable) and one.trainable]
        if late:
            raise ArgumentError(
                f"{self._label()}.update: {len(late)} parameters are not among those that it took, so they "
                "would never change", got=", ".join(late[:_SHOWN]),
                hint="They were made or unfrozen later; make an optimizer anew, now that they are there."
            )

    def _checked(self, parameters: list[Parameter], gradients: list[Any], why: str = _GIVEN) -> list[Tensor]:
        missing = [one.name for one, gradient in zip(parameters, gradients, strict=True) if gradient is None]
        if missing:
            raise GradientError(
                f"{self._label()}: {len(missing)} of {len(parameters)} gradients are None",
                got=", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else ""),
                hint=f"{why} To keep a parameter as it is, freeze it before the optimizer is made, or leave it "
                     "out."
            )
        tensors = [one if type(one) is Tensor else as_tensor(one) for one in gradients]
        for one, gradient in zip(parameters, tensors, strict=True):
            if gradient.shape != one.variable.shape:
                raise ShapeError(f"{self._label()}: the gradient of {one.name!r} has shape {gradient.shape}, the "
                                 f"parameter {one.variable.shape}", hint="Gradients have their parameter's shape.")
        return tensors

    def _apply(self, parameters: list[Parameter], gradients: list[Tensor]) -> None:
        plain = context_now() is None  # "no autocast" inside an autocast is a context too
        with without_autocast():
            if self._nonfinite == "apply":
                self._update(parameters, gradients, plain)
                return
            finite, tracer = all_finite(gradients), current().tracer
            if self._nonfinite == "raise":
                self._require_finite(parameters, gradients, finite)
                self._update(parameters, gradients, plain)
            elif isinstance(tracer, GraphBuilder):
                what = f"{self._label()}.update"
                write_if(tracer, finite, lambda: self._update(parameters, gradients, plain), what=what)
            elif finite.item():
                self._update(parameters, gradients, plain)

    def _require_finite(self, parameters: list[Parameter], gradients: list[Tensor], finite: Tensor) -> None:
        text = message(f"{self._label()}: gradients are not finite", hint="Nothing was changed.")

        def bad() -> str:
            bad = [one.name for one, g in zip(parameters, gradients, strict=True) if not all_finite(g).item()]
            return f"{len(bad)} of {len(parameters)}: {', '.join(bad[:_SHOWN])}{', ...' * (len(bad) > _SHOWN)}"

        require(finite, GradientError, text, bad)

    def _update(self, parameters: list[Parameter], gradients: list[Tensor], plain: bool) -> None:
        """Change the parameters, in place where that is possible."""
        if self._clip is not None:
            gradients, _ = clip_by_global_norm(gradients, self._clip)
        step = self._steps.read()
        rates = {id(group): group.rate_at(step) for group in self._groups}
        for group in self._groups:
            self._check_rate(rates[id(group)])
        gradients = [
            g if g.dtype == one.variable.dtype else cast_to(g, one.variable.dtype)
            for one, g in zip(parameters, gradients, strict=True)
        ]
        self._make(parameters, gradients, step, rates, plain)

    def _check_rate(self, rate: Tensor) -> None:
        text = message(f"{self._label()}: the rate is not finite", hint="Look at the schedule or Variable it is from.")
        if is_tracing():
            add_check(isfinite(rate), ArgumentError, text)
        elif not math.isfinite(rate.item()):  # quicker than an operation
            raise ArgumentError(f"{text}\n  got: rate={rate.item()}")

    def _make(
        self, parameters: list[Parameter], gradients: list[Tensor], step: Tensor, rates: dict[int, Tensor], plain: bool
    ) -> None:
        """Compute and assign the update: in place, or by running the rules as operations and assigning the results."""
        if plain and not OPEN_LOGS.count and on_host(parameters, gradients):
            write(parameters, gradients, int(step), {key: float(rate) for key, rate in rates.items()}, self._steps)
            return
        made: list[tuple[Variable, Any]] = []
        for one, gradient in zip(parameters, gradients, strict=True):
            slots = [slot.read() for slot in one.slots]
            values = (one.variable.read(), gradient, *slots, step, rates[id(one.group)])
            outputs = bind(one.rule.op, values, one.attrs)
            made += zip((one.variable, *one.slots), outputs if slots else (outputs,), strict=True)
        assign_all([*made, (self._steps, step + 1)])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise not_pickled(self, "optimizer")

    def __repr__(self) -> str:
        settings = "".join([f", {name}={value!r}" for name, value in self._settings.items()])
        return f"{self._label()}(rate={function_text(self._given)}{settings})"


attached("name_class")(Optimizer, "opt")


def _is_none(value: Any) -> bool:
    return value is None


def _list_of(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {', '.join(names)}"] if names else []


def _is_schedule(rate: Any) -> bool:
    return callable(rate) and not isinstance(rate, Variable)
