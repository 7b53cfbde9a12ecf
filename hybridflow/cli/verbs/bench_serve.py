"""``hybridflow bench-serve``: make load for a server on this machine, and say how fast it answered."""

from __future__ import annotations

import argparse
import urllib.parse
from pathlib import Path

from rich.console import Console

from hybridflow.core.errors import FileMissingError
from hybridflow.serve.load import load, sample_request, target

HELP = "make load for a server on this machine, bounded in count and time, and say how fast it answered"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add = parser.add_argument
    add("url", metavar="URL", help="such as http://localhost:8000 (its first model, with its own sample) or a model's")
    add("--body", type=Path, metavar="FILE", help="the body of each request; without one, a URL with a path is a GET")
    add("--clients", type=int, default=32, help="how many ask at a time (default 32)")
    add("--requests", type=int, default=100_000, help="at most so many requests (default 100000)")
    add("--seconds", type=float, default=10.0, help="at most so long (default 10)")
    add("--token-file", type=Path, help="a file with the bearer token that the server wants")


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileMissingError(f"bench-serve: there is no file {str(path)!r}")
    return path.read_bytes()


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Make the load and print one line."""
    url, body = arguments.url, None if arguments.body is None else _read(arguments.body)
    headers: dict[str, str] = {}
    if arguments.token_file is not None:
        headers["authorization"] = f"Bearer {_read(arguments.token_file).decode().strip()}"
    if body is None and urllib.parse.urlsplit(url).path in ("", "/"):
        url, body = sample_request(url, headers)
    figures = load(
        target(url, body, headers), clients=arguments.clients, requests=arguments.requests, seconds=arguments.seconds
    )
    console.print(figures.text(), markup=False, highlight=False, soft_wrap=True)
    return True
