"""Diagnostics and warnings of BLICA: segments not fully used, and doubtful fits."""

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
    """Summarise a match as diagnostics.

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
    """Count segments by `SegmentStatus`; in used segments, count pairs by `PairStatus`."""
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
    """Warn about segments, features and pairs that were left out or guessed.

    Parameters
    ----------
    segments
        The segments.
    indices
        Their indices in the dataset.
    min_rows
        Minimum number of rows of a segment.
    ridge
        δ of each segment used.
    """
    used = segments.is_used
    texts = {
        SegmentStatus.TOO_SMALL: f"segments left out, fewer than {min_rows} rows: {{segments}}; "
        "{min_rows=1} keeps them",
        SegmentStatus.CONSTANT: "segments left out, fewer than two features vary: {segments}",
        SegmentStatus.UNDEFINED_PAIRS: "segments left out, more than "
        f"{MAX_UNDEFINED_SHARE:.0%} of the pairs without a correlation: {{segments}}",
    }
    warnings = [
        FitWarning(text, segments=tuple(indices[segments.status == status].tolist()))
        for status, text in texts.items()
        if (segments.status == status).any()
    ]
    constant = ~segments.varies & used[:, None]
    if constant.any():
        segment_list = indices[constant.any(axis=1)].tolist()
        features = np.flatnonzero(constant.any(axis=0)).tolist()
        text = f"features left out of segments where they are constant, {constant.sum()} times: "
        text += "{features}, in some of the segments {segments}; see `varies`"
        warnings.append(FitWarning(text, tuple(features), tuple(segment_list)))
    pairs_by_text = {
        "pairs with an empty cell, estimated after adding ½ to every cell": segments.empty_cells(),
        "pairs without a correlation, set to the model's": segments.find_undefined_pairs(),
    }
    for text, pairs in pairs_by_text.items():
        if (affected := pairs & used[:, None, None]).any():
            features = np.flatnonzero(affected.any(axis=(0, 1))).tolist()
            segment_list = indices[affected.any(axis=(1, 2))].tolist()
            text += f": {affected.sum() // 2}, among {{features}} in {{segments}}"
            warnings.append(FitWarning(text, tuple(features), tuple(segment_list)))
    always_undefined = np.where(used[:, None, None], segments.find_undefined_pairs(), True).all(
        axis=0
    )
    if always_undefined.any():
        text = "pairs without a correlation in any segment, so the mixing is in doubt: {features}"
        warnings.append(
            FitWarning(text, tuple(np.flatnonzero(always_undefined.any(axis=0)).tolist()))
        )
    if (ridge > _MAX_RIDGE).any():
        text = "correlations of segments shrunk to less than a tenth by the ridge: {segments}; a "
        text += "larger regularization shrinks less"
        warnings.append(
            FitWarning(text, segments=tuple(indices[used][ridge > _MAX_RIDGE].tolist()))
        )
    return tuple(warnings)


def warn_about_mixing(mixing: Array, remedy: str) -> tuple[FitWarning, ...]:
    """Warn about columns that look wrong: a single feature, or two columns almost the same.

    Parameters
    ----------
    mixing
        Columns of length 1.
    remedy
        Change that may help.
    """
    warnings = []
    if (single := np.flatnonzero((mixing**2).max(axis=0) > _SINGLE_FEATURE_SHARE)).size:
        features = np.unique(np.abs(mixing[:, single]).argmax(axis=0)).tolist()
        text = "components with a single feature: {features}; "
        warnings.append(FitWarning(f"{text}{remedy} may do better", tuple(features)))
    cosines = np.triu(np.abs(mixing.T @ mixing), 1)
    if cosines.max(initial=0.0) > _PARALLEL_COSINE:
        k, l = np.unravel_index(int(cosines.argmax()), cosines.shape)  # noqa: E741
        text = f"components {k + 1} and {l + 1} are almost the same; {remedy} may do better"
        warnings.append(FitWarning(text))
    return tuple(warnings)


def warn_about_choice(match: MomentMatch) -> tuple[FitWarning, ...]:
    """Warn if the chosen ridge is at an end of the grid, or if halves of the rows disagree."""
    if match.choice is None or match.agreement is None:
        return ()
    texts, r = [], match.regularization
    if len({candidate.regularization for candidate in match.choice.ridges}) > 1:
        if r == RIDGE_GRID[0]:
            texts.append(f"regularization {r:g} is the strongest that auto tries")
        if r == RIDGE_GRID[-1] and match.ridge.any():
            texts.append(
                f"regularization {r:g} is the weakest that auto tries: held-out rows ask for no "
                "more ridge than keeps correlations positive definite"
            )
    if match.agreement < _MIN_START_SIMILARITY:
        texts.append(
            "halves of the rows disagree on the mixing: mean cosine similarity "
            f"{match.agreement:.3f}; take fewer components or more rows"
        )
    return tuple(map(FitWarning, texts))


def warn_about_fit(
    diagnostics: Mapping[str, Any], n_starts: int, variances: Array
) -> tuple[FitWarning, ...]:
    """Warn about a doubtful fit.

    Parameters
    ----------
    diagnostics
        Diagnostics of the fit.
    n_starts
        Number of starts requested.
    variances
        Source variances of the segments used, (n_segments, n_components).
    """
    texts = []
    if (missing := -diagnostics["surplus"]) > 0:
        # Lengths of columns count as unknowns although variances can compensate for them.
        is_certain = missing > diagnostics["n_components"]
        texts.append(
            f"{missing} more unknowns than correlations: the mixing "
            f"{'is not' if is_certain else 'may not be'} identifiable; use fewer components or "
            "more segments"
        )
    if diagnostics["gain"] < 0:
        texts.append("held-out rows are explained no better than by independent features")
    if (diverged := n_starts - diagnostics["starts_finite"]) > 0:
        texts.append(f"{diverged} of {n_starts} starts diverged and were left out")
    if not diagnostics["optimiser_converged"]:
        texts.append(f"stopped after {diagnostics['iterations']} iterations before converging")
    if diagnostics["stability_of_starts"] < _MIN_HALVES_AGREEMENT:
        texts.append(
            "the two best starts disagree: mean cosine similarity "
            f"{diagnostics['stability_of_starts']:.3f}; the likelihood has several optima, or "
            "the mixing is not identifiable"
        )
    if diagnostics["gap_rounds"] == MAX_ROUNDS:
        texts.append("pairs set to the model's correlations had not converged")
    if pair := _find_proportional_pair(variances):
        texts.append(
            f"the variances of components {pair[0] + 1} and {pair[1] + 1} rise and fall together "
            "over segments: any rotation of the two fits as well"
        )
    return tuple(map(FitWarning, texts))


def _find_proportional_pair(variances: Array) -> tuple[int, int] | None:
    """Find the two components with the most nearly proportional variances, if too close."""
    profiles = np.log(variances)
    n_components = profiles.shape[1]
    spreads = np.full((n_components, n_components), np.inf)
    for k, l in itertools.combinations(range(n_components), 2):  # noqa: E741
        spreads[k, l] = (profiles[:, k] - profiles[:, l]).std()
    k, l = divmod(int(np.argmin(spreads)), n_components)  # noqa: E741
    return (k, l) if spreads[k, l] < _MIN_LOG_RATIO_SPREAD else None
