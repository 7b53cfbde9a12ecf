"""Functions of tensors, with TensorFlow 1's names and arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow.compat.v1.graph import (
    Graph,
    Handle,
    Operation,
    Tensor,
    added,
    dtype_of,
    get_default_graph,
    lifted,
    mapped,
)
from hybridflow.core.context import current
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.tensor import Tensor as Value
from hybridflow.ir.builder import READ

# -- making tensors -----------------------------------------------------------------------------------------------


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """Add an input that every run is fed.

    Args:
        dtype: its dtype.
        shape: its sizes; None means any size.
        name: its name; ``Placeholder`` if not given.

    Raises:
        ArgumentError: there is no shape: even the number of axes would be open.
    """
    if shape is None:
        raise ArgumentError("placeholder: the shape is not given", hint="Say how many axes it has: shape=[None, 3].")
    graph = get_default_graph()
    full = graph.unique_name(name or "Placeholder")
    sizes = list(shape) if isinstance(shape, list | tuple) else [shape]
    with graph.adding() as construction:
        tensor = construction.placeholder([_size(size) for size in sizes], dtype_of(dtype), full.replace("/", "_"))
        return graph.wrapped(tensor, full)


def _size(size: Any) -> Any:
    return getattr(size, "value", size)


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str = "Const") -> Tensor:
    """Add a value to the graph; with a shape, it is broadcast to it."""
    if isinstance(value, Handle):
        raise ArgumentTypeError("constant: it is given a tensor of the graph", got=repr(value))
    array = np.asarray(hf.asarray(value, dtype=None if dtype is None else dtype_of(dtype)))
    if shape is not None:
        array = np.broadcast_to(array, shape) if array.size == 1 else array.reshape(shape)
    graph = get_default_graph()
    full = graph.unique_name(name)
    with graph.adding():
        return graph.wrapped(_tracer().constant(np.array(array)), full)


def _tracer() -> Any:
    """Return the builder that operations are added to: that of the graph, or of a branch or loop body in it."""
    return current().tracer


def convert_to_tensor(value: Any, dtype: Any = None, name: str = "Const") -> Any:
    """Return a tensor of the graph: a value is added as a constant."""
    return value if isinstance(value, Handle) else constant(value, dtype, name=name)


def _filled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def fill(shape: Any, dtype: Any = float32, name: str = name) -> Any:
        return added(lambda sizes: function(tuple(sizes), dtype=dtype_of(dtype)), (_sizes(shape),), {}, name)

    fill.__name__ = fill.__qualname__ = name
    fill.__doc__ = f"Add {name} of a shape."
    return fill


def _sizes(shape: Any) -> list[Any]:
    """Return sizes as a list, constants among them as numbers."""
    if isinstance(shape, int | np.integer):
        return [shape]
    return [_size(one) for one in shape]


zeros = _filled(hf.zeros, "zeros")
ones = _filled(hf.ones, "ones")
zeros_like = lifted(hf.zeros_like, "zeros_like")
ones_like = lifted(hf.ones_like, "ones_like")
eye = lifted(hf.eye, "eye")
linspace = lifted(hf.linspace, "linspace")
range = lifted(hf.arange, "range")


def fill(dims: Any, value: Any, name: str = "Fill") -> Any:
    """Add a tensor of one value."""
    return added(lambda one: hf.broadcast_to(hf.asarray(one), tuple(_sizes(dims))), (value,), {}, name)


def one_hot(
    indices: Any, depth: int, on_value: float = 1.0, off_value: float = 0.0, axis: int = -1, dtype: Any = float32,
    name: str = "one_hot",
) -> Any:
    """Add rows with one value at the index and another elsewhere; an index that is no class gives only the latter."""

    def rows(ids: Any) -> Any:
        hot = hf.expand_dims(hf.asarray(ids), -1) == hf.arange(depth)
        made = hf.where(hot, hf.asarray(on_value, dtype=dtype), hf.asarray(off_value, dtype=dtype))
        return made if axis == -1 else hf.moveaxis(made, -1, axis)

    return added(rows, (indices,), {}, name)


def shape(input: Any, name: str | None = None) -> tuple[Any, ...]:
    """Return the sizes of a tensor as a tuple, which other functions take; an open size is a symbol in it."""
    del name
    return input.spec().shape


def rank(input: Any) -> int:
    """Return the number of axes."""
    return len(input.spec().shape)


# -- random numbers -----------------------------------------------------------------------------------------------


def set_random_seed(seed: int) -> None:
    """Make the random numbers of the following runs repeatable. They are hybridflow's, not TensorFlow's."""
    hf.random.seed(seed)


def _source(seed: int | None) -> Any:
    return hf.random if seed is None else hf.random.Generator(seed)


def random_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32, seed: int | None = None,
    name: str = "random_normal",
) -> Any:
    """Add normally distributed numbers, which are new in every run."""
    draw = _source(seed).normal
    kind = dtype_of(dtype)
    return added(lambda m, s: draw(tuple(_sizes(shape)), dtype=kind, mean=m, std=s), (mean, stddev), {}, name)


def truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32, seed: int | None = None,
    name: str = "truncated_normal",
) -> Any:
    """Add normally distributed numbers that are not further than two standard deviations from the mean."""
    draw = _source(seed).truncated_normal
    return added(lambda m, s: draw(tuple(_sizes(shape)), dtype=dtype_of(dtype)) * s + m, (mean, stddev), {}, name)


def random_uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = float32, seed: int | None = None,
    name: str = "random_uniform",
) -> Any:
    """Add numbers evenly distributed over [minval, maxval); integers if the dtype is an integer."""
    source = _source(seed)
    if np.issubdtype(dtype_of(dtype), np.integer):
        if maxval is None:
            raise ArgumentError("random_uniform: integers need maxval", hint="Write maxval=n.")
        return added(lambda: hf.astype(source.integers(minval, maxval, tuple(_sizes(shape))), dtype), (), {}, name)
    high = 1.0 if maxval is None else maxval
    kind = dtype_of(dtype)
    return added(lambda a, b: source.uniform(tuple(_sizes(shape)), a, b, dtype=kind), (minval, high), {}, name)


def _initializer(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    def outer(*args: Any, seed: int | None = None, dtype: Any = float32, **kwargs: Any) -> Callable[..., Any]:
        def initial(shape: Any, dtype: Any = dtype, partition_info: Any = None) -> Any:
            del partition_info
            return make(shape, *args, dtype=dtype, seed=seed, **kwargs)

        return initial

    outer.__name__ = outer.__qualname__ = name
    outer.__doc__ = "Return an initializer for `get_variable` and layers: a function of shape and dtype."
    return outer


def _constant(shape: Any, value: Any = 0, *, dtype: Any, seed: Any) -> Any:
    del seed
    return constant(np.asarray(value), dtype, shape)


def _ones(shape: Any, *, dtype: Any, seed: Any) -> Any:
    return _constant(shape, 1, dtype=dtype, seed=seed)


def _scaled(shape: Sequence[int], share: float, dtype: Any, seed: int | None, *, fans: str, uniform: bool) -> Any:
    """Return numbers of a variance that follows from the sizes: that of Glorot and Bengio, of He, or of LeCun."""
    window = math.prod(shape[:-2])
    into, out = (shape[-2] * window, shape[-1] * window) if len(shape) > 1 else (shape[0], shape[0])
    count = {"in": into, "mean": (into + out) / 2}[fans]
    if uniform:
        limit = math.sqrt(3 * share / count)
        return random_uniform(shape, -limit, limit, dtype, seed)
    return truncated_normal(shape, 0.0, math.sqrt(share / count) / 0.87962566103423978, dtype, seed)


random_normal_initializer = _initializer("random_normal_initializer", random_normal)
random_uniform_initializer = _initializer("random_uniform_initializer", random_uniform)
truncated_normal_initializer = _initializer("truncated_normal_initializer", truncated_normal)
constant_initializer = _initializer("constant_initializer", _constant)
zeros_initializer = _initializer("zeros_initializer", _constant)
ones_initializer = _initializer("ones_initializer", _ones)
glorot_uniform_initializer = _initializer(
    "glorot_uniform_initializer",
    lambda shape, *, dtype, seed: _scaled(shape, 1.0, dtype, seed, fans="mean", uniform=True),
)
glorot_normal_initializer = _initializer(
    "glorot_normal_initializer",
    lambda shape, *, dtype, seed: _scaled(shape, 1.0, dtype, seed, fans="mean", uniform=False),
)
he_normal_initializer = _initializer(
    "he_normal_initializer",
    lambda shape, *, dtype, seed: _scaled(shape, 2.0, dtype, seed, fans="in", uniform=False),
)

# -- arithmetic ---------------------------------------------------------------------------------------------------

add = lifted(hf.add, "add")
subtract = lifted(hf.subtract, "subtract")
multiply = lifted(hf.multiply, "multiply")
divide = lifted(hf.divide, "divide")
truediv = lifted(hf.divide, "truediv")
floordiv = lifted(hf.floor_divide, "floordiv")
mod = lifted(hf.remainder, "mod")
pow = lifted(hf.pow, "pow")
negative = lifted(hf.negative, "negative")
abs = lifted(hf.abs, "abs")
sign = lifted(hf.sign, "sign")
square = lifted(hf.square, "square")
sqrt = lifted(hf.sqrt, "sqrt")
rsqrt = lifted(lambda x: 1.0 / hf.sqrt(x), "rsqrt")
exp = lifted(hf.exp, "exp")
log = lifted(hf.log, "log")
log1p = lifted(hf.log1p, "log1p")
sin = lifted(hf.sin, "sin")
cos = lifted(hf.cos, "cos")
tan = lifted(hf.tan, "tan")
tanh = lifted(hf.tanh, "tanh")
sigmoid = lifted(hf.nn.sigmoid, "sigmoid")
floor = lifted(hf.floor, "floor")
ceil = lifted(hf.ceil, "ceil")
round = lifted(hf.round, "round")
maximum = lifted(hf.maximum, "maximum")
minimum = lifted(hf.minimum, "minimum")
squared_difference = lifted(lambda x, y: hf.square(x - y), "squared_difference")
is_nan = lifted(hf.isnan, "is_nan")
is_finite = lifted(hf.isfinite, "is_finite")
equal = lifted(hf.equal, "equal")
not_equal = lifted(hf.not_equal, "not_equal")
less = lifted(hf.less, "less")
less_equal = lifted(hf.less_equal, "less_equal")
greater = lifted(hf.greater, "greater")
greater_equal = lifted(hf.greater_equal, "greater_equal")
logical_and = lifted(hf.logical_and, "logical_and")
logical_or = lifted(hf.logical_or, "logical_or")
logical_not = lifted(hf.logical_not, "logical_not")
where = lifted(hf.where, "where")
identity = lifted(lambda input: _tracer().bind(READ, (hf.asarray(input),), {}), "identity")
stop_gradient = lifted(hf.stop_gradient, "stop_gradient")
add_n = lifted(lambda inputs: sum(inputs[1:], inputs[0]), "add_n")
cumsum = lifted(lambda x, axis=0: hf.cumulative_sum(x, axis=axis), "cumsum")


def cast(x: Any, dtype: Any, name: str = "Cast") -> Any:
    """Add a conversion to another dtype."""
    return added(lambda value: hf.astype(hf.asarray(value), dtype_of(dtype)), (x,), {}, name)


def to_float(x: Any, name: str = "ToFloat") -> Any:
    """Add a conversion to float32."""
    return cast(x, float32, name)


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str = "clip_by_value") -> Any:
    """Add the clipping of all elements to a range."""
    return added(hf.clip, (t, clip_value_min, clip_value_max), {}, name)


def clip_by_norm(t: Any, clip_norm: Any, name: str = "clip_by_norm") -> Any:
    """Add the scaling of a tensor whose norm is above a limit."""
    return added(hf.clip_by_norm, (t, clip_norm), {}, name)


def global_norm(t_list: Sequence[Any], name: str = "global_norm") -> Any:
    """Add the norm of all elements of tensors; None among them is left out."""
    return added(hf.global_norm, ([one for one in t_list if one is not None],), {}, name)


def clip_by_global_norm(t_list: Sequence[Any], clip_norm: Any, name: str = "clip_by_global_norm") -> tuple[Any, Any]:
    """Add the scaling of tensors whose norm together is above a limit; return them and the norm before."""
    norm = global_norm(t_list)

    def scaled(norm: Any, limit: Any, tensors: Any) -> Any:
        factor = limit / hf.maximum(norm, limit)
        return [one * factor for one in tensors]

    scaled_tensors = iter(added(scaled, (norm, clip_norm, [one for one in t_list if one is not None]), {}, name))
    return [None if one is None else next(scaled_tensors) for one in t_list], norm


# -- products -----------------------------------------------------------------------------------------------------


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: str = "MatMul") -> Any:
    """Add a product of matrices, either of which may be transposed first."""

    def product(x: Any, y: Any) -> Any:
        x, y = hf.asarray(x), hf.asarray(y)
        return hf.matmul(x.mT if transpose_a else x, y.mT if transpose_b else y)

    return added(product, (a, b), {}, name)


tensordot = lifted(lambda a, b, axes: hf.tensordot(a, b, axes=axes), "tensordot")
einsum = lifted(hf.einsum, "einsum")

# -- reductions ---------------------------------------------------------------------------------------------------


def _reduction(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def reduce(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str = name, reduction_indices: Any = None,
        keep_dims: bool = False,
    ) -> Any:
        chosen = axis if reduction_indices is None else reduction_indices
        chosen = tuple(chosen) if isinstance(chosen, list) else chosen
        keep = keepdims or keep_dims
        return added(lambda x: function(hf.asarray(x), axis=chosen, keepdims=keep), (input_tensor,), {}, name)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"Add `{function.__name__}` over axes; ``reduction_indices`` and ``keep_dims`` are older names."
    return reduce


reduce_sum = _reduction(hf.sum, "reduce_sum")
reduce_mean = _reduction(hf.mean, "reduce_mean")
reduce_max = _reduction(hf.max, "reduce_max")
reduce_min = _reduction(hf.min, "reduce_min")
reduce_prod = _reduction(hf.prod, "reduce_prod")
reduce_all = _reduction(hf.all, "reduce_all")
reduce_any = _reduction(hf.any, "reduce_any")
reduce_logsumexp = _reduction(hf.logsumexp, "reduce_logsumexp")


def argmax(input: Any, axis: int = 0, name: str = "ArgMax", output_type: Any = hf.int64, dimension: Any = None) -> Any:
    """Add the index of the largest element along an axis, the first one by default."""
    chosen = axis if dimension is None else dimension
    return added(lambda x: hf.astype(hf.argmax(x, axis=chosen), output_type), (input,), {}, name)


def argmin(input: Any, axis: int = 0, name: str = "ArgMin", output_type: Any = hf.int64, dimension: Any = None) -> Any:
    """Add the index of the smallest element along an axis, the first one by default."""
    chosen = axis if dimension is None else dimension
    return added(lambda x: hf.astype(hf.argmin(x, axis=chosen), output_type), (input,), {}, name)


# -- shapes -------------------------------------------------------------------------------------------------------


def reshape(tensor: Any, shape: Any, name: str = "Reshape") -> Any:
    """Add the same elements in another shape."""
    return added(lambda x: hf.reshape(hf.asarray(x), tuple(_sizes(shape))), (tensor,), {}, name)


def transpose(a: Any, perm: Any = None, name: str = "transpose") -> Any:
    """Add a reordering of axes: reversed, or as `perm` says."""

    def reordered(x: Any) -> Any:
        axes = tuple(perm) if perm is not None else tuple(reversed([*np.arange(x.ndim).tolist()]))
        return hf.permute_dims(x, axes)

    return added(reordered, (a,), {}, name)


def expand_dims(input: Any, axis: Any = None, name: str = "ExpandDims", dim: Any = None) -> Any:
    """Add an axis of size 1."""
    return added(lambda x: hf.expand_dims(x, axis=axis if dim is None else dim), (input,), {}, name)


def squeeze(input: Any, axis: Any = None, name: str = "Squeeze") -> Any:
    """Take away axes of size 1."""

    def squeezed(x: Any) -> Any:
        sizes = [number for number, size in enumerate(x.shape) if not isinstance(size, Dim) and size == 1]
        chosen = sizes if axis is None else axis if isinstance(axis, list | tuple) else [axis]
        return hf.squeeze(x, axis=tuple(chosen))

    return added(squeezed, (input,), {}, name)


concat = lifted(lambda values, axis: hf.concat(values, axis=axis), "concat")
stack = lifted(lambda values, axis=0: hf.stack(values, axis=axis), "stack")
pad = lifted(lambda tensor, paddings: hf.pad(tensor, [tuple(one) for one in np.asarray(paddings).tolist()]), "Pad")
tile = lifted(lambda input, multiples: hf.tile(input, tuple(multiples)), "Tile")
reverse = lifted(lambda tensor, axis: hf.flip(tensor, axis=tuple(axis)), "reverse")


def unstack(value: Any, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Any]:
    """Return the parts of a tensor along an axis as a list."""
    del num
    return list(added(lambda x: hf.unstack(x, axis=axis), (value,), {}, name))


def split(value: Any, num_or_size_splits: Any, axis: int = 0, name: str = "split") -> list[Any]:
    """Return parts of a tensor: a number of equal ones, or parts of given sizes."""
    cuts = num_or_size_splits
    if not isinstance(cuts, int):
        cuts = np.cumsum(list(cuts))[:-1].tolist()
    return list(added(lambda x: hf.split(x, cuts, axis=axis), (value,), {}, name))


def gather(params: Any, indices: Any, axis: int = 0, name: str = "Gather") -> Any:
    """Add elements chosen by indices along an axis."""
    return added(lambda x, i: hf.take(x, hf.asarray(i), axis=axis), (params, indices), {}, name)


# -- control flow -------------------------------------------------------------------------------------------------


def _inside(graph: Graph, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of handles as one of tensors, for use as the body of a branch or loop."""

    def call(*args: Any) -> Any:
        results = function(*mapped(lambda one: graph.wrapped(one, "argument") if isinstance(one, Value) else one, args))
        return mapped(lambda one: one.reading() if isinstance(one, Handle) else one, results)

    return call


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str = "cond") -> Any:
    """Add a choice between two functions without arguments."""
    graph = get_default_graph()
    return added(lambda p: hf.cond(p, _inside(graph, true_fn), _inside(graph, false_fn)), (pred,), {}, name)


