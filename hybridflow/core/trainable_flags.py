"""The trainable flags of Variables, packed for guards."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from hybridflow.core.node import Node


class TrainableFlags:
    """The trainable flags of several Variables, packed into one number that is kept up to date.

    Attributes:
        value: two bits per Variable: whether a tape watches it, and whether `.backward()` reaches it.
    """

    __slots__ = ("__weakref__", "_variables", "value")

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = [weakref.ref(one) for one in variables]
        for one in variables:
            FLAGS.setdefault(one._leaf, weakref.WeakSet()).add(self)
        self.value = 0
        self.renew()

    def renew(self) -> None:
        """Read the flags from the Variables again."""
        value = 0
        for reference in self._variables:
            one = reference()
            value = value * 4 + (0 if one is None else one._trainable + 2 * (one._edge is not None))
        self.value = value


FLAGS: weakref.WeakKeyDictionary[Node, weakref.WeakSet[TrainableFlags]] = weakref.WeakKeyDictionary()
"""The flags to renew when a Variable becomes or stops being trainable, by the Variable's leaf."""
