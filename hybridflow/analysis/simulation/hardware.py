"""`Hardware`: the figures of a kind of device that predictions of times need, read from TOML files."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np

from hybridflow.core.errors import ArgumentError, ArgumentTypeError

_TABLES = {"inside": ("bandwidth", "latency"), "between": ("bandwidth", "latency"),
           "attainable": ("products", "others", "memory", "links")}
"""The tables of a file with exactly these numbers."""


@dataclass(frozen=True)
class Hardware:
    """What a kind of device can do, and what connects devices.

    Attributes:
        name: what it is.
        platform: ``"cuda"``, ``"tpu"`` or ``"cpu"``: XLA chooses some collectives by it.
        memory_bytes: the size of a device's memory.
        memory_bandwidth: what it reads and writes, in bytes per second.
        devices_per_node: the number of devices that the fast links connect.
        products: the peak of matrix products and convolutions, in FLOP/s, by the dtype of what they read.
        others: the peak of all other operations, in FLOP/s, by dtype.
        inside: within a node, the ``bandwidth`` (what a device sends, in bytes per second) and the ``latency`` of a
            message, in seconds.
        between: the same between nodes.
        attainable: the share of a peak, from 0 to 1, that programs reach: of ``products``, ``others``, ``memory`` and
            ``links``.
        sources: where each figure is from.

    Example:
        >>> import hybridflow as hf
        >>> hf.Hardware.load("a100-80gb").products["bfloat16"]
        312000000000000.0
    """

    name: str
    platform: str
    memory_bytes: float
    memory_bandwidth: float
    devices_per_node: int
    products: Mapping[str, float]
    others: Mapping[str, float]
    inside: Mapping[str, float]
    between: Mapping[str, float]
    attainable: Mapping[str, float]
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def shipped() -> list[str]:
        """Return the names of the hardware that comes with hybridflow."""
        folder = files("hybridflow.analysis.simulation").joinpath("machines")
        return sorted([one.name.removesuffix(".toml") for one in folder.iterdir() if one.name.endswith(".toml")])

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> Hardware:
        """Return hardware by its shipped name, or from a TOML file.

        Args:
            name: such as ``"h100-sxm"`` (see `shipped`), or a path that ends in ``.toml``. The shipped files show the
                form.

        Raises:
            ArgumentError: there is no such hardware or file, or the file lacks a figure or has a wrong one.
        """
        text = os.fspath(name)
        known = cls.shipped()
        if text in known:
            found = files("hybridflow.analysis.simulation").joinpath("machines", f"{text}.toml").read_text("utf-8")
        elif text.endswith(".toml") and Path(text).is_file():
            found = Path(text).read_text("utf-8")
        else:
            close = difflib.get_close_matches(text, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else "Or name a file that ends in .toml."
            raise ArgumentError(f"hardware: there is no {text!r}", got=f"shipped: {', '.join(known)}", hint=hint)
        try:
            return cls._of(text, tomllib.loads(found))
        except tomllib.TOMLDecodeError as error:
            raise ArgumentError(f"hardware: {text} is not TOML: {error}") from None

    @classmethod
    def _of(cls, where: str, read: dict[str, Any]) -> Hardware:
        """Return what a file says, or raise if a figure is missing, unknown or no positive number."""
        names = [one.name for one in fields(cls)]
        wrong = [f"{name} is missing" for name in names if name not in read and name != "sources"]
        wrong += [f"{name} is unknown" for name in read if name not in names]
        for name, value in read.items():
            if name in ("name", "platform"):
                wrong += [] if isinstance(value, str) else [f"{name} is no text"]
            elif name in ("products", "others", *_TABLES):
                wrong += _wrong_numbers(name, value, _TABLES.get(name))
            elif name in names and name != "sources":
                wrong += [] if _is_positive(value) else [f"{name} = {value!r} is no positive number"]
        if not wrong:
            shares: dict[str, float] = read["attainable"]
            wrong += [f"attainable.{name} = {share} is more than 1" for name, share in shares.items() if share > 1]
        if wrong:
            raise ArgumentError(f"hardware: {where}: {wrong[0]}",
                                got=f"{len(wrong)} faults" if len(wrong) > 1 else None,
                                hint="The shipped files in hybridflow/analysis/simulation/machines show the form.")
        return cls(**read)

    def peak(self, dtype: Any, *, product: bool) -> float:
        """Return the attainable FLOP/s of operations on a dtype; one that is not listed counts as the widest listed.

        Args:
            dtype: what the operation reads.
            product: whether it is a matrix product or convolution.
        """
        table = self.products if product else self.others
        found = table.get(np.dtype(dtype).name, min(table.values()))
        return found * self.attainable["products" if product else "others"]


def as_hardware(given: Any) -> Hardware:
    """Return hardware that is given as such, by name, or as a path."""
    if isinstance(given, Hardware):
        return given
    if not isinstance(given, str | os.PathLike):
        raise ArgumentTypeError("simulate: hardware is a name, a path of a TOML file, or hf.Hardware",
                                got=repr(given)[:80], hint=f"Shipped: {', '.join(Hardware.shipped())}.")
    return Hardware.load(cast("str | os.PathLike[str]", given))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _wrong_numbers(name: str, table: Any, wanted: tuple[str, ...] | None) -> list[str]:
    if not isinstance(table, dict) or not table:
        return [f"{name} is no table"]
    given = cast("dict[str, Any]", table)
    faults = {key: value for key, value in given.items() if not _is_positive(value)}
    wrong = [f"{name}.{key} = {value!r} is no positive number" for key, value in faults.items()]
    if wanted is not None and set(given) != set(wanted):
        wrong.append(f"{name} has {sorted(given)}, not {sorted(wanted)}")
    return wrong
