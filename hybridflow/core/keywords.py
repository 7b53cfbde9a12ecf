"""Keywords of other packages, such as ``dim=``: map each to ours, or raise an error that says what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypedDict, cast

from hybridflow.core.errors import ArgumentTypeError, message
from hybridflow.core.foreign_names import KEYWORDS

_ROWS = {row.name: row for row in KEYWORDS}


class Other(TypedDict, total=False):
    """The foreign keywords that functions with axes accept, for type checkers; at run time all of `KEYWORDS` work."""

    dim: Any
    dims: Any
    keepdim: bool


def our_keyword(function: str, keyword: str, names: Collection[str], given: Collection[str] = ()) -> str:
    """Return a function's keyword that means the same as a keyword of another package.

    Args:
        function: the function's name.
        keyword: the foreign keyword.
        names: the function's own keywords.
        given: the own keywords that the call passes.

    Raises:
        ArgumentTypeError: if there is none.
    """
    row = _ROWS.get(keyword)
    hint = f"It takes: {', '.join(names)}."
    if row is not None:
        names_ = [name for name in row.ours if name in names]
        if names_ and (function not in row.but or row.unless in given):
            return names_[0]
        hint = row.but.get(function, row.instead)
    raise ArgumentTypeError(message(f"{function}: takes no keyword {keyword!r}", hint=hint))


def respelled(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a public function again, with foreign keywords replaced by its own.

    Args:
        function: the function.
        given: its arguments by name; the keywords that it does not know are under ``other``.

    Raises:
        ArgumentTypeError: if a keyword means nothing here, or an argument is given twice.
    """
    name = cast(Any, function).__name__
    parameters = inspect.signature(function).parameters
    kinds = inspect.Parameter
    own = [one for one, p in parameters.items() if p.kind not in (kinds.POSITIONAL_ONLY, kinds.VAR_KEYWORD)]
    other = given.pop("other")
    settled = [one for one in own if given[one] is not parameters[one].default]
    for keyword, value in other.items():
        if value is None and keyword in _ROWS:
            continue  # NumPy's functions call methods with out=None
        ours = our_keyword(name, keyword, own, settled)
        if ours in settled:
            raise ArgumentTypeError(message(f"{name}: {ours} is given twice", got=f"{ours}=, {keyword}="))
        given[ours] = value
    args = [given[one] for one, p in parameters.items() if p.kind is kinds.POSITIONAL_ONLY]
    return function(*args, **{one: given[one] for one in own})
