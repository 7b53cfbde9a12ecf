"""Gradients: tapes, `.backward()`, functional gradients, and the backward walk behind them all."""
