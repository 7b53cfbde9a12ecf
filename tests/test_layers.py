"""Every layer against torch's: the same weights give the same results and gradients; eager and compiled are one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def close(ours: Any, theirs: Any, what: str) -> None:
    """Two arrays agree to 1e-6 of the larger one's largest value."""
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == tuple(theirs.shape), what
    bound = 1e-6 * max(np.abs(theirs).max(initial=0), 1e-30)
    assert np.abs(ours - theirs).max(initial=0) <= bound, (what, np.abs(ours - theirs).max(), bound)


def check(ours: Any, theirs: Any, *inputs: Any, pick: Any = lambda y: y, names: Any = None, **kwargs: Any) -> None:
    """Compare a layer with torch's in float64: torch rounds too, and the bound is on ours."""
    theirs = theirs.double()
    ours(*inputs)
    ours.load_state_dict(values_of(ours, theirs, names or (lambda path: path)))
    floats = [np.issubdtype(one.dtype, np.floating) for one in inputs]
    given = [hf.tensor(one, requires_grad=True) if is_float else hf.asarray(one)
             for one, is_float in zip(inputs, floats, strict=True)]
    others = [torch.tensor(one.astype(np.float64), requires_grad=True) if is_float else torch.tensor(one)
              for one, is_float in zip(inputs, floats, strict=True)]
    y, t = pick(ours(*given, **kwargs)), pick(theirs(*others))
    close(y.numpy(), t, "forward")
    weights = normal(*y.shape)
    hf.sum(y * weights).backward()
    (t * torch.tensor(weights, dtype=torch.float64)).sum().backward()
    for ours_in, theirs_in, is_float in zip(given, others, floats, strict=True):
        if is_float:
            close(ours_in.grad.numpy(), theirs_in.grad, "input")
    gradients = dict(theirs.named_parameters())
    for path, one in ours.named_parameters().items():
        close(one.grad.numpy(), gradients[(names or (lambda path: path))(path)].grad, path)
    hf.testing.assert_same(lambda *args: pick(ours(*args)), *inputs)


def values_of(ours: Any, theirs: Any, names: Any) -> dict[str, Any]:
    known = theirs.state_dict()
    return {path: known[names(path)].numpy().astype(np.float32) for path in ours.state_dict()}


