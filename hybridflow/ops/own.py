"""`hf.ops.register`: user-defined operations, which have everything that the package's own have."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.op import REGISTRY, No, Onnx, Op, OpFunction, Samples, Saves
from hybridflow.core.op import register as add_record
from hybridflow.ops.common import TensorSpec, as_tensor, broadcast_shapes, make_spec, promote
from hybridflow.ops.jax_rule import RuleFromLowering

_TRAITS = ("pointwise", "commutative", "dot", "idempotent", "involution")


def register(
    name: str,
    *,
    lower: Callable[..., Any],
    kernel: Callable[..., Any] | None = None,
    infer: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    saves: Sequence[int] | str | None = None,
    saves_result: bool = False,
    flops: Callable[..., Any] | None = None,
    samples: Samples | None = None,
    ulp: float = 4.0,
    traits: Sequence[str] = (),
    onnx: Onnx | None = None,
    doc: str | None = None,
) -> OpFunction[..., Any]:
    """Register an operation; return its function, which works wherever the package's own functions do.

    Call it when a module is imported. Graphs and artifacts that contain the operation refer to it by name, so a
    program that reads them must have registered it. ``hf.testing.check_op(function)`` runs every automatic check on
    the samples.

    Args:
        name: its name in graphs, with the name of your package in front: ``"mylib.squareplus"``.
        lower: a jax function ``(*arrays, **attrs)``: its parameters are those of the returned function. Tensors are
            given by position, attributes (numbers, texts, tuples of them) by name.
        kernel: a NumPy function with the same parameters, which eager code on the host runs; without one it runs the
            lowering.
        infer: the shape rule ``(*specs, **attrs)``, which returns the result's `hf.TensorSpec`, or a tuple of them, and
            raises for arguments that do not fit. It may be left out if the traits have ``"pointwise"``.
        vjp: the gradient rule ``(F, g, y, *xs, **attrs)``, which returns one gradient per input, or None for an input
            without one. `g` is the gradient of the result `y`; `F` has the functions of hf. Without one, the gradient
            is that of the lowering, taken by jax.
        saves: the positions of the inputs whose values the gradient rule reads, or ``"all"``, the default.
        saves_result: whether the rule reads `y`.
        flops: the number of floating-point operations ``(outputs, *inputs, **attrs)`` of specs; 0 if not given, or one
            per element of a pointwise operation.
        samples: a function of a NumPy generator that yields calls, `hf.ops.Sample`, and bad calls, `hf.ops.Bad`.
        ulp: the error bound of one element, in units in the last place of the result's dtype.
        traits: ``"pointwise"`` (each element of the result depends on the matching elements of the inputs, which are
            broadcast), ``"commutative"``, ``"dot"`` (it holds a product of matrices), ``"idempotent"``,
            ``"involution"``.
        onnx: the name of the equivalent ONNX operator, or a function that writes several; without one, exporting the
            operation to ONNX is an error.
        doc: the docstring of the returned function.

    Returns:
        The function; ``.op`` is the record.

    Raises:
        ArgumentError: the name has no dot or is taken, there is no shape rule, or a trait is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> import hybridflow as hf
        >>> softsign = hf.ops.register(
        ...     "example.softsign",
        ...     kernel=lambda x: x / (1 + np.abs(x)),
        ...     lower=lambda x: x / (1 + jnp.abs(x)),
        ...     vjp=lambda F, g, y, x: (g / F.square(1 + F.abs(x)),),
        ...     flops=lambda y, x: 3 * y.size,
        ...     samples=lambda rng: [hf.ops.Sample((rng.uniform(1, 2, (2, 3)).astype("float32"),))],
        ...     traits=["pointwise"],
        ... )
        >>> softsign(hf.asarray([1.0, -3.0]))
        Tensor([ 0.5 , -0.75], dtype=float32)
        >>> hf.grad(lambda x: hf.sum(softsign(x)))(hf.asarray([1.0, -3.0]))
        Tensor([0.25  , 0.0625], dtype=float32)
        >>> hf.testing.check_op(softsign)
    """
    pointwise = "pointwise" in traits
    _require(name, infer is not None or pointwise, traits)
    tensors, attrs = _parameters(name, lower)
    record = Op(
        name,
        kernel if kernel is not None else No("it was registered without a kernel"),
        lower,
        infer if infer is not None else _broadcast(name),
        vjp if vjp is not None else RuleFromLowering(name),
        saves=Saves(x=_saved(saves), y=saves_result and vjp is not None),
        samples=samples if samples is not None else No("it was registered without samples"),
        traits=frozenset(traits),
        ulp=ulp,
        onnx=onnx if onnx is not None else No("it was registered without an equivalent"),
    )
    if flops is not None:
        record.flops = flops
    elif pointwise:
        record.flops = _one_each
    made = _function(record, tensors, attrs, lower, doc)
    made.__module__ = sys._getframe(1).f_globals["__name__"]  # so the store knows: not the package's own
    record.public = made
    add_record(record)
    return made


def _require(name: str, has_shape_rule: bool, traits: Sequence[str]) -> None:
    hint = ""
    if "." not in name or not all([part.isidentifier() for part in name.split(".")]):
        hint = "Put your package's name in front: 'mylib.squareplus'."
    elif name in REGISTRY:
        hint = "The name is taken; register an operation once, where its module is imported."
    elif not has_shape_rule:
        hint = "Pass infer=, the shape rule, or traits=['pointwise']."
    elif not set(traits) <= set(_TRAITS):
        hint = f"Traits are {', '.join(_TRAITS)}."
    if hint:
        raise ArgumentError(f"register: {name!r} cannot be registered", hint=hint)


def _parameters(name: str, lower: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, inspect.Parameter]]:
    """Return the names of the tensors, and the attributes by name."""
    kinds = inspect.Parameter
    given = inspect.signature(lower).parameters
    if any([one.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) for one in given.values()]):
        raise ArgumentError(f"register: {name!r} takes a variable number of parameters",
                            got=str(inspect.signature(lower)),
                            hint="Name the tensors, then after * the attributes: def lower(x, y, *, axis).")
    tensors = tuple([one.name for one in given.values() if one.kind is not kinds.KEYWORD_ONLY])
    return tensors, {one.name: one for one in given.values() if one.kind is kinds.KEYWORD_ONLY}


def _saved(saves: Sequence[int] | str | None) -> Any:
    return "all" if saves is None else saves if isinstance(saves, str) else tuple(saves)


def _broadcast(name: str) -> Callable[..., Any]:
    def infer(*specs: TensorSpec, **attrs: Any) -> TensorSpec:
        del attrs
        return make_spec(broadcast_shapes(name, *[spec.shape for spec in specs]), specs[0].dtype)

    return infer


def _one_each(outputs: Any, /, *inputs: Any, **attrs: Any) -> Any:
    del inputs, attrs
    return outputs.size


def _function(
    record: Op,
    tensors: tuple[str, ...],
    attrs: dict[str, inspect.Parameter],
    lower: Callable[..., Any],
    doc: str | None,
) -> OpFunction[..., Any]:
    short = record.name.rpartition(".")[2]
    signature = inspect.signature(lower)
    pointwise = record.has("pointwise")

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(f"{record.name}: {error}", got=f"{short}{signature}") from None
        bound.apply_defaults()
        given = [bound.arguments[one] for one in tensors]
        values = promote(*given) if pointwise and len(given) > 1 else tuple([as_tensor(one) for one in given])
        return bind(record, values, {one: bound.arguments[one] for one in attrs})

    function.__name__ = function.__qualname__ = short
    function.__doc__ = doc if doc is not None else lower.__doc__
    cast(Any, function).__signature__ = signature
    result = cast("OpFunction[..., Any]", function)
    result.op = record
    return result


