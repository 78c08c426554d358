"""Mixtures of trees, against enumeration and published likelihoods."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.data.weights import WeightKind
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import (
    collect_first_statistics,
    fit_model,
    start_fit,
)
from pipeline.models.state import FitState
from pipeline.models.trees import feature_tree, tree_mixture
from pipeline.models.trees.feature_tree import find_edges
from pipeline.models.trees.pair_counts import (
    add_edge_tables,
    add_expected_pairs,
    count_level_pairs,
    drop_negligible,
    symmetrize,
)
from pipeline.models.trees.tree_mixture import TreeMixture, TreeMixtureParams
from pipeline.models.trees.tree_starts import draw_components
from pipeline.numerics.trees.dependence import (
    compute_table_correlation,
    compute_table_information,
)
from pipeline.numerics.trees.messages import MISSING
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    gather_tables,
    normalize_tables,
    order_from_root,
)
from pipeline.passes import feature_strips
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts
from tests.support.designs import DESIGNS
from tests.support.enumeration import (
    JointTable,
    check_rows,
    compute_pair_dependence,
    draw_incomplete_rows,
    draw_wide_rows,
    list_states,
)
from tests.support.strategies import DenseData, make_memory_rows
from tests.support.values import make_data, make_model

Levels = NDArray[np.uint8]
SERIAL = SerialExecutor()
RNG = partial(np.random.default_rng, 0)
BINARY, SEVERAL = (2,) * 12, (2, 3, 4, 2, 3, 2)


def draw_params(sizes: tuple[int, ...], n_components: int, seed: int = 0) -> TreeMixtureParams:
    """Random trees with random tables."""
    rng, n = np.random.default_rng(seed), len(sizes)
    tables = np.zeros((n_components, n, max(sizes), max(sizes)))
    parents = np.full((n_components, n), ROOT)
    for k in range(n_components):
        order = rng.permutation(n)
        for place, i in enumerate(order.tolist()):
            parents[k, i] = rng.choice(order[:place]) if place else ROOT
            n_above = sizes[parents[k, i]] if place else 1
            tables[k, i, :n_above, : sizes[i]] = rng.dirichlet(np.ones(sizes[i]), n_above)
    margins = np.concatenate([np.full(size, 1 / size) for size in sizes])
    n_levels = None if set(sizes) == {2} else np.array(sizes)
    return TreeMixtureParams(
        rng.dirichlet(np.ones(n_components)), parents, tables, margins, n_levels
    )


def enumerate_joint(params: TreeMixtureParams, sizes: tuple[int, ...]) -> JointTable:
    """Return P(x, k) by the definition."""
    rows = list_states(sizes)
    joint = np.tile(params.weights, (len(rows), 1))
    for k, parents in enumerate(params.parents.tolist()):
        for i, parent in enumerate(parents):
            above = np.zeros(len(rows), np.uint8) if parent == ROOT else rows[:, parent]
            joint[:, k] *= params.tables[k, i, above, rows[:, i]]
    return JointTable(rows, joint)


def fit_trees(sizes: tuple[int, ...], data: DenseData, **settings: Any) -> FitState:
    return fit_model(make_model(TreeMixture, sizes, **settings), make_memory_rows(data), SERIAL)


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_likelihoods_and_codes_are_those_of_enumeration(sizes: tuple[int, ...]) -> None:
    params, model = draw_params(sizes, 3), TreeMixture()
    table = enumerate_joint(params, sizes)
    assert table.joint.sum() == pytest.approx(1, abs=1e-12)
    levels, seen = draw_incomplete_rows(sizes, 40)
    block = make_data(levels, sizes, seen).pack()
    nats = model.log_likelihood(params, block, RowRandom(0)).nats
    check_rows(table, levels, seen, nats, model.transform(params, block, RowRandom(0))["mean"])


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_imputed_probabilities_are_those_of_enumeration(sizes: tuple[int, ...]) -> None:
    """The first tree has two roots, and the second copies a feature."""
    params = draw_params(sizes, 3)
    (own,) = np.flatnonzero(params.parents[0] == params.parents[0, -1])[-1:]
    params.parents[0, own] = ROOT
    (copy,) = np.flatnonzero(params.parents[1] != ROOT)[-1:]
    params.tables[1, copy, :, : sizes[copy]] = np.eye(max(sizes))[:, : sizes[copy]][::-1]
    params.tables[1, copy, sizes[copy] :] = 0.0
    table = enumerate_joint(params, sizes)
    levels, seen = draw_incomplete_rows(sizes, 40)
    block = make_data(levels, sizes, seen).pack()
    found = TreeMixture().impute(params, block, RowRandom(0))
    expected = [table.impute(*row) for row in zip(levels, seen, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("is_star", [True, False])
def test_imputed_probabilities_do_not_underflow(is_star: bool) -> None:
    """3,000 features that copy the first, or the one before, each wrong once in a million."""
    n, wrong = 3000, 1e-6
    parents = np.zeros(n, np.int64) if is_star else np.arange(-1, n - 1)
    parents[0] = ROOT
    tables = np.tile([[1 - wrong, wrong], [wrong, 1 - wrong]], (1, n, 1, 1))
    tables[0, 0, 0] = 0.5
    params = TreeMixtureParams(np.ones(1), parents[None], tables, np.full(2 * n, 0.5))
    levels = (np.arange(n) >= n // 2).astype(np.uint8)[None]
    (found,) = TreeMixture(1).impute(params, make_data(levels, (2,) * n).pack(), RowRandom(0))
    if is_star:  # of its copies, the first feature has one more at 1 than at 0
        expected = np.append(1 - wrong, np.full(n - 1, wrong))
    else:
        both = wrong**2 / (wrong**2 + (1 - wrong) ** 2)  # unlike both neighbours
        expected = np.where(levels[0] == 1, 1 - both, both)
        expected[n // 2 - 1 : n // 2 + 1] = 0.5
        expected[[0, -1]] = wrong, 1 - wrong
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_many_children_of_a_missing_value_outweigh_those_before_them() -> None:
    """3,000 features that often copy the first; the last ones are 1, and more of the others 0."""
    n, copies = 3000, np.array([[0.9, 0.1], [0.1, 0.9]])
    parents, tables = np.zeros(n, np.int64), np.tile(copies, (1, n, 1, 1))
    parents[0], tables[0, 0, 0] = ROOT, 0.5
    params = TreeMixtureParams(np.ones(1), parents[None], tables, np.full(2 * n, 0.5))
    is_last = np.arange(n) >= 0.8 * n
    X = np.stack([is_last, ~is_last, np.arange(n) % 2]).astype(np.uint8)
    observed = np.ones_like(X)
    observed[:, 0] = 0
    block, model = DenseData(X, observed).pack(), TreeMixture(1)
    n_ones = X[:, 1:].sum(axis=1)
    by_level = np.stack(
        [np.log(own[0]) * (n - 1 - n_ones) + np.log(own[1]) * n_ones for own in copies]
    )
    expected = scipy.special.logsumexp(by_level + np.log(0.5), axis=0)
    nats = model.log_likelihood(params, block, RowRandom(0)).nats
    np.testing.assert_allclose(nats, expected, rtol=1e-12)
    (found,) = model.impute(params, block, RowRandom(0))[:, 0][None]
    np.testing.assert_allclose(found, scipy.special.expit(by_level[1] - by_level[0]), rtol=1e-9)
    working = {"held_out": np.array(0.0), "finds_trees": np.array(False)}
    sums = model.summarize(params, working, block, RowRandom(0))
    np.testing.assert_allclose(sums.values["tables"][0, 0, 0, 1], found.sum(), rtol=1e-9)


def test_values_that_the_others_make_impossible_are_refused() -> None:
    """Feature 1 copies feature 0, and feature 2 copies feature 1."""
    parents, tables = np.array([[ROOT, 0, 1]]), np.tile(np.eye(2), (1, 3, 1, 1))
    tables[0, 0, 0] = 0.5
    params = TreeMixtureParams(np.ones(1), parents, tables, np.full(6, 0.5))
    levels = np.array([[1, 0, 1], [0, 0, 0]], np.uint8)
    model = TreeMixture(1)
    found = model.impute(params, make_data(levels[1:], (2, 2, 2)).pack(), RowRandom(0))
    np.testing.assert_array_equal(found, 0.0)
    with pytest.raises(FitError, match="give a row the probability 0"):
        model.impute(params, make_data(levels, (2, 2, 2)).pack(), RowRandom(0))


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_edges_have_the_dependence_of_enumeration(sizes: tuple[int, ...]) -> None:
    params = draw_params(sizes, 3)
    table = enumerate_joint(params, sizes)
    for k, tree in enumerate(TreeMixture().get_trees(params)):
        assert tree.weight == params.weights[k]
        shares = table.joint[:, k] / params.weights[k]
        for i, parent in enumerate(tree.parents.tolist()):
            found = tree.mutual_information[i], tree.correlation[i]
            if parent == ROOT:
                assert np.isnan(found).all()
                continue
            expected = compute_pair_dependence(table.rows, shares, parent, i)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_constant_feature_has_no_correlation() -> None:
    joint = np.array([[[0.3, 0.7], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.5]]])
    np.testing.assert_allclose(compute_table_information(joint), [0, np.log(2)], atol=1e-15)
    np.testing.assert_array_equal(compute_table_correlation(joint), [np.nan, 1])


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_expected_counts_of_pairs_are_those_of_enumeration(sizes: tuple[int, ...]) -> None:
    params, n_levels = draw_params(sizes, 2), np.array(sizes)
    table = enumerate_joint(params, sizes)
    levels, seen = draw_incomplete_rows(sizes, 15)
    firsts = np.cumsum([0, *sizes])
    indicators = np.zeros((len(table.rows), firsts[-1]))
    indicators[np.arange(len(table.rows))[:, None], firsts[:-1] + table.rows] = 1.0
    weights = np.random.default_rng(2).uniform(0, 2, (len(levels), 2))
    products = np.zeros((2, sum(n_levels - 1), sum(n_levels - 1)))
    add_expected_pairs(
        make_data(levels, sizes, seen).pack(),
        np.where(seen, levels, np.uint8(MISSING)),
        weights,
        params.parents,
        params.orders,
        params.tables,
        n_levels,
        products,
    )
    symmetrize(products)
    for k in range(2):
        expected = np.zeros((firsts[-1], firsts[-1]))
        for n in range(len(levels)):
            is_alike = table.is_consistent(levels[n], seen[n])
            shares = table.joint[is_alike, k] / table.joint[is_alike, k].sum()
            own = indicators[is_alike]
            expected += weights[n, k] * (own * shares[:, None]).T @ own
        counts = count_level_pairs(products[k], weights[:, k].sum(), n_levels)
        np.testing.assert_allclose(counts, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "is_complete"), [(BINARY, False), (BINARY, True), (SEVERAL, False)]
)
def test_tables_of_edges_are_those_of_counts_of_pairs(
    sizes: tuple[int, ...], is_complete: bool
) -> None:
    """Also of rows that belong to few components, and of a tree with two roots."""
    params, n_levels = draw_params(sizes, 3), np.array(sizes)
    (own,) = np.flatnonzero(params.parents[0] == params.parents[0, -1])[-1:]
    params.parents[0, own] = ROOT
    levels, seen = draw_incomplete_rows(sizes, 700)
    weights = np.random.default_rng(2).uniform(0, 2, (len(levels), 3))
    weights[:, 1] *= np.arange(len(levels)) % 9 == 0
    block = make_data(levels, sizes, None if is_complete else seen).pack()
    known = None if is_complete else np.where(seen, levels, np.uint8(MISSING))
    orders = None if is_complete else params.orders
    arguments = (block, known, weights, params.parents, orders, params.tables, n_levels)
    products = np.zeros((3, block.n_features, block.n_features))
    found = np.zeros(params.tables.shape)
    add_expected_pairs(*arguments, products)
    symmetrize(products)
    add_edge_tables(*arguments, found)
    firsts = np.cumsum(n_levels) - n_levels
    for k in range(3):
        counts = count_level_pairs(products[k], weights[:, k].sum(), n_levels)
        expected = gather_tables(counts, firsts, n_levels, params.parents[k])
        np.testing.assert_allclose(found[k], expected, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(None, (2,)), ("frequency", (2, 2, 2, 3, 2, 4)), ("sampling", (2, 2, 2, 3, 2, 4))],
)
def test_strips_give_the_tree_and_tables_of_one_table(
    kind: WeightKind | None, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where edges have equal weights."""
    sizes *= 150 // len(sizes)
    levels = draw_wide_rows(sizes, 700, 4)
    times = np.random.default_rng(4).integers(0, 4, len(levels))
    weights = None if kind is None else times * (1.7 if kind == "sampling" else 1)
    data = replace(make_data(levels, sizes), weights=weights)
    rows = make_memory_rows(data, [100, 350, 250], kind=kind or "frequency")
    model = make_model(TreeMixture, sizes, n_components=1, smoothing=0.3)
    expected = fit_model(model, rows, SERIAL)
    monkeypatch.setattr(tree_mixture, "MAX_SQUARE_FEATURES", 100)
    monkeypatch.setattr(feature_strips, "_MAX_STRIP_HEIGHT", 64)
    monkeypatch.setattr(feature_tree, "_TABLE_CELLS", 5000)  # several tables per strip
    found = fit_model(model, rows, SERIAL)
    np.testing.assert_array_equal(found.params.parents, expected.params.parents)
    within = 1e-9 if kind == "sampling" else 1e-14  # sums of numbers that are not whole
    np.testing.assert_allclose(found.params.tables, expected.params.tables, atol=within)
    assert found.history[-1] == pytest.approx(expected.history[-1], abs=1e-10)
    assert found.diagnostics == expected.diagnostics
    assert [w.text for w in found.warnings] == [w.text for w in expected.warnings]


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_strips_with_missing_values_give_the_tree_of_the_pairs_and_its_tables(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables against expected counts by enumeration."""
    monkeypatch.setattr(tree_mixture, "MAX_SQUARE_FEATURES", 5)
    levels, seen = draw_incomplete_rows(sizes, 200)
    data = make_data(levels, sizes, seen)
    fitted = fit_trees(sizes, data, n_components=1, tol=1e-11, smoothing=1e-6)
    params = fitted.params
    edges = find_edges(PairCounts.from_block(data.pack(), pooled=True), np.array(sizes))
    found = {frozenset((i, p)) for i, p in enumerate(params.parents[0].tolist()) if p != ROOT}
    assert found == {frozenset(pair) for pair in zip(*edges[:2], strict=True)}
    table = enumerate_joint(params, sizes)
    joint = np.zeros(params.tables[0].shape)
    for row, own in zip(levels, seen, strict=True):
        posterior = table.joint[:, 0] * table.is_consistent(row, own)
        posterior /= posterior.sum()
        for i, parent in enumerate(params.parents[0].tolist()):
            above = 0 if parent == ROOT else table.rows[:, parent]
            np.add.at(joint[i], (above, table.rows[:, i]), posterior)
    totals = joint.sum(axis=2, keepdims=True)
    expected = np.divide(joint, totals, out=np.zeros_like(joint), where=totals > 0)
    np.testing.assert_allclose(params.tables[0], expected, atol=1e-5)


def test_several_wide_trees_are_fitted_without_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_mixture, "MAX_SQUARE_FEATURES", 10)
    monkeypatch.setattr(tree_mixture, "find_strip_edges", None)
    levels, seen = draw_incomplete_rows(BINARY, 50)
    fit_trees(BINARY, make_data(levels, BINARY, seen), n_components=2, max_iter=2)


def test_posteriors_lose_at_most_a_tenth_of_a_billionth() -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(50, 0.02), 1000)
    lost = shares - drop_negligible(shares)
    assert 0 < lost.sum(axis=1).max() <= 1e-10
    assert (lost[lost > 0] == shares[lost > 0]).all()


def test_trees_grow_from_independent_features_and_are_found_in_every_third_pass() -> None:
    model = TreeMixture(2, starts=1, tol=1e-9, max_iter=30)
    rows = make_memory_rows(DenseData(model.sample(draw_params(BINARY, 2), 500, RNG())))
    states: list[FitState] = []
    fit_model(model, rows, SERIAL, checkpoint=states.append)
    begun = [state.starts[0] for state in states if state.starts]
    short = [start for start in begun if model.get_start_kind(start) == "features"]
    assert 3 < sum(not start.done for start in short) < 20
    assert all((start.params.parents == ROOT).all() for start in short)
    assert ((begun[len(short) + 1].params.parents == ROOT).sum(axis=1) == 1).all()
    parents = [state.params.parents for state in states[len(begun) :]]
    changed = [bool((a != b).any()) for a, b in pairwise(parents[:-1])]  # then they are sorted
    assert {n for n, has_changed in enumerate(changed) if has_changed} <= {*range(0, 30, 3)}
    gains = np.diff([state.history[-1] for state in states[len(begun) + 1 :]])
    assert gains.min() > -1e-9


def compute_nats(params: TreeMixtureParams, sizes: tuple[int, ...], data: DenseData) -> float:
    found = make_model(TreeMixture, sizes).log_likelihood(params, data.pack(), RowRandom(0))
    return float(found.nats.sum())


def test_kinds_of_rows_that_differ_only_in_dependence_are_found() -> None:
    """A chain whose features copy the one before in one kind, and invert it in the other."""
    tables = np.zeros((2, 10, 2, 2))
    tables[0, 1:] = [[0.95, 0.05], [0.05, 0.95]]
    tables[1, 1:] = tables[0, 1:, ::-1]
    tables[:, 0, 0] = 0.5
    parents = np.tile(np.arange(-1, 9), (2, 1))
    truth = TreeMixtureParams(np.full(2, 0.5), parents, tables, np.full(20, 0.5))
    data = DenseData(TreeMixture().sample(truth, 2000, RNG()))
    state = fit_trees(BINARY[:10], data, n_components=2, starts=1)
    found, expected = (compute_nats(p, BINARY[:10], data) for p in (state.params, truth))
    assert found >= expected


@pytest.mark.parametrize("design", ["two forms, 8 % of rows link", "ring of 3 forms"])
def test_a_single_tree_is_found_in_linked_forms(design: str) -> None:
    """Expected counts hardly show the edges of pairs that few rows observe."""
    sizes = (2, 3, 4) * 3
    truth, rng = draw_params(sizes, 1, seed=3), np.random.default_rng(3)
    levels = join_planes(make_model(TreeMixture, sizes).sample(truth, 2000, rng), sizes)
    data = make_data(levels, sizes, DESIGNS[design](*levels.shape, rng))
    state = fit_trees(sizes, data, n_components=1, starts=1)
    assert compute_nats(state.params, sizes, data) >= compute_nats(truth, sizes, data)


def test_a_single_tree_is_that_of_all_rows_if_only_some_chunks_are_complete() -> None:
    levels, seen = draw_incomplete_rows(SEVERAL, 400)
    seen[:150] = True
    data, model = make_data(levels, SEVERAL, seen), make_model(TreeMixture, SEVERAL, n_components=1)
    fits = [fit_model(model, make_memory_rows(data, sizes), SERIAL) for sizes in ([150, 250], None)]
    found, expected = (state.params for state in fits)
    np.testing.assert_array_equal(found.parents, expected.parents)
    np.testing.assert_allclose(found.tables, expected.tables, rtol=1e-9)


def join_planes(planes: NDArray[np.uint8], sizes: tuple[int, ...]) -> Levels:
    """Return the levels of rows, (n_rows, n_features)."""
    return np.add.reduceat(planes, np.cumsum([0, *np.array(sizes[:-1]) - 1]), axis=1)


def test_drawn_components_depend_on_values_only() -> None:
    levels = np.random.default_rng(0).integers(0, 3, (4000, 9)).astype(np.uint8)
    n_levels, posterior = np.full(9, 3), np.tile([0.1, 0.2, 0.7], (4000, 1))
    drawn = draw_components(levels, n_levels, posterior, RowRandom(1))
    order = np.random.default_rng(1).permutation(len(levels))
    for own, expected in ((levels[order], drawn[order]), (2 - levels, drawn)):
        again = draw_components(own, n_levels, posterior, RowRandom(1))
        np.testing.assert_array_equal(again, expected)
    assert (draw_components(levels, n_levels, posterior, RowRandom(2)) != drawn).any()
    np.testing.assert_allclose(drawn.mean(axis=0), posterior[0], atol=0.03)
    assert (drawn.sum(axis=1) == 1).all()
    few = draw_components(levels, n_levels, posterior, RowRandom(1), 1 / 16)
    np.testing.assert_allclose(few.mean(axis=0), posterior[0] / 16, atol=0.01)


def test_many_rows_are_sampled_for_starts_from_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_mixture, "SAMPLE_ROWS", 300)
    model, states = TreeMixture(2, starts=1), list[FitState]()
    data = DenseData(model.sample(draw_params(BINARY, 2), 900, RNG()))
    whole = fit_model(model, make_memory_rows(data), SERIAL, checkpoint=states.append)
    start = states[0].starts[-1]
    part = model.summarize(start.params, start.working, data.pack(), RowRandom(0, 3))
    again = model.summarize(start.params, start.working, data.pack(), RowRandom(0, 4))
    assert 200 < part.n_rows < 400  # the same rows in every pass
    assert part.objective == again.objective
    cut = make_memory_rows(data, [400, 500])
    np.testing.assert_array_equal(
        fit_model(model, cut, SERIAL).params.parents, whole.params.parents
    )


def test_memory_of_tasks_with_missing_values_is_within_the_estimate() -> None:
    n_features, rng, model = 400, np.random.default_rng(0), TreeMixture(2)
    params = draw_params((2,) * n_features, 2, seed=1)
    X, observed = rng.random((2, 100, n_features)) > 0.02
    block = DenseData(X.astype(np.uint8), observed.astype(np.uint8)).pack()
    working = {"held_out": np.array(0.0), "finds_trees": np.array(True)}
    model.summarize(params, working, block.take_rows(np.arange(3)), RowRandom(0))  # compiles
    tracemalloc.start()
    model.summarize(params, working, block, RowRandom(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one, two = (model.estimate_memory(n_features, 1, n_threads) for n_threads in (1, 2))
    assert 0.5 * (two - one) < peak < 1.05 * (two - one)


def test_held_out_rows_choose_the_number_of_components() -> None:
    params = draw_params(BINARY, 4, seed=7)
    X = TreeMixture().sample(params, 1000, np.random.default_rng(0))
    state = fit_trees(BINARY, DenseData(X), n_components=None, starts=1, tol=1e-3)
    scores = state.diagnostics["held_out_scores"]
    assert len(state.params.weights) == 2 ** int(np.argmax(scores)) == 4
    assert scores[-1] < max(scores)


def test_a_warm_start_of_strips_continues_with_the_tables_of_its_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree_mixture, "MAX_SQUARE_FEATURES", 5)
    levels, seen = draw_incomplete_rows(BINARY, 300)
    data = make_data(levels, BINARY, seen)
    rows, model = make_memory_rows(data), TreeMixture(1, tol=1e-7)
    earlier = fit_model(model, rows, SERIAL)
    first = collect_first_statistics(model, rows, SERIAL, 0)
    begun = start_fit(model, first, rows, SERIAL, 0, initial_params=earlier.params)
    np.testing.assert_array_equal(begun.params.tables, earlier.params.tables)
    again = fit_model(model, rows, SERIAL, state=begun)
    assert len(again.history) < len(earlier.history) / 2
    assert again.history[-1] >= earlier.history[-1]
    # Another feature is the parent where the tree of more rows has other edges.
    other = replace(earlier.params, parents=np.roll(earlier.params.parents, 1, axis=1))
    begun = start_fit(model, first, rows, SERIAL, 0, initial_params=other)
    np.testing.assert_array_equal(begun.params.parents, earlier.params.parents)
    is_new = begun.params.parents[0] != other.parents[0]
    independent = begun.params.compute_independent_tables(begun.params.parents[0])
    expected = normalize_tables(independent)[is_new]
    np.testing.assert_allclose(begun.params.tables[0, is_new], expected, atol=1e-15)


def test_parents_in_a_cycle_are_refused() -> None:
    with pytest.raises(FitError, match="cycle"):
        order_from_root(np.array([ROOT, 2, 1]))
    with pytest.raises(FitError, match="not features"):
        order_from_root(np.array([ROOT, 2, 3]))
