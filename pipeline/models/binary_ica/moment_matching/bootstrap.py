"""Intervals of the mixing: the fit repeated on resampled groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import map_or_thread, maximise
from pipeline.models.binary_ica.moment_matching.segments import (
    SegmentCorrelations,
    SegmentStatus,
    estimate_segments,
)
from pipeline.numerics.metrics import match_columns
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

INTERVAL_LEVEL = 0.95
_TOLERANCE = 1e-6
"""Of replicates: it moves them by about a tenth of what they differ by."""


def bootstrap_mixing_interval(
    counts: PairCounts,
    n_groups: int,
    regularizations: Sequence[float],
    optimum: MatchSolution,
    mixing: Array,
    segments: SegmentCorrelations,
    seeds: Sequence[int],
    map_items: MapFunction,
) -> Array:
    """Find percentile intervals of the mixing's entries.

    In each segment n_groups − 1 of the groups are drawn with replacement (Rao, Wu, "Resampling
    inference with complex survey data", JASA 1988): drawing all of them would give too small a
    spread where groups are few.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.from_groups`.
    n_groups
        Groups a segment, at least 2.
    regularizations
        Condition number to ridge to, one a replicate.
    optimum
        Where every fit starts: of the segments used, as the likelihood found it.
    mixing
        Whose order and signs of columns the replicates take, (n_features, n_components).
    segments
        Those of the fit: what it left out is left out here.
    seeds
        One a replicate.
    map_items
        Where replicates run.

    Returns
    -------
    ndarray
        Lower and upper ends, (2, n_features, n_components); without seeds (0, …).
    """
    if not seeds:
        return np.zeros((0, *mixing.shape))
    fit = partial(_fit_replicate, optimum, mixing, segments.status)
    drawn = zip(_iter_resampled_counts(counts, n_groups, seeds), regularizations, strict=True)
    told = label_map(map_items, "bootstrap", len(seeds))
    found = map_or_thread(fit, drawn, counts.joint.nbytes, told)
    tail = (1 - INTERVAL_LEVEL) / 2
    interval: Array = np.quantile(np.array(found), [tail, 1 - tail], axis=0)
    return interval


def _iter_resampled_counts(
    counts: PairCounts, n_groups: int, seeds: Iterable[int]
) -> Iterator[PairCounts]:
    n_segments = len(counts.list_grouped_segments(n_groups))
    shares = np.full(n_groups, 1 / n_groups)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        yield counts.sum_weighted_groups(
            n_groups, rng.multinomial(n_groups - 1, shares, n_segments)
        )


def _fit_replicate(
    optimum: MatchSolution,
    mixing: Array,
    status: NDArray[np.uint8],
    task: tuple[PairCounts, float],
    spread: MapFunction = map,
) -> Array:
    """Fit resampled counts; the mixing with columns of length 1, in the order of the one given."""
    counts, regularization = task
    drawn = estimate_segments(counts, 1, spread)  # A part of the rows is not to be too few.
    fitted = status == SegmentStatus.USED
    drawn = replace(drawn, status=np.where(fitted, drawn.status, status))
    if not drawn.is_used.any():
        raise FitError(
            "bootstrap: Expected segments that can be used when a part of their rows is drawn, "
            "got none. Fit without --set bootstrap."
        )
    here = drawn.is_used[fitted]
    start = MatchSolution(optimum.mixing, optimum.log_variances[here], optimum.log_precisions[here])
    moments = drawn.moments(regularization)
    found = maximise(moments, start, _TOLERANCE, spread).solution.mixing
    return match_columns(found / np.linalg.norm(found, axis=0), mixing)
