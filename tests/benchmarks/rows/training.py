"""The parts of training besides the model: updates, calls of modules, batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, SkippedRow, row

RATE, DECAY = 1e-3, 0.01


@row("compiled training step of an MLP, every 100th call verified", aims={"not verified": 3.0})
def verified_step(case: Case) -> None:
    batch, wide, hidden = case.size((64, 784, 128), (2, 6, 4))
    x, labels = case.normal(batch, wide), np.arange(batch, dtype=np.int32) % 3

    def made(every: int | bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
        hf.random.seed(0)
        model = hf.nn.Sequential(hf.nn.Linear(wide, hidden), hf.nn.relu, hf.nn.Linear(hidden, 3))
        optimizer = hf.optim.SGD(model, RATE)

        @hf.compile(verify=every)
        def step(x: Any, labels: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = hf.mean(hf.nn.softmax_cross_entropy(model(x), labels))
            optimizer.update(tape.gradient(loss, model.trainable_variables))
            return loss

        given = hf.asarray(x), hf.asarray(labels)
        return lambda: step(*given), lambda: [one.read() for one in model.trainable_variables]

    step, state = made(1 if case.smoke else 100)
    case.ours(step, state=state)
    step, state = made(False)
    case.peer("not verified", step, state=state)


# -- eager updates ------------------------------------------------------------------------------------------------


def _mlp_shapes(case: Case) -> list[tuple[int, ...]]:
    wide, hidden = case.size((784, 128), (6, 4))
    return [(hidden, wide), (hidden,), (10, hidden), (10,)]


def _gpt_shapes(case: Case) -> list[tuple[int, ...]]:
    """Return the shapes of the 148 parameters of a GPT with 12 layers of width 128."""
    width, layers = case.size((128, 12), (4, 1))
    wide = 4 * width
    block: list[tuple[int, ...]] = [
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (wide, width), (wide,), (width, wide), (width,),
    ]
    return [(256, width), (64, width), *block * layers, (width,), (width,)]


def _adamw(case: Case, shapes: list[tuple[int, ...]]) -> None:
    values = [case.normal(*shape) for shape in shapes]
    slopes = [case.normal(*shape) for shape in shapes]
    variables = [hf.Variable(value) for value in values]
    gradients = [hf.asarray(slope) for slope in slopes]
    opt = hf.optim.AdamW(variables, RATE, decay=DECAY)
    case.ours(lambda: opt.update(gradients), state=lambda: [variable.read() for variable in variables])
    torch_adamws(case, values, slopes)


def torch_adamws(case: Case, values: list[np.ndarray[Any, Any]], slopes: list[np.ndarray[Any, Any]]) -> None:
    """Add torch's AdamW as a peer, both ways that are fast: all parameters at once, by operations or one kernel."""
    for name, options in (("torch foreach", {"foreach": True}), ("torch fused", {"fused": True})):

        @case.torch(name)
        def _(torch: Any, put: Callable[[Any], Any], options: Any = options) -> Any:
            parameters = [torch.nn.Parameter(put(value)) for value in values]
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = put(slope)
            opt = torch.optim.AdamW(parameters, RATE, weight_decay=DECAY, **options)
            return opt.step, {"state": lambda: parameters}


@row("AdamW update of 4 arrays, an MLP's, eager", aims={"torch foreach": 1.0, "torch fused": 3.0})
def adamw_mlp(case: Case) -> None:
    _adamw(case, _mlp_shapes(case))


@row("AdamW update of 148 arrays, a 12-layer GPT's, eager", aims={"torch foreach": 0.8, "torch fused": 3.0})
def adamw_gpt(case: Case) -> None:
    _adamw(case, _gpt_shapes(case))


# -- a compiled step ----------------------------------------------------------------------------------------------


