"""The default graph, and the handles by which a program refers to its tensors and operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, cast

from hybridflow.core.attached import attached
from hybridflow.core.context import current
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import as_dtype, float16, float32, float64, int64
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TracedValueError, TraceError
from hybridflow.core.node import Node, name_scope
from hybridflow.core.tensor import Tensor as Value
from hybridflow.core.tensor import make_tensor
from hybridflow.ir.construction import Construction, construction_of
from hybridflow.ir.graph import Graph as Traced


class GraphKeys:
    """The names of collections."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    SUMMARIES = "summaries"
    LOSSES = "losses"
    UPDATE_OPS = "update_ops"
    REGULARIZATION_LOSSES = "regularization_losses"
    GLOBAL_STEP = "global_step"


class Graph:
    """A graph to which the functions of `hybridflow.compat.v1` add operations while it is the default.

    Attributes:
        traced: the `hf.Graph` behind it, which prints, draws and exports itself.

    Example:
        >>> import hybridflow.compat.v1 as tf
        >>> graph = tf.Graph()
        >>> with graph.as_default():
        ...     x = tf.placeholder(tf.float32, shape=[None], name="x")
        ...     y = x * 2.0
        >>> with tf.Session(graph=graph) as sess:
        ...     sess.run(y, feed_dict={x: [1.0, 2.0]})
        array([2., 4.], dtype=float32)
    """

    def __init__(self) -> None:
        self.traced = Traced("graph")
        self.construction: Construction = construction_of(self.traced)
        self.collections: dict[str, list[Any]] = {}
        self.named: dict[str, Any] = {}
        self.after: dict[Node, tuple[Operation, ...]] = {}
        self.controls: tuple[Operation, ...] = ()
        self.scope = ""
        self.holder: Any = None
        self.states: set[Any] = set()
        self.variable_scope: Any = None
        self._taken: dict[str, int] = {}

    @contextmanager
    def as_default(self) -> Generator[Graph]:
        """Make it the default graph of a block."""
        token = _ENTERED.set((*_ENTERED.get(), self))
        try:
            yield self
        finally:
            _ENTERED.reset(token)

    # -- names ------------------------------------------------------------------------------------------------

    def unique_name(self, name: str) -> str:
        """Return a name in the present scope that nothing has yet: ``x``, then ``x_1``."""
        full = f"{self.scope}/{name}" if self.scope else name
        count = self._taken.get(full, 0)
        unique = f"{full}_{count}" if count else full
        while count and unique in self._taken:
            count += 1
            unique = f"{full}_{count}"
        self._taken[full] = count + 1
        self._taken.setdefault(unique, 1)
        return unique

    @contextmanager
    def name_scope(self, name: str, *, unique: bool = True) -> Generator[str]:
        """Put the names of a block's operations under a name."""
        before = self.scope
        self.scope = self.unique_name(name) if unique else (f"{before}/{name}" if before else name)
        try:
            yield f"{self.scope}/"
        finally:
            self.scope = before

    def get_tensor_by_name(self, name: str) -> Tensor:
        """Return a tensor by its name, such as ``"x:0"``.

        Raises:
            KeyError: there is none.
        """
        base, _, index = name.partition(":")
        tensor = self.named.get(base)
        if not index.isdigit() or not isinstance(tensor, Tensor) or int(index):
            raise KeyError(f"the graph has no tensor {name!r}; names of tensors are such as 'x:0'")
        return tensor

    def get_operation_by_name(self, name: str) -> Operation:
        """Return an operation by its name, such as ``"init"``.

        Raises:
            KeyError: there is none.
        """
        operation = self.named.get(name)
        if operation is None:
            raise KeyError(f"the graph has no operation {name!r}")
        return operation if isinstance(operation, Operation) else operation.op

    def as_graph_element(self, name: Any) -> Any:
        """Return the tensor or operation of a name; anything else is returned unchanged."""
        if not isinstance(name, str):
            return name
        return self.get_tensor_by_name(name) if ":" in name else self.get_operation_by_name(name)

    # -- collections ------------------------------------------------------------------------------------------

    def add_to_collection(self, name: str, value: Any) -> None:
        """Add a value to a collection."""
        self.collections.setdefault(name, []).append(value)

    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """Return a collection's values as a new list; with a scope, those whose names begin with it."""
        values = self.collections.get(name, [])
        return [one for one in values if scope is None or getattr(one, "name", "").startswith(scope)]

    # -- adding operations ------------------------------------------------------------------------------------

    @contextmanager
    def control_dependencies(self, control_inputs: Sequence[Any]) -> Generator[None]:
        """Make every operation of a block wait for others: a run that needs it performs them first."""
        before = self.controls
        operations = [as_operation(one) for one in control_inputs]
        self.controls = (*before, *[one for one in operations if one is not None])
        try:
            yield
        finally:
            self.controls = before

    @contextmanager
    def adding(self) -> Generator[Construction]:
        """Add what a block computes to the graph."""
        with ExitStack() as stack:
            if current().tracer is None:
                stack.enter_context(self.traced)
            if self.scope:
                stack.enter_context(name_scope(self.scope))
            before = len(self.construction.nodes)
            yield self.construction
            for node in self.construction.nodes[before:] if self.controls else ():
                self.after[node] = self.controls

    def read(self, variable: Any) -> Value:
        """Return a Variable's value: what the operations that are waited for assign, else that of the run's start."""
        for operation in reversed(self.controls):
            assigned = operation.assigned(variable)
            if assigned is not None:
                return assigned.value
        return variable.state.read()

    def wrapped(self, value: Any, name: str) -> Any:
        """Return the result of a function with handles in place of tensors."""
        tensors: list[Tensor] = []

        def wrap(one: Any) -> Any:
            if not isinstance(one, Value):
                return one
            if one._value is not None and current().tracer is self.construction:
                one = make_tensor(None, self.construction.edge_of(one))
            handle = Tensor(self, one, name, len(tensors))
            tensors.append(handle)
            return handle

        result = mapped(wrap, value)
        if tensors:
            self.named.setdefault(name, tensors[0])
        return result


