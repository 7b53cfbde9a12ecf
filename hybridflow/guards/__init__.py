"""What a trace depends on outside of its graph: the arguments' signature, and what the function read from Python.

`observe` is what converted code calls when it reads or writes; `Observations` keeps what was seen in one trace;
`guards` makes of it what each call checks.
"""
