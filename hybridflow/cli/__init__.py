"""The command line: ``hybridflow demo | compare | inspect | doctor``."""
