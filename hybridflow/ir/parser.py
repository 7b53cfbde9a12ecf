"""Parse the text that `print_graph` writes back into a graph."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hybridflow.core.attached import attached
from hybridflow.core.dims import Dim, DimScope, Guard, same_size
from hybridflow.core.dtypes import SHORT_NAMES, DType, kind_of
from hybridflow.core.errors import ParseError
from hybridflow.core.node import Edge, Node, Where, make_node
from hybridflow.core.op import REGISTRY, Op
from hybridflow.core.sources import Constant
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.graph import Graph, input_node
from hybridflow.ir.printer import read_elements

_NOWHERE = compile("", "", "exec")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None, "inf": float("inf"), "nan": float("nan")}
_RESERVED = frozenset({*_WORDS, *SHORT_NAMES, "graph", "guard", "return", "complex", "opaque", "hex"})
_ELEMENTS: dict[str, Any] = {
    "bool": bool, "int": int, "uint": int, "float": float | int, "complex": complex,
}
_COMPARISONS = ("==", "<", "<=", ">", ">=")

DEEPEST = 100
"""The deepest nesting of graphs, tuples and signs that the parser accepts."""
LONGEST_NUMBER = 40
"""The largest number of characters in a number."""
MOST_AXES = 64
"""The largest number of axes of a NumPy array."""
LARGEST_SIZE = 1 << 63
"""Computed sizes must stay below this."""
MOST_TOKENS = 1_500_000
"""The largest number of words, numbers and signs in the text of an artifact's graph, by default."""
MOST_TERMS = 256
"""The largest number of terms in a size."""
_LONGEST_FOUND = 400
"""The largest number of characters that a message shows of the expected and the found text."""
_COMPARED = 5000
"""The largest number of known names that are searched for one similar to an unknown name."""


def parse(text: str, *, nodes: int | None = None, tokens: int | None = None, depth: int = DEEPEST) -> Graph:
    """Return the graph that a text describes.

    Only the text is checked: values must be defined before they are read, ops must exist, and counts must agree.
    `verify` checks shapes and dtypes.

    Args:
        text: text from `print_graph`, or written by hand in the same format. ``# file.py:31`` after a node is its line.
        nodes: the largest number of nodes, those of nested graphs included; None for no limit.
        tokens: the largest number of words, numbers and signs; None for no limit.
        depth: the deepest nesting of graphs, tuples and signs.

    Raises:
        ParseError: if the text is not valid or exceeds a limit; the message has the line and column, the text found
            and that expected.

    Example:
        >>> import hybridflow as hf
        >>> graph = hf.ir.parse("graph f(%x: f32[2]) -> (f32[2]) { %y = tanh(%x) : f32[2] return %y }")
        >>> len(graph.nodes)
        1
    """
    parser = _Parser(text, nodes, tokens, depth)
    try:
        graph = parser.graph(None)
    except RecursionError:
        raise ParseError("parse: Python's stack is too short for the text",
                         hint="Call it from fewer functions.") from None
    if parser.token.kind != "end":
        parser.fail("the end of the text")
    return graph


_UNREGISTERED = "No registered operation is called so; one of another package is registered when that is imported."


def _where(place: tuple[str, int, str] | None) -> Where | None:
    if place is None:
        return None
    file, line, scope = place
    code = _NOWHERE.replace(co_filename=file, co_firstlineno=line)
    return (code, -1, scope) if scope else (code, -1)


