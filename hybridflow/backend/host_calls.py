"""Python functions that run inside XLA programs: their order, and what happens when one raises.

An exception must not reach XLA, which would answer every later ordered callback of the process with it. So each call
of a program with Python functions in it is a session, whose number is one more input of the program. A function
that raises leaves its exception with the session and gives zeros; from then on the session calls nothing more, loops
around such functions end, and the caller, who waits for the program, gets the exception as it was raised.
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
"""Takes NumPy arrays, returns a sequence of them."""

_numbers = itertools.count(1)
_failures: dict[int, BaseException | None] = {}
"""Per session that is running, what its first failing function raised."""
_SESSION: ContextVar[Any] = ContextVar("hybridflow session", default=None)
"""While a program is lowered: its input that holds the session's number."""

SESSION_SPEC = jax.ShapeDtypeStruct((), np.int32)


def host_call(function: HostFunction, results: Sequence[Any], *arrays: Any) -> Any:
    """Lower a call of a Python function.

    Args:
        function: takes the arrays' values (which it must not keep) and returns one array per result.
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
                    raise  # nobody asks for it: a program that was lowered by other means
                _failures[key] = error
        return [np.zeros(result.shape, result.dtype) for result in results]

    return ordered_callback(run, list(results), session, *arrays)


def goes_on() -> Any:
    """Lower the question whether no Python function of this session has failed."""
    session = _SESSION.get()
    if session is None:
        return np.True_
    result = jax.ShapeDtypeStruct((), np.bool_)
    return ordered_callback(lambda number: np.asarray(_failures.get(int(number)) is None), result, session)


def session_argument() -> Any:
    """Return the program's input that holds the session's number; None if it has none."""
    return _SESSION.get()


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to lower whose last argument is the session's number."""

    def lowered(*arguments: Any) -> Any:
        token = _SESSION.set(arguments[-1])
        try:
            return function(*arguments[:-1])
        finally:
            _SESSION.reset(token)

    lowered.__name__ = function.__name__
    return lowered


def run_session(call: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Run a program with Python functions in it to its end.

    Raises:
        BaseException: what the first of them that failed raised, with the traceback of the user's code.
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
