"""Gradients: tapes, `.backward()`, functional gradients, and the backward walk behind them all.

- `walk` is the backward walk: the only code that passes gradients on and adds them up.
- `backprop` has the engines with which it runs rules: on bare arrays, on tensors, in a trace.
- `tape`, `backward` (with `requires_grad`) and `functional` are the three ways to ask for gradients.
- `jacobian` and `vectorize` run many walks as one; `why` explains a gradient that is None.
"""
