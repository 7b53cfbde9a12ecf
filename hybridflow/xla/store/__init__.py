"""The store of executables on disk: what was compiled once is loaded by later processes.

`fingerprint` says what a graph is, `environment` what else decides what XLA makes of it, `location` where the store is,
`directory` keeps its files safely, and `stored_programs` puts them together.
"""
