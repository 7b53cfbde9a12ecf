"""`hf.special`: special functions under SciPy's names, with gradients to any order.

Eager code runs SciPy's functions, compiled code jax's or formulas of this package; each docstring says within which
bound both keep to the function. float16 and bfloat16 are computed in float32.
"""

from hybridflow.ops.special.harmonics import *  # noqa: F403
from hybridflow.ops.special.incomplete import *  # noqa: F403
from hybridflow.ops.special.of_gamma import *  # noqa: F403
from hybridflow.ops.special.one_argument import *  # noqa: F403
from hybridflow.ops.special.pairs import *  # noqa: F403
from hybridflow.ops.statistics import logsumexp as logsumexp
from hybridflow.ops.transcendental import erf as erf
