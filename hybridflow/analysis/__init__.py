"""Comparison of eager and compiled runs, and reports about them."""
