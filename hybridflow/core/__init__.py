"""Tensors, Variables, operations, and the context in which they run."""
