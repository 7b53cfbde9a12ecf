"""The bodies of a module's methods: parameters, modes, loading and saving of values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from hybridflow.core.assignments import assign_all
from hybridflow.core.attached import attached
from hybridflow.core.context import is_tracing, made_once
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TraceError
from hybridflow.core.tensor import as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nested.checkpoint_policies import checked_policy
from hybridflow.nn import tree

_SHOWN = 8
"""The largest number of paths of each kind that a message lists."""


def named_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters of a module by path, and make each a leaf of `.backward()` if it is not one yet."""
    contents = tree.named(module)
    for value in contents.leaves:
        if isinstance(value, Variable):
            if is_tracing():
                tree.take_for_parameter(value)
            value.require_gradient()
    return dict(zip(contents.plan.names, contents.leaves, strict=True))


def parameters(module: Any) -> list[Any]:
    """Return the parameters of a module."""
    return [*named_parameters(module).values()]


def named_buffers(module: Any) -> dict[str, Any]:
    """Return the buffers of a module by path."""
    return tree.named(module).buffers


def named_modules(module: Any) -> dict[str, Any]:
    """Return the modules in a module by path."""
    return tree.named(module).modules


def register_buffer(module: Any, name: str, value: Any) -> Variable:
    """Set an attribute to a new Variable that is not trained."""
    with made_once():
        made = Variable(value, name=name, trainable=False)
    setattr(module, name, made)
    return made


def _require_eager(what: str) -> None:
    if is_tracing():
        raise TraceError(f"{what}: a compiled function would do it when it is traced, and not at every call",
                         hint="Do it before the call; the function is traced once per mode.")


def set_mode(module: Any, mode: Any) -> None:
    """Set training or evaluation mode for a module and all modules in it."""
    _require_eager("train" if mode else "eval")
    if type(mode) is not bool:
        raise ArgumentTypeError("train: mode is True or False", got=repr(mode)[:80])
    for one in tree.found_in(module).modules.values():
        one.training = mode


def set_trainable(module: Any, pattern: str, trainable: bool) -> None:
    """Freeze or unfreeze the parameters whose paths match a pattern."""
    what = "unfreeze" if trainable else "freeze"
    _require_eager(what)
    known = named_parameters(module)
    matching = [one for path, one in known.items() if fnmatchcase(path, pattern)]
    if not matching:
        raise ArgumentError(f"{what}: no parameter matches {pattern!r}",
                            got=_listed([*known]) or "a module without parameters",
                            hint="Paths are dotted, such as \"blocks.0.*\"; sizes that are not known have none yet.")
    for one in matching:
        one.trainable = trainable


def set_recomputed(module: Any, pattern: str, policy: Any) -> None:
    """Set how the outermost modules whose paths match a pattern are computed again."""
    _require_eager("recompute")
    checked_policy(policy)
    known = named_modules(module)
    matching = [path for path in known if fnmatchcase(path, pattern)]
    if not matching:
        raise ArgumentError(f"recompute: no module matches {pattern!r}", got=_listed([*map(repr, known)]),
                            hint='Paths are dotted, such as "blocks.0"; "" is the model itself.')
    for path in matching:
        if not any(path != outer and path.startswith(f"{outer}." if outer else "") for outer in matching):
            known[path].recomputed = policy


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def _variables(module: Any) -> dict[str, Variable]:
    contents = tree.named(module)
    known = dict(zip(contents.plan.names, contents.leaves, strict=True))
    return {**known, **contents.buffers}


def state_dict(module: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return a snapshot of the parameters and buffers."""
    _require_eager("state_dict")
    return {path: np.array(one.numpy()) for path, one in _variables(module).items()}


def _is_pytorchs_count(path: Any, known: Mapping[str, Any]) -> bool:
    """Whether a path is the count of batches that PyTorch keeps beside running averages, which need it not."""
    head, _, name = str(path).rpartition("num_batches_tracked")
    return not name and path not in known and f"{head}running_mean" in known


def load_state_dict(module: Any, values: Any, strict: bool, mapping: Any) -> None:
    """Assign parameters and buffers, all or none."""
    _require_eager("load_state_dict")
    if not isinstance(values, Mapping):
        raise ArgumentTypeError("load_state_dict: the values are a mapping from paths", got=type(values).__name__)
    known, modules = _variables(module), tree.found_in(module).modules
    values = {path: value for path, value in values.items() if not _is_pytorchs_count(path, known)}
    if mapping is not None:
        arrays = {path: as_tensor(value).numpy() for path, value in values.items()}
        values = attached("renamed")(arrays, mapping, modules)
    for path, one in modules.items():
        for name, value in one.__dict__.items():
            if value is None and (where := f"{path}.{name}" if path else name) in values:
                raise ArgumentError(f"load_state_dict: the sizes of {type(one).__name__} {path!r} are not known yet",
                                    got=f"{where}: {np.shape(values[where])}",
                                    hint="Give the sizes, or call the model once before.")
    hint = None if mapping is not None or known.keys() == values.keys() else attached("step_for")(values, modules)
    assign_all(known, values, what="load_state_dict", strict=strict, hint=hint)


def deep_copy(whole: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a module or optimizer; objects shared inside it are shared in the copy."""
    made: Any = object.__new__(type(whole))
    memo[id(whole)] = made
    for name in ("_path", "_copied"):
        if hasattr(whole, name):
            setattr(made, name, getattr(whole, name))
    for name, value in vars(whole).items():
        made.__dict__[name] = copy.deepcopy(value, memo)
    return made


def not_pickled(whole: Any, named: str = "model") -> Exception:
    """Return the error for pickling a module or optimizer: reading a pickle runs code."""
    return ArgumentTypeError(f"pickle: {type(whole).__name__} is not pickled, its values are saved",
                             hint=f"Use hf.save(path, {named}) and hf.load(path, into={named}).")
