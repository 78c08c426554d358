"""Sources whose variances do not differ over segments: any rotation of them fits as well.

If the variances of two sources are proportional over segments, the sources can be scaled to equal
variances, and a rotation of the two then changes no distribution. A fit nevertheless shows
differences between their estimated variances: those of the rotation that shows the largest ones.
Without true differences, the sum of their squares in standard errors is therefore not χ² with
U − 1 degrees of freedom (U segments) but the largest eigenvalue of a 2 × 2 Wishart matrix: one
diagonal entry is the sum for this rotation, the other one that for a rotation by 45°.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import scipy

from pipeline.arrays import Array
from pipeline.errors import FitWarning

UNLINKED_SOURCES = (
    "which source of one part belongs to which of another, and with which sign, is not determined"
)
"""What follows for parts of the features that no row links; see `Model.unlinked_effect`."""
ANY_ROTATION = "any rotation of these sources fits as well"
_QUANTILE, _DRAWS = 0.999, 100_000
_MIN_INFORMATION = 1e-6  # about a log ratio of variances, for a segment to count


def find_rotatable_sources(log_variances: Array, covariances: Array) -> list[tuple[int, ...]]:
    """Find sets of sources whose variances differ by no more than their errors explain.

    Parameters
    ----------
    log_variances
        Estimates, (n_segments, n_components).
    covariances
        Covariances of their errors, given the mixing, (n_segments, n_components, n_components).

    Returns
    -------
    list of tuple of int
        Sets of two or more sources; a source is in at most one of them.
    """
    n_components = log_variances.shape[1]
    links = np.zeros((n_components, n_components), np.bool_)
    for k, l in itertools.combinations(range(n_components), 2):  # noqa: E741
        variances = covariances[:, k, k] + covariances[:, l, l] - 2 * covariances[:, k, l]
        information = np.divide(1, variances, out=np.zeros(len(variances)), where=variances > 0)
        ratios = log_variances[:, k] - log_variances[:, l]
        links[k, l] = _are_equal(ratios, information)
    n_sets, labels = scipy.sparse.csgraph.connected_components(links, directed=False)
    sets = (tuple(np.flatnonzero(labels == label).tolist()) for label in range(n_sets))
    return [own for own in sets if len(own) > 1]


def _are_equal(values: Array, information: Array) -> bool:
    """Return whether values over segments differ by no more than chance, for the best rotation."""
    used = information > _MIN_INFORMATION
    if used.sum() < 2:
        return True
    mean = np.average(values[used], weights=information[used])
    misfit = float(information[used] @ (values[used] - mean) ** 2)
    return misfit <= _find_largest_eigenvalue(int(used.sum()) - 1)


def _find_largest_eigenvalue(degrees: int) -> float:
    """Return a high quantile of the largest eigenvalue of a 2 × 2 Wishart matrix."""
    rng = np.random.default_rng(0)
    left = rng.chisquare(degrees, _DRAWS)
    cross = np.sqrt(left) * rng.standard_normal(_DRAWS)
    rest = rng.chisquare(degrees - 1, _DRAWS) if degrees > 1 else 0.0
    right = cross**2 / left + rest
    largest = (left + right) / 2 + np.sqrt(((left - right) / 2) ** 2 + cross**2)
    return float(np.quantile(largest, _QUANTILE))


def name_sources(sources: Sequence[int]) -> str:
    """Return the names of two or more sources, counted from 1."""
    return ", ".join(str(k + 1) for k in sources[:-1]) + f" and {sources[-1] + 1}"


def warn_about_rotations(sets: Sequence[Sequence[int]]) -> tuple[FitWarning, ...]:
    """Name the sources that any rotation fits as well, counted from 1."""
    warnings = []
    for own in sets:
        text = f"the variances of components {name_sources(own)} differ over segments by no more "
        text += f"than their errors: {ANY_ROTATION}, so they have no errors"
        warnings.append(FitWarning(text))
    return tuple(warnings)
