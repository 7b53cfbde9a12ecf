"""Functions to try the command line on: ``hybridflow compare examples/attention.py:attend``."""

import jax.numpy as jnp
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


def by_norm(x):
    """The same by the vector norm: ``hybridflow compare examples/attention.py:normalise,by_norm --shapes ...``."""
    return x / hf.linalg.vector_norm(x, axis=-1, keepdims=True)


def normalise_in_jax(x):
    """The same in JAX, for ``--peers jax=examples/attention.py:normalise_in_jax``."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)
