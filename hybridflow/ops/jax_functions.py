"""`hf.from_jax`: JAX functions as operations, differentiable to any order, eager and compiled."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple, ParamSpec, overload

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.backend.jax_shim import enable_x64, jaxpr_as_function, x64_enabled
from hybridflow.core import structures
from hybridflow.core.attrs import attr_key
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import WIDE, as_dtype, float32, float64, int32, int64, is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, NumberRangeError
from hybridflow.core.node import format_where, user_place
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.core.traced_number import SeenNumbers, TracedNumber
from hybridflow.core.variable import Variable

P = ParamSpec("P")

Specs = tuple[tuple[tuple[int, ...], Any], ...]
"""The shapes and dtypes of a call's arrays."""

_MOST_KEPT = 64
"""The most variants kept per function; static arguments, captured objects and structures make a variant."""


class TracedByJax(NamedTuple):
    """The program that JAX traced from a function for given shapes.

    Attributes:
        run: the traced program, which takes and returns flat sequences of arrays.
        tree: the structure of the result.
        specs: the specs of the result's leaves.
        effect: whether the program has a side effect, such as printing.
    """

    run: Callable[..., Sequence[Any]]
    tree: Any
    specs: tuple[TensorSpec, ...]
    effect: bool


class JaxFunction:
    """A function of flat JAX arrays that serves as an attribute of a node; two are equal only if identical.

    Args:
        name: a name for graphs and messages.
        function: a function that takes JAX arrays and returns a pytree of them.
        wide: whether JAX keeps 64-bit dtypes while it traces the function.
        numbers: the positions of arrays that are Python numbers to the function: they leave other arrays' dtypes alone.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], wide: bool, numbers: frozenset[int] = frozenset()
    ) -> None:
        self.name = name
        self._numbers = numbers
        self.executables: dict[Any, Any] = {}
        self._function = function
        self._wide = wide
        self._traced: dict[Specs, TracedByJax] = {}
        self._pullbacks: dict[Any, JaxFunction] = {}

    def traced(self, values: Iterable[Any]) -> TracedByJax:
        """Return the traced program for arrays (or specs) of these shapes; symbolic sizes become their numbers."""
        key = tuple([(tuple(map(int, value.shape)), np.dtype(value.dtype)) for value in values])
        traced = self._traced.get(key)
        if traced is None:
            arrays = [
                jax.ShapeDtypeStruct(shape, dtype, weak_type=index in self._numbers)
                for index, (shape, dtype) in enumerate(key)
            ]
            try:
                with enable_x64(self._wide):
                    jaxpr, shapes = jax.make_jaxpr(self._function, return_shape=True)(*arrays)
            except Exception as error:
                place = format_where(user_place())
                error.add_note(f"while jax traced {self.name}, a function of hf.from_jax, called at {place}")
                raise
            leaves, tree = structures.flatten(shapes)
            specs = tuple([make_spec(tuple(leaf.shape), as_dtype(leaf.dtype)) for leaf in leaves])
            # A NumPy array that the function closes over may be written to later; the program keeps what it was.
            consts = [const.copy() if isinstance(const, np.ndarray) else const for const in jaxpr.consts]
            run = jaxpr_as_function(jaxpr.replace(consts=consts))
            traced = self._traced[key] = TracedByJax(run, tree, specs, bool(jaxpr.effects))
        return traced

    def pullback(self, wanted: tuple[int, ...], given: tuple[bool, ...]) -> JaxFunction:
        """Return the function from ``(*inputs, *given cotangents)`` to the gradients of the wanted inputs."""
        key = (wanted, given)
        pullback = self._pullbacks.get(key)
        if pullback is None:
            run = functools.partial(self._pull, wanted, given)
            pullback = self._pullbacks[key] = JaxFunction(f"{self.name}_gradient", run, self._wide)
        return pullback

    def _pull(self, wanted: tuple[int, ...], given: tuple[bool, ...], *values: Any) -> Any:
        count = len(values) - sum(given)
        xs, gs = values[:count], iter(values[count:])
        run = self.traced(xs).run

        def of_wanted(*some: Any) -> tuple[Any, ...]:
            full = list(xs)
            for position, value in zip(wanted, some, strict=True):
                full[position] = value
            return tuple(run(*full))

        outputs, pull = jax.vjp(of_wanted, *[xs[i] for i in wanted])
        return pull(tuple([next(gs) if has else _zero(y) for has, y in zip(given, outputs, strict=True)]))

    def __repr__(self) -> str:
        return f"<jax {self.name}>"


def _zero(y: Any) -> Any:
    if jnp.issubdtype(y.dtype, jnp.inexact):
        return jnp.zeros(y.shape, y.dtype)
    return np.zeros(y.shape, jax.dtypes.float0)


# -- the operation ------------------------------------------------------------------------------------------------


def _lower(*xs: Any, function: JaxFunction) -> Any:
    outputs = tuple(function.traced(xs).run(*xs))
    return outputs[0] if len(outputs) == 1 else outputs


def _infer(*specs: TensorSpec, function: JaxFunction) -> Any:
    result_specs = function.traced(specs).specs
    return result_specs[0] if len(result_specs) == 1 else result_specs


def _vjp(F: Any, g: Any, y: Any, *xs: Any, wanted: tuple[bool, ...], function: JaxFunction) -> list[Any]:
    del y
    gs = list(g) if isinstance(g, tuple) else [g]
    positions = tuple([index for index, x in enumerate(xs) if wanted[index] and is_differentiable(x.dtype)])
    gradients: list[Any] = [None] * len(xs)
    if positions:
        pull = function.pullback(positions, tuple([one is not None for one in gs]))
        results = F.jax_function(*xs, *[one for one in gs if one is not None], function=pull)
        several = results if isinstance(results, tuple | list) else (results,)
        for index, gradient in zip(positions, several, strict=True):
            gradients[index] = gradient
    return gradients


def jax_function(*xs: Tensor, function: JaxFunction) -> Any:
    """Run a function of JAX arrays as one operation.

    Args:
        *xs: the function's arguments.
        function: the function.

    Returns:
        The leaf of its result, or a tuple of the leaves if there are several.
    """
    op = WITH_EFFECT if function.traced(xs).effect else PURE
    return bind(op, xs, {"function": function})


def _record(name: str, *traits: str) -> Op:
    return register(
        Op(
            name,
            No("JAX runs it"),
            _lower,
            _infer,
            Joint(_vjp),
            saves=Saves(x="all"),
            samples=No("made by hf.from_jax; tested with it"),
            traits=frozenset({"foreign", *traits}),
            ulp=64,
            public=jax_function,
            onnx=No("JAX runs it"),
        )
    )


PURE = _record("jax_function")
WITH_EFFECT = _record("jax_function_with_effect", "effect")


# -- from_jax -----------------------------------------------------------------------------------------------------


@overload
def from_jax(
    fn: Callable[P, Any], /, *, static_argnames: Iterable[str] | str = (), name: str | None = None
) -> Callable[P, Any]: ...
@overload
def from_jax(
    fn: None = None, /, *, static_argnames: Iterable[str] | str = (), name: str | None = None
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def from_jax(
    fn: Callable[..., Any] | None = None, /, *, static_argnames: Iterable[str] | str = (), name: str | None = None
) -> Any:
    """Make a JAX function an operation on tensors: recorded by tapes, traced by `hf.compile`, differentiable.

    JAX's own rules give the gradients, to any order (`jax.custom_vjp` and `jax.custom_jvp` included). If JAX cannot
    differentiate the function, asking for its gradient is an error. The function is traced once per signature and
    runs compiled in both modes. JAX's 64-bit mode is on for the trace if the process has it on or if an argument has
    a 64-bit dtype. Sizes that `hf.compile` keeps symbolic become the numbers of the call.

    Args:
        fn: a pure function of JAX arrays; if left out, `from_jax` returns a decorator. JAX arrays that the function
            closes over are constants: pass them as arguments to get their gradients. If a global or
            enclosing variable that it reads is bound to another object, the function is traced again; what such an
            object holds is read once.
        static_argnames: parameters that the function gets unchanged; their values must be hashable.
        name: a name for graphs; the function's own if not given.

    Returns:
        A function of the same arguments, in any nesting. Tensors, Variables and arrays reach `fn` as JAX arrays;
        a Python number that changes from call to call does so too, unless the function needs it when it is traced;
        other values reach it unchanged, with one trace per value. The result has the structure of `fn`'s result, with
        tensors instead of arrays.

    Raises:
        ArgumentTypeError: `fn` is not callable, or an argument holds a value that is neither an array nor hashable.
        ArgumentError: a static argument is not a parameter of `fn`.

    Example:
        >>> import jax
        >>> import hybridflow as hf
        >>> normalise = hf.from_jax(lambda x: {"unit": x / jax.numpy.linalg.norm(x)})
        >>> normalise(hf.asarray([3.0, 4.0]))
        {'unit': Tensor([0.6, 0.8], dtype=float32)}
        >>> hf.grad(hf.from_jax(jax.numpy.sin))(0.0)
        Tensor(1., dtype=float32)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise ArgumentTypeError(f"from_jax: a {type(function).__name__} is not callable",
                                    hint="Pass a function of JAX arrays.")
        static = frozenset([static_argnames] if isinstance(static_argnames, str) else static_argnames)
        caller = _Caller(function, static, name or _name_of(function))

        @functools.wraps(function, updated=())
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return caller(args, kwargs)

        return wrapped

    return decorate if fn is None else decorate(fn)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name != "<lambda>" else "lambda"


