"""Passes over graphs: a pass is a function from a graph to an equivalent one, in a file of its own here."""

import importlib
import pkgutil

from hybridflow.passes.registry import PASSES as PASSES
from hybridflow.passes.registry import Pass as Pass
from hybridflow.passes.registry import PassContext as PassContext
from hybridflow.passes.registry import PassRecord as PassRecord
from hybridflow.passes.registry import graph_pass as graph_pass
from hybridflow.passes.registry import run_passes as run_passes

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