class _Block(hf.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        nn = hf.nn
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiHeadAttention(width, heads, is_causal=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.norm(x))
        return x + self.down(hf.nn.gelu(self.up(self.norm2(x)), approximate=True))


class _Gpt(hf.nn.Module):
    def __init__(self, count: int, length: int, width: int, heads: int, layers: int) -> None:
        self.tokens, self.places = hf.nn.Embedding(count, width), hf.nn.Embedding(length, width)
        self.blocks = [_Block(width, heads) for _ in range(layers)]
        self.norm = hf.nn.LayerNorm(width)
        self.head = hf.nn.Linear(width, count, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(hf.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _jax_gpt(p: Any, ids: Any, layers: int, heads: int) -> Any:
    """Return the logits; layer norm is written in the form that is fastest in XLA:CPU."""

    def norm(x: Any, name: str) -> Any:
        mean = x.mean(-1, keepdims=True)
        away = x - mean
        scaled = away * jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    x = p["tokens.weight"][ids] + p["places.weight"][: ids.shape[1]]
    batch, length, width = x.shape

    def split(x: Any) -> Any:
        return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    mask = jnp.tril(jnp.ones((length, length), bool))
    for number in range(layers):
        at = f"blocks.{number}"
        h = norm(x, f"{at}.norm")
        q, k, v = [split(linear(h, f"{at}.attend.{name}")) for name in ("query", "key", "value")]
        scores = jnp.where(mask, q @ k.mT * (width // heads) ** -0.5, -jnp.inf)
        seen = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + linear(seen, f"{at}.attend.out")
        h = linear(norm(x, f"{at}.norm2"), f"{at}.up")
        x = x + linear(jax.nn.gelu(h, approximate=True), f"{at}.down")
    return norm(x, "norm") @ p["head.weight"].T


@row("GPT of 12 layers, D=128 T=64 B=4, AdamW step, compiled", aims={"jax.jit + optax": 0.9}, tolerance=0.1)
def gpt_step(case: Case) -> None:
    # The tolerance is wide because Adam's first step has the size of the rate, however small the gradient is.
    try:
        import optax
    except ImportError:
        raise SkippedRow("optax is not installed (the `bench` extra)") from None
    count, length, width, heads, layers, batch = case.size((256, 64, 128, 4, 12, 4), (8, 4, 8, 2, 1, 2))
    hf.nn.init.seed(0)
    model = _Gpt(count, length, width, heads, layers)
    ids = case.rng.integers(0, count, (batch, length)).astype(np.int32)
    labels = np.roll(ids, -1, axis=1)
    model(hf.asarray(ids))
    start = model.state_dict()
    opt = hf.optim.AdamW(model, RATE, decay=DECAY)
    variables = model.parameters()

    @hf.compile
    def step(ids: Any, labels: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.nn.softmax_cross_entropy(model(ids), labels))
        opt.update(tape.gradient(loss, variables))
        return loss

    x, y = hf.asarray(ids), hf.asarray(labels)
    def read() -> Any:
        return {name: one.read() for name, one in model.named_parameters().items()}

    def compared(state: Any) -> Any:  # a key's bias changes only by rounding: softmax cancels it
        return {name: value for name, value in state.items() if not name.endswith("key.bias")}

    case.ours(lambda: step(x, y), state=read, comparable_state=compared)

    tx = optax.adamw(RATE, weight_decay=DECAY)

    def theirs(p: Any, state: Any, ids: Any, labels: Any) -> Any:
        def loss_of(p: Any) -> Any:
            logits = _jax_gpt(p, ids, layers, heads)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(p)
        changes, state = tx.update(gradients, state, p)
        return loss, optax.apply_updates(p, changes), state

    jitted = jax.jit(theirs, donate_argnums=(0, 1))
    held: dict[str, Any] = {"p": {name: jnp.asarray(value) for name, value in start.items()}}
    held["state"] = tx.init(held["p"])
    jx, jy = jnp.asarray(ids), jnp.asarray(labels)

    def call() -> Any:
        loss, held["p"], held["state"] = jitted(held["p"], held["state"], jx, jy)
        return loss

    case.peer("jax.jit + optax", call, state=lambda: held["p"], comparable_state=compared)


# -- calls of modules ---------------------------------------------------------------------------------------------


@row("call of a module of 12 layers of 8 x 8, eager", aims={"torch": 1.0})
def module_call(case: Case) -> None:
    nn = hf.nn
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.relu) for _ in range(12)])
    values = model.state_dict()
    batch = case.normal(4, 8)
    x = hf.asarray(batch)

    def ours() -> Any:
        with hf.no_grad():
            return model(x)

    case.ours(ours)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(12)]
        theirs = torch.nn.Sequential(*layers)
        theirs.load_state_dict({name: put(value) for name, value in values.items()})
        x = put(batch)

        def call() -> Any:
            with torch.no_grad():
                return theirs(x)

        return call


# -- the cost of returning a loss ---------------------------------------------------------------------------------


def _step(case: Case, *, returned: Callable[[Any], Any], requires_grad: bool) -> Callable[[Any, Any], Any]:
    """Return a training step of an MLP that takes gradients from a tape; `_batch` makes its batches."""
    wide, hidden = case.size((784, 128), (6, 4))
    rng = np.random.default_rng(0)
    shapes = ((wide, hidden), (hidden,), (hidden, 10), (10,))
    weights = [
        hf.Variable((rng.normal(size=shape) / 20).astype(np.float32), requires_grad=requires_grad) for shape in shapes
    ]

    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            h = hf.nn.relu(x @ weights[0] + weights[1])
            loss = hf.mean(hf.nn.softmax_cross_entropy(h @ weights[2] + weights[3], y))
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * slope)
        return returned(loss)

    return step


