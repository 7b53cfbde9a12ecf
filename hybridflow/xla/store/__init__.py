"""The store of executables on disk: what was compiled once is loaded by later processes.

`fingerprint` says what a graph is, `surroundings` what else decides what XLA makes of it, `place` where the store is,
`directory` keeps its files safely, and `keeping` puts them together.
"""
