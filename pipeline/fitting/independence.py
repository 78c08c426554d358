"""Compare fits with independent features that have the margins of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from pipeline.data.features import find_continuous
from pipeline.errors import FitWarning
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.statistics.counts import FeatureCounts, PairCounts, count_level_rows
from pipeline.statistics.row_samples import RowSample

_MIN_GAIN = 1.0  # over all rows, nats


def compute_independent_log_likelihood(model: Model, first: Any) -> float | None:
    """Return the log-likelihood per row of independent features, given the first statistics.

    Features with levels are independent of each other, unless the model takes each plane as a
    feature. None if the statistics do not count features, or some are continuous.
    """
    first = first.counts if isinstance(first, RowSample) else first
    structure = getattr(model, "structure", None)
    features = () if structure is None or model.splits_levels else structure.features
    if not isinstance(first, FeatureCounts | PairCounts) or find_continuous(features):
        return None
    if isinstance(first, PairCounts):
        observed, ones = first.margins()
        own = (first.segments, first.rows, observed, ones, first.weights, first.weight_unit)
        first = FeatureCounts(*own)
    if features:
        counts = np.concatenate(count_level_rows(first, features))
        totals = np.concatenate([[n.sum()] * len(n) for n in count_level_rows(first, features)])
    else:
        ones, observed = (first.weight_unit * n.sum(axis=0) for n in (first.ones, first.observed))
        counts, totals = np.append(ones, observed - ones), np.append(observed, observed)
    shares = counts / np.maximum(totals, 1)
    return float(scipy.special.xlogy(counts, shares).sum() / first.weight)


def warn_about_independence(
    model: Model, state: FitState, statistics: Any, kept_objective: float | None = None
) -> tuple[FitWarning, ...]:
    """Return a warning if a fit is no better than independent features.

    `state` and `statistics` are those of the last pass: the statistics are of its parameters.
    `kept_objective` is the objective of the parameters of an earlier pass, if the fit keeps them.
    """
    fitted = model.mean_log_likelihood(state.params, statistics)
    independent = model.independent_log_likelihood(state, statistics)
    if fitted is None or independent is None:
        return ()
    fitted = fitted if kept_objective is None else kept_objective
    if (fitted - independent) * statistics.weight > _MIN_GAIN:
        return ()
    text = (
        f"no better than independent features: {fitted:.6f} nats per row, against "
        f"{independent:.6f} of independent features with the same shares. The fit found no "
        "dependence; if there is some, another {seed} or other settings may find it"
    )
    return (FitWarning(text),)
