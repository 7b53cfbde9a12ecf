"""Tracing: `hf.compile`, its traces and executables, and what they report."""
