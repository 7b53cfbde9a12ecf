"""The rows of the benchmarks; `registry.all_rows` imports every module here."""
