"""C₂ and S-X² against their definitions, with all patterns of a few items written out."""

from __future__ import annotations

from itertools import combinations, product
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.models.latent_trait.em import ItemKind
from pipeline.models.latent_trait.fit_statistics import compute_m2_fit
from pipeline.models.latent_trait.levels.design import make_level_design
from pipeline.models.latent_trait.levels.fit_statistics import LevelModel, compute_c2_fit
from pipeline.models.latent_trait.levels.item_fit import (
    compare_cells,
    compute_level_shares_by_score,
)
from pipeline.numerics.logistic.categories.curves import LevelItems, compute_level_probabilities
from pipeline.numerics.logistic.latent_nodes import Nodes, gauss_hermite

Floats = NDArray[np.float64]


def list_patterns(n_planes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([*product(*(range(m + 1) for m in n_planes))])


def list_planes(patterns: NDArray[np.int64], n_planes: NDArray[np.int64]) -> Floats:
    columns = [patterns[:, i] >= j for i, m in enumerate(n_planes) for j in range(1, m + 1)]
    return np.stack(columns, axis=1).astype(float)


def compute_pattern_shares(items: LevelItems, nodes: Nodes) -> Floats:
    P = compute_level_probabilities(items, nodes.points)
    firsts = np.cumsum(items.n_planes + 1) - items.n_planes - 1
    patterns = list_patterns(items.n_planes)
    return np.exp(nodes.log_weights) @ P[:, firsts + patterns].prod(axis=2)


def make_items(n_planes: NDArray[np.int64], q: int, kind: ItemKind) -> LevelModel:
    rng = np.random.default_rng([*n_planes, q])
    counts = np.ones(int(n_planes.sum()) + len(n_planes))
    has_equal_slopes = kind == "rating-scale"
    design = make_level_design(counts, n_planes, q, kind, has_equal_slopes)
    offsets = np.concatenate([np.sort(rng.normal(0, 1, m))[::-1] for m in n_planes])
    slopes = np.repeat(rng.normal(0.8, 0.4, (len(n_planes), q)), n_planes, axis=0)
    if kind == "nominal":
        slopes = rng.normal(0.8, 0.4, slopes.shape)
    forms = design.fill(design.collect(np.column_stack([slopes, offsets])))
    items = LevelItems(forms[:, :-1], forms[:, -1], n_planes, kind == "graded")
    return LevelModel.from_jacobian(design.matrix, items, gauss_hermite(21, q), counts)


@pytest.mark.parametrize(
    ("kind", "q"), [*((kind, 1) for kind in get_args(ItemKind)), ("graded", 2)]
)
def test_c2_is_the_definition(kind: ItemKind, q: int) -> None:
    n_planes = np.array([2, 1, 3, 2, 2, 1])
    model = make_items(n_planes, q, kind)
    patterns = list_patterns(n_planes)
    planes, scores = list_planes(patterns, n_planes), patterns.astype(float)
    pairs = [scores[:, a] * scores[:, b] for a, b in combinations(range(len(n_planes)), 2)]
    chosen = np.column_stack([planes, *pairs])
    rng, n_rows = np.random.default_rng(1), 700
    counts = rng.multinomial(n_rows, rng.dirichlet(np.ones(len(patterns))))

    def compute_shares(forms: Floats) -> Floats:
        packed = forms.reshape(-1, q + 1)
        items = model.items._replace(weights=packed[:, :-1], offsets=packed[:, -1])
        return compute_pattern_shares(items, model.nodes)

    forms = np.column_stack([model.items.weights, model.items.offsets]).reshape(-1)
    P, h = compute_shares(forms), 1e-6
    steps = h * model.jacobian.toarray().T
    delta = np.stack(
        [(compute_shares(forms + s) - compute_shares(forms - s)) @ chosen / (2 * h) for s in steps],
        axis=1,
    )
    rank = len(steps) - (q == 2)
    delta = np.linalg.svd(delta)[0][:, :rank]
    pi = P @ chosen
    inverse = np.linalg.inv((chosen.T * P) @ chosen - np.outer(pi, pi))
    C = inverse - inverse @ delta @ np.linalg.inv(delta.T @ inverse @ delta) @ delta.T @ inverse
    e = counts @ chosen / n_rows - pi
    both = ((planes.T * counts) @ planes).astype(np.int64)
    found = compute_c2_fit(both, n_rows, model, rank)
    assert found.m2 == pytest.approx(n_rows * e @ C @ e, rel=1e-4, abs=1e-8)
    assert found.df == chosen.shape[1] - rank


def test_c2_of_binary_items_is_m2() -> None:
    model = make_items(np.ones(6, np.int64), 1, "graded")
    rng = np.random.default_rng(2)
    X = (rng.random((500, 6)) < rng.random((500, 1))).astype(np.int64)
    items, nodes = model.items, model.nodes
    expected = compute_m2_fit(X.T @ X, 500, items.weights, items.offsets, nodes, 12)
    found = compute_c2_fit(X.T @ X, 500, model, 12)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("turned", [(), (0, 2)])
@pytest.mark.parametrize("kind", ["graded", "nominal"])
def test_shares_by_score_are_those_of_all_patterns(kind: ItemKind, turned: tuple[int]) -> None:
    n_planes = np.array([2, 1, 3, 2])
    model = make_items(n_planes, 1, kind)
    P, patterns = compute_pattern_shares(model.items, model.nodes), list_patterns(n_planes)
    is_reversed = np.isin(np.arange(len(n_planes)), turned)
    total = np.where(is_reversed, n_planes - patterns, patterns).sum(axis=1)
    expected = [
        [P[(total == k) & (patterns[:, i] == c)].sum() / P[total == k].sum() for k in range(9)]
        for i, m in enumerate(n_planes)
        for c in range(m + 1)
    ]
    found = compute_level_shares_by_score(model.items, model.nodes, is_reversed)
    np.testing.assert_allclose(found, np.array(expected).T, atol=1e-12)


def test_s_x2_without_rare_cells_is_the_definition() -> None:
    rng = np.random.default_rng(4)
    expected = rng.uniform(5, 9, (9, 3))
    observed = np.round(expected + rng.normal(0, 1, expected.shape))
    inner = [np.stack([e[1:3].sum(0), *e[3:6], e[6:8].sum(0)]) for e in (observed, expected)]
    value, n_free = compare_cells(observed, expected)
    assert value == pytest.approx(((inner[0] - inner[1]) ** 2 / inner[1]).sum())
    assert n_free == 5 * 2
