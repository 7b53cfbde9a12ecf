"""A compiled function as the method of an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridflow.guards.input_signature import ConcreteFunction
from hybridflow.guards.signature import BoundCall
from hybridflow.ir.graph import Graph
from hybridflow.tracing.tracebacks import trimmed

if TYPE_CHECKING:
    from hybridflow.tracing.lowered import Lowered
    from hybridflow.tracing.replay import Replay


class CompiledMethod(BoundCall):
    """A compiled method of one living instance: calls go to the instance's own cache."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except Exception as error:
            raise trimmed(error)  # noqa: B904 (it is the same error)

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """See `CompiledFunction.graph`."""
        return self.__func__.graph(self.__self__, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """See `CompiledFunction.lower`."""
        return self.__func__.lower(self.__self__, *args, **kwargs)

    def cost(self, *args: Any, **kwargs: Any) -> Any:
        """See `CompiledFunction.cost`."""
        return self.__func__.cost(self.__self__, *args, **kwargs)

    def replay(self, *args: Any, **kwargs: Any) -> Replay:
        """See `CompiledFunction.replay`."""
        return self.__func__.replay(self.__self__, *args, **kwargs)

    def concrete(self, *specs: Any) -> ConcreteFunction:
        """See `CompiledFunction.concrete`."""
        return self.__func__._concrete((self.__self__,), specs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __repr__(self) -> str:
        return f"<CompiledMethod {self.__func__!r} of {type(self.__self__).__name__}>"
