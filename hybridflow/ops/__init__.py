"""The operations, a family per file. Importing the package makes `core.operators` ready for their records.

`register` makes an operation of one's own from a `kernel`, a `lower`, a gradient rule and samples: `Sample`, `Bad`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from hybridflow.core import operators as operators
from hybridflow.core.op import Bad as Bad
from hybridflow.core.op import Sample as Sample

if _TYPE_CHECKING:
    from hybridflow.ops.own import register as register


def __getattr__(name: str) -> object:
    if name == "register":  # imported on first use: it needs the families' common parts
        from hybridflow.ops.own import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