def _batch(case: Case) -> tuple[Any, Any]:
    wide, count = case.size((784, 64), (6, 2))
    return hf.asarray(case.normal(count, wide)), hf.asarray(case.rng.integers(0, 10, count).astype(np.int32))


@row("MLP step of a tape that returns its loss, compiled", aims={"stop_gradient": 1.1})
def returned_loss(case: Case) -> None:
    batch = _batch(case)
    ours = hf.compile(_step(case, returned=lambda loss: loss, requires_grad=True))
    other = hf.compile(_step(case, returned=hf.stop_gradient, requires_grad=True))
    case.ours(lambda: ours(*batch))
    case.peer("stop_gradient", lambda: other(*batch))


@row("MLP step of a tape over parameters, eager", aims={"plain Variables": 1.25})
def tape_of_parameters(case: Case) -> None:
    batch = _batch(case)
    ours = _step(case, returned=lambda loss: loss, requires_grad=True)
    other = _step(case, returned=lambda loss: loss, requires_grad=False)
    case.ours(lambda: ours(*batch))
    case.peer("plain Variables", lambda: other(*batch))


# -- batches ------------------------------------------------------------------------------------------------------


@row("shuffled batch of 64 of 28 x 28 images and labels", per=78, unit="batch", aims={"NumPy": 4.0})
def batches(case: Case) -> None:
    count = 78 * 64
    images, labels = case.normal(count, case.size(784, 4)), case.rng.integers(0, 10, count).astype(np.int32)
    data = hf.data.Batches((images, labels), 64, shuffle=True, seed=0)

    def ours() -> None:
        for _ in data:
            pass

    def plain() -> None:
        order = case.rng.permutation(count)
        for start in range(0, count, 64):
            rows = order[start : start + 64]
            images[rows], labels[rows]  # pyright: ignore[reportUnusedExpression]

    case.ours(ours)
    case.peer("NumPy", plain)


@row("20 batches of a loader that waits 2 ms, a step of 2 ms each", aims={"one after the other": 0.6})
def prefetch(case: Case) -> None:
    wait, count = case.size((0.002, 20), (0.0001, 2))

    def loader() -> Iterator[int]:
        for number in range(count):
            time.sleep(wait)
            yield number

    class Loader:
        def __iter__(self) -> Iterator[int]:
            return loader()

    def loop(items: Any) -> None:
        for _ in items:
            end = time.perf_counter() + wait
            while time.perf_counter() < end:
                np.matmul(values, values)  # this lets the other thread run, as a real step does

    values = case.normal(256, 256)
    ahead = hf.data.prefetch(Loader(), 2)
    case.ours(lambda: loop(ahead))
    case.peer("one after the other", lambda: loop(Loader()))
