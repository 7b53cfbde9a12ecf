"""What `hybridflow doctor` tried."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """What was tried.

    Attributes:
        what: it.
        fault: what is wrong and what to do; empty if nothing is.
        remark: what is worth knowing though nothing is wrong.
    """

    what: str
    fault: str = ""
    remark: str = ""
