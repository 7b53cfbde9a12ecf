"""`Variable`: a mutable container of a tensor."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from sys import _getframe, getrefcount
from typing import Any, ClassVar, Self, cast

import numpy as np

from hybridflow.backend.host import run_quietly
from hybridflow.backend.parallel import LARGE
from hybridflow.core.context import HOST_FUNCTION, Context, context_now, context_of, is_tracing
from hybridflow.core.convert import Wide
from hybridflow.core.device import DeviceLike, device_string
from hybridflow.core.dtypes import DType, is_differentiable
from hybridflow.core.errors import DTypeError, ShapeError, TraceError
from hybridflow.core.forked import require_xla
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.mesh import SEVERAL, Layout, Mesh, Placement, placed, placement_of
from hybridflow.core.methods import TensorMethods
from hybridflow.core.node import Edge, Node, format_where, make_node
from hybridflow.core.notes import Notes, make_leaf
from hybridflow.core.op import No, Op, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import (
    Tensor,
    as_tensor,
    asarray,
    format_tensor,
    immutable,
    make_tensor,
    no_value,
    refuse_call,
    require_value,
    tensors_in,
)
from hybridflow.core.variable_log import OPEN_LOGS, logged_assignment, logged_value

VARIABLE = register(
    Op("variable", No("a Variable's value"), no_value, no_value, No("a source"), traits=frozenset({"source"}),
       onnx=No("it is on no graph"))
)
_unnamed = itertools.count()

_WORTH = 1 << 12
"""The smallest number of elements for which memory reuse is tried; below it, the check costs more than it saves."""

WRITES = threading.RLock()
"""Held while a compiled call owns the buffers of the Variables it assigns."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cast(Any, WRITES)._at_fork_reinit)  # its holder is not in the child


