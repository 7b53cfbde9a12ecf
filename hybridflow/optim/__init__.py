"""`hf.optim`: optimizers and schedules of the learning rate."""

from hybridflow.core.attached import attached as _attached
from hybridflow.optim.average import EMA as EMA
from hybridflow.optim.lbfgs import LBFGS as LBFGS
from hybridflow.optim.optax import Optax as Optax
from hybridflow.optim.optimizer import Optimizer as Optimizer
from hybridflow.optim.optimizers import SGD as SGD
from hybridflow.optim.optimizers import Adadelta as Adadelta
from hybridflow.optim.optimizers import Adafactor as Adafactor
from hybridflow.optim.optimizers import Adagrad as Adagrad
from hybridflow.optim.optimizers import Adam as Adam
from hybridflow.optim.optimizers import AdamW as AdamW
from hybridflow.optim.optimizers import Lion as Lion
from hybridflow.optim.optimizers import Muon as Muon
from hybridflow.optim.optimizers import RMSprop as RMSprop
from hybridflow.optim.schedules import constant as constant
from hybridflow.optim.schedules import cosine as cosine
from hybridflow.optim.schedules import exponential as exponential
from hybridflow.optim.schedules import linear as linear
from hybridflow.optim.schedules import one_cycle as one_cycle
from hybridflow.optim.schedules import piecewise as piecewise
from hybridflow.optim.schedules import step as step
from hybridflow.optim.schedules import warmup_cosine as warmup_cosine

_attached("name_module")("hf.optim", __name__)
