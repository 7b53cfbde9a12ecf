"""``hybridflow serve``: artifacts behind a port."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from hybridflow.core.errors import ArgumentError, FileMissingError, message
from hybridflow.serve.app import Options
from hybridflow.serve.supervisor import Server, serve

HELP = "serve artifacts over HTTP: Open Inference Protocol v2, and TensorFlow Serving's REST"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add, default, place = parser.add_argument, Options(), Server()
    add("paths", nargs="+", type=Path, metavar="PATH", help="an artifact, or a directory of models such as models/m/3")
    add("--host", default=place.host, help="the address to listen at (default: only this machine)")
    add("--port", type=int, default=place.port, help=f"0 takes a free one (default {place.port})")
    add("--max-batch", type=_count, default=default.max_batch, help="the most rows that are computed together")
    add("--max-delay", type=_seconds, default=default.max_delay, help="how long requests wait for others, such as 2ms")
    add("--max-queue", type=_count, default=default.queue, help="how many requests may wait; more get 503")
    add("--max-body", type=_count, default=default.body, help="the most bytes of a request's body")
    add("--timeout", type=_seconds, default=default.timeout, help="how long a request may take, such as 30s")
    add("--max-seconds", type=_seconds, default=place.max_seconds, help="a worker that computes longer is replaced")
    add("--workers", type=_count, default=place.workers, help="how many processes share the port")
    add("--reload", type=_seconds, default=default.reload, help="how often the directories are looked at")
    add("--token-file", type=Path, help="a file with the bearer token that requests must have")
    add("--tls-certificate", help="a file, for HTTPS")
    add("--tls-key", help="a file, for HTTPS")
    add("--grpc-port", type=int, help="a port for the Open Inference Protocol v2 over gRPC; 0 takes a free one")
    add("--quiet", action="store_true", help="write no access log to stderr")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


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


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Serve until a signal comes."""
    for path in arguments.paths:
        if not path.is_dir():
            raise FileMissingError(message(f"serve: there is no directory {str(path)!r}"))
    token = None
    if arguments.token_file is not None:
        if not arguments.token_file.is_file():
            raise FileMissingError(message(f"serve: there is no file {str(arguments.token_file)!r}"))
        token = arguments.token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise ArgumentError(message(f"serve: {str(arguments.token_file)!r} has no token"))
    options = Options(
        max_batch=arguments.max_batch, max_delay=arguments.max_delay, queue=arguments.max_queue,
        timeout=arguments.timeout, body=arguments.max_body, token=token, reload=arguments.reload,
        log=not arguments.quiet,
    )  # fmt: skip
    server = Server(
        arguments.host, arguments.port, arguments.workers, arguments.max_seconds, arguments.tls_certificate,
        arguments.tls_key, arguments.grpc_port,
    )  # fmt: skip
    serve(arguments.paths, options, server, lambda text: console.print(text, markup=False, highlight=False))
    return True
