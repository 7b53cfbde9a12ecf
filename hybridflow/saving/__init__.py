"""Values in files, and checkpoints of a run: files are written whole or not at all; reading one runs no code."""
