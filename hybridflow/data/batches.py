"""`Batches`: the rows of arrays in batches, in an order that depends on a seed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

import jax
import numpy as np

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, LayoutError, ShapeError
from hybridflow.core.keywords import take_foreign_keywords
from hybridflow.core.mesh import Mesh
from hybridflow.core.processes.member import member
from hybridflow.core.tensor import Tensor, as_tensor, new_tensor
from hybridflow.core.variable import Variable
from hybridflow.data.examples import Workers, like_lengths, load, stack
from hybridflow.data.prefetch import Prefetched
from hybridflow.distribute.processes import from_local

Array = np.ndarray[Any, Any] | jax.Array | Tensor | Variable
_ARRAYS = (np.ndarray, jax.Array, Tensor, Variable)
B = TypeVar("B")
C = TypeVar("C")


class Options(TypedDict, total=False):
    """The options of `Batches`."""

    shuffle: bool
    seed: int | None
    drop_last: bool
    shard: Mesh | None
    workers: int
    pad: float | None
    lengths: Sequence[int] | None


class Batches(Generic[B]):
    """Batches of examples. Each loop over it is one epoch.

    Args:
        data: an array, or a tuple or mapping of arrays (which may be nested), with one row per example; or a sequence
            of examples whose arrays are stacked: a list, or an object with ``__len__`` and ``__getitem__`` that loads
            an example when it is asked for it.
        size: the number of examples in a batch; the last batch may have fewer.
        shuffle: whether each epoch has an order of its own.
        seed: the seed of the orders; a random one if None.
        drop_last: whether to leave out a last batch that is smaller.
        shard: the mesh on which batches lie: rows are split over its first axis. Each process makes only its own rows,
            and applies the functions of `map` to them; ``size`` counts the rows of all. A last batch that cannot be
            split evenly is whole in every process. Without a seed, all processes take process 0's.
        workers: the number of processes that load examples of a sequence. The batches and their order are those
            without workers, if an example depends on its number only.
        pad: the value that fills up arrays of the examples of a batch that have different shapes, at the ends of their
            axes. An example that needs its length has it as a part, such as ``(ids, len(ids))``.
        lengths: the length of each example: a batch then takes examples of like lengths, which makes less padding.

    Raises:
        LayoutError: the mesh cannot divide ``size``.
        ArgumentError: there are no examples, or there is no batch; the examples cannot be pickled, or are no sequence,
            for ``workers``; there are more or fewer ``lengths`` than examples.
        ShapeError: the arrays have different numbers of rows; a batch's examples have different shapes, without
            ``pad``.
        WorkerError: a worker process ended.

    Example:
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> data = hf.data.Batches((np.arange(5), np.arange(5) * 10), 2)
        >>> [x.numpy().tolist() for x, y in data]
        [[0, 1], [2, 3], [4]]
        >>> len(data)
        3
    """

    @overload
    def __init__(self: Batches[Tensor], data: Array, size: int, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self: Batches[tuple[Tensor, Tensor]], data: tuple[Array, Array], size: int, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: Batches[tuple[Tensor, ...]], data: tuple[Array, ...], size: int, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: Batches[dict[str, Tensor]], data: dict[str, Array], size: int, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self: Batches[Any], data: Any, size: int, **options: Unpack[Options]) -> None: ...
    def __init__(
        self, data: Any, size: int, *, shuffle: bool = False, seed: int | None = None, drop_last: bool = False,
        shard: Mesh | None = None, workers: int = 0, pad: float | None = None, lengths: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(cast(object, size), int) or size < 1:
            raise ArgumentError("Batches: size must be an int, 1 at least", got=f"size={size!r}")
        self._size = size
        self._shuffle = bool(shuffle)
        self._drop = bool(drop_last)
        self._share = None if shard is None else Share(shard, size)
        self._seed = int(seed) if seed is not None else shared_seed() if shard is not None else secrets.randbits(63)
        self._functions: tuple[Callable[[Any], Any], ...] = ()
        self._epoch = 0
        self._next = 0
        self._resumes = False
        self._examples = None if _is_arrays(data) else data
        self._arrays, self._tree = ([], None) if self._examples is not None else _rows(data)
        self._count = len(self._arrays[0]) if self._examples is None else len(data)
        self._pad = pad
        self._lengths = None if lengths is None else np.asarray(lengths)
        if self._lengths is not None and self._lengths.shape != (self._count,):
            raise ArgumentError("Batches: lengths has one number per example",
                                got=f"{self._count} examples, lengths of shape {self._lengths.shape}")
        if workers and self._examples is None:
            raise ArgumentError("Batches: workers load examples of a sequence one by one, and arrays are there already",
                                got=f"workers={workers}", hint="Leave workers= out; .prefetch() makes batches ahead.")
        self._worker_count = workers
        self._workers = Workers(self._examples, workers) if workers else None
        if len(self) == 0:
            raise ArgumentError("Batches: there is no batch",
                                got=f"{self._count} examples, size={size}, drop_last={self._drop}")

    def __len__(self) -> int:
        whole, rest = divmod(self._count, self._size)
        return whole + (rest > 0 and not self._drop)

    def __repr__(self) -> str:
        seed = [f"seed={self._seed}"] if self._shuffle else []
        said = {"shuffle": self._shuffle, "drop_last": self._drop, "workers": self._worker_count, "pad": self._pad}
        options = [f"{name}={value}" for name, value in said.items() if value not in (0, None) or type(value) is float]
        return f"Batches({', '.join([f'{self._count} examples', f'size={self._size}', *options, *seed])})"

    def map(self, fn: Callable[[B], C]) -> Batches[C]:
        """Return the same batches, with a function applied to each of them."""
        made: Batches[Any] = object.__new__(Batches)
        made.__dict__.update(self.__dict__)
        made._functions = (*self._functions, fn)
        return made

    def prefetch(self, n: int = 2) -> Prefetched[B]:
        """Return the same batches; a thread makes the next `n` ahead of time."""
        return Prefetched(self, n)

    def state(self) -> dict[str, Any]:
        """Return the position: the seed, the epoch, and how many of its batches were yielded."""
        return {"seed": self._seed, "epoch": self._epoch, "batch": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position; the next loop begins there.

        Raises:
            ArgumentError: the value is not a state of such batches.
        """
        if set(state) != {"seed", "epoch", "batch"} or not 0 <= state["batch"] <= len(self) or state["epoch"] < 0:
            raise ArgumentError("Batches.restore: it is no position in these batches", got=repr(dict(state))[:120],
                                hint=f"A state has seed, epoch and batch, of which there are {len(self)}.")
        self._seed, self._epoch, self._next = int(state["seed"]), int(state["epoch"]), int(state["batch"])
        self._resumes = True

    def __iter__(self) -> Iterator[B]:
        if not self._resumes:
            self._next = 0
        self._resumes = False
        order, shares = self._order(), range(self._next, len(self))
        rows = (self._share_of(order[number * self._size : (number + 1) * self._size]) for number in shares)
        for batch, is_split in self._read(rows):
            self._next += 1
            for function in self._functions:
                batch = function(batch)
            yield self._share.spread(batch) if is_split and self._share is not None else batch
        self._epoch, self._next = self._epoch + 1, 0

    def _order(self) -> Any:
        """Return the numbers of the examples in this epoch's order; a range if that is theirs."""
        if not self._shuffle and self._lengths is None:
            return range(self._count)
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(self._count) if self._shuffle else np.arange(self._count)
        return order if self._lengths is None else like_lengths(order, self._lengths, self._size, self._shuffle, random)

    def _share_of(self, rows: Any) -> tuple[Any, bool]:
        """Return the numbers of this process's examples of a batch, and whether other processes have the rest."""
        if self._share is None or not self._share.divides(len(rows)):
            return rows, False
        return self._share.own(np.asarray(rows), len(rows)), True

    def _read(self, rows: Iterator[tuple[Any, bool]]) -> Iterator[tuple[Any, bool]]:
        """Yield the batch of each share of rows."""
        if self._workers is None:
            for numbers, is_split in rows:
                yield self._batch(numbers), is_split
            return
        splits: list[bool] = []

        def numbers() -> Iterator[list[int]]:
            for chosen, is_split in rows:
                splits.append(is_split)
                yield [int(number) for number in chosen]

        for examples in self._workers.loaded(numbers()):
            yield stack(examples, self._pad), splits.pop(0)

    def _batch(self, rows: Any) -> Any:
        if self._examples is not None:
            return stack(load(self._examples, [int(number) for number in rows]), self._pad)
        if isinstance(rows, range):
            made = [new_tensor(array[rows.start : rows.stop].copy()) for array in self._arrays]
        else:
            made = [new_tensor(array[rows]) for array in self._arrays]
        return made[0] if self._tree is None else jax.tree_util.tree_unflatten(self._tree, made)


