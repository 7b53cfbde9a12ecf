"""Tensors, Variables, operations, and the context in which they run.

- `op` is the record of an operation, and `node` what is recorded when it runs.
- `dispatch` has `bind`, the function that every operation goes through; `recording` makes the node of an eager one.
- `tensor`, `variable`, `spec`, `dtypes` and `dims` are the values. `convert` makes arrays of users' values, and
  `operators` has the operators and methods of tensors, with a short path for the common case.
- `context` holds the current tape, tracer, device and autocast; `settings` what `hf.config` changes.
- `errors` has every error's class.
"""
