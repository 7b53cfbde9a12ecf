"""A model of XLA:CPU's memory while a graph runs: its fusions, their order, and the lifetimes of buffers.

It follows the rules of XLA's CPU backend (jaxlib 0.10):

- Products, convolutions and steps of long reductions are kernels of their own; on several devices all reductions are.
- Other operations are fused into every reader, and so computed once for each. There are two exceptions. An expensive
  operation is stored if it has several readers or if a reader repeats its elements. An operation that is stored anyway
  and has several large operands is not computed again.
- Kernels run breadth-first.
- A donated input is copied if it may still be read when the output that takes its memory is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hybridflow.core.node import Node
from hybridflow.ir.costs import Sizes, bodies
from hybridflow.ir.graph import Graph
from hybridflow.nested.pipelines import buffer_bytes
from hybridflow.xla.primitives import Parts, Primitive, Program, Value, program_of

_NEVER_FUSED = (
    "dot_general", "conv_general_dilated", "reduce_window", "select_and", "scatter", "sort", "cum", "fft", "while",
    "scan", "cond", "node", "cholesky", "lu", "qr", "svd", "eig", "triangular_solve", "custom_call", "ffi_call",
    "pure_callback", "io_callback", "debug_callback", "argmax", "argmin", "top_k", "householder", "schur", "hessenberg",
    "tridiagonal", "approx_top_k", "random_bits",
)
"""Prefixes of the names of primitives that are never fused with others."""
_EFFECTS = {"node", "pure_callback", "io_callback", "debug_callback"}
"""Primitives that run even if nothing reads their results."""
_EXPENSIVE = {
    "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "sin", "cos", "tan", "sqrt", "rsqrt", "cbrt", "pow",
    "atan2", "erf", "erfc_part", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "digamma", "lgamma",
    "erf_inv", "threefry2x32",
}
_SMALL = 128
"""Buffers smaller than the largest one divided by this are counted together, not packed one by one."""
_MOVES = {"transpose", "rev", "concatenate", "slice", "dynamic_slice", "gather", "pad", "dynamic_update_slice"}


@dataclass(eq=False)
class Kernel:
    """A kernel: operations that XLA runs as one.

    Attributes:
        primitive: the primitive whose outputs it stores, None for a copy of a donated input.
        outputs: the values that it stores.
        reads: the stored values that it reads.
        node: the node of the graph that its outputs belong to, None for a copy.
        inside: the bytes that the primitive's own graphs need while they run.
        moves: whether an output element may depend on input elements at other positions.
    """

    primitive: Primitive | None
    outputs: list[Value]
    reads: dict[Value, None] = field(default_factory=dict[Value, None])
    node: Node | None = None
    inside: int = 0
    moves: bool = False


@dataclass(frozen=True)
class Buffers:
    """The buffers in use while a graph runs, apart from its inputs and outputs.

    Attributes:
        kernels: the kernels, in the order in which they run.
        bytes: the bytes in use while each kernel runs.
        peak: the most bytes needed; more than the largest of `bytes` if the buffers leave gaps between them.
        at: the kernel with the largest of `bytes`, None if there are no kernels.
        alive: the values stored while `at` runs, each with the node that made it; largest first.
    """

    kernels: tuple[Kernel, ...]
    bytes: tuple[int, ...]
    peak: int
    at: Kernel | None
    alive: tuple[tuple[Value, Node | None], ...]


def buffers(
    graph: Graph, sizes: Sizes | None = None, donated: Sequence[tuple[int, int]] = (), parts: Parts | None = None
) -> Buffers:
    """Predict the buffers of XLA:CPU.

    Args:
        graph: the graph after its passes.
        sizes: the size of each symbol; if not given, the sizes at which the graph was traced.
        donated: pairs of an output and the input whose memory it takes.
        parts: into how many parts a mesh divides the values of a node; None for one device.
    """
    if sizes is None:
        sizes = graph.dims.hints

    def inside(node: Node) -> int:
        own = max((buffers(body.graph, sizes, (), parts).peak for body in bodies(node, sizes) or ()), default=0)
        return own + (buffer_bytes(node, parts) if node.op.has("stages") else 0)

    program = program_of(graph, sizes, inside, parts)
    return _lifetimes(program, _kernels(program), donated)


# -- fusion -------------------------------------------------------------------------------------------------------


def _runs_alone(primitive: Primitive, program: Program) -> bool:
    """Whether a primitive is a kernel of its own, which reads and stores whole values."""
    return primitive.name.startswith(_NEVER_FUSED) or (program.parts is not None and _is_reduction(primitive))


def _is_reduction(primitive: Primitive) -> bool:
    return primitive.name.startswith("reduce_")


def _is_expensive(primitive: Primitive) -> bool:
    return primitive.name in _EXPENSIVE or _is_reduction(primitive)


def _is_unary(primitive: Primitive) -> bool:
    """Whether at most one operand is as large as the result, not counting constants and broadcast ones."""
    size = primitive.outputs[0].size
    large = [one for one in primitive.inputs if one.size >= size and not one.constant and not _is_repeated(one)]
    return len(large) < 2


def _is_repeated(value: Value) -> bool:
    return value.made is not None and value.made.name == "broadcast_in_dim"


def _repeats(user: Primitive, value: Value) -> bool:
    """Whether a primitive reads the elements of a value more than once."""
    if user.name == "broadcast_in_dim":
        return user.outputs[0].size > value.size
    return user.name == "gather" and user.inputs[0] is value


def _fuse(program: Program) -> dict[Primitive, dict[Primitive, bool]]:
    """Return the kernels that compute each primitive.

    A kernel is given by the primitive that it stores. Its value says whether the kernel reads elements of the fused
    primitive repeatedly. A primitive that nothing reads is in no kernel.
    """
    kernels: dict[Primitive, dict[Primitive, bool]] = {}
    results = {value.base for value in program.outputs}
    for primitive in reversed(program.primitives):
        stored = any(value in results for value in primitive.outputs)
        into: dict[Primitive, bool] = {}
        for value in primitive.outputs:
            for user in value.users:
                if not kernels[user]:
                    continue
                if _runs_alone(primitive, program) or _runs_alone(user, program):
                    stored = True
                    continue
                repeats = _repeats(user, value)
                for kernel, repeated in kernels[user].items():
                    into[kernel] = into.get(kernel, False) or repeats or repeated
        if _is_expensive(primitive):
            has_readers = len(into) + stored > 1
            refused = [kernel for kernel, repeated in into.items() if repeated or has_readers]
            stored = stored or bool(refused)
            for kernel in refused:
                del into[kernel]
        elif stored and not _is_unary(primitive):
            into.clear()
        kernels[primitive] = into
        if stored or (not into and primitive.name in _EFFECTS):
            into[primitive] = False
    return kernels


def _kernels(program: Program) -> list[Kernel]:
    members = _fuse(program)
    kernels = {
        primitive: Kernel(primitive, primitive.outputs, node=primitive.node, inside=primitive.inside)
        for primitive in program.primitives
        if primitive in members[primitive]
    }
    for primitive in program.primitives:
        for root in members[primitive]:
            kernel = kernels[root]
            kernel.moves |= primitive.name in _MOVES or _runs_alone(primitive, program) or _is_reduction(primitive)
            for value in primitive.inputs:
                producer = value.made
                if value.constant or (producer is not None and producer is not primitive and root in members[producer]):
                    continue
                kernel.reads[value] = None
    return list(kernels.values())


# -- order and lifetimes ------------------------------------------------------------------------------------------


def _ancestors(kernels: Iterable[Kernel]) -> dict[Kernel, set[Kernel]]:
    maker = {value: kernel for kernel in kernels for value in kernel.outputs}
    ancestors: dict[Kernel, set[Kernel]] = {}
    for kernel in kernels:
        before: set[Kernel] = set()
        for value in kernel.reads:
            kernel_before = maker.get(value)
            if kernel_before is not None:
                before |= ancestors[kernel_before] | {kernel_before}
        ancestors[kernel] = before
    return ancestors


def _copy_donated(program: Program, kernels: list[Kernel], donated: Sequence[tuple[int, int]]) -> list[Kernel]:
    """Return kernels that copy donated inputs whose memory may be overwritten before their last reader has run."""
    if not donated:
        return []
    before = _ancestors(kernels)
    maker = {value: kernel for kernel in kernels for value in kernel.outputs}
    copies: list[Kernel] = []
    for output, position in donated:
        value, writer = program.inputs[position], maker.get(program.outputs[output].base)
        if writer is None:
            continue
        readers = [kernel for kernel in kernels if value in kernel.reads]
        if all(reader is writer or reader in before[writer] for reader in readers):
            continue
        copy = Value(value.shape, value.itemsize)
        copies.append(Kernel(None, [copy], {value: None}))
        for reader in readers:
            del reader.reads[value]
            reader.reads[copy] = None
    return copies


def _breadth_first(program: Program, kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels in the order in which they become ready, starting with those that need no other kernel."""
    readers: dict[Value, list[Kernel]] = {}
    missing: dict[Kernel, int] = {}
    for kernel in kernels:
        missing[kernel] = len(kernel.reads)
        for value in kernel.reads:
            readers.setdefault(value, []).append(kernel)
    ready = deque([kernel for kernel in kernels if not kernel.reads])
    order: list[Kernel] = []

    def is_stored(value: Value) -> None:
        for kernel in readers.get(value, ()):
            missing[kernel] -= 1
            if not missing[kernel]:
                ready.append(kernel)

    for value in program.inputs:
        is_stored(value)
    while ready:
        kernel = ready.popleft()
        order.append(kernel)
        for value in kernel.outputs:
            is_stored(value)
    return order


