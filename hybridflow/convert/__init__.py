"""Conversion of a user's Python code, so that a trace learns of its control flow, reads and writes.

A function's syntax tree is rewritten to call the runtime (see `Runtime`), compiled under its file's name and with its
line numbers, and bound to its globals, defaults and closure. The converted form runs only while a function is traced.
"""

from hybridflow.convert.build import converted_text as converted_text
from hybridflow.convert.build import is_converted as is_converted
from hybridflow.convert.build import reason_of as reason_of
from hybridflow.convert.callee import converted as converted
from hybridflow.convert.regions import recursion_limit as recursion_limit
from hybridflow.convert.source import NotConvertible as NotConvertible
