"""Split the text of a graph into tokens, in time linear in its length for any text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>[^\S\n]+|\n)
      | (?P<comment>\#[^\n]*)
      | (?P<value>%\w+)
      | (?P<string>"(?:[^"\\\n]++|\\.)*+")
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d][\w.]*)
      | (?P<sign>->|//|\.\.\.|==|<=|>=|[()\[\]{}=:,+\-*%?<>])
      | (?P<other>.)""",
    re.VERBOSE,
)
_SHOWN = 60
"""The largest number of characters that a message shows of a token, and of a line on either side of an error."""
_LINE = re.compile(r":([0-9]{1,9})(?=\s|$)")


class Token(NamedTuple):
    """A piece of text.

    Attributes:
        kind: its kind; ``other`` is a character that begins no token, where reading stops.
        text: the text.
        position: the index of its first character.
        place: the file, line and name scope in the comment after it.
    """

    kind: str
    text: str
    position: int
    place: tuple[str, int, str] | None = None

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else shortened(repr(self.text))


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens; a comment that names a source line belongs to the token before it."""
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


def _place(comment: str) -> tuple[str, int, str] | None:
    """Return the file, line and name scope in a comment such as ``# file.py:31 encoder``, or None."""
    found = _LINE.search(comment)
    file = "" if found is None else comment[1 : found.start()].strip()
    return None if found is None or not file else (file, int(found[1]), comment[found.end() :].strip())


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
    """Return a text shortened for a message."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
