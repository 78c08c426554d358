"""The E-step of the mixture: posteriors and weighted sums, from packed bits.

log P(x, k) = log π_k + Σ_i log(1 − p_ki) + Σ_{x_i = 1} log(p_ki / (1 − p_ki)). The first two terms
are the same for all rows with equal class weights π, so the cost of a row depends only on its ones
and its missing values, for which log(1 − p_ki) is subtracted again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from pipeline.arrays import Array, Words

_ROWS_PER_WORD = 64
_NEGLIGIBLE_LOG = -40.0  # exp of it is below the rounding of a sum of at least 1

_kernel = njit(nogil=True, cache=True, error_model="numpy")


class MixtureTerms(NamedTuple):
    """The terms of log P(x, k).

    `log_odds` and `log_absent` are log(p / (1 − p)) and log(1 − p), (n_features, n_components);
    `start` is log P(k, x = 0), (n_components,), or (n_samples, n_components) if class weights
    differ by row.
    """

    log_odds: Array
    log_absent: Array
    start: Array


class MixtureSums(NamedTuple):
    """Sums over rows, weighted by the posterior of each component.

    `log_likelihood` is Σ log P(x), nats, and `mass` (n_components,) the number of rows per
    component. `ones` and `missing` (n_features, n_components) count ones and missing values.
    """

    log_likelihood: float
    mass: Array
    ones: Array
    missing: Array


def compute_mixture_terms(probabilities: Array, log_weights: Array) -> MixtureTerms:
    """Compute the logarithms that rows share.

    `probabilities`, (n_components, n_features), must be strictly between 0 and 1; `log_weights` are
    log π, (n_components,), or (n_samples, n_components).
    """
    log_absent = np.ascontiguousarray(np.log1p(-probabilities).T)
    log_odds = np.ascontiguousarray(np.log(probabilities).T) - log_absent
    return MixtureTerms(log_odds, log_absent, log_weights + log_absent.sum(axis=0))


def mixture_posterior(
    words: Words, observed_words: Words | None, n_samples: int, terms: MixtureTerms
) -> tuple[Array, Array]:
    """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,), nats.

    `words` and `observed_words` are the packed values and mask, (n_features, n_words); the mask is
    None if all values are observed.
    """
    terms = terms._replace(start=np.atleast_2d(terms.start))
    shares = np.empty((n_samples, terms.start.shape[1]))
    log_likelihood = np.empty(n_samples)
    _fill_posterior(*_interleave_words(words, observed_words), *terms, shares, log_likelihood)
    return shares, log_likelihood


def compute_log_joint(
    words: Words, observed_words: Words | None, n_samples: int, terms: MixtureTerms
) -> Array:
    """Return log P(x, k), (n_samples, n_components); parameters as for `mixture_posterior`."""
    terms = terms._replace(start=np.atleast_2d(terms.start))
    logs = np.empty((n_samples, terms.start.shape[1]))
    _fill_log_joint(*_interleave_words(words, observed_words), *terms, logs)
    return logs


def sum_mixture_statistics(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    terms: MixtureTerms,
    row_weights: Array | None = None,
    weighted_posterior: Array | None = None,
) -> MixtureSums:
    """Compute the sums of the M-step; parameters as for `mixture_posterior`.

    `row_weights` are (n_samples,) or all 1. `weighted_posterior`, (n_samples, n_components), is
    filled with P(k | x) times the weight of the row, if given.
    """
    own_weights = np.ones(n_samples) if row_weights is None else row_weights
    terms = terms._replace(start=np.atleast_2d(terms.start))
    n_components = terms.start.shape[1]
    filled = np.empty((0, n_components)) if weighted_posterior is None else weighted_posterior
    mass = np.zeros(n_components)
    ones, missing = np.zeros_like(terms.log_odds), np.zeros_like(terms.log_odds)
    by_word = _interleave_words(words, observed_words)
    log_likelihood = _add_sums(*by_word, own_weights, *terms, mass, ones, missing, filled)
    return MixtureSums(float(log_likelihood), mass, ones, missing)


def _interleave_words(words: Words, observed_words: Words | None) -> tuple[Words, Words]:
    """Transpose to (n_words, n_features); without a mask, return an empty one."""
    mask = np.empty((len(words), 0), np.uint64) if observed_words is None else observed_words
    return np.ascontiguousarray(words.T), np.ascontiguousarray(mask.T)


def _generate_count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Generate LLVM's count of trailing zeros, the position of the lowest set bit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


_count_trailing_zeros: Any = intrinsic(_generate_count_trailing_zeros)


@_kernel
def _sum_logs(
    words: Words,
    observed: Words,
    w: int,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    logs: Array,
) -> None:
    """Fill in log P(x, k) of the rows of word w."""
    for row in range(len(logs)):  # compiles faster than an assignment of arrays
        place = _ROWS_PER_WORD * w + row if len(start) > 1 else 0
        for k in range(start.shape[1]):
            logs[row, k] = start[place, k]
    for i in range(words.shape[1]):
        _add_to_rows(words[w, i], 1.0, log_odds[i], logs)
        if len(observed):
            _add_to_rows(_mark_missing(observed[w, i], len(logs)), -1.0, log_absent[i], logs)


@_kernel
def _score_word(
    words: Words,
    observed: Words,
    w: int,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    shares: Array,
    log_likelihood: Array,
) -> None:
    """Fill in P(k | x) and log P(x) of the rows of word w."""
    _sum_logs(words, observed, w, log_odds, log_absent, start, shares)
    for row in range(len(shares)):
        log_likelihood[row] = _normalise(shares[row])


@_kernel
def _mark_missing(observed: Any, n_rows: int) -> Any:
    """Return a word with the bits of missing values set, among the first `n_rows`."""
    every = np.uint64(0xFFFFFFFFFFFFFFFF)
    return ~observed & (every >> np.uint64(_ROWS_PER_WORD - n_rows))


@_kernel
def _add_to_rows(marked: Any, sign: float, term: Array, shares: Array) -> None:
    while marked:
        row = shares[_count_trailing_zeros(marked)]
        for k in range(len(term)):
            row[k] += sign * term[k]
        marked &= marked - np.uint64(1)


@_kernel
def _add_rows_to_total(marked: Any, shares: Array, total: Array) -> None:
    """Add the shares of the marked rows to a total."""
    while marked:
        row = shares[_count_trailing_zeros(marked)]
        for k in range(len(total)):
            total[k] += row[k]
        marked &= marked - np.uint64(1)


@_kernel
def _normalise(scores: Array) -> float:
    """Turn log P(x, k) into P(k | x), in place, and return log P(x)."""
    largest = scores.max()
    total = 0.0
    for k in range(len(scores)):
        gap = scores[k] - largest
        scores[k] = math.exp(gap) if gap > _NEGLIGIBLE_LOG else 0.0
        total += scores[k]
    for k in range(len(scores)):
        scores[k] /= total
    return float(largest + math.log(total))


@_kernel
def _fill_log_joint(
    words: Words, observed: Words, log_odds: Array, log_absent: Array, start: Array, logs: Array
) -> None:
    for w in range(len(words)):
        rows = slice(_ROWS_PER_WORD * w, min(_ROWS_PER_WORD * (w + 1), len(logs)))
        _sum_logs(words, observed, w, log_odds, log_absent, start, logs[rows])


@_kernel
def _fill_posterior(
    words: Words,
    observed: Words,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    shares: Array,
    log_likelihood: Array,
) -> None:
    for w in range(len(words)):
        rows = slice(_ROWS_PER_WORD * w, min(_ROWS_PER_WORD * (w + 1), len(shares)))
        _score_word(
            words, observed, w, log_odds, log_absent, start, shares[rows], log_likelihood[rows]
        )


@_kernel
def _add_sums(
    words: Words,
    observed: Words,
    row_weights: Array,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    mass: Array,
    ones: Array,
    missing: Array,
    weighted_posterior: Array,
) -> float:
    n_components = start.shape[1]
    scratch, nats = np.empty((_ROWS_PER_WORD, n_components)), np.empty(_ROWS_PER_WORD)
    total = 0.0
    for w in range(len(words)):
        first = _ROWS_PER_WORD * w
        n_rows = min(_ROWS_PER_WORD, len(row_weights) - first)
        shares = scratch[:n_rows]
        _score_word(words, observed, w, log_odds, log_absent, start, shares, nats[:n_rows])
        for row in range(n_rows):
            weight = row_weights[first + row]
            total += weight * nats[row]
            for k in range(n_components):
                shares[row, k] *= weight
            mass += shares[row]
            if len(weighted_posterior):
                weighted_posterior[first + row] = shares[row]
        for i in range(words.shape[1]):
            _add_rows_to_total(words[w, i], shares, ones[i])
            if len(observed):
                _add_rows_to_total(_mark_missing(observed[w, i], n_rows), shares, missing[i])
    return total
