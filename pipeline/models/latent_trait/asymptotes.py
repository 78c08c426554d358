"""Items with guessing or slipping: settings, first values, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError, FitWarning
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.item_priors import PRIOR_FAMILIES, parse_prior
from pipeline.models.structure import Structure
from pipeline.statistics.sums import Sums

_NAMES = ("guessing", "slipping")
_START = {"guessing": 0.15, "slipping": 0.05}  # without a prior
_MAX_START = 0.25
_MAX_SCALE_CHANGE = 0.02
_MAX_ERROR = 0.3  # of an asymptote; larger ones mean that the data do not determine it
BOUNDARY = 1e-3
"""Smaller asymptotes without a prior count as 0."""


def check_asymptotes(model: Any, structure: Structure) -> None:
    """Refuse settings and structures that cannot be combined with guessing or slipping."""
    name = "guessing" if model.guessing != "none" else "slipping"
    what = f"{{{name}={getattr(model, name)}}}"
    if structure.pattern is not None:
        raise FitError(
            f"{what} cannot be combined with {{pattern}}. Leave out one of them.",
            parameter=name,
        )
    if model.n_components != 1:
        raise FitError(f"{what} needs one component. Set {{components=1}}.", parameter="components")
    if model.estimator not in ("auto", "quadrature"):
        raise FitError(
            f"{what} cannot be combined with {{estimator={model.estimator}}}. It needs "
            "{estimator=quadrature}.",
            parameter="estimator",
        )
    for name in _NAMES:
        prior = getattr(model, f"{name}_prior")
        if getattr(model, name) == "none" and prior != getattr(type(model), f"{name}_prior"):
            raise FitError(
                f"{{{name}_prior={prior}}} needs {{{name}=item}} or {{{name}=common}}.",
                parameter=f"{name}_prior",
            )
    if model.prior_precision and model.slope_prior != "none":
        raise FitError(
            f"{{prior_precision}} and {{slope_prior={model.slope_prior}}} are both priors of "
            "slopes. Leave out one of them.",
            parameter="slope_prior",
        )


def choose_first_asymptote(model: Any, name: str) -> float:
    """Return the probability `guessing` or `slipping` at the start of a fit."""
    prior_name = f"{name}_prior"
    prior = parse_prior(getattr(model, prior_name), prior_name, PRIOR_FAMILIES[prior_name])
    if getattr(model, name) == "none":
        return 0.0
    return _START[name] if prior is None else min(prior.probability, _MAX_START)


def warn_about_prior_scale(statistics: Sums, names: Sequence[str]) -> list[FitWarning]:
    """Warn if priors of items moved the mean or the scale of the trait in the first group."""
    second, first, n_rows = (statistics.values["moments"][0].ravel()[k] for k in (0, 1, 3))
    mean = first / n_rows
    deviation = math.sqrt(second / n_rows - mean**2)
    if max(abs(mean), abs(deviation - 1)) <= _MAX_SCALE_CHANGE:
        return []
    subject = " and ".join(f"{{{name}}}" for name in names)
    text = (
        f"{subject} {'outweighs' if len(names) == 1 else 'outweigh'} the rows: the trait has the "
        f"mean {mean:.2f} and the standard deviation {deviation:.2f} in them instead of 0 and 1, "
        "and scores of other rows are on another scale; use wider priors, or {prior_precision}, "
        "which keeps the scale"
    )
    return [FitWarning(text)]


def warn_about_asymptotes(
    params: LatentTraitParams, name: str, is_estimated: NDArray[np.bool_]
) -> list[FitWarning]:
    """Warn about asymptotes without a prior that are 0, or that the data do not determine."""
    values, errors = getattr(params, name), getattr(params, f"{name}_error")
    is_zero = is_estimated & (values < BOUNDARY)
    texts = [
        (is_zero, f"the {name} of these features is 0 and has no standard error: {{features}}"),
    ]
    if errors is not None:
        is_vague = is_estimated & ~is_zero & ~(errors < _MAX_ERROR)
        text = f"the data hardly determine the {name} of these features: {{features}}; a prior"
        texts.append((is_vague, f"{text} such as {{{name}_prior=beta(5,17)}} helps"))
    found = [(text, np.flatnonzero(which).tolist()) for which, text in texts if which.any()]
    return [FitWarning(text, tuple(features)) for text, features in found]
