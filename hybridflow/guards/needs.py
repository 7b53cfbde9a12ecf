"""The arguments whose values or identities a function needs while it is traced: numbers and Variables."""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridflow.core.dims import NeedsSizes
from hybridflow.core.traced_number import NeedsNumber
from hybridflow.guards.signature import (
    NUMBER,
    NUMBER_KEYS,
    STATIC,
    VARIABLE,
    Leaf,
    Signature,
    argument_numbers,
    static_key,
)
from hybridflow.guards.storable import NeedsGiven, NeedsPython
from hybridflow.ir.variables import NeedsIdentity

RESTARTS = (NeedsNumber, NeedsIdentity, NeedsSizes, NeedsGiven, NeedsPython)
"""What makes a trace start again, or end."""


class Needs(NamedTuple):
    """The arguments that are constants of a function's traces.

    Attributes:
        numbers: their positions among the numbers that are inputs.
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
        remaining = [i for i in range(len(argument_numbers(signature))) if i not in self.numbers]
        # The other positions belong to numbers outside the arguments.
        return self._replace(numbers=self.numbers | {remaining[i] for i in need.arguments if i < len(remaining)})

    def met_by(self, signature: Signature) -> Signature:
        """Return the signature with the needed arguments as constants: numbers by value, Variables by identity."""
        leaves: list[Leaf] = []
        position = 0
        slots: dict[int, int] = {}
        for leaf in signature.leaves:
            if leaf.kind == NUMBER:
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


class SeenInts:
    """The ints among the arguments of one function: inputs of its traces once a second value is seen.

    An int is often an axis or a size, which the code needs as a number: the first one is a constant.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, dict[int, int]] = {}
        self._inputs: dict[Any, frozenset[int]] = {}

    def with_inputs(self, signature: Signature) -> Signature:
        """Return a signature in which the ints that have changed are inputs."""
        inputs = self._inputs.get(signature.key[:2]) if self._inputs else None
        if not inputs:
            return signature
        leaves = [
            leaf._replace(kind=NUMBER, key=NUMBER_KEYS[int]) if position in inputs and _is_int(leaf) else leaf
            for position, leaf in enumerate(signature.leaves)
        ]
        return signature._replace(leaves=leaves, key=(*signature.key[:2], tuple([leaf[3] for leaf in leaves])))

    def note(self, signature: Signature) -> Signature:
        """Remember the ints of a call that is about to be traced, and return its signature with its inputs."""
        structure = signature.key[:2]
        seen = self._seen.setdefault(structure, {})
        ints = {position: leaf.value for position, leaf in enumerate(signature.leaves) if _is_int(leaf)}
        changed = [position for position, value in ints.items() if seen.setdefault(position, value) != value]
        if changed:
            self._inputs[structure] = self._inputs.get(structure, frozenset()).union(changed)
        return self.with_inputs(signature)

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
        self._inputs.clear()


def _is_int(leaf: Leaf) -> bool:
    """Whether a leaf is an int that counts by its value, and is not static."""
    return leaf.kind == STATIC and leaf.key[1] is int