def _is_arrays(data: Any) -> bool:
    """Whether data is a structure of arrays, and not a sequence of examples."""
    if isinstance(data, (*_ARRAYS, tuple, Mapping)):
        return True
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ArgumentTypeError(
            f"Batches: a {type(data).__name__} has no rows and no examples", got=repr(data)[:80],
            hint="Give arrays, or a sequence of examples; any iterable of batches works without hf.data."
        )
    return hasattr(data, "__array__")


def _rows(data: Any) -> tuple[list[Any], Any]:
    """Return the arrays of a structure, and the structure; the latter is None for a single array."""
    leaves, tree = jax.tree_util.tree_flatten(data)
    arrays = [np.asarray(leaf) for leaf in leaves]
    sizes = [array.shape[0] if array.ndim else None for array in arrays]
    if not arrays or len(set(sizes)) != 1 or sizes[0] is None:
        raise ShapeError("Batches: the arrays must have one row per example each",
                         got=", ".join([str(array.shape) for array in arrays]) or "no arrays")
    return arrays, None if len(leaves) == 1 and not isinstance(data, tuple | Mapping) else tree


take_foreign_keywords(Batches)


# -- the share that this process has of batches that lie on a mesh ----------------------------------------------------


def shared_seed() -> int:
    """Return a random seed, the same in all processes."""
    seed = secrets.randbits(53)
    joined = member()
    return seed if joined is None else joined.broadcast("the seed of Batches", seed)


