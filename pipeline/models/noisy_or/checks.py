"""Settings of noisy-OR networks within their ranges, and what a fit leaves in doubt."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError, FitWarning
from pipeline.models.noisy_or.gibbs import sample_posterior_means
from pipeline.models.noisy_or.params import MIN_LEAK, NoisyOrParams
from pipeline.random import RowRandom

Bits = NDArray[np.uint8]

CODE_SWEEPS = (50, 100)
"""Sweeps of each chain of a code that are left out, and that are averaged."""

_COUNTS = ("epochs", "batch", "starts", "sweeps", "chains", "temperatures", "patience", "max_iter")
_MAX_PRIOR = 1e6
_MAX_NAMED_UNITS = 10
_MIN_ACTIVITY = 1e-3  # of the rows
_MIN_CAUSED = 0.05  # f
_CHECKED_ROWS, _MAX_UNMIXED_SHARE, _MIN_EFFECTIVE_DRAWS = 300, 0.1, 10


def check_settings(model: Any) -> None:
    """Refuse settings out of range.

    Raises
    ------
    FitError
        Naming the first.
    """
    if model.layers is not None:
        _check_layers(model.layers, model.n_components)
    for name in _COUNTS:
        if (value := getattr(model, name)) < 1 + (name == "chains"):
            least = 1 + (name == "chains")
            raise FitError(f"{name}: Expected at least {least}, got {value}. Give more.")
    for name in ("alpha", "beta"):
        if not 1 <= (value := getattr(model, name)) <= _MAX_PRIOR:
            raise FitError(f"{name}: Expected 1 to {_MAX_PRIOR:g}, got {value}.")
    if not MIN_LEAK <= model.leak <= 1:
        raise FitError(
            f"leak: Expected {MIN_LEAK:g} to 1, so that no row has probability 0, got {model.leak}."
        )
    for name in ("settled", "tol"):
        if not 0 <= (value := getattr(model, name)) < 1:
            raise FitError(f"{name}: Expected at least 0 and below 1, got {value}.")
    if not 0 < model.tempering <= 1:
        raise FitError(f"tempering: Expected above 0 and at most 1, got {model.tempering}.")


def _check_layers(layers: tuple[int, ...], n_components: int | None) -> None:
    if min(layers, default=0) < 1:
        raise FitError(f"layers: Expected at least one unit in each, got {layers}. Give more.")
    if n_components not in (None, sum(layers)):
        raise FitError(
            f"--components: Expected {sum(layers)}, the units of all layers, got {n_components}. "
            "Leave out one of the two."
        )


def is_dead_unit(params: NoisyOrParams) -> NDArray[np.bool_]:
    """Tell which hidden units are hardly ever on, or turn nothing on: (n_hidden,)."""
    most = np.concatenate([f.max(axis=0) for f in params.f])
    activity = np.ones(len(most)) if params.activity is None else params.activity
    dead: NDArray[np.bool_] = (activity < _MIN_ACTIVITY) | (most < _MIN_CAUSED)
    return dead


def warn_about_dead_units(params: NoisyOrParams, is_pruned: bool) -> tuple[FitWarning, ...]:
    """Name hidden units without use by layer and number, both from 1 on."""
    dead = is_dead_unit(params)
    if not dead.any():
        return ()
    names = [f"{k}.{i + 1}" for k, n in enumerate(params.sizes[1:], 1) for i in range(n)]
    found = [name for name, is_dead in zip(names, dead, strict=True) if is_dead]
    named, n_more = ", ".join(found[:_MAX_NAMED_UNITS]), len(found) - _MAX_NAMED_UNITS
    named += f" and {n_more} more" if n_more > 0 else ""
    told = f"units that are hardly ever on, or turn nothing on: {named} (layer.unit); ask for fewer"
    return (FitWarning(told if is_pruned else f"{told}, or --set prune=yes"),)


def compute_unmixed_share(params: NoisyOrParams, X: Bits) -> float:
    """Give the share of some rows of which two chains disagree about a unit."""
    some, key = X[:_CHECKED_ROWS], RowRandom(0).stream("mixing").key
    _, worth = sample_posterior_means(params.network, some, key, np.arange(len(some)), *CODE_SWEEPS)
    return float((worth.min(axis=1) < _MIN_EFFECTIVE_DRAWS).mean())


def warn_about_unmixed_chains(share: float) -> tuple[FitWarning, ...]:
    """Say so where that is the case of many rows."""
    if share <= _MAX_UNMIXED_SHARE:
        return ()
    return (
        FitWarning(
            f"chains have not mixed: two that began apart disagree about units of {share:.0%} of "
            "rows, so that codes of these depend on where chains begin. Fit with fewer units."
        ),
    )
