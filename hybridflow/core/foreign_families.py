"""Families of names of other packages that do not work here: one rule says what to write for all names of a family.

The owners of names are those of `core.foreign_names`. Functions that JAX, SciPy or NumPy have need no row: those
packages are installed, and `hybridflow.foreign` looks there.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridflow.core.foreign_names import PER_EXAMPLE


class Family(NamedTuple):
    r"""Names of other packages that have one answer.

    Attributes:
        packages: the packages that have the names.
        owners: what has the names, such as ``hf`` and ``x``.
        names: the names, each a word or a regular expression. Only words, and ``(\w+)_`` for all names that it has
            without the underscore, can be names of tensors, models and optimizers.
        ours: what to write instead, where ``{0}`` is the name, ``{1}`` the first group of its expression, and
            ``{library}`` the function of JAX that has the name; "" if there is nothing to write.
        because: how that differs from the name's meaning there, or why there is nothing.
    """

    packages: str
    owners: str
    names: str
    ours: str
    because: str


_IMMUTABLE = "tensors are immutable; a Variable is assigned"
_EXPRESSION = "it is an expression"
_LOSS = f"a loss is an expression; {PER_EXAMPLE}"
_DENSE = "tensors are dense"
_INNER = "it is what the package calls inside, or a setting of it"
_QUANTIZED = "quantized tensors are integer arrays with their scales"
_NO_STRIDES = "a tensor has no strides and no storage that others share"
_SERIALIZED = "objects are made by code; files have values"
_ANY_AXES = "its functions take any number of axes"
_RATE = "a rate is a function of the step, and belongs to the optimizer"
_BY_BITS = "dtypes are named by their bits"
_IMAGES = "images are changed where they are read: Pillow, torchvision, grain and albumentations give arrays"
_FUNCTION = "it is a function"

FAMILIES = (
    # -- tensors: methods
    Family("torch numpy jax", "x",
           "angle atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign "
           "count_nonzero diagonal diff equal floor_divide greater greater_equal hypot isclose kron less "
           "less_equal logaddexp logical_and logical_or logical_xor median moveaxis multiply negative nextafter "
           "not_equal outer positive searchsorted signbit subtract trace divide true_divide absolute arctan2 "
           "arccos arccosh arcsin arcsinh arctan arctanh bitwise_not movedim", "hf.{0}(x, ...)", _FUNCTION),
    Family("torch", "x", "corrcoef cov nan_to_num nanquantile quantile", "hf.{0}(x, ...)", _FUNCTION),
    Family("torch", "x", "cholesky cholesky_solve cross det eig lstsq matrix_power pinv qr slogdet solve svd",
           "hf.linalg.{0}(x, ...)", _FUNCTION),
    Family("torch", "x",
           "inverse pinverse matrix_exp logdet lu lu_solve triangular_solve cholesky_inverse symeig geqrf orgqr "
           "ormqr", "hf.linalg: inv, pinv, expm, slogdet, solve, solve_triangular, eigh and qr are there",
           "they have the standard's names"),
    Family("torch", "x", "apply_ map_ map2_ random_ exponential_ geometric_ cauchy_ log_normal_ bernoulli_ set_ "
           "resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_ fill_diagonal_ put_ index_put_ index_copy_ "
           "index_fill_ index_add_ index_reduce_ scatter_ scatter_add_ scatter_reduce_ masked_scatter_ "
           "share_memory_", "v.assign(value), or x = x.at[index].set(value)", _IMMUTABLE),
    Family("torch", "x", "(\\w+)_", "x = x.{1}(...), or v.assign(...)", _IMMUTABLE),
    Family("torch", "x",
           "index_put index_copy index_fill index_reduce masked_scatter put scatter_reduce diagonal_scatter "
           "select_scatter slice_scatter slice_inverse as_strided_scatter", "x.at[index].set(value)",
           "it is indexed like x[index], and has add, multiply, min and max too"),
    Family("numpy", "x", "put fill partition itemset setfield setflags byteswap resize",
           "x = x.at[index].set(value), or hf.full_like(x, value)", _IMMUTABLE),
    Family("torch", "x", "new_empty new_full new_tensor new", "hf.full(shape, value, dtype=x.dtype)",
           "a function makes tensors"),
    Family("torch", "x", "byte char short chalf", "x.astype(hf.uint8), or hf.int8, hf.int16, hf.float16", _BY_BITS),
    Family("torch", "x", "H mH adjoint", "x.conj().mT", _EXPRESSION),
    Family("torch", "x", "ndimension dim_order", "x.ndim", "it is an attribute"),
    Family("torch", "x", "allclose", "bool(hf.all(hf.isclose(x, y)))", "its truth value is read"),
    Family("torch", "x", "fmod", "x - y * hf.trunc(x / y)", "hf.remainder has the sign of the divisor"),
    Family("numpy", "x", "flat", "x.reshape((-1,))", _EXPRESSION),
    Family("torch", "x", "is_complex is_signed is_quantized is_conj is_neg is_nonzero is_inference grad_dtype",
           "hf.isdtype(x.dtype, 'complex floating'), or bool(x)", "kinds of dtypes are the standard's"),
    Family("torch", "x", "is_same_size reshape_as unflatten squeeze_multiple sum_to_size resize_as ",
           "x.reshape(shape), hf.broadcast_to(x, shape), or x.shape == y.shape", "shapes are tuples"),
    Family("torch", "x", "select narrow narrow_copy take_along_dim repeat_interleave swapdims index",
           "x[index], hf.take_along_axis, hf.repeat or hf.moveaxis", "indexing cuts; functions reorder"),
    Family("torch", "x",
           "tensor_split split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk hsplit vsplit dsplit",
           "hf.split(x, sections_or_indices, axis)", "it is given the number of parts or where they begin"),
    Family("torch", "x", "addmm addbmm addmv addr baddbmm addcmul addcdiv rsub ger inner dist clamp_max clamp_min lerp "
           "multinomial renorm msort bernoulli nansum nanmean nanmedian frac fix aminmax",
           "x + a @ b, x + t * (y - x), hf.maximum(x, low) and the like", _EXPRESSION),
    Family("torch", "x", "diag diag_embed diagflat", "hf.diagonal(x) or hf.embed_diagonal(x)",
           "one takes a diagonal of a matrix, one makes a matrix of it"),
    Family("torch", "x", "kthvalue mode", "hf.sort(x, axis=axis), or hf.top_k(x, k)", "take the part that you need"),
    Family("torch", "x", "unique_consecutive nonzero_static", "hf.unique_values(x) or hf.nonzero(x)",
           "what comes back does not depend on options here"),
    Family("torch", "x", "stft istft", "hf.fft.rfft of frames", "frames are a reshape or an index"),
    Family("torch", "x", "register_post_accumulate_grad_hook reinforce output_nr requires_grad_hook",
           "x.register_hook(fn)", "it is called when the gradient is there"),
    Family("torch", "x", "is_cpu is_ipu is_maia is_meta is_mps is_mtia is_vulkan is_xpu is_mkldnn xpu record_stream",
           "x.device and x.to(device)", "it is 'cpu' or such as 'gpu:0'"),
    Family("torch numpy jax", "x",
           "data_ptr stride storage untyped_storage storage_offset storage_type layout as_strided "
           "new_empty_strided is_contiguous is_set_to is_shared is_pinned pin_memory as_subclass module_load "
           "strides flags base ctypes newbyteorder tostring dump dumps getfield tofile unfold "
           "is_distributed resolve_conj resolve_neg conj_physical hash_tensor", "x.numpy(), whose memory is NumPy's",
           _NO_STRIDES),
    Family("torch", "x",
           "coalesce is_coalesced is_sparse is_sparse_csr sparse_dim dense_dim sparse_mask to_dense to_sparse "
           "to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr to_mkldnn "
           "ccol_indices col_indices crow_indices row_indices smm sspaddmm is_nested to_padded_tensor", "", _DENSE),
    Family("torch", "x", "indices values", "the result itself, and hf.argmax, hf.argmin or hf.argsort for indices",
           "a maximum or a sort is one tensor here, and tensors are dense"),
    Family("torch tensorflow", "hf hf.nn hf.distribute", "DataParallel DistributedDataParallel "
           "FullyShardedDataParallel fully_shard distribute_tensor parallelize_module ColwiseParallel RowwiseParallel "
           "DeviceMesh init_device_mesh MirroredStrategy MultiWorkerMirroredStrategy TPUStrategy",
           "hf.compile(step, mesh=hf.Mesh({{'data': -1}}), batch='data'), and hf.distribute.shard(model, mesh)",
           "a mesh says where a model and its batches lie"),
    Family("torch", "hf hf.distribute", "init_process_group destroy_process_group get_rank get_world_size all_reduce "
           "is_initialized", "hf.distribute.initialize(), process_index(), process_count(), and psum in hf.shard_map",
           "hybridflow launch, torchrun or a cluster says who the others are"),
    Family("torch", "x",
           "dequantize int_repr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale "
           "q_zero_point qscheme", "hf.quantize", _QUANTIZED),
    Family("jax", "x",
           "addressable_data addressable_shards aval committed copy_to_host_async device_buffer device_buffers "
           "devices format global_shards is_deleted is_fully_addressable is_fully_replicated is_ready "
           "on_device_size_in_bytes platform sharding traceback unsafe_buffer_pointer unsafe_raw_buffer weak_type "
           "delete", "hf.to_jax", "a function of JAX arrays sees the array itself"),
    Family("numpy torch jax", "x",
           "argpartition choose compress ptp argwhere bincount cummax cummin deg2rad rad2deg "
           "exp2 fliplr flipud float_power fmax fmin frexp gcd lcm heaviside histc histogram "
           "isneginf isposinf isreal ldexp logaddexp2 logcumsumexp "
           "rot90 sgn vdot hardshrink prelu", "hf.from_jax({library})(x, ...)",
           "JAX functions are operations, with their gradients"),
    Family("numpy torch jax", "x", "digamma erfc erfinv i0 logit polygamma sinc xlogy", "hf.special.{0}(x)", _FUNCTION),
    Family("torch", "x", "lgamma igamma igammac mvlgamma",
           "hf.special.gammaln(x), gammainc(a, x), gammaincc(a, x) or multigammaln(x, d)", "they have SciPy's names"),
    # -- models and optimizers
    Family("torch", "model", "get_parameter get_buffer get_submodule set_submodule register_module",
           "model.named_parameters()[path], named_buffers() and named_modules()", "they are dicts by path"),
    Family("torch", "model",
           "register_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
           "register_load_state_dict_pre_hook register_state_dict_post_hook register_state_dict_pre_hook "
           "get_extra_state set_extra_state dump_patches T_destination call_super_init",
           "a subclass with a method of its own", "a model has no hooks"),
    Family("torch", "model", "ipu mtia xpu to_empty share_memory type", "with hf.device(name): around the code",
           "a model has no device of its own"),
    Family("tensorflow", "model", "add_weight add_variable", "hf.Variable(value) as an attribute",
           "attributes are the parameters of a model"),
    Family("tensorflow", "model", "call build", "def forward(self, x)", "layers take their sizes at their first call"),
    Family("tensorflow", "model",
           "add_loss add_metric compute_loss compute_metrics losses metrics metrics_names metrics_variables "
           "reset_metrics get_metrics_result", "hf.train.fit(model, x, y, loss=..., metrics=...)",
           "a loss is a function of the prediction and the target"),
    Family("tensorflow", "model",
           "train_step test_step predict_step train_on_batch test_on_batch predict_on_batch make_train_function "
           "make_test_function make_predict_function stateless_call stateless_compute_loss "
           "compute_loss_and_updates jax_state_sync run_eagerly jit_compile",
           "a function of your own with hf.GradientTape, and @hf.compile", "training is a function, not a method"),
    Family("tensorflow", "model",
           "trainable_weights non_trainable_weights non_trainable_variables variables get_state_tree "
           "set_state_tree load_own_variables save_own_variables", "model.named_parameters() and model.named_buffers()",
           "they are by path"),
    Family("tensorflow", "model", "get_layer layers input output path input_spec", "model.named_modules()",
           "it has the modules at all depths, by path"),
    Family("tensorflow", "model",
           "get_config from_config to_json get_build_config build_from_config get_compile_config "
           "compile_from_config", "hf.export.save(path, model, spec)",
           "a file with the program needs no configuration"),
    Family("tensorflow", "model", "compute_dtype dtype dtype_policy input_dtype variable_dtype",
           "dtype= of the layers, and hf.autocast", "each parameter has a dtype"),
    Family("tensorflow", "model",
           "quantize quantization_mode quantized_build quantized_call get_quantization_layer_structure",
           "hf.quantize.weights(model)", "it is a function"),
    Family("tensorflow", "model",
           "compute_mask supports_masking compute_output_shape compute_output_spec symbolic_call "
           "rematerialized_call export", "hf.nn.summary(model, spec), lengths= of layers, or hf.export.save",
           "shapes come from a call with a hf.TensorSpec"),
    Family("torch", "opt", "OptimizerPostHook OptimizerPreHook profile_hook_step register_load_state_dict_post_hook "
           "register_load_state_dict_pre_hook register_state_dict_post_hook register_state_dict_pre_hook "
           "register_step_post_hook register_step_pre_hook", "code around opt.step()", "an optimizer has no hooks"),
    Family("tensorflow", "opt", "add_optimizer_variables add_variable add_variable_from_reference variables_of build "
           "exclude_from_weight_decay finalize_variable_values apply stateless_apply update_step assign assign_add "
           "assign_sub scale_loss iterations get_config from_config set_weights load_own_variables "
           "save_own_variables", "opt.update(gradients), opt.named_variables() and groups= of the optimizer",
           "an optimizer knows its parameters"),
    # -- dtypes
    Family("numpy torch jax tensorflow", "hf",
           "byte ubyte char chalf ushort uintc? uintp ulong ulonglong intc int_ intp longlong csingle cdouble "
           "clongdouble longdouble single float_ complex complex_ float128 complex256 b?complex32 resource variant "
           "string (Bool|Byte|Char|Double|Float|Int|Long|Short)(Tensor|Storage) (Unt|T)ypedStorage",
           "hf.int8 to hf.uint64, hf.float16, bfloat16, float32 and float64, hf.complex64 and complex128", _BY_BITS),
    Family("torch jax tensorflow", "hf", "float[468]_\\w+ u?int[124] q?u?int\\d+x?\\d* bits\\d\\w*", "hf.quantize",
           "no tensor has a dtype of fewer than 8 bits, or of scaled integers"),
    Family("numpy torch jax tensorflow keras", "hf",
           "generic number (un)?signedinteger integer inexact (complex)?floating flexible character object_ bytes_ "
           "str_ void dtype dtypes DType ScalarType typecodes typename issubdtype promote_types common_type "
           "min_scalar_type mintypecode is_floating_point is_complex is_signed isrealobj iscomplexobj as_dtype "
           "set_default_tensor_type get_default_dtype standardize_dtype \\w*DTypePolicy dtype_policies "
           "mixed_precision", "hf.isdtype(dtype, kind), hf.result_type and hf.autocast",
           "kinds of dtypes are the standard's"),
    # -- values
    Family("tensorflow numpy", "hf", "size ndim", "x.{0}", "it is an attribute"),
    Family("tensorflow", "hf", "fill", "hf.full(shape, value)", "it is the standard's name"),
    Family("tensorflow", "hf", "(constant|ones|zeros|random_normal|random_uniform)_initializer initializers",
           "hf.nn.init", "initial values are functions of a shape"),
    Family("torch", "hf", "bernoulli binomial poisson normal distributions", "hf.random", "draws have a module"),
    Family("torch", "hf", "randint_like", "hf.random.integers(low, high, x.shape)", "draws have a module"),
    Family("torch", "hf", "(get|set)_rng_state seed initial_seed Generator thread_safe_generator",
           "hf.random.seed(n) or hf.random.Generator(n)", "hf.save keeps its state"),
    Family("torch", "hf",
           "addmm addbmm addmv addr baddbmm addcmul addcdiv saddmm rsub ger lerp dist clamp_max clamp_min "
           "combinations cumulative_trapezoid trapz renorm frac std_mean var_mean mode kthvalue msort aminmax "
           "logcumsumexp", "x + a @ b, x + t * (y - x), hf.maximum(x, low) and the like", _EXPRESSION),
    Family("torch", "hf", "cholesky_solve cross matrix_power slogdet svd solve det qr lstsq", "hf.linalg.{0}",
           "linear algebra has a module"),
    Family("torch", "hf",
           "matrix_exp pinverse logdet lu_solve lu_unpack geqrf orgqr ormqr lobpcg chain_matmul cholesky_inverse "
           "triangular_solve symeig frobenius_norm nuclear_norm norm_except_dim",
           "hf.linalg: expm, pinv, slogdet, solve, solve_triangular, eigh, matrix_norm",
           "they have the standard's names"),
    Family("tensorflow", "hf", "matrix_square_root", "hf.linalg.sqrtm", "linear algebra has a module"),
    Family("tensorflow", "hf.linalg",
           "matvec adjoint band_part diag diag_part set_diag tensor_diag tensor_diag_part normalize logdet "
           "triangular_solve",
           "x @ y, x.conj().mT, hf.tril, hf.diagonal, hf.embed_diagonal, slogdet and solve_triangular",
           "they have the standard's names"),
    Family("torch tensorflow", "hf.linalg",
           "LinearOperator\\w* banded\\w+ \\w*tri?diagonal\\w* lu_\\w* logm ldl\\w* \\w+_ex "
           "householder_product vander experimental", "hf.from_jax of jax.scipy.linalg's functions",
           "JAX functions are operations, with their gradients"),
    Family("torch", "hf",
           "narrow select(_copy)? take_along_dim repeat_interleave swapdims t row_stack unflatten atleast_\\dd",
           "x[index], hf.take_along_axis, hf.repeat, x.T or x.reshape", "indexing cuts; functions reorder"),
    Family("torch tensorflow keras", "hf",
           "tensor_split split_with_sizes unsafe_split\\w* unsafe_chunk dynamic_partition dynamic_stitch",
           "hf.split(x, sections_or_indices, axis), or x[mask]", "it is given the number of parts or where they begin"),
    Family("tensorflow", "hf", "slice strided_slice gather_nd parallel_stack shape_n identity_n get_item", "x[index]",
           "indexing cuts"),
    Family("tensorflow torch keras", "hf",
           "(tensor_)?scatter_(nd\\w*|update|reduce) slice_update index_(add|copy|fill|put_?|reduce) "
           "masked_scatter \\w+_scatter", "x.at[index].set(value)",
           "it is indexed like x[index], and has add, multiply, min and max too"),
    Family("tensorflow jax", "hf", "(unsorted_)?segment_(max|min|prod|sum|mean|sqrt_n|reduce)",
           "hf.from_jax(jax.ops.segment_sum, static_argnames='num_segments'), or segment_max, segment_min, "
           "segment_prod", "JAX functions are operations, with their gradients"),
    Family("torch", "hf", "segment_reduce bucketize", "hf.searchsorted, or hf.from_jax(jax.ops.segment_sum)",
           "JAX functions are operations, with their gradients"),
    Family("tensorflow", "hf", "is_(finite|inf|nan)", "hf.is{1}", "it is the standard's name"),
    Family("tensorflow", "hf", "(floordiv|floormod|truediv|realdiv|truncatediv|truncatemod)", "x // y, x % y or x / y",
           "integers divide as Python's do"),
    Family("tensorflow", "hf", "divide_no_nan multiply_no_nan reciprocal_no_nan xdivy",
           "hf.where(y == 0, 0, x / hf.where(y == 0, 1, y))", _EXPRESSION),
    Family("tensorflow", "hf", "squared_difference add_n accumulate_n scalar_mul reduce_euclidean_norm zero_fraction "
           "is_strictly_increasing is_non_decreasing saturate_cast lbeta",
           "(x - y) ** 2, sum(list_of_tensors), hf.linalg.vector_norm(x) and the like", _EXPRESSION),
    Family("tensorflow", "hf", "bessel_(i0e?|i1e?)", "hf.special.{1}", "special functions have a module"),
    Family("torch", "hf hf.special",
           "bessel_(j0|j1|y0|y1) modified_bessel_\\w+ scaled_modified_\\w+ spherical_bessel_\\w+ airy_ai "
           "(shifted_)?(chebyshev|hermite|laguerre|legendre)_polynomial_\\w+",
           "hf.pure_callback of scipy.special's function", "no gradient flows through it"),
    Family("tensorflow", "hf",
           "cumulative_logsumexp log_sigmoid in_top_k confusion_matrix invert_permutation sobol_sample",
           "hf.from_jax(jax.lax.cumlogsumexp), hf.nn.log_sigmoid, hf.metrics or hf.argsort",
           "they are in these places"),
    Family("tensorflow", "hf", "sequence_mask", "hf.arange(size) < lengths[:, None]", _EXPRESSION),
    Family("tensorflow", "hf",
           "reverse_sequence unique_with_counts histogram_fixed_width\\w* random_index_shuffle "
           "edit_distance bitcast approx_top_k \\w*_size fingerprint broadcast_(dynamic|static)_shape "
           "\\w*space_to_batch\\w* batch_to_space extract_\\w+ depth_to_space space_to_depth \\w*fftnd conv "
           "conv2d_backprop_\\w+ tuple",
           "hf.take_along_axis, hf.unique_counts, hf.fft, hf.nn.conv, hf.reshape or hf.broadcast_shapes",
           "they are the parts that it is made of"),
    Family("keras", "hf", "(adaptive_)?(average|max)_pool batch_normalization (layer|rms)_normalization "
           "(binary|categorical|sparse_categorical)_crossentropy conv_transpose depthwise_conv separable_conv celu "
           "elu gelu selu relu6 (hard|soft|tanh)_shrink hard_tanh log_sigmoid multi_hot normalize sparsemax "
           "threshold ctc_\\w+ dot_product_attention", "hf.nn", "functions of neural networks are there"),
    Family("keras", "hf",
           "cholesky eigh? eigvals inv lstsq matrix_rank pinv qr slogdet solve solve_triangular svd lu_factor "
           "logdet", "hf.linalg", "linear algebra has a module"),
    Family("keras", "hf", "irfft rfft i?fft2 fft i?stft extract_sequences view_as_(complex|real) polar", "hf.fft",
           "Fourier transforms have a module"),
    Family("keras", "hf", "convert_to_numpy", "x.numpy()", "it is a method"),
    Family("keras torch", "hf",
           "cdist psnr rearrange view fold unfold depth_to_space space_to_depth pdist pairwise_distance (un)?fold "
           "channel_shuffle pixel_(un)?shuffle",
           "hf.reshape, hf.permute_dims, hf.einsum or hf.linalg.vector_norm(x[:, None] - y, axis=-1)", _EXPRESSION),
    Family("torch", "hf", "(bartlett|blackman|hamming|kaiser)_window", "hf.asarray(jax.numpy.{1}(n + 1)[:-1])",
           "NumPy's windows are symmetric, torch's periodic"),
    Family("torch", "hf", "hann_window", "hf.asarray(jax.numpy.hanning(n + 1)[:-1])",
           "NumPy's windows are symmetric, torch's periodic"),
    Family("torch", "hf", "clone detach diag_embed complex polar view_as_(complex|real)(_copy)? scalar_tensor "
           "empty_(permuted|strided|quantized) nonzero_static unique_(consecutive|dim) numa histc sgn "
           "conj_physical logdet_ is_nonzero is_same_size",
           "hf.asarray, x.detach(), hf.embed_diagonal, x + 1j * y, x.real and x.imag, hf.unique_values or x.shape "
           "== y.shape", _EXPRESSION),
    Family("numpy jax", "hf",
           "argwhere compress delete extract flatnonzero intersect1d roots setdiff1d setxor1d trim_zeros union1d",
           "numpy.{0}(x.numpy()), or hf.from_jax(jax.numpy.{0}), which some functions take size= for",
           "its shape depends on values"),
    # -- control flow, transformations, settings
    Family("jax keras", "hf", "fori_loop", "for i in range(n), in a compiled function",
           "Python's loops over tensors become one loop of the graph"),
    Family("jax keras tensorflow", "hf", "switch(_case)? case platform_dependent",
           "if and match, in a compiled function", "Python's branches on tensors become branches of the graph"),
    Family("jax keras tensorflow", "hf", "map vectorize(d_map)? foldl foldr", "hf.vmap(fn)(x), or hf.scan",
           "the function sees all elements at once"),
    Family("jax", "hf", "reduce(_window)? custom_(linear_solve|root) composite",
           "hf.from_jax(lambda x: jax.lax.{0}(...))", "it takes a function of JAX arrays"),
    Family("jax", "hf",
           "p(max|mean|min|sum)|psum_scatter\\w*|all_(gather|to_all)|ppermute|axis_(index|size)|pswapaxes|pbroadcast|pcast|pshuffle|ragged_all_to_all",
           "hf.distribute, in a function of hf.shard_map", "communication has a module"),
    Family("jax", "hf",
           "make_mesh NamedSharding P PartitionSpec (set|get|use)_(abstract_)?mesh get_abstract_mesh sharding "
           "with_sharding_constraint reshard s?pmap smap make_array_from_\\w+ Shard",
           "hf.Mesh, hf.compile(fn, mesh=...) and hf.constrain", "layouts are by axis name"),
    Family("jax", "hf", "eval_shape make_jaxpr ShapeDtypeStruct typeof",
           "hf.TensorSpec(shape, dtype), and print fn.graph(spec) of a compiled fn", "a graph is printed as text"),
    Family("jax", "hf", "custom_(jvp|derivatives|batching) softmax_custom_jvp closure_convert ad\\w*",
           "hf.custom_gradient", "the function returns its result and its gradient function"),
    Family("jax", "hf", "linearize linear_transpose fwd_and_bwd", "hf.jvp or hf.vjp", "each call does both parts"),
    Family("jax", "hf", "named_(scope|call)", "hf.name_scope(name)", "it is the name here"),
    Family("jax", "hf", "disable_jit", "hf.config.run_eagerly(True)", "it is a context too"),
    Family("jax", "hf", "effects_barrier block_until_ready", "hf.synchronize()", "it waits for all pending work"),
    Family("jax", "hf", "tree_util flatten_util api_util", "hf.tree", "it has map, flatten, unflatten and leaves"),
    Family("jax", "hf", "(empty_|new_|free_)?ref Ref freeze", "hf.Variable(value)", "it is assigned"),
    Family("jax", "hf", "enable_x64", "dtype='float64' where a value is made",
           "there is no state that changes what code means"),
    Family("jax torch", "hf", "default_matmul_precision [gs]et_float32_matmul_precision", "hf.config.matmul_precision",
           "it is a context too"),
    Family("jax", "hf", "debug debug_(infs|nans|key_reuse)", "hf.print, and hf.debugging.locate",
           "a call finds where a value is first not finite"),
    Family("jax", "hf", "checkpoint_policies", "hf.save_only_names and hf.save_any_except of hf.checkpoint",
           "policies are functions"),
    Family("jax torch tensorflow", "hf", "profiler", "hf.profile(fn, x)", "its result is a table"),
    Family("jax", "hf", "default_device devices local_devices\\w* (local_)?device_count default_backend device_get "
           "copy_to_host_async default_prng_impl", "hf.device(name) as a context, x.numpy(), and jax.devices()",
           "jax knows the devices"),
    Family("tensorflow", "hf", "gradients hessians", "hf.GradientTape, hf.grad or hf.hessian", "they take a function"),
    Family("tensorflow", "hf", "recompute_grad", "hf.checkpoint(fn)", "it is the name here"),
    Family("tensorflow", "hf", "grad_pass_through no_gradient nondifferentiable_batch_function RegisterGradient",
           "hf.custom_gradient or hf.stop_gradient", "the function returns its result and its gradient function"),
    Family("tensorflow", "hf", "numpy_function py_function", "hf.pure_callback(fn, spec, *args)",
           "it says the result's shape and dtype"),
    Family("tensorflow keras", "hf", "executing_eagerly inside_function is_symbolic_tensor get_static_value",
           "hf.is_tracing()", "it is false in eager code"),
    Family("tensorflow", "hf hf.debugging",
           "Assert assert_\\w+ check_numerics ensure_shape enable_check_numerics disable_check_numerics "
           "check_pinned is_numeric_tensor", "assert, or hf.debugging.check(condition, text)",
           "a call that fails it assigns nothing; hf.debugging.locate finds what is not finite"),
    Family("tensorflow", "hf.debugging", "\\w*traceback_filtering\\w* \\w*log_device_placement experimental",
           "hf.config.full_tracebacks(True)", "x.device says where a value is"),
    Family("tensorflow", "hf", "control_dependencies group no_op guarantee_const", "nothing",
           "effects keep the order of the code"),
    Family("tensorflow", "hf", "get_current_name_scope variable_creator_scope", "hf.name_scope(name)",
           "it is a context"),
    Family("tensorflow", "hf.config", "\\w*run_functions_eagerly \\w*functions_run_eagerly",
           "hf.config.run_eagerly(True)", "it is a context too"),
    Family("tensorflow", "hf.config",
           "\\w*(logical|physical|visible|Logical|Physical)_?[dD]evice\\w* \\w*soft_device_placement "
           "experimental_connect_\\w+ optimizer threading experimental",
           "jax.devices(), hf.device(name), and hf.config.threads", "jax knows the devices"),
    Family("torch", "hf", "set_default_device get_default_device accelerator cpu mps mtia xpu get_device_module",
           "with hf.device(name): around the code", "jax knows the devices"),
    Family("torch", "hf", "[gs]et_num_(interop_)?threads", "hf.config.threads", "it says the threads of eager code"),
    Family("torch", "hf", "GradScaler", "hf.LossScale", "it is the name here"),
    Family("torch", "hf", "set_printoptions", "numpy.set_printoptions, and print(x.numpy())", "printing is NumPy's"),
    Family("torch", "hf", "\\w*deterministic\\w*", "nothing", "results are the same at every run"),
    Family("torch", "hf", "distributed multiprocessing", "hf.distribute, or hf.compile(fn, mesh=...)",
           "one program runs on all devices"),
    Family("torch", "hf", "jit fx export compiler onnx package ao backends hub", "hf.compile and hf.export",
           "a compiled function's graph is what is exported"),
    Family("torch", "hf", "signal", "hf.from_jax of jax.scipy.signal's functions",
           "JAX functions are operations, with their gradients"),
    Family("torch tensorflow", "hf",
           "quantiz\\w+ quantized_\\w+ dequantize fake_quantize_\\w+ q_\\w+ int_repr choose_qparams_optimized "
           "fused_moving_avg_obs_fake_quant", "hf.quantize", _QUANTIZED),
    Family("torch tensorflow", "hf", "sparse\\w* [hds]smm hspmm smm spmm sspaddmm (ccol|col|crow|row)_indices\\w* "
           "(Sparse|Ragged|IndexedSlices)\\w* IndexedSlices ragged\\w* masked is_storage indices_copy values_copy", "",
           _DENSE),
    Family("torch", "hf", "as_strided\\w* strided contiguous_format memory_format is_storage from_file resize_as_\\w* "
           "resolve_(conj|neg) is_conj is_neg is_inference\\w* is_distributed", "x.numpy(), whose memory is NumPy's",
           _NO_STRIDES),
    Family("torch", "hf",
           "(adaptive_)?(avg|max)_pool\\dd\\w* (alpha_|feature_)\\w*dropout_? affine_grid_generator bilinear celu "
           "channel_shuffle conv_\\w+ conv[123]d convolution \\w+_loss \\w+_logits ctc_loss embedding_\\w+ "
           "grid_sampler\\w* gru(_cell)? lstm hardshrink prelu rrelu selu threshold native_\\w+ batch_norm_\\w+ "
           "pixel_\\w+ constant_pad_nd rnn_\\w+", "hf.nn", "functions of neural networks are there"),
    Family("torch", "hf",
           "(cudnn|miopen|mkldnn|fbgemm|native|nativert|sym)_\\w+ Sym\\w+ PySymType DeviceLikeType EllipsisType "
           "Literal Number Sequence TypeVar typename overload futures monitor mtia contrib nativert \\w+_copy "
           "slice_inverse are_deterministic_algorithms_enabled cudnn_is_acceptable get_default_device "
           "get_default_dtype get_deterministic_debug_mode get_device_module get_float32_matmul_precision "
           "get_num_interop_threads get_num_threads get_rng_state hash_tensor init_num_threads is_complex is_conj "
           "is_deterministic_algorithms_warn_only_enabled is_distributed is_floating_point is_grad_enabled "
           "is_inference is_inference_mode_enabled is_neg is_nonzero is_same_size is_signed is_storage is_tensor "
           "is_vulkan_available is_warn_always_enabled set_default_device set_default_tensor_type "
           "set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal set_num_interop_threads "
           "set_num_threads set_printoptions set_rng_state set_warn_always thread_safe_generator "
           "use_deterministic_algorithms", "", _INNER),
    Family("torch", "hf hf.nn", "(\\w+)_", "what the function without the underscore returns", _IMMUTABLE),
    # -- neural networks
    Family("torch keras", "hf.nn", "(?:adaptive_a|AdaptiveA)v(?:g|erage)_?[pP]ool(?:ing)?\\d?[dD]?",
           "hf.nn.AdaptiveAvgPool(size)", _ANY_AXES),
    Family("torch keras", "hf.nn", "(?:adaptive_m|AdaptiveM)ax_?[pP]ool(?:ing)?\\d?[dD]?(?:_with_indices)?",
           "hf.nn.AdaptiveMaxPool(size)", _ANY_AXES),
    Family("torch tensorflow", "hf.nn", "(avg|max)_pool\\dd(?:_with_indices)?", "hf.nn.{1}_pool(x, window, stride)",
           "the window says how many axes there are"),
    Family("keras", "hf.nn", "Average(Pool)ing(\\d)D", "hf.nn.AvgPool{2}d(window)", "channels come first here"),
    Family("keras", "hf.nn", "MaxPooling(\\d)D", "hf.nn.MaxPool{1}d(window)", "channels come first here"),
    Family("keras", "hf.nn", "GlobalAv(?:erage|g)Pool(?:ing)?\\dD", "hf.nn.GlobalAvgPool()", _ANY_AXES),
    Family("keras", "hf.nn", "GlobalMaxPool(?:ing)?\\dD", "hf.nn.AdaptiveMaxPool(1) and hf.nn.Flatten()", _ANY_AXES),
    Family("torch", "hf.nn",
           "(LPPool|FractionalMaxPool|MaxUnpool)\\dd (lp_pool|fractional_max_pool|max_unpool)\\d?d?\\w* "
           "fractional_\\w+_pool max_pool_with_argmax pool", "hf.nn.avg_pool and hf.nn.max_pool",
           "other poolings are made of them"),
    Family("torch", "hf.nn", "Lazy(\\w+)", "hf.nn.{1}", "all layers take their sizes at their first call"),
    Family("keras tensorflow torch", "hf.nn", "Conv(?:olution)?(\\d)D conv\\dd_transpose conv_tbc atrous_conv2d\\w*",
           "hf.nn.Conv(filters, window), or hf.nn.conv",
           "channels come first here: (n, c, height, width), and dilation= is an option"),
    Family("keras torch tensorflow", "hf.nn", "Conv(?:olution)?\\dDTranspose conv_transpose\\dd",
           "hf.nn.ConvTranspose(filters, window), or hf.nn.conv_transpose", "channels come first here"),
    Family("keras tensorflow", "hf.nn",
           "(?:Depthwise|Separable)Conv(?:olution)?\\dD (depthwise|separable)_conv\\dd\\w* with_space_to_batch",
           "hf.nn.Conv(filters, window, groups=channels), then hf.nn.Conv(filters, 1)",
           "a depthwise convolution has as many groups as channels"),
    Family("keras", "hf.nn", "ConvLSTM\\dD StackedRNNCells Bidirectional TimeDistributed RepeatVector",
           "a hf.nn.Module whose forward has the loop: hf.scan, hf.nn.LSTM on hf.flip(x, axis=1), or hf.vmap",
           "layers are combined by code"),
    Family("keras torch tensorflow", "hf.nn", "(Simple)?RNNCell(Base|\\w*Wrapper)? RNNBase (LSTM|GRU)Cell SimpleRNN",
           "hf.nn.RNN, hf.nn.LSTM or hf.nn.GRU, and hf.nn.lstm_cell in a loop of your own", "a loop is Python's"),
    Family("keras", "hf.nn", "(Layer|Group|RMS|Batch)Normalization", "hf.nn.{1}Norm()", "its epsilon is 1e-5"),
    Family("torch", "hf.nn", "SyncBatchNorm", "hf.nn.BatchNorm, in a function compiled with mesh=",
           "one program sees the whole batch"),
    Family("keras tensorflow torch", "hf.nn",
           "(Spectral|Unit)?Normalization local_response_norm\\w* LocalResponseNorm CrossMapLRN2d lrn "
           "batch_norm\\w+ normalize_moments weighted_moments sufficient_statistics",
           "hf.nn.moments, hf.nn.l2_normalize, or a layer of the norms in hf.nn", _EXPRESSION),
    Family("keras", "hf.nn", "(Group)?(Query)?Attention AdditiveAttention", "hf.nn.MultiHeadAttention",
           "it has mask=, causal= and lengths="),
    Family("torch", "hf.nn", "multi_head_attention_forward attention", "hf.nn.scaled_dot_product_attention",
           "the projections are layers"),
    Family("keras", "hf.nn",
           "Add Average Concatenate Dot Maximum Minimum Multiply Subtract average concatenate dot Reshape Permute "
           "Rescaling Lambda Activation EinsumDense Wrapper Pipeline",
           "the expression, in forward of a hf.nn.Module or as a function in hf.nn.Sequential", "functions are layers"),
    Family("torch", "hf.nn",
           "Unflatten Softmax2d Softmin (Tanh|Hard|Soft)shrink Threshold PReLU RReLU CELU GLU LogSigmoid softmin "
           "(tanh|hard|soft)shrink threshold p?r?relu rrelu bilinear Bilinear",
           "hf.nn.leaky_relu, celu, glu, log_sigmoid, or a function with hf.where",
           "functions are layers of hf.nn.Sequential"),
    Family("keras jax", "hf.nn", "PReLU (hard|soft|tanh)_shrink sparsemax threshold crelu",
           "hf.nn.leaky_relu, or a function with hf.where", "functions are layers"),
    Family("keras torch tensorflow", "hf.nn",
           "(Zero|Constant|Circular|Reflection|Replication)Pad(?:ding)?\\d[dD] Cropping\\dD",
           "hf.pad(x, pad_width, mode=...), or x[:, :, 1:-1]", "functions are layers"),
    Family("keras torch", "hf.nn", "UpSampling\\dD Upsampling\\w+ upsample_\\w+ (grid_sample|affine_grid)",
           "hf.nn.Upsample(scale), or hf.from_jax(jax.image.resize)", _ANY_AXES),
    Family("keras torch", "hf.nn",
           "SpatialDropout(\\d)D (Feature)?AlphaDropout Gaussian(Dropout|Noise) (feature_)?alpha_dropout "
           "gumbel_softmax", "hf.nn.Dropout1d to Dropout3d, or x + hf.random.normal(x.shape) while self.training",
           "random numbers are drawn in forward"),
    Family("torch", "hf.nn",
           "Fold Unfold (un)?fold ChannelShuffle (native_)?channel_shuffle Pixel\\w+ pixel_(un)?shuffle "
           "depth_to_space space_to_(batch|depth) dilation2d erosion2d", "x.reshape(...).permute_dims(...)",
           "it moves elements only"),
    Family("torch tensorflow", "hf.nn",
           "EmbeddingBag embedding_(bag|lookup\\w*) safe_embedding_\\w+ ReversibleEmbedding",
           "hf.nn.Embedding, and the mean over an axis", _EXPRESSION),
    Family("keras", "hf.nn", "ReversibleEmbedding Masking ActivityRegularization InputSpec",
           "hf.nn.embedding(ids, w) and h @ w.T, lengths= of layers, or a term of the loss", "it is an expression"),
    Family("torch tensorflow keras optax", "hf.nn",
           "CosineSimilarity PairwiseDistance pairwise_distance pdist cosine_distance",
           "hf.nn.cosine_similarity, or hf.linalg.vector_norm(x - y, axis=-1)", _LOSS),
    Family("keras", "hf.nn",
           "(Binary|Categorical|SparseCategorical)Crossentropy (binary|categorical|sparse_categorical)_crossentropy",
           "hf.nn.softmax_cross_entropy(logits, labels), or hf.nn.sigmoid_cross_entropy",
           f"they take what comes before the softmax or sigmoid; {PER_EXAMPLE}"),
    Family("keras", "hf.nn", "MeanSquared(Logarithmic)?Error mean_squared_(logarithmic_)?error squared_error l2_loss",
           "hf.nn.mse(prediction, target)", PER_EXAMPLE),
    Family("keras", "hf.nn", "MeanAbsolute(Percentage)?Error mean_absolute_(percentage_)?error",
           "hf.nn.mae(prediction, target)", PER_EXAMPLE),
    Family("keras torch optax", "hf.nn", "KLDivergence kl_divergence\\w* \\w*kl_divergence",
           "hf.nn.kl_div(target, log_prediction)", PER_EXAMPLE),
    Family("keras optax torch", "hf.nn", "CTC ctc \\w*ctc_\\w+ CTCLoss", "hf.from_jax(optax.ctc_loss)",
           "JAX functions are operations, with their gradients"),
    Family("optax", "hf.nn",
           "(hinge|squared_error|softmax_cross_entropy|safe_softmax_cross_entropy|poly_loss_cross_entropy|sigmoid_binary_cross_entropy|softmax_cross_entropy_with_integer_labels|smooth_labels|log_cosh|ntxent|l2_loss|huber_loss|hinge_loss|make_fenchel_young_loss|ranking_softmax_loss|sigmoid_focal_loss|\\w+perceptron_loss|perceptron_loss|\\w*sparsemax_loss|\\w*dice_loss|multiclass_hinge_loss)",
           "hf.nn.softmax_cross_entropy and the other losses of hf.nn, or hf.from_jax(optax.{0})",
           "JAX functions are operations, with their gradients"),
    Family("torch keras tensorflow", "hf.nn",
           "\\w+Loss\\w* \\w+_loss \\w+_loss_\\w+ \\w+_(cross_entropy|hinge)\\w* Loss "
           "\\w*(Hinge|Focal|CrossEntropy)\\w* hinge Circle circle Dice dice Tversky tversky LogCosh log_cosh "
           "Poisson poisson log_poisson_loss \\w*generalized_cross_entropy \\w*focal_crossentropy NLLLoss2d "
           "LinearCrossEntropyOptions",
           "an expression of hf.nn.softmax_cross_entropy, hinge, huber, mse, cosine_similarity and hf.relu", _LOSS),
    Family("keras", "hf.nn",
           "Random\\w+ Aug\\w+ AutoContrast CenterCrop \\w*Equalization CutMix MixUp RandAugment Solarization "
           "MaxNumBoundingBoxes Resizing MelSpectrogram STFTSpectrogram", "data.map(fn) of hf.data.Batches", _IMAGES),
    Family("keras", "hf.nn",
           "CategoryEncoding Discretization HashedCrossing Hashing (Integer|String)Lookup TextVectorization",
           "data.map(fn) of hf.data.Batches, or hf.nn.one_hot and hf.searchsorted",
           "text becomes ids before the model"),
    Family("keras", "hf.nn", "(Flax|Jax)Layer TFSMLayer TorchModuleWrapper", "hf.from_jax(fn)",
           "a JAX function is an operation"),
    Family("torch", "hf.nn", "Buffer", "self.register_buffer(name, value)", "it is a method of hf.nn.Module"),
    Family("torch", "hf.nn", "Container", "hf.nn.Module", "lists and dicts are parts of a model as they are"),
    Family("torch tensorflow", "hf.nn",
           "approx_\\w+_k \\w+_sampler sampled_softmax_loss nce_loss AdaptiveLogSoftmaxWithLoss in_top_k "
           "compute_accidental_hits isotonic_regression collapse_repeated \\w*grouped_mm scaled_\\w+ "
           "linear_cross_entropy bias_add zero_fraction compute_average_loss scale_regularization_loss",
           "hf.nn.softmax_cross_entropy(logits, labels), hf.top_k and matmul", _EXPRESSION),
    Family("torch", "hf.nn",
           "parallel quantized quantizable qat intrinsic has_torch_function\\w* handle_torch_function "
           "boolean_dispatch overload \\w+_notes assert_int_or_pair get_\\w+ scaled_dot_general\\w* experimental",
           "hf.compile(fn, mesh=...), or hf.quantize", _INNER),
    Family("keras", "hf.nn", "L[12] L1L2 l[12] l1_l2 \\w*[rR]egularizer",
           "loss + rate * hf.sum(w ** 2), or decay= of the optimizer", "what is added to a loss is in the code"),
    # -- initial values
    Family("keras", "hf.nn.init",
           "(Glorot|He|Lecun)(Normal|Uniform) Random(Normal|Uniform) TruncatedNormal random_(normal|uniform)",
           "hf.nn.init.normal(std=...), uniform, truncated_normal, glorot_normal, he_normal or lecun_normal, or "
           "their _uniform", "initial values are functions of a shape"),
    Family("torch keras jax", "hf.nn.init",
           "(trunc_normal|eye|dirac|sparse|identity|delta_orthogonal)_? \\w*Initializer STFT stft VarianceScaling "
           "variance_scaling calculate_gain",
           "w.assign(hf.nn.init.truncated_normal()(w.shape)), hf.eye or hf.nn.init.kaiming_normal",
           "initial values are functions of a shape"),
    # -- optimizers and schedules
    Family("torch keras optax", "hf.optim",
           "ASGD [NR]Adam Adamax Nadam Rprop SparseAdam Ftrl Lamb ScheduleFreeAdamW adabelief adamaxw? adan "
           "amsgrad dpsgd fromage lamb lars n?adamw? nadam nadamw noisy_sgd novograd polyak_sgd radam rprop "
           "sign_sgd sm3 yogi optimistic_\\w+",
           "hf.optim.Optax(model, optax.adamax(rate)), or optax's lamb, nadam, radam, yogi",
           "any rule of optax is an optimizer"),
    Family("torch", "hf.optim", "StepLR MultiStepLR", "rate=hf.optim.step(0.1, 0.5, 30), or piecewise", _RATE),
    Family("torch", "hf.optim", "Exponential(LR|Decay) InverseTimeDecay exponential_decay",
           "rate=hf.optim.exponential(0.1, 0.99)", _RATE),
    Family("torch keras optax", "hf.optim", "CosineAnnealing\\w+ CosineDecay\\w* \\w*cosine\\w*_schedule sgdr_schedule",
           "rate=hf.optim.cosine(0.1, steps), or warmup_cosine", _RATE),
    Family("torch optax", "hf.optim", "OneCycleLR CyclicLR \\w+_onecycle_schedule",
           "rate=hf.optim.one_cycle(0.1, steps)", _RATE),
    Family("torch keras optax", "hf.optim", "ReduceLROnPlateau",
           "a callback: opt.rate = opt.rate * 0.1 if run.stalled('val_loss', patience=5)",
           "a rate of a number can be assigned"),
    Family("torch keras optax", "hf.optim", "\\w+(LR|Scheduler|Decay|Schedule|_schedule|_schedules) swa_utils",
           "rate=hf.optim.linear(0.1, 0.0, steps), piecewise, exponential, or a function of the step", _RATE),
    Family("optax", "hf.optim",
           "\\w+State \\w+Fn Params Updates OptState Schedule ScalarOrSchedule GradientTransformation\\w* MaskOrFn "
           "\\w+Function \\w+Params ApplyEvery MultiSteps ZoomLinesearchInfo", "opt.named_variables()",
           "the state of an optimizer is Variables"),
    Family("optax", "hf.optim",
           "apply_updates chain inject_hyperparams multi_transform partition masked conditionally_\\w+ "
           "apply_(every|if_finite) incremental_update periodic_update lookahead stateless\\w* "
           "keep_params_nonnegative set_to_zero identity scale\\w* add_\\w+ trace ema centralize "
           "adaptive_grad_clip clip\\w* zero_nans skip_\\w+ differentially_private_aggregate per_example_\\w+ "
           "measure_with_ema monitor microbatch\\w* value_and_grad_from_state normalize_by_\\w+ init_empty_state",
           "hf.optim.Optax(model, optax.chain(...)), or groups=, hf.clip_by_global_norm and hf.optim.EMA",
           "any rule of optax is an optimizer"),
    Family("optax", "hf.optim",
           "\\w+_(loss|labels|entropy|divergence|probs|distance) hinge huber_loss log_cosh ntxent global_norm "
           "safe_\\w+ power_iteration nnls matrix_inverse_pth_root assignment losses multi_normal smooth_labels "
           "signum softmax_cross_entropy_with_integer_labels cosine_similarity",
           "the losses of hf.nn, or hf.from_jax(optax.{0})", "losses are no part of hf.optim"),
    Family("keras", "hf.optim", "LossScaleOptimizer", "loss_scale= of hf.train.fit, or hf.LossScale",
           "it is the name here"),
    Family("keras torch", "hf.optim",
           "MultiOptimizer OptimizerMap swap_in_optimizer_params_and_state LearningRateSchedule",
           "groups= of the optimizer, or two optimizers", "an optimizer has Variables"),
    Family("keras", "hf hf.nn hf.optim hf.metrics hf.nn.init", "deserialize serialize get legacy saving", "",
           _SERIALIZED),
    # -- metrics
    Family("keras", "hf.metrics", "F1Score FBetaScore", "hf.metrics.F1(classes)", "it is the name here"),
    Family("keras", "hf.metrics", "R2Score", "hf.metrics.R2()", "it is the name here"),
    Family("keras", "hf.metrics", "(Mean|RootMean)(Squared|Absolute)\\w*Error mean_\\w+_error",
           "hf.metrics.MSE() or MAE()", "they are the names here"),
    Family("keras", "hf.metrics", "(Sparse)?TopKCategoricalAccuracy (sparse_)?top_k_\\w+", "hf.metrics.TopK(k)",
           "labels are integers there"),
    Family("keras", "hf.metrics", "\\w*(IoU|Positives|Negatives|AtRecall|AtPrecision|AtSensitivity|AtSpecificity)",
           "hf.metrics.ConfusionMatrix(classes), or AUC", "they are figures of its table"),
    Family("keras", "hf.metrics", "MeanMetricWrapper Sum \\w*[cC]orrelation Poisson poisson "
           "\\w*(CosineSimilarity|Hinge|Divergence|LogCosh\\w*|[cC]rossentropy|hinge|divergence|log_cosh|[aA]ccuracy)",
           "hf.metrics.Mean() of the figure, or hf.metrics.Accuracy()", "update(values) adds the values of a batch"),
    # -- training and data
    Family("keras", "hf.train",
           "ModelCheckpoint BackupAndRestore OrbaxCheckpoint CheckpointManager Checkpoint\\w* checkpoints_iterator "
           "latest_checkpoint load_(checkpoint|variable) list_variables get_checkpoint_state TrackableView",
           "directory= of hf.train.fit, with restore_best=True; or hf.save and hf.load",
           "a training that was stopped goes on from there"),
    Family("keras", "hf.train",
           "Callback(List)? LambdaCallback LearningRateScheduler ReduceLROnPlateau TerminateOnNaN RemoteMonitor",
           "callbacks=[function of the run] of hf.train.fit",
           "run.last('val_loss') is a figure, run.stop() ends the training, opt.rate can be assigned"),
    Family("keras", "hf.train", "CSVLogger History ProgbarLogger TensorBoard",
           "what hf.train.fit returns, and hf.summary.Writer for TensorBoard", "progress= shows the progress"),
    Family("keras tensorflow", "hf.train", "SwapEMAWeights ExponentialMovingAverage", "hf.optim.EMA(model)",
           "its means are Variables"),
    Family("tensorflow", "hf.train",
           "(Bytes|Float|Int64)List Feature\\w* (Sequence)?Example (Cluster|Job|Server)\\w* Coordinator "
           "experimental", "any iterable of batches, and hf.distribute.initialize",
           "records are read by grain or tfds"),
    Family("torch", "hf.data",
           "\\w*(Sampler|Dataset|DataPipe) Subset random_split get_worker_info default_\\w+ DataChunk "
           "argument_validation functional_datapipe guaranteed_\\w+ non_deterministic runtime_\\w+",
           "hf.data.Batches(examples, size, shuffle=True, workers=n)",
           "examples are a sequence: an object with __len__ and __getitem__"),
    Family("tensorflow", "hf.data",
           "AUTOTUNE INFINITE_CARDINALITY UNKNOWN_CARDINALITY \\w*Spec \\w*Iterator Options ThreadingOptions "
           "experimental", "hf.data.Batches((x, y), size), .map(fn) and .prefetch(n)",
           "any iterable of batches is data"),
    # -- random numbers
    Family("numpy", "hf.random",
           "BitGenerator MT19937 PCG64\\w* Philox SFC64 SeedSequence RandomState [gs]et_state bytes SeedGenerator "
           "Algorithm \\w*rng_state [gs]et_global_generator key_\\w+ wrap_key_data clone fold_in bits",
           "hf.random.seed(n) or hf.random.Generator(n)",
           "random numbers are stateful, and the same eager and compiled"),
    Family("tensorflow", "hf.random", "stateless_\\w+", "hf.random.Generator(seed)",
           "its draws depend on its seed only"),
    Family("numpy jax tensorflow", "hf.random",
           "random random_sample ranf sample random_integers standard_exponential standard_gamma standard_cauchy",
           "hf.random.uniform, integers, exponential, gamma or cauchy", "their first argument is the shape"),
    Family("numpy jax tensorflow", "hf.random",
           "chisquare f hypergeometric logseries multinomial negative_binomial noncentral_\\w+ pareto rayleigh "
           "standard_t t triangular vonmises wald weibull(_min)? zipf ball (double_sided_)?maxwell "
           "generalized_normal loggamma orthogonal rademacher \\w+_sampler random_gamma_p experimental",
           "hf.random.normal, gamma, exponential, uniform and categorical",
           "others are expressions of their draws, such as -hf.log(hf.random.uniform(shape)) ** (1 / k)"),
    # -- trees
    Family("jax", "hf.tree", "(tree_)?(map|flatten|leaves)_with_path tree_(map|flatten|unflatten|leaves) "
           "(tree_)?(structure|reduce\\w*|all|transpose|broadcast)", "hf.tree.map, flatten, unflatten and leaves",
           "leaves are in the order of the keys"),
    Family("jax", "hf.tree",
           "\\w*Key\\w* Partial PyTreeDef register_\\w+ treedef_\\w+ is_tree_node all_leaves default_registry "
           "flatten_one_level\\w* keystr static", "jax.tree_util.{0}", "the trees are JAX's"),
    # -- what has no place here
    Family("tensorflow keras", "hf",
           "strings as_string lookup queue sets feature_column Operation AggregationMethod CriticalSection "
           "DeviceSpec \\w+Spec TensorShape UnconnectedGradients VariableAggregation VariableSynchronization audio "
           "autograph bitwise check_pinned errors experimental get_logger graph_util import_graph_def io lite "
           "load_\\w+ make_\\w+ mlir nest raw_ops register_\\w+ saved_model signal sysconfig test timestamp tpu "
           "type_spec_from_value types version __internal__ image estimator", "",
           "it is about TensorFlow's graphs, files or strings, which hybridflow has not"),
    Family("keras", "hf", "Layer Model", "hf.nn.Module", "__init__ makes the parameters, forward(x) is the call"),
    Family("keras", "hf", "(Loss|Metric|Initializer|Regularizer|Quantizer|Optimizer)",
           "a function, or a class like those of hf.metrics and hf.optim", "no class is needed"),
    Family("keras", "hf",
           "KerasTensor \\w+Scope activations applications constraints datasets distillation distribution "
           "preprocessing quantizers regularizers src visualization wrappers InputSpec",
           "hf.nn, hf.models, hf.distribute and hf.quantize", "they are the places here"),
)
"""The families. A name belongs to the first family that has it."""
