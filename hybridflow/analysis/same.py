"""What "the same" means: the one definition that comparisons and tests use.

Shapes, dtypes, integers and bools of two runs must be identical. Floats may round differently (a fused
multiply-add rounds once where separate operations round twice), so they are judged against a float64 run of the
program, by Monte Carlo arithmetic.

Let ``r`` be the graph's result in float64. In each of ``k`` sample runs, also in float64, the result ``z`` of every
operation is replaced by ``z (1 + u eps xi)``, where ``u`` is the operation's error bound in ulp (`Op.ulp`), ``eps``
the spacing of the dtype that the operation has in the program, and ``xi`` uniform in [-1, 1]; the inputs of
operations that add many numbers, whose bound is relative to the sum of the magnitudes, are perturbed likewise, and a
log of a sum of exponentials has an error relative to its largest input besides (trait ``log_sum``).
Values leave the dtype's range as they do in the program: above the largest number they become infinite, below the
smallest normal one they may be flushed to zero. With ``s`` the largest deviation of a sample from ``r``, a mode's
result ``m`` agrees, element by element, if

    |m - r|  <=  SAFETY s + eps |r| + tiny

Elements where the two modes give the same number agree whatever ``r`` is. An element of a sample run that is not
finite where ``r`` is, or an integer that changes, has no stable value, and may differ between the modes. The sign
of a zero is no difference here; the checks of each op compare it.

Reference:
    D. S. Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic", UCLA CSD-970002, 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import run_raw
from hybridflow.core.dtypes import DType, complex128, float64, kind_of
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import Op
from hybridflow.core.sources import CONSTANT, Constant
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, input_node

LEAST_SAMPLES, SAMPLES = 4, 24
SAFETY = 8.0
Array = np.ndarray[Any, Any]
Sides = tuple[str, str]
SIDES: Sides = ("eager", "compiled")


@dataclass(frozen=True)
class Judgement:
    """What was found about one output.

    Attributes:
        name: the output's name.
        same: whether the two modes agree.
        largest: the largest difference of the two modes (1 for a bool that differs).
        allowed: the difference that rounding explains, at the element that uses most of its allowance.
        used: the part of the allowance used there: above 1 is a difference; 0 if the modes are identical.
        text: where and how they differ, empty if they agree.
    """

    name: str
    same: bool
    largest: float
    allowed: float
    used: float
    text: str


def judge(
    graph: Graph,
    inputs: Sequence[Array],
    eager: Sequence[Array],
    compiled: Sequence[Array],
    *,
    names: Sequence[str] | None = None,
    tolerance: tuple[float, float] | None = None,
    sides: Sides = SIDES,
) -> list[Judgement]:
    """Judge whether two runs of a program gave the same results.

    Args:
        graph: the program, as traced (before its passes).
        inputs: the values of the graph's inputs.
        eager: the values of the graph's first outputs in one run.
        compiled: the same of the other run.
        names: the outputs' names.
        tolerance: ``(relative, absolute)`` to judge floats by instead, if given.
        sides: what the texts call the two runs.

    Returns:
        One judgement per output.
    """
    names = names or [f"output {index}" for index in range(len(eager))]
    judgements: dict[int, Judgement] = {}
    open_outputs: list[int] = []
    for index, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        settled = _settled(names[index], a, b, tolerance, sides)
        if settled is None:
            open_outputs.append(index)
        else:
            judgements[index] = settled
    if open_outputs:
        allowances = _allowances(graph, inputs, open_outputs, eager, compiled)
        for index, allowance in zip(open_outputs, allowances, strict=True):
            judgements[index] = allowance.judge(names[index], eager[index], compiled[index], sides)
    return [judgements[index] for index in range(len(eager))]


def _settled(
    name: str, a: Array, b: Array, tolerance: tuple[float, float] | None, sides: Sides
) -> Judgement | None:
    """Judge an output that needs no reference, if that is possible."""
    for what, left, right in (("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype)):
        if left != right:
            return Judgement(name, False, np.inf, 0.0, np.inf, f"{what} {left} {sides[0]}, {right} {sides[1]}")
    if bool(np.all(_equal(a, b))):
        return Judgement(name, True, 0.0, 0.0, 0.0, "")
    if tolerance is None:
        return None
    relative, absolute = tolerance
    wide_a, wide_b = widen_array(a), widen_array(b)
    allowed = absolute + relative * np.abs(wide_b) if _is_float(a.dtype) else np.zeros(a.shape)
    return _verdict(name, wide_a, wide_b, _used(_distance(wide_a, wide_b), allowed), allowed, None, sides)


@dataclass
class _Allowance:
    """The reference of one output and how far a result may be from it."""

    dtype: DType
    reference: Array
    spread: Array
    unstable: Array

    def add(self, sample: Array) -> None:
        """Take one more sample into account."""
        if not _is_float(self.dtype):
            self.unstable |= sample != self.reference
            return
        finite = np.isfinite(self.reference)
        self.unstable |= (np.isfinite(sample) != finite) | (~finite & ~_equal(sample, self.reference))
        deviation = np.where(finite, _distance(sample, self.reference), 0.0)
        np.maximum(self.spread, np.where(np.isnan(deviation), np.inf, deviation), out=self.spread)

    def allowed(self) -> Array:
        """Return the largest distance from the reference that counts as rounding."""
        if not _is_float(self.dtype):
            return np.where(self.unstable, np.inf, 0.0)
        info = jnp.finfo(self.dtype)
        magnitude = np.where(np.isfinite(self.reference), np.abs(self.reference), 0.0)
        bound = SAFETY * self.spread + float(info.eps) * magnitude + float(info.tiny)
        return np.where(self.unstable, np.inf, bound)

    def used(self, a: Array, b: Array) -> Array:
        """Return, per element, the part of the allowance that the worse mode uses; 0 where the modes agree."""
        allowed = self.allowed()
        wide_a, wide_b = widen_array(a), widen_array(b)
        worse = np.maximum(
            _used(_distance(wide_a, self.reference), allowed), _used(_distance(wide_b, self.reference), allowed)
        )
        return np.where(_equal(a, b), 0.0, worse)

    def judge(self, name: str, a: Array, b: Array, sides: Sides) -> Judgement:
        """Judge an output."""
        return _verdict(name, widen_array(a), widen_array(b), self.used(a, b), self.allowed(), self.reference, sides)


def _allowances(
    graph: Graph, inputs: Sequence[Array], wanted: Sequence[int], eager: Sequence[Array], compiled: Sequence[Array]
) -> list[_Allowance]:
    """Run the program in float64, then with rounding errors, until these explain every difference, or do not."""
    run = Float64Run(graph, inputs)
    references = run.exact()
    allowances = [
        _Allowance(
            eager[index].dtype,
            references[index],
            np.zeros(eager[index].shape),
            np.zeros(eager[index].shape, dtype=bool),
        )
        for index in wanted
    ]
    rng = np.random.default_rng(0)
    for count in range(1, SAMPLES + 1):
        sample = run.perturbed(rng)
        for index, allowance in zip(wanted, allowances, strict=True):
            allowance.add(sample[index])
        # More samples only widen the allowance, so what is explained by a margin now stays explained.
        if count >= LEAST_SAMPLES and all(
            np.max(allowance.used(eager[index], compiled[index])) <= 0.5
            for index, allowance in zip(wanted, allowances, strict=True)
        ):
            break
    return allowances


def _is_float(dtype: DType) -> bool:
    return kind_of(dtype) in ("float", "complex")


def _equal(a: Array, b: Array) -> Array:
    """Return where two arrays hold the same number; NaN is the same as NaN."""
    same = a == b
    return np.asarray(same | ((a != a) & (b != b)))


def _distance(a: Array, b: Array) -> Array:
    """Return ``|a - b|``, 0 where they are equal and infinite where only one of them is a number."""
    with np.errstate(all="ignore"):
        wide = np.float64 if a.dtype.kind in "biu" else a.dtype
        distance = np.abs(np.asarray(a, dtype=wide) - np.asarray(b, dtype=wide))
    distance = np.where(np.isnan(distance), np.inf, distance)
    return np.where(_equal(a, b), 0.0, distance)


def _used(distance: Array, allowed: Array) -> Array:
    """Return ``distance / allowed`` where 0 of nothing is 0 and anything of an unbounded allowance is 0."""
    with np.errstate(all="ignore"):
        part = distance / allowed
    return np.where(np.isinf(allowed) | (distance == 0), 0.0, np.where(allowed == 0, np.inf, part))


def _verdict(
    name: str, a: Array, b: Array, used: Array, allowed: Array, reference: Array | None, sides: Sides
) -> Judgement:
    flat = int(np.argmax(used))
    index = tuple(int(i) for i in np.unravel_index(flat, used.shape))
    most = float(used[index])
    largest = float(np.max(_distance(a, b)))
    if most <= 1:
        return Judgement(name, True, largest, float(allowed[index]), most, "")
    count = int(np.sum(used > 1))
    text = f"at {list(index)}: {sides[0]} {a[index]!s}, {sides[1]} {b[index]!s}"
    if reference is not None:
        text += f", float64 {reference[index]!s}"
    text += f"; allowed {float(allowed[index]):.3g}; {count} of {used.size} elements differ"
    return Judgement(name, False, largest, float(allowed[index]), most, text)


# -- A float64 run of a traced program, exact or with rounding errors put in: the reference that `same` judges by -----

_WIDE = {"float": float64, "complex": complex128}


def widen_dtype(dtype: DType) -> DType:
    """Return float64 for a float, complex128 for a complex dtype, any other dtype as it is."""
    return _WIDE.get(kind_of(dtype), dtype)


def widen_array(array: Array) -> Array:
    """Return the same numbers in the wide dtype."""
    return array.astype(widen_dtype(array.dtype), copy=False)


def is_wide_kind(dtype: DType) -> bool:
    """Whether values of the dtype round."""
    return kind_of(dtype) in _WIDE


def rounds(node: Node) -> bool:
    """Whether a node's result is rounded: moving and choosing elements is exact, unless it narrows the dtype."""
    op = node.op
    made = [spec.dtype for spec in node.specs if is_wide_kind(spec.dtype)]
    if op.ulp == 0 or op.has("source") or op.has("identity") or not made:
        return False
    if op.has("layout"):
        return any(edge is not None and edge[0].spec(edge[1]).dtype not in made for edge in node.inputs)
    return True


