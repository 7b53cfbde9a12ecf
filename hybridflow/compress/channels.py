"""Which channels of which layers belong together, found by running a model.

One layer at a time gives NaN in some of its channels. All other layers with weights give what they gave before, so the
NaN goes exactly as far as the inputs of the next layers: through activations, pools, reshapes, sums and attention. If a
channel is removed, what it alone reaches goes with it; what several channels reach binds these together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.compress.layers import is_storable
from hybridflow.compress.replacing import copied, in_evaluation, modules_of
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.core.variable import Variable
from hybridflow.nn.layers.convolution import Conv
from hybridflow.nn.layers.linear import Embedding
from hybridflow.nn.layers.module import Module
from hybridflow.nn.layers.normalization import BatchNorm

Array = np.ndarray[Any, Any]
FIXED = "fixed"
"""The marker of what must not be removed: the model's inputs and results, and what else has sizes of its own."""


class Slot(NamedTuple):
    """A channel of a layer.

    Attributes:
        side: ``"out"`` of its result, ``"in"`` of its input, ``"same"`` of both, or `FIXED`.
        path: the layer.
        number: the channel.
    """

    side: str
    path: str
    number: int


THE_FIXED = Slot(FIXED, "", 0)


def is_depthwise(layer: Any) -> bool:
    """Whether a convolution gives each channel of its input a filter of its own."""
    return isinstance(layer, Conv) and layer.groups > 1 and layer.groups == layer.in_channels == layer.out_channels


def follows(layer: Any) -> bool:
    """Whether each channel of a layer's result belongs to the same one of its input."""
    return isinstance(layer, BatchNorm) or (is_storable(layer) and is_depthwise(layer))


def is_producer(layer: Any) -> bool:
    """Whether channels of a layer's result can be removed."""
    return is_storable(layer) and (not isinstance(layer, Conv) or layer.groups == 1)


def channel_axis(layer: Any) -> int:
    """Return the axis of channels of a layer's result."""
    return 1 if isinstance(layer, BatchNorm) or (isinstance(layer, Conv) and not layer.channels_last) else -1


def _reaches(x: Any, axis: int) -> Array:
    """Return along an axis where there is NaN."""
    values = np.asarray(as_tensor(x).numpy())
    moved = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
    return np.isnan(moved).any(0)


class _Probe(Module):
    """A layer that takes note of NaN in its input, and gives what it gave in the first run."""

    def __init__(self, path: str, layer: Any, state: _State) -> None:
        self.path, self.layer, self.state = path, layer, state

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the layer, such as the weight that another layer is tied to, and note that."""
        if name.startswith("_") or "layer" not in vars(self):
            raise AttributeError(name)
        self.state.read.add(self.path)
        return getattr(self.layer, name)

    def forward(self, x: Any, *more: Any) -> Any:
        """Return the layer's result of the first run, or one with NaN in it."""
        state, path = self.state, self.path
        call = state.calls.get(path, 0)
        state.calls[path] = call + 1
        if state.first:
            y = self.layer(x, *more)
            state.results[path, call] = y
            return y
        axis = channel_axis(self.layer)
        if not isinstance(self.layer, Embedding) and isinstance(x, Tensor | Variable | np.ndarray):
            hit = _reaches(x, axis)
            state.hits[path] = state.hits[path] | hit if path in state.hits else hit
        if follows(self.layer):
            return self._passed(x, axis)
        y = state.results[path, call]
        if path not in state.given:
            return y
        values = np.array(as_tensor(y).numpy())
        np.moveaxis(values, axis, -1)[..., state.given[path]] = np.nan
        return asarray(values)

    def _passed(self, x: Any, axis: int) -> Any:
        """Return the layer's result of the first run, with NaN where its input has it."""
        y = np.array(as_tensor(self.state.results[self.path, self.state.calls[self.path] - 1]).numpy())
        np.moveaxis(y, axis, -1)[..., _reaches(x, axis)] = np.nan
        return asarray(y)


@dataclass
class _State:
    """What the probes of one model share."""

    first: bool = True
    calls: dict[str, int] = field(default_factory=dict[str, int])
    results: dict[tuple[str, int], Any] = field(default_factory=dict[tuple[str, int], Any])
    hits: dict[str, Array] = field(default_factory=dict[str, Array])
    given: dict[str, Array] = field(default_factory=dict[str, Array])
    read: set[str] = field(default_factory=set[str])


def example_of(args: Iterable[Any]) -> tuple[Any, ...]:
    """Return arguments as tensors; a spec becomes a random one, with size 2 for each open size."""
    rng = np.random.default_rng(0)
    tensors: list[Any] = []
    for one in args:
        if isinstance(one, TensorSpec):
            shape = [size if isinstance(size, int) and type(size) is int else 2 for size in one.shape]
            tensors.append(asarray(rng.random(shape).astype(one.dtype)))
        else:
            tensors.append(as_tensor(one))
    return tuple(tensors)