def while_loop(
    cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any, maximum_iterations: int | None = None,
    name: str = "while", **options: Any,
) -> Any:
    """Add a loop; a gradient through it needs `maximum_iterations`.

    Raises:
        ArgumentTypeError: another option than those that say how TensorFlow runs the loop.
    """
    _without_effect("while_loop", options, ("parallel_iterations", "back_prop", "swap_memory", "shape_invariants"))
    graph = get_default_graph()

    def run(values: Any) -> Any:
        return hf.while_loop(_inside(graph, cond), _inside(graph, body), values, max_iterations=maximum_iterations)

    return added(run, (loop_vars,), {}, name)


def _without_effect(function: str, given: dict[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ArgumentTypeError(f"{function}: takes no keyword {name!r}")


def group(*inputs: Any, name: str = "group_deps") -> Operation:
    """Return an operation that performs others."""
    graph = get_default_graph()
    grouped = Operation(graph, graph.unique_name(name), [*graph.controls, *[one for one in inputs if one is not None]])
    graph.named[grouped.name] = grouped
    return grouped


def no_op(name: str = "NoOp") -> Operation:
    """Return an operation that does nothing but wait for the control dependencies."""
    return group(name=name)


def tuple_of(tensors: Sequence[Any], name: str = "tuple") -> list[Any]:
    """Return tensors that are all computed if one of them is needed."""
    graph = get_default_graph()
    with graph.control_dependencies([one for one in tensors if one is not None]):
        return [None if one is None else identity(one, name=name) for one in tensors]


def control_dependencies(control_inputs: Sequence[Any]) -> Any:
    """Make every operation of a block wait for others: a run that needs it performs them first."""
    return get_default_graph().control_dependencies(control_inputs)


def add_to_collection(name: str, value: Any) -> None:
    """Add a value to a collection of the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """Return the values of a collection of the default graph."""
    return get_default_graph().get_collection(key, scope)


def gradients(ys: Any, xs: Any, grad_ys: Any = None, name: str = "gradients") -> list[Any]:
    """Add the gradients of tensors, summed, with respect to others.

    Args:
        ys: a tensor or a list of tensors.
        xs: a tensor or Variable, or a list of them.
        grad_ys: gradients of `ys` to start from; ones if None.
        name: the name of the operations.

    Returns:
        A list of tensors, None where `ys` do not depend on one.
    """
    graph = get_default_graph()
    targets, sources = (list(one) if isinstance(one, list | tuple) else [one] for one in (ys, xs))
    starts = grad_ys if grad_ys is None or isinstance(grad_ys, list | tuple) else [grad_ys]

    def add(starts: Any) -> Any:
        states = [getattr(one, "state", None) for one in sources]
        ours = [one.reading() if state is None else state for one, state in zip(sources, states, strict=True)]
        return graph.traced.gradients([one.reading() for one in targets], ours, starts)

    return added(add, (None if starts is None else list(starts),), {}, name)
