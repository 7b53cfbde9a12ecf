"""hybridflow, torch and jax under the same names, so that a model is written once and runs in all three.

A framework has `Module`, layers with torch's names and arguments, a few functions, and `Trainer`, which makes training
steps. jax's layers are spelled in the way that is fastest in XLA on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

Array = np.ndarray[Any, Any]
RATE = 1e-3
MOMENTUM = 0.9


@dataclass(frozen=True)
class Bound:
    """A training step with its batch.

    Attributes:
        step: takes a step and returns the loss, without waiting.
        state: returns the parameters.
        lowered: returns the step's lowering; None if there is no compiled step.
    """

    step: Callable[[], Any]
    state: Callable[[], list[Any]]
    lowered: Callable[[], Any] | None = None


class Hybridflow:
    """hybridflow's layers and functions."""

    name = "hybridflow"
    Module = hf.nn.Module
    Linear, Embedding, LayerNorm, Conv2d = hf.nn.Linear, hf.nn.Embedding, hf.nn.LayerNorm, hf.nn.Conv2d
    BatchNorm2d, Dropout, LSTM = hf.nn.BatchNorm2d, hf.nn.Dropout, hf.nn.LSTM
    relu, exp, sum, mean = hf.nn.relu, hf.exp, hf.sum, hf.mean
    permute, arange = hf.permute_dims, hf.arange

    @staticmethod
    def modules(layers: list[Any]) -> Any:
        """Return a list of layers as an attribute of a module."""
        return layers

    @staticmethod
    def gelu(x: Any) -> Any:
        """Return gelu by its tanh formula."""
        return hf.nn.gelu(x, approximate=True)

    @staticmethod
    def recomputed(layer: Any, x: Any) -> Any:
        """Return a layer's output; its gradient computes what is inside again."""
        return hf.checkpoint(layer)(x)

    @staticmethod
    def attention(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
        """Return scaled dot-product attention over ``(batch, heads, length, width)``."""
        return hf.nn.scaled_dot_product_attention(query, key, value, is_causal=causal)

    @staticmethod
    def concat(parts: list[Any], axis: int) -> Any:
        """Join arrays along an axis."""
        return hf.concat(parts, axis=axis)

    @staticmethod
    def max_pool(x: Any) -> Any:
        """Return the maxima of 2 x 2 windows."""
        return hf.nn.max_pool(x, 2)

    @staticmethod
    def upsample(x: Any) -> Any:
        """Double the height and the width by repeating pixels."""
        return hf.repeat(hf.repeat(x, 2, axis=2), 2, axis=3)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        """Return the mean cross-entropy of logits ``(..., classes)``."""
        return hf.mean(hf.nn.softmax_cross_entropy(logits, labels))

    @staticmethod
    def binary_cross_entropy(logits: Any, targets: Any) -> Any:
        """Return the elements' cross-entropy with probabilities."""
        return hf.nn.sigmoid_cross_entropy(logits, targets)

    class Trainer:
        """A model with its optimizer; `compiled` steps are made by `hf.compile`, `low` ones multiply in bfloat16."""

        def __init__(
            self, make: Callable[[Any], Any], loss: Callable[..., Any], adam: bool, compiled: bool, low: bool = False
        ) -> None:
            hf.nn.init.seed(0)
            self.model = make(Hybridflow)
            self.variables = self.model.parameters()
            optimizer = (
                hf.optim.AdamW(self.model, RATE, decay=0.01) if adam else
                hf.optim.SGD(self.model, RATE, momentum=MOMENTUM)
            )

            def gradients(*batch: Any) -> tuple[Any, Any]:
                with hf.GradientTape() as tape, hf.autocast(hf.bfloat16, enabled=low):
                    value = loss(Hybridflow, self.model, *batch)
                return value, tape.gradient(value, self.variables)

            def step(*batch: Any) -> Any:
                value, slopes = gradients(*batch)
                optimizer.update(slopes)
                return value

            self._gradients = gradients
            self.compiled: Any = hf.compile(step) if compiled else None
            self.step = self.compiled or step

        def weights(self) -> dict[str, Array]:
            """Return the parameters by name."""
            return {name: one.numpy() for name, one in self.model.named_parameters().items()}

        def gradients(self, batch: list[Array]) -> dict[str, Array]:
            """Return the parameters' gradients by name."""
            slopes = self._gradients(*map(hf.asarray, batch))[1]
            return {name: slope.numpy() for name, slope in zip(self.model.named_parameters(), slopes, strict=True)}

        def flops(self, batch: list[Array]) -> float:
            """Return the floating-point operations of the gradients for a batch."""
            return float(hf.cost(self._gradients, *map(hf.asarray, batch)).flops)

        def bind(self, batch: list[Array]) -> Bound:
            """Return a training step with a batch."""
            arrays, step = [hf.asarray(one) for one in batch], self.step
            return Bound(
                lambda: step(*arrays), lambda: [one.read() for one in self.variables],
                None if self.compiled is None else lambda: self.compiled.lower(*arrays),
            )


# -- torch --------------------------------------------------------------------------------------------------------


def torch_framework(torch: Any, put: Callable[[Any], Any]) -> Any:
    """Return torch's layers and functions; `put` makes a tensor of an array."""
    nn, functional, device = torch.nn, torch.nn.functional, put(np.zeros(1)).device.type

    class LSTM(nn.LSTM):
        def __init__(self, width: int, hidden: int) -> None:
            super().__init__(width, hidden, batch_first=True)

    def tensors(batch: list[Array]) -> list[Any]:
        return [put(one).long() if one.dtype.kind == "i" else put(one) for one in batch]

    class Trainer:
        def __init__(
            self, make: Callable[[Any], Any], loss: Callable[..., Any], adam: bool, compiled: bool, low: bool = False
        ) -> None:
            self.model = make(Torch).to(device)
            self.parameters = list(self.model.parameters())
            self.optimizer = (
                torch.optim.AdamW(self.parameters, RATE, weight_decay=0.01, fused=True) if adam else
                torch.optim.SGD(self.parameters, RATE, momentum=MOMENTUM)
            )

            def value(*batch: Any) -> Any:
                with torch.autocast(device, torch.bfloat16, enabled=low):
                    return loss(Torch, self.model, *batch)

            self._loss = torch.compile(value) if compiled else value

        def load(self, weights: dict[str, Array]) -> None:
            self.model.load_state_dict({name: put(value) for name, value in weights.items()}, strict=False)

        def gradients(self, batch: list[Array]) -> dict[str, Array]:
            slopes = torch.autograd.grad(self._loss(*tensors(batch)), self.parameters, allow_unused=True)
            named = zip([name for name, _ in self.model.named_parameters()], slopes, strict=True)
            return {name: slope.cpu().numpy() for name, slope in named if slope is not None}

        def bind(self, batch: list[Array]) -> Bound:
            arrays = tensors(batch)

            def step() -> Any:
                self.optimizer.zero_grad()
                value = self._loss(*arrays)
                value.backward()
                self.optimizer.step()
                return value

            return Bound(step, lambda: self.parameters)

    class Torch:
        Module, Linear, Embedding, LayerNorm, Conv2d = nn.Module, nn.Linear, nn.Embedding, nn.LayerNorm, nn.Conv2d
        BatchNorm2d, Dropout, modules = nn.BatchNorm2d, nn.Dropout, nn.ModuleList
        relu, exp, sum, mean = torch.relu, torch.exp, torch.sum, torch.mean
        permute = staticmethod(torch.permute)

        @staticmethod
        def arange(count: int) -> Any:
            return torch.arange(count, device=device)

        @staticmethod
        def gelu(x: Any) -> Any:
            return functional.gelu(x, approximate="tanh")

        @staticmethod
        def recomputed(layer: Any, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

        @staticmethod
        def attention(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

        @staticmethod
        def concat(parts: list[Any], axis: int) -> Any:
            return torch.cat(parts, axis)

        @staticmethod
        def max_pool(x: Any) -> Any:
            return functional.max_pool2d(x, 2)

        @staticmethod
        def upsample(x: Any) -> Any:
            return functional.interpolate(x, scale_factor=2)

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

        @staticmethod
        def binary_cross_entropy(logits: Any, targets: Any) -> Any:
            return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")

    framework = cast(Any, Torch)
    framework.LSTM, framework.Trainer = LSTM, Trainer
    return framework


# -- jax ----------------------------------------------------------------------------------------------------------


class _Module:
    """A module as a pytree: arrays, modules and lists of modules are its children, other attributes are static."""

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(cls, cls._flatten, cls._unflatten)

    def _flatten(self) -> tuple[list[Any], Any]:
        parts = {name: value for name, value in vars(self).items() if isinstance(value, _Module | list | jax.Array)}
        static = tuple((name, value) for name, value in vars(self).items() if name not in parts)
        return list(parts.values()), (tuple(parts), static)

    @classmethod
    def _unflatten(cls, names: Any, children: Any) -> Any:
        made = cls.__new__(cls)
        vars(made).update(zip(names[0], children, strict=True), **dict(names[1]))
        return made

    def __call__(self, *inputs: Any) -> Any:
        return cast(Any, self).forward(*inputs)


def _named(part: Any, path: str = "") -> Iterator[tuple[Any, str, str]]:
    """Yield the owner, attribute and dotted path of every array."""
    if isinstance(part, list):
        for number, one in enumerate(cast("list[Any]", part)):
            yield from _named(one, f"{path}{number}.")
        return
    for name, value in vars(part).items():
        if isinstance(value, jax.Array):
            yield part, name, path + name
        elif isinstance(value, _Module | list):
            yield from _named(value, f"{path}{name}.")


class _Linear(_Module):
    def __init__(self, width: int, out: int, *, bias: bool = True) -> None:
        self.weight, self.bias = jnp.zeros((out, width)), jnp.zeros(out) if bias else None

    def forward(self, x: Any) -> Any:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class _Embedding(_Module):
    def __init__(self, count: int, width: int) -> None:
        self.weight = jnp.zeros((count, width))

    def forward(self, ids: Any) -> Any:
        return self.weight[ids]


class _LayerNorm(_Module):
    def __init__(self, width: int) -> None:
        self.weight, self.bias = jnp.ones(width), jnp.zeros(width)

    def forward(self, x: Any) -> Any:
        wide = x.astype(jnp.float32)
        away = wide - wide.mean(-1, keepdims=True)
        scaled = away * jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-5)
        return (scaled * self.weight + self.bias).astype(x.dtype)


class _Conv2d(_Module):
    def __init__(
        self, width: int, out: int, window: int, *, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> None:
        self.weight, self.bias = jnp.zeros((out, width, window, window)), jnp.zeros(out) if bias else None
        self.stride, self.padding = stride, padding

    def forward(self, x: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, self.weight, (self.stride,) * 2, [(self.padding, self.padding)] * 2)
        return y if self.bias is None else y + self.bias[:, None, None]


class _BatchNorm2d(_Module):
    """Batch normalisation that keeps no running averages, so that jax does a little less work than its peers."""

    def __init__(self, channels: int) -> None:
        self.weight, self.bias = jnp.ones(channels), jnp.zeros(channels)

    def forward(self, x: Any) -> Any:
        away = x - x.mean((0, 2, 3), keepdims=True)
        scale = jax.lax.rsqrt((away * away).mean((0, 2, 3), keepdims=True) + 1e-5) * self.weight[:, None, None]
        return away * scale + self.bias[:, None, None]


class _Dropout(_Module):
    key: Any = None

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def forward(self, x: Any) -> Any:
        if not self.rate:
            return x
        _Dropout.key, key = jax.random.split(_Dropout.key)
        return jnp.where(jax.random.bernoulli(key, 1 - self.rate, x.shape), x / (1 - self.rate), 0)


class _LSTM(_Module):
    def __init__(self, width: int, hidden: int) -> None:
        self.weight_ih_l0, self.weight_hh_l0 = jnp.zeros((4 * hidden, width)), jnp.zeros((4 * hidden, hidden))
        self.bias_ih_l0, self.bias_hh_l0 = jnp.zeros(4 * hidden), jnp.zeros(4 * hidden)

    def forward(self, x: Any) -> Any:
        inputs = jnp.swapaxes(x @ self.weight_ih_l0.T + (self.bias_ih_l0 + self.bias_hh_l0), 0, 1)

        def step(state: Any, row: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(row + h @ self.weight_hh_l0.T, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[0], self.weight_hh_l0.shape[1]))
        state, ys = jax.lax.scan(step, (start, start), inputs)
        return jnp.swapaxes(ys, 0, 1), state


class Jax:
    """jax's layers and functions."""

    name = "jax.jit"
    Module, Linear, Embedding, LayerNorm, Conv2d = _Module, _Linear, _Embedding, _LayerNorm, _Conv2d
    BatchNorm2d, Dropout, LSTM = _BatchNorm2d, _Dropout, _LSTM
    relu, exp, sum, mean = jax.nn.relu, jnp.exp, jnp.sum, jnp.mean
    permute, arange, modules = jnp.transpose, jnp.arange, list

    @staticmethod
    def gelu(x: Any) -> Any:
        """Return gelu by its tanh formula."""
        return jax.nn.gelu(x, approximate=True)

    @staticmethod
    def recomputed(layer: Any, x: Any) -> Any:
        """Return a layer's output; its gradient computes what is inside again."""
        return jax.checkpoint(lambda layer, x: layer(x))(layer, x)

    @staticmethod
    def attention(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
        """Return scaled dot-product attention over ``(batch, heads, length, width)``."""
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return jax.nn.softmax(scores.astype(jnp.float32)).astype(value.dtype) @ value

    @staticmethod
    def concat(parts: list[Any], axis: int) -> Any:
        """Join arrays along an axis."""
        return jnp.concatenate(parts, axis)

    @staticmethod
    def max_pool(x: Any) -> Any:
        """Return the maxima of 2 x 2 windows."""
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    @staticmethod
    def upsample(x: Any) -> Any:
        """Double the height and the width by repeating pixels."""
        return jnp.repeat(jnp.repeat(x, 2, 2), 2, 3)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        """Return the mean cross-entropy of logits ``(..., classes)``."""
        logs = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(logs, labels[..., None], axis=-1).mean()

    @staticmethod
    def binary_cross_entropy(logits: Any, targets: Any) -> Any:
        """Return the elements' cross-entropy with probabilities."""
        return jax.nn.softplus(logits) - logits * targets

    class Trainer:
        """A model with optax's optimizer, in one program whose parameters are donated."""

        def __init__(
            self, make: Callable[[Any], Any], loss: Callable[..., Any], adam: bool, compiled: bool, low: bool = False,
            framework: Any = None,
        ) -> None:
            import optax

            assert compiled
            chosen = framework or Jax
            self.model = make(chosen)
            rules = optax.adamw(RATE, weight_decay=0.01) if adam else optax.sgd(RATE, MOMENTUM)

            def loss_of(model: Any, key: Any, *batch: Any) -> Any:
                _Dropout.key = key
                if low:
                    model = jax.tree.map(lambda one: one.astype(jnp.bfloat16), model)
                return loss(chosen, model, *batch)

            def step(model: Any, state: Any, key: Any, *batch: Any) -> Any:
                key, this = jax.random.split(key)
                value, slopes = jax.value_and_grad(loss_of)(model, this, *batch)
                changes, state = rules.update(slopes, state, model)
                return value, optax.apply_updates(model, changes), state, key

            self._rules, self._gradients = rules, jax.jit(jax.grad(loss_of))
            self.compiled = jax.jit(step, donate_argnums=(0, 1, 2))

        def start(self) -> list[Any]:
            """Return the model, the optimizer's state and the key before the first step."""
            return [self.model, self._rules.init(self.model), jax.random.key(0)]

        def load(self, weights: dict[str, Array]) -> None:
            """Set the parameters by name."""
            for owner, attribute, path in list(_named(self.model)):
                setattr(owner, attribute, jnp.asarray(weights[path]))

        def gradients(self, batch: list[Array]) -> dict[str, Array]:
            """Return the parameters' gradients by name."""
            slopes = self._gradients(self.model, jax.random.key(0), *batch)
            return {path: np.asarray(getattr(owner, name)) for owner, name, path in _named(slopes)}

        def bind(self, batch: list[Array]) -> Bound:
            """Return a training step with a batch."""
            arrays = [jnp.asarray(one) for one in batch]
            held = self.start()

            def call() -> Any:
                nonlocal held
                value, *held = self.compiled(*held, *arrays)
                return value

            return Bound(call, lambda: jax.tree.leaves(held[0]), lambda: self.compiled.lower(*held, *arrays))


class JaxCudnn(Jax):
    """jax's layers and functions, with the fused attention of cuDNN, which takes 16-bit floats on a GPU only."""

    name = "jax.jit, cuDNN's attention"

    @staticmethod
    def attention(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
        """Return scaled dot-product attention over ``(batch, heads, length, width)``."""
        q, k, v = [jnp.swapaxes(one, 1, 2) for one in (query, key, value)]
        return jnp.swapaxes(jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn"), 1, 2)
