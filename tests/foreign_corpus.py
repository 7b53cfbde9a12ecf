"""Expressions in the words of PyTorch and NumPy: what people type who come from there.

`x`, `y` are float32 (2, 3), `m` is bool (2, 3), `i` integer [2, 0], `w` float32 (4, 3), `b` float32 (4,), `s` a regular
float32 (2, 2), `v` float32 (3,), `n` and `k` int32 (2, 3).
"""

TORCH = """
torch.cat([x, y], dim=1)
torch.cat([x, y])
torch.concatenate([x, y], dim=0)
torch.stack([x, y], dim=-1)
x.view(3, 2)
x.view(-1)
x.view((6,))
x.view_as(y)
x.reshape(3, -1)
x.unsqueeze(0)
x.unsqueeze(dim=-1)
torch.unsqueeze(x, dim=1)
x.unsqueeze(0).squeeze()
x.unsqueeze(0).squeeze(0)
torch.squeeze(x.unsqueeze(1), dim=1)
x.permute(1, 0)
x.permute((1, 0))
torch.permute(x, dims=(1, 0))
x.swapaxes(0, 1)
torch.swapaxes(x, 0, 1)
torch.movedim(x, 0, 1)
x.t()
x.flatten()
x.unsqueeze(0).flatten(1)
x.unsqueeze(0).flatten(start_dim=0, end_dim=1)
torch.flatten(x.unsqueeze(0), 1)
x.ravel()
torch.ravel(x)
v.expand(2, 3)
v.unsqueeze(0).expand(2, -1)
v.expand_as(x)
x.tile((2, 1))
x.tile(2, 1)
x.unbind(1)
torch.unbind(x, dim=0)
x.roll(1, 0)
x.roll(1, dims=1)
torch.roll(x, 1, 0)
torch.flip(x, dims=(0,))
torch.index_select(x, 1, i)
x.index_select(1, i)
torch.masked_fill(x, m, 0.0)
x.masked_fill(m, -1e9)
torch.where(m, x, y)
x.where(m, y)
torch.topk(x, 2)
torch.topk(x, 1, dim=0, largest=False)
x.topk(2, dim=-1)
x.sum(dim=1, keepdim=True)
torch.sum(x, dim=(0, 1))
torch.mean(x, dim=0)
x.mean(-1, keepdim=True)
x.mean(dim=[0, 1])
torch.prod(x, dim=1)
torch.all(m, dim=1)
torch.any(m, dim=0, keepdim=True)
torch.argmax(x, dim=1)
x.argmin(dim=0, keepdim=True)
torch.logsumexp(x, dim=1, keepdim=True)
x.std(dim=0, correction=0)
torch.var(x, dim=1, correction=1, keepdim=True)
torch.amax(x, dim=1)
torch.amin(x, dim=0, keepdim=True)
x.amax(1)
x.amin(dim=(0, 1))
x.cumsum(1)
torch.cumsum(x, dim=0)
x.cumprod(dim=1)
torch.cumprod(x, 0)
torch.argsort(x, dim=0, descending=True)
torch.softmax(x, dim=-1)
x.softmax(dim=1)
x.softmax(-1)
x.log_softmax(dim=0)
torch.log_softmax(x, dim=1)
F.softmax(x, dim=0)
F.log_softmax(x, dim=-1)
F.relu(x)
F.leaky_relu(x, negative_slope=0.2)
F.dropout(x, p=0.0)
F.dropout(x, p=0.5, training=False)
torch.nn.ReLU()(x)
torch.nn.ReLU(inplace=False)(x)
torch.nn.ReLU6()(x * 9)
torch.nn.LeakyReLU(0.2)(x)
torch.nn.LeakyReLU(negative_slope=0.3)(x)
torch.nn.ELU(alpha=0.5)(x)
torch.nn.SELU()(x)
torch.nn.GELU()(x)
torch.nn.GELU(approximate="tanh")(x)
torch.nn.SiLU()(x)
torch.nn.Mish()(x)
torch.nn.Hardswish()(x)
torch.nn.Sigmoid()(x)
torch.nn.Tanh()(x)
torch.nn.Softplus()(x)
torch.nn.Softmax(dim=0)(x)
torch.nn.LogSoftmax(dim=1)(x)
torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softmax(1))(x)
torch.nn.Dropout(p=0.0)(x)
torch.nn.MaxPool1d(kernel_size=2, stride=1)(x.unsqueeze(0))
torch.nn.AvgPool1d(kernel_size=3, ceil_mode=False)(x.unsqueeze(0))
torch.nn.Flatten(start_dim=1)(x.unsqueeze(0))
torch.nn.Upsample(scale_factor=2)(x.unsqueeze(0))
torch.nn.AdaptiveAvgPool1d(output_size=2)(x.unsqueeze(0))
F.cross_entropy(x, i)
F.cross_entropy(x, i, reduction="sum")
F.cross_entropy(x, F.softmax(y, dim=1))
F.cross_entropy(torch.stack([x, y], dim=2), torch.stack([i, i], dim=1), reduction="none")
F.cross_entropy(torch.stack([x, y], dim=2), F.softmax(torch.stack([y, x], dim=2), dim=1))
F.nll_loss(F.log_softmax(x, dim=1), i)
F.binary_cross_entropy_with_logits(x, F.sigmoid(y))
F.mse_loss(x, y)
F.mse_loss(x, y, reduction="none")
F.l1_loss(x, y, reduction="sum")
F.huber_loss(x, y, delta=0.3)
F.smooth_l1_loss(x, y, beta=0.3)
torch.nn.CrossEntropyLoss()(x, i)
torch.nn.CrossEntropyLoss(weight=None, ignore_index=-100, label_smoothing=0.1)(x, i)
F.cross_entropy(x, i, label_smoothing=0.2, reduction="none")
F.cross_entropy(x, i, torch.abs(x[0]), ignore_index=1)
F.cross_entropy(x, F.softmax(y, dim=1), weight=torch.abs(x[0]))
F.cross_entropy(torch.stack([x, y], dim=2), torch.stack([i, i], dim=1), weight=torch.abs(x[0]), ignore_index=0)
torch.nn.CrossEntropyLoss(torch.abs(x[0]), label_smoothing=0.1)(x, i)
torch.nn.NLLLoss(weight=torch.abs(x[0]), ignore_index=1)(F.log_softmax(x, dim=1), i)
F.binary_cross_entropy_with_logits(x, F.sigmoid(y), weight=torch.abs(x), pos_weight=torch.abs(x[0]))
torch.nn.BCEWithLogitsLoss(pos_weight=torch.abs(x[0]))(x, F.sigmoid(y))
F.mse_loss(x, y, weight=torch.abs(y))
F.l1_loss(x, y, weight=torch.abs(y))
F.huber_loss(x, y, weight=torch.abs(y))
torch.nn.NLLLoss(reduction="sum")(F.log_softmax(x, dim=1), i)
torch.nn.BCEWithLogitsLoss()(x, F.sigmoid(y))
torch.nn.MSELoss()(x, y)
torch.nn.L1Loss()(x, y)
torch.nn.HuberLoss(delta=0.3)(x, y)
torch.nn.SmoothL1Loss(beta=0.3)(x, y)
F.gelu(x)
F.gelu(x, approximate="tanh")
F.gelu(x, approximate="none")
F.silu(x)
F.tanh(x)
F.hardtanh(x)
F.hardswish(x)
F.hardsigmoid(x)
F.logsigmoid(x)
F.linear(x, w, b)
F.linear(x, w)
torch.nn.functional.relu(x)
torch.sigmoid(x)
torch.relu(x)
x.sigmoid()
x.relu()
torch.mul(x, y)
torch.sub(x, y)
torch.div(x, y)
torch.true_divide(x, y)
torch.neg(x)
torch.absolute(x)
torch.eq(x, y)
torch.ne(x, y)
torch.lt(x, y)
torch.le(x, y)
torch.gt(x, y)
torch.ge(x, y)
torch.clamp(x, min=0.0)
torch.clamp(x, -1.0, 1.0)
x.clamp(min=0.0)
x.clamp(-1, 1)
torch.mm(x, w.t())
torch.mv(x, v)
torch.bmm(x.unsqueeze(0), w.t().unsqueeze(0))
x.mm(w.t())
x.mv(v)
x.unsqueeze(0).bmm(w.t().unsqueeze(0))
x.add(y)
x.sub(y)
x.mul(2)
x.div(y)
x.pow(2)
x.remainder(y)
x.neg()
x.eq(y)
x.ne(y)
x.lt(0)
x.le(y)
x.gt(0)
x.ge(y)
x.maximum(y)
x.minimum(y)
x.isnan()
x.isinf()
x.isfinite()
m.logical_not()
torch.isclose(x, x + 1e-9)
torch.arccos(x / 9)
torch.arccosh(x * x + 1)
torch.arcsin(x / 9)
torch.arcsinh(x)
torch.arctan(x)
torch.arctan2(x, y)
torch.arctanh(x / 9)
torch.bitwise_not(n)
torch.tril(x, diagonal=1)
torch.triu(x, diagonal=-1)
torch.inverse(s)
torch.lgamma(torch.abs(x) + 1)
torch.igamma(torch.abs(x) + 1, torch.abs(x))
torch.igammac(torch.abs(x) + 1, torch.abs(x))
torch.mvlgamma(torch.abs(x) + 2, 2)
torch.det(s)
x.float()
x.double()
x.half()
x.bfloat16().float()
n.long()
x.int()
n.bool()
x.type_as(n)
x.to(torch.float64)
x.to(torch.long)
n.to(x)
n.float() / 2
x.to("cpu")
x.cpu()
x.contiguous()
x.clone()
x.detach()
x.numel()
x.nelement()
x.dim()
x.element_size()
x.is_floating_point()
torch.numel(x)
torch.is_tensor(x)
torch.zeros(2, 3)
torch.ones((2, 3), dtype=torch.int)
torch.zeros(3, dtype=torch.short)
torch.ones(2, dtype=torch.half)
torch.ones(2, dtype=torch.float)
torch.ones(2, dtype=torch.double)
torch.ones(2, dtype=torch.cfloat)
torch.as_tensor([1.0, 2.0])
x.new_zeros(2, 2)
x.new_ones((2,))
torch.randn(2, 3).shape
torch.rand((2, 3)).shape
torch.randn_like(x).shape
torch.rand_like(x).shape
torch.randint(0, 10, (2,)).shape
torch.randperm(5).sum()
torch.einsum("ij,kj->ik", x, w)
""".strip().splitlines()
"""They work, with PyTorch's result."""

