"""M₂, C₂ and S-X² against their definitions, with all patterns of a few items written out."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait import error_sums
from pipeline.models.latent_trait.design import make_level_design
from pipeline.models.latent_trait.fit_statistics import FittedItems, compute_m2_fit
from pipeline.models.latent_trait.item_fit import (
    compare_binary_cells,
    compare_cells,
    compute_shares_by_score,
)
from pipeline.models.latent_trait.params import ItemKind
from pipeline.numerics.bits.kernels import pack_rows
from pipeline.numerics.logistic.asymptotes import Asymptotes
from pipeline.numerics.logistic.categories.curves import LevelItems, compute_level_probabilities
from pipeline.numerics.logistic.latent_nodes import Nodes, gauss_hermite
from tests.pipeline.models.latent_trait.test_model import fitted

Floats = NDArray[np.float64]
BINARY, MIXED = (1, 1, 1, 1, 1, 1), (2, 1, 3, 2, 2, 1)


def list_patterns(n_planes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([*product(*(range(m + 1) for m in n_planes))])


def list_planes(patterns: NDArray[np.int64], n_planes: NDArray[np.int64]) -> Floats:
    columns = [patterns[:, i] >= j for i, m in enumerate(n_planes) for j in range(1, m + 1)]
    return np.stack(columns, axis=1).astype(float)


def compute_pattern_shares(items: LevelItems, nodes: Nodes) -> Floats:
    P = compute_level_probabilities(items, nodes.points)
    firsts = np.cumsum(items.n_planes + 1) - items.n_planes - 1
    patterns = list_patterns(items.n_planes)
    shares: Floats = np.exp(nodes.log_weights) @ P[:, firsts + patterns].prod(axis=2)
    return shares


def make_items(
    n_planes: NDArray[np.int64], q: int, kind: ItemKind, has_equal_slopes: bool = False
) -> FittedItems:
    rng = np.random.default_rng([*n_planes, q])
    counts = np.ones(int(n_planes.sum()) + len(n_planes))
    design = make_level_design(counts, n_planes, q, kind, has_equal_slopes)
    offsets = np.concatenate([np.sort(rng.normal(0, 1, m))[::-1] for m in n_planes])
    slopes = np.repeat(rng.normal(0.8, 0.4, (len(n_planes), q)), n_planes, axis=0)
    if kind == "nominal":
        slopes = rng.normal(0.8, 0.4, slopes.shape)
    forms = design.fill(design.collect(np.column_stack([slopes, offsets])))
    items = LevelItems(forms[:, :-1], forms[:, -1], n_planes, kind == "graded")
    return FittedItems.from_jacobian(design.matrix, items, gauss_hermite(21, q), counts)


def add_asymptotes(model: FittedItems) -> FittedItems:
    n = len(model.features)
    asymptotes = Asymptotes(np.linspace(0.1, 0.2, n), np.linspace(0.1, 0.03, n))
    jacobian = np.zeros((n, 4, 3 * n + 1))
    for i in range(n):  # all items share the upper asymptote
        jacobian[i, [0, 1, 2, 3], [3 * i, 3 * i + 1, 3 * i + 2, 3 * n]] = 1
    items = model.items._replace(asymptotes=asymptotes)
    flat = jacobian.reshape(4 * n, -1)
    return model._replace(items=items, jacobian=type(model.jacobian)(flat))


def pack(items: LevelItems) -> Floats:
    forms = [items.weights, items.offsets]
    if items.asymptotes is not None:
        forms += [logit(value) for value in items.asymptotes]
    return np.column_stack(forms)


def unpack(packed: Floats, items: LevelItems) -> LevelItems:
    q = items.weights.shape[1]
    items = items._replace(weights=packed[:, :q], offsets=packed[:, q])
    if items.asymptotes is None:
        return items
    return items._replace(asymptotes=Asymptotes(*expit(packed[:, q + 1 :]).T))


@pytest.mark.parametrize(
    ("model", "rank"),
    [
        (make_items(np.array(MIXED), 1, "graded"), 17),
        (make_items(np.array(MIXED), 1, "partial-credit"), 17),
        (make_items(np.array(MIXED), 1, "rating-scale", has_equal_slopes=True), None),
        (make_items(np.array(MIXED), 1, "nominal"), 22),
        (make_items(np.array(MIXED), 2, "graded"), 22),
        (make_items(np.array(BINARY), 1, "graded"), 12),
        (make_items(np.array(BINARY), 2, "graded"), 17),
        (make_items(np.array(BINARY), 1, "graded", has_equal_slopes=True), 7),
        (add_asymptotes(make_items(np.array(BINARY), 1, "graded")), 19),
    ],
)
def test_m2_is_the_definition(model: FittedItems, rank: int | None) -> None:
    n_planes, n_rows = model.items.n_planes, 700
    patterns = list_patterns(n_planes)
    planes, scores = list_planes(patterns, n_planes), patterns.astype(float)
    pairs = [scores[:, a] * scores[:, b] for a, b in combinations(range(len(n_planes)), 2)]
    chosen = np.column_stack([planes, *pairs])
    counts = np.random.default_rng(1).multinomial(
        n_rows, np.random.default_rng(2).dirichlet(np.ones(len(patterns)))
    )
    forms = pack(model.items)

    def compute_moments(change: Floats) -> Floats:
        items = unpack(forms + change.reshape(forms.shape), model.items)
        return np.asarray(compute_pattern_shares(items, model.nodes) @ chosen)

    P, h = compute_pattern_shares(model.items, model.nodes), 1e-6
    steps = h * model.jacobian.toarray().T
    delta = np.stack(
        [(compute_moments(step) - compute_moments(-step)) / (2 * h) for step in steps], axis=1
    )
    rank = len(steps) if rank is None else rank
    delta = np.linalg.svd(delta)[0][:, :rank]  # without rotations of the components
    pi = P @ chosen
    inverse = np.linalg.inv((chosen.T * P) @ chosen - np.outer(pi, pi))
    C = inverse - inverse @ delta @ np.linalg.inv(delta.T @ inverse @ delta) @ delta.T @ inverse
    e = counts @ chosen / n_rows - pi
    both = ((planes.T * counts) @ planes).astype(np.int64)
    found = compute_m2_fit(both, n_rows, model, rank)
    assert found is not None
    assert found.m2 == pytest.approx(n_rows * e @ C @ e, rel=1e-4, abs=1e-8)
    assert found.df == chosen.shape[1] - rank


def test_equal_slopes_do_not_fit_items_with_other_slopes() -> None:
    rng = np.random.default_rng(3)
    x, slopes = rng.normal(size=(2000, 1)), np.array([0.3, 0.5, 1.0, 1.5, 2.5, 3.0])
    X = (rng.random((2000, 6)) < expit(x * slopes)).astype(np.uint8)
    p = [
        fitted(X, n_components=1, equal_slopes=equal).diagnostics["fit_statistics"]["m2_p"]
        for equal in ("yes", "no")
    ]
    assert p[0] < 1e-10 < 0.01 < p[1]


@pytest.mark.parametrize("turned", [(), (0, 2)])
@pytest.mark.parametrize("kind", ["graded", "nominal"])
@pytest.mark.parametrize(("n_planes", "q"), [((2, 1, 3, 2), 1), ((1, 1, 1), 1), ((1,) * 5, 2)])
def test_shares_by_score_are_those_of_all_patterns(
    n_planes: tuple[int, ...], q: int, kind: ItemKind, turned: tuple[int]
) -> None:
    own = np.array(n_planes)
    model = make_items(own, q, kind)
    P, patterns = compute_pattern_shares(model.items, model.nodes), list_patterns(own)
    is_reversed = np.isin(np.arange(len(own)), turned)
    total = np.where(is_reversed, own - patterns, patterns).sum(axis=1)
    expected = [
        [P[(total == k) & (patterns[:, i] == c)].sum() / P[total == k].sum() for k in set(total)]
        for i, m in enumerate(own)
        for c in range(m + 1)
    ]
    found = compute_shares_by_score(model.items, model.nodes, is_reversed)
    np.testing.assert_allclose(found, np.array(expected).T, atol=1e-12)


def test_many_even_items_stay_precise() -> None:
    """Items of P = 1/2 bring the characteristic function next to 0."""
    items = LevelItems.from_binary(np.zeros((301, 1)), np.zeros(301))
    found = compute_shares_by_score(items, gauss_hermite(5, 1), np.zeros(301, np.bool_))
    np.testing.assert_allclose(
        found[130:170, 1::2], (np.arange(130, 170) / 301)[:, None] + np.zeros(301), atol=1e-9
    )


def test_binary_cells_with_too_few_rows_are_merged_with_the_next() -> None:
    expected = np.array([[9, 0], [5, 0.4], [2, 0.7], [3, 3], [0.5, 4], [0, 9]])
    observed = np.array([[9, 0], [5, 1], [3, 0], [2, 4], [1, 3], [0, 9]])
    value, n_free = compare_binary_cells(observed, expected)
    cells = np.array([[7, 1.1], [3.5, 7]])
    assert value == pytest.approx(((np.array([[8, 1], [3, 7]]) - cells) ** 2 / cells).sum())
    assert n_free == 2
    assert compare_binary_cells(observed[:3], expected[:3]) == (0.0, 0)


def test_s_x2_without_rare_cells_is_the_definition() -> None:
    rng = np.random.default_rng(4)
    expected = rng.uniform(5, 9, (9, 3))
    observed = np.round(expected + rng.normal(0, 1, expected.shape))
    inner = [np.stack([e[1:3].sum(0), *e[3:6], e[6:8].sum(0)]) for e in (observed, expected)]
    value, n_free = compare_cells(observed, expected)
    assert value == pytest.approx(((inner[0] - inner[1]) ** 2 / inner[1]).sum())
    assert n_free == 5 * 2


def simulate_items(seed: int, missing: float, n_items: int = 10) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    slopes, offsets = rng.uniform(0.7, 2, n_items), rng.normal(size=n_items)
    chances = expit(np.outer(rng.normal(size=1000), slopes) + offsets)
    return rng.random(chances.shape) < chances, rng.random(chances.shape) >= missing


def test_degrees_of_freedom_follow_the_share_of_complete_rows() -> None:
    X, observed = simulate_items(0, 0.1)
    state = fitted(X.astype(np.uint8), observed.astype(np.uint8), n_components=1)
    n_complete = observed.all(axis=1).sum()
    lost = state.params.s_x2_df - np.ceil(state.params.s_x2_df)
    np.testing.assert_allclose(lost % 1, -2 * n_complete / observed.sum(axis=0) % 1, atol=1e-9)
    assert state.diagnostics["fit_statistics"]["s_x2_rows"] == n_complete


def test_constant_items_do_not_change_the_misfit_of_others() -> None:
    X = simulate_items(1, 0.0)[0].astype(np.uint8)
    constant = np.column_stack([np.ones((1000, 2), np.uint8), X, np.zeros((1000, 1), np.uint8)])
    alone = fitted(X, n_components=1).params
    among = fitted(constant, n_components=1, constant_features="keep").params
    np.testing.assert_allclose(among.s_x2[2:-1], alone.s_x2, rtol=1e-3)
    assert np.isnan(among.s_x2_p[[0, 1, -1]]).all()


def test_misfit_of_too_many_items_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_sums, "MAX_ITEMS", 9)
    state = fitted(simulate_items(2, 0.0)[0].astype(np.uint8), n_components=1)
    assert state.params.s_x2 is None
    assert "too many items" in state.diagnostics["fit_statistics"]["s_x2_missing"]


@pytest.mark.parametrize(
    "missing",
    [pytest.param(0.03, marks=pytest.mark.matrix), pytest.param(0.2, marks=pytest.mark.slow)],
)
def test_true_items_are_rejected_at_the_nominal_rate(missing: float) -> None:
    p = []
    for seed in range(60):
        X, observed = simulate_items(seed, missing)
        p.extend(
            fitted(X.astype(np.uint8), observed.astype(np.uint8), n_components=1).params.s_x2_p
        )
    # 600 tests: a standard error of 0.009 at 5 %
    assert 0.025 < np.mean(np.array(p) < 0.05) < 0.075


@pytest.mark.parametrize("n_rows", [0, 1, 130])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_complete_rows_are_counted_by_score(
    n_rows: int, is_weighted: bool, is_masked: bool
) -> None:
    rng = np.random.default_rng(n_rows)
    X, mask = rng.integers(0, 2, (n_rows, 5), np.uint8), np.ones((n_rows, 5), np.uint8)
    mask[::3, 2] = not is_masked
    X &= mask
    weights = rng.integers(0, 4, n_rows) if is_weighted else None
    is_reversed = np.array([False, True, False, False, True])
    observed = mask if is_masked else None
    packed = pack_rows(X), pack_rows(mask) if is_masked else None
    block = BinaryBlock(*packed, n_rows, row_numbers=range(n_rows), weights=weights)
    found = error_sums.count_complete_rows(block, X, observed, is_reversed)
    rows, ones, both = np.zeros(6, np.int64), np.zeros((6, 5), np.int64), np.zeros((5, 5), np.int64)
    for n in np.flatnonzero(mask.all(axis=1)):
        weight, score = 1 if weights is None else weights[n], (X[n] != is_reversed).sum()
        rows[score] += weight
        ones[score] += weight * X[n]
        both += weight * np.outer(X[n], X[n])
    expected = {"both": both, "score_rows": rows, "score_ones": ones}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