class _Parser:
    """A recursive descent parser with one token of lookahead.

    Attributes:
        text: the whole text.
        token: the next token.
        previous: the token before it.
    """

    def __init__(self, text: str, nodes: int | None, tokens: int | None, depth: int) -> None:
        self.text = text
        self._rest = islice(tokens_of(text), tokens)
        self._most_tokens = tokens
        self.token = self.previous = next(self._rest)
        self._nodes, self._most_nodes = 0, nodes
        self._depth, self._deepest = 0, depth
        self.dims = DimScope()

    # -- tokens -----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Consume the next token."""
        token = next(self._rest, None)
        if token is None:
            self.fail(f"at most {self._most_tokens} words, numbers and signs", got="more")
        self.previous, self.token = self.token, token

    def fail(
        self, expected: str, token: Token | None = None, *, got: str | None = None, hint: str | None = None
    ) -> NoReturn:
        """Raise the error for a token; by default, the next one."""
        token = token or self.token
        line, column, shown = place_in(self.text, token.position)
        got = str(token) if got is None else got if len(got) <= _LONGEST_FOUND else shortened(got)
        what = f"parse: line {line}, column {column}: expected {expected[:_LONGEST_FOUND]}, found {got}{shown}"
        raise ParseError(what, hint=hint)

    def take(self, kind: str, expected: str) -> Token:
        """Consume a token of a kind."""
        token = self.token
        if token.kind != kind:
            self.fail(expected)
        self.advance()
        return token

    def accept(self, text: str) -> bool:
        """Consume the next token if it is this sign or word."""
        token = self.token
        if token.text != text or token.kind not in ("sign", "word"):
            return False
        self.advance()
        return True

    def expect(self, text: str) -> None:
        """Consume this sign or word."""
        if not self.accept(text):
            self.fail(repr(text))

    def listed(self, item: Callable[[], Any], end: str, most: int | None = None) -> list[Any]:
        """Read items separated by commas, at most so many, and the closing sign; a comma may come last."""
        items: list[Any] = []
        while not self.accept(end):
            if len(items) == most:
                self.fail(f"at most {most} of them")
            items.append(item())
            if not self.accept(","):
                if self.token.text != end:
                    self.fail(f"',' or {end!r}")
                self.advance()
                break
        return items

    # -- graphs -----------------------------------------------------------------------------------------------

    def graph(self, outer: DimScope | None) -> Graph:
        """Read a graph."""
        self.expect("graph")
        name = self.graph_name()
        saved, self.dims = self.dims, self.symbols(outer)
        self.expect("(")
        edges: dict[str, Edge] = {}
        inputs: list[Node] = self.listed(lambda: self.parameter(edges), ")")
        self.expect("->")
        self.expect("(")
        header = self.token
        results: list[TensorSpec] = self.listed(self.spec, ")")
        self.expect("{")
        while self.accept("guard"):
            self.guard()
        nodes: list[Node] = []
        while not self.accept("return"):
            nodes.append(self.node(edges))
        outputs = self.returned(edges)
        specs = [node.spec(index) for node, index in outputs]
        if list(map(str, specs)) != list(map(str, results)):
            self.fail(f"({', '.join(map(str, specs))}), which is what the graph returns", header,
                      got=f"({', '.join(map(str, results))})")
        dims, self.dims = self.dims, saved
        return Graph(name, tuple(inputs), tuple(nodes), tuple(outputs), dims)

    def graph_name(self) -> str:
        """Read a graph's name: a word, or a string."""
        if self.token.kind == "string":
            return self.string()
        return self.take("word", "the graph's name").text

    def symbols(self, outer: DimScope | None) -> DimScope:
        """Read symbolic sizes with their hints, ``[b=64, n=3]``; without any, use those of the outer graph."""
        if not self.accept("["):
            return DimScope() if outer is None else outer
        scope = DimScope()

        def symbol() -> None:
            name = self.take("word", "the name of a size")
            if name.text in _RESERVED or "." in name.text:
                self.fail("a name for a size", name, hint="Choose another name; this one means something else.")
            self.expect("=")
            number = self.take("number", "the size")
            if not number.text.isdecimal() or len(number.text) > LONGEST_NUMBER:
                self.fail("an integer", number)
            scope.symbol(name.text, int(number.text))

        self.listed(symbol, "]")
        return scope

    def guard(self) -> None:
        """Read a guard such as ``b == 1 is False``, after its first word."""
        start = self.token
        left = self.value()
        compare = self.take("sign", "a comparison")
        if compare.text not in _COMPARISONS:
            self.fail("one of " + ", ".join(_COMPARISONS), compare)
        other = self.token
        right = self.value()
        if not _is_size(right):
            self.fail("a size or an integer", other)
        self.expect("is")
        answer = self.take("word", "True or False")
        if answer.text not in ("True", "False"):
            self.fail("True or False", answer)
        if not isinstance(left, Dim):
            self.fail("a symbolic size", start)
        self.dims.guards.append(Guard(left, compare.text, right, answer.text == "True"))

    def parameter(self, edges: dict[str, Edge]) -> Node:
        """Read an input."""
        token = self.take("value", "an input such as %x")
        self.expect(":")
        node = input_node(self.spec(), token.text[1:])
        self.define(edges, token, (node, 0))
        return node

    def define(self, edges: dict[str, Edge], token: Token, edge: Edge) -> None:
        """Give a value its name."""
        if token.text in edges:
            self.fail("a new name", token, got=f"{token.text}, which is defined already",
                      hint="Every value is defined once.")
        edges[token.text] = edge

    def returned(self, edges: dict[str, Edge]) -> list[Edge]:
        """Read the values that a graph returns, and its closing brace."""
        return self.listed(lambda: self.edge(edges), "}")

    # -- nodes ------------------------------------------------------------------------------------------------

    def node(self, edges: dict[str, Edge]) -> Node:
        """Read a node."""
        self._nodes += 1
        if self._most_nodes is not None and self._nodes > self._most_nodes:
            self.fail(f"at most {self._most_nodes} operations", got="more")
        results: list[Token] = []
        if self.token.kind == "value":
            while True:
                results.append(self.take("value", "a result such as %0"))
                if not self.accept(","):
                    break
            self.expect("=")
        start = self.take("word", "an operation or 'return'")
        op = self.op(start)
        self.expect("(")
        inputs: list[Edge | None] = self.listed(lambda: self.operand(edges), ")")
        attrs = self.attributes() if self.accept("{") else {}
        outputs: list[TensorSpec] = []
        if results:
            self.expect(":")
            outputs.append(self.spec())
            while self.accept(","):
                outputs.append(self.spec())
        if len(outputs) != len(results):
            self.fail(f"{len(results)} specs, one per result", start, got=f"{len(outputs)} for {op.name}")
        node = make_node(op, tuple(inputs), attrs, tuple(outputs), where=_where(self.previous.place))
        for index, token in enumerate(results):
            self.define(edges, token, (node, index))
        return node

    def op(self, token: Token) -> Op:
        """Look up an operation."""
        op = REGISTRY.get(token.text)
        if op is None:
            attached("register_rest")()
            op = REGISTRY.get(token.text)
        if op is None:
            hint = _UNREGISTERED if "." in token.text else _suggest(token.text, REGISTRY, _UNREGISTERED)
            self.fail("an operation", token, hint=hint)
        return op

    def operand(self, edges: dict[str, Edge]) -> Edge | None:
        """Read an operand; ``_`` is an input without a recorded producer, in an eager recording."""
        return None if self.accept("_") else self.edge(edges)

    def edge(self, edges: dict[str, Edge]) -> Edge:
        """Read a value defined above."""
        token = self.take("value", "a value such as %0")
        edge = edges.get(token.text)
        if edge is None:
            self.fail("a value defined above", token,
                      hint=_suggest(token.text, edges, "Values are defined before they are read."))
        return edge

    def attributes(self) -> dict[str, Any]:
        """Read attributes and the closing brace."""
        attrs: dict[str, Any] = {}

        def attribute() -> None:
            name = self.take("word", "an attribute's name")
            if name.text in attrs:
                self.fail("a new attribute", name)
            self.expect("=")
            attrs[name.text] = self.value()

        self.listed(attribute, "}")
        return attrs

    # -- specs and sizes --------------------------------------------------------------------------------------

    def spec(self) -> TensorSpec:
        """Read a spec such as ``f32[b,3]``."""
        token = self.take("word", "a dtype")
        if token.text not in SHORT_NAMES:
            self.fail("a dtype", token, hint=_suggest(token.text, SHORT_NAMES, ""))
        return self.spec_of(token)

    def spec_of(self, token: Token) -> TensorSpec:
        """Read the shape of a spec after its dtype."""
        self.expect("[")
        shape = tuple(self.listed(self.size, "]", MOST_AXES))
        return make_spec(shape, SHORT_NAMES[token.text])

    def size(self) -> int | Dim | None:
        """Read a size."""
        if self.accept("?"):
            return None
        token = self.token
        size = self.value()
        if not _is_size(size) or (type(size) is int and size < 0):
            self.fail("a size", token)
        return size

    # -- attribute values -------------------------------------------------------------------------------------

    def value(self) -> Any:
        """Read an attribute value; sizes may be sums, products and quotients."""
        start = self.token
        self._depth += 1
        if self._depth > self._deepest:
            self.fail(f"at most {self._deepest} values inside each other")
        left = self.product()
        while self.token.text in ("+", "-") and self.token.kind == "sign":
            sign = self.token.text
            self.advance()
            left, right = self.sizes(start, left, self.product())
            left = self.bounded(start, left + right if sign == "+" else left - right)
        self._depth -= 1
        return left

    def bounded(self, start: Token, size: Any) -> Any:
        """Check that a computed size is not too large or too long to compute with."""
        numbers = size.terms.values() if isinstance(size, Dim) else [size]
        if len(numbers) > MOST_TERMS or any([abs(number) >= LARGEST_SIZE for number in numbers]):
            self.fail("a size that is not as large or long", start)
        return size

    def product(self) -> Any:
        """Read a product or quotient."""
        start = self.token
        left = self.unary()
        while self.token.text in ("*", "//", "%") and self.token.kind == "sign":
            sign = self.token.text
            self.advance()
            left, right = self.sizes(start, left, self.unary())
            if sign != "*" and same_size(right, 0):
                self.fail("a divisor other than 0", start)
            left = self.bounded(start, left * right if sign == "*" else left // right if sign == "//" else left % right)
        return left

    def sizes(self, start: Token, left: Any, right: Any) -> tuple[Any, Any]:
        """Check that both operands of an operator are sizes."""
        if not _is_size(left) or not _is_size(right):
            self.fail("sizes around an operator", start)
        return left, right

    def unary(self) -> Any:
        """Read a value with an optional minus sign."""
        if not self.accept("-"):
            return self.atom()
        token = self.token
        value = self.atom()
        if isinstance(value, bool) or not isinstance(value, int | float | Dim):
            self.fail("a number", token)
        return -value

    def atom(self) -> Any:
        """Read a value without arithmetic."""
        token = self.token
        if token.kind == "number":
            self.advance()
            if len(token.text) > LONGEST_NUMBER:
                self.fail(f"a number of at most {LONGEST_NUMBER} letters", token)
            return int(token.text) if token.text.isdigit() else float(token.text)
        if token.kind == "string":
            return self.string()
        if self.accept("..."):
            return ...
        if self.accept("("):
            return self.tuple()
        if token.kind == "word":
            return self.word(token)
        self.fail("an attribute value")

    def string(self) -> str:
        """Read a string."""
        token = self.take("string", "a string")
        try:
            text = json.loads(token.text)
            text.encode()  # fails for half a surrogate pair
        except ValueError:
            self.fail("a string with JSON's escapes", token)
        return text

    def tuple(self) -> Any:
        """Read a tuple, or a value in parentheses, after the opening one."""
        items: list[Any] = []
        while not self.accept(")"):
            items.append(self.value())
            if self.accept(","):
                continue
            self.expect(")")
            return items[0] if len(items) == 1 else tuple(items)
        return tuple(items)

    def word(self, token: Token) -> Any:
        """Read a value that begins with a word."""
        name = token.text
        if name == "graph":
            return self.graph(self.dims)
        self.advance()
        if name in self.dims.hints:
            return Dim({(name,): 1}, self.dims)
        if name in _WORDS:
            return _WORDS[name]
        if name in SHORT_NAMES:
            return self.dtype_or_array(token)
        if name == "complex":
            return self.complex_number()
        if name == "opaque":
            self.expect("(")
            self.fail("a value that text can hold", token, got=f"a {self.string()}",
                      hint="This graph exists only in the process that traced it.")
        self.fail("an attribute value", token, hint=_suggest(name, {*_RESERVED, *self.dims.hints}, ""))

    def complex_number(self) -> complex:
        """Read ``complex(re, im)`` after its first word."""
        self.expect("(")
        token = self.token
        parts = self.listed(self.unary, ")")
        if len(parts) != 2 or not all(isinstance(part, float | int) for part in parts):
            self.fail("two numbers", token)
        return complex(*parts)

    # -- arrays -----------------------------------------------------------------------------------------------

    def dtype_or_array(self, token: Token) -> Any:
        """Read a dtype, a spec (a shape follows) or an array (a shape and elements follow), after the dtype's name."""
        dtype = SHORT_NAMES[token.text]
        if self.token.text != "[":
            return dtype
        spec = self.spec_of(token)
        after = self.token
        of_bytes = after.kind == "word" and after.text == "hex"
        if not of_bytes and after.kind != "number" and after.text not in ("[", "-", "complex", *_WORDS):
            return spec
        if any(not isinstance(size, int) for size in spec.shape):
            self.fail("an array with integer sizes", token, got=str(spec))
        return Constant(self.hexadecimal(spec) if of_bytes else self.array(spec))

    def hexadecimal(self, spec: TensorSpec) -> np.ndarray[Any, Any]:
        """Read an array's bytes."""
        self.expect("hex")
        token = self.token
        try:
            data = bytes.fromhex(self.string())
        except ValueError:
            self.fail("hexadecimal digits", token, got="something else")
        wanted = spec.nbytes
        if len(data) != wanted:
            self.fail(f"{wanted} bytes for {spec}", token, got=f"{len(data)} bytes")
        return np.frombuffer(data, spec.dtype).reshape(spec.shape).copy()

    def array(self, spec: TensorSpec) -> np.ndarray[Any, Any]:
        """Read an array's elements."""
        start = self.token
        values: list[Any] = []
        self.elements(spec, 0, values)
        try:
            return read_elements(values, spec.shape, spec.dtype)
        except OverflowError as error:
            self.fail(f"elements of {spec}", start, got=str(error))

    def elements(self, spec: TensorSpec, depth: int, values: list[Any]) -> None:
        """Read the elements of one row."""
        if self.token.text == "...":
            self.fail(f"all elements of {spec}", got="'...', where elements were left out",
                      hint="Print the graph with print_graph(graph, elide=None).")
        if depth == spec.ndim:
            values.append(self.element(spec.dtype))
            return
        self.expect("[")
        size = spec.shape[depth]
        for position in range(size):
            if position and not self.accept(","):
                self.fail(f"{size} elements on axis {depth} of {spec}", got=f"{self.token} after {position}")
            self.elements(spec, depth + 1, values)
        if not self.accept("]"):
            self.fail(f"']' after {size} elements on axis {depth} of {spec}")

    def element(self, dtype: DType) -> Any:
        """Read one element."""
        token = self.token
        kind = kind_of(dtype)
        element = self.unary()
        if not isinstance(element, _ELEMENTS[kind]) or isinstance(element, bool) != (kind == "bool"):
            self.fail(f"an element of {dtype}", token)
        return element


def _is_size(value: Any) -> bool:
    return isinstance(value, int | Dim) and not isinstance(value, bool)


def _suggest(name: str, known: Collection[str], otherwise: str) -> str | None:
    few = len(known) <= _COMPARED and len(name) <= LONGEST_NUMBER
    close = difflib.get_close_matches(name, list(known), 3) if few else []
    return f"Did you mean {' or '.join(close)}?" if close else otherwise or None


# -- split the text of a graph into tokens, in time linear in its length for any text ---------------------------------

_TOKEN = re.compile(
    r"""(?P<space>[^\S\n]+|\n)
      | (?P<comment>\#[^\n]*)
      | (?P<value>%\w+)
      | (?P<string>"(?:[^"\\\n]++|\\.)*+")
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d][\w.]*)
      | (?P<sign>->|//|\.\.\.|==|<=|>=|[()\[\]{}=:,+\-*%?<>])
      | (?P<other>.)""",
    re.VERBOSE,
)
_SHOWN = 60
"""The largest number of characters that a message shows of a token, and of a line on either side of an error."""
_LINE = re.compile(r":([0-9]{1,9})(?=\s|$)")


class Token(NamedTuple):
    """A piece of text.

    Attributes:
        kind: its kind; ``other`` is a character that begins no token, where reading stops.
        text: the text.
        position: the index of its first character.
        place: the file, line and name scope in the comment after it.
    """

    kind: str
    text: str
    position: int
    place: tuple[str, int, str] | None = None

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else shortened(repr(self.text))


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens; a comment that names a source line belongs to the token before it."""
    last: Token | None = None
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "space":
            continue
        if kind == "comment":
            if last is not None and (place := _place(match.group())) is not None:
                last = last._replace(place=place)
            continue
        if last is not None:
            yield last
        last = Token(kind, match.group(), match.start())
        if kind == "other":
            break
    if last is not None:
        yield last
    yield Token("end", "", len(text))


def _place(comment: str) -> tuple[str, int, str] | None:
    """Return the file, line and name scope in a comment such as ``# file.py:31 encoder``, or None."""
    found = _LINE.search(comment)
    file = "" if found is None else comment[1 : found.start()].strip()
    return None if found is None or not file else (file, int(found[1]), comment[found.end() :].strip())


def place_in(text: str, position: int) -> tuple[int, int, str]:
    """Return a position's line and column, and the line of text with a mark under the column, shortened."""
    begin = text.rfind("\n", 0, position) + 1
    line, column = text.count("\n", 0, position) + 1, position - begin + 1
    if position >= len(text):
        return line, column, ""
    end = text.find("\n", position)
    first = max(begin, position - _SHOWN)
    shown = text[first : min(len(text) if end < 0 else end, position + _SHOWN)]
    plain = "".join([one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in shown])
    return line, column, f"\n  {plain}\n  {' ' * (position - first)}^"


def shortened(text: str) -> str:
    """Return a text shortened for a message."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
