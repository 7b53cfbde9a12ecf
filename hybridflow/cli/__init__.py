"""The command line: ``hybridflow VERB``, with a file in `verbs` for each."""

from hybridflow.cli.main import main as main
