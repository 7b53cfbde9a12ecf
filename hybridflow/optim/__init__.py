"""`hf.optim`: optimizers and schedules of the learning rate."""

from hybridflow.optim.optimizer import Optimizer as Optimizer
from hybridflow.optim.optimizers import SGD as SGD
from hybridflow.optim.optimizers import Adadelta as Adadelta
from hybridflow.optim.optimizers import Adagrad as Adagrad
from hybridflow.optim.optimizers import Adam as Adam
from hybridflow.optim.optimizers import AdamW as AdamW
from hybridflow.optim.optimizers import Lion as Lion
from hybridflow.optim.optimizers import RMSprop as RMSprop
