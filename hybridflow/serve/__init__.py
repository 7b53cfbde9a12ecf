"""`hf.serve`: a server for artifacts."""

from hybridflow.core.attached import attached as _attached
from hybridflow.serve.app import App as App
from hybridflow.serve.app import Options as Options
from hybridflow.serve.app import app as app
from hybridflow.serve.supervisor import Server as Server
from hybridflow.serve.supervisor import serve as serve

_attached("name_module")("hf.serve", __name__)