_DEFAULT = [Graph()]
_ENTERED: ContextVar[tuple[Graph, ...]] = ContextVar("graphs", default=())


def get_default_graph() -> Graph:
    """Return the graph to which operations are added: that of the innermost ``as_default()``, or the global one."""
    entered = _ENTERED.get()
    return entered[-1] if entered else _DEFAULT[0]


def reset_default_graph() -> None:
    """Begin a new global default graph.

    Raises:
        TraceError: inside of a graph's ``as_default()``.
    """
    if _ENTERED.get():
        raise TraceError("reset_default_graph: a graph's as_default() block is open",
                         hint="Call it outside of the block.")
    _DEFAULT[0] = Graph()


# -- handles ------------------------------------------------------------------------------------------------------


class Dimension(int):
    """A known size; `value` is the number."""

    @property
    def value(self) -> int:
        """The number."""
        return int(self)


class Open:
    """An open size; `value` is None."""

    value = None

    def __repr__(self) -> str:
        return "?"


class TensorShape(tuple[Any, ...]):
    """The sizes of a tensor as far as the graph knows them."""

    __slots__ = ()

    def as_list(self) -> list[int | None]:
        """Return the sizes, None where one is open."""
        return [None if isinstance(size, Open) else int(size) for size in self]

    @property
    def ndims(self) -> int:
        """The number of axes."""
        return len(self)


