"""What the latent-trait model refuses, mends on its way, and leaves in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError, FitWarning
from pipeline.models.latent_trait.rotation import principal_axes
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS

Array = NDArray[np.float64]

_EMPTY_COLUMN_SIZE = 0.1  # root mean square of a column that a fit need not find its way back from
_ZERO_WEIGHT = 0.02  # largest weight of what counts as without


def check_settings(model: Any) -> None:
    """Check the hyperparameters of a `LatentTrait`.

    Raises
    ------
    FitError
        If one is out of range, or they do not go together.
    """
    if model.nodes is not None and model.nodes < 2:
        raise FitError(f"nodes: Expected at least 2, got {model.nodes}.")
    if not 0 <= model.prior_precision < np.inf:
        raise FitError(f"prior_precision: Expected at least 0, got {model.prior_precision}.")
    if model.max_iter < 1:
        raise FitError(f"max_iter: Expected at least 1, got {model.max_iter}.")
    if not 0 < model.tol < 1:
        raise FitError(f"tol: Expected above 0 and below 1, got {model.tol}.")
    if model.estimator == "quadrature" and (model.n_components or 1) > MAX_COMPONENTS:
        raise FitError(
            f"--components: Expected at most {MAX_COMPONENTS} for quadrature, "
            f"got {model.n_components}. Use --set estimator=auto."
        )
    if model.equal_slopes == "yes" and (
        model.estimator in ("variational", "ep") or model.n_components != 1
    ):
        raise FitError(
            "equal_slopes: Expected --components 1 and estimator=auto, quadrature or sampling, "
            f"got {model.n_components} and {model.estimator}."
        )


def restart_empty_components(
    weights: Array, rng: np.random.Generator, constant: NDArray[np.int64]
) -> Array:
    """Put random weights in place of components that the bound has shrunk to nothing.

    Weights of 0 are a stationary point of every objective: no fit leaves it by itself.

    Parameters
    ----------
    weights
        Where the variational fit ended, (n_features, n_components).
    rng
        Source of the weights.
    constant
        Features that are to stay without.
    """
    turned = principal_axes(weights)
    asleep = np.sqrt((turned**2).mean(axis=0)) < _EMPTY_COLUMN_SIZE
    if not asleep.any():
        return weights
    turned[:, asleep] = 0.5 * rng.standard_normal((len(weights), int(asleep.sum())))
    turned[constant] = 0.0
    return turned


def warn_about_component_limit(most: int) -> FitWarning:
    """Tell that more components might be better."""
    return FitWarning(
        f"rows held out gained up to {most} components, the most that quadrature takes; "
        "--set estimator=auto tries more"
    )


def suggest_stronger_prior(precision: float) -> str:
    """Name a setting that keeps weights smaller than this precision of their prior does."""
    return f"prior_precision={max(1.0, 10 * precision):g}"


def warn_about_fit(
    weights: Array,
    auxiliary: Mapping[str, NDArray[Any]],
    diagnostics: Mapping[str, Any],
    prior: str,
) -> list[FitWarning]:
    """Tell what is in doubt once a fit has ended.

    Parameters
    ----------
    weights
        On their principal axes.
    auxiliary, diagnostics
        Of the fit.
    prior
        A setting that keeps weights smaller.
    """
    noted = _warn_about_zero_weights(weights, auxiliary["constant"], diagnostics["estimator"])
    if (diverging := auxiliary["diverging"]).size:
        text = (
            "the data separate these features, so that their weights have no bound and those given "
            f"are not to be read: {{features}}; --set {prior} keeps them finite"
        )
        noted.append(FitWarning(text, tuple(diverging.tolist())))
    if empty := diagnostics["rows_without_values"]:
        noted.append(FitWarning(f"rows without any value: {empty}, codes are 0"))
    return noted


def _warn_about_zero_weights(
    weights: Array, constant: NDArray[np.int64], estimator: str
) -> list[FitWarning]:
    """Tell of components and features that ended without weight."""
    size, q = np.abs(weights), weights.shape[1]
    empty, found = int((size.max(axis=0) < _ZERO_WEIGHT).sum()), []
    if empty:
        remedy = "sparse data have this effect on the variational fit: try --set estimator=auto"
        advice = remedy if estimator == "variational" else "fewer describe the rows as well"
        found.append(FitWarning(f"components without weight: {empty} of {q}; {advice}"))
    idle = np.setdiff1d(np.flatnonzero(size.max(axis=1) < _ZERO_WEIGHT), constant)
    if empty < q and idle.size:
        found.append(FitWarning("features without weight: {features}", tuple(idle.tolist())))
    return found
