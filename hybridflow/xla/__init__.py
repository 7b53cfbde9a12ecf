"""Lowering graphs to XLA, compiling them, and the store of executables."""
