"""`Tensor`, an immutable array, and conversions to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from opcode import opmap
from sys import _getframe
from threading import get_ident
from types import FrameType
from typing import Any, NoReturn, cast

import jax
import numpy as np

from hybridflow.core.attached import attached
from hybridflow.core.context import context_now
from hybridflow.core.convert import NUMBERS, common_dtype, is_number, require_shallow
from hybridflow.core.convert import to_numpy as to_numpy
from hybridflow.core.device import (
    DeviceLike,
    default_is_host,
    device_name,
    device_of,
    device_string,
    find_device,
    is_host,
    place,
)
from hybridflow.core.device import device as device_type
from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    check_fits,
    float32,
    int32,
    is_differentiable,
    is_integer,
    kind_of,
    short_name,
)
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    LeakError,
    MissingPackageError,
    MutationError,
    ShapeError,
    TracedValueError,
    TraceError,
    message,
)
from hybridflow.core.forked import PROCESS
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.mesh import is_elsewhere
from hybridflow.core.methods import TensorMethods
from hybridflow.core.node import Edge, Node, format_where, make_node, renew, user_place
from hybridflow.core.op import REGISTRY, No, Op, register
from hybridflow.core.pending import LOCAL as PENDING
from hybridflow.core.pending import PendingChecks, settle_calls
from hybridflow.core.spec import TensorSpec, format_spec, make_spec
from hybridflow.core.staged_number import StagedNumber, tried
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber

_new = object.__new__
ONE_TRUTH = "Reduce it with hf.all or hf.any; or choose for each element: hf.where(condition, a, b)."
"""What to do about a condition of several elements, in both modes."""
_A_SIZE = "Pass it as a Python number; or take a bound as the size, and mask: hf.where(hf.arange(100) < n, x, 0)."
"""What to do about a size that depends on values, which a trace does not have."""
_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


def no_value(*specs: Any, **attrs: Any) -> Any:
    raise LeakError("source: has no value to compute", hint="Ask for the tensor or Variable that it stands for.")


WATCHED = register(
    Op("watched", No("a watched tensor"), no_value, no_value, No("a source"), traits=frozenset({"source"}),
       onnx=No("it is on no graph"))
)


class Tensor(TensorMethods):
    """An immutable array: a NumPy array on the host, a `jax.Array` on a device, or in a trace a value to be computed.

    Make one with `hf.asarray`. Arithmetic, comparison, indexing and NumPy-style methods are operations of `hf`.

    ``a += b`` binds the name `a` to a new tensor; other references to the old one keep it. ``a[key] = value`` is an
    error. Write ``a = a.at[key].set(value)`` instead; gradients flow through it.

    Example:
        >>> import hybridflow as hf
        >>> hf.asarray([1.0, 2.0]) * 2
        Tensor([2., 4.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_alt", "_edge", "_value")

    __array_priority__ = 1000

    _value: Any
    _alt: Any
    _edge: Edge | None

    def __init__(self, *values: Any, **options: Any) -> None:
        raise ArgumentTypeError(
            "Tensor: not constructed directly",
            hint="Use hf.asarray(value). Modules that make numbers of the type they are given, such as "
                 "statistics, take t.tolist()."
        )

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def spec(self) -> TensorSpec:
        """The shape and dtype as a `TensorSpec`."""
        value = self._value
        if value is not None:
            return make_spec(value.shape, value.dtype)
        node, index = cast(Edge, self._edge)
        return node.spec(index)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The size of each dimension."""
        value = self._value
        return value.shape if value is not None else self.spec.shape

    @property
    def dtype(self) -> DType:
        """The dtype."""
        value = self._value
        return value.dtype if value is not None else self.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements."""
        refuse_call(_getframe(1))
        return self.spec.size

    @property
    def nbytes(self) -> Any:
        """The size of the value in bytes."""
        return self.spec.nbytes

    @property
    def device(self) -> str:
        """Where the value lives, such as ``cpu`` or ``gpu:0``."""
        return device_string(self._value)

    # -- the value --------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the value as a read-only NumPy array: a view, or a copy if the value lives on a device.

        Raises:
            TracedValueError: inside a trace, where there is no value yet.
        """
        view = host_array(self).view()
        self._note_left()
        view.flags.writeable = False
        return view

    def item(self) -> Any:
        """Return the one element as a Python number.

        Raises:
            ShapeError: if there is not exactly one element.
        """
        return self._one_element("item")

    def as_integer_ratio(self) -> tuple[int, int]:
        """Return the one element as a fraction of two integers, as Python's numbers do."""
        return self.item().as_integer_ratio()

    def _note_left(self) -> None:
        """Tell the tracer that the trace relies on the value, and the active tapes where it left, for `why_none`."""
        context = context_now()
        if context is None:
            return
        if context.tracer is not None:
            context.tracer.value_read(self)
        if self._edge is not None:
            for tape in context.tapes:
                tape.value_left(self._edge)

    def tolist(self) -> Any:
        """Return the value as nested Python lists."""
        array = host_array(self)
        self._note_left()
        return array.tolist()

    @with_foreign_keywords
    def to(self, target: Any = None, /, dtype: Any = None, *, device: DeviceLike = None) -> Tensor:
        """Return the tensor in another dtype, on another device, or both; gradients come back in its own dtype.

        Args:
            target: a device such as ``"gpu:0"``, a dtype, or a tensor whose device and dtype to take.
            dtype: the dtype, if `target` is a device or missing.
            device: the device, if `target` is a dtype or missing.

        Raises:
            ArgumentTypeError: if neither dtype nor device is given, or one of them is given twice.
            TracedValueError: if the device changes inside a trace.

        Example:
            >>> import hybridflow as hf
            >>> hf.asarray([1, 2]).to(hf.float32)
            Tensor([1., 2.], dtype=float32)
        """
        devices: list[str | device_type] = [device] if device is not None else []
        dtypes = [dtype] if dtype is not None else []
        if isinstance(target, TensorMethods):
            other = as_tensor(target)
            devices, dtypes = [other.device, *devices], [other.dtype, *dtypes]
        elif isinstance(target, str | device_type):
            devices.append(target)
        elif target is not None:
            dtypes.append(target)
        if max(len(devices), len(dtypes)) != 1:
            raise ArgumentTypeError(f"to: {len(dtypes)} dtypes and {len(devices)} devices are given",
                                    hint="Use t.to(dtype), t.to(device), t.to(device, dtype) or t.to(other).")
        result = self
        if dtypes and as_dtype(dtypes[0]) != self.dtype:
            result = cast(Tensor, cast(Any, self).astype(as_dtype(dtypes[0])))
        return result._on(devices[0]) if devices else result

    def _on(self, device: str | device_type) -> Tensor:
        target = find_device(device)
        if self._value is None and device_string(None) == device_name(target):
            return self
        require_value(self, "to")
        return make_tensor(place(self._value, target), self._edge)

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """Return the tensor on another device: the Array API standard's name for `to`.

        Raises:
            ArgumentError: if a stream is given; XLA orders its work itself.
        """
        if stream is not None:
            raise ArgumentError("to_device: takes no stream", got=repr(stream), hint="Leave stream=None.")
        return self.to(device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ArgumentError(f"numpy.asarray: {array.dtype} to {dtype} needs a copy, and copy=False",
                                    got=str(self.spec), hint="Leave copy=None.")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __buffer__(self, flags: int) -> memoryview:
        """Return the value's memory, which is read-only: ``memoryview(t)``, from Python 3.12 on."""
        return buffer_of(self.numpy())

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return array_interface(self.numpy())

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return arrow_of(self.numpy(), requested_schema)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        require_value(self, "__dlpack__")
        self._note_left()
        value = host_array(self) if self.device == "cpu" else self._value
        given: dict[str, Any] = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        kwargs = {name: argument for name, argument in given.items() if argument is not None}
        if isinstance(value, np.ndarray):
            # Export a copy, since not every consumer respects a read-only flag. NumPy cannot export bfloat16, jax can.
            left: Any = value.copy()
            if value.dtype == bfloat16:
                left = jax.device_put(left, jax.local_devices(backend="cpu")[0])
            return left.__dlpack__(**kwargs)
        return value.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        require_value(self, "__dlpack_device__")
        return self._value.__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, *_API_VERSIONS):
            raise ArgumentError(f"__array_namespace__: no version {api_version!r}", hint=f"There are {_API_VERSIONS}.")
        return sys.modules["hybridflow"]

    def __bool__(self) -> bool:
        return bool(self._one_element("bool"))

    def __int__(self) -> int:
        return int(self._one_element("int"))

    def __float__(self) -> float:
        return float(self._one_element("float"))

    def __complex__(self) -> complex:
        return complex(self._one_element("complex"))

    def __trunc__(self) -> int:
        return int(self._one_element("trunc"))

    def __bytes__(self) -> bytes:
        require_value(self, "bytes")
        self._note_left()
        return host_array(self).tobytes()

    def __index__(self) -> int:
        if self.shape or not is_integer(self.dtype):
            raise ArgumentTypeError("index: only an integer tensor of shape () is an index", got=str(self.spec),
                                    hint="Use int(t).")
        return self._one_element("index")

    def _one_element(self, wanted: str) -> Any:
        require_value(self, wanted)
        array = host_array(self)
        if array.size != 1:
            raise ShapeError(f"{wanted}: needs exactly one element, there are {array.size}", got=str(self.spec),
                             hint=ONE_TRUTH if wanted == "bool" else "Index or reduce first.")
        self._note_left()
        return array.item()

    def __contains__(self, item: Any) -> bool:
        package: Any = sys.modules["hybridflow"]
        return bool(package.any(package.equal(self, item)))

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len: a tensor of shape () has no length", got=str(self.spec),
                                    hint="x.size is the number of elements; x[None] has an axis.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise ArgumentTypeError("iter: a tensor of shape () cannot be iterated", got=str(self.spec),
                                    hint="x.item() is its number; x[None] has an axis.")
        return (cast(Any, self)[index] for index in range(len(self)))

    def __hash__(self) -> int:
        return id(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise immutable("Tensor: tensors are immutable", f"t[{index!r}] = ...", "Use t = t.at[index].set(value).")

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._note_left()
        return new_tensor, (np.array(host_array(self)),)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        if self._value is not None:
            self._note_left()
        return format_tensor("Tensor", self)

    def __rich__(self) -> Any:
        from hybridflow.core.show import rich_tensor  # it imports rich, which takes long

        return rich_tensor("Tensor", self)

    def _repr_html_(self) -> str:
        from hybridflow.core.show import html_tensor  # it imports rich, which takes long

        return html_tensor("Tensor", self)


def make_tensor(value: Any, edge: Edge | None = None) -> Tensor:
    """Wrap an array that nobody else will write to in a tensor."""
    tensor = _new(Tensor)
    tensor._value = value
    tensor._alt = None
    tensor._edge = edge
    return tensor


def format_tensor(kind: str, tensor: Tensor, name: str | None = None) -> str:
    """Format a tensor: its values, dtype and, unless obvious, shape; for a traced tensor, its spec."""
    label = f", name={name!r}" if name else ""
    if tensor._value is None:
        return f"{kind}(traced {tensor.spec}{label})"
    if is_elsewhere(tensor._value):
        return f"{kind}({tensor.spec} on the devices of several processes{label})"
    array = host_array(tensor)
    body = np.array2string(array, separator=", ", prefix=f"{kind}(", threshold=200)
    shape = f", shape={array.shape}" if array.size == 0 or array.size > 200 else ""
    device = "" if device_string(tensor._value) == "cpu" else f", device={device_string(tensor._value)}"
    return f"{kind}({body}{shape}, dtype={array.dtype}{label}{device})"


def new_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a NumPy array as a tensor where new tensors are made: it is not copied if that is the host."""
    context = context_now()
    return make_tensor(place(array, None if context is None else context.device))


def require_value(tensor: Tensor, wanted: str) -> None:
    """Raise if the tensor is traced and has no value, or if a check of the compiled call that made it failed."""
    settle_reads(tensor)
    if tensor._value is None:
        node = cast(Edge, tensor._edge)[0]
        made = f" It was made at {node.location}." if node.where is not None else ""
        scope = node.scope
        if scope is not None and not scope.alive:
            raise leaked(tensor)
        where = getattr(scope, "where", "the function")
        hint = (
            f"Use hf.where, hf.cond or hf.while_loop, or move this out of {where}."
            if wanted == "bool"
            else getattr(scope, "reading", f"Return it and read it outside {where}, or mark the argument static.")
        )
        why = attached("reason_of")(place[0]) if wanted == "bool" and (place := user_place(2)) is not None else None
        if wanted == "index":
            hint = getattr(scope, "reading", _A_SIZE)
        if why is not None:
            hint = f"{why} Use hf.where, hf.cond or hf.while_loop there."
        what = f"{wanted}: a traced tensor has no value {getattr(scope, 'when', '')}.{made}"
        raise _in_thread(tensor, TracedValueError(what, got=f"{wanted}({tensor.spec})", hint=hint))


def settle_reads(tensor: Tensor) -> None:
    """Raise if a check failed in the compiled call that made the value, or in an earlier call of this thread."""
    if type(tensor._value) is np.ndarray:
        return  # it was read before
    if PENDING.calls:
        if not default_is_host() and isinstance(tensor._value, jax.Array):
            tensor._value.copy_to_host_async()  # the value then comes together with the outcomes of checks
        settle_calls()
    if type(tensor._alt) is PendingChecks:
        tensor._alt.settle()
        tensor._alt = None


def _in_thread(tensor: Tensor, error: TraceError) -> TraceError:
    """Return an error; if another thread than that of the tensor's trace raises it, the trace ends with it too."""
    scope: Any = cast(Edge, tensor._edge)[0].scope
    tracer = getattr(scope, "tracer", None)
    if tracer is not None and scope.thread != get_ident() and scope.alive and (builder := tracer()) is not None:
        builder.refused(error)
    return error


def leaked(tensor: Tensor) -> TraceError:
    """Return the error of a traced tensor that is used outside of its trace."""
    node = cast(Edge, tensor._edge)[0]
    scope = node.scope
    where = format_where(node.where)
    origin = "it is an input" if where is None else f"it was made by {node.op.name} at {where}"
    name = getattr(scope, "name", None)
    text = message(
        f"{getattr(scope, 'leaked', 'a traced tensor leaked')} {name!r}: {origin}",
        got=str(tensor.spec),
        hint=getattr(scope, "elsewhere" if getattr(scope, "alive", False) else "hint", None),
    )
    return _in_thread(tensor, LeakError(text))


def host_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the value as a NumPy array, waiting until it is computed."""
    value = tensor._value
    if type(value) is np.ndarray:
        return value
    require_value(tensor, "numpy")
    if is_host(device_of(value)):
        # A jax array on the CPU and its NumPy view are the same memory: keep both.
        tensor._alt = value
        tensor._value = array = PROCESS.read(value)
        return array
    if tensor._alt is None:
        tensor._alt = PROCESS.read(value)
    return tensor._alt


# -- conversion ---------------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Return a tensor made from a number, nested sequence, array, tensor or Variable.

    Arrays keep their dtype; Python floats become float32 and integers int32. A user's array is copied; one of jax that
    lies on several devices is gathered on the host, with a `LayoutWarning`. Tensors in a nested sequence are stacked,
    and gradients flow through the stacking.

    Args:
        obj: the value.
        dtype: the dtype to convert to.
        device: the device, such as ``"cpu"`` or ``"gpu:0"``; by default, that of `hf.device` or jax's default one.
        copy: False raises an error if a copy is needed. Tensors are never copied, since they are immutable.

    Returns:
        The tensor.

    Raises:
        NumberRangeError: if the dtype cannot hold a Python number.
        ShapeError: if nested sequences have different lengths.
        DTypeError: for an array of objects or strings, or for complex numbers where `dtype` is real.
        ArgumentTypeError: if the value is not numeric in any other way.
        ArgumentError: if a copy is needed and `copy` is False.

    Example:
        >>> import hybridflow as hf
        >>> hf.asarray([1, 2, 3])
        Tensor([1, 2, 3], dtype=int32)
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if type(obj) is TracedNumber:
        return obj.tensor(wanted)
    if type(obj) is StagedNumber:
        return obj.tensor(wanted)
    if type(obj) is TracedArray:
        obj = obj.tensor
    if isinstance(obj, TensorMethods):
        tensor = as_tensor(obj)
        if wanted is not None and tensor.dtype != wanted:
            if copy is False:
                text = f"asarray: {tensor.dtype} to {wanted} needs a copy, and copy=False"
                raise ArgumentError(text, hint="Leave copy=None.")
            tensor = cast(Tensor, cast(Any, tensor).astype(wanted))
        return tensor if device is None else tensor.to(device)
    if type(obj) is Dim or type(obj) is SizeFloat:
        return _size_tensor(obj, wanted or (int32 if type(obj) is Dim else float32))
    if copy is False:
        raise ArgumentError("asarray: a user's value is always copied", hint="Leave copy=None.")
    if isinstance(obj, list | tuple) and tensors_in(obj):
        tensor = _stacked(obj, wanted)
        return tensor if device is None else tensor.to(device)
    context = context_now()
    array = to_numpy(obj, wanted)
    if context is not None and context.tracer is not None:
        return context.tracer.constant(array)
    if device is not None:
        return make_tensor(place(array, find_device(device)))
    return new_tensor(array)


def _size_tensor(size: Dim | SizeFloat, dtype: DType) -> Tensor:
    """Return a symbolic size, or a float computed from sizes, as a tensor with its value in each call.

    Raises:
        LeakError: outside the trace, where it has no value.
    """
    context = context_now()
    if context is None or context.tracer is None:
        text = str(size) if isinstance(size, Dim) else size.text()
        raise LeakError(f"the size {text} was kept while a compiled function was traced, and used outside of it",
                        hint="Return it from the function.")
    check_fits(size, dtype)
    return cast(Any, REGISTRY["full"].public)((), size, dtype=dtype)


def immutable(what: str, got: str, hint: str) -> MutationError:
    """Return the error of code that changes a value in place; eager code raises it too, and may handle it."""
    with tried():
        return MutationError(what, got=got, hint=hint)


_TRACED = frozenset({TracedNumber, TracedArray, StagedNumber, Dim, SizeFloat})


def tensors_in(obj: Any, depth: int = 0) -> bool:
    """Whether a value is, or a nested sequence contains, a tensor, a Variable or a traced number.

    Raises:
        ShapeError: a sequence is nested deeper than any array has axes.
    """
    if not isinstance(obj, list | tuple):
        return isinstance(obj, TensorMethods) or type(obj) in _TRACED
    require_shallow(depth)
    items = cast("list[Any]", obj)
    return not NUMBERS.issuperset(map(type, items)) and any([tensors_in(one, depth + 1) for one in items])


def _stacked(obj: Any, dtype: DType | None) -> Tensor:
    """Stack a nested sequence of tensors, numbers and arrays into one tensor; gradients flow through it."""
    leaves: list[Any] = []

    def walk(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return [walk(child) for child in cast("list[Any]", item)]
        leaf = item if is_number(item) else as_tensor(item)
        leaves.append(leaf)
        return leaf

    nested = walk(obj)
    target = dtype or common_dtype(leaves)

    stack = cast(Any, REGISTRY["stack"].public)

    def join(item: Any) -> Tensor:
        return stack([join(child) for child in item]) if isinstance(item, list) else asarray(item, dtype=target)

    return join(nested)


def as_tensor(value: Any) -> Tensor:
    """Return an operation's input as a tensor: tensors as they are, Variables read, others converted."""
    if type(value) is Tensor:
        return value
    if isinstance(value, TensorMethods):
        return cast(Any, value).read()  # a Variable: `Tensor` has no subclasses
    return asarray(value)


def watch_tensor(tensor: Tensor) -> Edge:
    """Give a tensor an edge with a new stamp, so that active tapes follow it, and return the edge.

    Raises:
        DTypeError: if the dtype cannot carry a gradient.
    """
    if not is_differentiable(tensor.dtype):
        raise DTypeError(f"watch: {tensor.dtype} has no gradient", got=str(tensor.spec),
                         hint="Cast to a float first, for example .astype(hf.float32).")
    if tensor._edge is None:
        node = make_node(WATCHED, (), {}, (tensor.spec,), backend="host")
        tensor._edge = (node, 0)
    renew(tensor._edge[0])
    return tensor._edge


def describe(value: Any) -> str:
    """Describe an argument for error messages: tensors by spec, others by repr."""
    if isinstance(value, TensorMethods | TensorSpec):
        return str(value if isinstance(value, TensorSpec) else cast(Any, value).spec)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"numpy {format_spec(value.shape, as_dtype(value.dtype))}"
    if isinstance(value, list | tuple) and any(isinstance(item, TensorMethods) for item in cast(Any, value)):
        return "[" + ", ".join(describe(item) for item in cast("list[Any]", value)) + "]"
    return repr(value)[:60]


__all__ = [
    "Node", "Tensor", "as_tensor", "asarray", "describe", "host_array", "make_tensor", "short_name",
]


# -- values for other libraries: the buffer protocol, NumPy's array interface, and Arrow ------------------------------

Array = np.ndarray[Any, Any]


def buffer_of(array: Array) -> memoryview:
    """Return a read-only view of a value's memory.

    Raises:
        DTypeError: buffers have no format for the dtype.
    """
    if array.dtype == bfloat16:
        raise DTypeError("memoryview: buffers have no format for bfloat16",
                         hint="Use memoryview(t.astype(hf.float32)).")
    return memoryview(array)


def array_interface(array: Array) -> dict[str, Any]:
    """Return what NumPy's array interface says of a value, of which a contiguous array is the memory; it is read-only.

    Raises:
        AttributeError: the interface has no name for the dtype; ``__array__`` gives such an array.
    """
    if array.dtype == bfloat16:
        raise AttributeError("the array interface has no name for bfloat16")
    memory = array if array.flags.c_contiguous else array.copy()  # NumPy reads `data` as one piece
    memory.flags.writeable = False
    # Pillow asks for `tobytes` where there are strides, for a buffer where there are none: before Python 3.12 no class
    # of Python's is a buffer.
    typestr = array.dtype.str
    return {"shape": array.shape, "typestr": typestr, "strides": memory.strides, "data": memory, "version": 3}


def arrow_of(array: Array, schema: Any) -> Any:
    """Return the two capsules of a value as an Arrow array; axes after the first are lists of fixed sizes.

    Args:
        array: the value.
        schema: the capsule of the type that the consumer asks for, or None.

    Raises:
        ShapeError: the value has no axis.
        DTypeError: Arrow has no such numbers.
        MissingPackageError: pyarrow is not installed.
    """
    if not array.shape:
        raise ShapeError("arrow: an array has an axis", got=f"shape {array.shape}", hint="Use t.item().")
    if array.dtype == bfloat16 or kind_of(array.dtype) == "complex":
        raise DTypeError(f"arrow: there are no arrays of {array.dtype}",
                         hint="Cast it with .astype(hf.float32), or take .real and .imag.")
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        raise MissingPackageError("arrow: an array of Arrow is made by the package pyarrow",
                                  hint="Install it: pip install pyarrow. Or pass t.numpy().") from error
    rows = arrow.array(array.reshape(-1))
    return reduce(arrow.FixedSizeListArray.from_arrays, array.shape[:0:-1], rows).__arrow_c_array__(schema)


# -- `x.size(0)`, PyTorch's spelling of `x.shape[0]`, raises an error that says so: here `x.size` is a number ---------

# An attribute that is called is read by an opcode of its own in Python 3.11, and marked by a bit of the argument later.
_OWN = sys.version_info < (3, 12)
_READ = opmap["LOAD_METHOD" if _OWN else "LOAD_ATTR"]


def refuse_call(frame: FrameType) -> None:
    """Raise if a frame reads an attribute in order to call it.

    Raises:
        ArgumentTypeError: if it does.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] == _READ and (_OWN or code[at + 1] & 1):
        raise_called()


def raise_called() -> NoReturn:
    """Raise the error of a size that is called."""
    raise ArgumentTypeError("size: it is the number of elements, which cannot be called",
                            hint="The size of an axis is x.shape[axis], and the shape is x.shape.")
