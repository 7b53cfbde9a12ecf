"""`hf.nn`: neural-network operations, each one node with one gradient rule."""

from hybridflow.ops.nn.activations import *  # noqa: F403
from hybridflow.ops.nn.attention import scaled_dot_product_attention as scaled_dot_product_attention
from hybridflow.ops.nn.average_pooling import avg_pool as avg_pool
from hybridflow.ops.nn.batch_statistics import *  # noqa: F403
from hybridflow.ops.nn.channels import batch_norm as batch_norm
from hybridflow.ops.nn.channels import group_norm as group_norm
from hybridflow.ops.nn.channels import instance_norm as instance_norm
from hybridflow.ops.nn.channels import moments as moments
from hybridflow.ops.nn.composed_losses import *  # noqa: F403
from hybridflow.ops.nn.convolution import conv as conv
from hybridflow.ops.nn.convolution import conv_transpose as conv_transpose
from hybridflow.ops.nn.dense import linear as linear
from hybridflow.ops.nn.embeddings import embedding as embedding
from hybridflow.ops.nn.labels import one_hot as one_hot
from hybridflow.ops.nn.losses import *  # noqa: F403
from hybridflow.ops.nn.normalization import *  # noqa: F403
from hybridflow.ops.nn.pooling import max_pool as max_pool
from hybridflow.ops.nn.rectifiers import *  # noqa: F403
from hybridflow.ops.nn.recurrent import lstm_cell as lstm_cell
from hybridflow.ops.nn.regularization import dropout as dropout
from hybridflow.ops.nn.softmax import *  # noqa: F403
from hybridflow.ops.statistics import logsumexp as logsumexp
