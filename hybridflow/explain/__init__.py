"""The output of `fn.explain()`: the records of traces as text, table, tree and page, and advice."""
