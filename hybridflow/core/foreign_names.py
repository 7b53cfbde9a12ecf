"""The names that PyTorch, NumPy, TensorFlow and JAX use, as one table of data.

`hf` stands for the package in question, `hf.nn` for its neural network functions and layers (``torch.nn.functional``,
``torch.nn``, ``tf.nn``, ``jax.nn``), `x` for a tensor, `model` for a module, `opt` for an optimizer.
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
    Name("torch", "hf.randn(*sizes, dtype=hf.float32, device=None)",
         "hf.random.normal(sizes, dtype=dtype, device=device)"),
    Name("torch", "hf.rand(*sizes, dtype=hf.float32, device=None)",
         "hf.random.uniform(sizes, dtype=dtype, device=device)"),
    Name("torch", "hf.randn_like(x)", "hf.random.normal(x.shape, dtype=x.dtype)"),
    Name("torch", "hf.rand_like(x)", "hf.random.uniform(x.shape, dtype=x.dtype)"),
    Name("torch", "hf.randint(low, high, size, device=None)", "hf.random.integers(low, high, size, device=device)"),
    Name("torch", "hf.randperm(n, device=None)", "hf.random.permutation(n, device=device)"),
    Name("torch", "hf.manual_seed", "hf.random.seed"),
    Name("tensorflow", "hf.random.set_seed", "hf.random.seed"),
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
    Name("torch", "hf.nn.cross_entropy(input, target, weight=None, ignore_index=-100, reduction='mean', "
         "label_smoothing=0.0)",
         "reduced[reduction](*of_classes(hf.nn.softmax_cross_entropy, input, target, weight, ignore_index, "
         "label_smoothing=label_smoothing))"),
    Name("torch", "hf.nn.nll_loss(input, target, weight=None, ignore_index=-100, reduction='mean')",
         "reduced[reduction](*of_classes(hf.nn.nll, input, target, weight, ignore_index))"),
    Name("torch", "hf.nn.binary_cross_entropy_with_logits(input, target, weight=None, reduction='mean', "
         "pos_weight=None)",
         "reduced[reduction](times(hf.nn.sigmoid_cross_entropy(input, target, pos_weight=pos_weight), weight))"),
    Name("torch", "hf.nn.mse_loss(input, target, reduction='mean', weight=None)",
         "reduced[reduction](times(hf.nn.mse(input, target), weight), weight)"),
    Name("torch", "hf.nn.l1_loss(input, target, reduction='mean', weight=None)",
         "reduced[reduction](times(hf.nn.mae(input, target), weight), weight)"),
    Name("torch", "hf.nn.huber_loss(input, target, reduction='mean', delta=1.0, weight=None)",
         "reduced[reduction](times(hf.nn.huber(input, target, delta), weight))"),
    Name("torch", "hf.nn.smooth_l1_loss(input, target, reduction='mean', beta=1.0)",
         "reduced[reduction](hf.nn.huber(input, target, beta) / beta)"),
    Name("torch", "hf.nn.CrossEntropyLoss(weight=None, ignore_index=-100, reduction='mean', label_smoothing=0.0)",
         "partial(hf.nn.cross_entropy, weight=weight, ignore_index=ignore_index, reduction=reduction, "
         "label_smoothing=label_smoothing)"),
    Name("torch", "hf.nn.NLLLoss(weight=None, ignore_index=-100, reduction='mean')",
         "partial(hf.nn.nll_loss, weight=weight, ignore_index=ignore_index, reduction=reduction)"),
    Name("torch", "hf.nn.BCEWithLogitsLoss(weight=None, reduction='mean', pos_weight=None)",
         "partial(hf.nn.binary_cross_entropy_with_logits, weight=weight, reduction=reduction, pos_weight=pos_weight)"),
    Name("torch", "hf.nn.MSELoss(reduction='mean')", "partial(hf.nn.mse_loss, reduction=reduction)"),
    Name("torch", "hf.nn.L1Loss(reduction='mean')", "partial(hf.nn.l1_loss, reduction=reduction)"),
    Name("torch", "hf.nn.HuberLoss(reduction='mean', delta=1.0)",
         "partial(hf.nn.huber_loss, reduction=reduction, delta=delta)"),
    Name("torch", "hf.nn.SmoothL1Loss(reduction='mean', beta=1.0)",
         "partial(hf.nn.smooth_l1_loss, reduction=reduction, beta=beta)"),
    Name("torch", "hf.nn.ModuleList", "list"),
    Name("torch", "hf.nn.ModuleDict", "dict"),
    Name("torch", "hf.nn.init.zeros_(tensor)", "tensor.assign(hf.zeros_like(tensor))"),
    Name("torch", "hf.nn.init.ones_(tensor)", "tensor.assign(hf.ones_like(tensor))"),
    Name("torch", "hf.nn.init.constant_(tensor, val)", "tensor.assign(hf.full_like(tensor, val))"),
    Name("torch", "hf.nn.init.normal_(tensor, mean=0.0, std=1.0)",
         "tensor.assign(hf.nn.init.normal(mean, std)(tensor.shape, tensor.dtype))"),
    Name("torch", "hf.nn.init.uniform_(tensor, a=0.0, b=1.0)",
         "tensor.assign(hf.nn.init.uniform(a, b)(tensor.shape, tensor.dtype))"),
    Name("torch", "hf.nn.init.xavier_uniform_(tensor, gain=1.0)",
         "tensor.assign(hf.nn.init.xavier_uniform(gain)(tensor.shape, tensor.dtype))"),
    Name("torch", "hf.nn.init.xavier_normal_(tensor, gain=1.0)",
         "tensor.assign(hf.nn.init.xavier_normal(gain)(tensor.shape, tensor.dtype))"),
    Name("torch", "hf.nn.init.orthogonal_(tensor, gain=1.0)",
         "tensor.assign(hf.nn.init.orthogonal(gain)(tensor.shape, tensor.dtype))"),
    # -- linear algebra
    Name("torch", "hf.inverse", "hf.linalg.inv"),
    Name("numpy jax", "hf.cross", "hf.linalg.cross"),
    Name("torch tensorflow", "hf.lgamma", "hf.special.gammaln"),
    Name("torch tensorflow", "hf.igamma", "hf.special.gammainc"),
    Name("torch tensorflow", "hf.igammac", "hf.special.gammaincc"),
    Name("torch", "hf.mvlgamma(x, p)", "hf.special.multigammaln(x, p)"),
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
    Name("numpy", "x.tobytes()", "bytes(x)"),
    # -- methods: reductions and running sums
    Name("torch", "x.amax(axis=None, keepdims=False)", "hf.max(x, axis=axis, keepdims=keepdims)"),
    Name("torch", "x.amin(axis=None, keepdims=False)", "hf.min(x, axis=axis, keepdims=keepdims)"),
    Name("numpy torch jax", "x.cumsum", "x.cumulative_sum"),
    Name("numpy torch jax", "x.cumprod", "x.cumulative_prod"),
    # -- models and optimizers
    Name("torch", "model.modules()", "iter(model.named_modules().values())"),
    Name("torch", "model.zero_grad()", "[one.zero_grad() for one in model.parameters()] and None"),
    Name("tensorflow", "model.trainable_variables", "[one for one in model.parameters() if one.trainable]"),
    Name("tensorflow", "model.count_params()", "sum([one.size for one in model.parameters()])"),
    Name("tensorflow", "opt.lr", "opt.rate"),
    Name("tensorflow", "opt.learning_rate", "opt.rate"),
    # -- namespaces
    Name("tensorflow", "hf.math", "hf"),
    Name("jax", "hf.numpy", "hf"),
)
"""The names that work, grouped by topic."""

PER_EXAMPLE = "losses are per example here, and the mean is yours"

_PAIR = "torch gives values and indices then: use axis= for the values, hf.{} for the indices."
_UNBIASED = "torch divides by n - 1 then: add correction=1 for that, correction=0 to divide by n."
_OF_A_DIM = {
    "max": _PAIR.format("argmax"), "min": _PAIR.format("argmin"), "median": _PAIR.format("argsort"),
    "sort": _PAIR.format("argsort"), "std": _UNBIASED, "var": _UNBIASED,
}
_OF_A_PART = "torch is given the size of a part: give axis=, and the number of parts or where they begin."

_COUPLED: Mapping[str, str] = dict.fromkeys(
    ["SGD", "Adam", "RMSprop", "Adagrad", "Adadelta"],
    "torch adds weight_decay * parameter to the gradient then: decay= is decoupled, and shrinks the parameter by "
    "rate * decay. hf.optim.Optax(model, optax.chain(optax.add_decayed_weights(weight_decay), rule)) does as torch.",
)

KEYWORDS = (
    Keyword("torch", "dim", ("axis", "axes"), "This function has no axis to choose.",
            {**_OF_A_DIM, "split": _OF_A_PART}, "correction"),
    Keyword("torch", "dims", ("axis", "axes"), "This function has no axis to choose."),
    Keyword("numpy", "axes", ("axis",), "This function has no axis to choose."),
    Keyword("tensorflow", "axis", ("axes",), "This function has no axis to choose."),
    Keyword("torch", "keepdim", ("keepdims",), "Use hf.expand_dims on the result.", _OF_A_DIM, "correction"),
    Keyword("numpy", "keepdims", (), "Use hf.expand_dims on the result."),
    Keyword("numpy", "ddof", ("correction",), "It belongs to hf.var and hf.std."),
    Keyword("torch", "unbiased", (), "Use correction=1 for unbiased=True, correction=0 for False."),
    Keyword("torch", "diagonal", ("k", "offset"), "This function has no diagonal to choose."),
    Keyword("tensorflow", "verbose", (), "Use progress=False of hf.train.fit to show nothing.", usual=(1, "auto")),
    Keyword("tensorflow", "activation", (),
            "Call it on the result, or make it the next layer: Sequential(layer, hf.nn.relu)."),
    Keyword("numpy torch", "out", (), "Tensors are immutable: use what the function returns."),
    Keyword("numpy", "where", (), "Put a neutral value there first: hf.where(mask, x, 0)."),
    Keyword("numpy", "initial", (), "Combine the result with it."),
    Keyword("numpy torch", "dtype", (), "Cast the tensor first: x.astype(dtype)."),
    Keyword("tensorflow", "name", (), "Use `with hf.name_scope(name):` around the call."),
    Keyword("numpy", "kind", (), "hf.sort and hf.argsort are always stable."),
    Keyword("torch", "requires_grad", (), "Write hf.tensor(value, requires_grad=True), or x.requires_grad_() after.",
            usual=(False,)),
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
    Keyword("torch", "padding_idx", ("padding_id",), ""),
    Keyword("torch", "embedding_dim", ("width",), ""),
    Keyword("torch", "embed_dim", ("width",), ""),
    Keyword("torch", "num_heads", ("heads",), ""),
    Keyword("torch", "num_layers", ("layers",), ""),
    Keyword("torch", "nonlinearity", ("activation",), ""),
    Keyword("torch", "attn_mask", (), "Write mask=: floats are added, as in torch; a bool mask is True where a "
            "query may attend, the opposite of torch's."),
    Keyword("torch", "key_padding_mask", (), "Write lengths=, the number of keys that count in each row; or mask=, "
            "True where a query may attend, the opposite of torch's."),
    Keyword("torch", "need_weights", (), "The result is the values alone, as with need_weights=False in torch.",
            usual=(False,)),
    Keyword("torch", "batch_first", (), "The batch is always the first axis.", usual=(True,)),
    Keyword("torch", "output_size", ("size",), ""),
    Keyword("torch", "scale_factor", ("scale",), ""),
    Keyword("torch", "start_dim", ("start",), ""),
    Keyword("torch", "negative_slope", ("slope",), ""),
    Keyword("torch", "params", ("target",), ""),
    Keyword("torch", "lr", ("rate",), ""),
    Keyword("tensorflow", "learning_rate", ("rate",), ""),
    Keyword("torch", "weight_decay", ("decay",), "", _COUPLED, usual=(0,)),
    Keyword("torch", "amsgrad", (),
            "hf.optim.Optax(model, optax.amsgrad(rate)) takes the largest of the corrected moments.", usual=(False,)),
    Keyword("torch", "maximize", (), "Negate the loss.", usual=(False,)),
    Keyword("torch", "dampening", (), "The new gradient enters the velocity whole.", usual=(0,)),
    Keyword("torch", "decoupled_weight_decay", (), "decay= is decoupled: leave it out.", usual=(True,)),
    Keyword("torch", "initial_accumulator_value", (), "The sum of squares begins at 0.", usual=(0,)),
    Keyword("torch", "d", ("threshold",), ""),
    Keyword("torch", "ns_steps", ("rounds",), ""),
    Keyword("torch", "ns_coefficients", ("coefficients",), ""),
    Keyword("torch", "lr_decay", (), "Use a schedule: rate=lambda step: rate / (1 + step * decay).", usual=(0,)),
    Keyword("torch", "capturable", (), "It says how torch computes, not what.", usual=(True, False)),
    Keyword("torch", "differentiable", (), "No gradient passes an assignment: write updates of tensors as functions.",
            usual=(False,)),
    Keyword("torch", "weight", ("class_weight",), "Multiply the losses by it.", usual=(None,)),
    Keyword("torch", "pos_weight", (), "It belongs to hf.nn.sigmoid_cross_entropy.", usual=(None,)),
    Keyword("torch", "ignore_index", ("ignored_id",), "It belongs to losses of integer labels.", usual=(-100,)),
    Keyword("tensorflow", "ignore_class", ("ignored_id",), "It belongs to losses of integer labels.", usual=(None,)),
    Keyword("tensorflow", "from_logits", (), "hf.nn's cross-entropies take logits: leave it out.", usual=(True,)),
    Keyword("tensorflow", "sample_weight", (), "Multiply the losses by it: they are per example."),
    Keyword("torch", "log_target", (), "Give hf.exp(target).", usual=(False,)),
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
    Keyword("torch", "create_graph", (),
            "Gradients that are differentiated again come from hf.grad or a tape: with hf.GradientTape() as tape: ...",
            usual=(False,)),
    Keyword("torch", "use_reentrant", (), "It says how torch computes, not what.", usual=(True, False)),
    Keyword("torch", "preserve_rng_state", (), "Draws are always those of the first run: leave it out.", usual=(True,)),
    Keyword("torch", "non_blocking", (), "It changes no result: leave it out.", usual=(True, False)),
    Keyword("torch", "recurse", (), "Choose by path: model.named_parameters().", usual=(True,)),
    Keyword("torch", "keep_vars", (), "Parameters are in model.named_parameters().", usual=(False,)),
    Keyword("torch", "assign", (), "Values are assigned to the parameters there are.", usual=(False,)),
    Keyword("torch", "device_type", (), "The block holds on every device: hf.autocast('float16')."),
    Keyword("torch", "mode", (), "", {"compile": "XLA has one mode: leave it out."},
            usual=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")),
    Keyword("torch", "fullgraph", (), "A compiled function is one graph or an error: leave it out.", usual=(True,)),
    Keyword("torch jax", "backend", (), "XLA compiles; `with hf.device(name):` says where a call runs."),
    Keyword("tensorflow", "jit_compile", (), "XLA compiles every graph: leave it out.", usual=(True,)),
    Keyword("tensorflow", "reduce_retracing", ("dynamic",), ""),
    Keyword("jax", "static_argnums", (), "Name the parameters: static_argnames=('n',)."),
    Keyword("jax", "donate_argnums", (), "State that is updated in place is a Variable: v.assign(...)."),
    Keyword("jax", "donate_argnames", (), "State that is updated in place is a Variable: v.assign(...)."),
    Keyword("torch", "in_dims", ("in_axes",), ""),
    Keyword("torch", "out_dims", ("out_axes",), ""),
    Keyword("tensorflow", "validation_data", ("validation",), ""),
    Keyword("tensorflow", "validation_split", (), "Split the arrays, and pass validation=(x, y)."),
    Keyword("tensorflow torch", "batch_size", ("size",), ""),
    Keyword("torch", "num_workers", ("workers",), "", usual=(0,)),
    Keyword("torch", "collate_fn", (), "Arrays are stacked; pad=0 fills them up, and .map(fn) changes a batch."),
    Keyword("torch", "pin_memory", (), "It changes no result: leave it out.", usual=(True, False)),
    Keyword("torch", "sampler", (), "Use shuffle=True, or a sequence in the order that you want."),
    Keyword("jax", "keep_unused", (), "It changes no result: leave it out.", usual=(True, False)),
    Keyword("jax", "inline", (), "It changes no result: leave it out.", usual=(True, False)),
    Keyword("jax", "in_shardings", (), "Use mesh= with batch= or in_layouts=, which is by parameter name."),
    Keyword("jax", "out_shardings", (), "Use mesh= with out_layouts=."),
    Keyword("torch", "reduction", (), f"Leave it out and use hf.mean or hf.sum: {PER_EXAMPLE}.", usual=("none",)),
)
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
    Different("torch tensorflow", "hf.device", "is an object", "is a context and an object; x.device is a string"),
    Different("torch", "hf.random.normal", "is given mean, std and size",
              "is given the shape first, then dtype=, mean= and std="),
    Different("torch", "model.named_parameters(), named_buffers(), named_modules()", "gives pairs of a path and a "
              "value", "gives a dict by path: loop over .items() for pairs"),
    Different("torch tensorflow", "tape.gradient(loss, model), hf.grad",
              "is given a list of parameters, and gives a list",
              "gives a model of gradients for a model: zip(model.parameters(), gradients.parameters())"),
    Different("torch", "hf.nn.AvgPool2d(window, padding=n)", "counts the zeros of the padding", "ignores the padding"),
    Different("torch", "hf.nn.kl_div", "is given log-probabilities, then the target, and is averaged",
              "is given the target, then log-probabilities, and is per example"),
    Different("torch", "hf.nn.layer_norm", "is given the shape that is normalized", "is given axis=, -1 by default"),
    Different("torch", "hf.nn.RNN, hf.nn.LSTM, hf.nn.GRU", "is given time first, (time, batch, features), unless "
              "batch_first=True", "is given (batch, time, features), and lengths= for pack_padded_sequence"),
    Different("torch", "hf.nn.MultiHeadAttention", "gives values and weights; a bool mask is True where a query "
              "may not attend", "gives the values; a bool mask= is True where a query may attend"),
    Different("torch", "hf.nn.one_hot", "gives int64", "gives float32; dtype= chooses"),
    Different("torch numpy", "hf.arange, hf.asarray of Python numbers", "gives int64 (and float64 in NumPy)",
              "gives int32 and float32"),
    Different("numpy", "hf.sum of int8 to int32", "sums in int64", "sums in int32"),
    Different("tensorflow", "hf.argmax", "reduces axis 0 by default", "reduces all axes by default"),
)
"""The names that mean something different here."""