LAYERS = """
torch.nn.LayerNorm(normalized_shape=3, eps=1e-3)(x)
torch.nn.LayerNorm(3, eps=1e-3, elementwise_affine=False)(x)
torch.nn.BatchNorm1d(num_features=3, eps=1e-2, affine=False)(x)
torch.nn.GroupNorm(num_groups=1, num_channels=3, eps=1e-2)(x)
torch.nn.Linear(in_features=3, out_features=2, bias=False)(x).shape
torch.nn.Conv1d(in_channels=2, out_channels=4, kernel_size=2, padding_mode="zeros")(x.unsqueeze(0)).shape
torch.nn.ConvTranspose1d(2, 4, kernel_size=2, stride=2)(x.unsqueeze(0)).shape
torch.nn.Embedding(num_embeddings=9, embedding_dim=4)(n).shape
torch.nn.LSTM(input_size=3, hidden_size=4, num_layers=2, batch_first=True)(x.unsqueeze(0))[0].shape
torch.nn.RNN(input_size=3, hidden_size=4, nonlinearity="relu", batch_first=True)(x.unsqueeze(0))[0].shape
""".strip().splitlines()
"""Layers with parameters, which compiled functions cannot make anew at every call; random values have their shape."""

NUMPY = """
list(x.tobytes())
np.cross(x, y)
np.concatenate([x, y], axis=1)
np.array([1.0, 2.0])
np.swapaxes(x, 0, 1)
np.ravel(x)
x.swapaxes(0, 1)
x.flatten()
x.ravel()
x.copy()
x.itemsize
x.conjugate()
np.conjugate(x)
np.true_divide(x, y)
np.absolute(x)
np.mod(x, y)
np.arccos(x / 9)
np.arccosh(x * x + 1)
np.arcsin(x / 9)
np.arcsinh(x)
np.arctan(x)
np.arctan2(x, y)
np.arctanh(x / 9)
np.invert(n)
np.left_shift(k, k)
np.right_shift(k, k)
np.isclose(x, y)
np.amax(x, axis=1)
np.amin(x, axis=0, keepdims=True)
np.cumsum(x, axis=1)
np.cumprod(x, axis=0)
x.cumsum(axis=0)
x.cumprod(axis=1)
np.var(x, axis=0, ddof=1)
np.std(x, ddof=1)
np.sort(x, 0)
np.argsort(x, 0)
np.repeat(x, 2, 0)
np.roll(x, 1, 1)
np.squeeze(x)
np.random.randn(2, 3).shape
np.random.rand(2).shape
np.random.randint(0, 9, (2, 2)).shape
np.random.randint(0, 9, size=(2, 2)).shape
np.random.standard_normal((3,)).shape
""".strip().splitlines()
"""They work, with NumPy's result."""

