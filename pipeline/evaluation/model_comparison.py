"""Comparison of fits by information criteria and likelihood-ratio tests.

If the smaller of two nested models holds, twice the gain in log-likelihood follows a χ²
distribution whose degrees of freedom are the difference of the numbers of parameters (S. S. Wilks,
Annals of Mathematical Statistics 9, 1938).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import scipy

from pipeline.errors import FitError
from pipeline.models.capabilities import FitRecord, HasNestedFits

_MAX_DECREASE = 0.01  # nats by which the larger model may lie below the smaller one
_SHOWN_SETTINGS = (
    *("estimator", "equal_slopes", "items", "invariance", "free", "traits", "correlations"),
    *("guessing", "slipping", "prior_precision", "slope_prior", "offset_prior", "smoothing"),
    *("states", "trees", "layers"),
)
_PARTS = {"pattern": "loading pattern", "known_items": "known items"}
STATISTICS = ("log_likelihood", "n_parameters", "aic", "bic", "adjusted_bic", "entropy_r2")


def compare_fits(fits: Mapping[str, FitRecord]) -> list[dict[str, Any]]:
    """Describe each fit, and test it against the largest smaller one that is a special case of it.

    Parameters
    ----------
    fits
        At least two fits by name.

    Returns
    -------
    list
        A dictionary for each fit, those with fewer parameters first: `fit`, `model`, `n_rows`, the
        entries of `STATISTICS` (None if the fit has none), whether it `converged`, whether `aic`
        and `bic` can be compared with those of the first line (`is_comparable`), and of the test
        `against`, `chi2`, `df` and `p`, or `no_test`, the reason why there is none.

    Raises
    ------
    FitError
        If there are fewer than two fits.
    """
    if len(fits) < 2:
        raise FitError("A comparison needs two or more fits. Name another one.")
    ordered = dict(sorted(fits.items(), key=lambda pair: count_parameters(pair[1])))
    first = next(iter(ordered.values()))
    lines: list[dict[str, Any]] = []
    for place, (name, fit) in enumerate(ordered.items()):
        statistics = get_statistics(fit)
        line = {
            "fit": name,
            "model": describe_model(fit),
            "n_rows": statistics.get("n_rows", fit.manifest.get("n_samples")),
            **{key: statistics.get(key) for key in STATISTICS},
            "converged": fit.manifest["converged"],
            "is_comparable": explain_other_rows(first, fit) == "",
            "against": None,
            "chi2": None,
            "df": None,
            "p": None,
            "no_test": "",
        }
        smaller = list(ordered.items())[:place][::-1]
        lines.append({**line, **_find_test(fit, smaller)})
    return lines


def _find_test(fit: FitRecord, smaller: Sequence[tuple[str, FitRecord]]) -> dict[str, Any]:
    """Return the test against the first nested fit, or why there is none.

    The reason is that of the first fit of the same model, or else of the first one.
    """
    reasons: dict[bool, str] = {}
    for name, own in smaller:
        reason = explain_no_test(own, fit)
        if not reason:
            return {"against": name, **compute_likelihood_ratio(own, fit)}
        reasons.setdefault(own.model.name == fit.model.name, f"{name}: {reason}")
    return {"no_test": reasons.get(True, reasons.get(False, ""))}


def get_statistics(fit: FitRecord) -> Mapping[str, Any]:
    """Return the statistics of a fit; empty if its likelihood is not exact."""
    statistics: Mapping[str, Any] = fit.manifest["diagnostics"].get("fit_statistics", {})
    return statistics


def count_parameters(fit: FitRecord) -> float:
    """Return the number of free parameters of a fit; infinity if it has no statistics."""
    return float(get_statistics(fit).get("n_parameters", float("inf")))


def explain_other_rows(one: FitRecord, other: FitRecord) -> str:
    """Return what differs between the data of two fits; empty if they are the same."""
    a, b = one.manifest, other.manifest
    if a["dataset"]["digest"] != b["dataset"]["digest"]:
        return "fitted to another dataset"
    names = ("split", "n_samples", "skipped_chunks")
    weights = [(own.get("row_weights") or {}).get("digest") for own in (a, b)]
    if weights[0] != weights[1] or any(
        (a.get(name) or None) != (b.get(name) or None) for name in names
    ):
        return "fitted to other rows (split or weights)"
    kinds = ("feature_names", "feature_levels", "nominal_features", "split_levels")
    if any(_freeze(a.get(name)) != _freeze(b.get(name)) for name in kinds):
        return "fitted to other features"
    return ""


def _freeze(value: Any) -> Any:
    """Return a value of a manifest as it is stored: with lists instead of tuples."""
    if isinstance(value, Mapping):
        return {name: _freeze(own) for name, own in value.items()} or None
    return [*map(_freeze, value)] if isinstance(value, list | tuple) else value


def explain_no_test(small: FitRecord, large: FitRecord) -> str:
    """Return why there is no likelihood-ratio test of two fits; empty if there is one."""
    for fit in (small, large):
        if "log_likelihood" not in (found := get_statistics(fit)):
            return f"{describe_model(fit)} does not maximize an exact likelihood"
        if reason := found.get("aic_missing"):
            return f"not valid, as {reason}"
    if reason := explain_other_rows(small, large):
        return reason
    if small.model.name != large.model.name:
        return f"another model, {small.model.name}"
    if not isinstance(small.model, HasNestedFits):
        return f"not nested: fits of {small.model.name} are no special cases of each other"
    if penalties := {*small.model.list_penalties(), *large.model.list_penalties()}:
        return f"penalized by {', '.join(sorted(penalties))}"
    if get_statistics(large)["n_parameters"] <= get_statistics(small)["n_parameters"]:
        return "not nested: both have as many parameters"
    if reason := small.model.explain_not_nested(small, large):
        return f"not nested: {reason}"
    gain = get_statistics(large)["log_likelihood"] - get_statistics(small)["log_likelihood"]
    if gain < -_MAX_DECREASE:
        return (
            f"its log-likelihood is {-gain:.2f} lower than of this special case, so the fit is not "
            "at its maximum; fit it again with another seed"
        )
    return ""


def compute_likelihood_ratio(small: FitRecord, large: FitRecord) -> dict[str, Any]:
    """Return χ², its degrees of freedom and p of two nested fits."""
    df = get_statistics(large)["n_parameters"] - get_statistics(small)["n_parameters"]
    gain = get_statistics(large)["log_likelihood"] - get_statistics(small)["log_likelihood"]
    chi2 = max(2 * gain, 0.0)
    return {"chi2": chi2, "df": df, "p": float(scipy.special.chdtrc(df, chi2))}


def describe_model(fit: FitRecord) -> str:
    """Name a model with its number of components, its structure and its unusual settings."""
    manifest, n = fit.manifest, fit.manifest["n_components"]
    settings, parts = manifest["hyperparameters"], [f"{n} component{'s' * (n != 1)}"]
    shown = [
        name
        for name in _SHOWN_SETTINGS
        if settings.get(name) not in (None, "quadrature", getattr(type(fit.model), name, None))
    ]
    if group := manifest.get("group"):
        parts.append(f"groups by {group}")
        shown += [name for name in ("invariance",) if name in settings and name not in shown]
    if covariates := manifest.get("covariates"):
        parts.append(f"covariates {', '.join(covariates['names'])}")
    parts += [text for key, text in _PARTS.items() if manifest.get(key)]
    parts += [f"{name}={settings[name]}" for name in shown]
    return f"{manifest['model']}, {', '.join(parts)}"
