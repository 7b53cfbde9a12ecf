"""Command line: ``python -m tests.benchmarks [ROW ...] [--bars] [--smoke] [--json PATH]``."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape

import hybridflow as hf

from . import report
from .measure import SMOKE, Effort, RowResult, run_rows
from .registry import Row, all_rows

BARS = (
    "add", "add_recorded", "chain", "mlp_eager", "block_eager", "lstm_eager", "convnet_eager", "*_1m", "first_kernel",
    "first_lowered", "call_device", "call_host", "call_variables", "mlp_compiled", "call_many_guards", "import_time",
    "memory_steps", "busy",
)
"""The rows in the table of notebooks/speed.md."""


def chosen(rows: list[Row], patterns: list[str]) -> list[Row]:
    """Return the rows whose name or group matches one of the patterns; all rows if there are no patterns."""
    if not patterns:
        return rows
    return [row for row in rows if any(fnmatch.fnmatch(name, p) for name in (row.name, row.group) for p in patterns)]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks; the exit status is 1 if a row failed or its sides disagree."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows or groups to run (patterns with *); all if none")
    parser.add_argument("--bars", action="store_true", help="only the rows of the table of notebooks/speed.md")
    parser.add_argument("--smoke", action="store_true", help="only show that every row runs: small sizes, few calls")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="how often the sides take turns")
    parser.add_argument(
        "--thread-time", action="store_true",
        help="count the main thread's processor time, for eager rows on a busy machine; give every library one thread",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there as well")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    options = parser.parse_args(arguments)
    rows = chosen(all_rows(), [*options.rows, *(BARS if options.bars else ())])
    console = Console(width=None if sys.stdout.isatty() else 150)
    if options.list:
        for row in rows:
            console.print(f"{row.group:12} {row.name:28} {escape(row.work)}", highlight=False)
        return 0
    if not rows:
        parser.error(f"no row or group matches {' '.join(options.rows)}; --list shows them")
    if jax.default_backend() == "gpu":  # there jax multiplies in a lower precision than the other sides, if not asked
        jax.config.update("jax_default_matmul_precision", "highest")
    facts = report.environment()
    progress = Console(stderr=True)
    with progress.status("") as status, hf.config.cache(False):  # so that every first call compiles

        def done(result: RowResult) -> None:
            index = rows.index(result.row) + 1
            status.update(f"{index} of {len(rows)}: {rows[min(index, len(rows) - 1)].work}")

        status.update(rows[0].work)
        clock = time.thread_time if options.thread_time else time.perf_counter
        results = run_rows(rows, SMOKE if options.smoke else Effort(rounds=options.rounds, clock=clock), done)
    console.print(report.heading(facts), highlight=False)
    console.print(report.table(results, smoke=options.smoke))
    for line in report.remarks(results):
        console.print(escape(line), highlight=False)
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_dict(results, facts), indent=1) + "\n", encoding="utf-8")
    return int(any(result.error is not None for result in results))


if __name__ == "__main__":
    sys.exit(main())
