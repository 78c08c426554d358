"""Data for trials of binary ICA, and the trial on infinitely many rows.

A trial fits rows drawn from a known truth and returns the mean cosine similarity (MCS) between the
fitted and the true mixing, as Hyttinen, Barin-Pacela and Hyvärinen do in "Binary
Independent Component Analysis: A Non-stationarity-based Approach" (UAI 2022, section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import RowSource, pack_block
from pipeline.errors import FitError
from pipeline.models.binary_ica.moment_matching.matching import count_surplus_equations
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution, SegmentMoments
from pipeline.models.binary_ica.moment_matching.optimiser import draw_start, maximise
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE, SegmentModel
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.tetrachoric import tetrachoric
from pipeline.numerics.metrics import mean_cosine_similarity

Array = NDArray[np.float64]

EXACT_RESIDUAL = 1e-20
"""A sum of squared differences below this is due to rounding errors alone."""
_START_TOLERANCE = 1e-5
_ROUNDING = 1e-15
_MAX_EVALUATIONS = 200


class ExactMatch(NamedTuple):
    """The best match.

    Attributes
    ----------
    solution
        The unknowns.
    residual
        Sum of the squared differences of correlations, over pairs i < j and segments.
    """

    solution: MatchSolution
    residual: float


def match_exactly(correlation: Array, n_components: int, seeds: Iterable[int]) -> ExactMatch:
    """Find a mixing and source variances that reproduce the correlations.

    From each start, maximise the likelihood until it is nearly flat, then minimise the squared
    differences by a trust-region Gauss-Newton method.

    Parameters
    ----------
    correlation
        Correlations of each segment, unit diagonal, (n_segments, n_features, n_features).
    n_components
        Number of components, from 1 to n_features.
    seeds
        One seed per start; stops at the first start with a residual of at most `EXACT_RESIDUAL`.

    Returns
    -------
    ExactMatch
        The start with the smallest residual. If the model is not identifiable, it is one of many
        exact solutions.

    Raises
    ------
    FitError
        If the number of components is out of range.
    """
    n_segments, n_features, _ = correlation.shape
    if not 1 <= n_components <= n_features:
        raise FitError(
            f"{{components}} is {n_components}, but must lie between 1 and the number of features "
            f"({n_features})."
        )
    flat = np.zeros(n_segments)
    counts = np.ones((n_segments, n_features), bool)
    moments = SegmentMoments(correlation, counts, flat + 1 / n_segments, flat, flat)
    found: list[ExactMatch] = []
    for seed in seeds:
        near = maximise(moments, draw_start(moments, n_components, seed), _START_TOLERANCE).solution
        found.append(_polish(correlation, near))
        if found[-1].residual <= EXACT_RESIDUAL:
            break
    return min(found, key=lambda match: match.residual)


def _polish(correlation: Array, start: MatchSolution) -> ExactMatch:
    n_components = start.mixing.shape[1]
    # A step that is too long overflows and is undone.
    with np.errstate(over="ignore", invalid="ignore"):
        result = scipy.optimize.least_squares(
            residuals,
            np.concatenate([start.mixing.ravel(), start.log_variances.ravel()]),
            jacobian,
            args=(correlation, n_components),
            x_scale="jac",
            ftol=_ROUNDING,
            xtol=_ROUNDING,
            gtol=_ROUNDING,
            max_nfev=_MAX_EVALUATIONS,
        )
    mixing, log_variances = _unpack_unknowns(result.x, correlation, n_components)
    precisions = 0.5 * np.log1p(np.exp(log_variances) @ mixing.T**2)
    return ExactMatch(MatchSolution(mixing, log_variances, precisions), 2 * float(result.cost))


def residuals(flat: Array, correlation: Array, n_components: int) -> Array:
    """Subtract given correlations from those of the model.

    Parameters
    ----------
    flat
        The mixing, then the log variances, row by row.
    correlation
        Correlations to match, (n_segments, n_features, n_features).
    n_components
        Number of components.

    Returns
    -------
    ndarray
        Differences for the pairs i < j of each segment, (n_segments · n_pairs,).
    """
    i, j = np.triu_indices(correlation.shape[1], 1)
    _, _, _, directions = _signal_terms(flat, correlation, n_components)
    implied = (directions[:, i] * directions[:, j]).sum(axis=2)
    differences: Array = (implied - correlation[:, i, j]).ravel()
    return differences


def jacobian(flat: Array, correlation: Array, n_components: int) -> Array:
    """Differentiate `residuals` by the unknowns, (n_segments · n_pairs, n_unknowns)."""
    n_segments, n_features, _ = correlation.shape
    i, j = np.triu_indices(n_features, 1)
    pairs, each = np.arange(len(i)), np.arange(n_segments)
    roots, signal, norms, directions = _signal_terms(flat, correlation, n_components)
    left, right = directions[:, i], directions[:, j]
    implied = (left * right).sum(axis=2, keepdims=True)
    by_left = (right - implied * left) / norms[:, i]
    by_right = (left - implied * right) / norms[:, j]
    by_mixing = np.zeros((n_segments, len(i), n_features, n_components))
    by_mixing[:, pairs, i] = by_left * roots
    by_mixing[:, pairs, j] = by_right * roots
    by_variances = np.zeros((n_segments, len(i), n_segments, n_components))
    by_variances[each, :, each] = 0.5 * (by_left * signal[:, i] + by_right * signal[:, j])
    n_rows = n_segments * len(i)
    return np.hstack([by_mixing.reshape(n_rows, -1), by_variances.reshape(n_rows, -1)])


def _unpack_unknowns(flat: Array, correlation: Array, n_components: int) -> tuple[Array, Array]:
    n_segments, n_features, _ = correlation.shape
    mixing, log_variances = np.split(flat, [n_features * n_components])
    return (
        mixing.reshape(n_features, n_components),
        log_variances.reshape(n_segments, n_components),
    )


def _signal_terms(
    flat: Array, correlation: Array, n_components: int
) -> tuple[Array, Array, Array, Array]:
    """S^½, L, √(1 + ‖L_i‖²) and their ratio, by segment, feature and component."""
    mixing, log_variances = _unpack_unknowns(flat, correlation, n_components)
    roots = np.exp(0.5 * log_variances)[:, None, :]
    signal = mixing * roots
    norms = np.sqrt(1 + (signal**2).sum(axis=2, keepdims=True))
    return roots, signal, norms, signal / norms


_N_EXACT_STARTS = 12


class MixingTruth(Protocol):
    """The true model, such as `storage.examples.NonstationaryTruth`."""

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
        Seed of the fits.
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
    """Pack rows (n_rows, n_features) sorted by segment, with equally many rows per segment."""
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
        The true model.

    Returns
    -------
    ndarray
        Correlations per segment, (n_segments, n_features, n_features).
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
        The true model.

    Returns
    -------
    dict
        `surplus` (equations minus unknowns), `distance` (1 − MCS) and the `residual` of
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
