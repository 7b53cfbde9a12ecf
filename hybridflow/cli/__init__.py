"""The command line: ``hybridflow demo | compare | inspect | doctor | cache``."""

from hybridflow.cli.main import main as main
