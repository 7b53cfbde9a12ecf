"""Sessions: they run parts of a graph and hold the values of its Variables."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from hybridflow.compat.v1.graph import Graph, Handle, Operation, Tensor, dtype_of, get_default_graph, mapped
from hybridflow.compat.v1.summary import Summary
from hybridflow.compat.v1.variables import Variable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.node import Node
from hybridflow.core.tensor import Tensor as Value
from hybridflow.core.tensor import asarray, make_tensor
from hybridflow.core.variable import Variable as State
from hybridflow.tracing.session import Session as Runner


class ConfigProto:
    """Options of TensorFlow's sessions: devices, threads and memory. They are accepted and have no effect."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.gpu_options = GPUOptions()


class GPUOptions:
    """Options of TensorFlow's memory on GPUs, without effect."""

    def __init__(self, **options: Any) -> None:
        self.allow_growth = False
        self.per_process_gpu_memory_fraction = 1.0
        self.options = options


class _Plan(NamedTuple):
    """What a run of some fetches computes.

    Attributes:
        fetched: the tensors and Variables of the fetches, one after the other.
        assignments: the assignments that are performed.
        reads: the Variables whose values must be there.
        assigned: the Variables that have a value afterwards.
    """

    fetched: list[Any]
    assignments: list[Value]
    reads: list[State]
    assigned: list[State]


