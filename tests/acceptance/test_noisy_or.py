"""Noisy-OR networks find the causes of the problems that they were introduced with.

M. S. Lewicki, T. J. Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS
1996. Bits a row are those of all rows that there can be, weighted by how often they come. `-s`
shows the numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from pipeline.data.blocks import pack_block
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.noisy_or import NoisyOr, NoisyOrParams
from pipeline.models.noisy_or.gibbs import enumerate_log_probabilities
from pipeline.random import RowRandom
from storage.examples import (
    EnumeratedCases,
    enumerate_lines,
    enumerate_shifter,
    merge_equal_rows,
)
from tests.support.strategies import DenseData, make_memory_rows

Array = NDArray[np.float64]

SHIFTER, LINES = NoisyOr(layers=(20, 2)), NoisyOr(layers=(10, 5))
PATTERNS = ("verticals", "plus", "equals", "square")


def learned(
    model: NoisyOr, cases: EnumeratedCases, seed: int, n_rows: int = 10_000
) -> NoisyOrParams:
    drawn = np.random.default_rng(seed + 100).choice(len(cases.X), n_rows, p=cases.probabilities)
    rows = make_memory_rows(DenseData(cases.X[drawn]), [n_rows // 4] * 4)
    params: NoisyOrParams = fit_model(model, rows, ThreadsExecutor(2), seed).params
    return params


def bits_a_row(model: NoisyOr, params: NoisyOrParams, cases: EnumeratedCases) -> float:
    X, probabilities = merge_equal_rows(cases)
    found = model.log_likelihood(params, pack_block(X), RowRandom(1))
    return float(-probabilities @ found.nats / np.log(2))


def top_units(model: NoisyOr, params: NoisyOrParams, X: NDArray[np.uint8]) -> Array:
    """Means of the units of the top layer, (n_samples, n_units)."""
    codes: Array = model.transform(params, pack_block(X), RowRandom(2))["mean"]
    return codes[:, -params.sizes[-1] :]


def share_of_directions(params: NoisyOrParams) -> float:
    """How often the top unit that is on more tells the shift."""
    cases = enumerate_shifter()
    top = top_units(SHIFTER, params, cases.X)
    right = (top[:, 0] > top[:, 1]) == (cases.labels == "left")
    return float(max(right.mean(), 1 - right.mean()))


def directions_and_bits(seed: int) -> tuple[float, float]:
    model = NoisyOr(layers=(20, 2))
    params = learned(model, enumerate_shifter(), seed)
    found = share_of_directions(params), bits_a_row(SHIFTER, params, enumerate_shifter())
    print(f"shifter, seed {seed}: {found[1]:.3f} bits a row, {found[0]:.1%} of the directions")
    return found


def line_similarities(params: NoisyOrParams) -> Array:
    """Cosine of each unit's f with the line that it is matched with, (10,)."""
    side = np.eye(5)
    wanted = np.concatenate([np.repeat(side, 5, axis=1), np.tile(side, 5)])
    f = params.f[0].T
    cosines = f @ wanted.T / np.linalg.norm(f, axis=1)[:, None] / np.sqrt(5)
    return np.asarray(cosines[linear_sum_assignment(-cosines)])


def pattern_activations(params: NoisyOrParams) -> tuple[Array, Array]:
    """Mean of each pattern's top unit, and the largest on another pattern, (4,) each."""
    cases = enumerate_lines()
    rows = np.stack([cases.X[list(cases.labels).index(name)] for name in PATTERNS])
    top = top_units(LINES, params, np.repeat(rows, 100, axis=0)).reshape(4, 100, -1).mean(axis=1)
    patterns, units = linear_sum_assignment(-top)
    others = [np.delete(top[:, u], p).max() for p, u in zip(patterns, units, strict=True)]
    return top[patterns, units], np.array(others)


@pytest.mark.slow
def test_nearly_all_seeds_read_the_shift() -> None:
    found = [directions_and_bits(seed) for seed in range(10)]
    assert sum(directions >= 0.95 and bits <= 10.3 for directions, bits in found) >= 8


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_exclusive_directions_reach_the_entropy() -> None:
    """Independent units need almost a bit more per row; by enumeration of every eighth row."""
    X, probabilities = (part[::8] for part in merge_equal_rows(enumerate_shifter()))
    model, found = NoisyOr(layers=(20, 2), top="exclusive"), []
    for seed in range(10):
        params = learned(model, enumerate_shifter(), seed)
        bits = -enumerate_log_probabilities(params.network, X) / np.log(2)
        found.append(float(probabilities @ bits / probabilities.sum()))
        print(f"shifter with exclusive directions, seed {seed}: {found[-1]:.3f} bits a row")
    assert sum(bits <= 9.05 for bits in found) >= 4


@pytest.mark.slow
def test_bits_by_annealing_are_those_by_enumeration() -> None:
    """All states of the 20 units under each of the 4 of the top layer."""
    params, (X, _) = learned(SHIFTER, enumerate_shifter(), 0), merge_equal_rows(enumerate_shifter())
    some = X[::25]
    found = SHIFTER.log_likelihood(params, pack_block(some), RowRandom(1))
    exact = enumerate_log_probabilities(params.network, some)
    error = np.sqrt((found.standard_error**2).sum())
    assert abs((found.nats - exact).sum()) < 4 * error


@pytest.mark.slow
def test_nearly_all_seeds_find_lines_and_their_patterns() -> None:
    n_lines = n_patterns = 0
    for seed in range(10):
        params = learned(LINES, enumerate_lines(), seed)
        similarity, (own, others) = line_similarities(params), pattern_activations(params)
        n_lines += similarity.min() >= 0.95
        n_patterns += bool(own.min() >= 0.8 and others.max() <= 0.2)
        bits = bits_a_row(LINES, params, enumerate_lines())
        worst = f"cosine {similarity.min():.3f}, patterns {own.min():.2f} and {others.max():.2f}"
        print(f"lines, seed {seed}: {bits:.3f} bits a row, worst: {worst}")
    assert n_lines >= 8
    assert n_patterns >= 8


@pytest.mark.slow
def test_known_weights_are_found_in_many_rows() -> None:
    """Ten units, 10^5 rows: f within 0.03."""
    rng = np.random.default_rng(0)
    f = rng.uniform(0.3, 0.95, (40, 10)) * (rng.random((40, 10)) < 0.25)
    truth = NoisyOrParams.from_probabilities([f], [np.full(40, 1e-4), rng.uniform(0.1, 0.4, 10)])
    model = NoisyOr(10)
    drawn = model.sample(truth, 100_000, rng)
    found = fit_model(
        model, make_memory_rows(DenseData(drawn), [25_000] * 4), ThreadsExecutor(2), 0
    ).params.f[0]
    apart = np.abs(found[:, :, None] - f[:, None, :]).sum(axis=0)
    _, order = linear_sum_assignment(apart.T)
    worst = np.abs(found[:, order] - f).max()
    print(f"largest error of f: {worst:.4f}")
    assert worst <= 0.03
