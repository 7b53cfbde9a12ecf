"""Transformations of functions: `hf.jvp`, `hf.jacobian`, `hf.hessian`, `hf.hvp`, `hf.vmap`; gradient clipping."""
