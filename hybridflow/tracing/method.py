"""A compiled function as the method of an instance."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from hybridflow.core.functions import is_of_users
from hybridflow.core.tracebacks import trimmed
from hybridflow.guards.input_signature import ConcreteFunction
from hybridflow.guards.signature import BoundCall
from hybridflow.ir.graph import Graph

if TYPE_CHECKING:
    from hybridflow.tracing.lowered import Lowered
    from hybridflow.tracing.replay import Replay


def pickled(compiled: Any, function: Any, options: dict[str, Any]) -> str | tuple[Any, ...]:
    """Return what `pickle` keeps: a name, as of functions, if it leads to what is pickled; else what makes it anew.

    Args:
        compiled: the compiled function.
        function: the function that it compiles.
        options: its options.
    """
    name = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is compiled else (_made_again, (type(compiled), function, options))


def _made_again(kind: type, function: Any, options: dict[str, Any]) -> Any:
    return kind(function, **options)


class CompiledMethod(BoundCall):
    """A compiled method of one living instance: calls go to the instance's own cache."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except Exception as error:
            raise trimmed(error)  # noqa: B904 (it is the same error)

    def graph(self, /, *args: Any, **kwargs: Any) -> Graph:
        """See `CompiledFunction.graph`."""
        return self.__func__.graph(self.__self__, *args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """See `CompiledFunction.lower`."""
        return self.__func__.lower(self.__self__, *args, **kwargs)

    def cost(self, /, *args: Any, **kwargs: Any) -> Any:
        """See `CompiledFunction.cost`."""
        return self.__func__.cost(self.__self__, *args, **kwargs)

    def replay(self, /, *args: Any, **kwargs: Any) -> Replay:
        """See `CompiledFunction.replay`."""
        return self.__func__.replay(self.__self__, *args, **kwargs)

    def concrete(self, *specs: Any) -> ConcreteFunction:
        """See `CompiledFunction.concrete`."""
        return self.__func__._concrete((self.__self__,), specs)

    @property
    def attributed(self) -> Any:
        """The function of the class, which has the attributes that the user set."""
        return self.__func__._descriptor or self.__func__

    def __getattr__(self, name: str) -> Any:
        function = self.attributed if is_of_users(self.__func__, name) else self.__func__
        return getattr(function, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompiledMethod):
            return NotImplemented
        return self.__self__ is other.__self__ and self.attributed is other.attributed

    def __hash__(self) -> int:
        return hash((id(self.__self__), id(self.attributed)))

    def __copy__(self) -> CompiledMethod:
        return self  # like a bound method of Python

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledMethod:
        # The copy has a cache of its own: an instance's traces hold what they read of that instance.
        return self.attributed.__get__(copy.deepcopy(self.__self__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, self.attributed._attribute or self.python_function.__name__)

    def __repr__(self) -> str:
        return f"<CompiledMethod {self.__func__!r} of {type(self.__self__).__name__}>"