def keeps_precision(node: Node) -> bool:
    """Whether a node must run in its own dtypes.

    Random bits depend on them, foreign functions may insist on them, and made-up numbers are rounded once.
    """
    given = [edge[0].spec(edge[1]).dtype for edge in node.inputs if edge is not None]
    return node.op.has("random") or node.op.has("foreign") or not any(is_wide_kind(dtype) for dtype in given)


class Float64Run:
    """Runs one program in float64 on one set of inputs.

    Args:
        graph: the program, as traced.
        inputs: the values of its inputs, in their own dtypes.
    """

    def __init__(self, graph: Graph, inputs: Sequence[Array]) -> None:
        self._graph = graph
        self._inputs = [widen_array(np.asarray(array)) for array in inputs]
        self._wide: dict[tuple[Graph, bool], Graph] = {}

    def exact(self) -> list[Array]:
        """Return the outputs in float64."""
        return self._run(None)

    def perturbed(self, rng: np.random.Generator) -> list[Array]:
        """Return the outputs in float64 with a random rounding error of its own dtype in every operation."""
        return self._run(rng)

    def _run(self, rng: np.random.Generator | None) -> list[Array]:
        def run(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
            if keeps_precision(node):
                given = [edge[0].spec(edge[1]).dtype for edge in node.inputs if edge is not None]
                values = [value.astype(dtype, copy=False) for value, dtype in zip(values, given, strict=True)]
            else:
                attrs = {name: self._widen(value, noisy=rng is not None) for name, value in attrs.items()}
                if rng is not None and rounds(node) and not node.op.has("pointwise"):
                    amount = _amount(node)
                    values = [disturb(value, amount, rng) for value in values]
            result = run_raw(node.op, values, attrs)
            several = result if isinstance(result, tuple) else (result,)
            largest = _log_sum_scale(values) if node.op.has("log_sum") else 0.0
            results = [
                self._leave(node, widen_array(np.asarray(value)), spec, rng, largest)
                for value, spec in zip(cast("tuple[Any, ...]", several), node.specs, strict=True)
            ]
            return results[0] if len(node.outputs) == 1 else results

        return [np.asarray(value) for value in evaluate(self._graph, self._inputs, run)]

    def _leave(
        self, node: Node, value: Array, spec: TensorSpec, rng: np.random.Generator | None, largest: float
    ) -> Array:
        """Return a result as its own dtype could hold it, with a rounding error if there is a generator."""
        if not is_wide_kind(spec.dtype):
            return value
        if rng is not None and rounds(node):
            amount = _error(node, spec.dtype)
            value = disturb(value, amount, rng)
            if largest:
                value = np.asarray(value + amount * largest * rng.uniform(-1, 1, value.shape))
        return into_range(value, spec.dtype, rng)

    def _widen(self, value: Any, *, noisy: bool) -> Any:
        """Return an attribute for the float64 program."""
        if isinstance(value, np.dtype):
            return widen_dtype(cast(DType, value))
        if isinstance(value, Graph):
            return self._widen_graph(value, noisy=noisy)
        if isinstance(value, TensorSpec):
            return make_spec(value.shape, widen_dtype(value.dtype))
        if type(value) is tuple:
            return tuple([self._widen(item, noisy=noisy) for item in cast("tuple[Any, ...]", value)])
        return value

    # -- graphs among attributes ------------------------------------------------------------------------------

    def _widen_graph(self, graph: Graph, *, noisy: bool) -> Graph:
        """Return a branch or loop body in float64, with its rounding errors as nodes of their own if `noisy`."""
        wide = self._wide.get((graph, noisy))
        if wide is None:
            wide = self._wide[graph, noisy] = _WideCopy(graph, self._widen, noisy=noisy).graph()
        return wide


class _WideCopy:
    """Copies a nested graph into float64, node by node.

    What float64 changes about a node is inside its op, so the copy splits into forward and backward parts as the
    original does: an op that must keep its precision casts, an op that rounds disturbs what it reads and returns.
    The range inside is float64's; results are brought into their own dtype's range when they leave the loop.
    """

    def __init__(self, graph: Graph, widen: Callable[..., Any], *, noisy: bool) -> None:
        self._source = graph
        self._widen = widen
        self._noisy = noisy

    def graph(self) -> Graph:
        """Return the copy."""
        source = self._source
        edges: dict[Edge, Edge] = {}
        inputs = [input_node(_wide_spec(node.spec()), node.attrs["name"], node.scope) for node in source.inputs]
        for old, new in zip(source.inputs, inputs, strict=True):
            edges[old, 0] = (new, 0)
        nodes: list[Node] = []
        for node in source.nodes:
            copy = self._copy(node, tuple([edges[edge] for edge in node.inputs if edge is not None]), len(nodes))
            nodes.append(copy)
            for index in range(len(node.outputs)):
                edges[node, index] = (copy, index)
        return Graph(source.name, tuple(inputs), tuple(nodes), tuple([edges[e] for e in source.outputs]), source.dims)

    def _copy(self, node: Node, inputs: tuple[Edge, ...], site: int) -> Node:
        attrs, op = node.attrs, node.op
        if op is CONSTANT:
            attrs = {"value": Constant(widen_array(attrs["value"].array))}
        elif keeps_precision(node):
            op = _narrow_inside(node)
        else:
            attrs = {name: self._widen(value, noisy=self._noisy) for name, value in attrs.items()}
            if self._noisy and rounds(node):
                op = _disturbed(node, site)
        return make_node(op, inputs, attrs, tuple([_wide_spec(spec) for spec in node.specs]), scope=node.scope)


def _narrow_inside(node: Node) -> Op:
    """Return a node's op with a lowering that takes and returns wide values, but computes in the node's dtypes."""
    op = node.op
    given = [edge[0].spec(edge[1]).dtype for edge in node.inputs if edge is not None]

    def lower(*xs: Any, **attrs: Any) -> Any:
        result = op.lower(*[x.astype(dtype) for x, dtype in zip(xs, given, strict=True)], **attrs)
        return _each(lambda y: y.astype(widen_dtype(y.dtype)), result)

    def infer(*specs: TensorSpec, **attrs: Any) -> Any:
        own = [make_spec(spec.shape, dtype) for spec, dtype in zip(specs, given, strict=True)]
        return _each(_wide_spec, op.infer(*own, **attrs))

    return replace(op, lower=lower, infer=infer, jitted={})


def _disturbed(node: Node, site: int) -> Op:
    """Return a node's op with a lowering that puts rounding errors in."""
    op, amount = node.op, _amount(node)

    def lower(*xs: Any, **attrs: Any) -> Any:
        if not op.has("pointwise"):
            xs = tuple([disturb_traced(x, amount, site) for x in xs])
        result = _each(lambda y: disturb_traced(y, amount, ~site), op.lower(*xs, **attrs))
        if not op.has("log_sum"):
            return result
        largest = jnp.maximum(1.0, jnp.max(jnp.abs(xs[0]), initial=0.0))
        return _each(lambda y: y + largest * (disturb_traced(jnp.ones_like(y), amount, site + 7) - 1), result)

    return replace(op, lower=lower, jitted={})


def _each(function: Callable[[Any], Any], result: Any) -> Any:
    """Apply a function to one result or to each of several."""
    if isinstance(result, tuple | list):
        return tuple([function(one) for one in cast("tuple[Any, ...]", result)])
    return function(result)


def _wide_spec(spec: TensorSpec) -> TensorSpec:
    return make_spec(spec.shape, widen_dtype(spec.dtype))


def _log_sum_scale(values: Sequence[Any]) -> float:
    """Return what the error of a log of a sum of exponentials is relative to: the largest input, and 1 at least."""
    sizes = [np.abs(value[np.isfinite(value)]).max(initial=1.0) for value in values if value.dtype == float64]
    return float(max(sizes, default=1.0))


def _error(node: Node, dtype: DType) -> float:
    """Return the relative error that a node's bound allows on a result of a dtype.

    In a float64 program the reference rounds as well, and less than an ulp would be lost in it: 2 ulp at least.
    """
    eps = float(jnp.finfo(dtype).eps)
    return max(node.op.ulp * eps, 2 * float(jnp.finfo(float64).eps))


def _amount(node: Node) -> float:
    """Return the relative error that the bound of a node that adds many numbers allows on each of them."""
    return max(_error(node, spec.dtype) for spec in node.specs if is_wide_kind(spec.dtype))


# -- rounding errors ----------------------------------------------------------------------------------------------


def disturb(value: Array, amount: float, rng: np.random.Generator) -> Array:
    """Return ``value (1 + amount xi)``, ``xi`` uniform in [-1, 1] and independent per element; integers as they are."""
    if value.dtype == float64:
        return np.asarray(value * (1 + amount * rng.uniform(-1, 1, value.shape)))
    if value.dtype == complex128:
        xi = rng.uniform(-1, 1, value.shape) + 1j * rng.uniform(-1, 1, value.shape)
        with np.errstate(invalid="ignore"):  # complex infinities times complex numbers
            return np.asarray(value * (1 + amount * xi))
    return value


def into_range(value: Array, dtype: DType, rng: np.random.Generator | None) -> Array:
    """Round a result to the range of its own dtype: too large values become infinite, subnormals may become zero."""
    if dtype == float64 or kind_of(dtype) != "float":
        return value
    info = jnp.finfo(dtype)
    size = np.abs(value)
    # Halfway to the number that would come next, rounding to nearest gives infinity.
    over = size >= float(info.max) * (1 + float(info.eps) / 4)
    if over.any():
        value = np.where(over, np.copysign(np.inf, value), value)
    if rng is not None:
        under = (size < float(info.tiny)) & (size > 0)
        if under.any():
            value = np.where(under & (rng.integers(0, 2, value.shape) == 0), 0.0, value)
    return value


def disturb_traced(x: Any, amount: float, site: int) -> Any:
    """Disturb a jax value by a hash of its bits.

    In a loop body there is no generator; but every sample run comes with other bits, and so with other errors.

    Args:
        x: the value; integers stay as they are.
        amount: the largest relative error.
        site: where in the program it is, so that equal values at other places get other errors.
    """
    if jnp.iscomplexobj(x):
        return lax.complex(disturb_traced(lax.real(x), amount, site), disturb_traced(lax.imag(x), amount, site + 1))
    if x.dtype != jnp.float64:
        return x
    bits = lax.bitcast_convert_type(x, jnp.uint64).reshape(-1)
    bits = bits + jnp.arange(bits.size, dtype=jnp.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = bits + np.uint64((site * 0xD1B54A32D192ED03) % (1 << 64))
    # The finalizer of splitmix64.
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    xi = (bits >> np.uint64(11)).astype(jnp.float64) * 2.0**-52 - 1.0
    return x * (1 + amount * xi.reshape(x.shape))
