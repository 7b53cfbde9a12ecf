"""`hf.cond`, `hf.while_loop`, `hf.scan`: plain Python when eager, nested graphs in a trace.

A body may read and assign Variables, and check conditions. In a trace it becomes a graph that gets the Variables'
values as inputs and returns what it assigned and whether its checks hold; the trace around it goes on from there.
"""

from hybridflow.autodiff.control_flow.branches import cond as cond
from hybridflow.autodiff.control_flow.limits import max_iterations as max_iterations
from hybridflow.autodiff.control_flow.loops import while_loop as while_loop
from hybridflow.autodiff.control_flow.scans import scan as scan
from hybridflow.autodiff.control_flow.tensor_array import TensorArray as TensorArray