SIMPLE: dict[str, tuple[Any, Any, Any]] = {
    "linear": (lambda: nn.Linear(5), lambda: torch.nn.Linear(4, 5), lambda: normal(3, 4)),
    "linear, no bias": (lambda: nn.Linear(4, 5, bias=False), lambda: torch.nn.Linear(4, 5, bias=False),
                        lambda: normal(2, 3, 4)),
    "embedding": (lambda: nn.Embedding(7, 3), lambda: torch.nn.Embedding(7, 3), lambda: RNG.integers(0, 7, (2, 5))),
    "conv1d": (lambda: nn.Conv1d(4, 3, padding=1), lambda: torch.nn.Conv1d(2, 4, 3, padding=1),
               lambda: normal(2, 2, 6)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, dilation=2),
               lambda: torch.nn.Conv2d(4, 6, 3, stride=2, groups=2, dilation=2), lambda: normal(2, 4, 9, 8)),
    "conv3d": (lambda: nn.Conv3d(3, 2, bias=False), lambda: torch.nn.Conv3d(2, 3, 2, bias=False),
               lambda: normal(1, 2, 4, 3, 5)),
    "conv": (lambda: nn.Conv(4, (3, 2)), lambda: torch.nn.Conv2d(2, 4, (3, 2)), lambda: normal(2, 2, 6, 5)),
    "transpose1d": (lambda: nn.ConvTranspose1d(4, 3, stride=2), lambda: torch.nn.ConvTranspose1d(2, 4, 3, stride=2),
                    lambda: normal(2, 2, 6)),
    "transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
                    lambda: torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
                    lambda: normal(2, 4, 4, 5)),
    "transpose3d": (lambda: nn.ConvTranspose3d(3, 2), lambda: torch.nn.ConvTranspose3d(2, 3, 2),
                    lambda: normal(1, 2, 3, 2, 3)),
    "layer norm": (lambda: nn.LayerNorm(), lambda: torch.nn.LayerNorm(5), lambda: normal(3, 4, 5)),
    "rms norm": (lambda: nn.RMSNorm(), lambda: torch.nn.RMSNorm(5, eps=1e-6), lambda: normal(3, 4, 5)),
    "group norm": (lambda: nn.GroupNorm(2), lambda: torch.nn.GroupNorm(2, 4), lambda: normal(3, 4, 5)),
    "instance norm": (lambda: nn.InstanceNorm1d(scale=True), lambda: torch.nn.InstanceNorm1d(4, affine=True),
                      lambda: normal(3, 4, 5)),
    "instance norm, plain": (lambda: nn.InstanceNorm2d(4), lambda: torch.nn.InstanceNorm2d(4),
                             lambda: normal(3, 4, 5, 2)),
    "batch norm": (lambda: nn.BatchNorm2d(), lambda: torch.nn.BatchNorm2d(4), lambda: normal(3, 4, 5, 2)),
    "batch norm, flat": (lambda: nn.BatchNorm1d(), lambda: torch.nn.BatchNorm1d(4), lambda: normal(6, 4)),
    "max pool": (lambda: nn.MaxPool2d(2, stride=1, padding=1), lambda: torch.nn.MaxPool2d(2, stride=1, padding=1),
                 lambda: normal(2, 3, 5, 4)),
    "max pool, one": (lambda: nn.MaxPool1d(3), lambda: torch.nn.MaxPool1d(3), lambda: normal(2, 3, 7)),
    "avg pool": (lambda: nn.AvgPool2d((2, 3)), lambda: torch.nn.AvgPool2d((2, 3)), lambda: normal(2, 3, 5, 6)),
    "adaptive avg": (lambda: nn.AdaptiveAvgPool((3, 2)), lambda: torch.nn.AdaptiveAvgPool2d((3, 2)),
                     lambda: normal(2, 3, 7, 5)),
    "adaptive max": (lambda: nn.AdaptiveMaxPool(3), lambda: torch.nn.AdaptiveMaxPool1d(3), lambda: normal(2, 3, 8)),
    "adaptive avg, 2d": (lambda: nn.AdaptiveAvgPool2d(1), lambda: torch.nn.AdaptiveAvgPool2d(1),
                         lambda: normal(2, 3, 4, 5)),
    "adaptive max, 3d": (lambda: nn.AdaptiveMaxPool3d((2, None, 1)), lambda: torch.nn.AdaptiveMaxPool3d((2, None, 1)),
                         lambda: normal(2, 3, 4, 2, 3)),
    "flatten": (lambda: nn.Flatten(), lambda: torch.nn.Flatten(), lambda: normal(2, 3, 4)),
    "upsample": (lambda: nn.Upsample((2, 3)), lambda: torch.nn.Upsample(scale_factor=(2, 3)),
                 lambda: normal(1, 2, 3, 2)),
    "identity": (lambda: nn.Identity(), lambda: torch.nn.Identity(), lambda: normal(2, 3)),
    "sequential": (lambda: nn.Sequential(nn.Linear(4), hf.relu, nn.Linear(2)),
                   lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)),
                   lambda: normal(5, 3)),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_layers_are_torchs(name: str):
    ours, theirs, x = SIMPLE[name]
    check(ours(), theirs(), x())


RECURRENT = {"rnn": ("RNN", {}), "gru": ("GRU", {}), "lstm": ("LSTM", {})}


