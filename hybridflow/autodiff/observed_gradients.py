"""Gradients that observers of modules want to see beside those that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridflow.core.settings import SETTINGS


def observed_gradients(tape: Any, sources: Any, compute: Callable[[Any], Any]) -> Any:
    """Return the gradients of sources, and show observers those of the results that they wait for.

    Args:
        tape: the tape that is asked.
        sources: what it is asked for.
        compute: returns the gradients of any sources, in their structure.
    """
    wanted = [one.asked(tape) for one in SETTINGS.observers]
    gradients, of_results = compute((sources, wanted))
    for one, own in zip(SETTINGS.observers, of_results, strict=True):
        one.answered(own)
    return gradients
