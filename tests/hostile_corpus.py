"""Artifacts that somebody made by hand to do harm: each is a change of a good artifact; loading or calling it fails."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from test_saving import HOSTILE

Change = Callable[[Path], None]
ABSENT: Any = object()
"""In `MANIFEST`: the entry is left out."""


def right_digests(folder: Path) -> None:
    """Make the digests in a manifest those of its files."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    for name, entry in manifest["files"].items():
        entry["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    file.write_text(json.dumps(manifest))


# -- manifests: (where, what is there instead) ------------------------------------------------------------------------

PREDICT = ("functions", "predict")
MANIFEST: dict[str, tuple[tuple[Any, ...], Any]] = {
    **{f"no {key}": ((key,), ABSENT) for key in ("files", "format", "functions", "leaves", "metadata", "trainable")},
    **{f"no {key} of a function": ((*PREDICT, key), ABSENT)
       for key in ("arguments", "checks", "inputs", "outputs", "parameters", "random", "result", "weights")},
    **{f"{key} are a number": ((key,), 3) for key in ("files", "functions", "metadata", "trainable", "leaves")},
    **{f"{key} are none": ((key,), None) for key in ("files", "functions", "metadata", "trainable", "leaves")},
    **{f"{key} of a function are a number": ((*PREDICT, key), 3)
       for key in ("arguments", "checks", "inputs", "outputs", "parameters", "result", "weights")},
    **{f"{key} of a function are a text": ((*PREDICT, key), "x")
       for key in ("arguments", "checks", "inputs", "outputs", "parameters", "result", "weights")},
    "a version to come": (("version",), 2),
    "a version of nothing": (("version",), 0),
    "a version of text": (("version",), "1"),
    "another format": (("format",), "pickle"),
    "a function is a list": (PREDICT, []),
    "a function outside": (("functions", "../predict"), {}),
    "a function at the root": (("functions", "/etc/passwd"), {}),
    "a function without a name": (("functions", ""), {}),
    "a function of a thousand letters": (("functions", "x" * 1000), {}),
    "a function with a zero byte": (("functions", "a\0b"), {}),
    "a function that hides an attribute": (("functions", "functions"), {}),
    "a function that is a dunder": (("functions", "__class__"), {}),
    "a file outside": (("files", "../../etc/passwd"), {"sha256": "0" * 64}),
    "a file of no function": (("files", "other.ir"), {"sha256": "0" * 64}),
    "a file is missing": (("files", "predict.ir"), ABSENT),
    "a file without a digest": (("files", "predict.ir"), {}),
    "a digest of a number": (("files", "predict.ir", "sha256"), 3),
    "another digest": (("files", "predict.ir", "sha256"), "0" * 64),
    "another digest of the weights": (("files", "weights.safetensors", "sha256"), "0" * 64),
    "an input twice": ((*PREDICT, "inputs"), ["x", "x"]),
    "an input too many": ((*PREDICT, "inputs"), ["x", "y"]),
    "no input": ((*PREDICT, "inputs"), []),
    "an input of no name": ((*PREDICT, "inputs"), [None]),
    "an output twice": ((*PREDICT, "outputs"), ["output", "output"]),
    "no output": ((*PREDICT, "outputs"), []),
    "an output too many": ((*PREDICT, "outputs"), ["output", "more"]),
    "a parameter twice": ((*PREDICT, "parameters"), ["x", "x"]),
    "a leaf twice": ((*PREDICT, "arguments"), [{"list": [0, 0]}]),
    "a leaf that is not there": ((*PREDICT, "arguments"), [7]),
    "a negative leaf": ((*PREDICT, "arguments"), [-1]),
    "a leaf that is true": ((*PREDICT, "arguments"), [True]),
    "a leaf that is a float": ((*PREDICT, "arguments"), [0.0]),
    "a structure of two kinds": ((*PREDICT, "arguments"), [{"list": [0], "tuple": []}]),
    "a structure of an unknown kind": ((*PREDICT, "arguments"), [{"set": [0]}]),
    "a dict of no pairs": ((*PREDICT, "arguments"), [{"dict": [0]}]),
    "a dict with a key twice": ((*PREDICT, "arguments"), [{"dict": [["a", 0], ["a", None]]}]),
    "a dict with a number as key": ((*PREDICT, "arguments"), [{"dict": [[1, 0]]}]),
    "a result of another leaf": ((*PREDICT, "result"), 1),
    "a result of nothing": ((*PREDICT, "result"), None),
    "a random state that is not there": ((*PREDICT, "random"), True),
    "a weight that is not there": ((*PREDICT, "weights"), ["out.weight"]),
    "a weight that is the random state": ((*PREDICT, "weights"), ["random state"]),
    "a check of nothing": ((*PREDICT, "checks"), [None]),
    "a check without an output": ((*PREDICT, "checks"), [{"error": "CheckError", "text": "", "where": ""}]),
    "a trained weight that is not there": (("trainable",), ["x"]),
    "a leaf weight that is not there": (("leaves",), ["x"]),
    "a trained weight of no name": (("trainable",), [[]]),
    "an operation of version 0": (("operations", "tanh"), 0),
    "an operation of version 99": (("operations", "tanh"), 99),
    "an operation of a version of text": (("operations", "tanh"), "1"),
    "operations are a list": (("operations",), []),
    "deep structures": ((*PREDICT, "result"), json.loads('{"list": [' * 60 + "0" + "]}" * 60)),
}
CHECKS: dict[str, Any] = {
    "an error of Python": {"error": "SystemExit", "text": "", "where": ""},
    "an error that is none": {"error": "message", "text": "", "where": ""},
    "an error that is a dunder": {"error": "__builtins__", "text": "", "where": ""},
    "a text that is none": {"error": "CheckError", "text": 3, "where": ""},
    "a line that is none": {"error": "CheckError", "text": "", "where": None},
}


def manifest_change(where: tuple[Any, ...], value: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "manifest.json"
        manifest = json.loads(file.read_text(encoding="utf-8"))
        owner = manifest
        for key in where[:-1]:
            owner = owner[key]
        if value is ABSENT:
            del owner[where[-1]]
        else:
            owner[where[-1]] = value
        file.write_text(json.dumps(manifest))

    return change


def manifest_text(old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        file = folder / "manifest.json"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


MANIFEST_TEXTS: dict[str, Change] = {
    "a key twice": manifest_text('"version": 1', '"version": 1, "version": 1'),
    "deep JSON": manifest_text('"metadata": {}', '"metadata": ' + "[" * 100_000 + "]" * 100_000),
    "deep JSON without an end": manifest_text('"metadata": {}', '"metadata": ' + '{"a":' * 100_000),
    "a number of 100,000 digits": manifest_text('"version": 1', '"version": ' + "9" * 100_000),
    "a number that is none": manifest_text('"version": 1', '"version": NaN'),
    "no JSON": manifest_text("{", "("),
    "letters a terminal would obey": manifest_text('"version": 1', '"version": "\\u001b[2J\\u202e"'),
    "half a surrogate pair": manifest_text('"version": 1', '"version": "\\ud800"'),
    "a list": lambda folder: (folder / "manifest.json").write_text("[]") and None,
    "no UTF-8": lambda folder: (folder / "manifest.json").write_bytes(b'{"\xff": 1}') and None,
    "17 MB": lambda folder: (folder / "manifest.json").write_bytes(b" " * (17 << 20)) and None,
}


# -- graphs: (the artifact, what is replaced, by what) ----------------------------------------------------------------

TEXTS: dict[str, tuple[str, str, str]] = {
    "an unknown operation": ("plain", "tanh(", "eval("),
    "an operation of this process only": ("plain", "tanh(", "print("),
    "an input in the middle": ("plain", "tanh(%x)", "input()"),
    "an attribute that no operation has": ("plain", "tanh(%x)", "tanh(%x) {code=1}"),
    "an opaque value": ("plain", "tanh(%x)", 'tanh(%x) {f=opaque("os.system")}'),
    "a value that is not there": ("plain", "tanh(%x)", "tanh(%7)"),
    "a value of later": ("plain", "tanh(%x)", "tanh(%0)"),
    "an operand too many": ("plain", "tanh(%x)", "tanh(%x, %x)"),
    "an operand too few": ("plain", "tanh(%x)", "tanh()"),
    "an operand of nobody": ("plain", "tanh(%x)", "tanh(_)"),
    "another dtype": ("plain", ": f32[3]  #", ": f64[3]  #"),
    "another shape": ("plain", ": f32[3]  #", ": f32[4]  #"),
    "another rank": ("plain", ": f32[3]  #", ": f32[3,1]  #"),
    "a negative size": ("plain", ": f32[3]  #", ": f32[-3]  #"),
    "a size of 20 digits": ("plain", ": f32[3]  #", f": f32[{'9' * 20}]  #"),
    "a size of 100,000 digits": ("plain", ": f32[3]  #", f": f32[{'9' * 100_000}]  #"),
    "a size that is a float": ("plain", ": f32[3]  #", ": f32[3.0]  #"),
    "an unknown size": ("plain", ": f32[3]  #", ": f32[?]  #"),
    "an unknown dtype": ("plain", ": f32[3]  #", ": f33[3]  #"),
    "a hundred axes": ("plain", ": f32[3]  #", f": f32[{'1,' * 99}3]  #"),
    "a result of another input": ("plain", "(f32[3]) {", "(f32[4]) {"),
    "a result that is not there": ("plain", "return %0", "return %9"),
    "no result": ("plain", "return %0", "return "),
    "two graphs": ("plain", "return %0\n}", "return %0\n} graph"),
    "no end": ("plain", "return %0\n}", ""),
    "a graph without a name": ("plain", "graph predict", "graph"),
    "an input of a size": ("plain", "%x: f32[3]", "%x: f32[n]"),
    "a size that no input has": ("plain", "graph predict(", "graph predict[n=3]("),
    "a size called True": ("drops", "x_0=17", "True=17"),
    "a hint of 50 digits": ("drops", "x_0=17", "x_0=" + "9" * 50),
    "a power of a size": ("drops", "shape=(x_0, 5)", "shape=(" + "*".join(["x_0"] * 80) + ", 5)"),
    "a division by 0": ("drops", "shape=(x_0, 5)", "shape=(x_0 // 0, 5)"),
    "a size that may be a division by 0": ("drops", "shape=(x_0, 5)", "shape=(x_0 // (x_0 - 2), 5)"),
    "a negative size at some sizes": ("drops", "shape=(x_0, 5)", "shape=(x_0 - 9, 5)"),
    "a size that grows": ("drops", "shape=(x_0, 5)", "shape=(x_0 * 1000000000000, 5)"),
    "a draw of too much": ("drops", "shape=(x_0, 5)", "shape=(x_0, 1000000000)"),
    "a draw of text": ("drops", "shape=(x_0, 5)", 'shape="5"'),
    "a draw of no shape": ("drops", "{shape=(x_0, 5)}", ""),
    "a scale that is a text": ("drops", "scale=1.4285714285714286", 'scale="x"'),
    "a scale that is none": ("drops", "scale=1.4285714285714286", "scale=None"),
    "a scale that is a tuple": ("drops", "scale=1.4285714285714286", "scale=(1, 2)"),
    "a state of another shape": ("drops", "%random_state: u32[4]", "%random_state: u32[5]"),
    "an axis out of range": ("drops", "softmax(%4) {axis=(1,)}", "softmax(%4) {axis=(7,)}"),
    "an axis twice": ("drops", "softmax(%4) {axis=(1,)}", "softmax(%4) {axis=(1, 1)}"),
    "an axis that is a float": ("drops", "softmax(%4) {axis=(1,)}", "softmax(%4) {axis=(1.0,)}"),
    "an axis that is a graph": (
        "drops", "softmax(%4) {axis=(1,)}", "softmax(%4) {axis=graph g(%x: f32[2]) -> (f32[2]) { return %x }}"
    ),
    "a stride of 0": ("net", "{stride=(1, 1)", "{stride=(0, 0)"),
    "a negative stride": ("net", "{stride=(1, 1)", "{stride=(-1, -1)"),
    "a stride of a float": ("net", "{stride=(1, 1)", "{stride=(1.5, 1)"),
    "a stride of one": ("net", "{stride=(1, 1)", "{stride=(1,)"),
    "a padding that is negative": ("net", "padding=((1, 1), (1, 1))", "padding=((-9, -9), (1, 1))"),
    "a padding of a lot": ("net", "padding=((1, 1), (1, 1))", "padding=((1000000000, 1), (1, 1))"),
    "a padding of three": ("net", "padding=((1, 1), (1, 1))", "padding=((1, 1), (1, 1), (1, 1))"),
    "a dilation of 0": ("net", "dilation=(1, 1)", "dilation=(0, 0)"),
    "no groups": ("net", "groups=1", "groups=0"),
    "groups that do not divide": ("net", "groups=1", "groups=7"),
    "groups of text": ("net", "groups=1", 'groups="a"'),
    "a window of 0": ("net", "window=(2, 2)", "window=(0, 0)"),
    "a window as large as the moon": ("net", "window=(2, 2)", "window=(1000000, 1000000)"),
    "an epsilon of text": ("net", "epsilon=1e-05", 'epsilon="a"'),
    "a scale that is not there": ("net", "has_scale=True", "has_scale=7"),
    "channels at a third place": ("net", "channels_last=False", "channels_last=None"),
    "a reshape to another size": ("net", "shape=(image_0, 18)", "shape=(image_0, 19)"),
    "a reshape to unknown sizes": ("net", "shape=(image_0, 18)", "shape=(-1, -1)"),
    "a weight of another shape": ("net", "%out_bias: f32[3]", "%out_bias: f32[4]"),
    "a weight of another dtype": ("net", "%out_bias: f32[3]", "%out_bias: i32[3]"),
    "residuals that no one has": ("net", "residuals=False", "residuals=7"),
    "a guard on a number": ("net", "guard image_0 == 0", "guard 1 == 0"),
    "a guard that never holds": ("net", "guard image_0 == 0 is False", "guard image_0 == 0 is True"),
    "a guard without an answer": ("net", "guard image_0 == 0 is False", "guard image_0 == 0 is None"),
    "a guard of another comparison": ("net", "guard image_0 == 0 is False", "guard image_0 != 0 is False"),
    "a scan of no steps": ("loop", "length=4", "length=-1"),
    "a scan of other steps": ("loop", "length=4", "length=5"),
    "a scan of all steps": ("loop", "length=4", "length=9223372036854775807"),
    "a scan of text": ("loop", "length=4", 'length="4"'),
    "a scan that carries less": ("loop", "carry=1", "carry=0"),
    "a scan that carries more": ("loop", "carry=1", "carry=3"),
    "a scan that carries text": ("loop", "carry=1", 'carry="1"'),
    "a scan of more rows": ("loop", "sequences=1", "sequences=2"),
    "a scan without a body": ("loop", "body=graph scan_body", "other=graph scan_body"),
    "a scan whose body returns less": ("loop", "return %1, %2", "return %1"),
    "a scan whose body returns another shape": ("loop", "return %1, %2", "return %2, %2"),
    "a scan whose body has another input": ("loop", "%x1: i32[]", "%x1: f32[]"),
    "a constant that is cut": ("loop", "[0.5, 0.0, 0.0], ", "[0.5, ..., 0.0], "),
    "a constant of fewer elements": ("loop", "[0.5, 0.0, 0.0], ", ""),
    "a constant of other elements": ("loop", "[0.5, 0.0, 0.0], ", '["a", 0.0, 0.0], '),
    "a constant of a huge shape": ("loop", "value=f32[3,3] ", "value=f32[3,9223372036854775807] "),
    "a constant of bytes": ("loop", "[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]]", 'hex "00"'),
    "a constant of no bytes": ("loop", "[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]]", 'hex "zz"'),
    "a range of a huge size": ("loop", "size=4, dtype", "size=4000000000, dtype"),
    "a range of a negative size": ("loop", "size=4, dtype", "size=-4, dtype"),
    "a range that overflows": ("loop", "start=0", "start=99999999999"),
    "a range of half": ("loop", "start=0", "start=0.5"),
    "a product of other shapes": ("loop", "matmul(%x0, %captured_0)", "matmul(%captured_0, %x0)"),
    "a loop without an end": ("endless", "bound=None", "bound=None"),
    "a bound of text": ("endless", "bound=None", 'bound="a"'),
    "a bound of all": ("endless", "bound=None", "bound=9223372036854775807"),
    "a condition of numbers": ("endless", "return %2", "return %0"),
    "a condition that is a body": ("endless", "cond=graph", "body=graph"),
    "a body that returns a bool": ("endless", "return %3\n    },\n    carry", "return %0\n    },\n    carry"),
    "indices of floats": ("rows", "%i: i32[3]", "%i: f32[3]"),
    "an index beyond": ("rows", "index=((0, 2, 1), (0, 4, 2))", "index=((0, 9, 1), (0, 4, 2))"),
    "an index of many axes": ("rows", "index=((0, 2, 1), (0, 4, 2))", "index=((0, 2, 1), (0, 4, 2), (0, 4, 2))"),
    "an index of step 0": ("rows", "index=((0, 2, 1), (0, 4, 2))", "index=((0, 2, 0), (0, 4, 0))"),
    "an index of text": ("rows", "index=((0, 2, 1), (0, 4, 2))", 'index="ab"'),
    "axes of a gather that are not there": ("rows", "{axes=(1,)}", "{axes=(5,)}"),
    "axes of a gather that are many": ("rows", "{axes=(1,)}", "{axes=(0, 1)}"),
    "a pad of a lot": ("rows", "pads=((0, 0), (1, 1))", "pads=((0, 0), (1000000000, 1))"),
    "a pad of less than nothing": ("rows", "pads=((0, 0), (1, 1))", "pads=((0, 0), (-9, 1))"),
    "a pad of text": ("rows", "pads=((0, 0), (1, 1))", 'pads=("a", "b")'),
    "a fill of text": ("rows", "fill_value=4", 'fill_value="4"'),
    "a fill of too much": ("rows", "shape=(), fill_value=4", "shape=(100000, 100000), fill_value=4"),
    "a norm that is not there": ("rows", 'norm="backward"', 'norm="sideways"'),
    "subscripts that do not fit": ("rows", 'subscripts="ij,kj->ik"', 'subscripts="ijk,kj->ik"'),
    "subscripts that repeat a result": ("rows", 'subscripts="ij,kj->ik"', 'subscripts="ij,kj->ii"'),
    "subscripts of many letters": ("rows", 'subscripts="ij,kj->ik"', f'subscripts="{"a" * 100_000}"'),
    "subscripts that are none": ("rows", 'subscripts="ij,kj->ik"', "subscripts=None"),
    "joining on no axis": ("rows", "concat(%3, %4) {axis=1}", "concat(%3, %4) {axis=9}"),
    "joining nothing": ("rows", "concat(%3, %4)", "concat()"),
    "a sum backwards of text": ("rows", "axis=1, reverse=False", 'axis=1, reverse="no"'),
    "deep tuples": ("rows", "pads=((0, 0), (1, 1))", "pads=" + "(" * 10_000 + ")" * 10_000),
    "deep signs": ("rows", "fill_value=4", "fill_value=" + "-" * 10_000 + "4"),
    "deep parentheses": ("rows", "fill_value=4", "fill_value=" + "(" * 10_000 + "4" + ")" * 10_000),
    "a long text": ("rows", 'subscripts="ij,kj->ik"', f'subscripts="{"%" * 5_000_000}'),
    "an escape that is none": ("rows", 'subscripts="ij,kj->ik"', r'subscripts="\q"'),
    "half a pair": ("rows", 'subscripts="ij,kj->ik"', r'subscripts="\ud800"'),
    "a zero byte": ("rows", "return %17", "\0return %17"),
}


def text_change(old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        file = folder / "predict.ir"
        text = file.read_text(encoding="utf-8")
        assert old in text, f"{old} is not in {text}"
        file.write_text(text.replace(old, new, 1))
        right_digests(folder)

    return change


# -- graphs that are long, deep or large ------------------------------------------------------------------------------


def graph_of(*nodes: str, result: str = "%0") -> str:
    """Return the text of a graph from three floats to three floats."""
    lines = "\n".join([f"  {node}" for node in nodes])
    return f"graph predict(%args_0: f32[3]) -> (f32[3]) {{\n{lines}\n  return {result}\n}}"


def many_nodes(count: int) -> str:
    names = ["%args_0", *[f"%{number}" for number in range(count)]]
    nodes = [f"{made} = tanh({read}) : f32[3]" for read, made in pairwise(names)]
    return graph_of(*nodes, result=names[-1])


def scans_in_each_other(depth: int, length: int) -> str:
    def body(left: int) -> str:
        inner = scan("%x", left - 1) if left else "%0 = tanh(%x) : f32[3]"
        return f"graph g(%x: f32[3]) -> (f32[3]) {{ {inner} return %0 }}"

    def scan(value: str, left: int) -> str:
        attrs = f"carry=1, sequences=0, length={length}, reverse=False, residuals=False"
        return f"%0 = scan({value}) {{ body={body(left)}, {attrs} }} : f32[3]"

    return graph_of(scan("%args_0", depth))


def doubling(times: int) -> str:
    """Return a graph that doubles the size of a value so many times, and sums it up."""
    size, nodes, last = 3, [], "%args_0"
    for number in range(times):
        nodes.append(f"%{number} = concat({last}, {last}) {{axis=0}} : f32[{size * 2}]")
        size, last = size * 2, f"%{number}"
    nodes.append(f"%{times} = sum({last}) {{axis=(0,), keepdims=False}} : f32[]")
    nodes.append(f"%{times + 1} = multiply(%args_0, %{times}) : f32[3]")
    return graph_of(*nodes, result=f"%{times + 1}")


GRAPHS: dict[str, Callable[[], str]] = {
    "no text": lambda: "",
    "spaces": lambda: " " * (15 << 20),
    "a comment": lambda: "#" * (15 << 20),
    "brackets": lambda: "[" * (15 << 20),
    "15 MB of sizes": lambda: f"graph predict(%args_0: f32[{'1,' * (7 << 20)}]) -> ()",
    "more text than is read": lambda: " " * (17 << 20),
    "10^6 nodes": lambda: many_nodes(1_000_000)[: 15 << 20],
    "10^5 nodes": lambda: many_nodes(100_000),
    "10^5 inputs": lambda: f"graph predict({', '.join([f'%x{n}: f32[3]' for n in range(100_000)])}) -> (f32[3]) "
                           "{ return %x0 }",
    "10^5 outputs": lambda: f"graph predict(%x: f32[3]) -> ({'f32[3], ' * 100_000}) {{ return {'%x, ' * 100_000} }}",
    "10^5 attributes": lambda: graph_of(
        f"%0 = tanh(%args_0) {{{', '.join([f'a{n}={n}' for n in range(100_000)])}}} : f32[3]"
    ),
    "10^6 elements": lambda: graph_of(
        f"%0 = constant() {{value=f32[3] [{', '.join(['0.5'] * 1_000_000)}]}} : f32[3]"
    ),
    "10^5 sizes": lambda: f"graph predict[{', '.join([f'n{k}=3' for k in range(100_000)])}](%x: f32[n0]) -> (f32[n0]) "
                          "{ return %x }",
    "10^5 guards": lambda: "graph predict[n=3](%x: f32[n]) -> (f32[n]) {"
                           + " ".join([f"guard n == {k} is False" for k in range(9, 100_000)]) + " return %x }",
    "a product of sums of sizes": lambda: f"graph predict[{', '.join([f'{c}=3' for c in 'abcdefgh'])}]"
                                  f"(%x: f32[{'*'.join(['(a+b+c+d+e+f+g+h)'] * 30)}]) -> (f32[3]) {{ return %x }}",
    "graphs in each other": lambda: graph_of(
        "%0 = tanh(%args_0) {a=" + "graph g() -> () { %0 = tanh() {a=" * 5000 + "1"
    ),
    "scans in each other": lambda: scans_in_each_other(6, 1000),
    "deep scans": lambda: scans_in_each_other(60, 2),
    "a value that doubles 40 times": lambda: doubling(40),
    "a value that doubles 60 times": lambda: doubling(60),
    "a value that doubles 28 times": lambda: doubling(28),
    "a broadcast to everywhere": lambda: graph_of(
        "%0 = broadcast_to(%args_0) {shape=(1000000, 3)} : f32[1000000,3]",
        "%1 = exp(%0) : f32[1000000,3]",
        "%2 = matmul(%1, %args_0) : f32[1000000]",
        "%3 = expand_dims(%2) {axis=(1,)} : f32[1000000,1]",
        "%4 = multiply(%3, %2) : f32[1000000,1000000]",
        "%5 = sum(%4) {axis=(0, 1), keepdims=False} : f32[]",
        "%6 = multiply(%args_0, %5) : f32[3]",
        result="%6",
    ),
}


def graph_change(made: Callable[[], str]) -> Change:
    def change(folder: Path) -> None:
        (folder / "predict.ir").write_text(made())
        right_digests(folder)

    return change


# -- files ------------------------------------------------------------------------------------------------------------


def instead(name: str, make: Change) -> Change:
    """Return a change that removes a file and makes something else under its name."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def elsewhere(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def at_itself(path: Path) -> None:
    path.symlink_to(path.name)


def swapped(folder: Path) -> None:
    (folder / "predict.ir").rename(folder / "x")
    (folder / "weights.safetensors").rename(folder / "predict.ir")
    (folder / "x").rename(folder / "weights.safetensors")
    right_digests(folder)


def halved(name: str) -> Change:
    def change(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: len(raw) // 2])
        if name != "manifest.json":
            right_digests(folder)

    return change


NAMES = ("manifest.json", "predict.ir", "weights.safetensors")
FILES: dict[str, Change] = {
    **{f"no {name}": instead(name, lambda path: None) for name in NAMES},
    **{f"{name} is a directory": instead(name, Path.mkdir) for name in NAMES},
    **{f"{name} is half": halved(name) for name in NAMES},
    **{f"{name} is empty": instead(name, Path.touch) for name in NAMES},
    **{f"{name} is sparse": instead(name, sparse) for name in NAMES},
    "files are swapped": swapped,
}
POSIX: dict[str, Change] = {
    **{f"{name} is a pipe": instead(name, os.mkfifo) for name in NAMES},
    **{f"{name} is a socket": instead(name, unix_socket) for name in NAMES},
    **{f"{name} is a link elsewhere": instead(name, elsewhere) for name in NAMES},
    **{f"{name} is a link to itself": instead(name, at_itself) for name in NAMES},
    **{f"{name} is a device": instead(name, lambda path: path.symlink_to("/dev/zero")) for name in NAMES},
}


def weights_change(raw: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(raw)
        right_digests(folder)

    return change


CASES: dict[str, tuple[str, Change]] = {
    **{f"manifest: {name}": ("plain", manifest_change(*one)) for name, one in MANIFEST.items()},
    **{f"check: {name}": ("rows", manifest_change((*PREDICT, "checks"), [one])) for name, one in CHECKS.items()},
    **{f"manifest: {name}": ("plain", one) for name, one in MANIFEST_TEXTS.items()},
    **{f"graph: {name}": (artifact, text_change(old, new)) for name, (artifact, old, new) in TEXTS.items()},
    **{f"graph: {name}": ("plain", graph_change(made)) for name, made in GRAPHS.items()},
    **{f"weights: {name}": ("net", weights_change(raw)) for name, raw in HOSTILE.items()},
    **{f"files: {name}": ("net", one) for name, one in FILES.items()},
    **({f"files: {name}": ("net", one) for name, one in POSIX.items()} if os.name == "posix" else {}),
}
"""Each case: the good artifact that it changes, and the change."""

HARMLESS = {
    "graph: an axis that is a float",
    "graph: a scale that is not there",
    "graph: channels at a third place",
    "graph: a range that overflows",
    "graph: a range of half",
    "graph: a fill of text",
    "graph: a sum backwards of text",
    "graph: 10^5 guards",
}
"""Cases that make another function, which has results."""
