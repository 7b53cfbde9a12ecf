"""Passes over graphs: a pass is a function from a graph to an equivalent one.

Each pass has a file of its own here. `pipeline` lists the passes in the order in which they run.
"""

from hybridflow.passes.lib.graph_pass import Pass as Pass
from hybridflow.passes.lib.graph_pass import PassContext as PassContext
from hybridflow.passes.lib.graph_pass import graph_pass as graph_pass
from hybridflow.passes.pipeline import ON_A_MESH as ON_A_MESH
from hybridflow.passes.pipeline import PIPELINE as PIPELINE
from hybridflow.passes.pipeline import PassRecord as PassRecord
from hybridflow.passes.pipeline import Pipeline as Pipeline
from hybridflow.passes.pipeline import run_passes as run_passes
