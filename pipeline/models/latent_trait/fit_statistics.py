"""What papers say of a latent-trait fit: likelihood, M₂ and its indices, item fit, reliability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.item_fit import item_fit_statistics
from pipeline.models.latent_trait.limited_information import (
    LimitedInformationFit,
    compute_independence_fit,
    compute_m2_fit,
)
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_SCORE_STATISTICS = ("s_x2", "s_x2_df", "s_x2_p")
_NEARLY_NORMAL = 1e5  # a noncentral χ² as large as this; SciPy's own gives no numbers far beyond
_MIN_ITEMS = 3  # items that sum scores tell something of


def compute_fit_statistics(
    params: LatentTraitParams, sums: Sums, nodes: Nodes, rank: int, varying: NDArray[np.intp]
) -> dict[str, Any]:
    """Give likelihood, information criteria, reliability, and what pairs tell.

    Parameters
    ----------
    params
        Of the fit.
    sums
        `information.summarize_information` of all rows.
    nodes
        Of the fit.
    rank
        Number of parameters.
    varying
        Features that are not constant.
    """
    n, log_likelihood = sums.n_samples, sums.objective
    found: dict[str, Any] = {
        "log_likelihood": log_likelihood,
        "n_parameters": rank,
        "aic": 2 * rank - 2 * log_likelihood,
        "bic": rank * float(np.log(n)) - 2 * log_likelihood,
        "reliability": _reliability(sums).tolist(),
    }
    if "both" not in sums.values:
        return found | {"m2_missing": "there are too many items to compare their pairs"}
    both = sums.values["both"][np.ix_(varying, varying)]
    n_complete = int(sums.values["score_rows"].sum())
    size = len(varying)
    if (df := size * (size + 1) // 2 - rank) < 1:
        return found | {"m2_missing": f"{size} items leave no degree of freedom"}
    if 2 * n_complete < n:
        return found | {"m2_missing": f"only {n_complete:,} of {n:,} rows have all values"}
    if _has_constant_item(both, n_complete):
        return found | {"m2_missing": "an item is constant in the rows that have all values"}
    at = params.weights[varying], params.offsets[varying]
    fitted = compute_m2_fit(both, n_complete, *at, nodes, rank)
    assert fitted.df == df
    return found | _fit_indices(fitted, compute_independence_fit(both, n_complete), n_complete)


def _has_constant_item(both: NDArray[np.int64], n_rows: int) -> bool:
    ones = np.diag(both)
    return bool(((ones == 0) | (ones == n_rows)).any())


def _reliability(sums: Sums) -> Array:
    """Give the share of each component's variance that codes hold, (q,)."""
    values = sums.values
    n = max(int(values["rows_informing"]), 1)
    mean = values["codes"] / n
    between = np.diag(values["codes_squared"]) / n - mean**2
    within = np.diag(values["codes_variance"]) / n
    found: Array = between / (between + within)
    return found


def _fit_indices(
    fitted: LimitedInformationFit, independent: LimitedInformationFit, n_rows: int
) -> dict[str, Any]:
    """Give RMSEA with its 90 % interval, SRMSR, CFI and TLI (P. M. Bentler, 1990)."""
    m2, df, srmsr = fitted
    ratio, of_independent = m2 / df, independent.m2 / independent.df
    excess, most = max(m2 - df, 0.0), max(independent.m2 - independent.df, m2 - df, 0.0)
    bounds = [_noncentrality(m2, df, level) for level in (0.95, 0.05)]
    return {
        "m2": m2,
        "m2_df": df,
        "m2_p": float(scipy.stats.chi2.sf(m2, df)),
        "rmsea": float(np.sqrt(excess / (df * (n_rows - 1)))),
        "rmsea_interval": [float(np.sqrt(b / (df * (n_rows - 1)))) for b in bounds],
        "srmsr": srmsr,
        "cfi": 1 - excess / most if most else 1.0,
        "tli": (of_independent - ratio) / (of_independent - 1),
        "m2_rows": n_rows,
    }


def _noncentrality(value: float, df: int, level: float) -> float:
    """Give the noncentrality at which a χ² is below `value` with this probability; 0 at least."""
    if scipy.stats.chi2.cdf(value, df) <= level:
        return 0.0
    if value > _NEARLY_NORMAL:
        spread = np.sqrt(2 * (2 * value - df))
        return float(max(value - df - scipy.special.ndtri(level) * spread, 0.0))

    def below(size: float) -> float:
        return float(scipy.stats.ncx2.cdf(value, df, size)) - level

    upper = max(value, 1.0)
    while below(upper) > 0:
        upper *= 2
    return float(scipy.optimize.brentq(below, 1e-12, upper))


def compute_item_statistics(
    params: LatentTraitParams, values: Mapping[str, Any], nodes: Nodes, varying: NDArray[np.intp]
) -> dict[str, Array]:
    """Give infit, outfit, and S-X² with its degrees of freedom and p-value, each (n_features,).

    Mean squares are at the codes' means. Where no degree of freedom is left, or a feature is
    constant, S-X² is 0 and p is 1.
    """
    n_features = len(params.offsets)
    found = {
        "infit": values["squares"] / np.maximum(values["variances"], np.finfo(float).tiny),
        "outfit": values["squares_standardized"] / np.maximum(values["observed"], 1),
    }
    if "score_rows" not in values or len(varying) < max(n_features, _MIN_ITEMS):
        none = np.zeros(n_features), np.zeros(n_features), np.ones(n_features)
        return found | dict(zip(_SCORE_STATISTICS, none, strict=True))
    by_score = item_fit_statistics(
        values["score_rows"], values["score_ones"], params.weights, params.offsets, nodes
    )
    df = by_score.df.astype(float)
    p: Array = np.where(df > 0, scipy.stats.chi2.sf(by_score.s_x2, np.maximum(df, 1)), 1.0)
    return found | dict(zip(_SCORE_STATISTICS, (by_score.s_x2, df, p), strict=True))
