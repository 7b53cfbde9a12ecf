"""Variables of a graph: their scopes, their initial values, their assignments."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow.compat.v1.functions import constant, glorot_uniform_initializer
from hybridflow.compat.v1.graph import Graph, GraphKeys, Handle, Operation, Tensor, added, dtype_of, get_default_graph
from hybridflow.core.attached import attached
from hybridflow.core.context import context_of
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.tensor import Tensor as Value
from hybridflow.core.tensor import as_tensor
from hybridflow.core.variable import Variable as State

AUTO_REUSE = "AUTO_REUSE"
"""For ``reuse=`` of `variable_scope`: take the Variable that has the name, or make it."""


class Variable(Handle):
    """A Variable of the default graph. A session gives it a value by running its initializer.

    Args:
        initial_value: a value, or a tensor of the graph, which the initializer computes; or a function that returns
            one.
        trainable: whether optimizers change it if they are not given Variables.
        name: its name; ``Variable`` if not given.
        dtype: the dtype to convert the initial value to.
        collections: the names of collections to add it to.

    Raises:
        ShapeError: the initial value has an open size.

    Example:
        >>> import hybridflow.compat.v1 as tf
        >>> with tf.Graph().as_default():
        ...     w = tf.Variable(tf.ones([2]), name="w")
        ...     with tf.Session() as sess:
        ...         sess.run(tf.global_variables_initializer())
        ...         sess.run(w * 3.0)
        array([3., 3.], dtype=float32)
    """

    __slots__ = ("initial_value", "initializer", "state", "trainable")

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool = True,
        collections: Any = None,
        validate_shape: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        del validate_shape  # shapes are always known
        graph = get_default_graph()
        if initial_value is None:
            raise ArgumentError("Variable: it needs an initial value", hint="Write tf.Variable(value).")
        with graph.name_scope(name or "Variable"):
            if callable(initial_value) and not isinstance(initial_value, Handle):
                initial_value = initial_value()
            initial = constant(initial_value) if not isinstance(initial_value, Handle) else initial_value
            result_dtype = initial.dtype if dtype is None else dtype_of(dtype)
            if initial.dtype != result_dtype:
                initial = added(lambda value: hf.astype(value, result_dtype), (initial,), {}, "initial_value")
            self._fill(graph, graph.scope, initial, trainable)
            self.initializer = _assignment(self, initial, "Assign").op
        for key in collections or [GraphKeys.GLOBAL_VARIABLES]:
            graph.add_to_collection(key, self)
        if trainable:
            graph.add_to_collection(GraphKeys.TRAINABLE_VARIABLES, self)

    def _fill(self, graph: Graph, name: str, initial_value: Handle, trainable: bool) -> None:
        super().__init__(graph, name)
        self.trainable = trainable
        self.initial_value = initial_value
        spec = initial_value.spec()
        if any([isinstance(size, Dim) for size in spec.shape]):
            raise ShapeError(f"Variable: the initial value of {name!r} has an open size", got=str(spec),
                             hint="Give all of its sizes.")
        with context_of(None):
            self.state = State(np.zeros(spec.shape, spec.dtype), name=name, trainable=trainable)
        graph.states.add(self.state)

    def __repr__(self) -> str:
        return f"<Variable {self.name!r} {self.state.spec}>"

    def reading(self) -> Value:
        """Return the traced value."""
        return self.graph.read(self)

    def spec(self) -> Any:
        """Return shape and dtype."""
        return self.state.spec

    def value(self) -> Tensor:
        """Return its value as a tensor."""
        return added(as_tensor, (self,), {}, "read")

    read_value = value

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None) -> Tensor:
        """Add an assignment; a run that needs the result performs it.

        Args:
            value: the new value.
            use_locking: without effect: a run assigns all its Variables or none of them.
            name: the operation's name.
        """
        del use_locking
        return _assignment(self, value, name or "Assign")

    def assign_add(self, delta: Any, use_locking: bool = False) -> Tensor:
        """Add an assignment of the sum of the value and a change."""
        del use_locking
        return _assignment(self, self + delta, "AssignAdd")

    def assign_sub(self, delta: Any, use_locking: bool = False) -> Tensor:
        """Add an assignment of the difference of the value and a change."""
        del use_locking
        return _assignment(self, self - delta, "AssignSub")

    def load(self, value: Any, session: Any = None) -> None:
        """Assign a value in a session at once."""
        attached("session_or_default")(session, "load").load({self: value})


def _assignment(variable: Variable, value: Any, name: str) -> Tensor:
    return added(variable.state.assign, (value,), {}, name)


def assign(ref: Variable, value: Any, name: str | None = None) -> Tensor:
    """Add an assignment of a Variable; a run that needs the result performs it."""
    return ref.assign(value, name=name)


def assign_add(ref: Variable, value: Any) -> Tensor:
    """Add an assignment of the sum of a Variable and a change."""
    return ref.assign_add(value)


def assign_sub(ref: Variable, value: Any) -> Tensor:
    """Add an assignment of the difference of a Variable and a change."""
    return ref.assign_sub(value)


def global_variables(scope: str | None = None) -> list[Variable]:
    """Return the Variables of the default graph; with a scope, those whose names begin with it."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """Return the Variables that optimizers change."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def variables_initializer(var_list: Any, name: str = "init") -> Operation:
    """Return the operation that gives Variables their initial values."""
    graph = get_default_graph()
    operation = Operation(graph, graph.unique_name(name), [one.initializer for one in var_list])
    graph.named[operation.name] = operation
    return operation


