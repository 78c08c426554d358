"""The E-step of the mixture: posteriors and weighted sums, from packed bits.

log P(x, k) = log π_k + Σ_i log(1 − p_ki) + Σ_{x_i = 1} log(p_ki / (1 − p_ki)). The first two terms
are the same for all rows with equal class weights π. The last one, and log(1 − p_ki), which is
subtracted again for missing values, are summed by the tables of `numerics.bits.digit_tables`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from numba import njit

from pipeline.arrays import Array, Words
from pipeline.numerics.bits.digit_tables import (
    BLOCK,
    Digits,
    add_digits,
    choose_digit_bits,
    divide_tables,
    list_digits,
    make_digits,
    make_tables,
)
from pipeline.numerics.logistic.logistic_lanes import exp_minus

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


class _Rows(NamedTuple):
    """Rows, and what their digits add to scores.

    Attributes
    ----------
    words, observed_words
        Packed values and mask, (n_features, n_words); the mask has no words if there is none.
    start
        As in `MixtureTerms`, with a row for each sample, or one for all.
    odds, absent
        Tables of log-odds, and of the terms to add for missing values, see `make_tables`.
    n_bits, absent_bits
        Bits per digit.
    """

    words: Words
    observed_words: Words
    start: Array
    odds: Array
    absent: Array
    n_bits: int
    absent_bits: int


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
    shares, nats = np.empty((n_samples, terms.log_odds.shape[1])), np.empty(n_samples)
    _fill_posterior(_prepare_rows(words, observed_words, terms), shares, nats)
    return shares, nats


def compute_log_joint(
    words: Words, observed_words: Words | None, n_samples: int, terms: MixtureTerms
) -> Array:
    """Return log P(x, k), (n_samples, n_components); parameters as for `mixture_posterior`."""
    logs = np.empty((n_samples, terms.log_odds.shape[1]))
    _fill_log_joint(_prepare_rows(words, observed_words, terms), logs)
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
    n_components = terms.log_odds.shape[1]
    filled = np.empty((0, n_components)) if weighted_posterior is None else weighted_posterior
    mass = np.zeros(n_components)
    ones, missing = np.zeros_like(terms.log_odds), np.zeros_like(terms.log_odds)
    rows = _prepare_rows(words, observed_words, terms)
    log_likelihood = _add_sums(rows, own_weights, mass, ones, missing, filled)
    return MixtureSums(float(log_likelihood), mass, ones, missing)


def _prepare_rows(words: Words, observed_words: Words | None, terms: MixtureTerms) -> _Rows:
    # By the terms only, because a row's last bit must not depend on other rows.
    n_terms = terms.log_odds.size
    n_bits = choose_digit_bits(n_terms, scipy.special.expit(terms.log_odds).sum() / max(n_terms, 1))
    absent_bits = choose_digit_bits(n_terms, 1.0)
    odds = make_tables(terms.log_odds, n_bits)
    absent = odds[:0]
    if observed_words is not None:
        absent = make_tables(-terms.log_absent, absent_bits)
    mask = words[:0] if observed_words is None else observed_words
    start = np.ascontiguousarray(np.atleast_2d(terms.start))
    return _Rows(words, mask, start, odds, absent, n_bits, absent_bits)


@_kernel
def _sum_logs(
    rows: _Rows, w: int, n_rows: int, digits: Digits, missing: Digits, scores: Array
) -> None:
    """Fill in log P(x, k) of the rows of word w, and their digits."""
    n_components = rows.start.shape[1]
    for row in range(n_rows):
        place = BLOCK * w + row if len(rows.start) > 1 else 0
        for k in range(n_components):
            scores[row, k] = rows.start[place, k]
        for k in range(n_components, scores.shape[1]):
            scores[row, k] = -np.inf
    list_digits(rows.words, w, 0, rows.n_bits, digits)
    add_digits(rows.odds, rows.n_bits, digits, BLOCK, scores, True)
    if len(rows.observed_words):
        list_digits(rows.observed_words, w, n_rows, rows.absent_bits, missing)
        add_digits(rows.absent, rows.absent_bits, missing, BLOCK, scores, True)


@_kernel
def _normalise(scores: Array, n_rows: int, largest: Array, total: Array) -> None:
    """Turn log P(x, k) into P(k | x), in place; log P(x) is `largest` + log `total`."""
    width = scores.shape[1]
    for row in range(n_rows):
        largest[row] = scores[row].max()
        for k in range(width):
            scores[row, k] = largest[row] - scores[row, k]
    gaps = scores[:n_rows].ravel()
    for k in range(len(gaps)):
        gaps[k] = exp_minus(gaps[k])
    for row in range(n_rows):
        total[row] = scores[row].sum()
        scale = 1.0 / total[row]
        for k in range(width):
            scores[row, k] *= scale


@_kernel
def _fill_log_joint(rows: _Rows, logs: Array) -> None:
    digits = make_digits(len(rows.words), rows.n_bits)
    missing = make_digits(len(rows.observed_words), rows.absent_bits)
    scores = np.empty((BLOCK, rows.odds.shape[1]))
    for first in range(0, len(logs), BLOCK):
        n_rows = min(BLOCK, len(logs) - first)
        _sum_logs(rows, first // BLOCK, n_rows, digits, missing, scores)
        logs[first : first + n_rows] = scores[:n_rows, : logs.shape[1]]


@_kernel
def _fill_posterior(rows: _Rows, shares: Array, nats: Array) -> None:
    digits = make_digits(len(rows.words), rows.n_bits)
    missing = make_digits(len(rows.observed_words), rows.absent_bits)
    scores = np.empty((BLOCK, rows.odds.shape[1]))
    largest, total = np.empty(BLOCK), np.empty(BLOCK)
    for first in range(0, len(shares), BLOCK):
        n_rows = min(BLOCK, len(shares) - first)
        _sum_logs(rows, first // BLOCK, n_rows, digits, missing, scores)
        _normalise(scores, n_rows, largest, total)
        shares[first : first + n_rows] = scores[:n_rows, : shares.shape[1]]
        for row in range(n_rows):
            nats[first + row] = largest[row] + math.log(total[row])


@_kernel
def _add_sums(
    rows: _Rows,
    row_weights: Array,
    mass: Array,
    ones: Array,
    missing: Array,
    weighted_posterior: Array,
) -> float:
    digits = make_digits(len(rows.words), rows.n_bits)
    missing_digits = make_digits(len(rows.observed_words), rows.absent_bits)
    scores = np.empty((BLOCK, rows.odds.shape[1]))
    largest, total = np.empty(BLOCK), np.empty(BLOCK)
    ones_tables, missing_tables = np.zeros_like(rows.odds), np.zeros_like(rows.absent)
    nats = 0.0
    for first in range(0, len(row_weights), BLOCK):
        n_rows = min(BLOCK, len(row_weights) - first)
        _sum_logs(rows, first // BLOCK, n_rows, digits, missing_digits, scores)
        _normalise(scores, n_rows, largest, total)
        product = 1.0  # of at most 64 totals, which are at most the number of components
        for row in range(n_rows):
            weight = row_weights[first + row]
            nats += weight * largest[row]
            if weight == 1.0:
                product *= total[row]
            else:
                nats += weight * math.log(total[row])
            for k in range(len(mass)):
                scores[row, k] *= weight
                mass[k] += scores[row, k]
        nats += math.log(product)
        add_digits(ones_tables, rows.n_bits, digits, n_rows, scores, False)
        add_digits(missing_tables, rows.absent_bits, missing_digits, n_rows, scores, False)
        if len(weighted_posterior):
            weighted_posterior[first : first + n_rows] = scores[:n_rows, : len(mass)]
    divide_tables(ones_tables, rows.n_bits, ones)
    divide_tables(missing_tables, rows.absent_bits, missing[: len(rows.observed_words)])
    return nats
