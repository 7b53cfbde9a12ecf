"""The kinds of values that a trace distinguishes: leaves, structures, and values that are compared by content."""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np

from hybridflow.core.functions import is_own
from hybridflow.core.held import is_by_fields
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.guards.guards import CHANGING, CONTAINERS, PLAIN
from hybridflow.guards.signature import is_array

_LEAVES = (np.dtype, np.generic, np.ufunc, Tensor, Variable, types.CodeType)
"""Types of values that guards do not look inside."""


def is_one_of_several(value: Any) -> bool:
    """Whether guards and signatures describe a value in a way that fits other objects too, and not by identity."""
    if isinstance(value, (*CONTAINERS, *CHANGING, frozenset, float, Variable)):
        return True
    return type(value) not in PLAIN and (is_array(value) or isinstance(value, Tensor) or is_by_fields(value))


def is_leaf(value: Any) -> bool:
    """Whether guards treat a value as a whole, without looking inside."""
    kind = type(value)
    if kind in PLAIN or kind in _LEAVES:
        return True
    if kind is types.BuiltinFunctionType:
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    if is_own(str(kind.__module__)):
        return not holds_attributes(value)
    return isinstance(value, Tensor | Variable | np.generic | jax.Array)


def holds_attributes(value: Any) -> bool:
    """Whether a value is an object of hybridflow on which users can set attributes, and thereby state."""
    return is_own(str(type(value).__module__)) and not isinstance(value, type) and hasattr(value, "__dict__")


def is_structure(value: Any) -> bool:
    """Whether a container among the arguments is compared by its content; others are compared by identity."""
    return isinstance(value, CONTAINERS) and not jax.tree_util.all_leaves((value,))
