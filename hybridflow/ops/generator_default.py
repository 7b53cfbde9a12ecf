"""The generator that the functions of `hf.random` use."""

from __future__ import annotations

import threading

from hybridflow.core.context import context_of
from hybridflow.ops.generator import Generator


class _Seeds:
    """The number of calls of `seed`, and their seeds; streams derived from the default generator then restart."""

    count = 0
    last: int | None = None


SEEDS = _Seeds()
_default: list[Generator] = []
_default_lock = threading.Lock()


def default_generator() -> Generator:
    """Return the generator that the functions of `hf.random` use."""
    if not _default:
        with _default_lock, context_of(None):
            if not _default:
                _default.append(Generator())
    return _default[0]


def seed(seed: int | None = None) -> None:
    """Start the default generator's stream of a seed from its beginning.

    The initial values of layers that are made from now on follow from the seed too, unless `hf.nn.init.seed` is called.

    Args:
        seed: an integer from 0 on; without one, the operating system's entropy chooses the stream.

    Raises:
        ArgumentError: a negative seed.
        ArgumentTypeError: a seed that is no integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.seed(3)
        >>> first = hf.random.uniform((2,))
        >>> hf.random.seed(3)
        >>> bool(hf.all(first == hf.random.uniform((2,))))
        True
    """
    default_generator().seed(seed)
    SEEDS.count, SEEDS.last = SEEDS.count + 1, seed


__all__ = ["default_generator", "seed"]
