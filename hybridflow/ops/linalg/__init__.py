"""`hf.linalg`: linear algebra, of matrices and stacks of them."""

from hybridflow.ops.diagonals import diagonal as diagonal
from hybridflow.ops.diagonals import trace as trace
from hybridflow.ops.einsum import outer as outer
from hybridflow.ops.einsum import tensordot as tensordot
from hybridflow.ops.einsum import vecdot as vecdot
from hybridflow.ops.linalg.eigen import *  # noqa: F403
from hybridflow.ops.linalg.eigh import *  # noqa: F403
from hybridflow.ops.linalg.exponential import *  # noqa: F403
from hybridflow.ops.linalg.lu import *  # noqa: F403
from hybridflow.ops.linalg.minors import *  # noqa: F403
from hybridflow.ops.linalg.norms import *  # noqa: F403
from hybridflow.ops.linalg.products import *  # noqa: F403
from hybridflow.ops.linalg.qr import *  # noqa: F403
from hybridflow.ops.linalg.schur import *  # noqa: F403
from hybridflow.ops.linalg.svd import *  # noqa: F403
from hybridflow.ops.linalg.systems import *  # noqa: F403
from hybridflow.ops.linalg.triangular import *  # noqa: F403
from hybridflow.ops.matmul import matmul as matmul
from hybridflow.ops.shape import matrix_transpose as matrix_transpose
