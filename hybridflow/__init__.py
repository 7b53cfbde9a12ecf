"""hybridflow: eager tensors with a gradient tape, and the same functions compiled."""

import typing as _typing

from hybridflow.backend.collector import rare_collections as _rare_collections

_as_before = _rare_collections()

from hybridflow import ir as ir
from hybridflow import nn as nn
from hybridflow import ops as ops
from hybridflow.nested.associative_scan import associative_scan as associative_scan
from hybridflow.nested.accumulate import accumulate_gradients as accumulate_gradients
from hybridflow.nested.checkpoint import checkpoint as checkpoint
from hybridflow.nested.checkpoint_policies import checkpoint_name as checkpoint_name
from hybridflow.nested.checkpoint_policies import save_any_except as save_any_except
from hybridflow.nested.checkpoint_policies import save_only_names as save_only_names
from hybridflow.nested.tensor_array import TensorArray as TensorArray
from hybridflow.nested.branches import cond as cond
from hybridflow.nested.scans import scan as scan
from hybridflow.nested.limits import max_iterations as max_iterations
from hybridflow.nested.loops import while_loop as while_loop
from hybridflow.nested.custom_gradient import custom_gradient as custom_gradient
from hybridflow.autodiff.functional import grad as grad
from hybridflow.autodiff.functional import value_and_grad as value_and_grad
from hybridflow.autodiff.functional import vjp as vjp
from hybridflow.autodiff.grad_fn import GradFn as GradFn
from hybridflow.autodiff.requires_grad import enable_grad as enable_grad
from hybridflow.autodiff.requires_grad import is_grad_enabled as is_grad_enabled
from hybridflow.autodiff.requires_grad import no_grad as no_grad
from hybridflow.autodiff.requires_grad import tensor as tensor
from hybridflow.autodiff.tape import GradientTape as GradientTape
from hybridflow.core.autocast import autocast as autocast
from hybridflow.core.context import init_scope as init_scope
from hybridflow.core.context import is_tracing as is_tracing
from hybridflow.core.device import device as device
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
from hybridflow.core.errors import BroadcastWarning as BroadcastWarning
from hybridflow.core.errors import CacheWarning as CacheWarning
from hybridflow.core.errors import DTypeWarning as DTypeWarning
from hybridflow.core.errors import EffectWarning as EffectWarning
from hybridflow.core.errors import RetraceWarning as RetraceWarning
from hybridflow.core.errors import WatchWarning as WatchWarning
from hybridflow.core.functions import no_convert as no_convert
from hybridflow.core.errors import LayoutError as LayoutError
from hybridflow.core.errors import LayoutWarning as LayoutWarning
from hybridflow.core.mesh import Mesh as Mesh
from hybridflow.core.node import name_scope as name_scope
from hybridflow.core.spec import TensorSpec as TensorSpec
from hybridflow.core.spec import dim as dim
from hybridflow.core.tensor import Tensor as Tensor
from hybridflow.core.tensor import asarray as asarray
from hybridflow.core.tracebacks import trim_what_nobody_catches as _trim_what_nobody_catches
from hybridflow.core.variable import Variable as Variable
from hybridflow.ir.construction import placeholder as placeholder
from hybridflow.ir.graph import Graph as Graph
from hybridflow.ops.along_axis import *  # noqa: F403
from hybridflow.ops.arithmetic import *  # noqa: F403
from hybridflow.ops.division import *  # noqa: F403
from hybridflow.ops.bits import *  # noqa: F403
from hybridflow.ops.choice import *  # noqa: F403
from hybridflow.ops.comparison import *  # noqa: F403
from hybridflow.ops.complex_parts import *  # noqa: F403
from hybridflow.ops.creation import *  # noqa: F403
from hybridflow.ops.ranges import *  # noqa: F403
from hybridflow.ops.diagonals import *  # noqa: F403
from hybridflow.ops.einsum import *  # noqa: F403
from hybridflow.ops.effects import *  # noqa: F403
from hybridflow.ops.cumulative import *  # noqa: F403
from hybridflow.ops.dtype_functions import *  # noqa: F403
from hybridflow.ops.elementwise import *  # noqa: F403
from hybridflow.ops.floats import *  # noqa: F403
from hybridflow.ops.indexing import *  # noqa: F403
from hybridflow.ops.jax_functions import from_jax as from_jax
from hybridflow.ops.joining import *  # noqa: F403
from hybridflow.ops.layouts import *  # noqa: F403
from hybridflow.ops.numerical import *  # noqa: F403
from hybridflow.ops.rearrange import *  # noqa: F403
from hybridflow.ops.reductions import *  # noqa: F403
from hybridflow.ops.sets import *  # noqa: F403
from hybridflow.ops.shape import *  # noqa: F403
from hybridflow.ops.sorting import *  # noqa: F403
from hybridflow.ops.statistics import *  # noqa: F403
from hybridflow.ops.transcendental import *  # noqa: F403
from hybridflow.ops.triangles import *  # noqa: F403
from hybridflow.ops.trigonometric import *  # noqa: F403
from hybridflow.ops.updates import *  # noqa: F403
from hybridflow.ops import fft as fft
from hybridflow.ops import linalg as linalg
from hybridflow.ops import random as random
from hybridflow.ops import special as special
from hybridflow.ops.nn.rectifiers import relu as relu
from hybridflow.ops.matmul import matmul as matmul
from hybridflow.ops.namespace_info import array_namespace_info as __array_namespace_info__
from hybridflow.tracing import config as config
from hybridflow.tracing.function import CompiledFunction as CompiledFunction
from hybridflow.tracing.compile import compile as compile
from hybridflow.tracing.session import Session as Session
from hybridflow.transforms.clipping import clip_by_global_norm as clip_by_global_norm
from hybridflow.transforms.clipping import clip_by_norm as clip_by_norm
from hybridflow.transforms.clipping import clip_by_value as clip_by_value
from hybridflow.transforms.clipping import global_norm as global_norm
from hybridflow.transforms.forward import hessian as hessian
from hybridflow.transforms.forward import hvp as hvp
from hybridflow.transforms.forward import jacobian as jacobian
from hybridflow.transforms.forward import jvp as jvp
from hybridflow.transforms.loss_scale import LossScale as LossScale
from hybridflow.transforms.loss_scale import all_finite as all_finite
from hybridflow.transforms.vmap import vmap as vmap
from hybridflow.xla.pending import synchronize as synchronize
from hybridflow import foreign as _foreign
from hybridflow import later as _later

