"""Intervals of the mixing: the fit repeated on resampled groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import Map
from pipeline.executors.progress import labelled
from pipeline.models.binary_ica.moment_matching.objective import Solution
from pipeline.models.binary_ica.moment_matching.optimiser import maximise, spread_over
from pipeline.models.binary_ica.moment_matching.segments import Segments, SegmentStatus, segments_of
from pipeline.numerics.metrics import matched_columns
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

LEVEL = 0.95
_TOLERANCE = 1e-6
"""Of replicates: it moves them by about a tenth of what they differ by."""


def mixing_interval(
    counts: PairCounts,
    n_groups: int,
    regularizations: Sequence[float],
    optimum: Solution,
    mixing: Array,
    segments: Segments,
    seeds: Sequence[int],
    map_items: Map,
) -> Array:
    """Find percentile intervals of the mixing's entries.

    In each segment n_groups − 1 of the groups are drawn with replacement (Rao, Wu, "Resampling
    inference with complex survey data", JASA 1988): drawing all of them would give too small a
    spread where groups are few.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.of_groups`.
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
    fit = partial(_replicate, optimum, mixing, segments.status)
    drawn = zip(_resampled(counts, n_groups, seeds), regularizations, strict=True)
    told = labelled(map_items, "bootstrap", len(seeds))
    found = spread_over(fit, drawn, counts.joint.nbytes, told)
    tail = (1 - LEVEL) / 2
    interval: Array = np.quantile(np.array(found), [tail, 1 - tail], axis=0)
    return interval


def _resampled(counts: PairCounts, n_groups: int, seeds: Iterable[int]) -> Iterator[PairCounts]:
    n_segments = len(counts.grouped_segments(n_groups))
    shares = np.full(n_groups, 1 / n_groups)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        yield counts.weighted(n_groups, rng.multinomial(n_groups - 1, shares, n_segments))


def _replicate(
    optimum: Solution,
    mixing: Array,
    status: NDArray[np.uint8],
    task: tuple[PairCounts, float],
    spread: Map = map,
) -> Array:
    """Fit resampled counts; the mixing with columns of length 1, in the order of the one given."""
    counts, regularization = task
    drawn = segments_of(counts, 1, spread)  # A part of the rows is not to be too few.
    fitted = status == SegmentStatus.USED
    drawn = replace(drawn, status=np.where(fitted, drawn.status, status))
    if not drawn.used.any():
        raise FitError(
            "bootstrap: Expected segments that can be used when a part of their rows is drawn, "
            "got none. Fit without --set bootstrap."
        )
    here = drawn.used[fitted]
    start = Solution(optimum.mixing, optimum.log_variances[here], optimum.log_precisions[here])
    moments = drawn.moments(regularization)
    found = maximise(moments, start, _TOLERANCE, spread).solution.mixing
    return matched_columns(found / np.linalg.norm(found, axis=0), mixing)
