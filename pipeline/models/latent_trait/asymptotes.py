"""Items with guessing or slipping: settings, first values, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.errors import FitError, FitWarning
from pipeline.models.latent_trait.design import LevelDesign
from pipeline.models.latent_trait.item_priors import PRIOR_FAMILIES, parse_prior
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.asymptotes import MAX_LOGIT, from_logits, to_logits
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

ASYMPTOTES = ("guessing", "slipping")
_START = {"guessing": 0.15, "slipping": 0.05}  # without a prior
_MAX_START = 0.25
_MAX_SCALE_CHANGE = 0.02
_MAX_ERROR = 0.3  # of an asymptote; larger ones mean that the data do not determine it
_MAX_SUM = 0.95  # of g + s after an extrapolation
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
    for name in ASYMPTOTES:
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


def add_first_asymptotes(model: Any, forms: Array) -> Array:
    """Return forms with asymptotes, and offsets with which items have the margins of before."""
    g, s = starts = [choose_first_asymptote(model, name) for name in ASYMPTOTES]
    share = np.clip((expit(forms[:, -1]) - g) / (1 - s - g), 0.05, 0.95)
    further = np.zeros((2 * len(forms), forms.shape[1]))
    further[:, -1] = np.tile(to_logits(np.array(starts)), len(forms))
    return np.vstack([np.column_stack([forms[:, :-1], logit(share)]), further])


def start_asymptotes(model: Any, forms: Array, n_features: int) -> Array:
    """Return forms of an earlier fit, and asymptotes where it had none."""
    first = add_first_asymptotes(model, forms[:n_features])
    if len(forms) == n_features:
        return first
    is_new = (forms[n_features:, -1] <= -MAX_LOGIT)[:, None]
    return np.vstack([forms[:n_features], np.where(is_new, first[n_features:], forms[n_features:])])


def limit_asymptotes(forms: Array, before: Array, slope_prior: str) -> Array:
    """Keep extrapolated forms where the model is defined, (n_groups, 3 n_features, q + 1)."""
    forms, n = forms.copy(), forms.shape[1] // 3
    if slope_prior.startswith("lognormal"):
        slopes = forms[:, :n, :-1]
        forms[:, :n, :-1] = np.where(slopes > 0, slopes, before[:, :n, :-1])
    p = from_logits(forms[:, n:, -1]).reshape(len(forms), n, 2)
    total = p.sum(axis=2, keepdims=True)
    limited = to_logits(p * np.minimum(1.0, _MAX_SUM / np.maximum(total, _MAX_SUM)))
    forms[:, n:, -1] = limited.reshape(len(forms), -1)
    return forms


def leave_out_zeros(
    forms: LevelDesign, params: LatentTraitParams, errors: dict[str, Array], names: Sequence[str]
) -> tuple[dict[str, Array], list[FitWarning]]:
    """Return errors, NaN for asymptotes at 0, and warnings.

    `names` lists the asymptotes without a prior: `guessing`, `slipping`, both or none.
    """
    errors, warnings, n = dict(errors), [], len(params.offsets)
    is_known = forms.select_group(0).is_known.reshape(3 * n, -1)[n:, -1].reshape(n, 2)
    for name, is_fixed in zip(ASYMPTOTES, is_known.T, strict=True):
        if name not in names or getattr(params.items, name) is None:
            continue
        for prefix, items in (("", params.items), ("group_", params.group_items)):
            own = errors.get(f"{prefix}{name}_error")
            if own is not None:
                is_zero = (getattr(items, name) < BOUNDARY) & ~is_fixed
                errors[f"{prefix}{name}_error"] = np.where(is_zero, np.nan, own)
        if not is_fixed.all():
            values = getattr(params.items, name)
            warnings += warn_about_asymptotes(name, values, errors[f"{name}_error"], ~is_fixed)
    return errors, warnings


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
    name: str, values: Array, errors: Array, is_estimated: NDArray[np.bool_]
) -> list[FitWarning]:
    """Warn about asymptotes without a prior that are 0, or that the data do not determine."""
    is_zero = is_estimated & (values < BOUNDARY)
    is_vague = is_estimated & ~is_zero & ~(errors < _MAX_ERROR)
    texts = [
        (is_zero, f"the {name} of these features is 0 and has no standard error: {{features}}"),
        (
            is_vague,
            f"the data hardly determine the {name} of these features: {{features}}; a prior such "
            f"as {{{name}_prior=beta(5,17)}} helps",
        ),
    ]
    found = [(text, np.flatnonzero(which).tolist()) for which, text in texts if which.any()]
    return [FitWarning(text, tuple(features)) for text, features in found]
