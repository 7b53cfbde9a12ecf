"""`hf.serve`: a server for artifacts."""

from hybridflow.serve.app import App as App
from hybridflow.serve.app import Options as Options
from hybridflow.serve.app import app as app
from hybridflow.serve.supervisor import Server as Server
from hybridflow.serve.supervisor import serve as serve
