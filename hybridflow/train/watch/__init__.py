"""`hybridflow watch`: a page with the curves of runs, live, and the machine's load."""

from hybridflow.train.watch.server import serve as serve