class Channels:
    """The channels of a model's layers that belong together.

    Args:
        model: the module; a copy of it runs.
        args: what it is called with.

    Attributes:
        layers: the layers whose channels are known, by path.
        groups: sets of slots that are removed together or not at all.
    """

    def __init__(self, model: Any, args: tuple[Any, ...]) -> None:
        self._args = args
        self._state = _State()
        made = in_evaluation(model)
        self.layers = {path: one for path, one in modules_of(made).items() if is_storable(one) or follows(one)}
        self._probed = _probed(made, self.layers, self._state)
        self._others = [*_variables_outside(made, self.layers)]
        self._parents: dict[Slot, Slot] = {}
        self._run({})
        self._state.first = False
        self._fix()
        for path, layer in self.layers.items():
            if is_producer(layer) and path not in self._state.read:
                self._trace(path, layer)
            elif not follows(layer):
                self._fix_layer(path, layer)
        self.groups = self._collected()

    # -- runs -----------------------------------------------------------------------------------------------------

    def _run(self, given: dict[str, Array], args: tuple[Any, ...] | None = None) -> tuple[dict[str, Array], bool]:
        """Return which channels of each layer's input NaN reaches, and whether it reaches the result."""
        state = self._state
        state.calls, state.hits, state.given = {}, {}, given
        with no_grad():
            y = self._probed(*(self._args if args is None else args))
        return dict(state.hits), any([bool(np.isnan(one).any()) for one in _floats(y)])

    def _fix(self) -> None:
        """Mark as fixed what the model's inputs, and parameters outside of known layers, reach."""
        args = tuple([
            asarray(np.full(one.shape, np.nan, one.dtype)) if str(one.dtype).startswith(("float", "bfloat")) else one
            for one in self._args
        ])
        self._bind_to_fixed(self._run({}, args)[0])
        before = [(one, one.numpy()) for one in self._others]
        for one, value in before:
            one.assign(np.full(value.shape, np.nan, value.dtype))
        try:
            self._bind_to_fixed(self._run({})[0])
        finally:
            for one, value in before:
                one.assign(value)

    def _bind_to_fixed(self, hits: dict[str, Array]) -> None:
        for path, hit in hits.items():
            for number in np.flatnonzero(hit):
                self._join(THE_FIXED, self._input(path, int(number)))

    def _fix_layer(self, path: str, layer: Any) -> None:
        """Bind the channels of a convolution in groups, and of a layer whose weight others read."""
        weight = layer.weight
        embeds = isinstance(layer, Embedding)
        for number in range(0 if embeds else getattr(layer, "in_channels", weight.shape[1])):
            self._join(THE_FIXED, self._input(path, number))
        everything = np.ones(weight.shape[1 if embeds else 0], np.bool_)
        self._bind_to_fixed(self._run({path: everything})[0])

    def _trace(self, path: str, layer: Any) -> None:
        """Bind each channel of a layer to what it reaches."""
        count = layer.weight.shape[1] if isinstance(layer, Embedding) else layer.weight.shape[0]
        for number, reached, ends in self._reached(path, count):
            one = Slot("out", path, number)
            self._join(one, one)
            for other, hit in reached:
                self._join(one, self._input(other, hit))
            if ends:
                self._join(THE_FIXED, one)

    def _reached(self, path: str, count: int) -> Iterable[tuple[int, list[tuple[str, int]], bool]]:
        """Yield for each channel which inputs it reaches, and whether it reaches the result.

        Channels are numbered in binary. Two runs per digit, with the channels that have a 1 there and with the others,
        tell which channel reaches each input, if only one does. Otherwise each channel gets a run of its own.
        """
        numbers = np.arange(count)
        digits = [numbers >> digit & 1 == 1 for digit in range(max(int(count - 1).bit_length(), 1))]
        runs = [(self._run({path: one}), self._run({path: ~one})) for one in digits]
        reached: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        for other in runs[0][0][0].keys() | runs[0][1][0].keys():
            ones = np.stack([yes[0][other] for yes, _ in runs])
            zeros = np.stack([no[0][other] for _, no in runs])
            if (ones & zeros).any():
                return self._one_by_one(path, count)
            sums = (ones * (1 << np.arange(len(digits)))[:, None]).sum(0)
            for position in np.flatnonzero((ones | zeros).any(0)):
                reached[int(sums[position])].append((other, int(position)))
        ends = any([yes[1] or no[1] for yes, no in runs])
        return [(number, reached[number], ends) for number in range(count)]

    def _one_by_one(self, path: str, count: int) -> Iterable[tuple[int, list[tuple[str, int]], bool]]:
        for number in range(count):
            hits, ends = self._run({path: np.arange(count) == number})
            yield number, [(other, int(at)) for other, hit in hits.items() for at in np.flatnonzero(hit)], ends

    # -- groups ---------------------------------------------------------------------------------------------------

    def _input(self, path: str, number: int) -> Slot:
        return Slot("same" if follows(self.layers[path]) else "in", path, number)

    def _root(self, one: Slot) -> Slot:
        while (parent := self._parents.setdefault(one, one)) != one:
            self._parents[one] = one = self._parents[parent]
        return one

    def _join(self, one: Slot, other: Slot) -> None:
        a, b = self._root(one), self._root(other)
        if a != b:
            self._parents[a] = b

    def _collected(self) -> list[list[Slot]]:
        groups: dict[Slot, list[Slot]] = {}
        for one in [*self._parents]:
            groups.setdefault(self._root(one), []).append(one)
        return [sorted(one) for one in groups.values() if any([slot.side == "out" for slot in one])]


def _probed(model: Any, layers: dict[str, Any], state: _State) -> Any:
    return copied(model, {path: _Probe(path, one, state) for path, one in layers.items()}).eval()


def _variables_outside(model: Any, layers: dict[str, Any]) -> Iterable[Variable]:
    """Yield the floating-point parameters and buffers that belong to none of the layers."""
    own = {id(one) for layer in layers.values() for one in (*layer.named_parameters().values(), *layer.buffers())}
    for one in (*model.named_parameters().values(), *model.buffers()):
        if id(one) not in own and str(one.dtype).startswith(("float", "bfloat")):
            yield one


def _floats(y: Any) -> list[Array]:
    leaves = jax.tree_util.tree_leaves(y, is_leaf=lambda one: isinstance(one, Tensor))
    values = [np.asarray(as_tensor(one).numpy()) for one in leaves if isinstance(one, Tensor)]
    return [one.astype(np.float32) for one in values if one.dtype.kind not in "biu"]
