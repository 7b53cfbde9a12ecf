"""`Optimizer`: what all optimizers share, from the parameters they take to the state they keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from sys import getrefcount
from typing import Any, cast

import jax
import numpy as np

from hybridflow.backend.host import run_quietly
from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import context_now, init_scope, is_tracing
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, float32, float64, int32, kind_of
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    GradientError,
    ShapeError,
    message,
)
from hybridflow.core.observer import OBSERVED
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.core.variable import WRITES, Variable
from hybridflow.ir.builder import add_check
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import isfinite
from hybridflow.optim.rules import Rule
from hybridflow.transforms.clipping import clip_by_global_norm

Rate = float | Variable | Callable[[Any], Any]
"""A learning rate: a number, a Variable, or a function of the number of updates so far."""

_SHOWN = 8
"""How many names a message lists of each kind."""


class _Group:
    """Parameters with the same settings: their rule's attributes and the rate."""

    __slots__ = ("attrs", "rate", "rule", "schedule")

    def __init__(self, rule: Rule, attrs: dict[str, Any], rate: Variable, schedule: Callable[[Any], Any] | None):
        self.rule = rule
        self.attrs = attrs
        self.rate = rate
        self.schedule = schedule

    def rate_at(self, step: Tensor) -> Tensor:
        """Return the rate of the update of a number; it must be checked."""
        if self.schedule is None:
            return self.rate.read()
        found = as_tensor(self.schedule(step))
        if found.shape or kind_of(found.dtype) not in ("float", "int"):
            raise ArgumentError(
                message("rate: the schedule must return a number", got=str(found.spec),
                        hint="Return a float or a tensor of shape ().")
            )  # fmt: skip
        return cast_to(found, self.rate.dtype)


class Parameter:
    """A parameter, its slots and its group."""

    __slots__ = ("group", "name", "slots", "variable")

    def __init__(self, name: str, variable: Variable, slots: tuple[Variable, ...], group: _Group) -> None:
        self.name = name
        self.variable = variable
        self.slots = slots
        self.group = group


