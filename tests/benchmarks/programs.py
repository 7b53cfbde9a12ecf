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
_OF = r"tensor<(?:[\dx?]*x)?(\w+)>"
PRODUCT = re.compile(rf"stablehlo\.(dot_general|convolution)\b.*: \({_OF}, {_OF}\) -> {_OF}")
NAMED = (
    "fusion", "custom-call", "transpose", "convert", "copy", "copy-start", "dot", "convolution", "reduce", "while",
    "conditional", "call", "scatter", "gather", "dynamic-update-slice", "concatenate", "sort", "rng-bit-generator",
)
"""The kinds of operations that are counted by name."""
NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
"""The kinds of operations that do no work of their own."""
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\([^\n]*)?\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
CALLED = re.compile(r"(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)|"
                    r"branch_computations=\{([^}]*)\}")


def launched(hlo: str) -> Counter[str]:
    """Return how often each kind of operation is launched by the entry computation.

    What a call, a loop or a condition launches counts once, so that the commands of a CUDA graph count as such.
    """
    texts: dict[str, str] = {}
    first = ""
    for entry, name, text in COMPUTATION.findall(hlo):
        texts[name] = text
        first = name if entry else first
    counts: Counter[str] = Counter()

    def walk(name: str) -> None:
        for line in texts.get(name, "").splitlines():
            found = INSTRUCTION.match(line)
            if found is None or found[1] in NOTHING:
                continue
            if found[1] in ("call", "while", "conditional", "async-start"):
                for one, several in CALLED.findall(line):
                    for called in [one] if one else several.replace("%", "").split(", "):
                        walk(called)
            if found[1] != "call":
                counts[found[1]] += 1

    walk(first)
    return counts


def hlo_facts(hlo: str) -> dict[str, Any]:
    """Return the counts of optimised HLO: everywhere, of what is launched, of library calls and donated buffers."""
    everywhere, entry, donated = Counter(INSTRUCTION.findall(hlo)), Counter[str](), 0
    for module in re.split(r"^(?=HloModule )", hlo, flags=re.MULTILINE):  # a large program may be several
        entry += launched(module)
        donated += len(re.findall(r"(?:may|must)-alias", module.partition("\n")[0]))
    return {
        "operations": everywhere.total(),
        "kernels": entry.total(),
        "by_kind": {kind: everywhere[kind] for kind in NAMED if everywhere[kind]},
        "launched": dict(entry.most_common()),
        "custom_calls": dict(Counter(TARGET.findall(hlo))),
        "donated": donated,
    }


def stablehlo_facts(text: str) -> dict[str, int]:
    """Return how often each operation stands in a StableHLO text, and how many arguments are donated.

    Products and convolutions are also counted by their dtypes, which decide what units of a GPU compute them.
    """
    counts = Counter(
        found.removeprefix("stablehlo.")
        for found in re.findall(r"(?:= |^\s+)\"?((?:stablehlo|chlo)\.[a-z_]+|call(?= @))", text, re.MULTILINE)
        if found != "stablehlo.return"
    )
    counts["custom_call"] = 0
    for target in re.findall(r"stablehlo\.custom_call @([\w.$]+)", text):
        counts[f"custom_call {target}"] += 1
    for kind, left, right, made in PRODUCT.findall(text):
        counts[f"{kind} {left} x {right} -> {made}"] += 1
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
    }
