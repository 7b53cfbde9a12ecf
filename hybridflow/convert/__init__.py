"""Conversion of a user's Python code, so that it reports to the runtime what a trace must know.

A converted function keeps the user's lines: its syntax tree is rewritten, compiled under its file's name, and bound to
its globals, defaults and closure. It runs only while a function is traced.
"""

from hybridflow.convert.build import converted_text as converted_text
from hybridflow.convert.build import is_converted as is_converted
from hybridflow.convert.build import reason_of as reason_of
from hybridflow.convert.callee import converted as converted
from hybridflow.convert.regions import recursion_limit as recursion_limit
from hybridflow.convert.source import NotConvertible as NotConvertible