if _typing.TYPE_CHECKING:  # `later` imports these on first use
    from hybridflow import compat as compat
    from hybridflow import data as data
    from hybridflow import debugging as debugging
    from hybridflow import distribute as distribute
    from hybridflow import export as export
    from hybridflow import integrate as integrate
    from hybridflow import metrics as metrics
    from hybridflow import models as models
    from hybridflow import optim as optim
    from hybridflow import optimize as optimize
    from hybridflow import serve as serve
    from hybridflow import summary as summary
    from hybridflow import testing as testing
    from hybridflow import train as train
    from hybridflow import tree as tree
    from hybridflow.analysis.advise import Advice as Advice
    from hybridflow.analysis.advise import advise as advise
    from hybridflow.analysis.compare import Comparison as Comparison
    from hybridflow.analysis.compare import Comparisons as Comparisons
    from hybridflow.analysis.compare import Sweep as Sweep
    from hybridflow.analysis.compare import compare as compare
    from hybridflow.analysis.cost import CostReport as CostReport
    from hybridflow.analysis.cost import XlaCheck as XlaCheck
    from hybridflow.analysis.cost import cost as cost
    from hybridflow.analysis.profile import Profile as Profile
    from hybridflow.analysis.profile import profile as profile
    from hybridflow.analysis.simulation import Hardware as Hardware
    from hybridflow.analysis.simulation import MeshSweep as MeshSweep
    from hybridflow.analysis.simulation import Simulation as Simulation
    from hybridflow.analysis.simulation.simulate import simulate as simulate
    from hybridflow.analysis.simulation import simulate_meshes as simulate_meshes
    from hybridflow.cli.magics import load_ipython_extension as load_ipython_extension
    from hybridflow.compress import prune as prune
    from hybridflow.compress import quantize as quantize
    from hybridflow.nested.manual import shard_map as shard_map
    from hybridflow.saving.files import load as load
    from hybridflow.saving.files import save as save
    from hybridflow.tracing.compile_recorded import compile_recorded as compile_recorded
    from hybridflow.tracing.to_jax import to_jax as to_jax
else:

    def __getattr__(name: str) -> object:
        return _later.imported(name)


__version__ = "0.2.0"
__array_api_version__ = "2024.12"
bool = bool_
e = 2.718281828459045
inf = float("inf")
nan = float("nan")
newaxis = None
pi = 3.141592653589793


def __dir__() -> list[str]:
    return sorted({*globals(), *_later.MODULES, *_later.NAMES})


_foreign.install()
_trim_what_nobody_catches()

_as_before()
