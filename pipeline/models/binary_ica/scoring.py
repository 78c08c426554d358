"""Scores of the rows of a block by all parameters of binary ICA, summed with their products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.binary_ica.likelihood_params import BinaryICALikelihoodParams
from pipeline.models.binary_ica.moment_matching.segment_model import SegmentModel
from pipeline.models.binary_ica.params import PROBIT_SCALE
from pipeline.numerics.probit.probit_scores import ProbitScores
from pipeline.statistics.sums import ScoreSums

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

ScoreFunction = Callable[[Bits, Array, Array, Bits], ProbitScores]

_CELLS_PER_PART = 1 << 22


class RowPatterns(NamedTuple):
    """Distinct rows.

    Attributes
    ----------
    X, observed
        Values and mask, (n_patterns, n_features).
    times
        Rows that are like each, (n_patterns,).
    """

    X: Bits
    observed: Bits
    times: NDArray[np.int64]


def find_patterns(block: BinaryBlock) -> RowPatterns:
    """Find the distinct rows of a block."""
    rows = block.to_packed_rows()
    keys = np.hstack([rows.words.T, rows.mask.T])
    _, first, times = np.unique(keys, axis=0, return_index=True, return_counts=True)
    found = block.take_rows(first)
    X, observed = found.unpack_values(), found.unpack_mask()
    return RowPatterns(X, np.ones_like(X) if observed is None else observed, times)


def sum_scores(
    params: BinaryICALikelihoodParams,
    block: BinaryBlock,
    scores_of: ScoreFunction,
) -> ScoreSums:
    """Sum the scores of the rows of a block.

    Parameters
    ----------
    params
        Where to score.
    block
        The rows.
    scores_of
        Scores rows by weights and offsets of standard normal sources: `ep_scores` is one.
    """
    model, patterns = params.segment_model(block.segment), find_patterns(block)
    n_features, n_components = model.weights.shape
    n_shared, n_own = n_features * (n_components + 1), 2 * n_components
    totals, variance = np.zeros(3), 0.0
    gradient, products = np.zeros(n_shared + n_own), np.zeros((n_shared + n_own,) * 2)
    for part in _iter_pattern_parts(patterns, n_shared + n_own):
        found = _score_patterns(model, part, scores_of)
        scores = _apply_chain_rule(found, model)
        weighted = scores * np.sqrt(part.times)[:, None]
        totals += part.times @ np.stack([found.log_likelihood, found.error, ~found.settled], axis=1)
        variance += float(part.times**2 @ found.error**2) if found.sampled else 0.0
        gradient += part.times @ scores
        products += weighted.T @ weighted
    shared, own = slice(n_shared), slice(n_shared, None)
    return ScoreSums(
        float(totals[0]),
        float(totals[1]),
        variance,
        int(totals[2]),
        gradient[shared],
        products[shared, shared],
        np.array([block.segment]),
        np.array([block.n_samples]),
        gradient[None, own],
        products[None, own, own],
        products[None, own, shared],
    )


def _iter_pattern_parts(patterns: RowPatterns, n_parameters: int) -> Iterator[RowPatterns]:
    """Cut patterns so that their scores stay small."""
    height = max(1, _CELLS_PER_PART // n_parameters)
    for first in range(0, len(patterns.X), height):
        X, observed, times = patterns
        rows = slice(first, first + height)
        yield RowPatterns(X[rows], observed[rows], times[rows])


def _score_patterns(
    model: SegmentModel,
    patterns: RowPatterns,
    scores_of: ScoreFunction,
) -> ProbitScores:
    deviations = np.sqrt(model.variances)
    return scores_of(patterns.X, model.weights * deviations, model.offsets, patterns.observed)


def _apply_chain_rule(found: ProbitScores, model: SegmentModel) -> Array:
    """Scores by A, c, μ and log σ², side by side: (n_patterns, n_shared + n_own).

    Weights of standard normal sources are √(π/8) A σ, and offsets c + √(π/8) A μ.
    """
    deviations = np.sqrt(model.variances)
    by_offset, by_weight = found.offsets, found.weights * deviations
    by_mixing = PROBIT_SCALE * (by_weight + by_offset[:, :, None] * model.means)
    by_mean = by_offset @ model.weights
    by_log_variance = 0.5 * np.einsum("nik,ik->nk", by_weight, model.weights)
    shared = by_mixing.reshape(len(by_mixing), -1)
    return np.hstack([shared, by_offset, by_mean, by_log_variance])
