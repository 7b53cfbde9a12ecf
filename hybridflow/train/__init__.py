"""`hf.train`: loops over data that train, evaluate and predict, and a record of the run that can be taken up again."""

from hybridflow.train.fitting import fit as fit
from hybridflow.train.loops import evaluate as evaluate
from hybridflow.train.loops import predict as predict
from hybridflow.train.run import Run as Run
