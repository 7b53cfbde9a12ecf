"""`hf.compare`: what compiling a function buys, and whether its results stay the same."""

from hybridflow.analysis.compare.comparison import Comparison as Comparison
from hybridflow.analysis.compare.comparison import FirstCall as FirstCall
from hybridflow.analysis.compare.entry import compare as compare
from hybridflow.analysis.compare.kernels import KernelRun as KernelRun
from hybridflow.analysis.compare.kernels import count_kernels as count_kernels
from hybridflow.analysis.compare.peers import Peer as Peer
from hybridflow.analysis.compare.several import Comparisons as Comparisons
from hybridflow.analysis.compare.sweep import Crossover as Crossover
from hybridflow.analysis.compare.sweep import Sweep as Sweep
