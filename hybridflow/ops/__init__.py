"""The operations, a family per file. Importing the package makes `core.operators` ready for their records.

- Files are named for what is in them: `arithmetic` has `add`, `reductions` has `sum`, `nn.softmax` has `softmax`.
- `kinds` says once what elementwise families share. `common` has what rules share: `unbroadcast` sums the gradient of
  an operand that was broadcast.
- `padding` and the files named after it have the rules for values that are padded up to a bound.
- `page` and `stubs` write `README.md`, the list of all operations, and the types of tensors' methods.

`register` makes a user-defined operation from a `kernel`, a `lower`, a gradient rule and samples: `Sample`, `Bad`.
"""

import typing as _typing

from hybridflow.core import operators as operators
from hybridflow.core.op import Bad as Bad
from hybridflow.core.op import Sample as Sample

if _typing.TYPE_CHECKING:
    from hybridflow.ops.own import register as register
else:

    def __getattr__(name: str) -> object:
        if name == "register":  # imported on first use: it needs the families' common parts
            from hybridflow.ops.own import register

            return register
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