class Optimizer:
    """What all optimizers share.

    Args:
        target: a model (what has ``named_parameters()``), a Variable, or an iterable or mapping of Variables.
        rate: the learning rate: a number, a Variable, or a function of the number of updates so far, such as a
            schedule of `hybridflow.optim`.
        clip: the largest norm of all gradients together; larger ones are scaled down.
        groups: settings for some of the parameters, each a mapping with a pattern ``"match"`` of their names and what
            is different for them; the first that matches counts.
        settings: the rule's attributes.
    """

    _defaults: Mapping[str, Any] = {}

    def __init__(
        self,
        target: Any,
        rate: Rate,
        *,
        clip: float | None = None,
        groups: Sequence[Mapping[str, Any]] = (),
        **settings: Any,
    ) -> None:
        if clip is not None and not clip > 0:
            raise ArgumentError(message(f"{self._label()}: clip must be positive", got=f"clip={clip!r}"))
        self._target = target if hasattr(target, "named_parameters") else collected(self._label(), target)
        self._settings = settings
        self._clip = clip
        self._schedule = rate if callable(rate) and not isinstance(rate, Variable) else None
        self._given = rate
        self._patterns = [_pattern(self._label(), group, settings) for group in groups]
        self._found: list[Parameter] | None = None
        self._at: dict[int, int] = {}
        self._groups: list[_Group] = []
        with init_scope():
            self._steps = Variable(0, dtype=int32, name="optimizer.steps", trainable=False)
            self._rate = self._rate_variable(rate, "optimizer.rate")
        for settings_of in (settings, *[{**settings, **group} for group in self._patterns]):
            self._rule_of({k: v for k, v in settings_of.items() if k not in ("match", "rate")})
        if not is_tracing() and self._named():
            self._parameters()

    # -- what it consists of --------------------------------------------------------------------------------------

    def _label(self) -> str:
        return type(self).__name__

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """Return the rule for some settings, and its attributes."""
        raise NotImplementedError

    def _rate_variable(self, rate: Any, name: str) -> Variable:
        if isinstance(rate, Variable):
            if rate.shape or kind_of(rate.dtype) != "float":
                raise ArgumentError(
                    message(f"{self._label()}: the rate must be a float of shape ()", got=f"{rate.name}: {rate.spec}")
                )
            return rate
        first = 0.0 if callable(rate) else _number(self._label(), rate)
        wide = any([variable.dtype == float64 for variable in self._named().values()])
        return Variable(first, dtype=float64 if wide else float32, name=name, trainable=False)

    def _named(self) -> dict[str, Variable]:
        target = self._target
        found = target if isinstance(target, dict) else target.named_parameters()
        return {name: one for name, one in cast("dict[str, Any]", found).items() if isinstance(one, Variable)}

    def _parameters(self) -> list[Parameter]:
        """Return the parameters with their slots, which are made when this is first asked for."""
        if self._found is not None:
            return self._found
        named = {name: one for name, one in self._named().items() if one.trainable}
        if not named:
            raise ArgumentError(
                message(f"{self._label()}: there is nothing to optimize", got=repr(self._target)[:80],
                        hint="Give it a model, or trainable Variables; call the model first if its sizes are inferred.")
            )  # fmt: skip
        with init_scope():
            groups = self._made_groups(named)
            found = [self._with_slots(name, variable, groups[name]) for name, variable in named.items()]
        self._found = found
        self._at = {id(one.variable): index for index, one in enumerate(found)}
        return found

    def _made_groups(self, named: dict[str, Variable]) -> dict[str, _Group]:
        """Return the group of each parameter.

        Raises:
            ArgumentError: a pattern that matches nothing.
        """
        for pattern in self._patterns:
            match = pattern["match"]
            if not any([fnmatchcase(name, match) for name in named]):
                near = get_close_matches(match, named, n=3, cutoff=0.3) or [*named][:3]
                raise ArgumentError(
                    message(f"{self._label()}: the group pattern {match!r} matches no parameter",
                            got=f"{len(named)} parameters", hint=f"Names that are like it: {', '.join(near)}.")
                )  # fmt: skip
        plain = _Group(*self._rule_of(self._settings), self._rate, self._schedule)
        made = [self._group(pattern) for pattern in self._patterns]
        self._groups = [plain, *made]
        return {
            name: next(
                (g for p, g in zip(self._patterns, made, strict=True) if fnmatchcase(name, p["match"])), plain
            )
            for name in named
        }

    def _group(self, pattern: Mapping[str, Any]) -> _Group:
        changed = {key: value for key, value in pattern.items() if key not in ("match", "rate")}
        rule, attrs = self._rule_of({**self._settings, **changed})
        if "rate" not in pattern:
            return _Group(rule, attrs, self._rate, self._schedule)
        rate = pattern["rate"]
        schedule = rate if callable(rate) and not isinstance(rate, Variable) else None
        return _Group(rule, attrs, self._rate_variable(rate, f"optimizer.rate[{pattern['match']}]"), schedule)

    def _with_slots(self, name: str, variable: Variable, group: _Group) -> Parameter:
        if kind_of(variable.dtype) != "float":
            raise DTypeError(
                message(f"{self._label()}: parameter {name!r} is {variable.dtype}", got=str(variable.spec),
                        hint="Optimizers take floats; train the parts of a complex number apart.")
            )  # fmt: skip
        slots = tuple([
            Variable(np.zeros(variable.shape, variable.dtype), name=f"{name}.{slot}", trainable=False)
            for slot in group.rule.slots
        ])  # fmt: skip
        return Parameter(name, variable, slots, group)

    @property
    def rate(self) -> Tensor:
        """The present learning rate: that of the next update."""
        if self._schedule is None:
            return self._rate.read()
        return cast_to(as_tensor(self._schedule(self._steps.read())), self._rate.dtype)

    @rate.setter
    def rate(self, value: Any) -> None:
        if self._schedule is not None:
            raise ArgumentError(
                message(f"{self._label()}: the rate is a function of the step and cannot be assigned",
                        got=f"rate={value!r}", hint="Make the optimizer with a number or a Variable to assign it.")
            )  # fmt: skip
        if isinstance(value, int | float):
            _number(self._label(), value)
        self._rate.assign(cast_to(as_tensor(value), self._rate.dtype) if hasattr(value, "dtype") else value)

    @property
    def steps(self) -> Tensor:
        """How many updates were made, int32, of shape ()."""
        return self._steps.read()

    def variables(self) -> list[Variable]:
        """Return the Variables that it keeps: the number of updates, the rate, the slots."""
        return [*self._state().values()]

    def named_variables(self) -> dict[str, Variable]:
        """Return the Variables that it keeps by the names that `state_dict` has for them."""
        return self._state()

    def _state(self) -> dict[str, Variable]:
        state = {"steps": self._steps}
        if self._schedule is None:
            state["rate"] = self._rate
        for one in self._parameters():
            for slot, variable in zip(one.group.rule.slots, one.slots, strict=True):
                state[f"{one.name}.{slot}"] = variable
        for pattern, group in zip(self._patterns, self._groups[1:], strict=True):
            if group.rate is not self._rate and group.schedule is None:
                state[f"rate[{pattern['match']}]"] = group.rate
        return state

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return a copy of the state as NumPy arrays, by name."""
        return {name: np.array(variable.numpy()) for name, variable in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `state_dict` returned: all of it, or nothing.

        Raises:
            ArgumentError: keys that are missing, extra or misshaped, all of them named.
        """
        mine = self._state()
        arrays = {name: np.asarray(value) for name, value in state.items()}
        wrong = _list_of("missing", [name for name in mine if name not in arrays])
        wrong += _list_of("extra", [name for name in arrays if name not in mine])
        wrong += _list_of("misshaped", [
            f"{name} ({array.dtype}{list(array.shape)}, not {mine[name].spec})" for name, array in arrays.items()
            if name in mine and (array.shape != mine[name].shape or as_dtype(array.dtype) != mine[name].dtype)
        ])  # fmt: skip
        if wrong:
            raise ArgumentError(
                message(f"{self._label()}.load_state_dict: the state is of another optimizer or model",
                        got="; ".join(wrong), hint="Nothing was loaded.")
            )  # fmt: skip
        for name, variable in mine.items():
            variable.assign(asarray(arrays[name]))

    # -- updates --------------------------------------------------------------------------------------------------

    def update(self, gradients: Any) -> None:
        """Change the parameters by their gradients.

        Args:
            gradients: in the structure that was given to the optimizer: what `GradientTape.gradient` or `hf.grad`
                returned for the model or the list, or a mapping by name.

        Raises:
            ArgumentError: another structure, a parameter that the optimizer does not have, a rate that is not finite.
            GradientError: a gradient that is None.
            ShapeError: a gradient of another shape than its parameter's.
        """
        found = self._parameters()
        self._apply(found, self._checked(found, self._matched(gradients)))

    def step(self) -> None:
        """Change the parameters by what `.backward()` accumulated in their ``.grad``."""
        found = self._parameters()
        self._apply(found, self._checked(found, [cast(Any, one.variable).grad for one in found]))

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for one in self._parameters():
            cast(Any, one.variable).zero_grad()

    def _matched(self, gradients: Any) -> list[Any]:
        """Return the gradients in the order of the parameters."""
        found = self._parameters()
        if isinstance(gradients, Mapping):
            return self._by_name(found, cast("Mapping[str, Any]", gradients))
        named = self._named()
        if isinstance(gradients, list | tuple) and isinstance(self._target, dict | object):
            items = list(cast("Sequence[Any]", gradients))
            if len(items) == len(named):
                by_name = dict(zip(named, items, strict=True))
                return [by_name[one.name] for one in found]
            if len(items) == len(found):
                return items
            raise ArgumentError(
                message(f"{self._label()}.update: {len(items)} gradients for {len(found)} parameters",
                        hint="Give the gradients of the parameters the optimizer was made with, in their order.")
            )  # fmt: skip
        if isinstance(gradients, Tensor) and len(found) == 1:
            return [gradients]
        leaves, tree = jax.tree_util.tree_flatten(gradients, is_leaf=_is_none)
        own, expected = jax.tree_util.tree_flatten(self._target, is_leaf=_is_none)
        if tree != expected:
            raise ArgumentError(
                message(f"{self._label()}.update: the gradients have another structure than the parameters",
                        got=type(gradients).__name__, hint="Give what tape.gradient or hf.grad returned for the model.")
            )  # fmt: skip
        by_variable = {id(variable): leaf for variable, leaf in zip(own, leaves, strict=True)}
        return [by_variable.get(id(one.variable)) for one in found]

    def _by_name(self, found: list[Parameter], gradients: Mapping[str, Any]) -> list[Any]:
        extra = [name for name in gradients if name not in self._named()]
        if extra:
            near = [match for name in extra for match in get_close_matches(str(name), [p.name for p in found], n=1)]
            raise ArgumentError(
                message(f"{self._label()}.update: a gradient of what is no parameter of it",
                        got=", ".join(map(str, extra[:_SHOWN])),
                        hint=f"It has {', '.join(near or [p.name for p in found[:_SHOWN]])}.")
            )  # fmt: skip
        return [gradients.get(one.name) for one in found]

    def _checked(self, found: list[Parameter], gradients: list[Any]) -> list[Tensor]:
        missing = [one.name for one, gradient in zip(found, gradients, strict=True) if gradient is None]
        if missing:
            raise GradientError(
                message(f"{self._label()}: {len(missing)} of {len(found)} gradients are None",
                        got=", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else ""),
                        hint="tape.why_none(loss, variable) says why; a parameter that shall stay as it is "
                             "has trainable=False or is left out of the optimizer.")
            )  # fmt: skip
        tensors = [one if type(one) is Tensor else as_tensor(one) for one in gradients]
        for one, gradient in zip(found, tensors, strict=True):
            if gradient.shape != one.variable.shape:
                raise ShapeError(
                    message(f"{self._label()}: the gradient of {one.name!r} has shape {gradient.shape}, the "
                            f"parameter {one.variable.shape}", hint="Gradients have their parameter's shape.")
                )  # fmt: skip
        return tensors

    def _apply(self, found: list[Parameter], gradients: list[Tensor]) -> None:
        with without_autocast():
            if self._clip is not None:
                gradients, _ = clip_by_global_norm(gradients, self._clip)
            step = self._steps.read()
            rates = {id(group): group.rate_at(step) for group in self._groups}
            for group in self._groups:
                self._check_rate(rates[id(group)])
            gradients = [
                g if g.dtype == one.variable.dtype else cast_to(g, one.variable.dtype)
                for one, g in zip(found, gradients, strict=True)
            ]
            self._make(found, gradients, step, rates)

    def _check_rate(self, rate: Tensor) -> None:
        text = message(f"{self._label()}: the rate is not finite", hint="Look at the schedule or Variable it is from.")
        if is_tracing():
            add_check(isfinite(rate), ArgumentError, text)
        elif not math.isfinite(rate.item()):
            raise ArgumentError(f"{text}\n  got: rate={rate.item()}")

    def _make(
        self, found: list[Parameter], gradients: list[Tensor], step: Tensor, rates: dict[int, Tensor]
    ) -> None:
        """Make the update, in place where that is possible."""
        if context_now() is None and not OBSERVED.count and _on_host(found, gradients):
            self._write(found, gradients, int(step), {key: float(rate) for key, rate in rates.items()})
        else:
            self._bind(found, gradients, step, rates)

    def _bind(
        self, found: list[Parameter], gradients: list[Tensor], step: Tensor, rates: dict[int, Tensor]
    ) -> None:
        """Apply the rules as operations, and assign when all of them are done."""
        made: list[Any] = []
        for one, gradient in zip(found, gradients, strict=True):
            group = one.group
            slots = [slot.read() for slot in one.slots]
            outputs = bind(
                group.rule.op, (one.variable.read(), gradient, *slots, step, rates[id(group)]), group.attrs
            )
            made.append(outputs if slots else (outputs,))
        for one, outputs in zip(found, made, strict=True):
            for variable, value in zip((one.variable, *one.slots), outputs, strict=True):
                variable.assign(value)
        self._steps.assign(step + 1)

    def _write(
        self, found: list[Parameter], gradients: list[Tensor], step: int, rates: dict[int, float]
    ) -> None:
        """Apply the rules to the Variables' arrays in place."""
        constants = {
            (id(group), dtype): group.rule.constants(dtype, step, rates[id(group)], group.attrs)
            for group in self._groups
            for dtype in {one.variable.dtype for one in found}
        }
        after = np.asarray(step + 1, np.int32)
        with WRITES:
            run_quietly(_write_all, found, gradients, constants)
            self._steps.store(after)

    def __repr__(self) -> str:
        settings = "".join([f", {name}={value!r}" for name, value in self._settings.items()])
        return f"{self._label()}(rate={self._given!r}{settings})"


