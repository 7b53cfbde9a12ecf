"""`hf.to_jax`: hybridflow functions as pure JAX functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, cast

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.autodiff.jax_derivatives import evaluate_with_rules
from hybridflow.backend.jax_shim import Tracer, x64_enabled
from hybridflow.core import structures
from hybridflow.core.context import context_of, current
from hybridflow.core.dtypes import as_dtype, default_dtype, kind_of, short_name
from hybridflow.core.errors import DTypeError, TraceError
from hybridflow.core.functions import require_function
from hybridflow.core.node import format_where
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import Check, GraphBuilder
from hybridflow.ir.graph import Graph
from hybridflow.tracing.calls import output_tensor
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.xla_inputs import raw_value
from hybridflow.xla.executable import is_wide

P = ParamSpec("P")


def to_jax(fn: Callable[P, Any], /, *, freeze_variables: bool = False, checks: bool = True) -> Callable[P, Any]:
    """Turn a hybridflow function into a pure JAX function, for `jax.jit`, `jax.grad`, `jax.vmap`, `jax.jvp` etc.

    Every call traces `fn` for the shapes of its arguments, so call it inside `jax.jit`. JAX differentiates it by
    hybridflow's own rules, including the slopes at kinks, `hf.stop_gradient` and `hf.custom_gradient`. Loops and
    branches are differentiated by JAX's rules.

    A JAX function has no state. Tensors that `fn` closes over are constants. Reading a Variable is an error unless
    `freeze_variables` makes its current value a constant; assigning one is always an error. Drawing random numbers
    assigns a generator's state: draw them outside, with `jax.random` or `hf.random`, and pass them in.

    Where arrays lie on several devices, JAX divides the work among them. If the mesh has axes with explicit shardings,
    as those of `jax.make_mesh`, the results are whole on every device.

    Args:
        fn: a function of tensors, compiled by `hf.compile` or not.
        freeze_variables: whether to use the values that Variables have when `fn` is traced (`jax.jit` keeps these for
            good).
        checks: whether hybridflow's checks at run time, such as the range of indices, also fail the JAX call, by a
            callback to the host. False removes the checks, and an index out of range gives some value.

    Returns:
        A function of the same arguments, with JAX arrays in place of tensors, in any nesting; Python numbers are
        passed unchanged. Its result has the structure of `fn`'s, with JAX arrays in place of tensors.

    Raises:
        ArgumentTypeError: `fn` is not callable.

    The returned function raises:
        TraceError: it reads a Variable (without `freeze_variables`) or assigns one.
        DTypeError: it computes in 64 bits while JAX's 64-bit mode is off.

    Example:
        >>> import jax
        >>> import hybridflow as hf
        >>> square = hf.to_jax(lambda x: hf.sum(x * x))
        >>> jax.jit(jax.grad(square))(jax.numpy.arange(3.0)).tolist()
        [0.0, 2.0, 4.0]
    """
    require_function("to_jax", fn)
    traced: CompiledFunction[..., Any] = (
        cast("CompiledFunction[..., Any]", fn) if isinstance(fn, CompiledFunction) else CompiledFunction(fn)
    )
    name = getattr(fn, "__qualname__", type(fn).__name__)

    @functools.wraps(cast("Callable[P, Any]", fn), updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = structures.flatten((args, kwargs))
        values = {index: _array(leaf) for index, leaf in enumerate(leaves) if _is_array(leaf)}
        with context_of(None):
            builder = GraphBuilder(name)
        try:
            with context_of(builder, autocast=current().autocast):
                for index, value in values.items():
                    spec = make_spec(tuple(value.shape), as_dtype(value.dtype))
                    leaves[index] = builder.argument(spec, f"x{index}")
                given, named = structures.unflatten(tree, leaves)
                result, result_tree = structures.flatten(traced(*given, **named))
                outputs = [output_tensor(name, leaf) for leaf in result]
                _require_pure(builder, name, freeze_variables)
                graph = builder.finish(outputs)
        finally:
            builder.scope.alive = False
        _require_width(graph, name)
        inputs = [*values.values(), *[raw_value(tensor) for tensor, _ in builder.captures.values()]]
        inputs += [state.variable.current() for state in builder.variables.values()]
        results = _in_auto_axes(lambda *xs: tuple(evaluate_with_rules(graph, list(xs))))(*map(jnp.asarray, inputs))
        if checks:
            flags = results[len(outputs) :]
            for check, ok in zip(builder.checks, flags[0] if len(builder.checks) > 1 else flags, strict=True):
                _require(check, ok, name)
        return structures.unflatten(result_tree, results[: len(outputs)])

    return wrapped


def _in_auto_axes(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that XLA partitions, also where the current mesh has axes with explicit shardings.

    Its results are then whole on every device of such axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.explicit_axes:
        return run
    return jax.sharding.auto_axes(run, axes=mesh.explicit_axes, out_sharding=jax.sharding.PartitionSpec())


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | Tensor | Variable)


def _array(leaf: Any) -> Any:
    """Return an argument as an array; JAX's weakly typed numbers get the default dtypes of Python numbers."""
    if isinstance(leaf, Tensor | Variable):
        return raw_value(as_tensor(leaf))
    if isinstance(leaf, jax.Array) and leaf.weak_type and not leaf.ndim:
        numbers = {"bool": False, "int": 0, "float": 0.0, "complex": 0j}
        return leaf.astype(default_dtype(numbers[kind_of(as_dtype(leaf.dtype))]))
    return leaf


def _require_pure(builder: GraphBuilder, name: str, freeze: bool) -> None:
    """Raise if the function has state."""
    for state in builder.variables.values():
        variable = state.variable
        if state.assignments:
            raise TraceError(
                f"to_jax: {name} assigns Variable {variable.name!r}, and a JAX function has no state",
                got=f"{variable.spec} at {format_where(state.assignments[0].where)}",
                hint="Pass the value in and return the new one; draw random numbers outside and pass them in."
            )
        if not freeze:
            raise TraceError(f"to_jax: {name} reads Variable {variable.name!r}, and a JAX function has no state",
                             got=str(variable.spec),
                             hint="Pass its value as an argument, or take it as a constant with freeze_variables=True.")


def _require_width(graph: Graph, name: str) -> None:
    """Raise if JAX would silently narrow the graph's numbers."""
    if is_wide(graph) and not x64_enabled():
        wide = sorted({short_name(spec.dtype) for spec in _specs(graph) if spec.dtype.itemsize > 4})
        raise DTypeError(f"to_jax: {name} computes in {', '.join(wide)}, and JAX's 64-bit mode is off",
                         hint="Turn it on with jax.config.update('jax_enable_x64', True), or cast to 32 bits.")


def _specs(graph: Graph) -> Sequence[Any]:
    return [*graph.input_specs, *[spec for node in graph.walk() for spec in node.specs]]


def _require(check: Check, ok: Any, name: str) -> None:
    """Make a JAX call fail unless a condition holds: at once if it is known, else when the program runs."""

    def verify(value: Any) -> None:
        if not value:
            raise check.failure(name)

    if isinstance(ok, Tracer):
        jax.debug.callback(verify, ok)
    else:
        verify(ok)


__all__ = ["to_jax"]
