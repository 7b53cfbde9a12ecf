"""Functions to try the command line on: ``hybridflow compare examples/attention.py:attend``."""

import numpy as np

import hybridflow as hf

HEADS, LENGTH, DIM = 4, 32, 16


def attend(query, key, value):
    """Causal self-attention with a residual, layer-normalised."""
    mixed = hf.nn.scaled_dot_product_attention(query, key, value, is_causal=True)
    return hf.nn.layer_norm(query + mixed)


def attend_args():
    """Sample arguments: the command line finds them by the function's name."""
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((2, HEADS, LENGTH, DIM)).astype(np.float32) for _ in range(3))


def normalise(x):
    """Scale each row to length 1."""
    return x / hf.sqrt(hf.sum(x * x, axis=-1, keepdims=True))
