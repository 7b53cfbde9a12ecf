"""Functions of SciPy and scikit-learn on tensors against the same on arrays; a process of its own, for their settings.

``python -m tests.array_api_consumers`` prints the name of every function that gave a tensor with the right values.
"""

from __future__ import annotations

import os

os.environ["SCIPY_ARRAY_API"] = "1"  # read when SciPy is imported

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import sklearn
from scipy import fft, integrate, ndimage, signal, special, stats
from scipy.spatial import distance
from scipy.spatial.transform import Rotation
from sklearn import metrics, preprocessing
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

import hybridflow as hf

sklearn.set_config(array_api_dispatch=True)
RNG = np.random.default_rng(0)
U = RNG.uniform(0.1, 0.9, 40)
X = RNG.standard_normal((6, 4))
LABELS = np.asarray([0, 1, 1, 0, 1, 0], np.int64)

TENSORS: dict[str, Callable[..., Any]] = {
    "scipy.special.ndtr": lambda xp: special.ndtr(xp.asarray(U)),
    "scipy.special.gammaln": lambda xp: special.gammaln(xp.asarray(U)),
    "scipy.special.xlogy": lambda xp: special.xlogy(xp.asarray(U), xp.asarray(U)),
    "scipy.special.softmax": lambda xp: special.softmax(xp.asarray(X), axis=1),
    "scipy.special.betainc": lambda xp: special.betainc(xp.asarray(U), xp.asarray(U), xp.asarray(U)),
    "scipy.stats.skew": lambda xp: stats.skew(xp.asarray(X), axis=0),
    "scipy.stats.kurtosis": lambda xp: stats.kurtosis(xp.asarray(X), axis=1),
    "scipy.stats.gmean": lambda xp: stats.gmean(xp.asarray(U)),
    "scipy.stats.ttest_ind": lambda xp: stats.ttest_ind(xp.asarray(X), xp.asarray(X * X)).pvalue,
    "scipy.stats.entropy": lambda xp: stats.entropy(xp.asarray(U)),
    "scipy.fft.rfft": lambda xp: fft.rfft(xp.asarray(X)),
    "scipy.fft.dct": lambda xp: fft.dct(xp.asarray(X)),
    "scipy.signal.detrend": lambda xp: signal.detrend(xp.asarray(X)),
    "scipy.signal.convolve": lambda xp: signal.convolve(xp.asarray(U), xp.asarray(X[0])),
    "scipy.ndimage.gaussian_filter": lambda xp: ndimage.gaussian_filter(xp.asarray(X), 1.0),
    "scipy.integrate.trapezoid": lambda xp: integrate.trapezoid(xp.asarray(X)),
    "scipy.spatial.distance.pdist": lambda xp: distance.pdist(xp.asarray(X)),
    "sklearn.metrics.pairwise.polynomial_kernel": lambda xp: metrics.pairwise.polynomial_kernel(xp.asarray(X)),
    "sklearn.metrics.pairwise.chi2_kernel": lambda xp: metrics.pairwise.chi2_kernel(xp.asarray(X * X)),
    "sklearn.metrics.confusion_matrix": lambda xp: metrics.confusion_matrix(
        xp.asarray(LABELS), xp.asarray(LABELS[::-1].copy())
    ),
    "sklearn.preprocessing.KernelCenterer": lambda xp: preprocessing.KernelCenterer().fit_transform(
        xp.asarray(X @ X.T)
    ),
    "sklearn.decomposition.PCA": lambda xp: PCA(2, svd_solver="full").fit_transform(xp.asarray(X)),
    "sklearn.model_selection.train_test_split": lambda xp: train_test_split(xp.asarray(X), random_state=0)[0],
}
if tuple(map(int, scipy.__version__.split(".")[:2])) >= (1, 17):  # before, rotations were NumPy's alone
    TENSORS["scipy.spatial.transform.Rotation"] = lambda xp: Rotation.from_quat(xp.asarray(X[0])).as_matrix()
NUMBERS: dict[str, Callable[..., Any]] = {
    "sklearn.metrics.accuracy_score": lambda xp: metrics.accuracy_score(xp.asarray(LABELS), xp.asarray(LABELS * 0)),
    "sklearn.metrics.mean_squared_error": lambda xp: metrics.mean_squared_error(xp.asarray(U), xp.asarray(U * U)),
    "sklearn.metrics.mean_absolute_error": lambda xp: metrics.mean_absolute_error(xp.asarray(U), xp.asarray(U * U)),
}
"""Scores are Python numbers, whatever they are computed of."""


def main() -> None:
    """Run every function on arrays and on tensors."""
    for name, run in (*TENSORS.items(), *NUMBERS.items()):
        expected, found = run(np), run(hf)
        if name in TENSORS:
            assert isinstance(found, hf.Tensor), f"{name} gave a {type(found)}"
            assert found.dtype == np.asarray(expected).dtype, f"{name}: {found.dtype}"
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6, atol=1e-9, err_msg=name)
        print(name)


if __name__ == "__main__":
    main()
