"""A process that loads and calls the artifacts of strangers, as a server would; it answers each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow.backend.process_memory import process_memory
from hybridflow.core.errors import HybridflowError
from hybridflow.later import register_rest

register_rest()  # an unknown operation has hybridflow look for it in modules that are imported late
LIMITS = hf.export.Limits(bytes=1 << 28, elements=1 << 24, memory=1 << 28, steps=10_000)
_FORBIDDEN = (
    "compile", "ctypes.dlopen", "exec", "import", "marshal.loads", "os.", "pickle.find_class", "shutil.", "socket.",
    "subprocess.", "sys.addaudithook", "tempfile.",
)


def arguments(function: Any) -> dict[str, Any]:
    """Return values for a function's inputs, with open sizes of 2."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {}
    for path, spec in function.inputs.items():
        shape = [size if isinstance(size, int) else 2 for size in spec.shape]
        values[path] = hf.asarray(rng.integers(0, 3, shape), dtype=spec.dtype)
    return values


class Grown:
    """How far the memory of this process rises above where it is; 0 where the system does not tell."""

    def __init__(self) -> None:
        self.start = process_memory() if os.access("/proc/self/clear_refs", os.W_OK) else None
        if self.start is not None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

    def bytes(self) -> int:
        """Return the bytes of the peak above the start."""
        now = process_memory()
        return 0 if self.start is None or now is None else now.peak - self.start.resident


class Watch:
    """An audit hook that notes what loading must not do."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: Any) -> None:
        if not self.on:
            return
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or (event.startswith(_FORBIDDEN) and event != "os.scandir"):  # errors name what a folder holds
            self.seen.append(f"{event} {args!r}"[:200])


def answer(path: str, copy: bool, watch: Watch) -> dict[str, Any]:
    """Load an artifact and call its functions, and return what came of it and what it took."""
    grown, start, stage, error = Grown(), time.perf_counter(), "load", None
    watch.seen.clear()
    try:
        watch.on = True
        artifact = hf.export.load(path, limits=LIMITS, copy=copy)
        watch.on, stage = False, "call"
        for function in artifact.functions.values():
            function.by_name(arguments(function))
    except Exception as caught:
        error = caught
    watch.on = False
    return {
        "error": None if error is None else type(error).__name__,
        "ours": isinstance(error, HybridflowError),
        "text": str(error),
        "stage": stage,
        "seconds": time.perf_counter() - start,
        "grown": grown.bytes(),
        "seen": [*watch.seen],
    }


def main() -> None:
    warnings.simplefilter("ignore")
    watch = Watch()
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line), watch)), flush=True)


if __name__ == "__main__":
    main()
