"""The result of one check of `hybridflow doctor`."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        what: what was checked.
        fault: what is wrong and how to fix it; empty if nothing is wrong.
        remark: what is worth knowing if nothing is wrong.
    """

    what: str
    fault: str = ""
    remark: str = ""
