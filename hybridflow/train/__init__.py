"""`hf.train`: loops over data that train, evaluate and predict, and runs that can be resumed."""

from hybridflow.core.attached import attached as _attached
from hybridflow.train.fitting import fit as fit
from hybridflow.train.loops import evaluate as evaluate
from hybridflow.train.loops import predict as predict
from hybridflow.train.run import Run as Run

_attached("name_module")("hf.train", __name__)
