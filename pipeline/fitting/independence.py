"""Compare fits with independent features that have the margins of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from pipeline.data.features import find_continuous
from pipeline.errors import FitWarning
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.statistics.counts import (
    CountsAndMore,
    FeatureCounts,
    PairCounts,
    count_level_rows,
)
from pipeline.statistics.measurements import MeasuredCounts

_MIN_GAIN = 1.0  # over all rows, nats


def compute_independent_log_likelihood(model: Model, first: Any) -> float | None:
    """Return the log-likelihood per row of independent features, given the first statistics.

    Features with levels are independent of each other, unless the model takes each plane as a
    feature. Continuous features are normal with their mean and standard deviation. None if the
    statistics do not count features.
    """
    first = first.counts if isinstance(first, CountsAndMore) else first
    features = () if model.support.splits_levels else model.structure.features
    if not isinstance(first, FeatureCounts | PairCounts):
        return None
    nats = 0.0
    if find_continuous(features):
        if not isinstance(first, MeasuredCounts) or first.is_constant.any():
            return None
        variances = first.squares / first.number_weights
        nats = -float(first.number_weights @ (np.log(2 * np.pi * variances) + 1)) / 2
    if isinstance(first, PairCounts):
        first = first.to_feature_counts()
    if features:
        counts = np.concatenate(count_level_rows(first, features))
        totals = np.concatenate([[n.sum()] * len(n) for n in count_level_rows(first, features)])
    else:
        ones, observed = (first.weight_unit * n.sum(axis=0) for n in (first.ones, first.observed))
        counts, totals = np.append(ones, observed - ones), np.append(observed, observed)
    shares = counts / np.maximum(totals, 1)
    nats += float(scipy.special.xlogy(counts, shares).sum())
    return nats / float(first.weight)


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
        f"no better than {model.independence}: {fitted:.6f} nats per row, against "
        f"{independent:.6f}. The fit found no dependence; if there is some, another {{seed}} or "
        "other settings may find it"
    )
    return (FitWarning(text),)
