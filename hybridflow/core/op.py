"""`Op`: the record of an operation, and the decorator that makes it from a public function."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from hybridflow.backend.parallel import for_large
from hybridflow.core.errors import ArgumentError
from hybridflow.core.padding import Rule

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Array = Any
"""A `numpy.ndarray` or `jax.Array`, the operands of kernels, lowerings and raw gradient rules."""


@dataclass(frozen=True)
class No:
    """A column of `Op` that is left out on purpose, with the reason."""

    why: str

    def __bool__(self) -> bool:
        return False


class Stops(No):
    """A gradient rule that passes nothing by definition, with the reason: its gradients are None, not an error."""


class Flat(Stops):
    """The rule of an op that is constant almost everywhere: backward walks stop there, and its inputs get zeros."""


class Each:
    """A gradient rule as one function per input, each ``(F, g, y, *xs, **attrs)``; only the wanted ones are called.

    Args:
        rules: the functions.
        local: for two inputs that broadcast against each other, functions that return their gradients in the result's
            shape, before the sum over broadcast axes. Each reads only what is saved for its input's gradient.
    """

    __slots__ = ("local", "rules")

    def __init__(self, *rules: Callable[..., Any], local: tuple[Callable[..., Any], ...] | None = None) -> None:
        self.rules = rules
        self.local = local

    def __call__(self, F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> list[Callable[[], Any]]:
        """Return every input's gradient as a function that computes it."""
        return [lambda rule=rule: rule(F, g, y, *xs, **attrs) for rule in self.rules]


def on_host(rule: Callable[..., Any], host: Callable[..., Any]) -> Callable[..., Any]:
    """Give a gradient rule a second form for NumPy arrays, ``host(g, y, *xs, **attrs)``, which may use buffers inside.

    The second form returns the same as the rule, or None to leave the case to the rule. It must not write to its
    arguments. Only first-order eager gradients run it. A test compares it with the rule on the op's samples.
    """
    cast(Any, rule).host = host
    return rule


