"""The graph: its nodes, its text, and its rules.

Importing it registers the operations that only graphs contain, so that every text of a graph can be parsed.
"""

from hybridflow.core.sources import Constant as Constant
from hybridflow.ir.fusion import BREAK as BREAK
from hybridflow.ir.fusion import OUTLINED as OUTLINED
from hybridflow.ir.fusion import TIED as TIED
from hybridflow.ir.graph import Graph as Graph
from hybridflow.ir.number import NUMBER as NUMBER
from hybridflow.ir.parser import parse as parse
from hybridflow.ir.printer import format_node as format_node
from hybridflow.ir.printer import print_graph as print_graph
from hybridflow.ir.printer import value_names as value_names
from hybridflow.ir.rolled import ROLLED as ROLLED
from hybridflow.ir.verify import verify as verify
