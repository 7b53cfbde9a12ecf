"""What of its arguments a function needs to know while it is traced: numbers, and which Variables they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridflow.core.traced_float import NeedsNumber
from hybridflow.guards.signature import FLOAT, STATIC, VARIABLE, Leaf, Signature, floats_of, static_key
from hybridflow.ir.variables import NeedsIdentity


class Needs(NamedTuple):
    """Arguments that are constants of a function's traces.

    Attributes:
        numbers: positions among the floats.
        variables: positions among the distinct Variables.
    """

    numbers: frozenset[int] = frozenset()
    variables: frozenset[int] = frozenset()

    def and_of(self, signature: Signature, need: NeedsNumber | NeedsIdentity) -> Needs:
        """Return these needs and another one, which counts the arguments that these leave.

        Args:
            signature: the signature that knows nothing of needs.
            need: what a trace asked for.
        """
        if isinstance(need, NeedsIdentity):
            slots = sorted({leaf.key[1] for leaf in signature.leaves if leaf.kind == VARIABLE} - self.variables)
            return self._replace(variables=self.variables | {slots[need.slot]})
        left = [i for i in range(len(floats_of(signature))) if i not in self.numbers]
        # The other floats are outside of the arguments.
        return self._replace(numbers=self.numbers | {left[i] for i in need.arguments if i < len(left)})

    def met_by(self, signature: Signature) -> Signature:
        """Return a signature in which the arguments that are needed count by value, or by which Variable they are."""
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
