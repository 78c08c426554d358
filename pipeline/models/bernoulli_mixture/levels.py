"""Features with several levels as binary ones: each plane is asked once the plane before is 1.

Let plane c of a feature be 1 if its value is at least level c, counted from 0. Then P(x ≥ c | k) =
Π_{j ≤ c} q_kj with the continuation probabilities q_kj = P(x ≥ j | x ≥ j − 1, k), so a categorical
distribution is a chain of Bernoullis, of which plane j is missing unless plane j − 1 is 1. The
mixture of categorical features is therefore the mixture of Bernoullis with other masks: E-step,
M-step and information are the same.

The prior Σ_levels s log P(level | k) gives plane c pseudo-counts of s ones for each level from c
on, and of s zeros, so reversing or merging levels changes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.bits import kernels

_MAX_DERIVATIVES = 2_000_000
_TWO_SIDED = float(scipy.special.ndtri(0.975))


def find_later_planes(n_levels: Counts) -> NDArray[np.intp]:
    """Return the planes that are not the first of their feature, given levels per feature.

    Continuous features have one level and no planes.
    """
    n_planes = n_levels[n_levels > 1] - 1
    is_first = np.zeros(int(n_planes.sum()), np.bool_)
    is_first[np.cumsum(n_planes) - n_planes] = True
    return np.flatnonzero(~is_first)


def count_levels_from(n_levels: Counts | None) -> Array | float:
    """Return the number of levels at or above each plane, (n_planes,), or 1 of binary features."""
    if n_levels is None:
        return 1.0
    return np.concatenate([np.arange(n - 1, 0, -1.0) for n in n_levels.tolist()])


def mask_unreached_planes(block: BinaryBlock, n_levels: Counts | None) -> BinaryBlock:
    """Return the block with planes observed only where the plane before them is 1."""
    if n_levels is None or n_levels.max(initial=0) <= 2:
        return block
    observed = block.observed_words
    if observed is None:
        full = kernels.pack_rows(np.ones((block.n_samples, 1), np.uint8))
        observed = np.repeat(full, len(block.words), axis=0)
    observed, later = observed.copy(), find_later_planes(n_levels)
    observed[later] = block.words[later - 1]
    return replace(block, observed_words=observed)


def count_reached(
    observed: NDArray[Any], ones: NDArray[Any], n_levels: Counts | None
) -> NDArray[Any]:
    """Return how often each plane was reached, given values and ones of planes, (n_planes,)."""
    if n_levels is None:
        return observed
    reached, later = observed.copy(), find_later_planes(n_levels)
    reached[later] = ones[later - 1]
    return reached


def cumulate_planes(continuation: Array, n_levels: Counts | None) -> Array:
    """Return P(x ≥ c | k) given the continuation probabilities, (n_components, n_planes)."""
    if n_levels is None:
        return continuation
    cumulative = continuation.copy()
    for plane in find_later_planes(n_levels).tolist():
        cumulative[:, plane] *= cumulative[:, plane - 1]
    return cumulative


def divide_planes(cumulative: Array, n_levels: Counts | None) -> Array:
    """Undo `cumulate_planes`."""
    if n_levels is None:
        return cumulative
    continuation, later = cumulative.copy(), find_later_planes(n_levels)
    continuation[:, later] /= cumulative[:, later - 1]
    return continuation


def draw_levels(bits: NDArray[np.uint8], n_levels: Counts | None) -> NDArray[np.uint8]:
    """Return planes, (n_samples, n_planes), given draws of each plane as if it were reached."""
    for plane in find_later_planes(n_levels).tolist() if n_levels is not None else ():
        bits[:, plane] &= bits[:, plane - 1]
    return bits


class LevelErrors(NamedTuple):
    """Standard errors of level probabilities; see `compute_level_errors`.

    Attributes
    ----------
    cumulative, interval
        Errors and ends of 95 % intervals of P(x ≥ c | k), (n_components, n_planes) and (2,
        n_components, n_planes).
    levels
        Errors of P(x = level | k), (n_components, n_levels in all).
    """

    cumulative: Array
    interval: Array
    levels: Array


def compute_level_errors(
    continuation: Array, covariances: Array, is_unknown: NDArray[np.bool_], n_levels: Counts
) -> LevelErrors:
    """Compute the standard errors of level probabilities by the delta method.

    Parameters
    ----------
    continuation
        q, (n_components, n_planes).
    covariances
        Covariance of the log-odds of q within each component, (n_components, n_planes, n_planes).
    is_unknown
        Whether the data do not determine q, (n_components, n_planes).
    """
    cumulative = cumulate_planes(continuation, n_levels)
    n_components, errors = len(continuation), np.empty_like(cumulative)
    by_level, unknown_levels = [np.empty((n_components, 0))], [is_unknown[:, :0]]
    for own, slopes, differences in _iter_gradients(continuation, n_levels):
        block = covariances[:, own, own]
        errors[:, own] = _propagate(slopes, block)
        by_level.append(_propagate(differences, block))
        unknown_levels.append(_find_unknown_levels(is_unknown[:, own]))
    levels = np.where(np.concatenate(unknown_levels, axis=1), np.nan, np.hstack(by_level))
    spread = np.where(is_unknown, np.inf, errors / (cumulative * (1 - cumulative)))
    centre = scipy.special.logit(cumulative)
    interval = scipy.special.expit(
        np.stack([centre - _TWO_SIDED * spread, centre + _TWO_SIDED * spread])
    )
    return LevelErrors(np.where(is_unknown, np.nan, errors), interval, levels)


def _iter_gradients(continuation: Array, n_levels: Counts) -> Iterator[tuple[slice, Array, Array]]:
    """Yield the planes of each feature, and gradients in the log-odds of their q.

    These are of P(x ≥ c | k), (n_components, n_planes, n_planes), and of P(x = level | k),
    (n_components, n_planes + 1, n_planes).
    """
    cumulative = cumulate_planes(continuation, n_levels)
    n_planes = n_levels[n_levels > 1] - 1
    firsts = np.cumsum(n_planes) - n_planes
    for first, n in zip(firsts.tolist(), n_planes.tolist(), strict=True):
        own = slice(first, first + n)
        # d P(x ≥ c) / d log-odds of q_j = P(x ≥ c) (1 − q_j) for j ≤ c.
        slopes = cumulative[:, own, None] * (1 - continuation[:, None, own])
        slopes *= np.tril(np.ones((n, n)))
        ends = np.zeros((len(continuation), 1, n))
        yield own, slopes, -np.diff(np.concatenate([ends, slopes, ends], axis=1), axis=1)


def _find_unknown_levels(is_unknown: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which levels of a feature lie between planes that the data do not determine."""
    edge = np.ones((len(is_unknown), 1), np.bool_)
    unknown = np.concatenate([edge, is_unknown, edge], axis=1)
    return np.asarray(unknown[:, 1:] & unknown[:, :-1])


