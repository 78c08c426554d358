"""Linear independent component analysis."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError

Array = NDArray[np.float64]

_warnings_lock = threading.Lock()


def fast_ica(X: NDArray[Any], n_components: int, seed: int) -> tuple[Array, bool]:
    """Find the mixing of independent sources of variance 1, by scikit-learn's `FastICA`.

    A. Hyvärinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE
    Transactions on Neural Networks 10, 1999: all components at once, by log cosh.

    Parameters
    ----------
    X
        Rows, (n_samples, n_features), of at least as many dimensions as components.
    n_components
        Number of components.
    seed
        Of where the search begins, below 2³².

    Returns
    -------
    tuple
        The mixing, (n_features, n_components), and whether the search converged.

    Raises
    ------
    FitError
        If the rows are so few, or so alike, that the search breaks down.
    """
    from sklearn.decomposition import FastICA  # half a second, and only here

    settings = {"whiten": "unit-variance", "whiten_solver": "eigh", "random_state": seed}
    linear = FastICA(n_components, **settings)
    # Filters are of the whole process, and fits may run in its threads.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no convergence, and of dimensions that are left out
        try:
            linear.fit(X.astype(np.float64))
        except ValueError as error:  # of numbers that are none, after a division by 0
            raise FitError(
                f"Expected rows that tell sources apart, got {len(X):,} for {n_components} "
                "components, of which the search makes nothing. Give more rows."
            ) from error
    return linear.mixing_, linear.n_iter_ < linear.max_iter
