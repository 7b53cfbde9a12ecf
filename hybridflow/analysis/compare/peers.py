"""The same computation written with another package, run beside ours on the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import jax
import numpy as np

from hybridflow.analysis.parity import Call, Parity
from hybridflow.analysis.timing import Timing
from hybridflow.core.dtypes import WIDE
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, MissingPackageError
from hybridflow.core.tensor import Tensor, as_tensor, host_array
from hybridflow.core.variable import Variable

Array = np.ndarray[Any, Any]
EXTRAS = {"torch": "bench"}
"""The extra that brings a package; the others come with hybridflow."""


@dataclass(frozen=True)
class Peer:
    """The time of another package's function, and whether its results agree.

    Attributes:
        name: its key in ``peers=``.
        timing: the time of one call.
        first: the time of its first call, in seconds, including compilation.
        parity: its results, judged against the function's eager ones.
    """

    name: str
    timing: Timing
    first: float
    parity: Parity

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"name": self.name, "timing": self.timing.to_dict(), "first": self.first, "same": self.parity.same}


class Runner:
    """A peer's function with the arguments in its package's arrays.

    Args:
        name: the peer's name, which begins with its package's.
        function: the function.
        call: hybridflow's arguments; the peer gets copies.
    """

    def __init__(self, name: str, function: Callable[..., Any], call: Call) -> None:
        self.name = name
        self._function = function
        self._package = _package(name)
        give = _GIVE[self._package.__name__]
        self._args, self._kwargs = jax.tree_util.tree_map(
            lambda leaf: give(self._package, name, leaf) if isinstance(leaf, _ARRAYS) else leaf,
            call, is_leaf=lambda leaf: isinstance(leaf, _ARRAYS),
        )

    def __call__(self) -> Any:
        """Make one call and wait for its results."""
        result = self._function(*self._args, **self._kwargs)
        for leaf in [result] if hasattr(result, "shape") else jax.tree_util.tree_leaves(result):
            if isinstance(leaf, jax.Array):
                leaf.block_until_ready()
            elif getattr(leaf, "is_cuda", False):
                self._package.cuda.synchronize()
        return result

    def results(self) -> list[Array]:
        """Make one call and return its results as NumPy arrays, leaf by leaf."""
        leaves = jax.tree_util.tree_leaves(self())
        return [_taken(leaf) for leaf in leaves]


_ARRAYS = (Tensor, Variable, np.ndarray, np.generic, jax.Array)


def runners(peers: Mapping[str, Callable[..., Any]], call: Call) -> list[Runner]:
    """Return a runner for each peer.

    Args:
        peers: functions by name.
        call: the arguments of hybridflow's function.

    Raises:
        ArgumentTypeError: not a mapping of names to functions.
        ArgumentError: a name that does not begin with a package that is known here, or arguments that the package
            would change.
        MissingPackageError: a package that is not installed.
    """
    if not isinstance(cast(Any, peers), Mapping):
        raise ArgumentTypeError("compare: peers= takes functions by name", got=repr(peers),
                                hint='Pass what each of them runs: peers={"torch": f, "jax": jax.jit(g)}.')
    for name, function in peers.items():
        if not callable(function):
            raise ArgumentTypeError(f"compare: the peer {name!r} is {function!r}, which cannot be called")
    return [Runner(name, function, call) for name, function in peers.items()]


def _package(name: str) -> ModuleType:
    """Return the package that a peer's name begins with."""
    word = re.match(r"\w+", name)
    package = word[0] if word else ""
    if package not in _GIVE:
        raise ArgumentError(f"compare: the peer {name!r} names no package that arguments can be converted for",
                            hint=f"Begin its name with one of {', '.join(_GIVE)}, as in 'torch' or 'torch.compile'.")
    try:
        return import_module(package)
    except ImportError:
        extra = EXTRAS.get(package)
        hint = f"Run pip install 'hybridflow[{extra}]'." if extra else f"Run pip install {package}."
        raise MissingPackageError(f"compare: the peer {name!r} needs {package}, which is not installed",
                                  hint=hint) from None


def _give_numpy(package: ModuleType, name: str, leaf: Any) -> Any:
    del package, name
    return np.array(host_array(as_tensor(leaf)))


def _give_jax(package: ModuleType, name: str, leaf: Any) -> Any:
    array = _give_numpy(package, name, leaf)
    if array.dtype.num in WIDE and not cast(Any, jax.config).jax_enable_x64:
        raise ArgumentError(f"compare: the peer {name!r} would get {array.dtype} cut to 32 bits",
                            hint='Run jax.config.update("jax_enable_x64", True) first, or pass 32-bit arguments.')
    return package.numpy.asarray(array)


def _give_torch(package: ModuleType, name: str, leaf: Any) -> Any:
    return package.from_dlpack(as_tensor(_give_numpy(package, name, leaf))).clone()


_GIVE: dict[str, Callable[[ModuleType, str, Any], Any]] = {
    "numpy": _give_numpy, "torch": _give_torch, "jax": _give_jax,
}
"""How an array is handed to each package: always as a copy."""


def _taken(leaf: Any) -> Array:
    """Return a peer's result as a NumPy array."""
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
    return host_array(as_tensor(leaf))
