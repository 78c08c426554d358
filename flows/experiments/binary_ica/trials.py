"""Rows in memory for trials of binary ICA, and the trial on infinitely many.

A trial gets the truth and what was drawn from it, fits, and gives the mean cosine similarity (MCS)
of the mixing found to the true one, as Hyttinen, Barin-Pacela and Hyvärinen do in "Binary
Independent Component Analysis: A Non-stationarity-based Approach" (UAI 2022, section 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.experiments.binary_ica.exact_matching import match_exactly
from pipeline.data.blocks import RowSource, pack_block
from pipeline.models.binary_ica.moment_matching.identifiability import count_surplus_equations
from pipeline.models.binary_ica.moment_matching.segment_model import SegmentModel
from pipeline.models.binary_ica.params import PROBIT_SCALE
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.tetrachoric import tetrachoric
from pipeline.numerics.metrics import mean_cosine_similarity

Array = NDArray[np.float64]

_N_EXACT_STARTS = 12


class MixingTruth(Protocol):
    """What data are drawn from: `storage.examples.NonstationaryTruth` is one."""

    @property
    def mixing(self) -> Array:
        """A, (n_features, n_components)."""

    @property
    def source_means(self) -> Array:
        """Means of the sources, (n_segments, n_components)."""

    @property
    def source_variances(self) -> Array:
        """Variances of the sources, (n_segments, n_components)."""


class SimulatedRows(NamedTuple):
    """Rows drawn from a known mixing.

    Attributes
    ----------
    mixing
        A, (n_features, n_components).
    rows
        The rows.
    seed
        Of the fits.
    """

    mixing: Array
    rows: RowSource
    seed: int


class _MemoryChunk(NamedTuple):
    """All rows, in memory."""

    words: NDArray[np.uint64]
    blocks: NDArray[np.int64]
    rows: NDArray[np.int64]
    observed: NDArray[np.uint64] | None = None
    columns: Mapping[str, NDArray[Any]] = {}
    keep: NDArray[np.bool_] | None = None


def pack_rows_in_memory(X: NDArray[np.uint8], n_segments: int) -> RowSource:
    """Pack rows that lie segment by segment, as many in each, (n_rows, n_features)."""
    words = [pack_block(part).words for part in np.split(X, n_segments)]
    height, width = len(X) // n_segments, words[0].shape[1]
    blocks = [(segment, segment * width, height) for segment in range(n_segments)]
    chunk = _MemoryChunk(np.hstack(words), np.array(blocks), np.arange(len(X)))
    return RowSource((chunk,).__getitem__, 1, X.shape[1], n_segments)


def population_correlations(truth: MixingTruth) -> Array:
    """Compute the tetrachoric correlations of infinitely many rows, by exact pair probabilities.

    Parameters
    ----------
    truth
        What rows would be drawn from.

    Returns
    -------
    ndarray
        Of each segment, (n_segments, n_features, n_features).
    """
    weights = PROBIT_SCALE * truth.mixing
    sources = zip(truth.source_means, truth.source_variances, strict=True)
    return np.array([_population_correlation(weights, *moments) for moments in sources])


def _population_correlation(weights: Array, means: Array, variances: Array) -> Array:
    deviations = np.sqrt(1 + weights**2 @ variances)
    model = SegmentModel(weights, -(weights @ means) / deviations, means, variances)
    h = -model.thresholds
    joint = bivariate_normal_cdf_array(h[:, None], h, np.clip(model.correlation(), -1, 1))
    ones = scipy.special.ndtr(h)
    found = tetrachoric(1.0, ones[:, None], ones, joint).correlation
    np.fill_diagonal(found, 1.0)
    return found


def run_exact_trial(truth: MixingTruth) -> dict[str, float]:
    """Fit the correlations of infinitely many rows.

    Parameters
    ----------
    truth
        What rows would be drawn from.

    Returns
    -------
    dict
        `count_surplus_equations` of correlations over unknowns, `distance`, which is 1 − MCS, and the `residual` of
        `match_exactly`.
    """
    n_features, n_components = truth.mixing.shape
    correlation = population_correlations(truth)
    match = match_exactly(correlation, n_components, range(_N_EXACT_STARTS))
    similarity = mean_cosine_similarity(match.solution.mixing, truth.mixing)
    return {
        "surplus": count_surplus_equations(n_features, n_components, len(correlation)),
        "distance": 1 - similarity,
        "residual": match.residual,
    }
