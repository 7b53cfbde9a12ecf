"""The parameters of an optimizer: Variables by name, in groups that share settings."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import jax

from hybridflow.core import structures
from hybridflow.core.context import is_tracing
from hybridflow.core.dtypes import kind_of
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message
from hybridflow.core.functions import as_traced
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import add_check
from hybridflow.ops.choice import where
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import isfinite, isnan, logical_and
from hybridflow.optim.rule import Rule

Schedule = Callable[[Any], Any]
Rate = float | Variable | Schedule
"""A learning rate: a number, a Variable, or a function of the number of updates so far."""


class Group:
    """Parameters with the same settings.

    Attributes:
        settings: the settings of the optimizer's rule.
        rate: the learning rate; NaN if the schedule gives it.
        schedule: a function of the step that gives the rate, or None.
    """

    __slots__ = ("rate", "schedule", "settings")

    def __init__(self, settings: dict[str, Any], rate: Variable, schedule: Schedule | None) -> None:
        self.settings = settings
        self.rate = rate
        self.schedule = schedule

    def rate_at(self, step: Tensor) -> Tensor:
        """Return the rate of update number `step`; the caller must check that it is valid."""
        assigned = self.rate.read()
        if self.schedule is None:
            return assigned
        if not is_tracing():
            return assigned if not math.isnan(assigned.item()) else self._scheduled(self.schedule, step)
        return where(isnan(assigned), self._scheduled(self.schedule, step), assigned)

    def _scheduled(self, schedule: Schedule, step: Tensor) -> Tensor:
        rate = as_tensor(as_traced(schedule)(step))
        if rate.shape or kind_of(rate.dtype) not in ("float", "int"):
            raise ArgumentError("rate: the schedule must return a number", got=str(rate.spec),
                                hint="Return a float or a tensor of shape ().")
        return cast_to(rate, self.rate.dtype)


class Parameter:
    """A parameter, its rule and slots, and its group."""

    __slots__ = ("attrs", "group", "name", "rule", "slots", "variable")

    def __init__(
        self, name: str, variable: Variable, slots: tuple[Variable, ...], rule: Rule, attrs: dict[str, Any],
        group: Group,
    ) -> None:
        self.name = name
        self.variable = variable
        self.slots = slots
        self.rule = rule
        self.attrs = attrs
        self.group = group


_NO_RATE = "{}: the rate must be finite, and 0 at least"


def number(label: str, value: Any) -> float:
    """Check a learning rate and return it as a number.

    Raises:
        ArgumentError: it is negative or not finite.
    """
    rate = float(value)
    if not (math.isfinite(rate) and rate >= 0):
        raise ArgumentError(_NO_RATE.format(label), got=f"rate={value!r}")
    return rate


def number_of_a_call(label: str, value: Any) -> Any:
    """Check a learning rate as `number` does, in a trace by every call, and return it."""
    if type(value) is TracedNumber:
        return value.of(partial(number, label), (value,))
    if type(value) is StagedNumber:
        rate = as_tensor(value)
        add_check(logical_and(isfinite(rate), rate >= 0), ArgumentError, message(_NO_RATE.format(label)))
        return value
    return number(label, value)


def pattern_of(label: str, group: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return one entry of ``groups=`` as a dict.

    Raises:
        ArgumentTypeError: it is not a mapping with a pattern.
        ArgumentError: it has an unknown setting.
    """
    if not isinstance(group, Mapping) or not isinstance(cast(Any, group).get("match"), str):
        raise ArgumentTypeError(f"{label}: a group is a mapping with the pattern 'match'", got=repr(group)[:80],
                                hint='Write groups=[{"match": "*.bias", "decay": 0.0}].')
    given = dict(cast("Mapping[str, Any]", group))
    unknown = [name for name in given if name not in (*settings, "match", "rate")]
    if unknown:
        raise ArgumentError(f"{label}: a group cannot set {', '.join(unknown)}", got=repr(given)[:80],
                            hint=f"It may set {', '.join(['rate', *settings])}.")
    return given


def collected(label: str, target: Any) -> dict[str, Variable]:
    """Return the Variables of a nesting of Variables and models by name, in the order of `hf.tree`; each once.

    A Variable in a nesting has its path for a name, such as ``"layers.0.weight"``; in an iterable it has its own name.
    """
    if isinstance(target, Variable):
        target = [target]
    if not isinstance(target, Iterable):
        raise ArgumentTypeError(f"{label}: a {type(target).__name__} is no model and no Variables",
                                got=repr(target)[:80],
                                hint="Give a model, or Variables in any nesting of lists, tuples and dicts.")
    mapping = isinstance(target, Mapping)
    variables: dict[str, Variable] = {}
    for path, one in structures.with_paths(dict(target) if mapping else [*cast(Any, target)])[0]:
        if not isinstance(one, Variable):
            raise ArgumentTypeError(f"{label}: a {type(one).__name__} is no Variable", got=repr(one)[:80],
                                    hint="Give the Variables themselves, not their values.")
        label_of = jax.tree_util.keystr(path, simple=True, separator=".") if mapping or len(path) > 1 else one.name
        if any([known is one for known in variables.values()]):
            continue
        variables[label_of if label_of not in variables else f"{label_of}_{len(variables)}"] = one
    return variables


def has_one_order(tree: Any) -> bool:
    """Whether the leaves of a nesting are in the order in which its dicts were filled."""
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, Any]", tree)
        in_order = isinstance(tree, OrderedDict) or [*items] == sorted(items)
        return in_order and all(map(has_one_order, items.values()))
    return not isinstance(tree, list | tuple) or all(map(has_one_order, cast("list[Any]", tree)))
