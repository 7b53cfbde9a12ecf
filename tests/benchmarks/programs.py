"""Facts about compiled programs that need no clock: what XLA is given, and what it makes of it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from hybridflow.tracing.lowered import Lowered

TYPE = r"(?:\((?:[^()]|\([^()]*\))*\)|\S+)"
INSTRUCTION = re.compile(rf"^\s+(?:ROOT )?%?[\w.\-]+ = {TYPE} ([a-z][a-z0-9\-]*)\(", re.MULTILINE)
"""An instruction of optimised HLO; its group is the kind of operation."""
TARGET = re.compile(r'custom_call_target="([^"]+)"')
NAMED = (
    "fusion", "custom-call", "transpose", "convert", "copy", "copy-start", "dot", "convolution", "reduce", "while",
    "conditional", "call", "scatter", "gather", "dynamic-update-slice", "concatenate", "sort", "rng-bit-generator",
)  # fmt: skip
"""The kinds of operations that are counted by name."""
NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
"""The kinds of operations that do no work of their own."""


def entry_of(hlo: str) -> str:
    """Return the entry computation of an HLO text."""
    return hlo[hlo.rindex("\nENTRY ") :].partition("\n}")[0] if "\nENTRY " in hlo else ""


def hlo_facts(hlo: str) -> dict[str, Any]:
    """Return the counts of optimised HLO: of all computations, of the entry one, library calls, donated buffers."""
    everywhere, entry = Counter(INSTRUCTION.findall(hlo)), Counter(INSTRUCTION.findall(entry_of(hlo)))
    header = hlo.partition("\n")[0]
    return {
        "operations": everywhere.total(),
        "kernels": sum(count for kind, count in entry.items() if kind not in NOTHING),
        "by_kind": {kind: everywhere[kind] for kind in NAMED if everywhere[kind]},
        "entry_by_kind": {kind: entry[kind] for kind in NAMED if entry[kind]},
        "custom_calls": dict(Counter(TARGET.findall(hlo))),
        "donated": len(re.findall(r"(?:may|must)-alias", header)),
    }


def stablehlo_facts(text: str) -> dict[str, int]:
    """Return how often each operation stands in a StableHLO text, and how many arguments are donated."""
    counts = Counter(
        found.removeprefix("stablehlo.")
        for found in re.findall(r"(?:= |^\s+)\"?((?:stablehlo|chlo)\.[a-z_]+|call(?= @))", text, re.MULTILINE)
        if found != "stablehlo.return"
    )
    counts["custom_call"] = 0
    for target in re.findall(r"stablehlo\.custom_call @([\w.$]+)", text):
        counts[f"custom_call {target}"] += 1
    counts["donated"] = len(re.findall(r"tf\.aliasing_output|jax\.buffer_donor", text))
    counts["functions"] = len(re.findall(r"^\s*func\.func ", text, re.MULTILINE))
    return {name: count for name, count in sorted(counts.items()) if count}


def memory_facts(compiled: Any) -> dict[str, int]:
    """Return the bytes that XLA plans for a program."""
    analysis = compiled.memory_analysis()
    names = ("temp", "argument", "output", "alias", "generated_code")
    found = {name: int(getattr(analysis, f"{name}_size_in_bytes")) for name in names}
    peak = getattr(analysis, "peak_memory_in_bytes", None)  # not in every version of jaxlib
    most = found["argument"] + found["output"] - found["alias"] + found["temp"]
    return found | {"peak": int(peak or most)}


def facts(lowered: Any) -> dict[str, Any]:
    """Return the facts about a lowering, hybridflow's or jax's, which is compiled if it was not."""
    if isinstance(lowered, Lowered):
        stablehlo, compiled = lowered.executable.lower().as_text(), lowered.executable.compiled
    else:
        stablehlo, compiled = lowered.as_text(), lowered.compile()
    return {
        "stablehlo": stablehlo_facts(stablehlo), "hlo": hlo_facts(compiled.as_text()), "memory": memory_facts(compiled),
    }  # fmt: skip
