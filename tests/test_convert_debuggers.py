"""Debuggers and coverage tools find a converted function's lines in the user's file."""

from __future__ import annotations

import bdb
import sys
from typing import Any

import pytest

import hybridflow as hf

XS = hf.asarray([1.0, -1.0])


def total_of(xs):
    total = 0.0
    for x in xs:
        if x > 0:
            total = total + x
        else:
            total = (
                total
                - x
            )
        while total > 10:
            total = total / 2
            if total < 3:
                break
    return total


FIRST = total_of.__code__.co_firstlineno


def lines_of(run: Any) -> set[int]:
    """Return the lines of this file's function that run, as coverage tools see them."""
    seen: set[int] = set()

    def note(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "total_of" and event == "line":
            seen.add(frame.f_lineno - FIRST)
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        run()
    finally:
        sys.settrace(before)
    return seen


def test_every_line_that_is_traced_counts_as_run():
    eager = lines_of(lambda: total_of(hf.asarray([30.0, -1.0, 1.0])))
    never = {13}  # more than 10 halved is not less than 3, but a trace takes every way
    assert lines_of(lambda: hf.compile(total_of)(XS)) == eager | never


class Stops(bdb.Bdb):
    """Stops at a line, and collects what it sees there."""

    def __init__(self, line: int, names: tuple[str, ...]) -> None:
        super().__init__()
        assert self.set_break(__file__, line) is None
        self.line = line
        self.names = names
        self.seen: list[dict[str, Any]] = []

    def user_line(self, frame: Any) -> None:
        if frame.f_lineno == self.line and frame.f_code.co_filename == __file__:
            values = {**frame.f_globals, **frame.f_locals}
            self.seen.append({name: values[name] for name in self.names})
            assert frame.f_code.co_name == "total_of"
        self.set_continue()


@pytest.mark.parametrize(("line", "names"), [(4, ("total", "x")), (6, ("total", "x")), (11, ("total",)), (13, ())])
def test_breakpoints_stop_in_the_users_file(line: int, names: tuple[str, ...]):
    debugger = Stops(FIRST + line, names)
    compiled = hf.compile(total_of)
    debugger.runcall(compiled, XS)
    assert debugger.seen


@pytest.mark.filterwarnings("ignore::hybridflow.core.errors.EffectWarning")  # the hook looks at frames
def test_breakpoint_calls_stop_in_the_users_frame(monkeypatch: pytest.MonkeyPatch):
    frames: list[tuple[str, int, list[str]]] = []

    def hook() -> None:
        frame = sys._getframe(1)
        frames.append((frame.f_code.co_filename, frame.f_lineno, sorted(frame.f_locals)))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    @hf.compile
    def run(x):
        y = x * 2
        if y > 1:
            breakpoint()
            y = y + 1
        return y

    assert run(2.0) == 5.0
    ((file, line, names),) = frames
    assert (file, line) == (__file__, run.python_function.__code__.co_firstlineno + 4)
    assert "y" in names