_ARRAYS = (Tensor, Variable, np.ndarray, np.generic, jax.Array)
_NUMBERS: dict[type, tuple[Any, Any]] = {float: (float32, float64), int: (int32, int64), TracedNumber: (None, None)}
"""The dtypes that JAX gives Python numbers, without and with its 64-bit mode."""


class _Static:
    """A leaf that holds the value of a static argument."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Caller:
    """The caller of one JAX function.

    It keeps one `JaxFunction` per structure of the arguments, values of Python arguments, and captured objects.
    """

    def __init__(self, function: Callable[..., Any], static: frozenset[str], name: str) -> None:
        self.function = function
        self.name = name
        self.static = static
        self.signature = _signature(function)
        self.captured = _CapturedObjects(function)
        self.variants: dict[Any, tuple[JaxFunction, Any]] = {}
        self.seen = SeenNumbers()
        self.needed: set[tuple[int, int]] = set()
        self.lock = threading.Lock()
        unknown = static - (self.signature.parameters.keys() if self.signature is not None else set())
        if unknown:
            raise ArgumentError(f"from_jax: static_argnames {sorted(unknown)} are no parameters of {name}",
                                got=f"{name}{self.signature or '(...)'}", hint="Name parameters of the function.")

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = CONTEXT.get()
        observations = None if context is None else getattr(context.tracer, "observations", None)
        if observations is not None:
            observations.function(self.function)  # if this changes, the trace that calls it is made again
        if self.static:
            args, kwargs = self._with_static(args, kwargs)
        leaves, tree = structures.flatten((args, kwargs))
        made = {index: _tensor(leaf, self.name) for index, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)}
        wide = x64_enabled() or any(tensor.dtype.num in WIDE for tensor in made.values())
        numbers = self._inputs(leaves, wide)
        try:
            function, tensors, traced = self._traced(leaves, tree, {**made, **numbers}, numbers, wide)
        except Exception:
            if not numbers:
                raise
            self.needed |= {(len(leaves), index) for index in numbers}
            function, tensors, traced = self._traced(leaves, tree, made, {}, wide)
        if not traced.specs:
            return structures.unflatten(traced.tree, ())
        outputs = jax_function(*tensors, function=function)
        return structures.unflatten(traced.tree, outputs if isinstance(outputs, tuple) else (outputs,))

    def _inputs(self, leaves: list[Any], wide: bool) -> dict[int, Tensor]:
        """Return the numbers that have changed since an earlier call as tensors, by their place among the leaves.

        Those that the function needs when it is traced, such as the number of steps of a loop, are left out.
        """
        found: dict[int, Tensor] = {}
        for index, leaf in enumerate(leaves):
            kind, place = type(leaf), (len(leaves), index)
            if kind not in _NUMBERS or place in self.needed:
                continue
            dtype = _NUMBERS[type(leaf.value) if kind is TracedNumber else kind][wide]
            if kind is TracedNumber or self.seen.has_changed(place, (kind, repr(leaf))):
                try:
                    found[index] = asarray(leaf, dtype=dtype)
                except NumberRangeError:
                    continue
        return found

    def _traced(
        self, leaves: list[Any], tree: Any, made: dict[int, Tensor], numbers: Container[int], wide: bool
    ) -> tuple[JaxFunction, list[Tensor], TracedByJax]:
        """Return the variant for these arguments, its tensors, and its program."""
        positions = tuple(sorted(made))
        tensors = [made[index] for index in positions]
        fixed = [leaf for index, leaf in enumerate(leaves) if index not in made]
        weak = frozenset([place for place, index in enumerate(positions) if index in numbers])
        function = self._variant(tree, positions, fixed, wide, weak)
        return function, tensors, function.traced(tensors)

    def _with_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, each static one wrapped in a `_Static` leaf."""
        assert self.signature is not None
        bound = self.signature.bind(*args, **kwargs)
        for name in self.static & bound.arguments.keys():
            bound.arguments[name] = _Static(bound.arguments[name])
        return bound.args, bound.kwargs

    def _variant(
        self, tree: Any, positions: tuple[int, ...], fixed: list[Any], wide: bool, weak: frozenset[int]
    ) -> JaxFunction:
        captured = self.captured.read()
        try:
            key = (tree, positions, wide, weak, tuple([_key(leaf) for leaf in fixed]), tuple(map(id, captured)))
            variant = self.variants.get(key)
        except TypeError:
            kinds = sorted({type(leaf).__name__ for leaf in fixed if not _is_hashable(leaf)})
            raise ArgumentTypeError(f"from_jax: {self.name} got {', '.join(kinds)}, neither an array nor hashable",
                                    hint="Close over it, or register its class with jax.tree_util.") from None
        if variant is None:
            with self.lock:
                while len(self.variants) >= _MOST_KEPT:
                    self.variants.pop(next(iter(self.variants)))
                values = [leaf.value if isinstance(leaf, _Static) else leaf for leaf in fixed]
                wrapped = JaxFunction(self.name, functools.partial(self._run, tree, positions, values), wide, weak)
                variant = self.variants[key] = (wrapped, captured)  # keeping the objects alive keeps their ids unique
        return variant[0]

    def _run(self, tree: Any, positions: tuple[int, ...], fixed: list[Any], *arrays: Any) -> Any:
        arrays_left, fixed_left, of_arrays = iter(arrays), iter(fixed), frozenset(positions)
        leaves = [next(arrays_left) if index in of_arrays else next(fixed_left) for index in range(tree.num_leaves)]
        args, kwargs = structures.unflatten(tree, leaves)
        return structures.opened(self.function(*args, **kwargs))


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _tensor(leaf: Any, name: str) -> Tensor:
    """Return an argument as a tensor.

    Raises:
        ArgumentTypeError: the argument is a typed random key, which is not an array of numbers.
    """
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(f"from_jax: {name} got an array of {leaf.dtype}, which is no tensor",
                                hint="Pass jax.random.key_data(key) and wrap it inside, or close over the key.")
    return as_tensor(leaf)


