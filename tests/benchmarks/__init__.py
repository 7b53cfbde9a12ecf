"""Benchmarks: hybridflow and its peers do the same work in one process, compared by ratios of median times.

Run ``python -m tests.benchmarks`` from the root of the checkout. `registry` explains how to write a row.
"""
