"""Random classes with random special methods, and expressions that use them: programs for `test_protocols_like_python`.

A program is a module's text. Its `run(x)` evaluates all expressions and leaves what came of each, and the calls of
methods in order, in the module's list `OUT`. What CPython says is right.
"""

from __future__ import annotations

import random
import re

HELPERS = """
import re
PLAIN = (int, float, bool, str, bytes, complex, type(None), type(NotImplemented), type(Ellipsis), slice, range)


def show(value):
    kind = type(value)
    if kind is str:
        return re.sub("0x[0-9a-f]+", "0x", repr(value))
    if kind in PLAIN:
        return repr(value)
    if kind in (list, tuple):
        return kind.__name__ + str([show(one) for one in value])
    if kind in (set, frozenset):
        return kind.__name__ + str(sorted([show(one) for one in value]))
    if kind is dict:
        return str([(show(key), show(one)) for key, one in dict.items(value)])
    for base in (list, tuple, int, str):
        if base in kind.__mro__:
            inner = base.__iter__(value) if base in (list, tuple) else [base.__hash__(value)]
            return kind.__name__ + str([show(one) for one in inner])
    if dict in kind.__mro__:
        return kind.__name__ + str([(show(key), show(one)) for key, one in dict.items(value)])
    if isinstance(kind, type) and kind.__module__.startswith("program"):
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = {}
        return kind.__name__ + str(sorted([(key, show(one)) for key, one in own.items()]))
    return "<" + kind.__name__ + ">"


def failure(error):
    text = str(error) if type(error).__str__ in (BaseException.__str__, KeyError.__str__, OSError.__str__) else ""
    return type(error).__name__ + ": " + re.sub("0x[0-9a-f]+", "0x", text)
"""
"""What the programs show values with. It is compiled as a library's code, which is quicker to trace."""
HEAD = """
import contextlib, functools, math, operator
from protocol_helpers import failure, show

OUT = []


def note(text):
    OUT.append(text)
    if len(OUT) % 60 == 59:
        raise RuntimeError("too long")


class Callable:
    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **named):
        return self.function(self, *args, **named)


class Binding:
    def __init__(self, function):
        self.function = function

    def __get__(self, obj, kind=None):
        note("bound")
        return functools.partial(self.function, obj)


class Data(Binding):
    def __set__(self, obj, value):
        note("set " + show(value))

    def __delete__(self, obj):
        note("deleted")


class Odd:
    def __iter__(self):
        return self

    def __next__(self):
        note("Odd.__next__")
        if len(OUT) % 4 == 0:
            raise StopIteration
        return len(OUT) % 5


def blank(kind):
    return next(one for one in kind.__mro__ if one.__module__ == "builtins").__new__(kind)


def fail(error):
    raise error


def first(items, most=6):
    made = []
    for item in items:
        made.append(item)
        if len(made) == most:
            break
    return made


def bounded(items):
    iterator = iter(items)
    for _ in range(6):
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def endless():
    while True:
        note("endless")
        yield len(OUT) % 7


def taking(*args, **named):
    return args, named
"""

_ANY = ["1", "2.5", "'t'", "None", "[1, 2]", "(3,)", "True", "NotImplemented", "args[0]", "args[-1]", "{'k': 1}"]
_RAISE = ["fail(ValueError('no'))", "fail(TypeError('mine'))", "fail(AttributeError('gone'))"]
_ITER = [
    "iter([1, 2])",
    "iter([])",
    "args[0]",
    "Odd()",
    "endless()",
    "5",
    "[1]",
    "iter(['k', 'x'])",
    "(n for n in (1, 2))",
]
_TRUTH = ["True", "False", "True", "False", "1", "None", "NotImplemented"]
_NUMBER = ["0", "1", "2", "True", "-1", "2.5", "'t'", "None", "1 << 70"]
_ITEM = [
    "len(OUT) % 3 or fail(IndexError('end'))",
    "len(OUT) % 4 or fail(StopIteration())",
    "args[-1]",
    "fail(KeyError('k'))",
]
_OWN = "getattr(base_of(args[0]), NAME)(*args)"
_SUPER = "super(CLASS, args[0] if args[0] is not None else fail(TypeError('no object'))).NAME(*args[1:])"
"""What ``super(CLASS, None).NAME`` raises depends on the version of CPython and on how it is written."""