class Session:
    """Runs parts of a graph. Each session has its own values of the Variables.

    Args:
        target: not used: runs are in this process.
        graph: the graph; the default one if None.
        config: not used, see `ConfigProto`.

    Example:
        >>> import hybridflow.compat.v1 as tf
        >>> with tf.Graph().as_default():
        ...     w = tf.Variable(1.0)
        ...     step = w.assign_add(2.0)
        ...     with tf.Session() as sess:
        ...         sess.run(tf.global_variables_initializer())
        ...         sess.run([step, w])
        [np.float32(3.0), np.float32(3.0)]
    """

    def __init__(self, target: str = "", graph: Graph | None = None, config: Any = None) -> None:
        del target, config
        self.graph = graph or get_default_graph()
        self._runner = Runner(self.graph.traced)
        self._plans: dict[Any, _Plan] = {}
        self._initialized: set[State] = set()
        self._kept: list[tuple[State, Value]] = []
        self._entered: list[Any] = []

    def __enter__(self) -> Self:
        block = self.graph.as_default()
        block.__enter__()
        self._entered.append(block)
        _SESSIONS.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _SESSIONS.remove(self)
        self._entered.pop().__exit__(None, None, None)
        self.close()

    def as_default(self) -> Any:
        """Make it the default session of a block, which does not close it."""
        return _Default(self)

    def close(self) -> None:
        """Release what was compiled; the session cannot run any more."""
        self._runner.close()
        self._plans.clear()

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Compute tensors and perform operations.

        Args:
            fetches: tensors, Variables, operations, summaries, or names of them, in any nesting.
            feed_dict: values of placeholders and other tensors, which are converted to the tensors' dtypes.
            options, run_metadata: not used.

        Returns:
            The structure of the fetches, with NumPy arrays (scalars where there are no axes), None for operations, and
            bytes for summaries.

        Raises:
            ArgumentError: a needed placeholder is not fed, a Variable was not initialized, or it would be assigned
                twice in no order.
        """
        del options, run_metadata
        fed = self._fed(feed_dict or {})
        leaves: list[Any] = []

        def number(fetch: Any) -> int:
            leaves.append(_fetchable(self.graph.as_graph_element(fetch)))
            return len(leaves) - 1

        structure = mapped(number, fetches)
        key = (tuple(leaves), tuple(fed))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planned(leaves, list(fed))
        self._check_initialized(plan)
        self._take_over()
        results = self._runner.run([*plan.fetched, *plan.assignments], {key.value: fed[key] for key in fed})
        values = iter([_array(one) for one in results])
        found = [_result(leaf, values) for leaf in leaves]
        self._initialized.update(plan.assigned)
        return mapped(lambda number: found[number], structure)

    # -- what to compute ------------------------------------------------------------------------------------------

    def _fed(self, feed_dict: Mapping[Any, Any]) -> dict[Tensor, Any]:
        fed: dict[Tensor, Any] = {}
        for key, value in feed_dict.items():
            tensor = self.graph.as_graph_element(key)
            if not isinstance(tensor, Tensor):
                raise ArgumentTypeError(
                    f"run: the feed has a {type(key).__name__} as a key", got=repr(key)[:60],
                    hint="Keys are placeholders or tensors; Variables are assigned: w.load(value, sess)."
                )
            if isinstance(value, Handle):
                raise ArgumentTypeError(f"run: a tensor of the graph is fed for {tensor.name}", got=repr(value),
                                        hint="Feed NumPy arrays and numbers; run the tensor first.")
            array = np.asarray(value)
            dtype = dtype_of(tensor.dtype)
            if array.dtype != dtype and array.dtype.kind == "f" and np.issubdtype(dtype, np.integer):
                raise ArgumentTypeError(f"run: {array.dtype} is fed for {tensor.name}, which is {dtype}",
                                        hint="Feed integers.")
            fed[tensor] = asarray(array.astype(dtype))
        return fed

    def _planned(self, leaves: Sequence[Any], fed: Sequence[Tensor]) -> _Plan:
        fetched: list[Any] = []
        roots: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Summary):
                fetched += [one.reading() for one in leaf.tensors()]
            elif isinstance(leaf, Operation):
                roots.append(leaf)
            elif isinstance(leaf, Variable):
                fetched.append(leaf.state)
            else:
                fetched.append(leaf.value)
        needed, extra = self._performed([*fetched, *roots], fed)
        construction = self.graph.construction
        assignments = {node: construction.assignments[node] for node in needed if node in construction.assignments}
        last_assignments = self._last_assignments(assignments)
        tensors = [make_tensor(None, (node, 0)) for node in last_assignments]
        states = [one for one in fetched if isinstance(one, State)]
        read = self._runner.variables([*fetched, *extra, *tensors], [one.value for one in fed])
        reads = [state for state in read if state in self.graph.states]
        assigned = [assignments[node] for node in last_assignments]
        after = [state for state in states if id(state) not in {id(one) for one in assigned}]
        return _Plan([*fetched], [*extra, *tensors], [*reads, *after], assigned)

    def _performed(self, roots: Sequence[Any], fed: Sequence[Tensor]) -> tuple[dict[Node, None], list[Value]]:
        """Return the nodes that values and operations need, including those they wait for, and more tensors to compute.

        These tensors are computed for their own sake, because an operation groups them.
        """
        construction = self.graph.construction
        given = {construction.own_edge(tensor.value) for tensor in fed}
        needed: dict[Node, None] = {}
        extra: list[Value] = []
        stack: list[Any] = list(roots)
        while stack:
            root = stack.pop()
            if isinstance(root, Operation):
                stack.extend(root.needs)
                extra += [part.value for part in root.needs if isinstance(part, Tensor)]
                continue
            if isinstance(root, Variable | State):
                continue
            value = root.value if isinstance(root, Tensor) else root
            for node in construction.needed([construction.own_edge(value)], given) - needed.keys():
                needed[node] = None
                stack.extend(self.graph.after.get(node, ()))
        return needed, [value for value in extra if construction.own_edge(value)[0] not in construction.assignments]

    def _last_assignments(self, assignments: dict[Node, State]) -> list[Node]:
        """Return the last assignment of each Variable, in the order of the control dependencies.

        Raises:
            ArgumentError: a Variable is assigned twice, and no dependency says in which order.
        """
        last: dict[int, Node] = {}
        for node in sorted(assignments, key=lambda node: node.sequence):
            before = last.get(id(assignments[node]))
            if before is not None and before not in self._waits_for(node):
                raise ArgumentError(f"run: Variable {assignments[node].name!r} is assigned twice, in no order",
                                    got=f"at {before.location} and at {node.location}",
                                    hint="Say the order: with tf.control_dependencies([first]): second = ...")
            last[id(assignments[node])] = node
        return list(last.values())

    def _waits_for(self, node: Node) -> set[Node]:
        performed, _ = self._performed([make_tensor(None, (node, 0))], [])
        return set(performed)

    # -- values of Variables --------------------------------------------------------------------------------------

    def _check_initialized(self, plan: _Plan) -> None:
        for state in plan.reads:
            if state not in self._initialized:
                raise ArgumentError(f"run: Variable {state.name!r} has no value in this session yet",
                                    got=str(state.spec),
                                    hint="Run tf.global_variables_initializer() first, or restore a checkpoint.")

    def _take_over(self) -> None:
        """Store the values of the session that ran before, and put this session's values into the Variables."""
        holder = None if self.graph.holder is None else self.graph.holder()
        if holder is self:
            return
        if holder is not None:
            holder._kept = [(state, state.read()) for state in holder._initialized]
        for state, value in self._kept:
            state.assign(value)
        self._kept = []
        self.graph.holder = weakref.ref(self)

    def load(self, values: Mapping[Variable, Any]) -> None:
        """Assign values to Variables: all of them, or none if one does not fit."""
        self._take_over()
        assignments = [(one.state, asarray(value, dtype=one.dtype)) for one, value in values.items()]
        for state, value in assignments:
            if state.shape != value.shape:
                raise ArgumentError(f"load: {value.spec} does not fit Variable {state.name!r}", got=str(state.spec))
        for state, value in assignments:
            state.assign(value)
            self._initialized.add(state)

    def value_of(self, variable: Variable) -> Any:
        """Return the value of a Variable in this session.

        Raises:
            ArgumentError: it has none yet.
        """
        return self.run(variable)

    def function(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        """Return what a run computes as a function of tensors, with the Variables as they are in this session."""
        self._check_initialized(self._planned(list(outputs), list(inputs)))
        self._take_over()
        return self._runner.function([one.value for one in outputs], [one.value for one in inputs])


class InteractiveSession(Session):
    """A session that is the default one from the start until it is closed."""

    def __init__(self, target: str = "", graph: Graph | None = None, config: Any = None) -> None:
        super().__init__(target, graph, config)
        _SESSIONS.append(self)

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(None, None, None)
        _SESSIONS.remove(self)
        self.close()

    def close(self) -> None:
        """Release what was compiled; it is no longer the default session."""
        if self in _SESSIONS:
            _SESSIONS.remove(self)
        super().close()


_SESSIONS: list[Session] = []


class _Default:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._graph = session.graph.as_default()

    def __enter__(self) -> Session:
        self._graph.__enter__()
        _SESSIONS.append(self._session)
        return self._session

    def __exit__(self, *_: object) -> None:
        _SESSIONS.remove(self._session)
        self._graph.__exit__(None, None, None)


def get_default_session() -> Session | None:
    """Return the session of the innermost ``with`` block, or the last interactive one."""
    return _SESSIONS[-1] if _SESSIONS else None


def session_or_default(session: Session | None, what: str) -> Session:
    """Return a session, or the default one if none is given.

    Raises:
        ArgumentError: there is none.
    """
    chosen = session or get_default_session()
    if chosen is None:
        raise ArgumentError(f"{what}: there is no default session",
                            hint="Use it in `with tf.Session() as sess:`, or pass session=sess.")
    return chosen


def _fetchable(fetch: Any) -> Any:
    if not isinstance(fetch, Handle | Operation | Summary):
        raise ArgumentTypeError(f"run: a fetch is a {type(fetch).__name__}", got=repr(fetch)[:60],
                                hint="Fetch tensors, Variables, operations and summaries of the graph.")
    return fetch


def _array(value: Value) -> Any:
    array = value.numpy()
    return np.array(array) if array.ndim else array[()]


def _result(leaf: Any, values: Iterator[Any]) -> Any:
    if isinstance(leaf, Operation):
        return None
    if isinstance(leaf, Summary):
        return leaf.serialized([next(values) for _ in leaf.tensors()])
    return next(values)