def global_variables_initializer() -> Operation:
    """Return the operation that gives the Variables made so far their initial values."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """Return an operation that does nothing: no function here makes local Variables."""
    return variables_initializer([], "init_local")


# -- scopes -------------------------------------------------------------------------------------------------------


class VariableScope:
    """A scope of names of Variables.

    Attributes:
        name: the name.
        reuse: whether `get_variable` returns existing Variables: False, True or `AUTO_REUSE`.
        initializer: the initializer of Variables that are given none.
    """

    def __init__(self, name: str, reuse: Any, initializer: Any = None) -> None:
        self.name = name
        self.reuse = reuse
        self.initializer = initializer

    def reuse_variables(self) -> None:
        """Return existing Variables from now on."""
        self.reuse = True


def get_variable_scope() -> VariableScope:
    """Return the present scope."""
    graph = get_default_graph()
    if graph.variable_scope is None:
        graph.variable_scope = VariableScope("", False)
    return graph.variable_scope


@contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: str | None = None,
    initializer: Any = None,
    reuse: Any = None,
) -> Generator[VariableScope]:
    """Put the Variables and operations of a block under a name.

    Args:
        name_or_scope: a name inside of the present scope, a scope to go back to, or None for a new name made from
            `default_name`.
        default_name: see above.
        initializer: the initializer of Variables that are given none.
        reuse: whether `get_variable` returns existing Variables: None is as outside, True asks for them, `AUTO_REUSE`
            makes them if needed.
    """
    graph, outer = get_default_graph(), get_variable_scope()
    if isinstance(name_or_scope, VariableScope):
        name, reuse = name_or_scope.name, name_or_scope.reuse if reuse is None else reuse
        initializer = initializer or name_or_scope.initializer
    else:
        short = name_or_scope
        if short is None:
            if default_name is None:
                raise ArgumentError("variable_scope: no name is given", hint="Write variable_scope('name').")
            number, short = 0, default_name
            while any([one.name.startswith(f"{_joined(outer.name, short)}/") for one in global_variables()]):
                number += 1
                short = f"{default_name}_{number}"
        name = _joined(outer.name, short)
    scope = VariableScope(name, reuse if reuse is not None else outer.reuse, initializer or outer.initializer)
    before = graph.scope
    graph.scope = name or graph.scope
    graph.variable_scope = scope
    try:
        yield scope
    finally:
        graph.scope, graph.variable_scope = before, outer


def _joined(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name


@contextmanager
def name_scope(name: str, default_name: str | None = None, values: Any = None) -> Generator[str]:
    """Put the names of a block's operations under a name; `get_variable` is not affected."""
    del values
    with get_default_graph().name_scope(name or default_name or "scope") as scope:
        yield scope


def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = float32,
    initializer: Any = None,
    trainable: bool = True,
    collections: Any = None,
) -> Variable:
    """Return the Variable of a name in the present `variable_scope`, or make it.

    Args:
        name: its name.
        shape: its sizes; None if the initializer is a value.
        dtype: its dtype.
        initializer: a function of shape and dtype, such as `random_normal_initializer`, or a value. Without one it is
            `glorot_uniform_initializer`, for integers zeros.
        trainable: as for `Variable`.
        collections: as for `Variable`.

    Raises:
        ArgumentError: it exists and the scope does not reuse, it does not exist and the scope must reuse, or it has
            another shape or dtype.
    """
    graph, scope = get_default_graph(), get_variable_scope()
    full = _joined(scope.name, name)
    existing = next((one for one in global_variables() if one._name == full), None)
    if existing is None and scope.reuse is True:
        raise ArgumentError(f"get_variable: there is no Variable {full!r} to reuse", hint="Write reuse=tf.AUTO_REUSE.")
    if existing is not None:
        _fits(existing, full, scope, shape, dtype)
        return existing
    start = initializer if initializer is not None else scope.initializer
    before, graph.scope = graph.scope, scope.name
    try:
        variable = Variable(_start(full, start, shape, dtype), trainable, collections, name=name, dtype=dtype)
    finally:
        graph.scope = before
    variable._name = full
    return variable


def _fits(found: Variable, full: str, scope: VariableScope, shape: Any, dtype: Any) -> None:
    if scope.reuse is False:
        raise ArgumentError(f"get_variable: there is a Variable {full!r} already", got=str(found.spec()),
                            hint="Write `with tf.variable_scope(name, reuse=tf.AUTO_REUSE):` to share it.")
    expected = found.spec().shape if shape is None else tuple(shape if isinstance(shape, list | tuple) else (shape,))
    if tuple([int(size) for size in expected]) != found.spec().shape or dtype_of(dtype) != found.dtype:
        raise ArgumentError(
            f"get_variable: {full!r} is {found.spec()}, asked for is {dtype_of(dtype)} of shape {expected}",
            hint="Ask for the same shape and dtype."
        )


def _start(full: str, initializer: Any, shape: Any, dtype: Any) -> Any:
    if initializer is not None and not callable(initializer):
        return initializer
    if shape is None:
        raise ArgumentError(f"get_variable: the shape of {full!r} is not given", hint="Write shape=[...].")
    if initializer is None:
        floats = np.issubdtype(dtype_of(dtype), np.inexact)
        initializer = glorot_uniform_initializer() if floats else _zeros
    start_function: Callable[..., Any] = initializer() if isinstance(initializer, type) else initializer
    return start_function(list(shape) if isinstance(shape, list | tuple) else [shape], dtype)


def _zeros(shape: Any, dtype: Any) -> Any:
    return np.zeros(shape, dtype_of(dtype))
