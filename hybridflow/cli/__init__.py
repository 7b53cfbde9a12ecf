"""The command line: ``hybridflow demo | compare | inspect | doctor``."""

from hybridflow.cli.main import main as main
