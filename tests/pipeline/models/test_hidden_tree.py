"""Hidden trees, against enumeration of rows and states."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
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
    initialize_fit,
    start_fit,
)
from pipeline.models.state import FitState
from pipeline.models.trees import feature_tree, hidden_tree
from pipeline.models.trees.feature_tree import find_edges
from pipeline.models.trees.hidden_start import find_noisy_tree
from pipeline.models.trees.hidden_tree import HiddenTree, HiddenTreeParams
from pipeline.numerics.trees.dependence import sum_information
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    find_maximum_spanning_tree,
    move_root_to_center,
)
from pipeline.numerics.trees.state_pairs import fit_state_pairs
from pipeline.params import get_named_arrays
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
    list_spanning_trees,
    list_states,
)
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows
from tests.support.values import make_data, make_model

Array = NDArray[np.float64]
Levels = NDArray[np.uint8]
SERIAL = SerialExecutor()
BINARY, SEVERAL = (2,) * 7, (2, 3, 4, 2, 3)


def draw_params(
    sizes: tuple[int, ...], n_states: int, n_trees: int, seed: int = 0
) -> HiddenTreeParams:
    """A random tree with random tables."""
    rng, n = np.random.default_rng(seed), len(sizes)
    order = rng.permutation(n)
    parents = np.full(n, ROOT)
    for place in range(1, n):
        parents[order[place]] = rng.choice(order[:place])
    transitions = rng.dirichlet(np.ones(n_states), (n_trees, n, n_states))
    transitions[:, order[0]] = 0.0
    emissions = np.zeros((n_trees, n, n_states, max(sizes)))
    for i, size in enumerate(sizes):
        emissions[:, i, :, :size] = rng.dirichlet(np.full(size, 0.5), (n_trees, n_states))
    return HiddenTreeParams(
        rng.dirichlet(np.ones(n_states), n_trees).ravel() / n_trees,
        parents,
        transitions,
        emissions,
        np.concatenate([np.full(size, 1 / size) for size in sizes]),
        None if set(sizes) == {2} else np.array(sizes),
    )


def enumerate_joint(
    params: HiddenTreeParams, tree: int, sizes: tuple[int, ...]
) -> tuple[JointTable, Levels]:
    """Return P(x, z) in one tree by the definition, and all z, (n_states in all, n_features)."""
    rows, states = list_states(sizes), list_states((params.n_states,) * len(sizes))
    prior, likelihood = np.ones(len(states)), np.ones((len(rows), len(states)))
    for i, parent in enumerate(params.parents.tolist()):
        if parent == ROOT:
            prior *= params.root_weights[tree, states[:, i]]
        else:
            prior *= params.transitions[tree, i, states[:, parent], states[:, i]]
        likelihood *= params.emissions[tree, i][states[:, i]][:, rows[:, i]].T
    return JointTable(rows, likelihood * prior), states


def fit_tree(sizes: tuple[int, ...], data: DenseData, **settings: Any) -> FitState:
    return fit_model(make_model(HiddenTree, sizes, **settings), make_memory_rows(data), SERIAL)


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_likelihoods_codes_and_imputed_values_are_those_of_enumeration(
    sizes: tuple[int, ...],
) -> None:
    params, model = draw_params(sizes, 3, 2), HiddenTree()
    root, by_root = params.parents.tolist().index(ROOT), []
    for tree in range(2):
        table, states = enumerate_joint(params, tree, sizes)
        by_root += [table.joint[:, states[:, root] == s].sum(axis=1) / 2 for s in range(3)]
    table = JointTable(table.rows, np.stack(by_root, axis=1))
    assert table.joint.sum() == pytest.approx(1, abs=1e-12)
    levels, seen = draw_incomplete_rows(sizes, 70)
    block = make_data(levels, sizes, seen).pack()
    nats = model.log_likelihood(params, block, RowRandom(0)).nats
    check_rows(table, levels, seen, nats, model.transform(params, block, RowRandom(0))["mean"])
    planes = model.impute(params, block, RowRandom(0))
    expected = [table.impute(*row) for row in zip(levels, seen, strict=True)]
    np.testing.assert_allclose(planes, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", [BINARY, SEVERAL])
def test_expected_counts_are_those_of_enumeration(sizes: tuple[int, ...]) -> None:
    params = draw_params(sizes, 3, 2)
    levels, seen = draw_incomplete_rows(sizes, 70)
    weights = np.random.default_rng(2).integers(0, 4, len(levels))
    (block,) = make_memory_blocks(replace(make_data(levels, sizes, seen), weights=weights))
    working = {"held_out": np.array(0.0)}
    sums = HiddenTree().summarize(params, working, block, RowRandom(0))
    for tree in range(2):
        table, states = enumerate_joint(params, tree, sizes)
        names = ("roots", "edges", "levels")
        expected = {name: np.zeros_like(sums.values[name][tree]) for name in names}
        for n in range(len(levels)):
            posterior = table.sum_states(levels[n], seen[n])
            posterior *= weights[n] / posterior.sum()
            for i, parent in enumerate(params.parents.tolist()):
                own = states[:, i]
                if parent == ROOT:
                    np.add.at(expected["roots"], own, posterior)
                else:
                    np.add.at(expected["edges"][i], (states[:, parent], own), posterior)
                if seen[n, i]:
                    np.add.at(expected["levels"][i, :, levels[n, i]], own, posterior)
        for name in names:
            found = sums.values[name][tree]
            np.testing.assert_allclose(found, expected[name], rtol=0, atol=1e-11, err_msg=name)


def count_pairs(sizes: tuple[int, ...], data: DenseData) -> PairCounts:
    first = collect_first_statistics(
        make_model(HiddenTree, sizes), make_memory_rows(data), SERIAL, 0
    )
    assert isinstance(first, PairCounts)
    return first


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_tree_is_the_best_of_all_trees(is_complete: bool) -> None:
    """Of the 125 labelled trees of 5 features, by their Prüfer codes."""
    rng = np.random.default_rng(3)
    latent = rng.standard_normal((3000, 2)) @ rng.standard_normal((2, 5))
    noisy = latent + 0.7 * rng.standard_normal(latent.shape)
    levels = np.stack(
        [
            np.digitize(x, np.linspace(-1, 1, size - 1))
            for x, size in zip(noisy.T, SEVERAL, strict=True)
        ],
        axis=1,
    ).astype(np.uint8)
    seen = rng.random(levels.shape) < (1.0 if is_complete else [0.9, 0.3, 0.6, 0.9, 0.4])
    data = make_data(levels, SEVERAL, None if is_complete else seen)
    pairs = count_pairs(SEVERAL, data)
    weights = np.zeros((5, 5))
    for i, j in product(range(5), repeat=2):
        both = seen[:, i] & seen[:, j]
        table = np.histogram2d(levels[both, i], levels[both, j], bins=(SEVERAL[i], SEVERAL[j]))[0]
        independent = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        weights[i, j] = scipy.special.rel_entr(table, independent).sum() / len(levels)
    edges = find_edges(pairs, np.array(SEVERAL))
    assert len(edges.left) == 4
    best = max(sum(weights[pair] for pair in tree) for tree in list_spanning_trees(5))
    assert weights[edges.left, edges.right].sum() == pytest.approx(best, abs=1e-10)
    for i, j, information, correlation in zip(*edges, strict=True):
        assert information == pytest.approx(weights[i, j], abs=1e-12)
        both = seen[:, i] & seen[:, j]
        expected = np.corrcoef(levels[both][:, [i, j]].T)[0, 1]
        assert correlation == pytest.approx(expected, abs=1e-12)


def test_the_root_is_in_the_middle() -> None:
    rng = np.random.default_rng(4)
    for n in (1, 2, 3, 10, 25):
        parents = np.array([ROOT, *(rng.integers(0, i) for i in range(1, n))])
        moved = move_root_to_center(parents)
        edges = [
            {frozenset((i, int(p))) for i, p in enumerate(own) if p != ROOT}
            for own in (parents, moved)
        ]
        assert edges[0] == edges[1]
        distances = np.full((n, n), np.inf)
        np.fill_diagonal(distances, 0)
        for i, j in edges[0]:
            distances[i, j] = distances[j, i] = 1
        reach = scipy.sparse.csgraph.floyd_warshall(distances).max(axis=1)
        assert reach[moved.tolist().index(ROOT)] == reach.min()


def compute_shares(params: HiddenTreeParams, sizes: tuple[int, ...]) -> Array:
    """P(x) of all rows."""
    block = make_data(list_states(sizes), sizes).pack()
    return np.exp(HiddenTree().log_likelihood(params, block, RowRandom(0)).nats)


def test_the_model_of_several_trees_is_the_mean_of_them() -> None:
    levels, _ = draw_incomplete_rows(BINARY, 400)
    params = fit_tree(BINARY, make_data(levels, BINARY), states=4, trees=3, max_iter=20).params
    assert params.weights.shape == (12,)
    shares = []
    for tree in range(3):
        table, _ = enumerate_joint(params, tree, BINARY)
        shares.append(table.joint.sum(axis=1))
    assert np.abs(shares[0] - shares[1]).max() > 1e-4
    np.testing.assert_allclose(compute_shares(params, BINARY), np.mean(shares, axis=0), atol=1e-14)


def test_edges_have_the_dependence_of_enumeration() -> None:
    params, every = draw_params(SEVERAL, 3, 2), list_states(SEVERAL)
    shares = compute_shares(params, SEVERAL)
    (tree,) = HiddenTree().get_trees(params)
    assert tree.weight == 1
    for i, parent in enumerate(tree.parents.tolist()):
        found = tree.mutual_information[i], tree.correlation[i]
        if parent == ROOT:
            assert np.isnan(found).all()
            continue
        expected = compute_pair_dependence(every, shares, parent, i)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_reconstructions_are_means_over_the_rows_of_a_component() -> None:
    params, every = draw_params(SEVERAL, 3, 2), list_states(SEVERAL)
    block = make_data(every, SEVERAL).pack()
    codes = HiddenTree().transform(params, block, RowRandom(0))["mean"]
    joint = codes * compute_shares(params, SEVERAL)[:, None]
    np.testing.assert_allclose(joint.sum(axis=0), params.weights, atol=1e-14)
    expected = (joint / params.weights).T @ block.unpack_values()
    found = HiddenTree().reconstruct(params, np.eye(6))
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_many_children_outweigh_those_before_them() -> None:
    """Of a star of 3,000 features, the last ones favour one state, and more of the others not."""
    n, stays = 3000, np.array([[0.99, 0.01], [0.01, 0.99]])
    emissions = np.array([[0.9, 0.1], [0.1, 0.9]])
    parents = np.array([ROOT, *np.zeros(n - 1, np.int64)])
    params = HiddenTreeParams(
        np.array([0.5, 0.5]),
        parents,
        np.tile(stays, (1, n, 1, 1)) * (parents != ROOT)[:, None, None],
        np.tile(emissions, (1, n, 1, 1)),
        np.full(2 * n, 0.5),
    )
    is_last = np.arange(n) >= 0.8 * n
    X = np.stack([is_last, ~is_last, np.arange(n) % 2]).astype(np.uint8)
    block, model, rng = DenseData(X).pack(), HiddenTree(), RowRandom(0)
    by_level = np.log(np.stack([emissions, *[stays @ emissions] * (n - 1)]))
    by_state = np.log(0.5) + np.stack([by_level[np.arange(n), :, row].sum(axis=0) for row in X])
    expected = scipy.special.logsumexp(by_state, axis=1)
    nats = model.log_likelihood(params, block, rng).nats
    np.testing.assert_allclose(nats, expected, rtol=1e-12)
    posterior = np.exp(by_state - expected[:, None])
    codes = model.transform(params, block, rng)["mean"]
    np.testing.assert_allclose(codes, posterior, rtol=1e-9)
    sums = model.summarize(params, {"held_out": np.array(0.0)}, block, rng)
    np.testing.assert_allclose(sums.values["roots"][0], posterior.sum(axis=0), rtol=1e-9)
    assert sums.objective == pytest.approx(expected.sum(), rel=1e-12)


def test_states_of_noisy_features_have_the_joint_probabilities_that_made_the_counts() -> None:
    rng = np.random.default_rng(2)
    emissions = np.zeros((3, 2, 3))
    sizes, firsts = (2, 3, 3), np.array([0, 2, 5, 8])
    for i, size in enumerate(sizes):
        emissions[i, :, :size] = rng.dirichlet(np.ones(size), 2)
    pairs, begun = (
        rng.dirichlet(np.ones(4), (3, 3)).reshape(3, 3, 2, 2),
        np.full((3, 3, 2, 2), 0.25),
    )
    counts = np.zeros((8, 8))
    for i, j in ((0, 1), (0, 2)):
        table = emissions[i].T @ pairs[i, j] @ emissions[j]
        counts[firsts[i] : firsts[i + 1], firsts[j] : firsts[j + 1]] = (
            1000 * table[: sizes[i], : sizes[j]]
        )
    fit_state_pairs(counts, firsts, emissions, 20_000, begun)
    np.testing.assert_allclose(begun[0, 1:], pairs[0, 1:], atol=5e-3)
    assert (begun[1, 2] == 0.25).all()  # no row has observed both


@pytest.mark.parametrize("n_rows", [1e4, 1e9])
def test_the_tree_behind_noisy_features_is_found_from_counts_of_pairs(n_rows: float) -> None:
    n = 13  # a path of features with much and little noise
    parents = np.arange(-1, n - 1)
    transitions = np.zeros((1, n, 2, 2))
    transitions[0, 1:] = 0.9 * np.eye(2) + 0.05
    noise = np.where(np.arange(n) % 2, 0.02, 0.25)
    emissions = np.stack([[[1 - a, a], [a, 1 - a]] for a in noise])[None]
    truth = HiddenTreeParams(np.full(2, 0.5), parents, transitions, emissions, np.full(2 * n, 0.5))
    pairs = truth.compute_state_pairs()
    tables = np.einsum("isa,ijst,jtb->iajb", emissions[0], pairs, emissions[0])
    for i in range(n):
        tables[i, :, i] = np.eye(2) / 2
    cells = n_rows * tables.reshape(2 * n, 2 * n)
    observed = sum_information(cells, np.full(n, 2), np.full(n, 2)) / n_rows
    noisy, correlation = find_noisy_tree(cells, np.full(n, 2))
    chow_liu = find_maximum_spanning_tree(observed)
    assert find_neighbours(noisy) == find_neighbours(parents) != find_neighbours(chow_liu)
    i = int(np.flatnonzero(noisy != ROOT)[0])
    assert correlation[i] == pytest.approx(4 * tables[i, 1, noisy[i], 1] - 1)


def find_neighbours(parents: NDArray[np.int64]) -> set[frozenset[int]]:
    """Pairs of features that a tree joins."""
    return {frozenset((i, j)) for i, j in enumerate(parents.tolist()) if j != ROOT}


@pytest.mark.parametrize("design", ["complete", "20 % missing", "ring of 3 forms"])
def test_a_fit_is_not_below_the_truth_if_noise_hides_the_tree(design: str) -> None:
    rng, n = np.random.default_rng(2), 12
    parents = np.array([ROOT, *(rng.integers(max(0, i - 3), i) for i in range(1, n))])
    transitions = np.zeros((1, n, 2, 2))
    transitions[0, 1:] = 0.9 * np.eye(2) + 0.05
    noise = rng.uniform(0, 0.3, (n, 2))
    emissions = np.stack([[[1 - a, a], [b, 1 - b]] for a, b in noise])[None]
    weights, margins = np.full(2, 0.5), np.full(2 * n, 0.5)
    truth = HiddenTreeParams(weights, parents, transitions, emissions, margins)
    X = HiddenTree().sample(truth, 1200, rng)
    seen = DESIGNS[design](len(X), n, rng)
    data = DenseData(X * seen, None if seen.all() else seen.astype(np.uint8))
    found, tree = fit_tree((2,) * n, data, states=2), fit_tree((2,) * n, data, states=2, starts=1)
    nats = [
        HiddenTree().log_likelihood(params, data.pack(0), RowRandom(0)).nats.sum()
        for params in (found.params, tree.params, truth)
    ]
    assert nats[0] > nats[2] > nats[1]


def test_held_out_rows_choose_the_number_of_states() -> None:
    params = draw_params(BINARY, 4, 1, seed=7)
    X = HiddenTree().sample(params, 4000, np.random.default_rng(0))
    state = fit_tree(BINARY, DenseData(X))
    scores = state.diagnostics["held_out_scores"]
    assert state.params.n_states == 2 ** int(np.argmax(scores)) > 1
    assert len(scores) < 7


def test_a_warm_start_keeps_the_tree_of_the_earlier_fit() -> None:
    params = draw_params(BINARY, 2, 1, seed=8)
    X = HiddenTree().sample(params, 3000, np.random.default_rng(0))
    earlier = fit_tree(BINARY, DenseData(X[:200]), states=2).params
    model, rows = HiddenTree(states=2), make_memory_rows(DenseData(X))
    first = collect_first_statistics(model, rows, SERIAL, 0)
    begun = model.warm_start(initialize_fit(model, first, 0), earlier)
    again = fit_model(model, rows, SERIAL, state=begun)
    np.testing.assert_array_equal(again.params.parents, earlier.parents)
    assert again.history[-1] > again.history[0] + 1e-3
    for model in (HiddenTree(1), HiddenTree(2, trees=2), HiddenTree(trees=2)):
        with pytest.raises(FitError, match="with states=2 and trees=1"):
            model.warm_start(begun, earlier)


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert HiddenTree(6, trees=3).n_states == 2
    assert HiddenTree(6, states=2, trees=3).n_states == 2
    assert HiddenTree(states=2, trees=3).n_states == 2
    assert HiddenTree().n_states is None
    with pytest.raises(FitError, match=r"^components is 7, .* a multiple of 3\."):
        HiddenTree(7, trees=3)
    with pytest.raises(FitError, match=r"^components is 6, but states=4 and trees=2 make 8 "):
        HiddenTree(6, states=4, trees=2)
    with pytest.raises(FitError, match=r"^states must be at most 64, but is 100: .* 80 kB"):
        HiddenTree(states=100)
    with pytest.raises(FitError, match=r"^components must be at most 64, but is 65: .* 34 kB"):
        HiddenTree(65)
    with pytest.raises(FitError, match=r"^components must be at most 128, but is 130: .* 34 kB"):
        HiddenTree(130, trees=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"^The dataset has only 5 rows; choosing states needs .* Set states to a number\."),
        ({"states": 6}, r"^states is 6, but the dataset has only 5 rows\. Choose at most 5\."),
        ({"n_components": 12, "trees": 2}, r"^components is 12, .* Choose at most 10\."),
    ],
)
def test_too_few_rows_are_refused(settings: dict[str, Any], message: str) -> None:
    data = make_data(list_states(BINARY)[:5], BINARY)
    with pytest.raises(FitError, match=message):
        fit_tree(BINARY, data, **settings)


@pytest.mark.parametrize(
    ("kind", "sizes", "is_complete"),
    [
        (None, (2,), True),
        ("sampling", (2,), False),
        ("frequency", (2, 2, 2, 2, 2, 3, 2, 4), False),
        (None, (2, 2, 2, 2, 2, 3, 2, 4), True),
    ],
)
def test_strips_give_the_fit_of_one_table(
    kind: WeightKind | None,
    sizes: tuple[int, ...],
    is_complete: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where edges have equal weights."""
    n_features, rng = 88, np.random.default_rng(4)
    sizes *= n_features // len(sizes)
    levels = draw_wide_rows(sizes, 500, 4)
    seen = None if is_complete else rng.random(levels.shape) < 0.9
    weights = None if kind is None else rng.integers(0, 4, len(levels)) * 1.0
    data = replace(make_data(levels, sizes, seen), weights=weights)
    rows = make_memory_rows(data, [100, 400], kind=kind or "frequency")
    settings = {"states": 2, "trees": 2, "max_iter": 4}
    expected = fit_model(make_model(HiddenTree, sizes, **settings), rows, SERIAL)
    monkeypatch.setattr(hidden_tree, "MAX_SQUARE_FEATURES", 50)
    monkeypatch.setattr(feature_strips, "_MAX_STRIP_HEIGHT", 64)
    monkeypatch.setattr(feature_tree, "_TABLE_CELLS", 2000)  # several tables per strip
    found = fit_model(make_model(HiddenTree, sizes, **settings), rows, SERIAL)
    for name, (_, values) in get_named_arrays(expected.params).items():
        np.testing.assert_allclose(getattr(found.params, name), values, rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.history, expected.history, rtol=1e-12)
    assert found.diagnostics == expected.diagnostics
    assert [w.text for w in found.warnings] == [w.text for w in expected.warnings]


def test_a_warm_start_of_strips_counts_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (2,) * 30
    rows = make_memory_rows(make_data(draw_wide_rows(sizes, 200, 5), sizes))
    monkeypatch.setattr(hidden_tree, "MAX_SQUARE_FEATURES", 20)
    wide = make_model(HiddenTree, sizes, states=2, max_iter=4)
    found = fit_model(wide, rows, SERIAL)
    first = collect_first_statistics(wide, rows, SERIAL, 0)
    monkeypatch.setattr(hidden_tree, "find_strip_edges", None)
    begun = start_fit(wide, first, rows, SERIAL, 0, initial_params=found.params)
    warm = fit_model(wide, rows, SERIAL, state=begun)
    np.testing.assert_array_equal(warm.params.parents, found.params.parents)
    assert warm.history[0] >= found.history[-1]
