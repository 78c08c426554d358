"""Whether items favour one group of rows among rows of equal sum scores: Mantel–Haenszel.

With N_gk rows of group g (0 the reference, 1 the focal one) at score k, of which O_gik have item i,

    α_i = Σ_k O_0ik (N_1k − O_1ik) / N_k  /  Σ_k (N_0k − O_0ik) O_1ik / N_k,
    χ²_i = (|Σ_k O_0ik − E_ik| − ½)² / Σ_k V_ik

with E and V the mean and variance of the hypergeometric distribution (P. W. Holland, D. T. Thayer,
"Differential item performance and the Mantel–Haenszel procedure", 1988). Δ = −2.35 ln α is on the
scale of ETS: below 1 in size, or by chance, an item is in class A; from 1.5 on in class C.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_ETS_DELTA_FACTOR, _SMALL_DELTA, _LARGE_DELTA, _SIGNIFICANCE_LEVEL = -2.35, 1.0, 1.5, 0.05


class ItemBias(NamedTuple):
    """What the test finds of each item, (n_features,) each; α is 0 or ∞ where a cell is empty."""

    odds_ratio: Array
    chi2: Array
    p: Array
    delta: Array
    grade: NDArray[np.str_]


def count_by_score(column: str, groups: tuple[int, int], block: BinaryBlock) -> Sums:
    """Count a block's rows without missing values, and their ones, by group and sum score.

    Parameters
    ----------
    column
        Per-row column that names the group.
    groups
        Its value in the reference group and in the focal one.
    block
        The rows.

    Returns
    -------
    Sums
        `rows` (2, n_features + 1) and `ones` (2, n_features + 1, n_features).
    """
    X, observed, labels = block.unpack_values(), block.unpack_mask(), block.column(column)
    whole = np.ones(len(X), bool) if observed is None else observed.all(axis=1)
    n_features = block.n_features
    rows = np.zeros((2, n_features + 1), np.int64)
    ones = np.zeros((2, n_features + 1, n_features), np.int64)
    for g, value in enumerate(groups):
        chosen = X[whole & (labels == value)]
        scores = chosen.sum(axis=1, dtype=np.int64)
        rows[g] = np.bincount(scores, minlength=n_features + 1)
        for k in np.flatnonzero(rows[g]):
            ones[g, k] = chosen[scores == k].sum(axis=0, dtype=np.int64)
    return Sums(block.n_samples, 0.0, {"rows": rows, "ones": ones})


def mantel_haenszel(rows: Counts, ones: Counts) -> ItemBias:
    """Test every item, the scores being strata; the parameters are those of `count_by_score`."""
    both = (rows > 0).all(axis=0)
    n_0, n_1 = (rows[g, both, None].astype(np.float64) for g in (0, 1))
    a, c = (ones[g, both].astype(np.float64) for g in (0, 1))
    b, d, total = n_0 - a, n_1 - c, n_0 + n_1
    has, lacks = a + c, b + d
    expected = n_0 * has / total
    variance = n_0 * n_1 * has * lacks / (total**2 * np.maximum(total - 1, 1))
    excess = np.maximum(abs((a - expected).sum(axis=0)) - 0.5, 0.0)
    spread = variance.sum(axis=0)
    chi2 = np.divide(excess**2, spread, out=np.zeros(len(spread)), where=spread > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (a * d / total).sum(axis=0) / (b * c / total).sum(axis=0)
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        delta = _ETS_DELTA_FACTOR * np.log(ratio)
    p = scipy.stats.chi2.sf(chi2, 1)
    size = np.where(p < _SIGNIFICANCE_LEVEL, abs(delta), 0.0)
    grade = np.where(size < _SMALL_DELTA, "A", np.where(size < _LARGE_DELTA, "B", "C"))
    return ItemBias(ratio, chi2, p, delta, grade)
