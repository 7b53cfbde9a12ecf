"""``hybridflow doctor``: show what is installed and in use, and check that it works."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hybridflow as hf
from hybridflow.analysis.compare import compare
from hybridflow.backend.jax_shim import x64_enabled
from hybridflow.backend.options import (
    CALL_OPTIONS,
    EAGER_OPTIONS,
    GATHER_OPTIONS,
    MEASURED,
    OPTIONS,
    PIECE_OPTIONS,
    PRODUCT_OPTIONS,
    XlaOption,
    call_options,
    compiler_options,
    is_measured,
)
from hybridflow.cli.crashes import Check, crashes
from hybridflow.cli.verbs.cache import store_table
from hybridflow.xla.store.directory import Directory, Unsafe
from hybridflow.xla.store.location import place

HELP = "show versions, devices and known problems of this installation, and try it"
EXTRAS = {
    "matplotlib": "plots; pip install 'hybridflow[viz]'",
    "tensorboard": "hf.summary; pip install 'hybridflow[tensorboard]'",
    "scikit-learn": "the demo's digits; pip install 'hybridflow[examples]'",
    "uvicorn": "hybridflow serve; pip install 'hybridflow[serve]'",
    "grpcio": "hybridflow serve --grpc-port; pip install 'hybridflow[grpc]'",
    "torch": "benchmarks beside PyTorch; pip install 'hybridflow[bench]'",
}
"""Optional packages, each with its use."""
SETTINGS = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DISABLE_JIT", "JAX_DEBUG_NANS", "HYBRIDFLOW_CACHE_DIR")
"""Environment variables that change what compiled functions do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--verbose`."""
    parser.add_argument("--verbose", action="store_true", help="list XLA's options, each with its reason")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Print versions, devices and settings, with `--verbose` XLA's options too, and check the essential functions."""
    console.print(_versions())
    console.print(_devices())
    if arguments.verbose:
        _print_options(console)
    else:
        text = "XLA is given options that keep results right and steps fast; hybridflow doctor --verbose lists them."
        console.print(text, highlight=False, soft_wrap=True)
    console.print(store_table())
    results = list(checks())
    table = Table(title="Checks", title_justify="left", show_header=False)
    for one in results:
        state = Text("FAILED", "bold red") if one.fault else Text("ok", "green")
        table.add_row(state, Text(one.what), Text(one.fault or one.remark))
    console.print(table)
    return not any(one.fault for one in results)


def checks() -> Iterator[Check]:
    """Run the checks and yield their results one by one."""
    yield from _required()
    yield _measured()
    yield from crashes()
    for name in ("JAX_DISABLE_JIT", "jax_disable_jit"), ("JAX_DEBUG_NANS", "jax_debug_nans"):
        fault = f"it is on, which changes what compiled functions do: unset {name[0]}"
        yield Check(f"{name[0]} is off", fault if getattr(jax.config, name[1]) else "")
    yield _tried("The store of executables can be used", _store)
    yield _tried("A compiled function gives the eager result", _same)
    yield _tried("Its gradient is the eager one", _same_gradient)
    yield _tried("float64 stays float64, and jax's own setting stays as it is", _wide)
    yield _tried("Random numbers are the same eager and compiled", _same_draws)


def _required() -> Iterator[Check]:
    """Yield a check per required package: is it new enough?"""
    try:
        required = metadata.requires("hybridflow") or ()
    except metadata.PackageNotFoundError:  # hybridflow is not installed, so there is no list of requirements
        return
    for text in required:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", text.replace(" ", ""))
        if match is None:
            continue  # an extra
        name, least = match[1], match[2]
        version = _version(name)
        old = version == "not installed" or _numbers(version) < _numbers(least)
        fault = f"{name} is {version}: pip install '{name}>={least}'" if old else ""
        yield Check(f"{name} is {least} or newer", fault, version)


def _measured() -> Check:
    """Return a check of whether XLA's options were measured for this jaxlib."""
    versions = " and ".join(".".join(map(str, one)) for one in MEASURED)
    version = _version("jaxlib")
    few = f"{version} gets those that results need, each tried first, and none for speed"
    remark = version if is_measured() else few
    return Check(f"XLA's options were measured for jaxlib {versions}", remark=remark)


def _tried(what: str, run: Callable[[], str]) -> Check:
    """Return the check made by a function that returns what is wrong."""
    try:
        return Check(what, run())
    except Exception as error:  # a broken installation may raise anything; the table shows it
        return Check(what, f"{type(error).__name__}: {error}")


def _store() -> str:
    where = place()
    if where.path is None:
        return ""
    try:
        Directory(where.path).use()
    except Unsafe as error:
        return str(error)
    return ""


def _example(x: Any) -> Any:
    return hf.tanh(x) * x


def _input() -> hf.Tensor:
    return hf.asarray(np.linspace(-1, 1, 8, dtype=np.float32))


def _same() -> str:
    comparison = compare(_example, _input(), repeats=1)
    return "" if comparison.same else comparison.verdict()


def _same_gradient() -> str:
    comparison = compare(hf.grad(lambda x: hf.sum(_example(x))), _input(), repeats=1)
    return "" if comparison.same else comparison.verdict()


def _wide() -> str:
    before = x64_enabled()
    result = hf.compile(_example)(hf.asarray(np.linspace(-1, 1, 8)))
    if result.dtype != np.float64:
        return f"a compiled function of float64 returned {result.dtype}"
    return "" if x64_enabled() == before else "jax_enable_x64 was changed"


def _same_draws() -> str:
    one, other = hf.random.Generator(7), hf.random.Generator(7)
    eager, compiled = one.normal((4,)).numpy(), hf.compile(lambda: other.normal((4,)))().numpy()
    return "" if np.array_equal(eager, compiled) else f"eager: {eager}, compiled: {compiled}"


# -- tables -------------------------------------------------------------------------------------------------------


def _versions() -> Table:
    table = Table(title="Versions", title_justify="left", show_header=False)
    table.add_row("python", f"{platform.python_version()} ({platform.platform()})")
    for package in ("hybridflow", "jax", "jaxlib", "numpy", "rich"):
        table.add_row(package, _version(package))
    for package, use in EXTRAS.items():
        version = _version(package)
        table.add_row(package, Text(f"{version}: for {use}" if version == "not installed" else version))
    return table


def _devices() -> Table:
    table = Table(title="Devices and settings", title_justify="left", show_header=False)
    for device in jax.devices():
        table.add_row(f"{device.platform}:{device.id}", str(device.device_kind))
    table.add_row("cores", str(os.cpu_count()))
    for name in SETTINGS:
        if name in os.environ:
            table.add_row(name, Text(os.environ[name]))
    return table


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _print_options(console: Console) -> None:
    """Print the XLA options, each with the known problem that is its reason."""
    console.print(f"XLA options, for known problems of jaxlib (here {_version('jaxlib')})", highlight=False)
    backend = jax.default_backend()
    for options, used, where in (
        (OPTIONS, compiler_options(), ""),
        (EAGER_OPTIONS, compiler_options(eager=True), "operations compiled alone: "),
        (PRODUCT_OPTIONS, compiler_options(large_products=True), "programs with large matrix products: "),
        (GATHER_OPTIONS, compiler_options(gathers=True), "programs that gather many parts on a mesh: "),
        (PIECE_OPTIONS, compiler_options(many_small_values=True), "programs with many small values: "),
        (CALL_OPTIONS, call_options(backend), "programs with outlined parts or fusion breaks: "),
    ):
        for option in options:
            state = "used" if used.get(option.name) == option.value else "not used"
            line = f"  {option.backend}: {option.name}={option.value!r} ({state} here; jaxlib {_range(option)})"
            for text in (line, f"    {where}{option.why}"):
                console.print(text, markup=False, highlight=False, soft_wrap=True)


def _range(option: XlaOption) -> str:
    since = ".".join(map(str, option.since))
    until = "on" if option.until is None else f"to {'.'.join(map(str, option.until))}"
    return f"{since} {until}" + ("" if option.most_cores is None else f"; {option.most_cores} core at most")
