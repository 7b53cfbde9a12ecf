"""`hf.metrics`: metrics over many batches. Their sums are Variables, so compiled steps can update them."""

from hybridflow.core.attached import attached as _attached
from hybridflow.metrics.classes import AUC as AUC
from hybridflow.metrics.classes import F1 as F1
from hybridflow.metrics.classes import Accuracy as Accuracy
from hybridflow.metrics.classes import ConfusionMatrix as ConfusionMatrix
from hybridflow.metrics.classes import Precision as Precision
from hybridflow.metrics.classes import Recall as Recall
from hybridflow.metrics.classes import TopK as TopK
from hybridflow.metrics.means import MAE as MAE
from hybridflow.metrics.means import MSE as MSE
from hybridflow.metrics.means import R2 as R2
from hybridflow.metrics.means import Mean as Mean
from hybridflow.metrics.means import Perplexity as Perplexity
from hybridflow.metrics.metric import Metric as Metric

_attached("name_module")("hf.metrics", __name__)