_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_VALUES = ["1", "2.5", "'t'", "[1, 2]", "(1,)", "{'k': 2}", "None"]
_OTHERS = ["a", "b", "c", "d", "d", "c"]


class Group:
    """A protocol: its special methods with what they may return, and expressions that use it."""

    def __init__(self, methods: dict[str, list[str]], uses: list[str]) -> None:
        self.methods, self.uses = methods, uses


def _binary(rng: random.Random) -> Group:
    name = rng.choice([*_BINARY])
    sign = _BINARY[name]
    choices = [*_ANY, "NotImplemented", "NotImplemented", _SUPER, *_RAISE[:1]]
    return Group(
        {f"__{name}__": choices, f"__r{name}__": choices, f"__i{name}__": choices},
        [
            f"§ {sign} §",
            f"§ {sign} §",
            f"§ {sign} ¤",
            f"¤ {sign} §",
            f"! t = §; t {sign}= §",
            f"! t = ¤; t {sign}= §",
            f"! t = §; t {sign}= ¤",
            "sum([§, §])",
            "sum([§, ¤], §)",
            "sum([1, 2.5, §])",
        ]
        if name != "pow"
        else [f"§ {sign} §", f"§ {sign} ¤", f"¤ {sign} §", f"! t = §; t {sign}= §", "pow(§, §)", "pow(§, 2, 5)"],
    )


def _compared(rng: random.Random) -> Group:
    del rng
    choices = [*_TRUTH, "NotImplemented", "NotImplemented", "'t'", _SUPER, *_RAISE[:1]]
    uses = [f"§ {sign} §" for sign in _COMPARED.values()] + [f"§ {sign} ¤" for sign in _COMPARED.values()]
    uses += [f"¤ {sign} §" for sign in _COMPARED.values()]
    uses += [
        "sorted([§, §, §])",
        "max([§, §])",
        "min(§, §)",
        "§ in [§, ¤, §]",
        "¤ in (§, §)",
        "§ < § < §",
        "§ is §",
        "sorted([§, §], key=lambda one: (1, one))",
        "§ not in [§]",
        "max([§], default=1)",
        "min([], default=§)",
        "sorted([3, 1], key=lambda one: §)",
        "max(§, §, key=lambda one: one)",
        "[§, §] == [§, §]",
    ]
    return Group({f"__{name}__": choices for name in _COMPARED}, uses)


def _truth(rng: random.Random) -> Group:
    del rng
    return Group(
        {"__bool__": [*_TRUTH, *_RAISE[:1]], "__len__": [*_NUMBER, *_RAISE[:1], "args[0]"], "__index__": _NUMBER},
        [
            "bool(§)",
            "not §",
            "§ and 1",
            "§ or 2",
            "3 if § else 4",
            "! t = 1 if § else 2",
            "len(§)",
            "any([§, §])",
            "all([§, §])",
            "list(filter(None, [§, §]))",
            "[one for one in (1, 2) if §]",
            "!\n        if §:\n            t = 5",
            "!\n        while §:\n            t = 6\n            break",
            "! assert §, 'text'",
            "(§ and §, § or §)",
        ],
    )


