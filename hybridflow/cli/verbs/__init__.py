"""A verb of the command line per file: its name is the file's.

A verb has `HELP`, what it does in a few words; `add_arguments`, which tells the parser what it takes; and `run`, which
prints to a console and returns whether results that it compared are the same, as True where it compares none.
"""
