"""`hf.prune`: models without some of their weights, or with smaller layers."""

from hybridflow.compress.masks import Masked as Masked
from hybridflow.compress.masks import Movement as Movement
from hybridflow.compress.masks import cubic as cubic
from hybridflow.compress.masks import finish as finish
from hybridflow.compress.masks import linear as linear
from hybridflow.compress.masks import magnitude as magnitude
from hybridflow.compress.masks import movement as movement
from hybridflow.compress.masks import n_of_m as n_of_m
from hybridflow.compress.masks import random as random
from hybridflow.compress.masks import set_sparsity as set_sparsity
from hybridflow.compress.masks import sparsity as sparsity
from hybridflow.compress.pruning_report import PrunedLayer as PrunedLayer
from hybridflow.compress.pruning_report import PruningReport as PruningReport
from hybridflow.compress.pruning_report import report as report
from hybridflow.compress.structured import channels as channels
from hybridflow.compress.structured import prunable as prunable
