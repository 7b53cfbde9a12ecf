"""The arguments whose values or identities a function needs while it is traced: floats and Variables."""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridflow.core.dims import NeedsSizes
from hybridflow.core.traced_float import NeedsNumber
from hybridflow.guards.signature import FLOAT, STATIC, VARIABLE, Leaf, Signature, floats_of, static_key
from hybridflow.guards.storable import NeedsGiven
from hybridflow.ir.variables import NeedsIdentity

RESTARTS = (NeedsNumber, NeedsIdentity, NeedsSizes, NeedsGiven)
"""What makes a trace start again."""


class Needs(NamedTuple):
    """The arguments that are constants of a function's traces.

    Attributes:
        numbers: their positions among the floats.
        variables: their positions among the distinct Variables.
        given: whether lists and dicts among the arguments must be the caller's own.
    """

    numbers: frozenset[int] = frozenset()
    variables: frozenset[int] = frozenset()
    given: bool = False

    def and_of(self, signature: Signature, need: NeedsNumber | NeedsIdentity | NeedsGiven) -> Needs:
        """Return these needs plus another one.

        Args:
            signature: the signature without any needs.
            need: what a trace asked for; its positions skip the arguments that are constants already.
        """
        if isinstance(need, NeedsGiven):
            assert not self.given  # or the trace would restart for ever
            return self._replace(given=True)
        if isinstance(need, NeedsIdentity):
            slots = sorted({leaf.key[1] for leaf in signature.leaves if leaf.kind == VARIABLE} - self.variables)
            return self._replace(variables=self.variables | {slots[need.slot]})
        remaining = [i for i in range(len(floats_of(signature))) if i not in self.numbers]
        # The other positions belong to floats outside the arguments.
        return self._replace(numbers=self.numbers | {remaining[i] for i in need.arguments if i < len(remaining)})

    def met_by(self, signature: Signature) -> Signature:
        """Return the signature with the needed arguments as constants: floats by value, Variables by identity."""
        leaves: list[Leaf] = []
        position = 0
        slots: dict[int, int] = {}
        for leaf in signature.leaves:
            if leaf.kind == FLOAT:
                if position in self.numbers:
                    leaf = _constant(leaf)
                position += 1
            elif leaf.kind == VARIABLE and leaf.key[1] in self.variables:
                leaf = _constant(leaf)
            elif leaf.kind == VARIABLE and self.variables:
                slot = slots.setdefault(leaf.key[1], len(slots))
                leaf = leaf._replace(key=(VARIABLE, slot, *leaf.key[2:]))
            leaves.append(leaf)
        names, trees, _ = signature.key
        return signature._replace(leaves=leaves, key=(names, trees, tuple([leaf[3] for leaf in leaves])))


def _constant(leaf: Leaf) -> Leaf:
    key: Any = (STATIC, *static_key(leaf.value))
    return leaf._replace(kind=STATIC, key=key)