def _write_all(found: list[Parameter], gradients: list[Tensor], constants: dict[Any, tuple[Any, ...]]) -> None:
    for one, gradient in zip(found, gradients, strict=True):
        g = gradient._value
        arrays = [_own(one.variable), g if g.flags.c_contiguous else np.ascontiguousarray(g)]
        arrays += [_own(slot) for slot in one.slots]
        group = one.group
        group.rule.write(arrays, constants[id(group), g.dtype])
        one.variable._value = arrays[0]
        for slot, array in zip(one.slots, arrays[2:], strict=True):
            slot._value = array


def _own(variable: Any) -> Any:
    """Return the array of a Variable if nobody else can see it, else a copy."""
    value = variable._value
    if getrefcount(value) == _SOLE and value.base is None and value.flags.carray:
        return value
    return np.array(value, order="C")


def _references() -> int:
    """Return what `sys.getrefcount` says in `_own` of an array that only a Variable holds."""

    class Holder:
        _value = None

    holder = Holder()
    holder._value = cast(Any, np.zeros(1))

    def count(variable: Any) -> int:
        value = variable._value
        return getrefcount(value)

    return count(holder)


_SOLE = _references()


def _on_host(found: list[Parameter], gradients: list[Tensor]) -> bool:
    """Whether all values are NumPy arrays of a dtype that NumPy computes in."""
    for one, gradient in zip(found, gradients, strict=True):
        if type(one.variable._value) is not np.ndarray or type(gradient._value) is not np.ndarray:
            return False
        if one.variable.dtype.itemsize < 4:
            return False
        for slot in one.slots:
            if type(slot._value) is not np.ndarray:
                return False
    return True