class Joint:
    """A gradient rule of an op that carries graphs or that JAX differentiates: ``(F, g, y, *xs, wanted, **attrs)``.

    It computes all gradients at once; `wanted` says which inputs need one.
    """

    __slots__ = ("rule",)

    def __init__(self, rule: Callable[..., Any]) -> None:
        self.rule = rule

    def __call__(self, F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> Any:
        """Return every input's gradient."""
        return self.rule(F, g, y, *xs, wanted=(True,) * len(xs), **attrs)


class MultiplyAdds:
    """A ``flops`` column for sums of products: each product counts as a multiplication and an addition.

    Args:
        macs: a function ``(outputs, *inputs, **attrs)`` of specs that returns the number of products.
        others: a function of the same arguments that returns the number of all other operations.
    """

    __slots__ = ("macs", "others")

    def __init__(self, macs: Callable[..., Any], others: Callable[..., Any] | None = None) -> None:
        self.macs = macs
        self.others = others

    def __call__(self, outputs: Any, *inputs: Any, **attrs: Any) -> Any:
        """Return the number of floating-point operations."""
        pairs = 2 * self.macs(outputs, *inputs, **attrs)
        return pairs if self.others is None else pairs + self.others(outputs, *inputs, **attrs)


Reach = tuple[int, int]
"""Two bit sets of inputs: those that a gradient reaches, and those it would reach only through ops with a `Flat` rule,
whose gradients are zeros."""


@dataclass(frozen=True)
class Saves:
    """The values that a gradient rule reads, which the recording therefore keeps alive.

    Args:
        x: positions of the inputs whose values the rule reads, or ``"all"``, or ``"rest"`` (all but the first); the
            rule gets the other inputs as specs.
        each: per input, the positions of the values that its own gradient reads (-1 is `y`), or ``"others"``: all
            inputs but itself. Values that only gradients of unconnected inputs read are then not saved. Entries of
            optional inputs come last.
        y: whether the rule reads the outputs' values.
        hidden: the number of trailing outputs that exist only for the rule, or a function of the attributes that
            returns it. The kernel, lowering and infer of such an op take ``residuals=``: True asks for the hidden
            outputs after the visible ones.
        expose: for an op that carries graphs, a function of its attributes that returns attributes with which the
            hidden outputs are visible too.
        depends: a function of the attributes that returns the inputs that the gradient of each visible output reaches,
            for example of an op that carries graphs; None if it reaches every input.
    """

    x: tuple[int, ...] | Literal["all", "rest"] = ()
    y: bool = False
    each: tuple[tuple[int, ...], ...] | Literal["others"] | None = None
    hidden: int | Callable[[dict[str, Any]], int] = 0
    expose: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    depends: Callable[..., Sequence[Reach]] | None = None

    def keeps(self, index: int) -> bool:
        """Whether the rule reads the value of an input."""
        if self.x == "all" or self.x == "rest":
            return index > 0 or self.x == "all"
        return index in self.x

    def read_by(self, wanted: Sequence[bool]) -> frozenset[int]:
        """Return the positions of the inputs (and -1 for `y`) that the gradients of the wanted inputs read."""
        if self.each is None or self.each == "others":
            alone = self.each is not None and sum(wanted) == 1
            kept = {i for i, own in enumerate(wanted) if self.keeps(i) and not (alone and own)}
            return frozenset(kept | {-1} if self.y else kept)
        each = self.each[: len(wanted)]  # it may have further entries, for optional inputs
        return frozenset({position for own, want in zip(each, wanted, strict=True) if want for position in own})


@dataclass(frozen=True)
class Sample:
    """A valid call of the public function; the automatic tests of the op are made from these.

    Args:
        args: positional arguments (arrays and plain values).
        kwargs: keyword arguments.
        gradient: whether the gradient checks apply at this point (False at a kink).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    gradient: bool = True


@dataclass(frozen=True)
class Bad:
    """A call that must fail, with the error that it must raise and a part of the message."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    error: type[Exception] = ValueError
    text: str = ""


Onnx = str | Callable[..., Any] | No
"""An `onnx` column: see `Op`."""

Samples = Callable[[np.random.Generator], Iterable[Sample | Bad]]

TRAITS = {
    "pointwise": "each output element depends on the matching element of the broadcast inputs",
    "commutative": "swapping the two inputs changes nothing",
    "layout": "moves elements without arithmetic, so NumPy does it for every dtype",
    "identity": "returns its input unchanged; exists for its gradient or for its place in the order",
    "random": "draws random numbers from the key it is given",
    "effect": "must run even if nothing reads its result",
    "nested": "carries graphs among its attributes",
    "inline": "XLA sees the operations it stands for beside those around it, and may compute them again in each reader",
    "source": "has no inputs to compute from: placeholders and constants",
    "reads_never": "its lowering reads the program's hidden input that is always False",
    "named": "gives its input a name=, by which the policy of a checkpoint knows it",
    "tensor_rule": "its gradient rule is the user's and works on tensors",
    "conversion": "changes nothing but its input's shape or dtype, as its attributes say",
    "reshape": "gives its input's elements, in row-major order, the shape that shape= says",
    "permute": "reorders axes: axes= says, for every axis of the result, which of the input's it is",
    "uniform": "has no inputs and repeats fill_value= over the shape that shape= says",
    "slice": "takes the elements of its input that index= says",
    "placement": "puts its input where index= says into zeros of the shape that shape= says",
    "select": "takes its second input where its first is True and its third elsewhere",
    "order": "compares real numbers: what it says of 0 and 1, 1 and 1, 1 and 0 it says of all pairs in the same order",
    "shift": "adds to its first input what it gives for 0 (-0.0 for floats) and its second input",
    "sum": "adds up the elements of its input along the axes that axis= says; keepdims= says whether these stay",
    "product": "multiplies its two inputs element by element, broadcast against each other",
    "matrix_product": "is the matrix product of its two inputs",
    "dot": "its lowering holds a product of matrices, for which XLA:CPU has a library",
    "convolution": "its lowering holds a convolution, which XLA:CPU runs fast only outside of called functions",
    "kernel_gradient": "is the gradient of a convolution's kernel, from the input and the gradient of the result",
    "windowed": "computes each element from a window of its input, or the other way round",
    "picks": "its result is elements of its input, or their positions: who compares with them must see the same bits",
    "involution": "applied twice it gives its input back",
    "idempotent": "applied twice it gives what it gives applied once",
    "unit_one": "leaves its first input as it is where the second is 1",
    "unit_zero": "leaves its first input as it is where the second is 0 (0.0, not -0.0)",
    "unit_minus_zero": "leaves its first input as it is where the second is -0.0 (or an integer 0)",
    "log_sum": "cancels, as a log of a sum of exponentials: its bound is in ulp of the largest of inputs, result and 1",
    "own_rule": "carries its gradient rule, which is not the derivative of its lowering",
    "foreign": "runs a function that is not hybridflow's, of any size and with roundings of its own",
    "low_precision": "takes its operands in low precision under hf.autocast",
    "full_precision": "takes its operands in float32 under hf.autocast",
    "places": "says how its value lies on a mesh of devices",
    "stages": "runs stages on the devices along a mesh axis, by a schedule",
    "collective": "computes from the values of several devices: its kernel takes them stacked",
    "gathers": "gives the whole of a Variable that lies in parts: the parts themselves are its input",
    "updates": "is an optimizer's step, element by element, of its first input",
    "inner": "serves gradient rules and other functions; it is not among the package's public names",
}


@dataclass(eq=False, slots=True)
class Op:
    """Everything hybridflow knows about one operation.

    Attributes:
        name: the name in the IR.
        kernel: a NumPy function ``(*arrays, **attrs)``, or `No`.
        lower: a jax function with the same signature.
        infer: the shape rule, a function ``(*specs, **attrs)`` that returns the outputs' spec or tuple of specs; its
            errors name the sizes.
        vjp: the gradient rule, a function ``(F, g, y, *xs, **attrs)`` that returns one gradient per input: an array,
            None, or a function without arguments that computes it on demand. Or `Each`, with one rule per input.
            `g` and `y` are tuples if the op has several outputs. `Stops` if no gradient passes; `No` if asking for
            one is an error.
        saves: the values that the gradient rule reads.
        flops: a function ``(outputs, *inputs, **attrs)`` of specs that returns the number of floating-point operations.
        samples: valid and invalid calls.
        traits: see `TRAITS`.
        method: the names of the function as a method of `Tensor`.
        ulp: the error bound of one element, in units in the last place of the result's dtype.
        public: the function that users call.
        onnx: the name of the equivalent ONNX operator; or a function ``(o, *inputs, **attrs)`` that writes several
            operators, which are methods of `o` (low-precision floats arrive in float32); or `No`. A function that
            takes ``residuals=`` writes the hidden outputs too when it is True.
        upgrades: for artifacts that were written when its attributes meant something else: each function turns the
            attributes of one version into those of the next.
        padded: what it does with elements beyond a real size, in graphs for a bound (see `hybridflow.core.padding`);
            None if it takes no open sizes there. Operations with the trait ``pointwise`` need no rule.
    """

    name: str
    kernel: Callable[..., Any] | No
    lower: Callable[..., Any]
    infer: Callable[..., Any]
    vjp: Callable[..., Any] | No
    saves: Saves = Saves()
    flops: Callable[..., Any] = lambda outputs, /, *inputs, **attrs: 0
    samples: Samples | No = No("not given")
    traits: frozenset[str] = frozenset()
    method: tuple[str, ...] = ()
    ulp: float = 4.0
    public: Callable[..., Any] | None = None
    onnx: Onnx = No("no operator of ONNX's is given for it")
    upgrades: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = ()
    padded: Rule | None = None
    fast_kernel: Callable[..., Any] | None = field(default=None, init=False, repr=False)
    large_kernel: Callable[..., Any] | None = field(default=None, init=False, repr=False)
    plain: bool = field(default=False, init=False, repr=False)
    host_rule: Callable[..., Any] | None = field(default=None, init=False, repr=False)
    pullback: Callable[..., Any] | None = field(default=None, init=False, repr=False)
    looked_at: tuple[int, ...] | None = field(default=None, init=False, repr=False)
    jitted: dict[Any, Callable[..., Any]] = field(default_factory=dict[Any, Callable[..., Any]], repr=False)
    accepted: set[Any] = field(default_factory=set[Any], repr=False)

    def __post_init__(self) -> None:
        """Derive what the fast paths need at every call.

        `fast_kernel` is the kernel if it needs no ``residuals``. `large_kernel` does the same for large arrays, in
        several threads if the kernel is a NumPy function. `plain` says that the gradient rule runs on bare arrays as
        it is. `host_rule` is the rule's form for NumPy arrays. `pullback` is the function that the backward walk calls
        on the host, set on first use.
        """
        self.host_rule = getattr(self.vjp, "host", None)
        hidden = bool(self.saves.hidden)
        self.fast_kernel = None if isinstance(self.kernel, No) or hidden else self.kernel
        self.large_kernel = for_large(self.fast_kernel)
        self.plain = not isinstance(self.vjp, No) and not hidden and "tensor_rule" not in self.traits

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def read_by_rule(self) -> tuple[int, ...] | None:
        """Return the positions of ``(y, *xs)`` that the gradient rule's code reads at all; None if it cannot be told.

        `saves` is about values. A rule may also read an input's shape alone, for which a spec is enough.
        """
        looked = _looked_at(self.vjp)
        return None if looked is _ALL else looked

    def spec_arguments(self, count: int) -> Sequence[int]:
        """Return the positions of ``(y, *xs)`` that the rule uses but the recording may not save: they need a spec."""
        looked = self.looked_at
        if looked is None:
            looked = _looked_at(self.vjp)
            if looked is not _ALL and not self.saves.hidden:
                missing = tuple([i for i in looked if not (self.saves.y if i == 0 else self.saves.keeps(i - 1))])
                looked = missing if self.saves.each is None else looked
            self.looked_at = looked
        return looked if looked is not _ALL else range(count)

    def hidden_outputs(self, attrs: dict[str, Any]) -> int:
        """Return how many trailing outputs of a node with these attributes are hidden."""
        hidden = self.saves.hidden
        if not hidden or not attrs.get("residuals"):
            return 0
        return hidden if isinstance(hidden, int) else hidden(attrs)

    @property
    def version(self) -> int:
        """The version of what its attributes mean."""
        return len(self.upgrades) + 1

    def has(self, trait: str) -> bool:
        """Whether the op has a trait."""
        return trait in self.traits


_ALL = (-1,)


def _looked_at(rule: Any) -> tuple[int, ...]:
    """Return the positions of ``(y, *xs)`` whose names a rule's code loads, or `_ALL` if that cannot be told."""
    if isinstance(rule, Each):
        if rule.local is None:
            positions = [_looked_at(one) for one in rule.rules]
        else:
            positions = [(*_looked_at(one), index) for index, one in enumerate(rule.local, 1)]
        return _ALL if _ALL in positions else tuple(sorted({index for one in positions for index in one}))
    code = getattr(rule, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS:
        return _ALL
    names = code.co_varnames[2 : code.co_argcount]
    loaded = {one.argval for one in dis.get_instructions(code) if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))}
    for one in dis.get_instructions(code):  # newer interpreters load two variables at once
        if isinstance(one.argval, tuple):
            loaded.update(one.argval)
    loaded.update(code.co_cellvars)
    return tuple([index for index, name in enumerate(names) if name in loaded])


