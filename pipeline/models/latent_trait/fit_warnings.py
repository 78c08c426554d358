"""Warnings about fits of the latent-trait model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FEATURES, FitWarning
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.latent_trait.stages import MAX_INTEGRATION_ERROR
from pipeline.models.state import FitState
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

MAX_STRETCH = 0.018
"""Of the traits' standard deviation by a prior of slopes, beyond 1."""
_ZERO_WEIGHT = 0.02  # components and features whose largest weight is below this count as empty
_CLEAR_ERRORS = 3.0  # a slope of more standard errors has a sign
_MAX_REVERSED_SHARE = 0.3  # of items; if more point the other way, both ways are usual


def warn_about_component_limit(n_components: int) -> FitWarning:
    """Warn that quadrature takes no more components."""
    return FitWarning(
        f"held-out rows gained up to {n_components} components, the maximum for quadrature; "
        "{estimator=auto} tries more"
    )


def warn_about_fit(
    weights: Array, state: FitState, diagnostics: Mapping[str, Any], prior: str
) -> list[FitWarning]:
    """Return warnings about the fit; `prior` is a setting that keeps the weights smaller."""
    constant, diverging = state.auxiliary["constant"], state.auxiliary["diverging"]
    warnings = _warn_about_zero_weights(weights, constant, diagnostics["estimator"])
    if diverging.size:
        text = (
            "the data separate these items, so that their weights diverge and must not be "
            f"interpreted: {{features}}; {prior} keeps them finite"
        )
        warnings.append(FitWarning(text, tuple(diverging.tolist())))
    if empty := diagnostics["rows_without_values"]:
        warnings.append(FitWarning(f"rows without any value: {empty}; their codes are the mean"))
    return warnings


def warn_about_steep_features(steep: NDArray[np.intp], prior: str) -> list[FitWarning]:
    """Warn about features that no nodes resolve; `prior` is a setting that helps."""
    if not steep.size:
        return []
    text = (
        "items too steep for any nodes: {features}. Their weights may be far off, or diverge "
        f"because the data separate them, and they have no standard errors; use {prior}"
    )
    return [FitWarning(text, tuple(steep.tolist()))]


def warn_about_unknown_scale(statistics: Sums) -> list[FitWarning]:
    """Warn if a prior stretches the traits, and the nodes are too coarse to undo it."""
    moments = statistics.values["moments"]
    moments = moments.reshape(-1, *moments.shape[-2:])[0]
    deviation = float(np.sqrt(np.diag(moments)[:-1].max() / moments[-1, -1]))
    if deviation <= 1 + MAX_STRETCH:
        return []
    text = (
        f"{{prior_precision}} stretches the traits of the rows to a standard deviation of "
        f"{deviation:.2f} instead of 1, so that scores of other rows are on another scale; these "
        "nodes cannot estimate the scale. Leave out {nodes}, or use another {estimator}"
    )
    return [FitWarning(text)]


def warn_about_integrals(error: float, has_steps: bool) -> list[FitWarning]:
    """Warn about an error of the log-likelihood of all rows, NaN if it is unknown.

    It is larger if some curves are so steep that they are steps for the nodes.
    """
    size, reason = f"{error:.1g} nats", "more nodes than are possible would be needed"
    if has_steps:
        size, reason = "some tenths of a nat", "no nodes resolve weights that diverge"
    elif not error > MAX_INTEGRATION_ERROR:
        return []
    text = (
        f"the log-likelihood of all rows may be off by {size}, because {reason}; likelihood-ratio "
        "tests of this fit share the error"
    )
    return [FitWarning(text)]


def _warn_about_zero_weights(
    weights: Array, constant: NDArray[np.int64], estimator: str
) -> list[FitWarning]:
    size, q = np.abs(weights), weights.shape[1]
    empty, warnings = int((size.max(axis=0) < _ZERO_WEIGHT).sum()), []
    if empty:
        remedy = "sparse data have this effect on the variational fit; try {estimator=auto}"
        advice = remedy if estimator == "variational" else "fewer would describe the rows as well"
        warnings.append(FitWarning(f"components without weight: {empty} of {q}; {advice}"))
    unused = np.setdiff1d(np.flatnonzero(size.max(axis=1) < _ZERO_WEIGHT), constant)
    if empty < q and unused.size:
        warnings.append(FitWarning("items without weight: {features}", tuple(unused.tolist())))
    return warnings


def find_reversed_items(slopes: Array, errors: Array) -> tuple[NDArray[np.intp], int]:
    """Return the items whose slopes have the other sign than most, and the number of clear slopes.

    Arguments have shape (n_features,). Slopes that may be 0 do not count. If many items point each
    way, as votes of two parties do, nothing is reversed.
    """
    is_clear = np.abs(slopes) > _CLEAR_ERRORS * errors  # not of NaN
    is_reversed = is_clear & (slopes * slopes[is_clear].sum() < 0)
    n_clear = int(is_clear.sum())
    is_usual = is_reversed.sum() > _MAX_REVERSED_SHARE * n_clear
    return np.flatnonzero(is_reversed & ~is_usual), n_clear


def warn_about_reversed_items(
    params: LatentTraitParams, names: tuple[str, ...] = ()
) -> list[FitWarning]:
    """Name the items of one trait whose slopes have the other sign than most.

    `names` has the names of items if blocks have several planes each.
    """
    if params.weights.shape[1] != 1 or params.items_error is None:
        return []
    reversed_items, n_clear = find_reversed_items(
        params.slopes[:, 0], params.items_error.weights[:, 0]
    )
    if not reversed_items.size:
        return []
    n = len(reversed_items)
    subject = "1 item points" if n == 1 else f"{n} items point"
    text = f"{subject} the other way than the other {n_clear - n}: {{features}}"
    text += f". In a questionnaire, {{reverse={FEATURES}}}; in a test, check the key; "
    text += "roll calls may point either way"
    indices = tuple(reversed_items.tolist())
    return [FitWarning(text, tuple(names[k] for k in indices) if names else indices)]