@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_are_torchs(kind: str, options: dict[str, Any]):
    theirs = {"num_layers" if key == "layers" else key: value for key, value in options.items()}
    make = getattr(torch.nn, kind)
    x = normal(2, 5, 3)
    for pick in (lambda r: r[0], lambda r: r[1][1] if isinstance(r[1], tuple) else r[1]):
        check(getattr(nn, kind)(4, **options), make(3, 4, batch_first=True, **theirs), x, pick=pick)
    assert "scan" in str(hf.compile(getattr(nn, kind)(4, **options)).graph(hf.asarray(x)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_attention_is_torchs(causal: bool, masked: str | None):
    ours, theirs = nn.MultiHeadAttention(8, 2, is_causal=causal), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    theirs = theirs.double()
    x = normal(3, 5, 8)
    ours(x)
    weights = theirs.state_dict()
    parts = {}
    for number, name in enumerate(("query", "key", "value")):
        parts[f"{name}.weight"] = weights["in_proj_weight"][number * 8 : number * 8 + 8]
        parts[f"{name}.bias"] = weights["in_proj_bias"][number * 8 : number * 8 + 8]
    parts |= {"out.weight": weights["out_proj.weight"], "out.bias": weights["out_proj.bias"]}
    ours.load_state_dict({path: value.numpy().astype(np.float32) for path, value in parts.items()})
    allowed = RNG.random((5, 5)) < 0.6
    np.fill_diagonal(allowed, True)
    added = normal(5, 5)
    mask = {None: None, "bool": allowed, "float": added}[masked]
    theirs_mask = {None: torch.zeros(5, 5).double(), "bool": torch.tensor(np.where(allowed, 0.0, -np.inf)),
                   "float": torch.tensor(added.astype(np.float64))}[masked]
    if causal:
        theirs_mask = theirs_mask + torch.tensor(np.where(np.tri(5, dtype=bool), 0.0, -np.inf))
    given, other = hf.tensor(x, requires_grad=True), torch.tensor(x.astype(np.float64), requires_grad=True)
    y, t = ours(given, mask=mask), theirs(other, other, other, attn_mask=theirs_mask, need_weights=False)[0]
    close(y.numpy(), t, "forward")
    cotangent = normal(*y.shape)
    hf.sum(y * cotangent).backward()
    (t * torch.tensor(cotangent.astype(np.float64))).sum().backward()
    close(given.grad.numpy(), other.grad, "input")
    whole = theirs.in_proj_weight.grad
    close(ours.value.weight.grad.numpy(), whole[16:], "value.weight")
    close(ours.query.weight.grad.numpy(), whole[:8], "query.weight")
    hf.testing.assert_same(lambda x: ours(x, mask=mask), x)


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_drops_weights_in_training_mode_only(compiled: bool):
    attend = nn.scaled_dot_product_attention
    q, k = hf.zeros((2, 3, 50, 4)), hf.asarray(normal(2, 3, 60, 4))

    def dropped(q: Any, k: Any) -> Any:
        return attend(q, k, hf.ones((2, 3, 60, 1)), dropout=0.25)

    hf.random.seed(1)
    y = (hf.compile(dropped) if compiled else dropped)(q, k).numpy()
    counts = y * 60 * 0.75  # all weights are alike, so each result tells how many were kept
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)
    assert abs(counts.mean() / 60 - 0.75) < 0.02
    assert len(np.unique(np.round(counts))) > 5
    layer = nn.MultiHeadAttention(8, 2, dropout=0.5)
    x = hf.asarray(normal(2, 5, 8))
    assert not np.array_equal(layer(x).numpy(), layer(x).numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x).numpy(), layer(x).numpy())
    layer.train()
    hf.testing.assert_same(lambda x: layer(x), x)
    with pytest.raises(ValueError, match="dropout must be from 0"):
        nn.MultiHeadAttention(8, 2, dropout=1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_that_drops_next_to_nothing_is_the_operation(dtype: str, masked: str | None, causal: bool):
    q, k, v = [hf.asarray(normal(2, 5, 4)).astype(dtype) for _ in range(3)]
    seen = RNG.random((5, 5)) < 0.5
    seen[2] = False  # a query that may look at nothing
    mask = {None: None, "bool": seen, "float": normal(5, 5)}[masked]

    def loss(q: Any, k: Any, v: Any, dropout: float) -> Any:
        y = nn.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, dropout=dropout)
        assert y.dtype == q.dtype
        return hf.sum(hf.sin(y.astype("float32")))

    expected = hf.grad(lambda *x: loss(*x, 0.0), (0, 1, 2))(q, k, v)
    found = hf.grad(lambda *x: loss(*x, 1e-9), (0, 1, 2))(q, k, v)
    for a, b in zip(found, expected, strict=True):
        a, b = a.astype("float32").numpy(), b.astype("float32").numpy()
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("rotary", [False, True])
def test_generation_with_a_cache_is_one_trace_and_gives_what_the_whole_gives(rotary: bool):
    attend = nn.MultiHeadAttention(8, 2, is_causal=True, rotary=rotary)
    x = hf.asarray(normal(2, 6, 8))
    whole = attend(x).numpy()
    cache = attend.cache(2, 8)
    step = hf.compile(lambda x: attend(x, cache=cache))
    eager_cache = attend.cache(2, 8)
    for t in range(6):
        part = step(x[:, t : t + 1]).numpy()
        np.testing.assert_allclose(part[:, 0], whole[:, t], rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(part, attend(x[:, t : t + 1], cache=eager_cache).numpy(), rtol=1e-5, atol=1e-6)
    assert step.trace_count == 1
    cache.reset()
    np.testing.assert_allclose(step(x[:, :1]).numpy()[:, 0], whole[:, 0], rtol=2e-5, atol=2e-6)
    assert attend.cache(2, 8).keys.shape == (2, 2, 8, 4)
    assert "keys" not in str([*attend.named_parameters()])


def test_rotary_positions_count_from_each_other():
    attend = nn.MultiHeadAttention(8, 2, rotary=True, is_causal=True)
    x = normal(1, 3, 8)
    far = np.concatenate([normal(1, 4, 8), x], axis=1)
    hidden = np.arange(7)[None, :] >= 4
    np.testing.assert_allclose(
        attend(far, mask=np.broadcast_to(hidden, (7, 7))).numpy()[:, 4:], attend(x).numpy(), rtol=1e-4, atol=1e-5
    )


def test_batch_norms_averages_are_torchs():
    ours, theirs = nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    step = hf.compile(lambda x: ours(x))
    for _ in range(3):
        x = normal(4, 3, 5, 2)
        step(hf.asarray(x))
        theirs(torch.tensor(x))
    close(ours.running_mean.numpy(), theirs.running_mean, "mean")
    close(ours.running_var.numpy(), theirs.running_var, "variance")
    assert step.trace_count == 1
    x = normal(2, 3, 4, 4)
    close(ours.eval()(x).numpy(), theirs.eval()(torch.tensor(x)), "eval")


def test_initial_values_have_torchs_spread():
    for ours, theirs in ((nn.Linear(400, 300), torch.nn.Linear(400, 300)),
                         (nn.Conv2d(16, 32, 3), torch.nn.Conv2d(16, 32, 3)),
                         (nn.LSTM(64, 64), torch.nn.LSTM(64, 64)), (nn.Embedding(100, 50), torch.nn.Embedding(100, 50)),
                         (nn.ConvTranspose2d(16, 32, 3), torch.nn.ConvTranspose2d(16, 32, 3))):
        known = dict(theirs.named_parameters())
        for path, one in ours.named_parameters().items():
            if one.size > 2000:
                assert one.numpy().std() == pytest.approx(known[path].std().item(), rel=0.05), path
                assert abs(one.numpy().mean()) < 0.1 * one.numpy().std()


@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d", "ConvTranspose2d"])
def test_channels_come_last_in_the_data_only(kind: str, rng: np.random.Generator):
    axes = int(kind[-2])
    first, last = [getattr(hf.nn, kind)(4, 6, 3, groups=2, stride=2, channels_last=flag) for flag in (False, True)]
    last.load_state_dict(first.state_dict())
    x = rng.normal(size=(2, 4, *[7, 6][:axes])).astype(np.float32)
    y = last(np.moveaxis(x, 1, -1)).numpy()
    np.testing.assert_allclose(np.moveaxis(y, -1, 1), first(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_dropout_of_channels_drops_them_whole(axes: int):
    layer = getattr(nn, f"Dropout{axes}d")(0.25)
    x = hf.ones((40, 50, *(2,) * axes))

    def drop() -> Any:
        hf.random.seed(3)
        return layer(x)

    dropped = drop().numpy().reshape(2000, -1)
    assert (dropped == dropped[:, :1]).all()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.05
    np.testing.assert_array_equal(hf.compile(lambda v: layer(v))(x).shape, x.shape)
    layer.eval()
    assert layer(x).numpy().min() == 1
    for bad in (layer, getattr(nn, f"AdaptiveAvgPool{axes}d")(2)):
        with pytest.raises(ValueError, match=rf"{type(bad).__name__}: the input has {axes - 1} spatial axes"):
            bad(x[..., 0])


@pytest.mark.parametrize("compiled", [False, True])
def test_float64_into_a_float32_layer_is_told_once(compiled):
    x = np.ones((2, 4, 3))
    deep = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.relu, nn.Linear(4, 4)), nn.Linear(4, 2))
    for layer in (nn.Linear(3, 2), nn.LSTM(3, 2), nn.LayerNorm(3), nn.Linear(2), deep, nn.Sequential(nn.Linear(3, 2))):
        call = hf.compile(layer) if compiled else layer
        with pytest.warns(hf.DTypeWarning, match=r'float64, so this float32 layer.*astype\("float32"\)') as told:
            call(x), call(x)
        assert [one.filename for one in told] == [__file__]
    nn.Linear(3, 2, dtype="float64")(x)  # what is meant is not told
    nn.Linear(3, 2)(x.astype(np.float32))
