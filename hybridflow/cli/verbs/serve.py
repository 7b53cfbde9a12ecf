"""``hybridflow serve``: artifacts behind a port."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hybridflow.cli.arguments import positive
from hybridflow.cli.artifacts import require_artifacts
from hybridflow.core.errors import ArgumentError, FileMissingError
from hybridflow.core.units import BYTE_UNITS, parse_bytes
from hybridflow.serve.app import Options
from hybridflow.serve.supervisor import Server, serve

HELP = "serve artifacts over HTTP: Open Inference Protocol v2, and TensorFlow Serving's REST"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add, default, place = parser.add_argument, Options(), Server()
    add("paths", nargs="+", type=Path, metavar="PATH", help="an artifact, or a directory of models such as models/m/3")
    add("--host", default=place.host, help="the address to listen at (default: only this machine)")
    add("--allow-host", action="append", metavar="NAME", help="a name that requests may have in their header Host; may "
        "be repeated (default: any, but if it listens to this machine alone, only localhost and its addresses)")
    add("--port", type=int, default=place.port, help=f"0 takes a free one (default {place.port})")
    add("--max-batch", type=positive, default=default.max_batch, help="the most rows that are computed together")
    add("--max-delay", type=_seconds, default=default.max_delay, help="how long requests wait for others, such as 2ms")
    add("--max-queue", type=positive, default=default.queue, help="how many requests may wait; more get 503")
    add("--max-body", type=_bytes, default=default.body, help="the largest body of a request, such as 64MiB")
    add("--max-memory", type=_bytes, help="the most memory that a request may take by its sizes, such as 2GiB; more "
        "get 413 (default: half of what is free at the start, shared by the workers)")
    add("--max-flops", type=_operations, default=default.flops, help="the most floating-point operations that a "
        f"request may take by its sizes; more get 413 (default {default.flops:.0e})")
    add("--timeout", type=_seconds, default=default.timeout, help="how long a request may take, such as 30s")
    add("--max-seconds", type=_seconds, default=place.max_seconds, help="a worker that computes longer is replaced")
    add("--workers", type=positive, default=place.workers, help="how many processes share the port")
    add("--reload", type=_seconds, default=default.reload, help="how often the directories are looked at")
    add("--token-file", type=Path, help="a file with the bearer token that requests must have")
    add("--tls-certificate", help="a file, for HTTPS")
    add("--tls-key", help="a file, for HTTPS")
    add("--grpc-port", type=int, help="a port for the Open Inference Protocol v2 over gRPC; 0 takes a free one")
    add("--quiet", action="store_true", help="write no access log to stderr")


def _bytes(text: str) -> int:
    size = parse_bytes(text)
    if size is None or size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 64MiB; units are {BYTE_UNITS}")
    return size


def _operations(text: str) -> int:
    """Read a number such as ``1e12``."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < 1e30:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1, such as 1e12")
    return int(number)


def _seconds(text: str) -> float:
    """Read a time such as ``2ms``, ``30s`` or ``0.5``, which is in seconds."""
    number, unit = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 2ms or 30s") from None
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 0")
    return seconds


_OWN = ("localhost", "127.0.0.1", "[::1]")


def _hosts(host: str, allowed: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names by which requests may ask for the server; None for any."""
    own = host in (*_OWN, "::1")
    if not own and allowed is None:
        return None
    return [*_OWN, host, *[name.lower() for name in allowed or ()]]


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Serve until a signal comes."""
    for path in arguments.paths:
        require_artifacts("serve", path)
    token = None
    if arguments.token_file is not None:
        if not arguments.token_file.is_file():
            raise FileMissingError(f"serve: there is no file {str(arguments.token_file)!r}")
        token = arguments.token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise ArgumentError(f"serve: {str(arguments.token_file)!r} has no token")
    options = Options(
        max_batch=arguments.max_batch, max_delay=arguments.max_delay, queue=arguments.max_queue,
        timeout=arguments.timeout, body=arguments.max_body, token=token, reload=arguments.reload,
        log=not arguments.quiet, memory=arguments.max_memory, flops=arguments.max_flops,
        hosts=_hosts(arguments.host, arguments.allow_host),
    )
    server = Server(
        arguments.host, arguments.port, arguments.workers, arguments.max_seconds, arguments.tls_certificate,
        arguments.tls_key, arguments.grpc_port,
    )
    serve(arguments.paths, options, server, lambda text: console.print(text, markup=False, highlight=False))
    return True
