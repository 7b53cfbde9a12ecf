"""What `fn.explain()` says of the records of traces: text, tables, trees and pages of them, and advice."""