def _iterated(rng: random.Random) -> Group:
    del rng
    return Group(
        {
            "__iter__": [*_ITER, *_RAISE[:1], _SUPER],
            "__next__": ["len(OUT) % 3 or fail(StopIteration())", "7", *_RAISE[:1]],
            "__getitem__": [*_ITEM, _SUPER],
            "__len__": _NUMBER[:5],
            "__contains__": [*_TRUTH, "[]", "[0]", *_RAISE[:1]],
            "__reversed__": [*_ITER, *_RAISE[:1]],
            "__length_hint__": ["3", "NotImplemented", "'t'"],
            "keys": ["['k']", "iter(['k', 'x'])", "5"],
            "__eq__": _TRUTH,
        },
        [
            "list(bounded(§))",
            "tuple(§) if 0 else first(§)",
            "1 in §",
            "§ in §",
            "¤ not in §",
            "iter(§)",
            "next(§)",
            "next(§, 7)",
            "next(iter(§))",
            "reversed(§)",
            "first(reversed(§))",
            "! t, *u = bounded(§)",
            "! t, u = §",
            "dict(§)",
            "{**§}",
            "taking(**§)",
            "first(zip(§, §))",
            "first(enumerate(§))",
            "first(map(taking, §))",
            "first(filter(None, §))",
            "!\n        for t in §:\n            note('item ' + show(t))\n            if len(OUT) % 5 == 0:\n"
            "                break",
            "!\n        for t in §:\n            note('item ' + show(t))\n            if t:\n                break\n"
            "        else:\n            t = 'else'",
            "[t for t in bounded(§)]",
            "iter(§, 3)",
            "first(iter(§))",
            "any(bounded(§))",
            "min(bounded(§))",
            "! t = [1]; t += bounded(§)",
            "next(iter(§), 'none')",
            "list(zip(bounded(§), [1, 2]))",
            "1 in bounded(§)",
        ],
    )


def _finite(rng: random.Random) -> Group:
    group = _iterated(rng)
    ends = [one for one in _ITER if one not in ("endless()", "args[0]")]
    group.methods |= {"__iter__": ends, "__getitem__": _ITEM[:2], "__next__": group.methods["__next__"][:1]}
    group.uses = [
        "list(§)",
        "tuple(§)",
        "set(§)",
        "sorted(§)",
        "sum(§)",
        "any(§)",
        "all(§)",
        "max(§)",
        "[*§]",
        "taking(*§)",
        "(1, *§)",
        "! t, *u = §",
        "! t, u = §",
        "list(zip(§, §))",
        "list(enumerate(§, 3))",
        "list(map(taking, §, §))",
        "list(filter(None, §))",
        "! t = []; t.extend(§)",
        "! t = [0]; t += §",
        "dict(§)",
        "dict(zip(§, §))",
        "frozenset(§)",
        "len(§)",
        "list(reversed(§))",
        "{t for t in §}",
        "''.join(§)",
        "min(§, default=4)",
    ]
    return group


def _items(rng: random.Random) -> Group:
    del rng
    return Group(
        {
            "__getitem__": [*_ANY, *_ITEM, _SUPER, *_RAISE],
            "__setitem__": ["None", "1", *_RAISE, _SUPER],
            "__delitem__": ["None", "1", *_RAISE],
            "__missing__": [*_ANY[:4], *_RAISE[:1]],
            "__index__": _NUMBER,
            "__hash__": ["1", "'t'", "2", "-1"],
            "__eq__": _TRUTH,
            "__class_getitem__": ["1"],
        },
        [
            "§[0]",
            "§['zz']",
            "§[1:2]",
            "§[1, 2]",
            "! §[0] = 1",
            "! §['k'] = §",
            "! del §[0]",
            "! §[0] += 1",
            "[5, 6, 7][§]",
            "{1: 2}[§]",
            "{§: 3}",
            "{§: 3}[§]",
            "hash(§) < 1 << 80",
            "operator.index(§)",
            "list(range(§))",
            "[1, 2, 3][§:]",
            "A[1]",
            "operator.getitem(§, 0)",
            "! operator.setitem(§, 0, 1)",
            "operator.itemgetter(0)(§)",
            "{1, §}",
            "§ in {1, 2}",
            "hex(§)",
            "§[...]",
            "! §[1:] = §",
        ],
    )