@dataclass(eq=False)
class Buffer:
    """The memory of a value, with its first and last kernel.

    Attributes:
        value: the value.
        start, end: positions of the first and the last kernel that need it; -1 is before the first kernel.
        node: the node that computes it.
        moves: whether the kernel that writes it must not write over its own operands.
    """

    value: Value
    start: int
    end: int
    node: Node | None = None
    moves: bool = True

    def __post_init__(self) -> None:
        """Compute the size in bytes, which is used often."""
        self.nbytes = self.value.nbytes

    def meets(self, other: Buffer) -> bool:
        """Whether the lifetimes of two buffers overlap.

        A kernel may write its result over an operand of the same size that it is the last to read, if `moves` is
        false. An input is never overwritten in this way.
        """
        first, second = (self, other) if self.start <= other.start else (other, self)
        if first.end == second.start and first.start < second.start:
            return second.moves or first.nbytes != second.nbytes or first.value.made is None
        return first.end >= second.start


def _lifetimes(program: Program, kernels: list[Kernel], donated: Sequence[tuple[int, int]]) -> Buffers:
    order = _breadth_first(program, [*_copy_donated(program, kernels, donated), *kernels])
    results = {value.base for value in program.outputs}
    last: dict[Value, int] = {}
    for position, kernel in enumerate(order):
        last.update(dict.fromkeys([*kernel.outputs, *kernel.reads], position))
    temporaries: list[Buffer] = []
    results_at: dict[Value, Buffer] = {}
    for position, kernel in enumerate(order):
        for value in kernel.outputs:
            results_at[value] = Buffer(value, position, len(order), kernel.node, kernel.moves)
            if value not in results:
                temporaries.append(Buffer(value, position, last[value], kernel.node, kernel.moves))
    stored = _beside_results(temporaries, _result_memory(program, donated, results_at, last))
    inside = [kernel.inside for kernel in order]
    live = [a + b for a, b in zip(_live(stored, len(order)), inside, strict=True)]
    at = live.index(max(live)) if live else -1
    alive = [(buffer.value, buffer.node) for buffer in stored if buffer.start <= at <= buffer.end]
    alive.sort(key=lambda pair: -pair[0].nbytes)
    peak = max([_packed(stored, len(order)), *live])
    return Buffers(tuple(order), tuple(live), peak, order[at] if live else None, tuple(alive))