REGISTRY: dict[str, Op] = {}
"""Every op by its IR name; only `op` and `register` add to it."""


def register(record: Op) -> Op:
    """Add a record to the registry.

    Raises:
        ArgumentError: if the name is taken or a trait is unknown.
    """
    unknown = record.traits - TRAITS.keys()
    if unknown:
        raise ArgumentError(f"op {record.name}: unknown traits {sorted(unknown)}", hint=f"Known: {list(TRAITS)}")
    if record.name in REGISTRY:
        raise ArgumentError(f"op {record.name}: the name is taken", hint="Choose another name.")
    REGISTRY[record.name] = record
    return record


class OpFunction(Protocol[P, R_co]):
    """The type of a public function with its record as the attribute `op`; at run time a plain function."""

    op: Op

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the public function."""
        ...


Expose = Callable[[Op, Callable[..., Any]], Callable[..., Any]]
_expose: list[Expose] = []


def on_public(expose: Expose) -> None:
    """Set the function that makes an op's public function from its record and plain function (`operators` does)."""
    _expose.append(expose)


def op(
    *,
    kernel: Callable[..., Any] | No,
    lower: Callable[..., Any],
    infer: Callable[..., Any],
    vjp: Callable[..., Any] | No,
    samples: Samples | No,
    saves: Saves | None = None,
    flops: Callable[..., Any] | None = None,
    traits: Iterable[str] = (),
    method: str = "",
    ulp: float = 4.0,
    name: str | None = None,
    onnx: Onnx | None = None,
    padded: Rule | None = None,
) -> Callable[[Callable[P, R]], OpFunction[P, R]]:
    """Make a public function an operation: its body normalizes arguments and calls `bind(fn.op, ...)`.

    Args:
        kernel, lower, infer, vjp, samples, saves, flops, ulp: the columns of `Op`.
        traits: trait names.
        method: names of `Tensor` methods, separated by spaces.
        name: the IR name, if not the function's.
        onnx, padded: the columns of `Op`; optional for users' operations.
    """

    def decorate(function: Callable[P, R]) -> OpFunction[P, R]:
        record = Op(
            name=name or cast(FunctionType, function).__name__,
            kernel=kernel,
            lower=lower,
            infer=infer,
            vjp=vjp,
            saves=saves or Saves(),
            samples=samples,
            traits=frozenset(traits),
            method=tuple(method.split()),
            ulp=ulp,
            public=function,
            padded=padded,
        )
        if flops is not None:
            record.flops = flops
        if onnx is not None:
            record.onnx = onnx
        register(record)
        exposed: Callable[..., Any] = function
        for expose in _expose:
            exposed = expose(record, function)
        record.public = exposed
        result = cast("OpFunction[P, R]", exposed)
        result.op = record
        return result

    return decorate
