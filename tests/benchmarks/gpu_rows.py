"""The rows of `gpu`, in the order of their worth: models in sizes for a GPU, and what `rows` has for small ones."""

from __future__ import annotations

import importlib.util
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from .frameworks import Array, Bound, Hybridflow, Jax, JaxCudnn, torch_framework
from .measure import Disagreement, finish
from .registry import OURS, Case, Row, SkippedRow, all_rows
from .rows import models, training
from .rows.startup import first_call

STEPS = 3
"""How many losses of each side are compared: the second one already depends on all gradients and on the optimizer."""


class GpuCase(Case):
    """A row's case in which a peer that fails is a note, so that the others go on.

    Attributes:
        without: peers to leave out.
        model: what to do with a model, in place of its training steps.
    """

    model: Callable[..., None] | None = None

    def __init__(
        self, *, smoke: bool, precision: str, say: Callable[[str], None], without: tuple[str, ...] = ()
    ) -> None:
        super().__init__(smoke, {})
        self.without = without
        self.precision = precision
        self.say = say
        self.first: dict[str, float] = {}

    def torch(self, name: str = "torch") -> Callable[[Callable[[Any, Callable[[Any], Any]], Any]], None]:
        """Return a decorator that adds torch's side as `Case.torch` does, with the row's precision."""
        add = super().torch(name)

        def decorate(build: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
            def built(torch: Any, put: Callable[[Any], Any]) -> Any:
                low = self.precision != "highest"
                torch.set_float32_matmul_precision("high" if low else "highest")
                torch.backends.cudnn.allow_tf32 = low
                torch.set_num_threads(1)
                return build(torch, put)

            if name not in self.without:
                self.attempt(name, lambda: add(built))

        return decorate

    def attempt(self, name: str, build: Callable[[], None]) -> None:
        """Add a peer; where that fails, note the end of the traceback."""
        try:
            build()
        except SkippedRow as why:
            self.notes.append(f"{name}: {why}")
        except Exception as error:
            self.notes.append(f"{name} failed: {end_of(error)}")
            self.say(self.notes[-1])


def end_of(error: BaseException) -> str:
    """Return the last lines of a traceback."""
    return "".join(traceback.format_exception(error))[-1500:].strip()


def require_gpu() -> None:
    """Raise `SkippedRow` where there is none."""
    if jax.default_backend() != "gpu":
        raise SkippedRow("needs a GPU")


@dataclass(frozen=True)
class GpuRow:
    """A row of the script.

    Attributes:
        row: the row.
        seconds: about how long it takes on a GPU, with everything that is compiled for it.
        items, unit: what a call does, for a rate; for example its tokens.
        trains: whether it trains a model, whose steps `reading` can lower.
        without: peers to leave out.
    """

    row: Row
    seconds: float
    items: int = 0
    unit: str = ""
    trains: bool = False
    without: tuple[str, ...] = ()


ROWS: list[GpuRow] = []
HERE = {one.name: one for one in all_rows()}


def gpu_row(
    work: str, *, seconds: float, items: int = 0, unit: str = "", tolerance: float = 1e-3, trains: bool = False
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function as the next row; see `GpuRow` and `registry.row`."""

    def decorate(build: Callable[[Any], None]) -> Callable[[Any], None]:
        row = Row(build.__name__, "gpu", work, build, 1, "call", {}, tolerance)
        ROWS.append(GpuRow(row, seconds, items, unit, trains))
        return build

    return decorate


model_row = partial(gpu_row, trains=True)
"""Register a row that trains a model."""


def take(name: str, seconds: float, *without: str) -> None:
    """Register a row of `rows` as the next one, without some of its peers."""
    ROWS.append(GpuRow(HERE[name], seconds, without=without))


# -- models ---------------------------------------------------------------------------------------------------------


def losses_of(case: GpuCase, name: str, step: Callable[[], Any]) -> list[float]:
    """Return the first losses of a side, and keep the seconds of its first call."""
    start = time.perf_counter()
    result = step()
    finish(result)
    case.first[name] = time.perf_counter() - start
    case.say(f"{name}: first call {case.first[name]:.2f} s")
    return [as_float(result), *[as_float(step()) for _ in range(STEPS - 1)]]


def as_float(value: Any) -> float:
    """Return a loss as a number."""
    return float(value.detach().cpu() if hasattr(value, "detach") and hasattr(value, "cpu") else value)


def add_model(
    case: GpuCase, make: Callable[[Any], Any], loss: Callable[..., Any], batch: list[Array], *, adam: bool = True,
    low: bool = False, tolerance: float = 1e-3, peers: tuple[str, ...] = ("torch", "jax.jit"),
) -> None:
    """Add the training steps of a model, whose first losses agree within a relative tolerance."""
    if case.model is not None:
        case.model(make, loss, batch, adam=adam, low=low)
        return
    trainer = Hybridflow.Trainer(make, loss, adam, True, low)
    weights, bound = trainer.weights(), trainer.bind(batch)
    ours = losses_of(case, OURS, bound.step)
    case.ours(bound.step, state=lambda: bound.state()[-1:], lowered=bound.lowered, **_UNCOMPARED)

    def add(name: str, made: Any) -> Any:
        made.load(weights)
        theirs: Bound = made.bind(batch)
        found = losses_of(case, name, theirs.step)
        gap = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(ours, found, strict=True))
        said = f"{name}: the first losses are {found}, {OURS} has {ours}: they differ by {gap:.2g}, relative"
        case.notes.append(said)
        if not gap <= tolerance:
            raise Disagreement(f"{said}, and may by {tolerance:g}")
        return theirs.step, {"state": lambda: theirs.state()[-1:], "lowered": theirs.lowered, **_UNCOMPARED}

    for name in ("torch", "torch.compile"):
        if name in peers:

            @case.torch(name)
            def _(torch: Any, put: Callable[[Any], Any], name: str = name) -> Any:
                if on_gpu := torch.cuda.is_available():
                    torch.cuda.reset_peak_memory_stats()
                trainer = torch_framework(torch, put).Trainer
                made = add(name, trainer(make, loss, adam, name == "torch.compile", low))
                if on_gpu:
                    case.notes.append(f"{name}: peak memory {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
                return made

    if importlib.util.find_spec("optax") is None:
        case.notes.append("jax.jit: optax is not installed")
        return
    for framework in (Jax, JaxCudnn):
        if framework.name in peers:

            def jaxs(framework: Any = framework) -> None:
                if framework is JaxCudnn:
                    require_gpu()
                call, options = add(framework.name, Jax.Trainer(make, loss, adam, True, low, framework))
                case.peer(framework.name, call, **options)

            case.attempt(framework.name, jaxs)


_UNCOMPARED = {"comparable": lambda result: None, "comparable_state": lambda state: None}
"""What `add_model` has compared is not compared again."""


def add_gpt(
    case: GpuCase, sizes: tuple[int, int, int, int, int, int], *, joint: bool, rate: float = 0.0,
    recomputed: bool = False, **options: Any,
) -> None:
    """Add a GPT of ``(tokens, length, width, heads, layers, batch)``."""
    count, length, width, heads, layers, batch = case.size(sizes, (8, 4, 8, 2, 1, 2))
    if rate:
        options["tolerance"] = 0.2  # each side drops other elements

    def make(f: Any) -> Any:
        return models.gpt(f, count, length, width, heads, layers, rate, joint=joint, recomputed=recomputed)

    add_model(case, make, models.classify, models.ids(case, count, batch, length), **options)


GPT4, GPT12, GPT2 = (256, 256, 512, 8, 4, 16), (256, 64, 128, 4, 12, 4), (50257, 1024, 768, 12, 12, 8)

take("mlp_compiled", 12, "torch.compile")


@model_row("VAE 784-400-20, batch 128, AdamW step", seconds=15)
def gpu_vae(case: GpuCase) -> None:
    add_vae(case)


def add_vae(case: GpuCase, **options: Any) -> None:
    """Add a variational autoencoder."""
    pixels, hidden, code, batch = case.size((784, 400, 20, 128), (6, 4, 2, 2))
    batches = [case.rng.random((batch, pixels)).astype(np.float32), case.normal(batch, code)]
    add_model(case, lambda f: models.vae(f, pixels, hidden, code), models.bound, batches, **options)


@model_row("GPT of 12 layers, D=128 T=64 B=4, q, k and v separate, AdamW step", seconds=40, items=256, unit="token")
def gpu_gpt12_separate(case: GpuCase) -> None:
    add_gpt(case, GPT12, joint=False)


@model_row("GPT of 12 layers, D=128 T=64 B=4, q, k and v joint, AdamW step", seconds=40, items=256, unit="token")
def gpu_gpt12_joint(case: GpuCase) -> None:
    add_gpt(case, GPT12, joint=True)


@model_row("GPT of 4 layers, D=512 T=256 B=16, q, k and v separate, AdamW step", seconds=30, items=4096, unit="token")
def gpu_gpt4_separate(case: GpuCase) -> None:
    add_gpt(case, GPT4, joint=False)


@model_row("GPT of 4 layers, D=512 T=256 B=16, q, k and v joint, AdamW step", seconds=30, items=4096, unit="token")
def gpu_gpt4_joint(case: GpuCase) -> None:
    add_gpt(case, GPT4, joint=True)


@model_row("GPT-2 small in bfloat16, T=1024 B=8, AdamW step", seconds=75, items=8192, unit="token")
def gpu_gpt2(case: GpuCase) -> None:
    add_gpt(case, GPT2, joint=True, low=True, tolerance=2e-2, peers=("torch", "jax.jit", JaxCudnn.name))


# -- attention, updates, eager code ---------------------------------------------------------------------------------


@gpu_row("causal attention, 8192 tokens, 16 heads of 64, bfloat16, forward + backward", seconds=25, tolerance=5e-2)
def gpu_attention(case: GpuCase) -> None:
    shape = case.size((1, 16, 8192, 64), (1, 2, 8, 4))
    arrays = [case.normal(*shape) for _ in range(4)]

    def low(array: Any) -> Any:
        return jnp.asarray(array).astype(jnp.bfloat16)

    q, k, v, seed = [hf.asarray(low(array)) for array in arrays]

    @hf.compile
    def ours(q: Any, k: Any, v: Any, seed: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            made = hf.nn.scaled_dot_product_attention(q, k, v, is_causal=True)
            return hf.sum(hf.astype(made, hf.float32) * hf.astype(seed, hf.float32))

        return hf.grad(loss, argnums=(0, 1, 2))(q, k, v)

    def wide(result: Any) -> list[Any]:
        return [np.asarray(jnp.asarray(one).astype(jnp.float32)) for one in result]

    def of_tensors(result: Any) -> list[Any]:
        return [hf.astype(one, hf.float32).numpy() for one in result]

    case.ours(lambda: ours(q, k, v, seed), comparable=of_tensors, lowered=lambda: ours.lower(q, k, v, seed))

    @case.torch("torch, fused")
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        tq, tk, tv = [put(array).bfloat16().requires_grad_() for array in arrays[:3]]
        seed = put(arrays[3]).bfloat16()

        def call() -> Any:
            made = torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, is_causal=True)
            return torch.autograd.grad(made, (tq, tk, tv), seed)

        finish(call())
        return call, {"comparable": lambda result: [one.float() for one in result]}

    given = [low(np.swapaxes(array, 1, 2)) for array in arrays]
    for implementation in ("xla", "cudnn"):

        def theirs(implementation: str = implementation) -> None:
            if implementation == "cudnn":
                require_gpu()

            def loss(q: Any, k: Any, v: Any, seed: Any) -> Any:
                made = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
                return jnp.sum(made.astype(jnp.float32) * seed.astype(jnp.float32))

            jitted = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
            finish(jitted(*given))
            case.peer(
                f"jax.nn, {implementation}", lambda: jitted(*given), lowered=lambda: jitted.lower(*given),
                comparable=lambda result: [np.swapaxes(one, 1, 2) for one in wide(result)],
            )

        case.attempt(f"jax.nn, {implementation}", theirs)


def _update_shapes(case: GpuCase) -> list[tuple[int, ...]]:
    wide, count = case.size((512, 100), (4, 2))
    return [shape for _ in range(count) for shape in ((wide, wide), (wide,))]


@gpu_row("AdamW update of 200 Variables, 100 of 512 x 512 and 100 of 512, compiled", seconds=25, tolerance=1e-2)
def gpu_adamw(case: GpuCase) -> None:
    shapes = _update_shapes(case)
    values, slopes = [[case.normal(*shape) for shape in shapes] for _ in range(2)]
    variables, gradients = [hf.Variable(value) for value in values], [hf.asarray(slope) for slope in slopes]
    opt = hf.optim.AdamW(variables, training.RATE, decay=training.DECAY)

    @hf.compile
    def ours(gradients: Any) -> None:
        opt.update(gradients)

    case.ours(
        lambda: ours(gradients), state=lambda: [variable.read() for variable in variables],
        lowered=lambda: ours.lower(gradients),
    )
    training.torch_adamws(case, values, slopes)

    def jaxs() -> None:
        import optax

        rules = optax.adamw(training.RATE, weight_decay=training.DECAY)

        def update(p: Any, state: Any, slopes: Any) -> Any:
            changes, state = rules.update(slopes, state, p)
            return optax.apply_updates(p, changes), state

        jitted = jax.jit(update, donate_argnums=(0, 1))
        given = [jnp.asarray(slope) for slope in slopes]
        held: list[Any] = [[jnp.asarray(value) for value in values], None]
        held[1] = rules.init(held[0])

        def call() -> None:
            held[:] = jitted(*held, given)

        case.peer("jax.jit + optax", call, state=lambda: held[0], lowered=lambda: jitted.lower(*held, given))

    case.attempt("jax.jit + optax", jaxs)


take("add", 6)
take("chain", 10)
take("mlp_eager", 10)
take("call_device", 6)


@model_row("ResNet-18, 128 images of 32 x 32, SGD step", seconds=45, items=128, unit="image")
def gpu_resnet18(case: GpuCase) -> None:
    add_resnet18(case)


def add_resnet18(case: GpuCase, **options: Any) -> None:
    """Add a ResNet for small images."""
    widths, blocks, side, batch = case.size(((64, 128, 256, 512), 2, 32, 128), ((4, 8), 1, 8, 4))
    add_model(case, lambda f: models.resnet(f, widths, blocks), models.classify, models.images(case, batch, side),
              adam=False, tolerance=1e-2, **options)


@model_row("LSTM language model, D=512 T=64 B=64, AdamW step", seconds=25, items=4096, unit="token")
def gpu_lstm(case: GpuCase) -> None:
    count, width, batch, length = case.size((256, 512, 64, 64), (8, 4, 2, 3))
    batches = models.ids(case, count, batch, length)
    add_model(case, lambda f: models.lstm(f, count, width), models.classify, batches)


@model_row("ViT of 6 layers, D=384, 128 images of 32 x 32, AdamW step", seconds=35, items=128, unit="image")
def gpu_vit(case: GpuCase) -> None:
    side, patch, width, heads, layers, batch = case.size((32, 4, 384, 6, 6, 128), (8, 4, 8, 2, 1, 2))
    batches = models.images(case, batch, side)
    add_model(case, lambda f: models.vit(f, side, patch, width, heads, layers), models.classify, batches)


@model_row("U-Net of 32 channels, 16 images of 128 x 128, AdamW step", seconds=30, items=16, unit="image")
def gpu_unet(case: GpuCase) -> None:
    width, side, batch = case.size((32, 128, 16), (2, 8, 2))
    masks = (case.rng.random((batch, 1, side, side)) < 0.5).astype(np.float32)
    batches = [case.normal(batch, 3, side, side), masks]
    add_model(case, lambda f: models.unet(f, width), models.segment, batches)


@model_row("GPT-2 small in bfloat16, T=1024 B=8, every block checkpointed, AdamW step", seconds=60, items=8192,
         unit="token")
def gpu_gpt2_checkpoint(case: GpuCase) -> None:
    add_gpt(case, GPT2, joint=True, low=True, recomputed=True, tolerance=2e-2)


@gpu_row("ResNet-50, 32 images of 224 x 224, SGD step", seconds=70, items=32, unit="image")
def gpu_resnet50(case: GpuCase) -> None:
    widths, counts, side, batch = case.size(((256, 512, 1024, 2048), (3, 4, 6, 3), 224, 32), ((8, 16), (1, 1), 16, 4))

    def make(f: Any) -> Any:
        return models.resnet(f, widths, counts, stem=2, narrow=True)

    add_model(case, make, models.classify, models.images(case, batch, side), adam=False, tolerance=2e-2)


@gpu_row("dropout of 4096 x 4096, forward", seconds=10, tolerance=2e-2)
def gpu_dropout(case: GpuCase) -> None:
    size = case.size(4096, 256)
    array = np.ones((size, size), np.float32)
    x = hf.asarray(array)
    ours = hf.compile(lambda x: hf.nn.dropout(x, 0.1))

    def share(result: Any) -> Any:  # the draws differ, the share of what is kept does not
        kept = result.cpu() if hasattr(result, "cpu") else np.asarray(result)
        return np.asarray(float((kept != 0).mean() if isinstance(kept, np.ndarray) else (kept != 0).float().mean()))

    case.ours(lambda: ours(x), comparable=share, lowered=lambda: ours.lower(x))

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        given = put(array)
        return lambda: torch.nn.functional.dropout(given, 0.1), {"comparable": share}

    for kind in ("threefry2x32", "rbg"):

        @jax.jit
        def theirs(key: Any, x: Any) -> Any:
            key, this = jax.random.split(key)
            return key, jnp.where(jax.random.bernoulli(this, 0.9, x.shape), x / 0.9, 0)

        held = [jax.random.key(0, impl=kind)]
        given = jnp.asarray(array)

        def call(held: Any = held, theirs: Any = theirs, given: Any = given) -> Any:
            held[0], made = theirs(held[0], given)
            return made

        case.peer(f"jax.jit, {kind}", call, comparable=share,
                  lowered=lambda held=held, theirs=theirs, given=given: theirs.lower(held[0], given))


@gpu_row("20 batches of 256 x 8192 floats from the host, a product of each", seconds=20, tolerance=1e-3)
def gpu_feeding(case: GpuCase) -> None:
    count, rows, wide, out = case.size((20, 256, 8192, 4096), (3, 4, 8, 8))
    data, weight = case.normal(count * rows, wide), case.normal(wide, out, scale=wide**-0.5)
    w = hf.asarray(weight)

    @hf.compile
    def step(x: Any, w: Any) -> Any:
        return hf.mean(hf.tanh(x @ w) ** 2)

    batches = hf.data.Batches(data, rows)

    def loop(items: Any) -> Any:
        made = None
        for x in items:
            made = step(x, w)
        return made

    ahead = hf.data.prefetch(batches, 2)
    case.ours(lambda: loop(ahead))
    case.peer("without prefetch", lambda: loop(batches))

    @jax.jit
    def theirs(x: Any, w: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    jw = jnp.asarray(weight)

    def jaxs() -> Any:
        made, following = None, jax.device_put(data[:rows])
        for start in range(rows, len(data) + 1, rows):
            x = following
            if start < len(data):
                following = jax.device_put(data[start : start + rows])
            made = theirs(x, jw)
        return made

    case.peer("jax.jit, device_put ahead", jaxs)

    @case.torch("torch, pinned")
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        tw = put(weight)
        source = torch.from_numpy(data)
        if tw.is_cuda:
            source = source.pin_memory()

        def call() -> Any:
            made = None
            for start in range(0, len(data), rows):
                x = source[start : start + rows].to(tw.device, non_blocking=True)
                made = (torch.tanh(x @ tw) ** 2).mean()
            return made

        return call


@gpu_row("24-layer transformer: first call in a new process, with what another one has stored", seconds=90)
def gpu_warm_start(case: GpuCase) -> None:
    layers = case.size(24, 1)
    kept = case.enter(tempfile.TemporaryDirectory())
    cold = first_call(case, kept, layers)
    case.say(f"first process: {cold:.2f} s")
    warm = first_call(case, kept, layers)
    case.ours(lambda: warm, self_timed=True)
    case.peer("first process", lambda: cold, self_timed=True)


# -- torch.compile, which takes long to compile -----------------------------------------------------------------------

COMPILED = ("torch.compile",)


@model_row("VAE 784-400-20, batch 128, AdamW step, against torch.compile", seconds=40)
def gpu_vae_torch_compile(case: GpuCase) -> None:
    add_vae(case, peers=COMPILED)


@model_row("GPT of 4 layers, D=512 T=256 B=16, joint, AdamW step, against torch.compile", seconds=60, items=4096,
         unit="token")
def gpu_gpt4_torch_compile(case: GpuCase) -> None:
    add_gpt(case, GPT4, joint=True, peers=COMPILED)


@model_row("GPT-2 small in bfloat16, T=1024 B=8, AdamW step, against torch.compile", seconds=100, items=8192,
         unit="token")
def gpu_gpt2_torch_compile(case: GpuCase) -> None:
    add_gpt(case, GPT2, joint=True, low=True, tolerance=2e-2, peers=COMPILED)


@model_row("ResNet-18, 128 images of 32 x 32, SGD step, against torch.compile", seconds=70, items=128, unit="image")
def gpu_resnet18_torch_compile(case: GpuCase) -> None:
    add_resnet18(case, peers=COMPILED)
