"""The one object that converted code refers to."""

from __future__ import annotations

from types import CellType
from typing import Any

from hybridflow.tracing import observe
from hybridflow.tracing.convert import callee as callees


class Runtime:
    """What a converted function calls in place of Python's own operations.

    Values to store come first, as Python evaluates them before the places they go to.
    """

    __slots__ = ("cells", "namespace")

    def __init__(self, namespace: dict[str, Any], cells: dict[str, CellType]) -> None:
        self.namespace = namespace
        self.cells = cells

    # -- reads ------------------------------------------------------------------------------------------------

    def read_global(self, name: str, value: Any) -> Any:
        """Read a global or builtin name."""
        return observe.read_global(self.namespace, name, value)

    def read_free(self, name: str, value: Any) -> Any:
        """Read a name of a function around the converted one."""
        return observe.read_free(self.cells[name], name, value)

    def read_attr(self, obj: Any, name: str) -> Any:
        """Read an attribute; a property's getter is converted."""
        getter = callees.getter_of(obj, name)
        return observe.read_attr(obj, name) if getter is None else getter(obj)

    def read_item(self, obj: Any, key: Any) -> Any:
        """Read an item."""
        return observe.read_item(obj, key)

    slice = slice

    def iterate(self, obj: Any) -> Any:
        """Return what a loop runs over."""
        return observe.iterate(obj)

    def callee(self, function: Any) -> Any:
        """Return what to call in place of a function."""
        return callees.callee(function)

    def without_temporaries(self, names: Any) -> Any:
        """Return what ``locals()`` or ``dir()`` gave, without the names that the conversion made."""
        if isinstance(names, list):
            return [name for name in names if not name.startswith(".")]
        return {name: value for name, value in names.items() if not name.startswith(".")}

    # -- writes -----------------------------------------------------------------------------------------------

    def augmented_attr(self, obj: Any, name: str) -> Any:
        """Read the attribute that an augmented assignment is about to write."""
        return observe.augmented_attr(obj, name)

    def augmented_item(self, obj: Any, key: Any) -> Any:
        """Read the item that an augmented assignment is about to write."""
        return observe.augmented_item(obj, key)

    def augment(self, target: Any, operand: Any) -> Any:
        """Return the operand of ``target += operand``, noted if that changes the target itself."""
        if type(target) in callees.CONTAINERS:
            observe.before_call(callees.changing_method(target), (operand,), {})
        return operand

    def write_attr(self, value: Any, obj: Any, name: str, augmented: bool = False) -> None:
        """Store an attribute."""
        observe.write_attr(obj, name, value, augmented=augmented)

    def write_item(self, value: Any, obj: Any, key: Any, augmented: bool = False) -> None:
        """Store an item."""
        observe.write_item(obj, key, value, augmented=augmented)

    def delete_attr(self, obj: Any, name: str) -> None:
        """Delete an attribute."""
        observe.delete_attr(obj, name)

    def delete_item(self, obj: Any, key: Any) -> None:
        """Delete an item."""
        observe.delete_item(obj, key)

    def write_global(self, name: str, value: Any, augmented: bool = False) -> Any:
        """Return the value to store to a global name."""
        return observe.write_global(self.namespace, name, value, augmented=augmented)

    def delete_global(self, name: str, _: Any) -> None:
        """Note that a global name is deleted."""
        observe.delete_global(self.namespace, name)

    def write_free(self, name: str, value: Any, augmented: bool = False) -> Any:
        """Return the value to store to a name of a function around the trace."""
        return observe.write_free(self.cells[name], name, value, augmented=augmented)

    def delete_free(self, name: str, _: Any) -> None:
        """Note that a name of a function around the trace is deleted."""
        observe.delete_free(self.cells[name], name)
