"""Padded batches: results and gradients are those of each row alone at its own length."""

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError

LENGTHS = [4, 1, 5, 2]
LAYERS = {
    "RNN": lambda: nn.RNN(3, 4, activation="relu"),
    "GRU": lambda: nn.GRU(3, 4, layers=2),
    "LSTM": lambda: nn.LSTM(3, 4),
    "LSTM, two layers, both ways": lambda: nn.LSTM(3, 4, layers=2, bidirectional=True),
    "attention": lambda: nn.MultiHeadAttention(4, 2, features=3),
    "causal attention": lambda: nn.MultiHeadAttention(4, 2, features=3, is_causal=True, rotary=True),
}


def padded(rng, padding):
    x = rng.normal(size=(len(LENGTHS), 5, 3)).astype(np.float32)
    for row, length in enumerate(LENGTHS):
        x[row, length:] = padding
    return x


def result_and_state(layer, x, lengths=None):
    found = layer(x, lengths=lengths) if lengths is not None else layer(x)
    return hf.tree.leaves(found)


def weighted(parts, factors):
    return sum(hf.sum(part * factor) for part, factor in zip(parts, factors, strict=True))


@pytest.mark.parametrize("padding", [0.0, np.nan])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_padded_batch_is_its_rows_alone(name, compiled, padding):
    hf.random.seed(1)
    layer, rng = LAYERS[name](), np.random.default_rng(0)
    x = padded(rng, padding)
    parts = result_and_state(layer, x, LENGTHS)
    factors = [rng.normal(size=part.shape).astype(np.float32) for part in parts]

    def gradients(x, lengths):
        with hf.GradientTape() as tape:
            tape.watch(x)
            parts = result_and_state(layer, x, lengths)
            loss = weighted(parts, factors)
        return parts, tape.gradient(loss, [x, layer])

    def alone(row):
        x_row = hf.asarray(x[row : row + 1, : LENGTHS[row]])
        own = [factor[row : row + 1, : LENGTHS[row]] if place == 0 else factor[:, row : row + 1]
               for place, factor in enumerate(factors)]
        with hf.GradientTape() as tape:
            tape.watch(x_row)
            parts = result_and_state(layer, x_row)
            loss = weighted(parts, own)
        return parts, tape.gradient(loss, [x_row, layer])

    found, (by_x, by_layer) = (hf.compile(gradients) if compiled else gradients)(hf.asarray(x), hf.asarray(LENGTHS))
    sums = [0.0] * len(hf.tree.leaves(by_layer))
    for row, length in enumerate(LENGTHS):
        wanted, (row_x, row_layer) = alone(row)
        close(found[0][row, :length], wanted[0][0])
        assert not found[0][row, length:].numpy().any()
        for state, one in zip(found[1:], wanted[1:], strict=True):
            close(state[:, row], one[:, 0])
        close(by_x[row, :length], row_x[0])
        assert not by_x[row, length:].numpy().any()
        sums = [total + one.numpy() for total, one in zip(sums, hf.tree.leaves(row_layer), strict=True)]
    for one, total in zip(hf.tree.leaves(by_layer), sums, strict=True):
        close(one, total)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_cross_attention_and_masks(compiled):
    hf.random.seed(2)
    layer, rng = nn.MultiHeadAttention(4, 2, features=3), np.random.default_rng(0)
    query, keys = rng.normal(size=(4, 2, 3)).astype(np.float32), padded(rng, np.nan)
    for mask in (None, rng.random((2, 5)) < 0.7, rng.normal(size=(2, 5)).astype(np.float32)):
        if mask is not None and mask.dtype == bool:
            mask[:, 0] = True
        call = hf.compile(layer) if compiled else layer
        found = call(query, keys, mask=mask, lengths=LENGTHS)
        for row, length in enumerate(LENGTHS):
            own = None if mask is None else mask[:, :length]
            close(found[row], layer(query[row : row + 1], keys[row : row + 1, :length], mask=own)[0])


@pytest.mark.parametrize("make", [lambda: nn.GRU(3, 4), lambda: nn.MultiHeadAttention(4, 2, features=3)])
def test_lengths_that_do_not_fit(make):
    layer, x = make(), hf.ones((2, 5, 3))
    assert not result_and_state(layer, x, [0, 0])[0].numpy().any()
    with pytest.raises(ShapeError, match=r"lengths have shape \(3,\), not \(2,\)"):
        layer(x, lengths=[1, 2, 3])
    with pytest.raises(DTypeError):
        layer(x, lengths=[1.0, 2.0])
    for call in (layer, hf.compile(layer)):
        with pytest.raises(ArgumentError, match="a length is not from 0 to 5"):
            hf.tree.leaves(call(x, lengths=hf.asarray([6, 1])))[0].numpy()


def test_packed_sequences_of_torch():
    torch = pytest.importorskip("torch")
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    ours = nn.LSTM(3, 4, layers=2, bidirectional=True)
    theirs = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in ours.state_dict().items()})
    x = padded(np.random.default_rng(0), 0.0)
    packed = pack_padded_sequence(torch.tensor(x), LENGTHS, batch_first=True, enforce_sorted=False)
    wanted, states = theirs(packed)
    y, own = ours(x, lengths=LENGTHS)
    close(y, pad_packed_sequence(wanted, batch_first=True)[0].detach())
    for one, other in zip(own, states, strict=True):
        close(one, other.detach())


@pytest.mark.parametrize("compiled", [False, True])
def test_the_vector_of_padding_is_zeros_and_stays(compiled):
    table = nn.Embedding(5, 2, padding_id=-5)
    assert table.padding_id == 0
    assert not table.weight.numpy()[0].any()
    table.weight.assign(hf.ones((5, 2)))  # as weights from elsewhere may be

    def step(ids):
        with hf.GradientTape() as tape:
            y = table(ids)
            loss = hf.sum(y)
        return y, tape.gradient(loss, table.weight)

    y, gradient = (hf.compile(step) if compiled else step)(hf.asarray([[0, 1, -5], [3, 3, -4]]))
    assert y.numpy().all()
    assert gradient.numpy()[:, 0].tolist() == [0, 2, 0, 2, 0]
    assert nn.Embedding(5, 2, padding_idx=4).padding_id == 4
    with pytest.raises(ArgumentError, match="padding_id is no id of the table"):
        nn.Embedding(5, 2, padding_id=5)