class Share:
    """This process's rows of batches whose rows are split over a mesh's first axis.

    Args:
        mesh: the mesh.
        size: the number of rows in a batch.

    Raises:
        LayoutError: the mesh cannot divide it.
    """

    def __init__(self, mesh: Mesh, size: int) -> None:
        if not isinstance(cast(object, mesh), Mesh):
            raise LayoutError("Batches: shard is a mesh", got=repr(mesh)[:80], hint="Make a hf.Mesh.")
        self._mesh = mesh
        self._parts = mesh.parts(mesh.axes[0])
        if size % self._parts:
            raise LayoutError(
                f"Batches: size={size} cannot be divided by {self._parts}", got=str(mesh),
                hint=f"Take {-(-size // self._parts) * self._parts}: the size counts all processes' rows."
            )

    def divides(self, count: int) -> bool:
        """Whether a number of rows can be split evenly."""
        return count % self._parts == 0

    def own(self, rows: Any, count: int) -> Any:
        """Return this process's rows of a batch, as an array of their numbers.

        Args:
            rows: the numbers of all rows, a slice or an array.
            count: how many there are.
        """
        numbers = np.arange(rows.start, rows.stop) if type(rows) is slice else rows
        sharding = self._mesh.sharding((self._mesh.axes[0],))
        parts = {one.indices(count)[:2] for (one,) in sharding.addressable_devices_indices_map((count,)).values()}
        return np.concatenate([numbers[start:stop] for start, stop in sorted(parts)])

    def spread(self, batch: Any) -> Any:
        """Return a batch over all processes, from this one's rows of it."""

        def place(leaf: Any) -> Any:
            tensor = as_tensor(leaf)
            return from_local(tensor, self._mesh, (self._mesh.axes[0], *(None,) * (tensor.ndim - 1)))

        return jax.tree_util.tree_map(place, batch)
