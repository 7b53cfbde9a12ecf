"""What a trace depends on outside its graph: the signature of the arguments, and what the function read from Python.

Converted code calls the functions of `observe` when it reads or writes. `Observations` records what one trace saw.
`guards` turns that record into the check that runs before each call.
"""
