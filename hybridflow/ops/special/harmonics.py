"""Spherical harmonics, in `hf.special`."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from hybridflow.core.errors import ArgumentError
from hybridflow.ops.common import Tensor, TensorLike, promote_float, require_kind
from hybridflow.ops.trigonometric import cos, sin


def sph_harm_y(n: int, m: int, theta: TensorLike, phi: TensorLike, /) -> Tensor:
    """Compute spherical harmonics of one degree and order, with the phase of Condon and Shortley.

    Args:
        n: the degree, a whole number from 0 on.
        m: the order, a whole number from ``-n`` to ``n``.
        theta, phi: the polar angle (from 0 to pi) and the azimuth, of shapes that broadcast; integers become float32.

    Returns:
        Complex numbers of the promoted precision, off by at most ``8 (n + 1)`` roundings of 1.

    Raises:
        ArgumentError: a degree or order that there is not.
        ShapeError: the shapes do not broadcast.
        DTypeError: complex angles.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.sph_harm_y(1, 0, 0.0, 0.0)
        Tensor(0.48860252+0.j, dtype=complex64)

    Reference:
        E. W. Hobson, The Theory of Spherical and Ellipsoidal Harmonics, 1931; the recurrence of normalised functions:
        S. A. Holmes and W. E. Featherstone, Journal of Geodesy 76, 2002.
    """
    for name, number, low, high in (("n", n, 0, math.inf), ("m", m, -n, n)):
        if isinstance(number, bool) or not isinstance(cast(Any, number), int | np.integer) or not low <= number <= high:
            raise ArgumentError(f"sph_harm_y: {name}={number!r} is no whole number from {low} to {high}",
                                hint="Pass Python integers; a degree or order for each element needs a call for each.")
    polar, azimuth = promote_float(theta, phi)
    require_kind("sph_harm_y", ("float",), polar.spec)
    order = abs(int(m))
    turn: Any = cos(azimuth * order) + 1j * sin(azimuth * order)
    value = _legendre(int(n), order, polar) * turn
    return value if m >= 0 else value.conj() * (-1) ** order


def _legendre(degree: int, order: int, polar: Any) -> Any:
    """Return the associated Legendre function of a cosine, normalised over the sphere."""
    scale = math.sqrt(math.prod((2 * k + 1) / (2 * k) for k in range(1, order + 1)) / (4 * math.pi))
    now: Any = (-1) ** order * scale * sin(polar) ** order
    before: Any = 0.0
    x = cos(polar)
    factor = 0.0
    for one in range(order + 1, degree + 1):
        following = math.sqrt((4 * one**2 - 1) / (one**2 - order**2))
        now, before = following * (x * now - factor * before), now
        factor = 1 / following
    return now


__all__ = ["sph_harm_y"]
