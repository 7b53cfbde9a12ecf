"""`hf.export.stablehlo`: a function as one file that a program with jax alone runs, weights inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import jax
from jax import export

from hybridflow.backend.files import write_bytes
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.dims import Dim, DimScope, Guard, substitute, text_of
from hybridflow.core.errors import ExportError, HybridflowError, MissingPackageError, message
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
from hybridflow.saving.reader import PathLike
from hybridflow.tracing.xla_inputs import raw_value
from hybridflow.xla.executable import is_wide

_STATE = TensorSpec((4,), "uint32")
"""What the state of `hf.random` is."""


def stablehlo(
    target: Any, path: PathLike, *specs: Any, function: str = "predict", platforms: Sequence[str] = ("cpu",)
) -> None:
    """Write a function as StableHLO with its weights, which a program that has only jax runs.

    There, ``jax.export.deserialize(open(path, "rb").read()).call(*args)`` takes arrays in the structure of the specs.
    Sizes left open may be any from 1 on. If the function draws random numbers, it takes their state, ``uint32[4]``, as
    one more argument. If it does, or if it checks something, such as the range of indices, the result is a pair of the
    function's own and a dict: ``random_state`` is the next state, and ``checks`` are true where all is right.
    `hf.config.checks` leaves checks out.

    Args:
        target: a function or module; or an artifact, its path, or one of its functions.
        path: the file; one that is there is replaced.
        specs: the arguments of a function or module, as `hf.export.save` takes them.
        function: which function of an artifact.
        platforms: what it can run on: "cpu", "cuda", "rocm", "tpu".

    Raises:
        ExportError: what the file cannot hold, with its line: an operation that needs the number of an open size, a
            call of Python, a Variable that is assigned.
        MissingPackageError: ``flatbuffers``, which jax writes such files with, is not installed.

    Example::

        hf.export.stablehlo(net, "net.stablehlo", hf.TensorSpec([None, 784]))
    """
    if find_spec("flatbuffers") is None:
        raise MissingPackageError(
            message("stablehlo: needs flatbuffers, which is not installed",
                    hint="Run pip install 'hybridflow[stablehlo]'.")
        )  # fmt: skip
    function_ = function_of("stablehlo", target, specs, function)
    write_bytes(path, bytes(exported(function_, platforms).serialize()))


def exported(function: Function, platforms: Sequence[str]) -> export.Exported:
    """Return a function as jax exports it; see `stablehlo`."""
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
    with enable_x64(is_wide(graph)):
        try:
            return export.export(jax.jit(flat), platforms=tuple(platforms))(*args)
        except HybridflowError:
            raise
        except Exception as error:  # whatever jax says of it
            raise ExportError(
                message(f"stablehlo: jax cannot export {function.name}: {_first_line(error)}",
                        got=_culprit(graph))
            ) from error  # fmt: skip


def in_jax(name: str, graph: Graph) -> tuple[Callable[[Sequence[Any]], list[Any]], list[jax.ShapeDtypeStruct]]:
    """Return a graph as a function of jax values, and the inputs that it takes, with jax's symbols for open sizes.

    Raises:
        ExportError: the graph relies on what jax cannot be told of sizes.

    The function raises:
        ExportError: naming an operation that needs the number of an open size, with its line.
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
    """Run a node as jax operations, and say which one it was that jax has none for."""
    try:
        return run_lowering(node, inputs, attrs)
    except HybridflowError:
        raise
    except Exception as error:  # jax has a class for each thing that it cannot do with sizes that are open
        raise ExportError(
            message(f"stablehlo: {node.op.name} at {node.location} cannot be exported: {_first_line(error)}",
                    got=format_node(node)[:200], hint="Where it is a size left open, give its number in the spec.")
        ) from error  # fmt: skip


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


# -- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(name: str, scope: DimScope) -> dict[str, Any]:
    """Return jax's symbol for each open size, of which what the trace relied on is known.

    jax's sizes are from 1 on. It answers whether one is 1, or even, with no, without a word: so such a question is made
    one of order, or an error.
    """
    if not scope.hints:
        return {}
    same = _one_symbol_each(scope)
    names = {symbol: f"{symbol}_" if symbol in _WORDS else symbol for symbol in scope.hints}
    wanted = [*dict.fromkeys([names[same[symbol]] for symbol in scope.hints])]
    conditions: list[str] = []
    for last in (False, True):
        made = dict(zip(wanted, export.symbolic_shape(",".join(wanted), constraints=conditions), strict=True))
        sizes: dict[str, Any] = {symbol: made[names[same[symbol]]] for symbol in scope.hints}
        if not last:
            assumptions = [_condition(name, guard, sizes) for guard in scope.guards]
            conditions = [*dict.fromkeys([one for one in assumptions if one is not None])]
    return sizes


_WORDS = {"mod", "floordiv", "max", "min"}
"""Names that mean something else where jax reads sizes."""


def _one_symbol_each(scope: DimScope) -> dict[str, str]:
    """Return for each symbol the one that stands for all that are the same size."""
    same = {symbol: symbol for symbol in scope.hints}
    for guard in scope.guards:
        left, right = guard.left.symbol, guard.right.symbol if type(guard.right) is Dim else None
        if guard.compare == "==" and guard.answer and left and right:
            old, new = same[right], same[left]
            same = {symbol: new if one == old else one for symbol, one in same.items()}
    return same


def _condition(name: str, guard: Guard, sizes: Mapping[str, Any]) -> str | None:
    """Return what jax is told of a comparison, in its own words; None where all sizes from 1 on give its answer."""
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
        if _certain(difference + 1):  # 0 is its least value
            return f"{difference} >= 1"
        raise _refused(name, guard)
    above = (guard.compare in (">", ">=")) == guard.answer
    strict = (guard.compare in ("<", ">")) == guard.answer
    positive = (difference if above else -difference) + (0 if strict else 1)
    return None if _certain(positive) else f"{positive} >= 1"


def _certain(size: Any) -> bool:
    """Whether a number or one of jax's sizes is 1 at least, whatever its symbols are."""
    with suppress(Exception):  # jax raises where it depends on them
        return bool(size >= 1)
    return False


def _refused(name: str, guard: Guard) -> ExportError:
    return ExportError(
        message(f"stablehlo: {name} is traced for sizes with {guard}, which such a file cannot say",
                got=", ".join([text_of(guard.left), text_of(guard.right)]),
                hint="Give the number of that size in the spec, or do not ask for it.")
    )  # fmt: skip


def _culprit(graph: Graph) -> str | None:
    """Return the first node that jax cannot export by itself, None if there is none."""
    sizes = _sizes(graph.name, graph.dims)
    for node in graph.nodes:
        specs = [_as_jax(edge[0].spec(edge[1]), sizes) for edge in node.inputs if edge is not None]
        attrs = {key: substitute(value, sizes) for key, value in node.attrs.items()}
        try:
            export.export(jax.jit(lambda *xs, node=node, attrs=attrs: node.op.lower(*xs, **attrs)))(*specs)
        except Exception:
            return f"{node.location}: {format_node(node)[:200]}"
    return None
