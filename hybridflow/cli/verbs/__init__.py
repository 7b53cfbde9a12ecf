"""The verbs of the command line, one per file, named after the file.

A verb has `HELP`, a short description; `add_arguments`, which adds its arguments to the parser; and `run`, which prints
to a console and returns whether the results that it compared are the same (True if it compares none), or an exit code.
"""
