"""How well a loading pattern fits the polychoric correlations of its items.

The indices do not depend on the likelihood, so that fits by expectation propagation have them too:
see `numerics.gaussian.confirmatory`. The variances of the correlations are those of the counts; the
correlations of their errors are those of normal responses, from drawn rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.latent_trait.starts import LOGISTIC_SCALE
from pipeline.numerics.gaussian.confirmatory import (
    compute_pattern_indices,
    draw_covariance,
    fit_pattern,
)
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polychoric_influence import polychoric_influence
from pipeline.statistics.correlations import estimate_polychoric, mirror_upper_triangle
from pipeline.statistics.counts import PairCounts, PairTable

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

MAX_PATTERN_PLANES = 400
_MAX_ITEMS, _MIN_ROWS = 60, 200
_N_DRAWS = 10_000
_MAX_DEPENDENCE = 0.1  # of what is missing: relative, of the number of rows with both values
_NAMES = ("pair_rows", "pair_ones", "pair_joint")


def count_pairs(block: BinaryBlock) -> dict[str, NDArray[Any]]:
    """Count the rows of a block that observe both of two planes, and their ones."""
    rows, ones, _, joint = np.broadcast_arrays(*PairCounts.from_block(block, pooled=True).table(0))
    return {name: own.copy() for name, own in zip(_NAMES, (rows, ones, joint), strict=True)}


def compute_pattern_fit(
    sums: Mapping[str, NDArray[Any]], params: LatentTraitParams, numbers: Indices, n_rows: float
) -> dict[str, Any]:
    """Return the indices of the fit of a pattern, or the reason why they are missing.

    Parameters
    ----------
    sums
        Results of `count_pairs`, summed over all rows.
    params
        Parameters of binary or graded items, from which the fit starts.
    numbers
        Numbers of the slopes of the pattern, see `LoadingPattern.slopes`.
    n_rows
        Number of rows, or the sum of their frequencies.
    """
    if not set(_NAMES) <= set(sums):
        return {"chi2_missing": f"the items have more than {MAX_PATTERN_PLANES} levels to compare"}
    rows, ones, joint = (np.asarray(sums[name], np.float64) for name in _NAMES)
    kept = _find_used_planes(np.diag(ones), np.diag(rows), params.n_planes)
    sizes = np.bincount(
        np.repeat(np.arange(len(numbers)), params.n_planes)[kept], None, len(numbers)
    )
    if reason := _explain_missing(
        rows, np.cumsum(params.n_planes) - params.n_planes, sizes, n_rows
    ):
        return {"chi2_missing": reason}
    places = np.ix_(kept, kept)
    table = PairTable(rows[places], ones[places], ones.T[places], joint[places])
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    correlation, status = estimate_polychoric("half", firsts, table)
    mirror_upper_triangle(correlation, status)
    np.fill_diagonal(correlation, 1.0)
    pairs = np.triu_indices(len(numbers), 1)
    if not (status[pairs] == PairStatus.PLAIN).all():
        return {"chi2_missing": "the data do not determine all polychoric correlations"}
    share = np.diag(table.n) / n_rows
    influence = polychoric_influence(*table, correlation, firsts, empty_cells="half")
    covariance = draw_covariance(
        correlation,
        -scipy.special.ndtri(np.diag(table.ones_i) / np.diag(table.n)),
        firsts[:-1],
        influence,
        share[firsts[:-1]],
        _N_DRAWS,
        np.random.default_rng(0),
    ).rescale(n_rows * influence.error[pairs] ** 2)
    own = correlation[pairs]
    fit = fit_pattern(
        own,
        1 / np.diag(covariance.matrix),
        params.weights / LOGISTIC_SCALE,
        params.component_correlation,
        numbers,
    )
    found = compute_pattern_indices(own, covariance, fit, len(numbers), n_rows)
    return found or {"chi2_missing": "the pattern leaves no degrees of freedom"}


def _find_used_planes(ones: Array, rows: Array, n_planes: Indices) -> Indices:
    """Return the planes above the lowest level of their item that some rows have."""
    kept, first = list[int](), 0
    for size in n_planes.tolist():
        reached = [float(rows[first]), *ones[first : first + size], 0.0]
        present = -np.diff(reached) > 0
        has_lower = np.cumsum(present)[:-1] > 0
        kept += (first + np.flatnonzero(present[1:] & has_lower)).tolist()
        first += size
    return np.array(kept, np.int64)


def _explain_missing(rows: Array, firsts: Indices, sizes: Indices, n_rows: float) -> str:
    """Return why there are no indices; empty if nothing in the numbers of rows prevents them."""
    if len(sizes) > _MAX_ITEMS:
        return f"the fit has more than {_MAX_ITEMS} items"
    if n_rows < _MIN_ROWS:
        return f"fewer than {_MIN_ROWS} rows are too few for polychoric correlations"
    if (sizes == 0).any():
        return "an item is constant"
    both = rows[np.ix_(firsts, firsts)]
    share = np.diag(both) / n_rows
    is_dependent = np.abs(both / (n_rows * np.outer(share, share)) - 1) > _MAX_DEPENDENCE
    np.fill_diagonal(is_dependent, False)
    if is_dependent.any():
        return "values of different items are missing together, as by design"
    return ""
