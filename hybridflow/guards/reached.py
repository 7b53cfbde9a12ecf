"""Names for the Variables of a trace; a Variable without a name of its own is named by how it was reached."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hybridflow.guards.signature import VARIABLE, Leaf
from hybridflow.ir.variables import VariableState

_AUTOMATIC = re.compile(r"variable_\d+")
_GRADIENT = ".grad"


def shown_names(
    states: Sequence[VariableState], named: Iterable[Leaf], paths: Mapping[int, str]
) -> tuple[str, ...]:
    """Return a text for each Variable: its name, or its path if it has no name or another one has the same.

    Args:
        states: the Variables, as the trace sees them.
        named: the arguments' leaves with their paths.
        paths: the paths of Variables outside the arguments, by id.
    """
    slots = {leaf.key[1]: leaf.path for leaf in reversed([*named]) if leaf.kind == VARIABLE}
    names = [state.variable.name for state in states]
    count = Counter(names)
    texts: dict[str, str] = {}
    shown: list[str] = []
    for state, name in zip(states, names, strict=True):
        path = paths.get(id(state.captured)) if state.slot is None else slots.get(state.slot)
        unclear = _AUTOMATIC.fullmatch(name) is not None or count[name] > 1
        text = path if unclear and path is not None and not state.of_gradient else name
        texts.setdefault(name, text)
        shown.append(text)
    return tuple([
        texts.get(text.removesuffix(_GRADIENT), text.removesuffix(_GRADIENT)) + _GRADIENT if state.of_gradient else text
        for state, text in zip(states, shown, strict=True)
    ])
