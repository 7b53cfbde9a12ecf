"""The command line: ``hybridflow demo | compare | inspect | profile | doctor | cache``."""

from hybridflow.cli.main import main as main
