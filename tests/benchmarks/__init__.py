"""Benchmarks: the same work done by hybridflow and by its peers in one process, as ratios of medians.

Run with ``python -m tests.benchmarks`` from the root of the checkout; `registry` says how a row is written.
"""
