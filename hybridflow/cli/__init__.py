"""The command line, ``hybridflow VERB``; each verb is a file in `verbs`."""

from hybridflow.cli.main import main as main