class Handle:
    """What tensors and Variables of a graph have in common."""

    __slots__ = ("__weakref__", "_name", "_op", "graph")
    __array_ufunc__ = None

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self._name = name
        self._op: Operation | None = None

    @property
    def name(self) -> str:
        """The name, such as ``x:0``."""
        return f"{self._name}:0"

    @property
    def op(self) -> Operation:
        """The operation that computes it."""
        if self._op is None:
            self._op = Operation(self.graph, self._name, (self,))
        return self._op

    def reading(self) -> Value:
        """Return the traced tensor, inside the block of the graph."""
        raise NotImplementedError

    def spec(self) -> Any:
        """Return shape and dtype."""
        raise NotImplementedError

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.spec().dtype

    def get_shape(self) -> TensorShape:
        """Return the sizes, as far as they are known."""
        return TensorShape([Open() if isinstance(size, Dim) else Dimension(size) for size in self.spec().shape])

    @property
    def shape(self) -> TensorShape:
        """The sizes, as far as they are known."""
        return self.get_shape()

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """Compute it in a session, the default one if none is given; returns a NumPy array."""
        return attached("session_or_default")(session, "eval").run(self, feed_dict)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self._no_value()

    def __bool__(self) -> bool:
        raise self._no_value()

    def __iter__(self) -> Any:
        raise ArgumentTypeError(f"{self.name}: it is not iterated over", got=str(self.spec()),
                                hint="Use tf.unstack(x).")

    def __len__(self) -> int:
        raise ArgumentTypeError(f"{self.name}: it has no len()", got=str(self.spec()), hint="Use tf.shape(x)[0].")

    def _no_value(self) -> Exception:
        return TracedValueError(f"{self.name}: it has a value only in a run", got=str(self.spec()),
                                hint="Fetch it: sess.run(x, feed_dict={...}); choose by it with tf.cond or tf.where.")

    def _with(self, function: Callable[..., Any], other: Any, name: str, *, swapped: bool = False) -> Tensor:
        return added(function, (other, self) if swapped else (self, other), {}, name)

    def __add__(self, other: Any) -> Tensor:
        return self._with(operator.add, other, "add")

    def __radd__(self, other: Any) -> Tensor:
        return self._with(operator.add, other, "add", swapped=True)

    def __sub__(self, other: Any) -> Tensor:
        return self._with(operator.sub, other, "sub")

    def __rsub__(self, other: Any) -> Tensor:
        return self._with(operator.sub, other, "sub", swapped=True)

    def __mul__(self, other: Any) -> Tensor:
        return self._with(operator.mul, other, "mul")

    def __rmul__(self, other: Any) -> Tensor:
        return self._with(operator.mul, other, "mul", swapped=True)

    def __truediv__(self, other: Any) -> Tensor:
        return self._with(operator.truediv, other, "truediv")

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._with(operator.truediv, other, "truediv", swapped=True)

    def __floordiv__(self, other: Any) -> Tensor:
        return self._with(operator.floordiv, other, "floordiv")

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self._with(operator.floordiv, other, "floordiv", swapped=True)

    def __mod__(self, other: Any) -> Tensor:
        return self._with(operator.mod, other, "mod")

    def __rmod__(self, other: Any) -> Tensor:
        return self._with(operator.mod, other, "mod", swapped=True)

    def __pow__(self, other: Any) -> Tensor:
        return self._with(operator.pow, other, "pow")

    def __rpow__(self, other: Any) -> Tensor:
        return self._with(operator.pow, other, "pow", swapped=True)

    def __matmul__(self, other: Any) -> Tensor:
        return self._with(operator.matmul, other, "matmul")

    def __rmatmul__(self, other: Any) -> Tensor:
        return self._with(operator.matmul, other, "matmul", swapped=True)

    def __and__(self, other: Any) -> Tensor:
        return self._with(operator.and_, other, "LogicalAnd")

    def __rand__(self, other: Any) -> Tensor:
        return self._with(operator.and_, other, "LogicalAnd", swapped=True)

    def __or__(self, other: Any) -> Tensor:
        return self._with(operator.or_, other, "LogicalOr")

    def __ror__(self, other: Any) -> Tensor:
        return self._with(operator.or_, other, "LogicalOr", swapped=True)

    def __xor__(self, other: Any) -> Tensor:
        return self._with(operator.xor, other, "LogicalXor")

    def __rxor__(self, other: Any) -> Tensor:
        return self._with(operator.xor, other, "LogicalXor", swapped=True)

    def __lt__(self, other: Any) -> Tensor:
        return self._with(operator.lt, other, "Less")

    def __le__(self, other: Any) -> Tensor:
        return self._with(operator.le, other, "LessEqual")

    def __gt__(self, other: Any) -> Tensor:
        return self._with(operator.gt, other, "Greater")

    def __ge__(self, other: Any) -> Tensor:
        return self._with(operator.ge, other, "GreaterEqual")

    def __getitem__(self, key: Any) -> Tensor:
        return added(operator.getitem, (self, key), {}, "strided_slice")

    def __neg__(self) -> Tensor:
        return added(operator.neg, (self,), {}, "Neg")

    def __abs__(self) -> Tensor:
        return added(operator.abs, (self,), {}, "Abs")

    def __invert__(self) -> Tensor:
        return added(operator.invert, (self,), {}, "LogicalNot")


