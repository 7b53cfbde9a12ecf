"""Python functions that run inside XLA programs: their order, and their exceptions.

An exception must not reach XLA, or every later ordered callback of the process would fail with it. So each call of a
program with Python functions is a session, and the session's number is an additional input of the program. If a
function raises, the session stores the exception and returns zeros. From then on it calls no more functions, and loops
around such functions end. The caller waits for the program and then raises the exception.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import ordered_callback

HostFunction = Callable[..., Any]
"""A function that takes NumPy arrays and returns a sequence of them."""

_numbers = itertools.count(1)
_failures: dict[int, BaseException | None] = {}
"""The exception of the first function that failed, or None, for each running session."""
_SESSION: ContextVar[Any] = ContextVar("hybridflow session", default=None)
"""The program's input that holds the session's number, while the program is lowered."""

SESSION_SPEC = jax.ShapeDtypeStruct((), np.int32)


def host_call(function: HostFunction, results: Sequence[Any], *arrays: Any) -> Any:
    """Lower a call of a Python function.

    Args:
        function: a function that takes the arrays' values, which it must not keep, and returns one array per result.
        results: a `jax.ShapeDtypeStruct` per result.
        *arrays: the arguments.
    """
    session = _SESSION.get()
    if session is None:
        session = np.int32(0)

    def run(number: Any, *values: Any) -> Any:
        key = int(number)
        if _failures.get(key) is None:
            try:
                return function(*[np.asarray(value) for value in values])
            except BaseException as error:
                if key not in _failures:
                    raise  # no session would report it: the program was lowered by other code
                _failures[key] = error
        return [np.zeros(result.shape, result.dtype) for result in results]

    return ordered_callback(run, list(results), session, *arrays)


def goes_on() -> Any:
    """Lower a bool that says whether no Python function of this session has failed so far."""
    session = _SESSION.get()
    if session is None:
        return np.True_
    result = jax.ShapeDtypeStruct((), np.bool_)
    return ordered_callback(lambda number: np.asarray(_failures.get(int(number)) is None), result, session)


def session_argument() -> Any:
    """Return the input of the program being lowered that holds the session's number, or None without a session."""
    return _SESSION.get()


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to lower, with the session's number as an additional last argument."""

    def lowered(*arguments: Any) -> Any:
        token = _SESSION.set(arguments[-1])
        try:
            return function(*arguments[:-1])
        finally:
            _SESSION.reset(token)

    lowered.__name__ = function.__name__
    return lowered


def run_session(call: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Run a program that calls Python functions, and wait until it ends.

    Raises:
        BaseException: the exception of the first function that failed, with the traceback of the user's code.
    """
    number = next(_numbers) % (1 << 31)
    _failures[number] = None
    try:
        outputs = call(*arrays, np.int32(number))
        jax.block_until_ready(outputs)
        jax.effects_barrier()
        error = _failures[number]
    finally:
        del _failures[number]
    if error is not None:
        raise error.with_traceback(None if error.__traceback__ is None else error.__traceback__.tb_next)
    return outputs