def compute_contrast_errors(
    continuation: Array, covariances: Array, is_unknown: NDArray[np.bool_], n_levels: Counts
) -> Array:
    """Compute the standard errors of the differences of probabilities between components.

    They are of P(x = 1 | k) of binary features, and of P(x = level | k) of each level of others.

    Parameters
    ----------
    continuation, is_unknown, n_levels
        As for `compute_level_errors`.
    covariances
        Covariance of the log-odds of q, (n_components, n_planes, n_components, n_planes).

    Returns
    -------
    Array
        (n_components, n_components, n_contrasts); NaN if a difference is not determined.
    """
    n_components = len(continuation)
    parts = [np.empty((n_components, n_components, 0))]
    for own, slopes, differences in _iter_gradients(continuation, n_levels):
        is_binary = slopes.shape[1] == 1
        gradients = slopes if is_binary else differences
        unknown = is_unknown[:, own] if is_binary else _find_unknown_levels(is_unknown[:, own])
        block = covariances[:, own, :, own]
        found = np.einsum("kai,kilj,laj->kla", gradients, block, gradients)
        parts.append(compute_difference_errors(found, unknown))
    return np.concatenate(parts, axis=2)


def compute_difference_errors(covariances: Array, is_unknown: NDArray[np.bool_]) -> Array:
    """Return the standard errors of differences between components.

    `covariances` of the components and the result have the shape (n_components, n_components, n),
    `is_unknown` has (n_components, n).
    """
    places = np.arange(len(covariances))
    variances = covariances[places, places]
    squares = variances[:, None] + variances[None] - 2 * covariances
    errors = np.sqrt(np.maximum(squares, 0.0))
    errors[is_unknown[:, None] | is_unknown[None]] = np.nan
    errors[places, places] = 0.0
    return np.asarray(errors)


def _propagate(gradients: Array, covariances: Array) -> Array:
    """Return standard errors, (n_components, n), given gradients (n_components, n, n_planes)."""
    variances = (gradients @ covariances * gradients).sum(axis=-1)
    errors: Array = np.sqrt(np.maximum(variances, 0.0))
    return errors


def count_determined_parameters(n_levels: Counts, n_components: int, n_groups: int) -> int:
    """Return how many parameters of a mixture of features with levels their cells determine.

    This is the rank of the derivatives of the probabilities of all cells at random parameters (R.
    McHugh, Psychometrika 21, 1956), or the number of free cells if there are too many.
    """
    n_cells: int = math.prod(n_levels.tolist())
    width = n_groups * (n_components - 1) + n_components * int((n_levels - 1).sum())
    if n_groups * n_cells * width > _MAX_DERIVATIVES:
        return n_groups * (n_cells - 1)
    rng = np.random.default_rng(0)
    levels = np.unravel_index(np.arange(n_cells), n_levels.tolist())
    shares = [rng.dirichlet(np.full(n, 2.0), n_components) for n in n_levels.tolist()]
    own = [by_level[:, x] for by_level, x in zip(shares, levels, strict=True)]
    cells = np.prod(own, axis=0)  # (n_components, n_cells)
    # The probability of the last level of a feature decreases as that of another one increases.
    steps = [
        (x == np.arange(n - 1)[:, None]).astype(np.float64) - (x == n - 1)
        for n, x in zip(n_levels.tolist(), levels, strict=True)
    ]
    by_feature = [(cells / o)[:, None] * step for o, step in zip(own, steps, strict=True)]
    weights = rng.dirichlet(np.full(n_components, 2.0), n_groups)
    shared = weights[:, :, None, None] * np.concatenate(by_feature, axis=1)
    shared = np.moveaxis(shared, 3, 1).reshape(n_groups * n_cells, -1)
    by_group = np.kron(np.eye(n_groups), (cells[:-1] - cells[-1]).T)
    return int(np.linalg.matrix_rank(np.hstack([by_group, shared])))