def _attributes(rng: random.Random) -> Group:
    del rng
    own = "object.NAME(*args)"
    return Group(
        {
            "__getattr__": ["args[-1]", "fail(AttributeError('none'))", "fail(AttributeError('none'))", "3"],
            "__getattribute__": [own, own, own, "fail(AttributeError('hidden'))", "4"],
            "__setattr__": [own, own, "None", "1", "fail(AttributeError('fixed'))"],
            "__delattr__": [own, own, "None", "fail(AttributeError('stays'))"],
            "p": ["property"],
            "q": ["data"],
            "m": ["None", "args[1:]"],
            "v": ["value"],
            "__dir__": ["['z', 'a']", "5"],
        },
        [
            "§.p",
            "§.q",
            "§.m()",
            "§.v",
            "§.zz",
            "getattr(§, 'zz', 5)",
            "hasattr(§, 'zz')",
            "hasattr(§, 'p')",
            "! §.v = 8",
            "! §.zz = 9",
            "! §.p = 1",
            "! §.q = 1",
            "! del §.v",
            "! del §.zz",
            "! del §.q",
            "! §.v += 1",
            "getattr(§, 'p')",
            "! setattr(§, 'w', 2)",
            "! delattr(§, 'w')",
            "! delattr(§, 'v')",
            "operator.attrgetter('v')(§)",
            "dir(§)[:1]",
            "§.m",
            "A.v",
            "A.m(§, 1)",
            "! §.__dict__['v'] = 5",
            "§.v",
            "! object.__setattr__(§, 'v', 3)",
            "vars(§)",
            "§.__class__",
            "operator.methodcaller('m', 1)(§)",
            "! del §.p",
            "A.q",
            "type(§).q",
            "getattr(D, 'zz', 5)",
            "hasattr(type(§), 'q')",
        ],
    )


def _called(rng: random.Random) -> Group:
    del rng
    return Group(
        {
            "__call__": [*_ANY, *_RAISE[:1]],
            "__init__": ["None", "None", "None", "1", *_RAISE[:1]],
            "__new__": ["object.__new__(args[0])", "object.__new__(args[0])", "object.__new__(A)", "5"],
            "__enter__": [*_ANY[:5], "args[0]", *_RAISE[:1]],
            "__exit__": [*_TRUTH, "None", "None", *_RAISE[:1]],
            "__init_subclass__": ["None"],
        },
        [
            "§()",
            "§(1)",
            "§(k=2)",
            "A()",
            "B()",
            "C(1)",
            "D()",
            "D(k=2)",
            "callable(§)",
            "!\n        with § as t:\n            note('inside ' + show(t))",
            "!\n        with § as t:\n            note('inside')\n            raise ValueError('in')",
            "!\n        with contextlib.suppress(ValueError), §:\n            raise ValueError('in')",
            "list(map(§, [1, 2]))",
            "type(§)",
            "isinstance(§, A)",
            "issubclass(D, A)",
            "type(§)()",
            "functools.partial(§, 1)(2)",
            "functools.reduce(§, [1, 2, 3])",
            "sorted([2, 1], key=§)",
        ],
    )


def _numbers(rng: random.Random) -> Group:
    del rng
    return Group(
        {
            "__int__": _NUMBER,
            "__float__": ["2.5", "1", "'t'", "True"],
            "__index__": _NUMBER,
            "__complex__": ["1j", "2.5", "'t'"],
            "__abs__": _ANY,
            "__round__": _ANY,
            "__trunc__": _NUMBER,
            "__floor__": _ANY,
            "__ceil__": _ANY,
            "__neg__": _ANY,
            "__pos__": _ANY,
            "__invert__": [*_ANY, _SUPER],
            "__divmod__": [*_ANY, "NotImplemented"],
            "__rdivmod__": [*_ANY, "NotImplemented"],
            "__str__": ["'s'", "1", "None"],
            "__repr__": ["'r'", "1"],
            "__format__": ["'f'", "1", "args[-1]"],
            "__hash__": ["3", "'t'"],
            "__bytes__": ["b'x'", "1"],
        },
        [
            "int(§)",
            "float(§)",
            "complex(§)",
            "abs(§)",
            "round(§)",
            "round(§, 1)",
            "math.floor(§)",
            "math.ceil(§)",
            "-§",
            "+§",
            "~§",
            "divmod(§, §)",
            "divmod(1, §)",
            "divmod(§, 2)",
            "str(§)",
            "repr(§)",
            "f'{§}'",
            "f'{§!r:>4}'",
            "format(§, 'x')",
            "'%s' % (§,)",
            "hash(§) < 1 << 80",
            "bytes(§)",
            "math.sqrt(§)",
            "math.trunc(§)",
            "'{} {!r}'.format(§, §)",
            "str([§])",
            "bin(§)",
            "int('7', §)",
        ],
    )


