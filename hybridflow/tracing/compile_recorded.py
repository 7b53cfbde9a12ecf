"""`hf.compile_recorded`: compile an eager computation that was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.jacobian import flatten
from hybridflow.autodiff.recorded_graph import RecordedGraph, Unkept, recorded_graph
from hybridflow.core.context import current
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentTypeError, GradientError, TraceError
from hybridflow.core.node import Edge
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor, asarray, describe
from hybridflow.core.variable import VARIABLE, Variable
from hybridflow.ir.evaluate import evaluate
from hybridflow.tracing.function import CompiledFunction

T = TypeVar("T")


def compile_recorded(outputs: T, inputs: Any) -> Callable[..., T]:
    """Return a compiled function that repeats a recorded computation with other inputs.

    Values that the recording kept are constants of the function; Variables are read at every call. Values that no
    gradient needs were not kept: except for numbers, they must be inputs. Watched tensors and leaves must be inputs
    too.

    Args:
        outputs: a tensor that was computed under a tape or from a tensor that requires a gradient, or a pytree of
            such tensors.
        inputs: the tensors (watched ones, leaves, or others that the recording kept) and Variables from which the
            outputs were computed, in any nesting.

    Returns:
        A function whose results have the structure of `outputs`. It takes one argument per item of `inputs` if that is
        a list or tuple, else one argument.

    Raises:
        ArgumentTypeError: an output or input is no tensor.
        GradientError: an output was not recorded, a value is neither kept nor an input, or there is a custom gradient.
        TraceError: this is called inside a compiled function.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.tensor([1.0, 2.0], requires_grad=True)
        >>> y = hf.exp(x * 3.0).sum()
        >>> again = hf.compile_recorded(y, [x])
        >>> again([0.0, 0.0])
        Tensor(2., dtype=float32)
    """
    if current().tracer is not None:
        raise TraceError("compile_recorded: inside a compiled function",
                         hint="That is compiled already; call it outside.")
    targets, tree = flatten(outputs)
    given = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    sources, source_tree = flatten(given)
    for leaf in (*targets, *sources):
        if not isinstance(leaf, Tensor | Variable):
            raise ArgumentTypeError(f"compile_recorded: a {type(leaf).__name__} is no tensor", got=repr(leaf)[:60],
                                    hint="Pass the tensors and Variables of the computation.")
    recording = recorded_graph([_edge(target) for target in targets], "recorded", sources)
    variables = _variables(recording, len(sources))
    specs = [make_spec(source.shape, source.dtype) for source in sources]

    def recorded(*tensors: Tensor) -> Any:
        outputs = _run(recording, [*tensors, *[variable.read() for variable in variables]])
        return jax.tree_util.tree_unflatten(tree, outputs)

    compiled = CompiledFunction(recorded, autograph=False, dynamic=False)

    def run(*arguments: Any) -> Any:
        try:
            leaves = source_tree.flatten_up_to(arguments)
        except ValueError as error:
            raise ArgumentTypeError("recorded: the arguments are unlike the inputs", got=str(error),
                                    hint="Call it with one argument per item of the inputs.") from None
        return compiled(*[_argument(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)])

    return run


def _edge(target: Tensor | Variable) -> Edge:
    edge = as_tensor(target)._edge
    if edge is None:
        raise GradientError(
            "compile_recorded: an output was not recorded", got=describe(target),
            hint="Compute it under a hf.GradientTape, from what that watches, or from what requires_grad."
        )
    return edge


def _argument(leaf: Any, spec: TensorSpec) -> Tensor:
    tensor = as_tensor(leaf) if hasattr(leaf, "dtype") else asarray(leaf, dtype=spec.dtype)
    if tensor.spec != spec:
        raise ArgumentTypeError(f"recorded: an argument is {tensor.spec}, and {spec} was recorded",
                                hint="A recording is of one shape and dtype; compile the function for others.")
    return tensor


def _variables(made: RecordedGraph, first: int) -> list[Variable]:
    """Return the Variables that a recording reads besides its inputs.

    Raises:
        GradientError: another value is needed, and it was not kept.
    """
    variables: list[Variable] = []
    for node, origin in list(zip(made.graph.inputs, made.origins, strict=True))[first:]:
        if isinstance(origin, Unkept):
            raise GradientError(
                f"compile_recorded: {origin.node.op.name} at {origin.node.location} reads a {node.spec()} "
                "that the recording did not keep", hint="Watch it, or make it a leaf, and list it as an input."
            )
        assert isinstance(origin, tuple)
        variable = origin[0].attrs["variable"]() if origin[0].op is VARIABLE else None
        if variable is None:
            raise GradientError(f"compile_recorded: the outputs depend on a {node.spec()} that is watched or a leaf, "
                                "and no input", hint="List it as an input.")
        variables.append(variable)
    return variables


def _run(made: RecordedGraph, tensors: list[Tensor]) -> list[Tensor]:
    if current().tracer is not None:
        return inline(made.graph, tensors)
    return list(evaluate(made.graph, tensors, lambda node, inputs, attrs: bind(node.op, tuple(inputs), attrs)))
