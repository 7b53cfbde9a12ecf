"""Everything below the operations: NumPy, BLAS and threads on the host, XLA through jax, and files."""
