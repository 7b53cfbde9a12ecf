"""`hf.export.stablehlo`: write a function and its weights to one file that a program with only jax can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import jax
from jax import export

from hybridflow.backend.files import write_bytes
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import lowered_on
from hybridflow.core.dims import Dim, DimScope, Guard, substitute, text_of
from hybridflow.core.errors import ExportError, HybridflowError, MissingPackageError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Node
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import as_tensor
from hybridflow.export.artifact import RANDOM
from hybridflow.export.functions import function_of
from hybridflow.export.loaded import Function
from hybridflow.export.structure import filled
from hybridflow.ir.evaluate import RUN_NODE, evaluate, run_lowering
from hybridflow.ir.graph import Graph
from hybridflow.ir.printer import format_node
from hybridflow.saving.reader import PathLike, require_path
from hybridflow.tracing.xla_inputs import raw_value
from hybridflow.xla.executable import is_wide

_STATE = TensorSpec((4,), "uint32")
"""The spec of the state of `hf.random`."""


@with_foreign_keywords
def stablehlo(
    path: PathLike, target: Any, *specs: Any, function: str = "predict", platforms: Sequence[str] = ("cpu",)
) -> None:
    """Write a function and its weights as StableHLO, for programs that have only jax.

    Run it with ``jax.export.deserialize(open(path, "rb").read()).call(*args)``, on arrays in the structure of the
    specs. Open sizes may be any size from 1 on. A function that draws random numbers takes their state, ``uint32[4]``,
    as an extra argument. If the function draws, or checks something such as the range of indices, the result is a pair:
    the function's own result, and a dict. In the dict, ``random_state`` is the next state, and ``checks`` is true where
    a check holds. `hf.config.checks` can leave the checks out. Modules are exported in evaluation mode, whatever mode
    they are in.

    Args:
        path: the file; an existing one is replaced.
        target: a function or module; or an artifact, its path, or one of its functions.
        specs: the arguments of a function or module, as `hf.export.save` takes them.
        function: which function of an artifact.
        platforms: the platforms it can run on: "cpu", "cuda", "rocm", "tpu".

    Raises:
        ExportError: the function cannot be written: an op needs the value of an open size, or the function calls Python
            or assigns a Variable. The error names the line.
        ArgumentTypeError: the arguments are in another order.
        MissingPackageError: ``flatbuffers``, which jax needs to write such files, is not installed.

    Example::

        hf.export.stablehlo("net.stablehlo", net, hf.TensorSpec([None, 784]))
    """
    require_path("stablehlo", path, "hf.export.stablehlo(path, function, *specs)")
    if find_spec("flatbuffers") is None:
        raise MissingPackageError("stablehlo: needs flatbuffers, which is not installed",
                                  hint="Run pip install 'hybridflow[stablehlo]'.")
    function_ = function_of("stablehlo", target, specs, function)
    write_bytes(path, bytes(exported(function_, platforms).serialize()))


def exported(function: Function, platforms: Sequence[str]) -> export.Exported:
    """Return a function exported by jax; see `stablehlo`."""
    graph, fields = function.graph(), function._fields
    run, specs = in_jax(function.name, graph)
    count = len(function.inputs)
    weights = [one if one is RANDOM else raw_value(as_tensor(one)) for one in function._weights]
    drawn = fields["random"]

    def flat(*args: Any) -> Any:
        arrays = jax.tree_util.tree_leaves(args)
        state = arrays[count:]
        values = [*arrays[:count], *[state[0] if one is RANDOM else one for one in weights]]
        outputs = run(values)
        result, rest = filled(fields["result"], outputs), outputs[len(function.outputs) :]
        names = [name for name, there in (("random_state", drawn), ("checks", fields["checks"])) if there]
        return (result, dict(zip(names, rest, strict=True))) if names else result

    flat.__name__ = flat.__qualname__ = function.name
    args = [*[filled(one, specs[:count]) for one in fields["arguments"]], *([_as_jax(_STATE, {})] if drawn else [])]
    # A program for several platforms is spelled for none of them.
    with enable_x64(is_wide(graph)), lowered_on(platforms[0] if len(platforms) == 1 else "several"):
        try:
            return export.export(jax.jit(flat), platforms=tuple(platforms))(*args)
        except HybridflowError:
            raise
        except Exception as error:  # jax raises errors of many classes
            raise ExportError(f"stablehlo: jax cannot export {function.name}: {_first_line(error)}",
                              got=_culprit(graph)) from error


def in_jax(name: str, graph: Graph) -> tuple[Callable[[Sequence[Any]], list[Any]], list[jax.ShapeDtypeStruct]]:
    """Return a graph as a function of jax values, and the specs of its inputs, with jax's symbols for open sizes.

    Raises:
        ExportError: the graph relies on facts about sizes that cannot be told to jax.

    The function raises:
        ExportError: an op needs the value of an open size; the error names the op and its line.
    """
    sizes = _sizes(name, graph.dims)

    def run(values: Sequence[Any]) -> list[Any]:
        token = RUN_NODE.set(_run_node)
        try:
            return [*evaluate(graph, values, _run_node, sizes=sizes)]
        finally:
            RUN_NODE.reset(token)

    return run, [_as_jax(spec, sizes) for spec in graph.input_specs]


def _as_jax(spec: TensorSpec, sizes: Mapping[str, Any]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple([substitute(size, sizes) for size in spec.shape]), spec.dtype)


# -- operations -------------------------------------------------------------------------------------------------------


def _run_node(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Run a node as jax operations; raise an error that names the node if jax cannot."""
    try:
        return run_lowering(node, inputs, attrs)
    except HybridflowError:
        raise
    except Exception as error:  # jax has many error classes for what it cannot do with open sizes
        raise ExportError(f"stablehlo: {node.op.name} at {node.location} cannot be exported: {_first_line(error)}",
                          got=format_node(node)[:200],
                          hint="Where it is a size left open, give its number in the spec.") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


