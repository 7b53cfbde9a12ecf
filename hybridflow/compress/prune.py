"""`hf.prune`."""
