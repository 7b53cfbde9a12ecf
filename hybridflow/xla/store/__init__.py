"""The store of executables on disk: what was compiled once is loaded by later processes.

- `fingerprint` identifies a graph.
- `environment` identifies everything else that a compilation depends on.
- `location` says where the store is.
- `directory` keeps its files safely.
- `ahead` loads an executable while its function is traced.
- `stored_programs` makes the key from these (`entry_for`), saves executables and loads them.
"""
