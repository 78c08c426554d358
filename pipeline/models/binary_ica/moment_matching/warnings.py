"""What must be told of segments that could not be used whole, and of a fit that is in doubt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.models.binary_ica.moment_matching.matching import (
    MAX_ROUNDS,
    MomentMatch,
    count_surplus_equations,
)
from pipeline.models.binary_ica.moment_matching.segments import (
    MAX_UNDEFINED_SHARE,
    SegmentCorrelations,
    SegmentStatus,
)
from pipeline.models.binary_ica.moment_matching.selection import RIDGE_GRID
from pipeline.numerics.gaussian.tetrachoric import PairStatus

Array = NDArray[np.float64]

_MIN_HALVES_AGREEMENT = 0.95
_MIN_LOG_RATIO_SPREAD = 0.2
"""Standard deviation over segments of the log ratio of two variances."""
_MAX_RIDGE = 9.0
_SINGLE_FEATURE_SHARE, _PARALLEL_COSINE = 0.95, 0.98
_MIN_START_SIMILARITY = 0.7


def describe_match(match: MomentMatch, start_similarities: Array) -> dict[str, Any]:
    """Sum up a match in numbers.

    Parameters
    ----------
    match
        The match.
    start_similarities
        Mean cosine similarity of every start to the best, best first.
    """
    n_features, n_components = match.solution.mixing.shape
    scores = [candidate.score for candidate in match.candidates]
    return {
        "n_components": n_components,
        "regularization": match.regularization,
        "surplus": count_surplus_equations(
            n_features, n_components, int(match.segments.is_used.sum())
        ),
        "stability_of_starts": float(start_similarities[1:2].min(initial=1.0)),
        **({} if match.agreement is None else {"stability_of_halves": match.agreement}),
        "starts_finite": len(match.optima),
        "iterations": match.best.iterations,
        "optimiser_converged": match.best.converged,
        "gap_rounds": match.gap_rounds,
        "gain": max(scores[1:]) - scores[0] if scores else 0.0,
        **count_statuses(match.segments),
    }


def count_statuses(segments: SegmentCorrelations) -> dict[str, int]:
    """Count segments by `SegmentStatus`, and in those used pairs by `PairStatus` and constants."""
    used = segments.is_used
    counts = {
        f"segments_{status.name.lower()}": int((segments.status == status).sum())
        for status in SegmentStatus
    }
    counts["constant_in_a_segment"] = int((~segments.varies[used]).sum())
    by_status = np.zeros(len(PairStatus), np.int64)
    for varies, status in zip(segments.varies[used], segments.pair_status[used], strict=True):
        pairs = np.triu(varies & varies[:, None], 1)
        by_status += np.bincount(status[pairs], minlength=len(PairStatus))
    return counts | {f"pairs_{s.name.lower()}": int(by_status[s]) for s in PairStatus}


def warn_about_segments(
    segments: SegmentCorrelations, indices: NDArray[np.int64], min_rows: int, ridge: Array
) -> tuple[FitWarning, ...]:
    """Say which segments, features and pairs were left out or guessed.

    Parameters
    ----------
    segments
        The segments.
    indices
        Their indices in the dataset.
    min_rows
        Rows that a segment must have.
    ridge
        δ of each segment used.
    """
    used = segments.is_used
    texts = {
        SegmentStatus.TOO_SMALL: f"segments left out, fewer than {min_rows} rows: {{segments}}; "
        "{min_rows=1} keeps them",
        SegmentStatus.CONSTANT: "segments left out, fewer than two features vary: {segments}",
        SegmentStatus.UNDEFINED_PAIRS: f"segments left out, more than {MAX_UNDEFINED_SHARE:.0%} of the "
        "pairs without a correlation: {segments}",
    }
    found = [
        FitWarning(text, segments=tuple(indices[segments.status == status].tolist()))
        for status, text in texts.items()
        if (segments.status == status).any()
    ]
    constant = ~segments.varies & used[:, None]
    if constant.any():
        where = indices[constant.any(axis=1)].tolist()
        features = np.flatnonzero(constant.any(axis=0)).tolist()
        text = f"constant within a segment and left out there, {constant.sum()} times: "
        text += "{features}, in some of the segments {segments}; `varies` says which"
        found.append(FitWarning(text, tuple(features), tuple(where)))
    told = {
        "pairs with an empty cell, estimated with ½ more in every cell": segments.empty_cells(),
        "pairs without a correlation, set to the model's": segments.find_undefined_pairs(),
    }
    for text, pairs in told.items():
        if (here := pairs & used[:, None, None]).any():
            features = np.flatnonzero(here.any(axis=(0, 1))).tolist()
            where = indices[here.any(axis=(1, 2))].tolist()
            text += f": {here.sum() // 2}, among {{features}} in {{segments}}"
            found.append(FitWarning(text, tuple(features), tuple(where)))
    nowhere = np.where(used[:, None, None], segments.find_undefined_pairs(), True).all(axis=0)
    if nowhere.any():
        text = "pairs without a correlation in any segment, so the mixing is in doubt: {features}"
        found.append(FitWarning(text, tuple(np.flatnonzero(nowhere.any(axis=0)).tolist())))
    if (ridge > _MAX_RIDGE).any():
        text = "correlations of segments shrunk to less than a tenth by the ridge: {segments}; a "
        text += "larger regularization shrinks less"
        found.append(FitWarning(text, segments=tuple(indices[used][ridge > _MAX_RIDGE].tolist())))
    return tuple(found)


def warn_about_mixing(mixing: Array, remedy: str) -> tuple[FitWarning, ...]:
    """Say which columns look like a fit gone astray: one feature alone, two all but the same.

    Parameters
    ----------
    mixing
        Columns of length 1.
    remedy
        What may do better.
    """
    found = []
    if (alone := np.flatnonzero((mixing**2).max(axis=0) > _SINGLE_FEATURE_SHARE)).size:
        features = np.unique(np.abs(mixing[:, alone]).argmax(axis=0)).tolist()
        text = "components that are one feature alone: {features}; "
        found.append(FitWarning(f"{text}{remedy} may do better", tuple(features)))
    cosines = np.triu(np.abs(mixing.T @ mixing), 1)
    if cosines.max(initial=0.0) > _PARALLEL_COSINE:
        k, l = np.unravel_index(int(cosines.argmax()), cosines.shape)  # noqa: E741
        text = f"components {k + 1} and {l + 1} are all but the same; {remedy} may do better"
        found.append(FitWarning(text))
    return tuple(found)


def warn_about_choice(match: MomentMatch) -> tuple[FitWarning, ...]:
    """Say where the ridge ended at an end of the grid, and where halves of the rows disagree."""
    if match.choice is None or match.agreement is None:
        return ()
    found, r = [], match.regularization
    if len({candidate.regularization for candidate in match.choice.ridges}) > 1:
        if r == RIDGE_GRID[0]:
            found.append(f"regularization {r:g} is the strongest that auto tries")
        if r == RIDGE_GRID[-1] and match.ridge.any():
            found.append(
                f"regularization {r:g} is the weakest that auto tries: held-out rows ask for no "
                "more ridge than keeps correlations positive definite"
            )
    if match.agreement < _MIN_START_SIMILARITY:
        found.append(
            "halves of the rows disagree on the mixing: mean cosine similarity "
            f"{match.agreement:.3f}; take fewer components or more rows"
        )
    return tuple(map(FitWarning, found))


def warn_about_fit(
    diagnostics: Mapping[str, Any], n_starts: int, variances: Array
) -> tuple[FitWarning, ...]:
    """Say what is in doubt.

    Parameters
    ----------
    diagnostics
        Of the fit.
    n_starts
        Starts asked for.
    variances
        Source variances of the segments used, (n_segments, n_components).
    """
    found = []
    if (missing := -diagnostics["surplus"]) > 0:
        # Lengths of columns count as unknowns, though variances can make up for them.
        sure = missing > diagnostics["n_components"]
        found.append(
            f"{missing} more unknowns than correlations: the mixing "
            f"{'is not' if sure else 'may not be'} identifiable; take fewer components or more "
            "segments"
        )
    if diagnostics["gain"] < 0:
        found.append("held-out rows are explained no better than by independent features")
    if (diverged := n_starts - diagnostics["starts_finite"]) > 0:
        found.append(f"{diverged} of {n_starts} starts diverged and were left out")
    if not diagnostics["optimiser_converged"]:
        found.append(f"stopped after {diagnostics['iterations']} iterations before converging")
    if diagnostics["stability_of_starts"] < _MIN_HALVES_AGREEMENT:
        found.append(
            "the two best starts disagree: mean cosine similarity "
            f"{diagnostics['stability_of_starts']:.3f}; the likelihood has several optima, or "
            "the mixing is not identifiable"
        )
    if diagnostics["gap_rounds"] == MAX_ROUNDS:
        found.append("pairs set to the model's correlations had not come to rest")
    if pair := _find_proportional_pair(variances):
        found.append(
            f"the variances of components {pair[0] + 1} and {pair[1] + 1} rise and fall together "
            "over segments: any rotation of the two fits as well"
        )
    return tuple(map(FitWarning, found))


def _find_proportional_pair(variances: Array) -> tuple[int, int] | None:
    """Find the two components whose variances are most nearly proportional, if too nearly."""
    profiles = np.log(variances)
    n_components = profiles.shape[1]
    apart = np.full((n_components, n_components), np.inf)
    for k, l in itertools.combinations(range(n_components), 2):  # noqa: E741
        apart[k, l] = (profiles[:, k] - profiles[:, l]).std()
    k, l = divmod(int(np.argmin(apart)), n_components)  # noqa: E741
    return (k, l) if apart[k, l] < _MIN_LOG_RATIO_SPREAD else None
