"""Likelihood-ratio tests of nested fits to the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import scipy

from flows.evaluating.named import ComparedModel
from pipeline.errors import FitError

Manifest = Mapping[str, Any]

_SHOWN_SETTINGS = ("estimator", "equal_slopes", "prior_precision", "constant_features")
_DEFAULT_VALUES = (None, "auto", "no", 0.0, "refuse")
_MAX_DECREASE = 0.01  # nats that the larger of two fits may lie below the smaller


def run_likelihood_ratio_tests(models: Sequence[ComparedModel]) -> list[dict[str, Any]]:
    """Test each fit against the next larger one.

    Raises
    ------
    FitError
        If fits have no likelihood at a maximum, are of other rows, or are not nested.
    """
    if len(models) < 2:
        raise FitError("--likelihood-ratio: Expected two or more --artifact, got one.")
    for named in models:
        if "fit_statistics" not in named.manifest["diagnostics"]:
            raise FitError(
                f"{named.name}: Expected a latent-trait fit by quadrature, whose likelihood is at "
                f"its maximum, got {_format_model(named)}. Leave out --likelihood-ratio."
            )
    ordered = sorted(models, key=lambda named: _get_fit_statistics(named)["n_parameters"])
    return [_run_test(small, large) for small, large in pairwise(ordered)]


def _run_test(small: ComparedModel, large: ComparedModel) -> dict[str, Any]:
    _check_rows(small, large)
    df = _get_fit_statistics(large)["n_parameters"] - _get_fit_statistics(small)["n_parameters"]
    if df < 1 or not _is_nested(small, large):
        raise FitError(
            f"{small.name}, {large.name}: Expected nested models, got {_format_model(small)} and "
            f"{_format_model(large)}. Compare their BIC, or rows held out."
        )
    gain = (
        _get_fit_statistics(large)["log_likelihood"] - _get_fit_statistics(small)["log_likelihood"]
    )
    if gain < -_MAX_DECREASE:
        raise FitError(
            f"{large.name}: Expected a likelihood above that of {small.name}, which it holds, got "
            f"{-gain:.2f} nats less: it stopped short. Fit it again with another --seed."
        )
    chi2 = max(2 * gain, 0.0)
    p = float(scipy.stats.chi2.sf(chi2, df))
    return {"smaller": small.name, "larger": large.name, "chi2": chi2, "df": df, "p": p}


def _check_rows(small: ComparedModel, large: ComparedModel) -> None:
    def rows(named: ComparedModel) -> tuple[Any, ...]:
        manifest = named.manifest
        return manifest["dataset"]["digest"], manifest["split"], manifest["n_samples"]

    if rows(small) != rows(large):
        raise FitError(
            f"{small.name}, {large.name}: Expected fits to the same rows, got others "
            "(dataset, split). Fit both to the same."
        )


def _is_nested(small: ComparedModel, large: ComparedModel) -> bool:
    """Tell whether every model of the smaller kind is one of the larger."""
    a, b = small.manifest["hyperparameters"], large.manifest["hyperparameters"]
    same = ("prior_precision", "constant_features")
    is_alike = all(a[name] == b[name] for name in same) and not a["prior_precision"]
    return is_alike and b["equal_slopes"] == "no" and small.n_components <= large.n_components


def _get_fit_statistics(named: ComparedModel) -> Manifest:
    told: Manifest = named.manifest["diagnostics"]["fit_statistics"]
    return told


def _format_model(named: ComparedModel) -> str:
    settings = named.manifest["hyperparameters"]
    components = f"{named.n_components} component{'s' if named.n_components != 1 else ''}"
    told = (
        f", {name}={settings[name]}"
        for name in _SHOWN_SETTINGS
        if settings.get(name) not in _DEFAULT_VALUES
    )
    return f"{named.manifest['model']} of {components}{''.join(told)}"