HINTS = {
    "x.transpose(0, 1)": "permute_dims",
    "torch.transpose(x, 0, 1)": "hf.permute_dims",
    "x.repeat(2, 1)": "hf.tile",
    "x.split(1)": "hf.split",
    "x.chunk(2)": "hf.split",
    "torch.chunk(x, 2)": "hf.split",
    "torch.gather(x, 1, i)": "hf.take_along_axis",
    "x.gather(1, i)": "hf.take_along_axis",
    "x.scatter_add(0, i, y)": "x.at",
    "x.sort()": "hf.sort",
    "x.nonzero()": "hf.nonzero",
    "torch.unique(x)": "hf.unique_values",
    "torch.dot(v, v)": "hf.vecdot",
    "x.norm()": "hf.linalg.vector_norm",
    "torch.norm(x)": "hf.linalg.vector_norm",
    "torch.diag(v)": "hf.embed_diagonal",
    "torch.from_numpy(x)": "hf.asarray",
    "x.data": "x.detach",
    "x.is_cuda": "x.device",
    "x.type(torch.float32)": "x.astype",
    "x.add_(1)": "v.assign_add",
    "x.copy_(y)": "v.assign",
    "x.masked_fill_(m, 0)": "hf.where",
    "F.conv2d(x, w)": "hf.nn.conv",
    "F.max_pool2d(x, 2)": "hf.nn.max_pool",
    "F.normalize(x)": "hf.nn.l2_normalize",
    "F.pad(x, (1, 1))": "hf.pad",
    "torch.optim.Adagrad([], lr_decay=0.1)": "Use a schedule",
    "torch.nn.Parameter(x)": "hf.Variable",
    "torch.nn.ReLU(inplace=True)": "Tensors are immutable",
    "torch.nn.MaxPool1d(2, 2)": "given by name: stride=",
    "torch.nn.LSTM(3, 4, batch_first=False)": "The batch is always the first axis.",
    "torch.nn.Conv2d(3, in_channels=3)": "in_channels, out_channels, kernel_size",
    "torch.nn.Dropout(q=0.1)": "It takes: rate.",
    "torch.nn.Dropout(0.5, p=0.1)": "rate",
    "torch.nn.utils.clip_grad_norm_": "hf.clip_by_global_norm",
    "torch.nn.utils.parameters_to_vector(w)": "hf.concat",
    "torch.nn.utils.rnn.pad_sequence([x])": "lengths=",
    "torch.nn.utils.fuse_conv_bn_eval(x)": "hf.nn.utils is a module of another package",
    "F.pixel_shuffle(x, 2)": "permute_dims",
    "F.relu(x, inplace=True)": "Tensors are immutable",
    "F.silu(x, inplace=True)": "Tensors are immutable",
    "F.elu(x, 1.0, inplace=True)": "Tensors are immutable",
    "torch.where(m)": "hf.nonzero(condition)",
    "torch.utils.data.DataLoader": "hf.data.Batches",
    "torch.optim.lr_scheduler.StepLR": "hf.optim.cosine",
    "torch.Tensor([1.0])": "hf.asarray",
    "torch.autograd.grad": "hf.GradientTape",
    "torch.cuda.is_available()": "hf.device",
    "torch.inference_mode()": "hf.no_grad",
    "torch.multinomial(x, 1)": "hf.random.categorical",
    "torch.vstack([x, y])": "hf.concat",
    "torch.allclose(x, y)": "hf.isclose",
    "x.max(dim=1)": "hf.argmax",
    "torch.min(x, dim=1, keepdim=True)": "hf.argmin",
    "torch.sort(x, dim=1)": "hf.argsort",
    "torch.median(x, dim=1)": "hf.argsort",
    "x.std(dim=1)": "correction=1",
    "x.var(unbiased=False)": "correction=1",
    "torch.sum(x, dim=1, out=y)": "what the function returns",
    "x.mean(dim=1, dtype=torch.float64)": "x.astype",
    "hf.random.normal(0.0, 0.02, (3,))": "the shape comes first",
}
"""They are errors, which say what to write."""