# -- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(name: str, scope: DimScope) -> dict[str, Any]:
    """Return jax's symbol for each open size, constrained by the guards of the trace.

    jax's sizes are at least 1. If asked whether a size equals 1, or is even, jax silently answers no. So such a guard
    becomes an inequality, or an error.
    """
    if not scope.hints:
        return {}
    representative = _one_symbol_each(scope)
    names = {symbol: f"{symbol}_" if symbol in _WORDS else symbol for symbol in scope.hints}
    distinct = [*dict.fromkeys([names[representative[symbol]] for symbol in scope.hints])]
    conditions: list[str] = []
    for last in (False, True):
        symbols = dict(zip(distinct, export.symbolic_shape(",".join(distinct), constraints=conditions), strict=True))
        sizes: dict[str, Any] = {symbol: symbols[names[representative[symbol]]] for symbol in scope.hints}
        if not last:
            assumptions = [_condition(name, guard, sizes) for guard in scope.guards]
            conditions = [*dict.fromkeys([one for one in assumptions if one is not None])]
    return sizes


_WORDS = {"mod", "floordiv", "max", "min"}
"""Names that have another meaning in jax's size expressions."""


def _one_symbol_each(scope: DimScope) -> dict[str, str]:
    """Return, for each symbol, one representative of all symbols of the same size."""
    representative = {symbol: symbol for symbol in scope.hints}
    for guard in scope.guards:
        left, right = guard.left.symbol, guard.right.symbol if type(guard.right) is Dim else None
        if guard.compare == "==" and guard.answer and left and right:
            old, new = representative[right], representative[left]
            representative = {symbol: new if one == old else one for symbol, one in representative.items()}
    return representative


def _condition(name: str, guard: Guard, sizes: Mapping[str, Any]) -> str | None:
    """Return a guard as a constraint in jax's syntax; None if it holds for all sizes from 1 on."""
    left, right = substitute(guard.left, sizes), substitute(guard.right, sizes)
    difference = left - right
    if guard.compare == "==" and guard.answer:
        if isinstance(difference, int) and difference == 0:
            return None
        if guard.left.symbol is None and "mod" in str(left) and isinstance(right, int):
            return f"{left} == {right}"
        raise _refused(name, guard)
    if guard.compare == "==":
        if _certain(difference) or _certain(-difference):
            return None
        if _certain(difference + 1):  # its least value is 0
            return f"{difference} >= 1"
        raise _refused(name, guard)
    above = (guard.compare in (">", ">=")) == guard.answer
    strict = (guard.compare in ("<", ">")) == guard.answer
    positive = (difference if above else -difference) + (0 if strict else 1)
    return None if _certain(positive) else f"{positive} >= 1"


def _certain(size: Any) -> bool:
    """Return whether a number or a jax size is at least 1 for all values of its symbols."""
    with suppress(Exception):  # jax raises if that depends on the symbols
        return bool(size >= 1)
    return False


def _refused(name: str, guard: Guard) -> ExportError:
    return ExportError(f"stablehlo: {name} is traced for sizes where {guard.sentence()}, which such a file cannot say",
                       got=", ".join([text_of(guard.left), text_of(guard.right)]),
                       hint="Give the number of that size in the spec, or do not ask for it.")


def _culprit(graph: Graph) -> str | None:
    """Return the first node that jax cannot export on its own, or None."""
    sizes = _sizes(graph.name, graph.dims)
    for node in graph.nodes:
        specs = [_as_jax(edge[0].spec(edge[1]), sizes) for edge in node.inputs if edge is not None]
        attrs = {key: substitute(value, sizes) for key, value in node.attrs.items()}
        try:
            export.export(jax.jit(lambda *xs, node=node, attrs=attrs: node.op.lower(*xs, **attrs)))(*specs)
        except Exception:
            return f"{node.location}: {format_node(node)[:200]}"
    return None