class Variable(TensorMethods):
    """A container of a tensor, which can be replaced by another of the same shape and dtype.

    Args:
        initial_value: anything `hf.asarray` takes.
        dtype: the dtype to convert it to.
        name: a name for messages and graphs.
        trainable: whether a `hf.GradientTape` watches it when it is read.
        requires_grad: whether it is a leaf of `.backward()`: operations on it are recorded without a tape, and
            gradients accumulate in ``.grad``.
        like: the parameter that it belongs to, for example as an optimizer slot. If it has the same shape, it lies
            where the parameter lies.
        layout: how it lies on `mesh`: a mesh axis or None per dimension. Every assignment keeps it so.
        mesh: the `hf.Mesh`; without a `layout`, each of its devices has the whole value.

    Raises:
        DTypeError: if `requires_grad` is True and the dtype has no gradient.
        LayoutError: if the layout does not suit the shape or the mesh, or no mesh is given with it.

    Example:
        >>> import hybridflow as hf
        >>> v = hf.Variable([1.0, 2.0], name="v")
        >>> v.assign_add([1.0, 1.0])
        Variable([2., 3.], dtype=float32, name='v')
    """

    __slots__ = (
        "__weakref__", "_edge", "_leaf", "_like", "_name", "_notes", "_placement", "_reading", "_trainable", "_value",
    )

    __array_priority__ = 1000

    moves_on: ClassVar[bool] = False
    """Whether every run of a hand-made graph assigns the Variable, as for random states."""

    def __init__(
        self,
        initial_value: Any,
        *,
        dtype: Any = None,
        name: str | None = None,
        trainable: bool = True,
        requires_grad: bool = False,
        like: Variable | None = None,
        layout: Layout | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        context = context_now()
        tracer = None if context is None else context.tracer
        label = name if name is not None else f"variable_{next(_unnamed)}"
        if context is None or tracer is None:
            tensor = asarray(initial_value, dtype=dtype)
        else:
            tracer.new_variable(label)
            if tensors_in(initial_value):
                tensor = asarray(initial_value, dtype=dtype)
                tensor = tensor if tensor._value is not None else tracer.value_now(tensor)
            else:
                with context_of(None, (), context.device):
                    tensor = asarray(initial_value, dtype=dtype)
        require_value(tensor, "Variable")
        placement = None if layout is None and mesh is None else placement_of(label, tensor.shape, layout, mesh)
        self._fill(tensor._value, label, bool(trainable))
        self._like = like
        if placement is not None or like is not None:
            self.lay_out(placement)
        if requires_grad:
            self._become_leaf()

    def _fill(self, value: Any, name: str, trainable: bool) -> None:
        self._value = value
        self._name = name
        self._trainable = trainable
        attrs = {"name": name, "variable": weakref.ref(self)}
        self._leaf = make_node(VARIABLE, (), attrs, (make_spec(value.shape, value.dtype),), backend="host")
        self._reading = (0, self._leaf)
        self._edge: Edge | None = None
        self._like: Variable | None = None
        self._notes: Notes | None = None
        self._placement: Placement | None = None

    def _become_leaf(self) -> None:
        """Make the Variable a leaf: operations on it are recorded, and its gradients accumulate."""
        if not is_differentiable(self.dtype):
            raise DTypeError(f"Variable: requires_grad=True, and {self.dtype} has no gradient",
                             got=f"{self._name}: {self.spec}", hint="Only floats have gradients.")
        nothing = np.broadcast_to(np.zeros((), self.dtype), self.shape)  # takes no memory
        cell = GradientCell.of(nothing, f"{self._name}.grad")
        cell.holder = weakref.ref(self)
        self._notes = Notes(leaf=True, cell=cell)
        self._edge = (make_leaf(self._leaf, self._notes), 0)

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def trainable(self) -> bool:
        """Whether a tape watches the Variable when it is read.

        For a Variable with ``requires_grad=True`` it also controls whether `.backward()` reaches it. It can be set,
        but not inside a compiled function.
        """
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        context = context_now()
        if context is not None and context.tracer is not None:
            raise TraceError(
                f"trainable: Variable {self._name!r} is set inside a compiled function, which would do it when "
                "it is traced only", got=f"{self._name}: {self.spec}", hint="Set it before the call."
            )
        self._trainable = bool(value)
        if self._notes is not None:
            self._edge = (make_leaf(self._leaf, self._notes), 0) if value else None
        for flags in FLAGS.get(self._leaf, ()):
            flags.renew()

    @property
    def like(self) -> Variable | None:
        """The parameter that the Variable belongs to, for example as its momentum; None if there is none."""
        return self._like

    @property
    def placement(self) -> Placement | None:
        """Where the value lies if that was said of it, or of the parameter of this shape that it belongs to."""
        like = self._like
        if self._placement is not None or like is None or like.shape != self.shape:
            return self._placement
        return like.placement

    def lay_out(self, placement: Placement | None) -> None:
        """Say where the value lies, and move it there."""
        self._placement = placement
        self.store(self.current())

    @property
    def layout(self) -> Layout | None:
        """How it lies on its mesh: a mesh axis or None per dimension; None if that was not said."""
        return None if self.placement is None else self.placement.layout

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that it lies on, or None."""
        return None if self.placement is None else self.placement.mesh

    def require_gradient(self) -> None:
        """Accumulate gradients in ``.grad``, as with ``requires_grad=True``, if the dtype has gradients."""
        if self._notes is None and is_differentiable(self.dtype):
            self._become_leaf()
            if not self._trainable:
                self._edge = None

    @property
    def active_notes(self) -> Notes | None:
        """The notes for `.backward()`, or None if the Variable is not a leaf or is frozen."""
        return self._notes if self._edge is not None else None

    def rename(self, name: str) -> None:
        """Change the Variable's name."""
        self._name = name
        self._leaf.attrs["name"] = name
        if self._notes is not None:
            self._notes.cell.rename(f"{name}.grad")

    @property
    def spec(self) -> TensorSpec:
        """The shape and dtype, which never change."""
        return self._leaf.outputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The dtype."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        refuse_call(_getframe(1))
        return self.spec.size

    @property
    def nbytes(self) -> int:
        """The size of the value in bytes."""
        return self.spec.nbytes

    @property
    def device(self) -> str:
        """Where the value lives."""
        return device_string(self.current())

    def current(self) -> Any:
        """Return the raw value; if a compiled call in another thread is replacing it, wait for that."""
        value = self._value
        if value is None:
            with WRITES:
                value = self._value
            if value is None:
                require_xla(f"the call that was writing Variable {self._name!r} when the process was forked")
        return logged_value(self, value) if OPEN_LOGS.count else value

    def store(self, value: Any) -> None:
        """Replace the raw value with one of the same shape and dtype."""
        if SEVERAL.used and (placement := self.placement) is not None:
            value = placed(value, placement.sharding)
        if not OPEN_LOGS.count or not logged_assignment(self, value):
            self._value = value

    def read(self) -> Tensor:
        """Return the value as a tensor, watched by the active tapes if the Variable is trainable."""
        context = context_now()
        if context is None:
            return make_tensor(self.current(), self._edge)
        if context.tracer is not None:
            tensor = context.tracer.read_variable(self)
        elif context.tapes or context.autocast is not None:
            tensor = make_tensor(self.current(), (self._node_of(context), 0))
        else:
            return make_tensor(self.current(), self._edge if context.grad else None)
        for tape in context.tapes:
            tape.variable_read(self, cast(Edge, tensor._edge))
        if SEVERAL.used and context.tracer is not None:
            tensor = context.tracer.gathered(self, tensor)
        if context.autocast is not None:
            context.autocast.variable_read(tensor)
        return tensor

    def _node_of(self, context: Context) -> Node:
        """Return the node for reads in a context: tapes of different contexts must not share the node of a read."""
        reading = self._reading
        if reading[0] != context.epoch:
            node = make_node(VARIABLE, (), self._leaf.attrs, self._leaf.outputs, backend="host")
            if self._edge is not None and self._notes is not None and context.grad:
                make_leaf(node, self._notes)
            reading = self._reading = (context.epoch, node)
        return reading[1]

    def assign(self, value: Any) -> Self:
        """Replace the value; no gradient flows through an assignment.

        Args:
            value: a tensor, array or number of the Variable's shape; Python numbers and sequences take its dtype.

        Returns:
            The Variable itself; in a hand-made graph, the assignment as a tensor of the graph.

        Raises:
            ShapeError: if the shape differs.
            DTypeError: if the dtype differs.
        """
        tensor = (
            as_tensor(value)
            if isinstance(value, TensorMethods) or hasattr(value, "dtype")
            else asarray(value, dtype=self.dtype)
        )
        if tensor.shape != self.shape:
            raise ShapeError(f"assign: the value has shape {tensor.shape}, the Variable {self.shape}",
                             got=f"{self._name}: {self.spec} = {tensor.spec}",
                             hint="A Variable keeps its shape; reshape the value or make a new Variable.")
        if tensor.dtype != self.dtype:
            raise DTypeError(f"assign: the value is {tensor.dtype}, the Variable {self.dtype}",
                             got=f"{self._name}: {self.spec} = {tensor.spec}",
                             hint=f"{_origin(value, tensor)}Cast it with .astype(hf.{self.dtype}).")
        context = context_now()
        if context is not None and context.tracer is not None:
            made = context.tracer.assign_variable(self, tensor)
            return self if made is None else made
        else:
            require_value(tensor, "assign")
            if context is not None and tensor._edge is not None:
                for tape in context.tapes:
                    tape.value_assigned(self, tensor._edge)
            if HOST_FUNCTION.get() is not None:
                raise TraceError(f"assign: Variable {self._name!r} is assigned by {HOST_FUNCTION.get()}, which "
                                 "hf.pure_callback calls", got=f"{self._name}: {self.spec}",
                                 hint="Return the value and assign it outside of the callback.")
            with WRITES:
                self.store(tensor._value)
        return self

    def assign_add(self, value: Any) -> Self:
        """Add to the value; see `assign`."""
        if type(value) is Tensor and getrefcount(value) == _TEMPORARY and self._becomes(np.add, value):
            return self
        with self._at_full_width():
            return self.assign(cast(Any, self.read()) + self._operand(value))

    def assign_sub(self, value: Any) -> Self:
        """Subtract from the value; see `assign`."""
        if type(value) is Tensor and getrefcount(value) == _TEMPORARY and self._becomes(np.subtract, value):
            return self
        with self._at_full_width():
            return self.assign(cast(Any, self.read()) - self._operand(value))

    def _becomes(self, ufunc: np.ufunc, value: Tensor) -> bool:
        """Assign ``ufunc(self, value)``, computed in the buffer of `value`; return False if that is not possible.

        The buffer must belong to nobody else. This saves each training step an allocation of the weights' size.
        """
        array, old = value._value, self._value
        if type(array) is not np.ndarray or not _WORTH <= array.size < LARGE or type(old) is not np.ndarray:
            return False
        dtype = array.dtype
        if context_now() is not None or dtype is not old.dtype or dtype.char not in "fd" or array.shape != old.shape:
            return False
        if getrefcount(array) != _SOLE or array.base is not None or not array.flags.carray:
            return False
        run_quietly(ufunc, self.current(), array, array)
        self.assign(make_tensor(array))
        return True

    def _at_full_width(self) -> AbstractContextManager[Any]:
        """Return a context without `hf.autocast`, so that the update is computed in the Variable's dtype."""
        context = context_now()
        if context is None or context.autocast is None:
            return nullcontext()
        return context_of(context.tracer, context.tapes, context.device, context.grad)

    def _operand(self, value: Any) -> Any:
        return asarray(value, dtype=self.dtype) if isinstance(value, list | tuple) else value

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the current value as a read-only NumPy array that later assignments do not change."""
        return self.read().numpy()

    def item(self) -> Any:
        """Return the one element as a Python number."""
        return self.read().item()

    def tolist(self) -> Any:
        """Return the value as nested Python lists."""
        return self.read().tolist()

    def as_integer_ratio(self) -> tuple[int, int]:
        """Return the one element as a fraction of two integers, as Python's numbers do."""
        return self.read().as_integer_ratio()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.read().__array__(dtype, copy)

    def __buffer__(self, flags: int) -> memoryview:
        """Return the memory of the current value, which later assignments do not change."""
        return self.read().__buffer__(flags)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.read().__array_interface__

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.read().__arrow_c_array__(requested_schema)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.read().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.read().__dlpack_device__()

    @with_foreign_keywords
    def to(self, target: Any = None, /, dtype: Any = None, *, device: DeviceLike = None) -> Tensor:
        """Return the current value as a tensor in another dtype or on another device; see `Tensor.to`."""
        return self.read().to(target, dtype, device=device)

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """Return the current value as a tensor on another device; see `Tensor.to_device`."""
        return self.read().to_device(device, stream=stream)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.read().__array_namespace__(api_version=api_version)

    def __bool__(self) -> bool:
        return bool(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __float__(self) -> float:
        return float(self.read())

    def __trunc__(self) -> int:
        return int(self.read())

    def __bytes__(self) -> bytes:
        return bytes(self.read())

    def __complex__(self) -> complex:
        return complex(self.read())

    def __contains__(self, item: Any) -> bool:
        return item in self.read()

    def __len__(self) -> int:
        return len(self.read())

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.read())

    def __hash__(self) -> int:
        return id(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        what, hint = "Variable: elements cannot be assigned", "Use v.assign(v.at[index].set(value))."
        raise immutable(what, f"v[{index!r}] = ...", hint)

    def __copy__(self) -> Variable:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        leaf = self._notes is not None
        made = Variable(self.read(), name=self._name, trainable=self._trainable, requires_grad=leaf)
        if self.placement is not None:
            made.lay_out(self.placement)
        if leaf and self._edge is None:
            made._edge = None
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        frozen = self._notes is not None and self._edge is None
        parts = (np.array(self.numpy()), self._name, self._trainable, self._notes is not None, frozen)
        return _unpickle_variable, parts

    def __format__(self, spec: str) -> str:
        return format(self.read(), spec) if spec else str(self)

    def __repr__(self) -> str:
        if is_tracing():  # each call of the traced function has its own value
            return f"Variable(traced {self.spec}, name={self._name!r})"
        return format_tensor("Variable", make_tensor(self.current()), self._name)

    def __rich__(self) -> Any:
        from hybridflow.core.show import rich_tensor  # it imports rich, which takes long

        return rich_tensor("Variable", make_tensor(self.current()), self._name)

    def _repr_html_(self) -> str:
        from hybridflow.core.show import html_tensor  # it imports rich, which takes long

        return html_tensor("Variable", make_tensor(self.current()), self._name)


def _origin(value: Any, tensor: Tensor) -> str:
    """Say where a float64 value came from, if that is known; return an empty text for other dtypes."""
    dtype = tensor.dtype
    if dtype != np.float64:
        return ""
    if not isinstance(value, TensorMethods):
        return f"It is a {type(value).__module__}.{type(value).__name__}, and those are float64 by default. "
    first = None if tensor._edge is None else _first_of_dtype(tensor._edge[0], dtype)
    if first is not None and "source" not in first.op.traits:
        return f"The first float64 was made by {first.op.name} at {first.location}. "
    known = format_where(Wide.place if first is None or first.where is None else first.where)
    return "" if known is None else f"float64 came in at {known}. "


def _first_of_dtype(node: Node, dtype: DType) -> Node:
    """Return the oldest node from which a value is computed in one dtype throughout."""
    first, seen, waiting = node, {id(node)}, [node]
    while waiting:
        node = waiting.pop()
        first = node if node.sequence < first.sequence else first
        for edge in node.inputs:
            if edge is not None and id(edge[0]) not in seen and edge[0].spec(edge[1]).dtype == dtype:
                seen.add(id(edge[0]))
                waiting.append(edge[0])
    return first


def current_values(variables: Sequence[Variable]) -> list[Any]:
    """Return the raw value of each Variable, as `current` does; the caller holds `WRITES`."""
    if not OPEN_LOGS.count:
        values = [variable._value for variable in variables]
        for value in values:
            if value is None:
                break
        else:
            return values
    return [variable.current() for variable in variables]


class GradientCell(Variable):
    """The container of a Variable's gradient.

    It is a Variable itself, so that a compiled function assigns it like any other: only if the call succeeds.

    Attributes:
        present: whether there is a gradient; if not, the value is meaningless.
        hooks: the Variable's hooks, in the order of registration.
        holder: a weak reference to the Variable.
    """

    __slots__ = ("holder", "hooks", "present")

    present: bool
    hooks: dict[int, Callable[[Any], Any]]
    holder: Callable[[], Variable | None]

    @property
    def placement(self) -> Placement | None:
        """Where the Variable lies, and so its gradient."""
        holder = self.holder()
        return None if holder is None else holder.placement

    @classmethod
    def of(cls, value: Any, name: str) -> GradientCell:
        """Return an empty cell for gradients with the shape and dtype of `value`."""
        result = object.__new__(cls)
        result._fill(value, name, False)
        result.present = False
        result.hooks = {}
        result.holder = _no_holder
        return result


def _no_holder() -> None:
    return None


def _unpickle_variable(
    array: np.ndarray[Any, Any], name: str, trainable: bool, requires_grad: bool = False, frozen: bool = False
) -> Variable:
    made = Variable(array, name=name, trainable=trainable, requires_grad=requires_grad)
    if frozen:
        made._edge = None
    return made


class _Counted:
    """Measures the reference counts that `Variable.assign_sub` and `Variable._becomes` see for unshared objects."""

    def of_operand(self, value: Any) -> int:
        return getrefcount(value)

    def of_array(self, value: Any) -> int:
        array, _ = value._value, None
        return getrefcount(array)


def _operand() -> Tensor:
    return make_tensor(np.zeros(1))


def _counts() -> tuple[int, int]:
    """Return what `sys.getrefcount` says of an operand that only the call holds, and of an array only a tensor holds.

    On an interpreter that does not count the caller's own variable, temporaries cannot be recognized; the first number
    is then 0, which never matches.
    """
    counted, kept = _Counted(), _operand()
    temporary, array = counted.of_operand(_operand()), counted.of_array(kept)
    return (temporary if counted.of_operand(kept) > temporary else 0), array


_TEMPORARY, _SOLE = _counts()


# -- the trainable flags of Variables, packed for guards --------------------------------------------------------------


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
