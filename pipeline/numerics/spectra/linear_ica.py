"""Linear independent component analysis by scikit-learn."""

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
    """Find the mixing of independent sources of variance 1 by scikit-learn's `FastICA`.

    A. Hyvärinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE
    Transactions on Neural Networks 10, 1999: all components at once, with log cosh.

    Parameters
    ----------
    X
        Rows, (n_samples, n_features), with at least as many dimensions as components.
    n_components
        Number of components.
    seed
        Seed of the start of the search, below 2³².

    Returns
    -------
    tuple
        The mixing, (n_features, n_components), and whether the search converged.

    Raises
    ------
    FitError
        If there are too few rows, or too similar ones, for the search.
    """
    from sklearn.decomposition import FastICA  # takes half a second, and is needed only here

    settings = {"whiten": "unit-variance", "whiten_solver": "eigh", "random_state": seed}
    linear = FastICA(n_components, **settings)
    # Warning filters apply to the whole process, and fits may run in several threads.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of missing convergence and of dimensions left out
        try:
            linear.fit(X.astype(np.float64))
        except ValueError as error:  # NaN after a division by 0
            raise FitError(
                f"FastICA cannot separate {n_components} components with {len(X):,} rows. "
                "Fit more rows, or fewer components."
            ) from error
    return linear.mixing_, linear.n_iter_ < linear.max_iter
