"""What is in doubt about a fit of clipped PCA."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.models.clipped_pca.params import MIN_NOISE, ClippedPCAParams
from pipeline.numerics.gaussian.tetrachoric import PairStatus
from pipeline.statistics.correlations import PairStatusCounts

Array = NDArray[np.float64]
FitWarnings = tuple[FitWarning, ...]

_MAX_NEGATIVE_SHARE = 0.02
_MAX_NULL_RATIO = 2.0
_PAIRS = {
    PairStatus.EMPTY_CELL: "with an empty cell",
    PairStatus.CONSTANT_FEATURE: "that do not vary where both are observed, taken as uncorrelated",
    PairStatus.NO_OBSERVATIONS: "never observed together, taken as uncorrelated",
}


def warn_about_margins(estimator: str, shares: Array) -> FitWarnings:
    """Say of which features the arcsine is biased, given their shares of ones."""
    uneven = np.flatnonzero(np.abs(shares - 0.5) > 0.1)
    if estimator == "tetrachoric" or not uneven.size:
        return ()
    text = "arcsine assumes one half of ones; far from it, so biased: {features}"
    return (FitWarning(text, tuple(uneven.tolist())),)


def warn_about_spectrum(params: ClippedPCAParams, n_kept: int, *, chosen: bool) -> FitWarnings:
    """Say what is in doubt about the number of components, chosen or given."""
    found, null = [], params.null_eigenvalues
    if n_kept == 0:
        found.append("no eigenvalue stands out from those of independent features")
    if len(null) > 1 and null[0] > _MAX_NULL_RATIO * null[1]:
        text = f"empty cells alone give an eigenvalue of {null[0]:.4g}; "
        found.append(text + "leave out rare features, or give --components")
    if chosen and 0 < n_kept == len(null):
        found.append(f"{n_kept} or more components stand out; give --components")
    if (params.eigenvalues[:n_kept] < 0).any():
        found.append("some components have a negative eigenvalue: loadings of zero")
    return tuple(map(FitWarning, found))


def warn_about_indefinite(negative: float, remedy: str) -> FitWarnings:
    """Say that correlations are indefinite, given the negative eigenvalues' share of the trace."""
    if negative <= _MAX_NEGATIVE_SHARE:
        return ()
    text = "correlations are indefinite: negative eigenvalues of at least"
    return (FitWarning(f"{text} {negative:.0%} of the variance; {remedy}"),)


def warn_about_pairs(kinds: PairStatusCounts) -> FitWarnings:
    """Say which pairs the estimate had to guess; of constant features there was word before."""
    return tuple(
        FitWarning(
            f"pairs {text}: {kinds.n_judged[code]}, among {{features}}",
            tuple(np.flatnonzero(kinds.involved[code]).tolist()),
        )
        for code, text in _PAIRS.items()
        if kinds.n_judged[code]
    )


def warn_about_noise(communalities: Array) -> FitWarnings:
    """Say which features leave no room for noise."""
    floored = np.flatnonzero(communalities > 1 - MIN_NOISE)
    if not floored.size:
        return ()
    text = "communality of 1 or more, so noise is taken as 0.001: {features}"
    return (FitWarning(text, tuple(floored.tolist())),)
