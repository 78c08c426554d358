"""One trial of binary ICA against a known mixing: what the experiments map over models.

A trial gets the truth and what was drawn from it, fits, and gives the mean cosine similarity (MCS)
of the mixing found to the true one, as Hyttinen, Barin-Pacela and Hyvärinen do in "Binary
Independent Component Analysis: A Non-stationarity-based Approach" (UAI 2022, section 6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.blocks import Rows, block_of, blocks_of
from pipeline.executors.serial import SerialExecutor
from pipeline.fit import collect_first, collect_pass, fit, start
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.identifiability import surplus
from pipeline.models.binary_ica.moment_matching.exact import match_exactly
from pipeline.models.binary_ica.moment_matching.held_out import folds_of
from pipeline.models.binary_ica.moment_matching.optimiser import maximise_from_seeds
from pipeline.models.binary_ica.moment_matching.refinement import calibrated, fit_gaps
from pipeline.models.binary_ica.moment_matching.segment_model import SegmentModel
from pipeline.models.binary_ica.moment_matching.segments import segments_of
from pipeline.models.binary_ica.moment_matching.selection import GRID, choose
from pipeline.models.binary_ica.params import PROBIT_SCALE
from pipeline.numerics.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.linear_ica import fast_ica
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.numerics.tetrachoric import tetrachoric
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

_EXACT_STARTS = 12


class Truth(Protocol):
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


class Drawn(NamedTuple):
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
    rows: Rows
    seed: int


class _Chunk(NamedTuple):
    """All rows, in memory."""

    words: NDArray[np.uint64]
    blocks: NDArray[np.int64]
    rows: NDArray[np.int64]
    observed: NDArray[np.uint64] | None = None
    columns: Mapping[str, NDArray[Any]] = {}
    keep: NDArray[np.bool_] | None = None


def rows_in_memory(X: NDArray[np.uint8], n_segments: int) -> Rows:
    """Pack rows that lie segment by segment, as many in each, (n_rows, n_features)."""
    words = [block_of(part).words for part in np.split(X, n_segments)]
    height, width = len(X) // n_segments, words[0].shape[1]
    blocks = [(segment, segment * width, height) for segment in range(n_segments)]
    chunk = _Chunk(np.hstack(words), np.array(blocks), np.arange(len(X)))
    return Rows((chunk,).__getitem__, 1, X.shape[1], n_segments)


def population_correlations(truth: Truth) -> Array:
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


def exact_trial(truth: Truth) -> dict[str, float]:
    """Fit the correlations of infinitely many rows.

    Parameters
    ----------
    truth
        What rows would be drawn from.

    Returns
    -------
    dict
        `surplus` of correlations over unknowns, `distance`, which is 1 − MCS, and the `residual` of
        `match_exactly`.
    """
    n_features, n_components = truth.mixing.shape
    correlation = population_correlations(truth)
    match = match_exactly(correlation, n_components, range(_EXACT_STARTS))
    similarity = mean_cosine_similarity(match.solution.mixing, truth.mixing)
    return {
        "surplus": surplus(n_features, n_components, len(correlation)),
        "distance": 1 - similarity,
        "residual": match.residual,
    }


def sample_trial(drawn: Drawn) -> dict[str, float | bool]:
    """Fit BLICA with its own settings, and linear ICA to the bits of all segments together.

    Parameters
    ----------
    drawn
        The data; the number of components is that of the truth.

    Returns
    -------
    dict
        MCS of `BLICA` and `FastICA`, and whether either `_converged`.
    """
    n_components = drawn.mixing.shape[1]
    done = fit(BLICA(n_components), drawn.rows, SerialExecutor(), drawn.seed)
    X = np.concatenate([block.dense() for block in blocks_of(drawn.rows.read(0))])
    linear, converged = fast_ica(X, n_components, drawn.seed)
    return {
        "BLICA": mean_cosine_similarity(done.params.mixing, drawn.mixing),
        "FastICA": mean_cosine_similarity(linear, drawn.mixing),
        "BLICA_converged": bool(done.diagnostics["optimiser_converged"]),
        "FastICA_converged": converged,
    }


def timed_trial(drawn: Drawn) -> dict[str, float]:
    """Fit BLICA with its own settings and take the time of its parts.

    Times are CPU seconds of this process, so that nothing else should run in it. Kernels are
    compiled before.

    Parameters
    ----------
    drawn
        The data; the number of components is that of the truth.

    Returns
    -------
    dict
        `counts` of pairs; `correlations` of all rows and of the halves; `selection` of the ridge;
        `starts` from which the likelihood is climbed; `refinement` of gaps and variances; `total`:
        seconds each. `iterations` of all starts, and `mcs`.
    """
    _compiled()
    return _timed(drawn)


@cache
def _compiled() -> None:
    """Compile, once a process, every kernel of a fit."""
    X = np.random.default_rng(0).integers(2, size=(600, 3), dtype=np.uint8)
    _timed(Drawn(np.eye(3), rows_in_memory(X, 3), 0))


def _timed(drawn: Drawn) -> dict[str, float]:
    """Do what a fit of `BLICA` does, part by part."""
    n_components, executor = drawn.mixing.shape[1], SerialExecutor()
    model, seconds = BLICA(n_components), dict[str, float]()
    with _charged(seconds, "counts"):
        state = start(model, collect_first(model, drawn.rows, executor, drawn.seed), drawn.seed)
        counts = collect_pass(model, state, drawn.rows, executor, drawn.seed)
    assert isinstance(counts, PairCounts)
    seeds = {name: values.tolist() for name, values in state.auxiliary.items()}
    with _charged(seconds, "correlations"):
        n_groups = model.n_groups(counts.n_features)
        every = np.ones((drawn.rows.n_segments, n_groups), np.int64)
        segments = segments_of(counts.weighted(n_groups, every), model.min_rows, executor.map)
        folds = folds_of(counts, n_groups, model.min_rows, executor.map)
    with _charged(seconds, "selection"):
        choice = choose(segments, folds, [n_components], GRID, executor.map)
    with _charged(seconds, "starts"):
        r = choice.candidate.regularization
        fit = partial(maximise_from_seeds, segments.moments(r), n_components, seeds["starts"])
        optima = fit(executor.map, also=[choice.solution])
    with _charged(seconds, "refinement"):
        best, segments, _ = fit_gaps(optima[0], segments, r, executor.map)
        found = calibrated(best.solution, segments, r, executor.map)
    iterations = sum(optimum.iterations for optimum in optima)
    mcs = mean_cosine_similarity(found.mixing, drawn.mixing)
    return {**seconds, "total": sum(seconds.values()), "iterations": iterations, "mcs": mcs}


@contextmanager
def _charged(seconds: dict[str, float], part: str) -> Iterator[None]:
    begun = time.process_time()
    yield
    seconds[part] = time.process_time() - begun
