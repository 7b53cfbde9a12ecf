"""The text of a graph cut into tokens, in a time that its length bounds, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>[^\S\n]+|\n)
      | (?P<comment>\#[^\n]*)
      | (?P<value>%\w+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d][\w.]*)
      | (?P<sign>->|//|\.\.\.|==|<=|>=|[()\[\]{}=:,+\-*%?<>])
      | (?P<other>.)""",
    re.VERBOSE,
)
_SHOWN = 60
"""The most characters of a token, and of a line on either side of an error, that a message shows."""
_DIGITS = 9
"""The most digits of a line number."""


class Token(NamedTuple):
    """A piece of text.

    Attributes:
        kind: what it is; ``other`` is a letter that begins none, after which nothing is read.
        text: the piece.
        position: where it begins.
        place: the file and line that the comment after it names.
    """

    kind: str
    text: str
    position: int
    place: tuple[str, int] | None = None

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else shortened(repr(self.text))


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens; a comment that names a line of source belongs to the token before it."""
    last: Token | None = None
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "space":
            continue
        if kind == "comment":
            if last is not None and (place := _place(match.group())) is not None:
                last = last._replace(place=place)
            continue
        if last is not None:
            yield last
        last = Token(kind, match.group(), match.start())
        if kind == "other":
            break
    if last is not None:
        yield last
    yield Token("end", "", len(text))


def _place(comment: str) -> tuple[str, int] | None:
    """Return the file and line of ``# file.py:31``."""
    file, colon, line = comment[1:].strip().rpartition(":")
    return (file, int(line)) if colon and file and line.isdecimal() and len(line) <= _DIGITS else None


def place_in(text: str, position: int) -> tuple[int, int, str]:
    """Return a position's line and column, and the line of text with a mark under the column, shortened."""
    begin = text.rfind("\n", 0, position) + 1
    line, column = text.count("\n", 0, position) + 1, position - begin + 1
    if position >= len(text):
        return line, column, ""
    end = text.find("\n", position)
    first = max(begin, position - _SHOWN)
    shown = text[first : min(len(text) if end < 0 else end, position + _SHOWN)]
    plain = "".join([one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in shown])
    return line, column, f"\n  {plain}\n  {' ' * (position - first)}^"


def shortened(text: str) -> str:
    """Return what a message shows of a piece of text."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