def _live(stored: list[Buffer], count: int) -> list[int]:
    """Return the bytes stored while each kernel runs."""
    starting: dict[int, list[Buffer]] = {}
    for buffer in stored:
        starting.setdefault(buffer.start, []).append(buffer)
    change = [0] * (count + 1)
    for buffer in stored:
        end = buffer.end
        if any(not other.meets(buffer) for other in starting.get(end, ())):
            end -= 1  # its last reader writes over it
        change[buffer.start] += buffer.nbytes
        change[end + 1] -= buffer.nbytes
    return list(accumulate(change[:count]))


def _result_memory(
    program: Program, donated: Sequence[tuple[int, int]], written: dict[Value, Buffer], last: dict[Value, int]
) -> list[list[Buffer]]:
    """Return the memory of each result as the lifetimes in it: of the result, and of the donated input, if any."""
    positions = dict(donated)
    results: list[list[Buffer]] = []
    for index, value in enumerate(program.outputs):
        result = written.get(value.base)
        if result is None:
            continue
        holders = [result]
        if index in positions:
            before = program.inputs[positions[index]]
            holders.append(Buffer(before, -1, last.get(before, -1)))
        results.append(holders)
    return results


def _beside_results(temporaries: list[Buffer], free: list[list[Buffer]]) -> list[Buffer]:
    """Return the buffers that find no room in a result's memory while this is free."""
    free = sorted(free, key=lambda lifetimes: -lifetimes[0].nbytes)
    unplaced: list[Buffer] = []
    for temporary in sorted(temporaries, key=lambda buffer: -buffer.nbytes):
        for buffers in reversed(free):
            if buffers[0].nbytes >= temporary.nbytes and not any(temporary.meets(other) for other in buffers):
                buffers.append(temporary)
                break
        else:
            unplaced.append(temporary)
    return unplaced


def _packed(stored: list[Buffer], count: int) -> int:
    """Return the bytes that buffers take if each, the largest first, gets the lowest free address.

    Small buffers fit into some gap. So only the peak size of those that are in use at once is added.
    """
    least = max((buffer.nbytes for buffer in stored), default=0) // _SMALL
    packed: list[tuple[int, Buffer]] = []
    top = 0
    for buffer in sorted([buffer for buffer in stored if buffer.nbytes > least], key=lambda large: -large.nbytes):
        offset = 0
        for start, other in sorted([(start, other) for start, other in packed if buffer.meets(other)], key=_offset):
            if start - offset >= buffer.nbytes:
                break
            offset = max(offset, start + other.nbytes)
        packed.append((offset, buffer))
        top = max(top, offset + buffer.nbytes)
    return top + max(_live([buffer for buffer in stored if buffer.nbytes <= least], count), default=0)


def _offset(one: tuple[int, Buffer]) -> int:
    return one[0]
