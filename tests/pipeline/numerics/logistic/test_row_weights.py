"""Sums over rows with weights, against repeated rows, absent rows and sums without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.bits.kernels import pack_rows
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.scores import sum_block_scores
from pipeline.numerics.logistic.centred_nodes import centred_e_step
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    gauss_hermite,
    node_posterior,
    node_statistics,
)
from pipeline.numerics.logistic.lattice_nodes import lattice_e_step
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.logistic_bound import variational_e_step
from pipeline.numerics.logistic.logistic_sites import ep_e_step, sum_ep_score_products
from pipeline.numerics.logistic.newton_step import NewtonStatistics
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments
from tests.pipeline.numerics.logistic.test_scores import sum_binary_scores

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Sums = Mapping[str, Any]

N_ROWS, N_FEATURES = 150, 12


def draw_rows(q: int, masked: bool) -> tuple[Bits, Bits | None, Floats, Floats]:
    """Draw rows, with missing values in two of three if `masked`, and their model."""
    rng = np.random.default_rng([q, masked])
    weights, offsets = rng.normal(size=(N_FEATURES, q)), rng.normal(0, 0.7, N_FEATURES)
    p = expit(rng.standard_normal((N_ROWS, q)) @ weights.T + offsets)
    X = (rng.random(p.shape) < p).astype(np.uint8)
    if not masked:
        return X, None, weights, offsets
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    observed[::3] = 1
    return X * observed, observed, weights, offsets


def on_nodes(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    return node_statistics(
        X, observed, LevelItems.from_binary(w, b), gauss_hermite(9, w.shape[1]), r
    )._asdict()


def leave_out_rows(found: NewtonStatistics) -> Sums:
    """Return the sums over rows, without the log-likelihood of each row."""
    return {name: own for name, own in found._asdict().items() if name != "row_log_likelihoods"}


def on_lattice(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    return leave_out_rows(lattice_e_step(X, observed, w, b, r))


def on_centred_nodes(
    X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None
) -> Sums:
    return leave_out_rows(centred_e_step(X, observed, w, b, r))


def by_bound(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    observed_words = None if observed is None else pack_rows(observed)
    return variational_e_step(pack_rows(X), observed_words, len(X), w, b, r)._asdict()


def by_sites(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    return ep_e_step(X, observed, w, b, r)._asdict()


def products_by_sites(
    X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None
) -> Sums:
    return {"products": sum_ep_score_products(X, observed, w, b, r)}


def scores(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    posterior = posterior_on_lattice(X, observed, TraitItems(w, b))
    return sum_binary_scores(
        X, observed, LevelItems.from_binary(w, b), posterior, None, r
    )._asdict()


def block_scores(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    posterior = posterior_on_lattice(X, observed, TraitItems(w, b))
    directions = np.random.default_rng(0).normal(size=(N_FEATURES * (w.shape[1] + 1), 4))
    items = LevelItems.from_binary(w, b)
    return sum_block_scores(X, observed, items, posterior, directions, r)._asdict()


def scores_on_nodes(X: Bits, _: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    nodes = gauss_hermite(9, w.shape[1])
    items = LevelItems.from_binary(w, b)
    posterior = node_posterior(X, None, items, nodes)
    return sum_binary_scores(X, None, items, posterior, nodes, r)._asdict()


def moments(X: Bits, observed: Bits | None, w: Floats, b: Floats, r: Floats | None) -> Sums:
    posterior = posterior_on_lattice(X, observed, TraitItems(w, b))
    return {"moments": sum_trait_moments(posterior.mean, posterior.covariance, r)}


SUMS: list[Callable[..., Sums]] = [
    on_nodes,
    on_lattice,
    on_centred_nodes,
    by_bound,
    by_sites,
    moments,
    scores,
    block_scores,
    scores_on_nodes,
    products_by_sites,
]
CASES = [
    (function, q, masked)
    for function in SUMS
    for q in ([4] if function is products_by_sites else [1, 2])
    for masked in ([False] if function is scores_on_nodes else [False, True])
]
each_case = pytest.mark.parametrize(("function", "q", "masked"), CASES)


def assert_same_sums(found: Sums, expected: Sums, tolerance: float) -> None:
    """Compare all sums, relative to the largest entry of each; `rounds` count rows, not weights."""
    assert found.keys() == expected.keys()
    for name in found.keys() - {"rounds"}:
        largest = np.abs(expected[name]).max(initial=0.0)
        np.testing.assert_allclose(
            found[name], expected[name], rtol=0, atol=tolerance * largest, err_msg=name
        )


def take_rows(observed: Bits | None, rows: NDArray[np.intp]) -> Bits | None:
    return None if observed is None else observed[rows]


def tolerance_of(function: Callable[..., Sums]) -> float:
    """Scores of rows are rounded to single precision before they are added up."""
    return 1e-6 if function in (scores, block_scores, products_by_sites) else 1e-9


@each_case
def test_integer_weights_equal_repeated_rows(
    function: Callable[..., Sums], q: int, masked: bool
) -> None:
    X, observed, weights, offsets = draw_rows(q, masked)
    times = np.random.default_rng(1).integers(0, 5, N_ROWS)
    rows = np.repeat(np.arange(N_ROWS), times)
    found = function(X, observed, weights, offsets, times.astype(np.float64))
    expected = function(X[rows], take_rows(observed, rows), weights, offsets, None)
    assert_same_sums(found, expected, tolerance_of(function))


@each_case
def test_rows_of_weight_0_are_absent(function: Callable[..., Sums], q: int, masked: bool) -> None:
    X, observed, weights, offsets = draw_rows(q, masked)
    is_present = np.random.default_rng(2).random(N_ROWS) < 0.6
    rows = np.flatnonzero(is_present)
    found = function(X, observed, weights, offsets, is_present.astype(np.float64))
    expected = function(X[rows], take_rows(observed, rows), weights, offsets, None)
    assert_same_sums(found, expected, tolerance_of(function))


@each_case
def test_weights_of_1_are_no_weights(function: Callable[..., Sums], q: int, masked: bool) -> None:
    X, observed, weights, offsets = draw_rows(q, masked)
    found = function(X, observed, weights, offsets, np.ones(N_ROWS))
    assert_same_sums(found, function(X, observed, weights, offsets, None), 1e-12)


@each_case
def test_sums_are_linear_in_fractional_weights(
    function: Callable[..., Sums], q: int, masked: bool
) -> None:
    X, observed, weights, offsets = draw_rows(q, masked)
    share = np.random.default_rng(3).random(N_ROWS)
    parts = [function(X, observed, weights, offsets, r) for r in (share, 1 - share)]
    whole = function(X, observed, weights, offsets, None)
    added = {name: parts[0][name] + parts[1][name] for name in whole}
    assert_same_sums(added, whole, tolerance_of(function))


def test_rounds_are_those_of_the_rows_whatever_their_weights() -> None:
    X, observed, weights, offsets = draw_rows(2, True)
    for function in (by_bound, by_sites):
        plain = function(X, observed, weights, offsets, None)
        weighted = function(X, observed, weights, offsets, np.full(N_ROWS, 3.0))
        assert weighted["rounds"] == plain["rounds"] > 0
