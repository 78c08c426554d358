"""Likelihood-ratio tests of nested fits to the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import scipy

from flows.evaluating.named import Named
from pipeline.errors import FitError

Manifest = Mapping[str, Any]

_TOLD = ("estimator", "equal_slopes", "prior_precision", "constant_features")
_USUAL = (None, "auto", "no", 0.0, "refuse")
_STOPPED_SHORT = 0.01  # nats that the larger of two fits may lie below the smaller


def nested_tests(models: Sequence[Named]) -> list[dict[str, Any]]:
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
                f"its maximum, got {_spelled(named)}. Leave out --likelihood-ratio."
            )
    ordered = sorted(models, key=lambda named: _told(named)["n_parameters"])
    return [_test(small, large) for small, large in pairwise(ordered)]


def _test(small: Named, large: Named) -> dict[str, Any]:
    _check_rows(small, large)
    df = _told(large)["n_parameters"] - _told(small)["n_parameters"]
    if df < 1 or not _is_within(small, large):
        raise FitError(
            f"{small.name}, {large.name}: Expected nested models, got {_spelled(small)} and "
            f"{_spelled(large)}. Compare their BIC, or rows held out."
        )
    gain = _told(large)["log_likelihood"] - _told(small)["log_likelihood"]
    if gain < -_STOPPED_SHORT:
        raise FitError(
            f"{large.name}: Expected a likelihood above that of {small.name}, which it holds, got "
            f"{-gain:.2f} nats less: it stopped short. Fit it again with another --seed."
        )
    chi2 = max(2 * gain, 0.0)
    p = float(scipy.stats.chi2.sf(chi2, df))
    return {"smaller": small.name, "larger": large.name, "chi2": chi2, "df": df, "p": p}


def _check_rows(small: Named, large: Named) -> None:
    def rows(named: Named) -> tuple[Any, ...]:
        manifest = named.manifest
        return manifest["dataset"]["digest"], manifest["split"], manifest["n_samples"]

    if rows(small) != rows(large):
        raise FitError(
            f"{small.name}, {large.name}: Expected fits to the same rows, got others "
            "(dataset, split). Fit both to the same."
        )


def _is_within(small: Named, large: Named) -> bool:
    """Tell whether every model of the smaller kind is one of the larger."""
    a, b = small.manifest["hyperparameters"], large.manifest["hyperparameters"]
    same = ("prior_precision", "constant_features")
    is_alike = all(a[name] == b[name] for name in same) and not a["prior_precision"]
    return is_alike and b["equal_slopes"] == "no" and small.n_components <= large.n_components


def _told(named: Named) -> Manifest:
    told: Manifest = named.manifest["diagnostics"]["fit_statistics"]
    return told


def _spelled(named: Named) -> str:
    settings = named.manifest["hyperparameters"]
    components = f"{named.n_components} component{'s' if named.n_components != 1 else ''}"
    told = (f", {name}={settings[name]}" for name in _TOLD if settings.get(name) not in _USUAL)
    return f"{named.manifest['model']} of {components}{''.join(told)}"
