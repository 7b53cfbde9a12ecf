"""Attention over several heads, with a cache of keys and values for generation."""

from __future__ import annotations

from math import inf
from typing import Any

from hybridflow.core.context import made_once
from hybridflow.core.dtypes import bool_, float32, int32
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn.layers.linear import Linear
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import along, label, layouts_for, within
from hybridflow.ops.choice import where
from hybridflow.ops.common import TensorLike, cast_to
from hybridflow.ops.comparison import logical_and, logical_or
from hybridflow.ops.creation import zeros
from hybridflow.ops.einsum import einsum
from hybridflow.ops.joining import concat, stack
from hybridflow.ops.nn.attention import scaled_dot_product_attention
from hybridflow.ops.ranges import arange
from hybridflow.ops.rearrange import repeat
from hybridflow.ops.shape import permute_dims, reshape
from hybridflow.ops.trigonometric import cos, sin


class KeyValueCache(Module):
    """The keys and values of earlier positions; `MultiHeadAttention.cache` returns one.

    Attributes:
        keys, values: ``(batch, heads, length, width / heads)``; zeros from `position` on.
        position: the number of positions that are stored.
    """

    keys: Variable
    values: Variable
    position: Variable

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        with made_once():
            self.keys = Variable(zeros(shape, dtype=dtype), name="keys", trainable=False)
            self.values = Variable(zeros(shape, dtype=dtype), name="values", trainable=False)
            self.position = Variable(0, dtype=int32, name="position", trainable=False)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write the keys and values of the next positions."""
        positions = self.position.read() + arange(keys.shape[2], dtype=int32)
        self.keys.assign(self.keys.read().at[:, :, positions].set(keys))
        self.values.assign(self.values.read().at[:, :, positions].set(values))
        self.position.assign_add(keys.shape[2])

    def reset(self) -> None:
        """Forget all positions."""
        self.position.assign(0)


class MultiHeadAttention(Module):
    """Multi-head attention; see `hf.nn.scaled_dot_product_attention`.

    Args:
        width: the size of the result's last axis; each head gets ``width / heads`` of it.
        heads: the number of heads.
        kv_heads: the number of heads of keys and values, each shared by a group of queries' heads (grouped-query
            attention); as many as `heads` if not given.
        features: the size of the inputs' last axis; the first call gives it if it is left out.
        is_causal: whether a position attends only to itself and earlier ones.
        bias: whether the four linear layers have biases.
        dropout: the probability that an attention weight is dropped in training mode.
        rotary: whether to apply rotary position embeddings to queries and keys.
        base: the base of the rotary wavelengths.
        dtype: the dtype of the parameters.
        layouts: ``"heads:AXIS"`` lets `hf.distribute.shard` split the heads over a mesh axis.

    Attributes:
        query, key, value, out: the linear layers.
        head_width: the size of a head; it stays if heads are pruned.

    Example:
        >>> import hybridflow as hf
        >>> attend = hf.nn.MultiHeadAttention(8, 2, is_causal=True)
        >>> x = hf.random.normal((1, 5, 8))
        >>> whole = attend(x)
        >>> cache = attend.cache(1, 5)  # one position after the other gives the same
        >>> parts = hf.concat([attend(x[:, t : t + 1], cache=cache) for t in range(5)], axis=1)
        >>> bool(hf.max(hf.abs(whole - parts)) < 1e-5)
        True

    Reference:
        Vaswani et al., "Attention is all you need", 2017; Su et al., "RoFormer: enhanced transformer with rotary
        position embedding", 2021; Ainslie et al., "GQA: training generalized multi-query transformer models from
        multi-head checkpoints", 2023.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        features: int | None = None,
        is_causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: bool = False,
        base: float = 10000.0,
        dtype: Any = "float32",
        layouts: str | None = None,
    ) -> None:
        if heads < 1 or width % heads or (rotary and width // heads % 2):
            sizes = "even sizes, which rotary positions need" if rotary else "equal sizes"
            raise ArgumentError(
                f"MultiHeadAttention: the width cannot be cut into heads of {sizes}",
                got=f"width={width}, heads={heads}",
                hint="Choose a width that is a multiple of the heads" + (", taken twice." if rotary else ".")
            )
        self.kv_heads = heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise ArgumentError("MultiHeadAttention: the heads cannot be cut into groups of equal sizes",
                                got=f"heads={heads}, kv_heads={kv_heads}",
                                hint="Choose kv_heads that divide the heads.")
        if not 0 <= dropout < 1:
            raise ArgumentError("MultiHeadAttention: dropout must be from 0 to below 1", got=f"dropout={dropout!r}")
        self.head_width = width // heads
        self.width, self.heads, self.is_causal, self.rotary, self.base = width, heads, is_causal, rotary, base
        self.dropout = dropout
        self.dtype = dtype
        self.heads_over: str | None = None
        if layouts is not None:
            self.heads_over = layouts_for("MultiHeadAttention", str(layouts), {"heads": {"over": ("*",)}})["over"][0]
        into = None if self.heads_over is None else f"column:{self.heads_over}"
        back = None if self.heads_over is None else f"row:{self.heads_over}"
        shared = width // heads * self.kv_heads

        def linear(out: int) -> Linear:
            if features is None:
                return Linear(out, bias=bias, dtype=dtype, layouts=into)
            return Linear(features, out, bias=bias, dtype=dtype, layouts=into)

        self.query, self.key, self.value = linear(width), linear(shared), linear(shared)
        self.out = Linear(width, width, bias=bias, dtype=dtype, layouts=back)

    def cache(self, batch: int, length: int) -> KeyValueCache:
        """Return a cache for sequences of up to `length` positions, for the calls of one generation."""
        return KeyValueCache((batch, self.kv_heads, length, self.head_width), self.dtype)

    @with_foreign_keywords
    def forward(
        self,
        query: TensorLike,
        key: TensorLike | None = None,
        value: TensorLike | None = None,
        *,
        mask: TensorLike | None = None,
        lengths: Any = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the values, averaged for each query by attention.

        Args:
            query: ``(batch, length, features)``.
            key: ``(batch, others, features)``; the queries if not given.
            value: ``(batch, others, features)``; the keys if not given.
            mask: broadcasts to ``(batch, heads, length, others)``. Bool: True where a query may attend; floats are
                added to the scores.
            lengths: how many positions of each row's keys count, ``(batch,)``; all if not given. If the keys are the
                queries, results and gradients are those of each row alone at its own length, and the results after it
                are zeros, as are those of a row without any.
            cache: keys and values of earlier calls; those of this call are appended.

        Returns:
            ``(batch, length, width)``.

        Raises:
            ShapeError: an input has not three axes or another size, or the lengths do not fit it.
            ArgumentError: a length is not from 0 to the number of keys, or there is a cache too.
        """
        if lengths is not None:
            return self._of_lengths(query, key, value, mask, lengths, cache)
        query = as_tensor(query)
        if query.ndim != 3:
            raise ShapeError(f"{label(self)}: the input has {query.ndim} axes, not (batch, length, features)",
                             got=str(query.spec))
        keys = query if key is None else as_tensor(key)
        values = keys if value is None else as_tensor(value)
        q, k, v = map(self._split, self._projected(query, keys, values))
        before: Any = 0 if cache is None else cache.position.read()
        if self.rotary:
            q, k = self._rotated(q, before), self._rotated(k, before)
        causal = self.is_causal
        if cache is not None:
            cache.append(k, v)
            k, v = cache.keys.read(), cache.values.read()
            mask = _seen(mask, before, q.shape[2], k.shape[2], causal)
            causal = False
        dropped = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(q, self._shared(k), self._shared(v), mask, is_causal=causal, dropout=dropped)
        joined = (query.shape[0], query.shape[1], self.heads * self.head_width)
        return self.out(reshape(permute_dims(y, (0, 2, 1, 3)), joined))

    def _of_lengths(self, query: Any, key: Any, value: Any, mask: Any, lengths: Any, cache: Any) -> Tensor:
        """Attend where the keys count; what does not count is zeros, so that no NaN in it reaches a gradient."""
        if cache is not None:
            raise ArgumentError(f"{label(self)}: lengths and a cache",
                                hint="A cache knows its positions: leave lengths out.")
        keys = as_tensor(query if key is None else key)
        if keys.ndim != 3:
            raise ShapeError(f"{label(self)}: the keys have {keys.ndim} axes, not (batch, length, features)",
                             got=str(keys.spec))
        valid = within(self, lengths, keys.shape[0], keys.shape[1])
        some, counts = valid[:, :1, None], valid[..., None]
        seen = logical_or(valid, arange(keys.shape[1]) == 0)[:, None, None, :]  # a row without any attends to zeros
        if mask is None:
            mask = seen
        elif as_tensor(mask).dtype == bool_:
            mask = logical_and(as_tensor(mask), seen)
        else:
            mask = where(seen, as_tensor(mask), -inf)
        keys = where(counts, keys, 0)
        values = None if value is None else where(counts, as_tensor(value), 0)
        return where(counts if key is None else some, self.forward(keys if key is None else query,
                     None if key is None else keys, values, mask=mask), 0)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, as one product if the heads are split and all are of the same input.

        The gradient of the input is then reduced over the mesh once, not three times.
        """
        layers = self.query, self.key, self.value
        together = self.heads_over is not None and self.kv_heads == self.heads and query is key and key is value
        if not together or any([type(layer) is not Linear or layer.in_features is None for layer in layers]):
            return self.query(query), self.key(key), self.value(value)
        x = einsum("btc,nfc->nbtf", query, stack([layer.weight for layer in layers]))
        if self.query.bias is not None:
            x = x + stack([layer.bias for layer in layers])[:, None, None, :]
        x = along(x, self.query.weight, self.heads_over, 3)
        return x[0], x[1], x[2]

    def _split(self, x: Tensor) -> Tensor:
        """Return ``(batch, heads, length, width / heads)``."""
        split = (x.shape[0], x.shape[1], x.shape[2] // self.head_width, self.head_width)
        return permute_dims(reshape(x, split), (0, 2, 1, 3))

    def _shared(self, x: Tensor) -> Tensor:
        """Return keys or values once for each head of their group."""
        return x if self.kv_heads == self.heads else repeat(x, self.heads // self.kv_heads, axis=1)

    def _rotated(self, x: Tensor, before: Any) -> Tensor:
        """Rotate queries or keys by their positions; the halves of the last axis are the two coordinates."""
        half = x.shape[3] // 2
        steps = self.base ** (arange(half, dtype=float32) * (-1.0 / half))
        positions = cast_to(as_tensor(before) + arange(x.shape[2], dtype=int32), float32)
        angles = positions[:, None] * steps
        c, s = cast_to(cos(angles), x.dtype), cast_to(sin(angles), x.dtype)
        first, second = x[..., :half], x[..., half:]
        return concat([first * c - second * s, second * c + first * s], axis=-1)

    def extra_repr(self) -> str:
        """Return the sizes and options."""
        options = [f"{name}=True" for name in ("is_causal", "rotary") if getattr(self, name)]
        options += [f"dropout={self.dropout}"] if self.dropout else []
        options += [f"kv_heads={self.kv_heads}"] if self.kv_heads != self.heads else []
        return ", ".join([str(self.width), str(self.heads), *options])


def _seen(mask: Any, before: Any, queries: int, length: int, causal: bool) -> Tensor:
    """Return the mask of cached positions that queries may look at; the first query's position is `before`."""
    positions = arange(length, dtype=int32)
    last = before + (arange(queries, dtype=int32) if causal else queries - 1)
    seen = positions <= reshape(last, (-1, 1))
    if mask is None:
        return seen
    mask = as_tensor(mask)
    if str(mask.dtype) == "bool":
        return logical_and(mask, seen)
    return where(seen, mask, -inf)
