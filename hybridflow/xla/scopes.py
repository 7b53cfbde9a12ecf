"""Executables whose instructions say which nodes of the graph they compute."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import jax

from hybridflow.core.node import Node
from hybridflow.ir.evaluate import NAMER
from hybridflow.ir.graph import Graph

_NAME = re.compile(r"hfn(\d+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.$-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.$-]+) = ")
_CALLS = re.compile(r"calls=%?([\w.$-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r"%([\w.$-]+)")
_RUNS_OTHERS = re.compile(r" (?:while|conditional|call)\(")
_FUSION = re.compile(r" fusion\(")


class Namer:
    """Names the nodes of a graph while it is lowered.

    Args:
        suffix: the text that is added to the program's name.
        graph: the graph, whose nodes are numbered in its order. So equal graphs give the same names, and one can read
            an executable that was made for the other. Other nodes are numbered as they are lowered.

    Attributes:
        suffix: the text that is added to the program's name.
        nodes: the nodes, by number.
    """

    def __init__(self, suffix: str = "", graph: Graph | None = None) -> None:
        self.suffix = suffix
        self.nodes: list[Node] = [] if graph is None else list(dict.fromkeys(graph.walk()))
        self._numbers: dict[Node, int] = {node: number for number, node in enumerate(self.nodes)}

    def __call__(self, node: Node) -> AbstractContextManager[Any]:
        """Return the scope in which a node is lowered."""
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return jax.named_scope(f"hfn{number}")

    def node(self, op_name: str) -> Node | None:
        """Return the innermost node in an instruction's name."""
        numbers = _NAME.findall(op_name)
        return self.nodes[int(numbers[-1])] if numbers and int(numbers[-1]) < len(self.nodes) else None


@contextmanager
def naming(namer: Namer) -> Generator[None]:
    """Compile graphs in a block with named nodes and without the store.

    Args:
        namer: names the nodes.
    """
    token = NAMER.set(namer)
    try:
        yield
    finally:
        NAMER.reset(token)


class Instruction(NamedTuple):
    """An instruction of a program.

    Attributes:
        nodes: the nodes that it computes; a fusion computes several.
        computation: the computation that it is in; for example, a loop's body is a computation of its own.
        runs_others: whether it runs other computations: a loop, a branch, a call.
        fused: the computation that it calls if it is a fusion, else empty.
        serves: whether XLA added it without a name; `nodes` are then those of its readers or operands.
    """

    nodes: tuple[Node, ...]
    computation: str
    runs_others: bool
    fused: str = ""
    serves: bool = False


def instructions(hlo: str, namer: Namer) -> dict[str, Instruction]:
    """Return the instructions of a program by name.

    Some instructions were added by XLA without a node's name, such as a copy or the first half of a long sum. They get
    the nodes of the instructions that read them, or else those of their operands.

    Args:
        hlo: the text of the optimised program.
        namer: the namer with which the program was lowered.
    """
    parsed = _parsed(hlo)
    members: defaultdict[str, list[str]] = defaultdict(list)
    for one in parsed.values():
        members[one.computation] += one.names
    nodes = {name: _nodes([*one.names, *members.get(one.fused, ())], namer) for name, one in parsed.items()}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for name, one in parsed.items():
        for operand in one.operands:
            readers[operand].append(name)
    nameless = {name for name in parsed if not nodes[name]}
    for name, one in parsed.items():
        if name in nameless:
            near = [node for other in readers[name] for node in nodes[other]]
            near = near or [node for other in one.operands for node in nodes.get(other, ())]
            nodes[name] = tuple(dict.fromkeys(near))
    return {
        name: Instruction(nodes[name], one.computation, one.runs_others, one.fused, name in nameless)
        for name, one in parsed.items()
    }


def fusions(hlo: str, namer: Namer) -> dict[str, tuple[Node, ...]]:
    """Return the fusions of a program by name, each with the nodes that it computes in one kernel.

    Args:
        hlo: the text of the optimised program.
        namer: the namer with which the program was lowered.
    """
    parsed = instructions(hlo, namer)
    fused = {one.fused for one in parsed.values()}
    return {
        name: one.nodes for name, one in parsed.items()
        if one.fused and not one.serves and one.computation not in fused
    }


class _Line(NamedTuple):
    """The line of an instruction.

    Attributes:
        names: the names of the jax operations that it computes.
        computation: the computation that it is in.
        operands: its operands.
        fused: the computation that it calls if it is a fusion, else empty.
        runs_others: whether it runs other computations.
    """

    names: list[str]
    computation: str
    operands: list[str]
    fused: str
    runs_others: bool


def _parsed(hlo: str) -> dict[str, _Line]:
    lines: dict[str, _Line] = {}
    computation = ""
    for line in hlo.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            computation = head[1]
            continue
        match = _INSTRUCTION.match(line)
        if match:
            body = line[match.end() :].split(", metadata=", 1)[0]
            called = _CALLS.search(body) if _FUSION.search(body) else None
            operands = _OPERAND.findall(body.split("), ", 1)[0])
            names = [name for several in _OP_NAME.findall(line) for name in several.split(";")]
            fused = called[1] if called else ""
            lines[match[1]] = _Line(names, computation, operands, fused, bool(_RUNS_OTHERS.search(body)))
    return lines


def _nodes(names: Iterable[str], namer: Namer) -> tuple[Node, ...]:
    nodes = [node for node in map(namer.node, names) if node is not None]
    return tuple(dict.fromkeys(nodes))
