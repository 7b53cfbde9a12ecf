"""`MoE`: a layer of experts, of which each token goes through a few."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from hybridflow.core.context import current
from hybridflow.core.dtypes import float32, int32
from hybridflow.core.errors import ArgumentError, LayoutError, ShapeError
from hybridflow.core.mesh import Axis, Layout, Mesh, names_of
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.distribute.manual import all_to_all, pmean
from hybridflow.nested.manual import shard_map
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import label, layouts_for
from hybridflow.ops.choice import where
from hybridflow.ops.common import TensorLike, cast_to
from hybridflow.ops.creation import zeros
from hybridflow.ops.einsum import einsum
from hybridflow.ops.indexing import take
from hybridflow.ops.joining import concat
from hybridflow.ops.nn.activations import gelu
from hybridflow.ops.nn.labels import one_hot
from hybridflow.ops.nn.softmax import softmax
from hybridflow.ops.ranges import arange
from hybridflow.ops.reductions import mean
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.shape import permute_dims, reshape
from hybridflow.ops.sorting import top_k
from hybridflow.ops.statistics import cumulative_sum


class Routing(NamedTuple):
    """Where the tokens of a layer of experts go.

    Attributes:
        gates: ``(groups, tokens, k)``, the weight of each choice; 0 for a choice beyond an expert's capacity.
        slots: ``(groups, tokens, k)`` int32, the expert times the capacity plus the place there; the number of all
            places for a choice beyond the capacity.
        capacity: the number of an expert's places for each group.
        balance: ``(groups,)``, the load-balancing loss.
    """

    gates: Tensor
    slots: Tensor
    capacity: int
    balance: Tensor


class MoE(Module):
    """A mixture of experts: each token goes through the `k` networks that a router finds best for it.

    An expert takes a limited number of tokens, first those that have it as their first choice, in their order, then as
    their second, and so on. For a choice beyond that, a token gets nothing, so put the layer in a residual connection.
    Add the second result, times about 0.01, to the loss: it is least, 1, if all experts get the same share.

    `hf.distribute.shard` splits the experts over a mesh axis if `layouts` says so. Compiled for that mesh, tokens are
    split over it too, in whole groups, and are sent to their experts and back by all-to-alls. The results are those of
    one device.

    Args:
        width: the size of tokens, the last axis.
        hidden: the size of an expert's hidden layer.
        experts: the number of experts.
        k: the number of experts per token.
        capacity_factor: how many times its even share of a group's choices an expert takes; None for all tokens.
        groups: the number of equal groups, one after the other, into which tokens are cut. Each has its own capacity.
            On a mesh, a multiple of the devices that tokens are split over.
        activation: a function for the hidden layer; `hf.nn.gelu` if not given.
        gated: whether the hidden layer is multiplied by a further linear function of the token, as in SwiGLU.
        bias: whether the experts' layers have biases.
        dtype: the dtype of the parameters.
        layouts: ``"experts:AXIS"`` for a mesh axis, or a mapping of parameters to layouts.
        tokens: the mesh axes that tokens are split over, if there are others than that of the experts.

    Attributes:
        router: ``(width, experts)``.
        up, gate: ``(experts, width, hidden)``; `gate` is None if there is none.
        down: ``(experts, hidden, width)``.
        up_bias, down_bias: ``(experts, hidden)``, ``(experts, width)``; None without biases.

    Raises:
        ArgumentError: a number is too small, or `k` is larger than `experts`.
        LayoutError: `layouts` has another form.

    Example:
        >>> import hybridflow as hf
        >>> layer = hf.nn.MoE(8, 16, experts=4)
        >>> y, balance = layer(hf.ones((2, 6, 8)))
        >>> y.shape, balance.shape
        ((2, 6, 8), ())

    Reference:
        Shazeer et al., "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", 2017;
        Lepikhin et al., "GShard", 2020; Fedus et al., "Switch transformers", 2021 (equations 4 to 6: balancing).
    """

    router: Variable
    up: Variable
    gate: Variable | None
    down: Variable
    up_bias: Variable | None
    down_bias: Variable | None

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        k: int = 2,
        capacity_factor: float | None = 1.25,
        groups: int = 1,
        activation: Callable[[Any], Any] | None = None,
        gated: bool = False,
        bias: bool = False,
        dtype: Any = "float32",
        layouts: Any = None,
        tokens: Axis = None,
    ) -> None:
        if min(width, hidden, experts, k, groups) < 1 or k > experts:
            raise ArgumentError("MoE: sizes are 1 or more, and k is at most the number of experts",
                                got=f"width={width}, hidden={hidden}, experts={experts}, k={k}, groups={groups}")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ArgumentError(f"MoE: capacity_factor={capacity_factor!r}",
                                hint="Give a positive number, or None for no limit.")
        self.width, self.hidden, self.experts, self.k, self.groups = width, hidden, experts, k, groups
        self.capacity_factor, self.activation, self.dtype = capacity_factor, activation or gelu, dtype
        self.layouts = layouts_for("MoE", layouts, {"experts": _layouts(gated, bias)})
        self.experts_over: Axis = None if self.layouts is None else self.layouts.get("up", (None,))[0]
        self.tokens: Axis = self.experts_over if tokens is None else tokens
        into, back = [init.uniform(-1 / math.sqrt(size), 1 / math.sqrt(size)) for size in (width, hidden)]
        self.router = parameter(into((width, experts), dtype), "router")
        self.up = parameter(into((experts, width, hidden), dtype), "up")
        self.gate = parameter(into((experts, width, hidden), dtype), "gate") if gated else None
        self.down = parameter(back((experts, hidden, width), dtype), "down")
        self.up_bias = parameter(into((experts, hidden), dtype), "up_bias") if bias else None
        self.down_bias = parameter(back((experts, width), dtype), "down_bias") if bias else None

    def forward(self, x: TensorLike) -> tuple[Tensor, Tensor]:
        """Return the result, in the shape of `x`, and the load-balancing loss, of shape ().

        Args:
            x: ``(..., width)``.

        Raises:
            ShapeError: another width, a number of tokens that the groups do not divide, or `experts` was changed.
            LayoutError: the mesh's axis does not divide the experts or the groups.
        """
        tensor = as_tensor(x)
        count = math.prod(tensor.shape[:-1])
        if not tensor.shape or tensor.shape[-1] != self.width or count % self.groups:
            raise ShapeError(
                f"{label(self)}: the input is (..., {self.width}), with tokens for {self.groups} equal groups",
                got=f"{tensor.spec}, {count} tokens", hint="Choose groups= so that it divides the tokens."
            )
        if self.router.shape[-1] != self.experts:
            raise ShapeError(f"{label(self)}: the router's weight is for {self.router.shape[-1]} experts",
                             got=f"experts={self.experts}", hint="The number of experts is set when the layer is made.")
        rows = reshape(tensor, (self.groups, count // self.groups, self.width))
        weights = [self.up, self.gate, self.down, self.up_bias, self.down_bias]
        mesh = self._mesh()
        if mesh is None:
            y, balance = self._run(rows, self.router, weights, None, 1)
            return reshape(y, tensor.shape), mean(balance)
        axis = names_of(self.experts_over)[0]
        given: Layout = (self.experts_over, None, None)
        into: Layout = (self.tokens, None, None)

        def on_each(rows: Tensor, router: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
            y, balance = self._run(rows, router, weights, axis, mesh.shape[axis])
            total = mean(balance)
            for name in names_of(self.tokens):
                total = pmean(total, name)
            return y, total

        of_weights = [None if one is None else given[: one.ndim] for one in weights]
        y, balance = shard_map(on_each, mesh, [into, (None, None), of_weights], (into, ()))(rows, self.router, weights)
        return reshape(y, tensor.shape), balance

    def _mesh(self) -> Mesh | None:
        """Return the mesh of the compiled function that is being traced, if the experts are split over its axes."""
        tracer: Any = current().tracer
        mesh = None if tracer is None or tracer.manual is not None else tracer.mesh
        if mesh is None or any([name not in mesh.shape for name in names_of(self.experts_over)]) or (
            self.experts_over is None
        ):
            return None
        if self.experts % mesh.parts(self.experts_over) or self.groups % mesh.parts(self.tokens):
            raise LayoutError(
                f"{label(self)}: {self.experts} experts over {mesh.parts(self.experts_over)} devices, and "
                f"{self.groups} groups of tokens over {mesh.parts(self.tokens)}",
                got=f"layouts='experts:{self.experts_over}' on {mesh}",
                hint="The devices must divide both: choose groups= as a multiple of them."
            )
        return mesh

    def route(self, rows: Tensor, router: Any = None) -> Routing:
        """Return where tokens go.

        Args:
            rows: ``(groups, tokens, width)``.
            router: the router's weight; the layer's if not given.
        """
        logits = einsum(
            "gtw,we->gte",
            cast_to(rows, float32),
            cast_to(as_tensor(self.router if router is None else router), float32),
        )
        shares: Any = softmax(logits, axis=-1)
        gates, chosen = cast("tuple[Any, Any]", top_k(shares, self.k, axis=-1))
        if self.k > 1:
            gates = gates / sum_of(gates, axis=-1, keepdims=True)
        marks: Any = one_hot(chosen, self.experts, dtype=int32)
        tokens = int(rows.shape[1])
        capacity = tokens
        if self.capacity_factor is not None:
            capacity = min(tokens, math.ceil(self.capacity_factor * self.k * tokens / self.experts))
        in_order = reshape(permute_dims(marks, (0, 2, 1, 3)), (-1, self.k * tokens, self.experts))
        before = reshape(cumulative_sum(in_order, axis=1) - in_order, (-1, self.k, tokens, self.experts))
        place = sum_of(permute_dims(before, (0, 2, 1, 3)) * marks, axis=-1)
        fits = place < capacity
        slots = where(fits, cast_to(chosen, int32) * capacity + place, self.experts * capacity)
        routed = mean(cast_to(sum_of(marks, axis=2), float32), axis=1) / self.k
        balance = sum_of(routed * mean(shares, axis=1), axis=-1) * self.experts
        return Routing(where(fits, gates, 0.0), slots, capacity, balance)

    def _run(self, rows: Tensor, router: Any, weights: Any, axis: str | None, devices: int) -> tuple[Tensor, Tensor]:
        """Return the groups' results and balancing losses; experts are on the devices along a mesh axis, if given."""
        routing = self.route(rows, router)
        groups, tokens = int(rows.shape[0]), int(rows.shape[1])
        places = self.experts * routing.capacity
        first = reshape(arange(groups, dtype=int32), (groups, 1, 1))
        numbers = reshape(arange(groups * tokens, dtype=int32), (groups, tokens, 1))
        owner = _placed(routing, numbers, first, groups * tokens, groups, places)
        empty = zeros((1, self.width), dtype=rows.dtype)
        sent = take(concat([reshape(rows, (-1, self.width)), empty], axis=0), owner, axis=0)
        sent = reshape(sent, (groups, self.experts, routing.capacity, self.width))
        if axis is not None and devices > 1:
            sent = all_to_all(sent, axis, split=1, join=0)
        made = self._experts(sent, *weights)
        if axis is not None and devices > 1:
            made = all_to_all(made, axis, split=0, join=1)
        found = concat([reshape(made, (-1, self.width)), zeros((1, self.width), dtype=made.dtype)], axis=0)
        at = where(routing.slots < places, routing.slots + first * places, groups * places)
        y = einsum("gtk,gtkw->gtw", cast_to(routing.gates, made.dtype), take(found, at, axis=0))
        return cast_to(y, rows.dtype), routing.balance

    def _experts(self, x: Tensor, up: Any, gate: Any, down: Any, up_bias: Any, down_bias: Any) -> Tensor:
        """Run the experts on ``(groups, experts, capacity, width)``."""
        hidden: Any = einsum("gecw,ewh->gech", x, up)
        if up_bias is not None:
            hidden = hidden + up_bias[:, None, :]
        hidden = self.activation(hidden)
        if gate is not None:
            hidden = hidden * einsum("gecw,ewh->gech", x, gate)
        y: Any = einsum("gech,ehw->gecw", hidden, down)
        return y if down_bias is None else y + down_bias[:, None, :]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.width}, {self.hidden}, experts={self.experts}, k={self.k}, groups={self.groups}"


def _placed(routing: Routing, numbers: Tensor, first: Tensor, nobody: int, groups: int, places: int) -> Tensor:
    """Return the number of the token in each place of each group, and `nobody` in an empty place."""
    flat = groups * places
    at: Any = where(routing.slots < places, routing.slots + first * places, flat)
    owner: Any = zeros((flat + 1,), dtype=int32) + nobody
    given: Any = numbers + zeros(routing.slots.shape, dtype=int32)
    return owner.at[reshape(at, (-1,))].set(reshape(given, (-1,)))[:flat]


def _layouts(gated: bool, bias: bool) -> dict[str, tuple[Any, ...]]:
    layouts: dict[str, tuple[Any, ...]] = {"up": ("*", None, None), "down": ("*", None, None)}
    if gated:
        layouts["gate"] = ("*", None, None)
    if bias:
        layouts.update(up_bias=("*", None), down_bias=("*", None))
    return layouts
