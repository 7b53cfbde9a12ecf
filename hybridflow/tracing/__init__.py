"""Tracing: `hf.compile`, its traces and executables, and what they report.

- `compile` has the options, and `function` the compiled function: it finds or makes the trace of a call.
- `make_trace` runs the user's function once with traced tensors; `trace` is the result, and runs calls.
- `fit` lists what a compiled call checks before a trace serves it: the key, made in `hybridflow.guards.signature`; then
  sizes, the order of dicts, Variables and their gradients; then the guards of `hybridflow.guards.guards`.
- `short_call` generates the call of a function with one trace, which checks the same in fewer steps.
- `recorded` records a call on a tape, and compiles its gradient.
- `choice`, `predicted`, `bounded` and `recorded_bounded` decide and make programs for many sizes.
- `records`, `explanation`, `lowered`, `costing` and `replay` report.
"""