GROUPS = [_binary, _binary, _compared, _truth, _iterated, _finite, _items, _attributes, _called, _numbers]
_BASES = ["", "", "", "", "", "list", "dict", "int", "str", "tuple"]
_UNSAFE = frozenset(
    {"__getattribute__", "__setattr__", "__new__", "__init__", "__init_subclass__", "keys", "m", "v", "p", "q"}
)
"""What is defined by a plain function only, so that objects can be made and shown."""


_GETTERS = ["property", "functools.cached_property", "Binding"]


def _method(rng: random.Random, kind: str, name: str, choices: list[str]) -> list[str]:
    """Return the lines that define a special method in a class's body."""
    what = rng.choice(choices)
    if what == "value":
        return [f"    v = {rng.choice(['1', '[1]', '2.5'])}"]
    if what in ("property", "data"):
        made = [
            f"    def {name}(self, *args):",
            f"        note('{kind}.{name}')",
            f"        return {rng.choice(_ANY[:6] + _RAISE)}",
        ]
        return [
            *made,
            f"    {name} = {rng.choice(_GETTERS) if what == 'property' else 'Data'}({name})",
        ]
    what = what.replace("NAME", name).replace("CLASS", kind)
    made = [
        f"    def {name}(*args, **named):",
        f"        note('{kind}.{name} ' + show(args[1:]))",
        f"        return {what}",
    ]
    if name in ("__getattribute__", "__getattr__"):  # isinstance asks an object for its class
        made.insert(1, "        if args[-1] == '__class__': return object.__getattribute__(*args)")
    form = (
        "" if name in _UNSAFE else rng.choice([""] * 7 + ["staticmethod", "classmethod", "Callable", "Binding", "None"])
    )
    if form == "None":
        return [f"    {name} = None"]
    return made + ([f"    {name} = {form}({name})"] if form else [])


def _class(rng: random.Random, name: str, bases: str, group: Group, share: float) -> list[str]:
    body: list[str] = []
    for method, choices in group.methods.items():
        if rng.random() < share:
            if rng.random() < 0.1 and method not in _UNSAFE:
                choices = [*_ANY, *_RAISE]
            body += _method(rng, name, method, choices)
    return [f"class {name}({bases}):", *(body or ["    pass"])]


def _use(rng: random.Random, use: str) -> list[str]:
    """Return the lines of a function that evaluates an expression, or runs statements, and tells what came of it."""
    while "§" in use or "¤" in use:
        use = re.sub("[§¤]", lambda found: rng.choice(_OTHERS if found[0] == "§" else _VALUES), use, count=1)
    text = use[1:].strip() if use.startswith("!") else f"t = {use}"
    told = repr(text)[1:-1].replace('"', "'").replace("'", "`")
    return [
        "    t = u = 'unset'",
        f"    OUT.append('{told}')",
        "    try:",
        "        " + text,
        "        note(show((t, u)))",
        "    except Exception as error:",
        "        OUT.append(failure(error))",
    ]


def program(seed: int, uses: int = 12) -> str:
    """Return the text of a module with four classes and a function `run` that uses their objects."""
    rng = random.Random(seed)
    group = rng.choice(GROUPS)(rng)
    base, share = rng.choice(_BASES), rng.choice([0.25, 0.5, 0.8])
    shape = {
        "A": base,
        "B": rng.choice(["A", "A", base, rng.choice(_BASES)]),
        "C": rng.choice(["A", ""]),
        "D": rng.choice(["B, C", "C", "B", ""]),
    }
    lines: list[str] = []
    for name, bases in shape.items():
        lines += ["try:", *["    " + line for line in _class(rng, name, bases, group, share)]]
        lines += ["except TypeError:", f"    class {name}:", "        pass"]
    made = [
        "try:",
        "    a, b, c, d = A(), B(), C(), D()",
        "except Exception as error:",
        "    OUT.append(failure(error))",
        "    a, b, c, d = map(blank, (A, B, C, D))",
    ]
    body = [line for _ in range(uses) for line in _use(rng, rng.choice(group.uses))]
    if rng.random() < 0.2:  # objects that the call itself makes
        body = ["    " + line for line in made] + body
    else:
        lines += made
    return "\n".join([HEAD, *lines, "", "", "def run():", *body, ""])
