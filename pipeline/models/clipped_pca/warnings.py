"""What is in doubt about a fit of clipped PCA."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import Notice
from pipeline.models.clipped_pca.params import MIN_NOISE, ClippedPCAParams
from pipeline.numerics.gaussian.tetrachoric import PairStatus
from pipeline.statistics.correlations import PairKinds

Array = NDArray[np.float64]
Notices = tuple[Notice, ...]

_INDEFINITE = 0.02
_LIFTED = 2.0
_PAIRS = {
    PairStatus.EMPTY_CELL: "with an empty cell",
    PairStatus.CONSTANT_FEATURE: "that do not vary where both are observed, taken as uncorrelated",
    PairStatus.NO_OBSERVATIONS: "never observed together, taken as uncorrelated",
}


def judge_margins(estimator: str, shares: Array) -> Notices:
    """Say of which features the arcsine is biased, given their shares of ones."""
    uneven = np.flatnonzero(np.abs(shares - 0.5) > 0.1)
    if estimator == "tetrachoric" or not uneven.size:
        return ()
    text = "arcsine assumes one half of ones; far from it, so biased: {features}"
    return (Notice(text, tuple(uneven.tolist())),)


def judge_spectrum(params: ClippedPCAParams, n_kept: int, *, chosen: bool) -> Notices:
    """Say what is in doubt about the number of components, chosen or given."""
    found, null = [], params.null_eigenvalues
    if n_kept == 0:
        found.append("no eigenvalue stands out from those of independent features")
    if len(null) > 1 and null[0] > _LIFTED * null[1]:
        text = f"empty cells alone give an eigenvalue of {null[0]:.4g}; "
        found.append(text + "leave out rare features, or give --components")
    if chosen and 0 < n_kept == len(null):
        found.append(f"{n_kept} or more components stand out; give --components")
    if (params.eigenvalues[:n_kept] < 0).any():
        found.append("some components have a negative eigenvalue: loadings of zero")
    return tuple(map(Notice, found))


def judge_sign(negative: float, remedy: str) -> Notices:
    """Say that correlations are indefinite, given the negative eigenvalues' share of the trace."""
    if negative <= _INDEFINITE:
        return ()
    text = "correlations are indefinite: negative eigenvalues of at least"
    return (Notice(f"{text} {negative:.0%} of the variance; {remedy}"),)


def judge_pairs(kinds: PairKinds) -> Notices:
    """Say which pairs the estimate had to guess; of constant features there was word before."""
    return tuple(
        Notice(
            f"pairs {text}: {kinds.n_judged[code]}, among {{features}}",
            tuple(np.flatnonzero(kinds.involved[code]).tolist()),
        )
        for code, text in _PAIRS.items()
        if kinds.n_judged[code]
    )


def judge_noise(communalities: Array) -> Notices:
    """Say which features leave no room for noise."""
    floored = np.flatnonzero(communalities > 1 - MIN_NOISE)
    if not floored.size:
        return ()
    text = "communality of 1 or more, so noise is taken as 0.001: {features}"
    return (Notice(text, tuple(floored.tolist())),)
