"""Arguments that several verbs share, and the number types they use."""

from __future__ import annotations

import argparse

TARGET_HELP = (
    "a function in a Python file, such as model.py:train_step. Its arguments come from --shapes, or from "
    "FUNCTION_args or example_args in the file: a tuple of arguments, a dict of named ones, or a function "
    "that returns either"
)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name one function and the shapes of its arguments."""
    parser.add_argument("target", metavar="FILE.py:FUNCTION", help=TARGET_HELP)
    add_shapes(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add the option that gives the shapes of a function's arguments."""
    parser.add_argument("--shapes", nargs="+", metavar="SPEC", help="random arguments, such as f32[4,3] i32[4]")


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole(text, 1)


def seed_number(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number
