"""Every error is one class per kind, also the builtin a user would catch, and says what to do next."""

from __future__ import annotations

import ast
import builtins
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridflow as hf
from hybridflow.core import errors
from hybridflow.core.errors import HybridflowError, ShapeError, message, structure_text

PACKAGE = Path(hf.__file__).parent
CLASSES = [
    one for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, HybridflowError) and one is not HybridflowError
]
BUILTINS = tuple(
    one for one in vars(builtins).values()
    if isinstance(one, type) and issubclass(one, Exception) and one not in (Exception, ArithmeticError, LookupError)
)


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))


def test_every_error_is_a_builtin_too():
    assert CLASSES
    for one in CLASSES:
        assert issubclass(one, BUILTINS), one
        assert one.__doc__


@pytest.mark.parametrize(
    ("name", "builtin"),
    [("ShapeError", ValueError), ("AxisError", IndexError), ("AxisError", ValueError),
     ("DTypeError", TypeError), ("ArgumentError", ValueError),
     ("ArgumentTypeError", TypeError), ("IndexRangeError", IndexError), ("NumberRangeError", OverflowError),
     ("TapeError", RuntimeError), ("TapeStateError", ValueError), ("GradientError", RuntimeError),
     ("TraceError", RuntimeError), ("TracedValueError", TypeError), ("LeakError", RuntimeError),
     ("MutationError", TypeError), ("ParityError", AssertionError), ("DeviceError", RuntimeError),
     ("MissingPackageError", ImportError), ("ParseError", ValueError), ("VerifyError", ValueError)],
)
def test_which_builtin(name: str, builtin: type[Exception]):
    assert issubclass(getattr(errors, name), builtin)


def test_every_error_is_raised_somewhere():
    used: set[str] = set()
    for file, tree in trees():
        if file == "core/errors.py":
            continue
        imported = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= imported & loaded
    bases = {base.__name__ for one in CLASSES for base in one.__bases__}
    unused = {one.__name__ for one in CLASSES} - used - bases
    assert not unused


def _raised(node: ast.Raise) -> ast.Call | None:
    call = node.exc
    return call if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None


def test_every_error_text_shows_values_or_the_next_step():
    """An error is given what was got or what to do, or its text names at least one value itself."""
    names = {one.__name__ for one in CLASSES}
    poor: list[str] = []
    for file, tree in trees():
        for node in ast.walk(tree):
            call = _raised(node) if isinstance(node, ast.Raise) else None
            if call is None or not isinstance(call.func, ast.Name) or call.func.id not in names or not call.args:
                continue
            if isinstance(call.args[0], ast.Constant) and not call.keywords:
                poor.append(f"{file}:{node.lineno}")
    assert not poor


def test_message():
    assert message("what") == "what"
    assert message("what", got="f(x)", hint="Do this.") == "what\n  got: f(x)\n  Do this."
    assert message("what", hint="Do this.") == "what\n  Do this."
    assert message("a int in a Adam, a user", got="a object") == "an int in an Adam, a user\n  got: an object"


def test_a_part_of_a_message_without_end_is_cut():
    name = "n" * 1_000_000
    error = ShapeError(f"no {name}!", got=name, hint=f"Write {name}.")
    found = str(error)
    assert len(found) < 13_000
    assert found.startswith("no nnn")
    assert "characters more" in found
    assert found.endswith("n.")
    for one in (error, ShapeError(name), ShapeError(found)):
        assert str(pickle.loads(pickle.dumps(one))) == str(one)
    for call in (lambda: hf.ones(3, dtype=name), lambda: hf.Variable([1.0], name=name).assign([1.0, 2.0])):
        with pytest.raises(HybridflowError) as raised:
            call()
        assert len(str(raised.value)) < 13_000


@pytest.mark.parametrize("depth", [66, 3000, 100_000])
def test_lists_that_are_nested_too_deep_are_named(depth: int, tmp_path: Path):
    nested: list[Any] = [1.0]
    for _ in range(depth):
        nested = [nested]
    with pytest.raises(errors.ShapeError, match="lists are nested more than 64 deep"):
        hf.asarray(nested)
    assert hf.asarray([[1.0]]).shape == (1, 1)
    if depth > 1000:
        with pytest.raises(errors.NestingError, match=r"nested deeper(.|\n)*got: a dict"):
            hf.save(tmp_path / "file", {"values": nested})
        assert not [*tmp_path.iterdir()]


def test_structure_text():
    import jax

    for tree, text in (((1, 2), "(*, *)"), ({"a": [1]}, "{'a': [*]}"), (1, "*"), (None, "None"), ((), "()")):
        assert structure_text(jax.tree_util.tree_structure(tree)) == text
