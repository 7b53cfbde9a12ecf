"""`hf.linalg`: linear algebra, of matrices and stacks of them."""

from hybridflow.ops.linalg.systems import *  # noqa: F403
from hybridflow.ops.linalg.triangular import *  # noqa: F403
from hybridflow.ops.matmul import matmul as matmul
from hybridflow.ops.shape import matrix_transpose as matrix_transpose