class Tensor(Handle):
    """A tensor of a graph. It has a value only in a run. ``a == b`` says whether both are the same tensor."""

    __slots__ = ("index", "value")

    def __init__(self, graph: Graph, value: Value, name: str, index: int = 0) -> None:
        super().__init__(graph, name)
        self.value = value
        self.index = index

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.value.spec}>"

    @property
    def name(self) -> str:
        """The name, such as ``x:0``."""
        return f"{self._name}:{self.index}"

    def reading(self) -> Value:
        """Return the traced tensor."""
        return self.value

    def spec(self) -> Any:
        """Return shape and dtype."""
        return self.value.spec


class Operation:
    """Something that a run performs and that has no value: an initializer, a training step.

    Attributes:
        graph: its graph.
        name: its name.
        needs: what it computes and performs.
    """

    def __init__(self, graph: Graph, name: str, needs: Sequence[Any]) -> None:
        self.graph = graph
        self.name = name
        self.needs = tuple(needs)

    def __repr__(self) -> str:
        return f"<Operation {self.name!r}>"

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Perform it in a session, the default one if none is given."""
        attached("session_or_default")(session, "run").run(self, feed_dict)

    def assigned(self, variable: Any) -> Tensor | None:
        """Return the tensor that it assigns to a Variable, if it does."""
        for one in reversed(self.needs):
            if isinstance(one, Operation):
                assignment = one.assigned(variable)
                if assignment is not None:
                    return assignment
            elif isinstance(one, Tensor):
                assignment = _assigned_by(one, variable)
                if assignment is not None:
                    return assignment
        return None


def _assigned_by(tensor: Tensor, variable: Any) -> Tensor | None:
    """Return the assignment of a Variable among what a tensor is computed from."""
    construction = tensor.graph.construction
    for node in construction.needed([construction.own_edge(tensor.value)], set()):
        if construction.assignments.get(node) is variable.state:
            return Tensor(tensor.graph, make_tensor(None, (node, 0)), tensor._name)
    return None


def as_operation(value: Any) -> Operation | None:
    """Return what is performed for a value: an operation, or that of a tensor."""
    if value is None or isinstance(value, Operation):
        return value
    if isinstance(value, Handle):
        return value.op
    raise ArgumentTypeError(f"a {type(value).__name__} is no operation", got=repr(value)[:60],
                            hint="Pass operations or tensors.")


_DTYPES: dict[Any, Any] = {"float": float32, float: float32, "half": float16, "double": float64, int: int64}
"""Names that mean another dtype in TensorFlow than in NumPy."""


def dtype_of(dtype: Any) -> Any:
    """Return a dtype that is given as TensorFlow takes it: ``"float"`` is float32."""
    return as_dtype(_DTYPES.get(dtype, dtype) if isinstance(dtype, str | type) else dtype)


# -- functions of tensors -----------------------------------------------------------------------------------------


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a structure of lists, tuples and dicts with a function applied to what is in it."""
    if type(value) is list:
        return [mapped(function, one) for one in cast("list[Any]", value)]
    if isinstance(value, tuple):
        parts = [mapped(function, one) for one in cast("tuple[Any, ...]", value)]
        kind: Any = type(cast(Any, value))
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if type(value) is dict:
        return {key: mapped(function, one) for key, one in cast("dict[Any, Any]", value).items()}
    return function(value)


def added(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """Add to the graph what a function of tensors computes.

    Args:
        function: a function of hybridflow's tensors.
        args, kwargs: its arguments, with handles.
        name: the name of the operation.

    Returns:
        The result, with handles.

    Raises:
        ArgumentError: arguments are of two graphs.
    """
    graph = get_default_graph()

    def read(one: Any) -> Any:
        if not isinstance(one, Handle):
            return one
        if one.graph is not graph:
            raise ArgumentError(f"{name}: {one.name} is of another graph than the default one",
                                hint="Use it inside `with x.graph.as_default():`.")
        return one.reading()

    full = graph.unique_name(name)
    with graph.adding():
        result = function(*mapped(read, args), **mapped(read, kwargs))
        return graph.wrapped(result, full)


def lifted(function: Callable[..., Any], name: str, about: str = "") -> Callable[..., Any]:
    """Return a function of handles that adds a function of hybridflow to the default graph; it takes ``name=``."""
    default = name

    def call(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        return added(function, args, kwargs, name or default)

    call.__name__ = call.__qualname__ = default
    call.__doc__ = about or f"Add `{getattr(function, '__name__', default)}` to the default graph."
    return call
