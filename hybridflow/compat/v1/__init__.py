"""A bridge for programs of TensorFlow 1: ``import hybridflow.compat.v1 as tf``.

It has the names that tutorials use: a default graph, placeholders, Variables with initializers, sessions, optimizers,
summaries and saved models, on top of `hf.Graph` and `hf.Session`. Every run is compiled. It reads all Variables at its
start and assigns them at its end, all or none of them; under `control_dependencies`, reads give what was
assigned. Names
that are absent raise an error that says what to write instead. New programs should use hybridflow itself.

Example:
    >>> import hybridflow.compat.v1 as tf
    >>> tf.reset_default_graph()
    >>> x = tf.placeholder(tf.float32, shape=[None])
    >>> w = tf.Variable(3.0)
    >>> y = w * x
    >>> with tf.Session() as sess:
    ...     sess.run(tf.global_variables_initializer())
    ...     sess.run(y, feed_dict={x: [1.0, 2.0]})
    array([3., 6.], dtype=float32)
"""

from types import SimpleNamespace as _SimpleNamespace

from hybridflow import foreign as _foreign
from hybridflow.compat.v1 import layers as layers
from hybridflow.compat.v1 import losses as losses
from hybridflow.compat.v1 import nn as nn
from hybridflow.compat.v1 import saved_model as saved_model
from hybridflow.compat.v1 import summary as summary
from hybridflow.compat.v1 import train as train
from hybridflow.compat.v1.functions import abs as abs
from hybridflow.compat.v1.functions import add as add
from hybridflow.compat.v1.functions import add_n as add_n
from hybridflow.compat.v1.functions import add_to_collection as add_to_collection
from hybridflow.compat.v1.functions import argmax as argmax
from hybridflow.compat.v1.functions import argmin as argmin
from hybridflow.compat.v1.functions import cast as cast
from hybridflow.compat.v1.functions import ceil as ceil
from hybridflow.compat.v1.functions import clip_by_global_norm as clip_by_global_norm
from hybridflow.compat.v1.functions import clip_by_norm as clip_by_norm
from hybridflow.compat.v1.functions import clip_by_value as clip_by_value
from hybridflow.compat.v1.functions import concat as concat
from hybridflow.compat.v1.functions import cond as cond
from hybridflow.compat.v1.functions import constant as constant
from hybridflow.compat.v1.functions import constant_initializer as constant_initializer
from hybridflow.compat.v1.functions import control_dependencies as control_dependencies
from hybridflow.compat.v1.functions import convert_to_tensor as convert_to_tensor
from hybridflow.compat.v1.functions import cos as cos
from hybridflow.compat.v1.functions import cumsum as cumsum
from hybridflow.compat.v1.functions import divide as divide
from hybridflow.compat.v1.functions import einsum as einsum
from hybridflow.compat.v1.functions import equal as equal
from hybridflow.compat.v1.functions import exp as exp
from hybridflow.compat.v1.functions import expand_dims as expand_dims
from hybridflow.compat.v1.functions import eye as eye
from hybridflow.compat.v1.functions import fill as fill
from hybridflow.compat.v1.functions import floor as floor
from hybridflow.compat.v1.functions import floordiv as floordiv
from hybridflow.compat.v1.functions import gather as gather
from hybridflow.compat.v1.functions import get_collection as get_collection
from hybridflow.compat.v1.functions import global_norm as global_norm
from hybridflow.compat.v1.functions import glorot_normal_initializer as glorot_normal_initializer
from hybridflow.compat.v1.functions import glorot_uniform_initializer as glorot_uniform_initializer
from hybridflow.compat.v1.functions import gradients as gradients
from hybridflow.compat.v1.functions import greater as greater
from hybridflow.compat.v1.functions import greater_equal as greater_equal
from hybridflow.compat.v1.functions import group as group
from hybridflow.compat.v1.functions import he_normal_initializer as he_normal_initializer
from hybridflow.compat.v1.functions import identity as identity
from hybridflow.compat.v1.functions import is_finite as is_finite
from hybridflow.compat.v1.functions import is_nan as is_nan
from hybridflow.compat.v1.functions import less as less
from hybridflow.compat.v1.functions import less_equal as less_equal
from hybridflow.compat.v1.functions import linspace as linspace
from hybridflow.compat.v1.functions import log as log
from hybridflow.compat.v1.functions import log1p as log1p
from hybridflow.compat.v1.functions import logical_and as logical_and
from hybridflow.compat.v1.functions import logical_not as logical_not
from hybridflow.compat.v1.functions import logical_or as logical_or
from hybridflow.compat.v1.functions import matmul as matmul
from hybridflow.compat.v1.functions import maximum as maximum
from hybridflow.compat.v1.functions import minimum as minimum
from hybridflow.compat.v1.functions import mod as mod
from hybridflow.compat.v1.functions import multiply as multiply
from hybridflow.compat.v1.functions import negative as negative
from hybridflow.compat.v1.functions import no_op as no_op
from hybridflow.compat.v1.functions import not_equal as not_equal
from hybridflow.compat.v1.functions import one_hot as one_hot
from hybridflow.compat.v1.functions import ones as ones
from hybridflow.compat.v1.functions import ones_initializer as ones_initializer
from hybridflow.compat.v1.functions import ones_like as ones_like
from hybridflow.compat.v1.functions import pad as pad
from hybridflow.compat.v1.functions import placeholder as placeholder
from hybridflow.compat.v1.functions import pow as pow
from hybridflow.compat.v1.functions import random_normal as random_normal
from hybridflow.compat.v1.functions import random_normal_initializer as random_normal_initializer
from hybridflow.compat.v1.functions import random_uniform as random_uniform
from hybridflow.compat.v1.functions import random_uniform_initializer as random_uniform_initializer
from hybridflow.compat.v1.functions import range as range
from hybridflow.compat.v1.functions import rank as rank
from hybridflow.compat.v1.functions import reduce_all as reduce_all
from hybridflow.compat.v1.functions import reduce_any as reduce_any
from hybridflow.compat.v1.functions import reduce_logsumexp as reduce_logsumexp
from hybridflow.compat.v1.functions import reduce_max as reduce_max
from hybridflow.compat.v1.functions import reduce_mean as reduce_mean
from hybridflow.compat.v1.functions import reduce_min as reduce_min
from hybridflow.compat.v1.functions import reduce_prod as reduce_prod
from hybridflow.compat.v1.functions import reduce_sum as reduce_sum
from hybridflow.compat.v1.functions import reshape as reshape
from hybridflow.compat.v1.functions import reverse as reverse
from hybridflow.compat.v1.functions import round as round
from hybridflow.compat.v1.functions import rsqrt as rsqrt
from hybridflow.compat.v1.functions import set_random_seed as set_random_seed
from hybridflow.compat.v1.functions import shape as shape
from hybridflow.compat.v1.functions import sigmoid as sigmoid
from hybridflow.compat.v1.functions import sign as sign
from hybridflow.compat.v1.functions import sin as sin
from hybridflow.compat.v1.functions import split as split
from hybridflow.compat.v1.functions import sqrt as sqrt
from hybridflow.compat.v1.functions import square as square
from hybridflow.compat.v1.functions import squared_difference as squared_difference
from hybridflow.compat.v1.functions import squeeze as squeeze
from hybridflow.compat.v1.functions import stack as stack
from hybridflow.compat.v1.functions import stop_gradient as stop_gradient
from hybridflow.compat.v1.functions import subtract as subtract
from hybridflow.compat.v1.functions import tan as tan
from hybridflow.compat.v1.functions import tanh as tanh
from hybridflow.compat.v1.functions import tensordot as tensordot
from hybridflow.compat.v1.functions import tile as tile
from hybridflow.compat.v1.functions import to_float as to_float
from hybridflow.compat.v1.functions import transpose as transpose
from hybridflow.compat.v1.functions import truediv as truediv
from hybridflow.compat.v1.functions import truncated_normal as truncated_normal
from hybridflow.compat.v1.functions import truncated_normal_initializer as truncated_normal_initializer
from hybridflow.compat.v1.functions import tuple_of as tuple_of
from hybridflow.compat.v1.functions import unstack as unstack
from hybridflow.compat.v1.functions import where as where
from hybridflow.compat.v1.functions import while_loop as while_loop
from hybridflow.compat.v1.functions import zeros as zeros
from hybridflow.compat.v1.functions import zeros_initializer as zeros_initializer
from hybridflow.compat.v1.functions import zeros_like as zeros_like
from hybridflow.compat.v1.graph import Graph as Graph
from hybridflow.compat.v1.graph import GraphKeys as GraphKeys
from hybridflow.compat.v1.graph import Operation as Operation
from hybridflow.compat.v1.graph import Tensor as Tensor
from hybridflow.compat.v1.graph import get_default_graph as get_default_graph
from hybridflow.compat.v1.graph import reset_default_graph as reset_default_graph
from hybridflow.compat.v1.session import ConfigProto as ConfigProto
from hybridflow.compat.v1.session import GPUOptions as GPUOptions
from hybridflow.compat.v1.session import InteractiveSession as InteractiveSession
from hybridflow.compat.v1.session import Session as Session
from hybridflow.compat.v1.session import get_default_session as get_default_session
from hybridflow.compat.v1.variables import AUTO_REUSE as AUTO_REUSE
from hybridflow.compat.v1.variables import Variable as Variable
from hybridflow.compat.v1.variables import VariableScope as VariableScope
from hybridflow.compat.v1.variables import assign as assign
from hybridflow.compat.v1.variables import assign_add as assign_add
from hybridflow.compat.v1.variables import assign_sub as assign_sub
from hybridflow.compat.v1.variables import get_variable as get_variable
from hybridflow.compat.v1.variables import get_variable_scope as get_variable_scope
from hybridflow.compat.v1.variables import global_variables as global_variables
from hybridflow.compat.v1.variables import global_variables_initializer as global_variables_initializer
from hybridflow.compat.v1.variables import local_variables_initializer as local_variables_initializer
from hybridflow.compat.v1.variables import name_scope as name_scope
from hybridflow.compat.v1.variables import trainable_variables as trainable_variables
from hybridflow.compat.v1.variables import variable_scope as variable_scope
from hybridflow.compat.v1.variables import variables_initializer as variables_initializer
from hybridflow.core.dtypes import bfloat16 as bfloat16
from hybridflow.core.dtypes import bool_ as bool_
from hybridflow.core.dtypes import complex64 as complex64
from hybridflow.core.dtypes import complex128 as complex128
from hybridflow.core.dtypes import float16 as float16
from hybridflow.core.dtypes import float32 as float32
from hybridflow.core.dtypes import float64 as float64
from hybridflow.core.dtypes import int8 as int8
from hybridflow.core.dtypes import int16 as int16
from hybridflow.core.dtypes import int32 as int32
from hybridflow.core.dtypes import int64 as int64
from hybridflow.core.dtypes import uint8 as uint8
from hybridflow.core.dtypes import uint16 as uint16
from hybridflow.core.dtypes import uint32 as uint32
from hybridflow.core.dtypes import uint64 as uint64

initializers = _SimpleNamespace(
    random_normal=random_normal_initializer, random_uniform=random_uniform_initializer, zeros=zeros_initializer,
    ones=ones_initializer, constant=constant_initializer, truncated_normal=truncated_normal_initializer,
    global_variables=global_variables_initializer, variables=variables_initializer,
)
math = _SimpleNamespace(
    add=add, subtract=subtract, multiply=multiply, divide=divide, square=square, sqrt=sqrt, exp=exp, log=log, abs=abs,
    tanh=tanh, sigmoid=sigmoid, equal=equal, greater=greater, less=less, argmax=argmax, reduce_mean=reduce_mean,
    reduce_sum=reduce_sum, reduce_max=reduce_max, maximum=maximum, minimum=minimum, pow=pow,
)
random = _SimpleNamespace(normal=random_normal, uniform=random_uniform, set_random_seed=set_random_seed)
tuple = tuple_of
bool = bool_

_foreign.name_module("v1", __name__)
for _part in ("layers", "nn", "summary", "train"):
    _foreign.name_module(f"v1.{_part}", f"{__name__}.{_part}")