def _is_none(value: Any) -> bool:
    return value is None


def _list_of(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {', '.join(names)}"] if names else []


def _number(label: str, value: Any) -> float:
    found = float(value)
    if not (math.isfinite(found) and found >= 0):
        raise ArgumentError(message(f"{label}: the rate must be finite, and 0 at least", got=f"rate={value!r}"))
    return found


def _pattern(label: str, group: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(group, Mapping) or not isinstance(cast(Any, group).get("match"), str):
        raise ArgumentTypeError(
            message(f"{label}: a group is a mapping with the pattern 'match'", got=repr(group)[:80],
                    hint='Write groups=[{"match": "*.bias", "decay": 0.0}].')
        )  # fmt: skip
    given = dict(cast("Mapping[str, Any]", group))
    unknown = [name for name in given if name not in (*settings, "match", "rate")]
    if unknown:
        raise ArgumentError(
            message(f"{label}: a group cannot set {', '.join(unknown)}", got=repr(given)[:80],
                    hint=f"It may set {', '.join(['rate', *settings])}.")
        )  # fmt: skip
    return given


def collected(label: str, target: Any) -> dict[str, Variable]:
    """Return Variables by name, of a mapping, an iterable or a single one; each once."""
    if isinstance(target, Variable):
        target = [target]
    if not isinstance(target, Iterable):
        raise ArgumentTypeError(
            message(f"{label}: a {type(target).__name__} is no model and no Variables", got=repr(target)[:80],
                    hint="Give a model, or an iterable or mapping of Variables.")
        )  # fmt: skip
    mapping = isinstance(target, Mapping)
    pairs: Any = [*cast(Any, target).items()] if mapping else [(None, one) for one in cast(Any, target)]
    found: dict[str, Variable] = {}
    for name, one in pairs:
        if not isinstance(one, Variable):
            raise ArgumentTypeError(
                message(f"{label}: a {type(one).__name__} is no Variable", got=repr(one)[:80],
                        hint="Give the Variables themselves, not their values.")
            )  # fmt: skip
        label_of = one.name if name is None else str(name)
        if any([known is one for known in found.values()]):
            continue
        found[label_of if label_of not in found else f"{label_of}_{len(found)}"] = one
    return found