def _key(leaf: Any) -> Any:
    """Return a cache key that is equal for two leaves only if JAX traces the same program for them.

    Raises:
        TypeError: the leaf is not hashable.
    """
    value = leaf.value if isinstance(leaf, _Static) else leaf
    key = attr_key(value)
    hash(key)
    return type(value), key


def _is_hashable(leaf: Any) -> bool:
    try:
        _key(leaf)
    except TypeError:
        return False
    return True


# -- what a function captures -------------------------------------------------------------------------------------


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code, and the functions in it, look up outside of their own scope."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class _CapturedObjects:
    """The objects to which the global and enclosing names that a function reads are bound."""

    def __init__(self, function: Callable[..., Any]) -> None:
        plain: Any = inspect.unwrap(function)
        plain = getattr(plain, "__func__", plain)
        if isinstance(plain, FunctionType):
            self.cells: tuple[Any, ...] = plain.__closure__ or ()
            self.globals = plain.__globals__
            self.names = tuple(sorted({name for name in _names(plain.__code__) if name in self.globals}))
        else:
            self.cells, self.globals, self.names = (), {}, ()

    def read(self) -> tuple[Any, ...]:
        """Return the objects that the names are bound to now."""
        objects = [self.globals.get(name) for name in self.names]
        for cell in self.cells:
            try:
                objects.append(cell.cell_contents)
            except ValueError:  # not bound yet, such as a function's own name while it is decorated
                objects.append(None)
        return tuple(objects)


__all__ = ["from_jax"]
