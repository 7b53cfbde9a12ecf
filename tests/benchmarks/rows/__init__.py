"""The rows; every module here is imported by `registry.all_rows`."""
