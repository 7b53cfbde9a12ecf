"""The names that PyTorch, NumPy, TensorFlow and JAX use, as one table of data.

`hf` stands for the package in question, `hf.nn` for its neural network functions and layers (``torch.nn.functional``,
``torch.nn``, ``tf.nn``, ``jax.nn``), `x` for a tensor, `model` for a module and `opt` for an optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Name(NamedTuple):
    """A name of other packages that works here as it does there.

    Attributes:
        packages: the packages that have the name.
        call: the name, followed by its parameters where `ours` is more than another name. ``*sizes`` are numbers or
            one tuple of them; keywords of `KEYWORDS` are accepted too.
        ours: the hybridflow equivalent: a name, or an expression of `x` and the parameters of `call`.
    """

    packages: str
    call: str
    ours: str


class Hint(NamedTuple):
    """A name of other packages that does not work here.

    Attributes:
        packages: the packages that have the name.
        name: the name.
        ours: what to write instead.
        because: how `ours` differs from the name's meaning there.
    """

    packages: str
    name: str
    ours: str
    because: str


class Keyword(NamedTuple):
    """A keyword of other packages.

    Attributes:
        packages: the packages that have the keyword.
        name: the keyword.
        ours: the equivalent keywords here; a function has at most one of them.
        instead: what to write if a function has none of them; its own keywords are listed if there is nothing to say.
        but: functions for which the keyword means something else, and what to write for them.
        unless: a keyword with which those functions give it the usual meaning after all.
        usual: values that ask for what every function does anyway; functions without the keyword accept them.
    """

    packages: str
    name: str
    ours: tuple[str, ...]
    instead: str
    but: Mapping[str, str] = MappingProxyType({})
    unless: str = ""
    usual: tuple[Any, ...] = ()


class Sizes(NamedTuple):
    """Sizes that layers take by position here, and other packages by name too.

    Attributes:
        packages: the packages that have the names.
        layers: the classes, whose subclasses take the same sizes.
        names: the names, in the order of the positions. A call may give the last ones by name, or all of them.
    """

    packages: str
    layers: str
    names: tuple[str, ...]


class Different(NamedTuple):
    """A name that hybridflow has too, with a slightly different meaning.

    Attributes:
        packages: the packages where it means something else.
        name: the name.
        there: what it means there.
        here: what it means here.
    """

    packages: str
    name: str
    there: str
    here: str


NAMES = (
    # -- dtypes
    Name("torch", "hf.half", "hf.float16"),
    Name("torch", "hf.float", "hf.float32"),
    Name("torch", "hf.double", "hf.float64"),
    Name("torch", "hf.short", "hf.int16"),
    Name("torch", "hf.int", "hf.int32"),
    Name("torch", "hf.long", "hf.int64"),
    Name("torch", "hf.cfloat", "hf.complex64"),
    # -- making tensors
    Name("torch", "hf.as_tensor", "hf.asarray"),
    Name("numpy jax", "hf.array(value, dtype=None)", "hf.asarray(value, dtype=dtype)"),
    Name("tensorflow", "hf.constant(value, dtype=None)", "hf.asarray(value, dtype=dtype)"),
    Name("tensorflow", "hf.convert_to_tensor(value, dtype=None)", "hf.asarray(value, dtype=dtype)"),
    Name("tensorflow", "hf.range", "hf.arange"),
    Name("torch", "x.new_zeros(*sizes)", "hf.zeros(sizes, dtype=x.dtype)"),
    Name("torch", "x.new_ones(*sizes)", "hf.ones(sizes, dtype=x.dtype)"),
    Name("torch", "hf.is_tensor(value)", "isinstance(value, hf.Tensor)"),
    Name("torch", "hf.numel(x)", "x.size"),
    # -- random numbers
    Name("torch", "hf.randn(*sizes, dtype=hf.float32)", "hf.random.normal(sizes, dtype=dtype)"),
    Name("torch", "hf.rand(*sizes, dtype=hf.float32)", "hf.random.uniform(sizes, dtype=dtype)"),
    Name("torch", "hf.randn_like(x)", "hf.random.normal(x.shape, dtype=x.dtype)"),
    Name("torch", "hf.rand_like(x)", "hf.random.uniform(x.shape, dtype=x.dtype)"),
    Name("torch", "hf.randint(low, high, size)", "hf.random.integers(low, high, size)"),
    Name("torch", "hf.randperm(n)", "hf.random.permutation(n)"),
    Name("torch", "hf.manual_seed", "hf.random.seed"),
    Name("numpy", "hf.random.randn(*sizes)", "hf.random.normal(sizes)"),
    Name("numpy", "hf.random.rand(*sizes)", "hf.random.uniform(sizes)"),
    Name("numpy", "hf.random.randint(low, high, size=())", "hf.random.integers(low, high, size)"),
    Name("numpy", "hf.random.standard_normal(size=())", "hf.random.normal(size)"),
    # -- joining, cutting, reordering
    Name("torch", "hf.cat", "hf.concat"),
    Name("numpy torch jax", "hf.concatenate", "hf.concat"),
    Name("torch", "hf.permute(x, axes)", "hf.permute_dims(x, axes)"),
    Name("torch", "hf.unsqueeze(x, axis)", "hf.expand_dims(x, axis)"),
    Name("torch", "hf.unbind(x, axis=0)", "hf.unstack(x, axis)"),
    Name("tensorflow", "hf.reverse(x, axis)", "hf.flip(x, axis=axis)"),
    Name("numpy torch jax", "hf.swapaxes(x, axis1, axis2)", "hf.moveaxis(x, (axis1, axis2), (axis2, axis1))"),
    Name("torch", "hf.movedim(x, source, destination)", "hf.moveaxis(x, source, destination)"),
    Name("numpy torch jax", "hf.ravel(x)", "hf.reshape(x, (-1,))"),
    Name("torch", "hf.flatten(x, start_dim=0, end_dim=-1)",
         "hf.reshape(x, (*x.shape[: start_dim % x.ndim], -1, *x.shape[end_dim % x.ndim + 1 :]))"),
    Name("torch", "hf.index_select(x, axis, index)", "hf.take(x, index, axis=axis)"),
    Name("torch", "hf.masked_fill(x, mask, value)", "hf.where(mask, value, x)"),
    Name("torch", "hf.topk(x, k, axis=-1, largest=True)",
         "hf.top_k(x, k, axis=axis, mode='largest' if largest else 'smallest')"),
    Name("tensorflow", "hf.cast", "hf.astype"),
    # -- arithmetic and comparison
    Name("torch", "hf.mul", "hf.multiply"),
    Name("torch", "hf.sub", "hf.subtract"),
    Name("torch", "hf.div", "hf.divide"),
    Name("numpy torch jax", "hf.true_divide", "hf.divide"),
    Name("torch", "hf.neg", "hf.negative"),
    Name("numpy torch", "hf.absolute", "hf.abs"),
    Name("numpy jax", "hf.mod", "hf.remainder"),
    Name("torch", "hf.mm", "hf.matmul"),
    Name("torch", "hf.bmm", "hf.matmul"),
    Name("torch", "hf.mv", "hf.matmul"),
    Name("torch", "hf.clamp", "hf.clip"),
    Name("torch", "hf.eq", "hf.equal"),
    Name("torch", "hf.ne", "hf.not_equal"),
    Name("torch", "hf.lt", "hf.less"),
    Name("torch", "hf.le", "hf.less_equal"),
    Name("torch", "hf.gt", "hf.greater"),
    Name("torch", "hf.ge", "hf.greater_equal"),
    Name("numpy torch jax", "hf.arccos", "hf.acos"),
    Name("numpy torch jax", "hf.arccosh", "hf.acosh"),
    Name("numpy torch jax", "hf.arcsin", "hf.asin"),
    Name("numpy torch jax", "hf.arcsinh", "hf.asinh"),
    Name("numpy torch jax", "hf.arctan", "hf.atan"),
    Name("numpy torch jax", "hf.arctan2", "hf.atan2"),
    Name("numpy torch jax", "hf.arctanh", "hf.atanh"),
    Name("torch", "hf.bitwise_not", "hf.bitwise_invert"),
    Name("numpy jax", "hf.invert", "hf.bitwise_invert"),
    Name("numpy jax", "hf.left_shift", "hf.bitwise_left_shift"),
    Name("numpy jax", "hf.right_shift", "hf.bitwise_right_shift"),
    Name("numpy jax", "hf.conjugate", "hf.conj"),
    Name("numpy torch jax", "hf.isclose(x, y, rtol=1e-5, atol=1e-8)",
         "(hf.abs(x - y) <= atol + rtol * hf.abs(y)) | (x == y)"),
    # -- reductions and running sums
    Name("numpy torch jax", "hf.amax(x, axis=None, keepdims=False)", "hf.max(x, axis=axis, keepdims=keepdims)"),
    Name("numpy torch jax", "hf.amin(x, axis=None, keepdims=False)", "hf.min(x, axis=axis, keepdims=keepdims)"),
    Name("tensorflow", "hf.reduce_sum", "hf.sum"),
    Name("tensorflow", "hf.reduce_mean", "hf.mean"),
    Name("tensorflow", "hf.reduce_max", "hf.max"),
    Name("tensorflow", "hf.reduce_min", "hf.min"),
    Name("tensorflow", "hf.reduce_prod", "hf.prod"),
    Name("tensorflow", "hf.reduce_all", "hf.all"),
    Name("tensorflow", "hf.reduce_any", "hf.any"),
    Name("tensorflow", "hf.reduce_logsumexp", "hf.logsumexp"),
    Name("tensorflow", "hf.reduce_std", "hf.std"),
    Name("tensorflow", "hf.reduce_variance", "hf.var"),
    Name("numpy torch jax", "hf.cumsum", "hf.cumulative_sum"),
    Name("numpy torch jax", "hf.cumprod", "hf.cumulative_prod"),
    # -- neural networks
    Name("torch", "hf.nn.functional", "hf.nn"),
    Name("torch tensorflow", "hf.sigmoid", "hf.nn.sigmoid"),
    Name("torch", "hf.softmax", "hf.nn.softmax"),
    Name("torch", "hf.log_softmax", "hf.nn.log_softmax"),
    Name("torch", "hf.nn.tanh", "hf.tanh"),
    Name("torch", "hf.nn.hardtanh(x)", "hf.nn.hard_tanh(x)"),
    Name("torch", "hf.nn.hardswish", "hf.nn.hard_swish"),
    Name("torch", "hf.nn.hardsigmoid", "hf.nn.hard_sigmoid"),
    Name("torch", "hf.nn.logsigmoid", "hf.nn.log_sigmoid"),
    Name("torch", "hf.nn.ReLU()", "hf.nn.relu"),
    Name("torch", "hf.nn.ReLU6()", "hf.nn.relu6"),
    Name("torch", "hf.nn.LeakyReLU(slope=0.01)", "partial(hf.nn.leaky_relu, slope=slope)"),
    Name("torch", "hf.nn.ELU(alpha=1.0)", "partial(hf.nn.elu, alpha=alpha)"),
    Name("torch", "hf.nn.SELU()", "hf.nn.selu"),
    Name("torch", "hf.nn.GELU(approximate='none')", "partial(hf.nn.gelu, approximate=approximate)"),
    Name("torch", "hf.nn.SiLU()", "hf.nn.silu"),
    Name("torch", "hf.nn.Mish()", "hf.nn.mish"),
    Name("torch", "hf.nn.Hardswish()", "hf.nn.hard_swish"),
    Name("torch", "hf.nn.Sigmoid()", "hf.nn.sigmoid"),
    Name("torch", "hf.nn.Tanh()", "hf.tanh"),
    Name("torch", "hf.nn.Softplus()", "hf.nn.softplus"),
    Name("torch", "hf.nn.Softmax(axis)", "partial(hf.nn.softmax, axis=axis)"),
    Name("torch", "hf.nn.LogSoftmax(axis)", "partial(hf.nn.log_softmax, axis=axis)"),
    Name("torch", "hf.nn.ModuleList", "list"),
    Name("torch", "hf.nn.ModuleDict", "dict"),
    # -- linear algebra
    Name("torch", "hf.inverse", "hf.linalg.inv"),
    Name("torch", "hf.det", "hf.linalg.det"),
    # -- methods: shapes
    Name("torch", "x.view(*sizes)", "x.reshape(sizes)"),
    Name("torch", "x.view_as(other)", "x.reshape(other.shape)"),
    Name("torch", "x.unsqueeze(axis)", "hf.expand_dims(x, axis)"),
    Name("torch", "x.permute(*axes)", "hf.permute_dims(x, axes)"),
    Name("numpy torch jax", "x.swapaxes(axis1, axis2)", "hf.moveaxis(x, (axis1, axis2), (axis2, axis1))"),
    Name("numpy torch jax", "x.flatten(start_dim=0, end_dim=-1)",
         "hf.reshape(x, (*x.shape[: start_dim % x.ndim], -1, *x.shape[end_dim % x.ndim + 1 :]))"),
    Name("numpy torch jax", "x.ravel()", "hf.reshape(x, (-1,))"),
    Name("torch", "x.t()", "x.T"),
    Name("torch", "x.expand(*sizes)",
         "hf.broadcast_to(x, [x.shape[i - len(sizes)] if n == -1 else n for i, n in enumerate(sizes)])"),
    Name("torch", "x.expand_as(other)", "hf.broadcast_to(x, other.shape)"),
    Name("torch", "x.tile(*dims)", "hf.tile(x, dims)"),
    Name("torch", "x.unbind(axis=0)", "hf.unstack(x, axis)"),
    Name("torch", "x.roll(shifts, axis=None)", "hf.roll(x, shifts, axis=axis)"),
    Name("torch", "x.numel()", "x.size"),
    Name("torch", "x.nelement()", "x.size"),
    Name("torch", "x.dim()", "x.ndim"),
    Name("torch", "x.element_size()", "x.dtype.itemsize"),
    Name("numpy jax", "x.itemsize", "x.dtype.itemsize"),
    # -- methods: dtypes, devices, copies
    Name("torch", "x.half()", "x.astype(hf.float16)"),
    Name("torch", "x.bfloat16()", "x.astype(hf.bfloat16)"),
    Name("torch", "x.float()", "x.astype(hf.float32)"),
    Name("torch", "x.double()", "x.astype(hf.float64)"),
    Name("torch", "x.int()", "x.astype(hf.int32)"),
    Name("torch", "x.long()", "x.astype(hf.int64)"),
    Name("torch", "x.bool()", "x.astype(hf.bool)"),
    Name("torch", "x.type_as(other)", "x.astype(other.dtype)"),
    Name("torch", "x.is_floating_point()", "hf.isdtype(x.dtype, 'real floating')"),
    Name("torch", "x.cpu()", "x.to('cpu')"),
    Name("torch", "x.cuda()", "x.to('gpu')"),
    Name("torch", "x.contiguous()", "x"),
    Name("torch", "x.clone()", "hf.asarray(x)"),
    Name("numpy jax", "x.copy()", "hf.asarray(x)"),
    # -- methods: elements
    Name("torch", "x.masked_fill(mask, value)", "hf.where(mask, value, x)"),
    Name("torch", "x.where(condition, other)", "hf.where(condition, x, other)"),
    Name("torch", "x.index_select(axis, index)", "hf.take(x, index, axis=axis)"),
    Name("torch", "x.topk(k, axis=-1, largest=True)",
         "hf.top_k(x, k, axis=axis, mode='largest' if largest else 'smallest')"),
    # -- methods: arithmetic
    Name("torch", "x.add(other)", "x + other"),
    Name("torch", "x.sub(other)", "x - other"),
    Name("torch", "x.mul(other)", "x * other"),
    Name("torch", "x.div(other)", "x / other"),
    Name("torch", "x.pow(exponent)", "x ** exponent"),
    Name("torch", "x.remainder(other)", "x % other"),
    Name("torch", "x.neg()", "-x"),
    Name("torch", "x.mm(other)", "x @ other"),
    Name("torch", "x.bmm(other)", "x @ other"),
    Name("torch", "x.mv(other)", "x @ other"),
    Name("torch", "x.eq(other)", "x == other"),
    Name("torch", "x.ne(other)", "x != other"),
    Name("torch", "x.lt(other)", "x < other"),
    Name("torch", "x.le(other)", "x <= other"),
    Name("torch", "x.gt(other)", "x > other"),
    Name("torch", "x.ge(other)", "x >= other"),
    Name("torch", "x.maximum(other)", "hf.maximum(x, other)"),
    Name("torch", "x.minimum(other)", "hf.minimum(x, other)"),
    Name("torch", "x.clamp(min=None, max=None)", "hf.clip(x, min, max)"),
    Name("torch", "x.isnan()", "hf.isnan(x)"),
    Name("torch", "x.isinf()", "hf.isinf(x)"),
    Name("torch", "x.isfinite()", "hf.isfinite(x)"),
    Name("torch", "x.logical_not()", "hf.logical_not(x)"),
    Name("numpy jax", "x.conjugate()", "hf.conj(x)"),
    Name("torch", "x.sigmoid()", "hf.nn.sigmoid(x)"),
    Name("torch", "x.relu()", "hf.nn.relu(x)"),
    Name("torch", "x.softmax(axis)", "hf.nn.softmax(x, axis=axis)"),
    Name("torch", "x.log_softmax(axis)", "hf.nn.log_softmax(x, axis=axis)"),
    # -- methods: reductions and running sums
    Name("torch", "x.amax(axis=None, keepdims=False)", "hf.max(x, axis=axis, keepdims=keepdims)"),
    Name("torch", "x.amin(axis=None, keepdims=False)", "hf.min(x, axis=axis, keepdims=keepdims)"),
    Name("numpy torch jax", "x.cumsum", "x.cumulative_sum"),
    Name("numpy torch jax", "x.cumprod", "x.cumulative_prod"),
    # -- models and optimizers
    Name("torch", "model.modules()", "iter(model.named_modules().values())"),
    Name("torch", "model.zero_grad()", "[one.zero_grad() for one in model.parameters()] and None"),
    Name("tensorflow", "opt.lr", "opt.rate"),
    Name("tensorflow", "opt.learning_rate", "opt.rate"),
    # -- namespaces
    Name("tensorflow", "hf.math", "hf"),
    Name("jax", "hf.numpy", "hf"),
)  # fmt: skip
"""The names that work, grouped by topic."""

_IMMUTABLE = "tensors are immutable; a Variable is assigned"
_NO_PLACE = "a model has no device of its own; a value has one, and the code says where it runs"
_DTYPE = "the dtype of a parameter is chosen when it is made"
_RATE = "a rate is a number, a Variable or a function of the step, and belongs to the optimizer"
_BATCHES = "it takes arrays, or any iterable of batches"
_PER_EXAMPLE = "losses are per example here, and the mean is yours"

HINTS = (
    Hint("torch numpy jax tensorflow", "hf.transpose", "hf.permute_dims(x, axes), hf.matrix_transpose(x) or x.T",
         "torch swaps two axes, the others reorder all of them"),
    Hint("torch numpy jax", "x.transpose", "x.permute_dims(axes), x.swapaxes(axis1, axis2), x.mT or x.T",
         "torch swaps two axes, NumPy reorders all of them"),
    Hint("torch numpy jax", "x.repeat", "hf.tile(x, repeats) or hf.repeat(x, repeats, axis=axis)",
         "torch repeats the whole tensor, NumPy every element"),
    Hint("torch", "x.split", "hf.split(x, sections_or_indices, axis)",
         "torch is given the size of a part, hf.split the number of parts or where they begin"),
    Hint("torch", "x.chunk", "hf.split(x, parts, axis)", "parts have one size here, torch's last one may be smaller"),
    Hint("torch", "hf.chunk", "hf.split(x, parts, axis)", "parts have one size here, torch's last one may be smaller"),
    Hint("torch tensorflow", "hf.gather", "hf.take_along_axis(x, indices, axis=axis) or hf.take(x, indices, axis)",
         "torch's is take_along_axis, TensorFlow's is take"),
    Hint("torch", "x.gather", "hf.take_along_axis(x, index, axis=dim)",
         "torch's index may be shorter along the other axes"),
    Hint("torch", "hf.scatter", "x.at[index].set(value)", "it is indexed like x[index]"),
    Hint("torch", "x.scatter", "x.at[index].set(value)", "it is indexed like x[index]"),
    Hint("torch", "x.scatter_add", "x.at[index].add(value)", "it is indexed like x[index]"),
    Hint("torch", "x.index_add", "x.at[index].add(value)", "it is indexed like x[index]"),
    Hint("torch", "hf.masked_select", "x[mask]", "its shape depends on values, so not in a compiled function"),
    Hint("torch", "x.masked_select", "x[mask]", "its shape depends on values, so not in a compiled function"),
    Hint("tensorflow", "hf.boolean_mask", "x[mask]", "its shape depends on values, so not in a compiled function"),
    Hint("torch numpy jax", "x.sort", "hf.sort(x, axis=axis) and hf.argsort(x, axis=axis)",
         "torch gives values and indices, NumPy sorts in place"),
    Hint("torch numpy jax", "x.nonzero", "hf.nonzero(x)", "torch gives a matrix, NumPy an array per axis"),
    Hint("torch numpy jax", "hf.unique", "hf.unique_values(x), hf.unique_counts(x), hf.unique_inverse(x)",
         "what comes back does not depend on options here"),
    Hint("torch", "x.unique", "hf.unique_values(x), hf.unique_counts(x), hf.unique_inverse(x)",
         "what comes back does not depend on options here"),
    Hint("torch numpy jax", "hf.dot", "x @ y, hf.vecdot(x, y) or hf.tensordot(x, y, axes=1)",
         "NumPy's sums over other axes than its matmul does, torch's takes vectors only"),
    Hint("torch numpy jax", "x.dot", "x @ y, hf.vecdot(x, y) or hf.tensordot(x, y, axes=1)",
         "NumPy's sums over other axes than its matmul does, torch's takes vectors only"),
    Hint("torch", "x.norm", "hf.linalg.vector_norm(x, axis=axis, ord=2) or hf.linalg.matrix_norm(x)",
         "which norm it is depends on torch's p and dim together"),
    Hint("torch tensorflow", "hf.norm", "hf.linalg.vector_norm(x, axis=axis, ord=2) or hf.linalg.matrix_norm(x)",
         "which norm it is depends on the options together"),
    Hint("torch numpy jax", "hf.diag", "hf.diagonal(x) or hf.embed_diagonal(x)",
         "it takes a diagonal of a matrix, and makes a matrix of a vector"),
    Hint("torch numpy jax", "hf.fmod", "x - y * hf.trunc(x / y), or hf.remainder(x, y)",
         "hf.remainder has the sign of the divisor, fmod that of the dividend"),
    Hint("numpy torch jax", "hf.hstack", "hf.concat(arrays, axis=1)", "of vectors it joins along axis 0"),
    Hint("numpy torch jax", "hf.vstack", "hf.concat(arrays, axis=0)", "of vectors it makes rows"),
    Hint("numpy torch jax", "hf.allclose", "bool(hf.all(hf.isclose(x, y)))", "its truth value is read"),
    Hint("torch", "hf.from_numpy", "hf.asarray(array)", "the array is copied: later writes to it are not seen"),
    Hint("tensorflow numpy jax", "hf.shape", "x.shape", "TensorFlow gives a tensor, here it is a tuple"),
    Hint("tensorflow", "hf.rank", "x.ndim", "TensorFlow gives a tensor, here it is a number"),
    Hint("tensorflow", "hf.identity", "x", "tensors are immutable, so no copy is needed"),
    Hint("tensorflow", "hf.one_hot", "hf.nn.one_hot(ids, classes)", "on_value= and off_value= are not taken"),
    Hint("tensorflow", "hf.map_fn", "hf.vmap(fn)(x), or hf.scan", "the function sees all elements at once"),
    Hint("tensorflow", "hf.function", "hf.compile", "its options are others"),
    Hint("jax", "hf.jit", "hf.compile", "its options are others, and the function need not be pure"),
    Hint("jax", "hf.lax", "hf.cond, hf.while_loop, hf.scan and the functions of hf", "there is one level of functions"),
    Hint("jax", "hf.device_put", "x.to(device)", "it is a method"),
    Hint("jax", "x.block_until_ready", "hf.synchronize()", "it waits for all pending work"),
    Hint("jax", "hf.random.PRNGKey", "hf.random.seed(n) or hf.random.Generator(n)",
         "random numbers are stateful, and the same eager and compiled"),
    Hint("jax", "hf.random.key", "hf.random.seed(n) or hf.random.Generator(n)",
         "random numbers are stateful, and the same eager and compiled"),
    Hint("numpy", "hf.random.default_rng", "hf.random.Generator(seed)", "it draws other numbers"),
    Hint("torch", "hf.multinomial", "hf.random.categorical(logits) or hf.random.choice", "it takes log-probabilities"),
    Hint("torch", "hf.autograd", "hf.GradientTape, hf.grad or x.backward()", "hf.grad takes a function"),
    Hint("torch", "hf.inference_mode", "hf.no_grad()", "there is one such mode"),
    Hint("torch", "hf.set_grad_enabled", "hf.no_grad() and hf.enable_grad()", "they are contexts"),
    Hint("torch", "hf.cuda", "hf.device('gpu') and x.to('gpu')", "jax knows the devices"),
    Hint("torch", "x.data", "x.detach()", "a value is not changed behind the back of its gradient"),
    Hint("torch", "x.is_cuda", "x.device", "it is 'cpu' or such as 'gpu:0'"),
    Hint("torch", "x.get_device", "x.device", "it is 'cpu' or such as 'gpu:0'"),
    Hint("torch", "x.type", "x.astype(dtype) or x.dtype", "dtypes are no strings such as 'torch.FloatTensor'"),
    Hint("torch", "x.add_", "x = x + y, or v.assign_add(y)", _IMMUTABLE),
    Hint("torch", "x.sub_", "x = x - y, or v.assign_sub(y)", _IMMUTABLE),
    Hint("torch", "x.mul_", "x = x * y, or v.assign(v * y)", _IMMUTABLE),
    Hint("torch", "x.div_", "x = x / y, or v.assign(v / y)", _IMMUTABLE),
    Hint("torch", "x.copy_", "v.assign(value)", _IMMUTABLE),
    Hint("torch", "x.fill_", "hf.full_like(x, value), or v.assign", _IMMUTABLE),
    Hint("torch", "x.clamp_", "x = x.clip(low, high), or v.assign", _IMMUTABLE),
    Hint("torch", "x.masked_fill_", "x = hf.where(mask, value, x)", _IMMUTABLE),
    Hint("torch", "x.normal_", "hf.random.normal(x.shape, mean=mean, std=std), or v.assign", _IMMUTABLE),
    Hint("torch", "x.uniform_", "hf.random.uniform(x.shape, low=low, high=high), or v.assign", _IMMUTABLE),
    Hint("torch", "hf.nn.cross_entropy", "hf.mean(hf.nn.softmax_cross_entropy(logits, labels))",
         f"classes are the last axis; {_PER_EXAMPLE}"),
    Hint("torch", "hf.nn.binary_cross_entropy_with_logits", "hf.mean(hf.nn.sigmoid_cross_entropy(logits, labels))",
         _PER_EXAMPLE),
    Hint("torch", "hf.nn.binary_cross_entropy", "hf.mean(hf.nn.sigmoid_cross_entropy(logits, labels))",
         f"it takes what comes before the sigmoid; {_PER_EXAMPLE}"),
    Hint("torch", "hf.nn.mse_loss", "hf.mean(hf.nn.mse(prediction, target))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.l1_loss", "hf.mean(hf.nn.mae(prediction, target))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.huber_loss", "hf.mean(hf.nn.huber(prediction, target, delta))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.smooth_l1_loss", "hf.mean(hf.nn.huber(prediction, target, beta)) / beta", _PER_EXAMPLE),
    Hint("torch", "hf.nn.nll_loss", "hf.mean(hf.nn.nll(log_probabilities, labels))", _PER_EXAMPLE),
    Hint("tensorflow", "hf.nn.sparse_softmax_cross_entropy_with_logits",
         "hf.nn.softmax_cross_entropy(logits, labels)", "the logits come first"),
    Hint("tensorflow", "hf.nn.softmax_cross_entropy_with_logits", "hf.nn.softmax_cross_entropy(logits, labels)",
         "the logits come first"),
    Hint("tensorflow", "hf.nn.sigmoid_cross_entropy_with_logits", "hf.nn.sigmoid_cross_entropy(logits, labels)",
         "the logits come first"),
    Hint("torch", "hf.nn.conv1d", "hf.nn.conv(x, kernel, ...) + bias[:, None]", "a bias is added by hand"),
    Hint("torch tensorflow", "hf.nn.conv2d", "hf.nn.conv(x, kernel, ...) + bias[:, None, None]",
         "a bias is added by hand; channels come first"),
    Hint("torch", "hf.nn.conv3d", "hf.nn.conv(x, kernel, ...) + bias[:, None, None, None]", "a bias is added by hand"),
    Hint("torch", "hf.nn.max_pool2d", "hf.nn.max_pool(x, (2, 2), stride)", "the window says how many axes there are"),
    Hint("torch", "hf.nn.avg_pool2d", "hf.nn.avg_pool(x, (2, 2), stride)", "the window says how many axes there are"),
    Hint("torch", "hf.nn.normalize", "hf.nn.l2_normalize(x, axis=axis)", "torch's default axis is 1, here it is -1"),
    Hint("torch", "hf.nn.pad", "hf.pad(x, pad_width)", "torch counts the axes from the last, hf.pad from the first"),
    Hint("torch", "hf.nn.Parameter", "hf.Variable(value, requires_grad=True)",
         "a module's parameters are its Variables"),
    Hint("torch", "hf.nn.CrossEntropyLoss", "hf.mean(hf.nn.softmax_cross_entropy(logits, labels))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.MSELoss", "hf.mean(hf.nn.mse(prediction, target))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.L1Loss", "hf.mean(hf.nn.mae(prediction, target))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.SmoothL1Loss", "hf.mean(hf.nn.huber(prediction, target, beta)) / beta", _PER_EXAMPLE),
    Hint("torch", "hf.nn.HuberLoss", "hf.mean(hf.nn.huber(prediction, target, delta))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.NLLLoss", "hf.mean(hf.nn.nll(log_probabilities, labels))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.BCEWithLogitsLoss", "hf.mean(hf.nn.sigmoid_cross_entropy(logits, labels))", _PER_EXAMPLE),
    Hint("torch", "hf.nn.BCELoss", "hf.mean(hf.nn.sigmoid_cross_entropy(logits, labels))",
         f"it takes what comes before the sigmoid; {_PER_EXAMPLE}"),
    Hint("torch", "hf.nn.KLDivLoss", "hf.mean(hf.nn.kl_div(target, log_prediction))",
         f"the target comes first; {_PER_EXAMPLE}"),
    Hint("torch", "hf.nn.ParameterList", "a list of Variables", "lists and dicts are parts of a model as they are"),
    Hint("torch", "hf.nn.ParameterDict", "a dict of Variables", "lists and dicts are parts of a model as they are"),
    Hint("torch", "hf.nn.utils", "hf.clip_by_global_norm(gradients, norm), or clip= of an optimizer",
         "gradients are values, so they are not clipped in place"),
    Hint("torch", "hf.utils", "hf.data.Batches((x, y), size, shuffle=True)", _BATCHES),
    Hint("torch", "hf.data.DataLoader", "hf.data.Batches((x, y), size, shuffle=True)", _BATCHES),
    Hint("torch", "hf.data.TensorDataset", "hf.data.Batches((x, y), size)", _BATCHES),
    Hint("torch", "hf.data.Dataset", "hf.data.Batches((x, y), size), or any iterable of batches",
         "no class is needed; .map(fn) changes batches"),
    Hint("torch", "hf.optim.lr_scheduler",
         "a schedule as the rate: hf.optim.SGD(model, rate=hf.optim.cosine(0.1, steps)), or linear, exponential, step, "
         "piecewise, one_cycle, warmup_cosine", f"{_RATE}, so no call advances it"),
    Hint("torch", "opt.param_groups", "opt.rate, and groups= of the optimizer", _RATE),
    Hint("torch", "opt.add_param_group", "groups= of the optimizer, or a second optimizer",
         "an optimizer keeps the parameters that it was made with"),
    Hint("torch", "opt.state", "opt.named_variables() or opt.state_dict()", "its state is Variables by name"),
    Hint("torch", "model.to", "with hf.device(name): around the code", _NO_PLACE),
    Hint("torch", "model.cuda", "with hf.device('gpu'): around the code", _NO_PLACE),
    Hint("torch", "model.cpu", "with hf.device('cpu'): around the code", _NO_PLACE),
    Hint("torch", "model.half", "hf.autocast('float16'), or dtype= of the layers", _DTYPE),
    Hint("torch", "model.bfloat16", "hf.autocast('bfloat16'), or dtype= of the layers", _DTYPE),
    Hint("torch", "model.float", "dtype='float32' of the layers", _DTYPE),
    Hint("torch", "model.double", "dtype='float64' of the layers", _DTYPE),
    Hint("torch", "model.children", "model.named_modules()", "it has the modules at all depths, by path"),
    Hint("torch", "model.named_children", "model.named_modules()", "it has the modules at all depths, by path"),
    Hint("torch", "model.apply", "for one in model.modules(): fn(one)", "hf.nn.init has the initial values of layers"),
    Hint("torch", "model.add_module", "setattr(model, name, module)", "attributes are the modules of a model"),
    Hint("torch", "model.register_parameter", "setattr(model, name, hf.Variable(value))",
         "attributes are the parameters of a model"),
    Hint("torch", "model.requires_grad_", "model.freeze() or model.unfreeze()", "they take a pattern of paths too"),
)  # fmt: skip
"""The names that raise an error which says what to write instead."""

_PAIR = "torch gives values and indices then: use axis= for the values, hf.{} for the indices."
_UNBIASED = "torch divides by n - 1 then: add correction=1 for that, correction=0 to divide by n."
_OF_A_DIM = {
    "max": _PAIR.format("argmax"), "min": _PAIR.format("argmin"), "median": _PAIR.format("argsort"),
    "sort": _PAIR.format("argsort"), "std": _UNBIASED, "var": _UNBIASED,
}  # fmt: skip

_COUPLED: Mapping[str, str] = dict.fromkeys(
    ["SGD", "Adam", "RMSprop", "Adagrad", "Adadelta"],
    "torch adds weight_decay * parameter to the gradient then: decay= is decoupled, and shrinks the parameter by "
    "rate * decay.",
)

KEYWORDS = (
    Keyword("torch", "dim", ("axis", "axes"), "This function has no axis to choose.", _OF_A_DIM, "correction"),
    Keyword("torch", "dims", ("axis", "axes"), "This function has no axis to choose."),
    Keyword("numpy", "axes", ("axis",), "This function has no axis to choose."),
    Keyword("tensorflow", "axis", ("axes",), "This function has no axis to choose."),
    Keyword("torch", "keepdim", ("keepdims",), "Use hf.expand_dims on the result.", _OF_A_DIM, "correction"),
    Keyword("numpy", "keepdims", (), "Use hf.expand_dims on the result."),
    Keyword("numpy", "ddof", ("correction",), "It belongs to hf.var and hf.std."),
    Keyword("torch", "unbiased", (), "Use correction=1 for unbiased=True, correction=0 for False."),
    Keyword("torch", "diagonal", ("k", "offset"), "This function has no diagonal to choose."),
    Keyword("numpy torch", "out", (), "Tensors are immutable: use what the function returns."),
    Keyword("numpy", "where", (), "Put a neutral value there first: hf.where(mask, x, 0)."),
    Keyword("numpy", "initial", (), "Combine the result with it."),
    Keyword("numpy torch", "dtype", (), "Cast the tensor first: x.astype(dtype)."),
    Keyword("tensorflow", "name", (), "Use `with hf.name_scope(name):` around the call."),
    Keyword("numpy", "kind", (), "hf.sort and hf.argsort are always stable."),
    Keyword("torch", "inplace", (), "Tensors are immutable: use what the function returns.", usual=(False,)),
    Keyword("torch", "p", ("rate",), "Norms take ord=."),
    Keyword("torch", "eps", ("epsilon",), "This function adds no epsilon."),
    Keyword("torch", "attn_mask", ("mask",), "This function takes no mask."),
    Keyword("torch", "dropout_p", ("dropout",), "Apply hf.nn.dropout to the result."),
    Keyword("torch", "device", (), "Use `with hf.device(name):` around it."),
    Keyword("torch", "kernel_size", ("window",), ""),
    Keyword("torch", "affine", ("scale",), ""),
    Keyword("torch", "elementwise_affine", ("scale",), ""),
    Keyword("torch", "num_features", ("size",), ""),
    Keyword("torch", "num_channels", ("size",), ""),
    Keyword("torch", "normalized_shape", ("size",), ""),
    Keyword("torch", "num_groups", ("groups",), ""),
    Keyword("torch", "num_embeddings", ("count",), ""),
    Keyword("torch", "embedding_dim", ("width",), ""),
    Keyword("torch", "embed_dim", ("width",), ""),
    Keyword("torch", "num_heads", ("heads",), ""),
    Keyword("torch", "num_layers", ("layers",), ""),
    Keyword("torch", "nonlinearity", ("activation",), ""),
    Keyword("torch", "batch_first", (), "The batch is always the first axis.", usual=(True,)),
    Keyword("torch", "output_size", ("size",), ""),
    Keyword("torch", "scale_factor", ("scale",), ""),
    Keyword("torch", "start_dim", ("start",), ""),
    Keyword("torch", "negative_slope", ("slope",), ""),
    Keyword("torch", "params", ("target",), ""),
    Keyword("torch", "lr", ("rate",), ""),
    Keyword("tensorflow", "learning_rate", ("rate",), ""),
    Keyword("torch", "weight_decay", ("decay",), "", _COUPLED, usual=(0,)),
    Keyword("torch", "amsgrad", (), "There is no such variant here.", usual=(False,)),
    Keyword("torch", "maximize", (), "Negate the loss.", usual=(False,)),
    Keyword("torch", "dampening", (), "The new gradient enters the velocity whole.", usual=(0,)),
    Keyword("torch", "ceil_mode", (), "Windows that do not fit are left out; pad the input for more.", usual=(False,)),
    Keyword("torch", "padding_mode", (), "Use hf.pad(x, pad_width, mode=...) before the layer.", usual=("zeros",)),
    Keyword("torch", "track_running_stats", (), "The averages are always kept.", usual=(True,)),
    Keyword("torch", "max_iter", ("iterations",), ""),
    Keyword("torch", "max_eval", ("evaluations",), ""),
    Keyword("torch", "tolerance_grad", ("tolerance",), ""),
    Keyword("torch", "tolerance_change", ("least_change",), ""),
    Keyword("torch", "history_size", ("history",), ""),
    Keyword("torch", "line_search_fn", ("line_search",), ""),
    Keyword("torch", "foreach", (), "It says how torch computes, not what.", usual=(True, False)),
    Keyword("torch", "fused", (), "It says how torch computes, not what.", usual=(True, False)),
    Keyword("torch", "reduction", (), f"Leave it out and use hf.mean or hf.sum: {_PER_EXAMPLE}.", usual=("none",)),
)  # fmt: skip
"""The keywords of functions with options, layers and optimizers. An argument of None counts as not given."""

SIZES = (
    Sizes("torch", "Linear", ("in_features", "out_features")),
    Sizes("torch", "Conv", ("in_channels", "out_channels", "kernel_size")),
    Sizes("torch", "RNN LSTM GRU", ("input_size", "hidden_size")),
)
"""The sizes that layers take by position."""

DIFFERENT = (
    Different("torch", "hf.max(x, axis), hf.min, hf.median, hf.sort",
              "gives values and indices along a dim", "gives the values; hf.argmax, hf.argmin, hf.argsort the indices"),
    Different("torch", "hf.std, hf.var", "divides by n - 1", "divides by n, as NumPy does; correction=1 is torch's"),
    Different("torch", "hf.split", "takes the size of a part", "takes the number of parts, or where they begin"),
    Different("torch", "hf.equal", "gives one Python bool", "compares elementwise"),
    Different("torch", "x.size", "is a method that gives the shape", "is the number of elements; the shape is x.shape"),
    Different("numpy jax", "hf.cumsum, hf.cumprod", "flattens without an axis", "asks for the axis"),
    Different("numpy jax", "hf.round", "takes decimals", "rounds to whole numbers"),
    Different("torch tensorflow", "hf.device", "is an object", "is a context; x.device is a string"),
    Different("torch", "hf.random.normal", "is given mean, std and size",
              "is given the shape first, then dtype=, mean= and std="),
    Different("torch", "model.named_parameters(), named_buffers(), named_modules()", "gives pairs of a path and a "
              "value", "gives a dict by path: loop over .items() for pairs"),
    Different("torch", "hf.nn.AvgPool2d(window, padding=n)", "counts the zeros of the padding", "ignores the padding"),
    Different("torch", "hf.nn.kl_div", "is given log-probabilities, then the target, and is averaged",
              "is given the target, then log-probabilities, and is per example"),
    Different("torch", "hf.nn.layer_norm", "is given the shape that is normalized", "is given axis=, -1 by default"),
    Different("torch", "hf.nn.one_hot", "gives int64", "gives float32; dtype= chooses"),
    Different("torch numpy", "hf.arange, hf.asarray of Python numbers", "gives int64 (and float64 in NumPy)",
              "gives int32 and float32"),
    Different("numpy", "hf.sum of int8 to int32", "sums in int64", "sums in int32"),
    Different("tensorflow", "hf.argmax", "reduces axis 0 by default", "reduces all axes by default"),
)  # fmt: skip
"""The names that mean something different here."""
