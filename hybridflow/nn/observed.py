"""Calls of modules that something observes: see `hybridflow.core.settings.Observer` and `core.module_calls`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hybridflow.core.functions import as_traced
from hybridflow.core.module_calls import ACTIVE, calls_here
from hybridflow.core.settings import SETTINGS
from hybridflow.nested.checkpoint import checkpoint


def called(module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that is computed again for its gradient, or observed, or both."""
    again = call if module.recomputed is None else checkpoint(call, policy=module.recomputed)
    if SETTINGS.observers or ACTIVE:
        return observed(module, again, args, kwargs)
    return again(*args, **kwargs)


def observed(module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module among its observers, and show them its result."""
    observers = (*SETTINGS.observers, *calls_here())
    with ExitStack() as stack:
        for one in observers:
            stack.enter_context(one.around(module))
        result = as_traced(call)(*args, **kwargs)
    for one in observers:
        one.result(module._path, module, result)
    return result


def observed_function(module: Any, name: str, result: Any) -> None:
    """Show the observers what a function in a module returned."""
    for one in SETTINGS.observers:
        one.result(f"{module._path}.{name}" if module._path else name, module, result)
