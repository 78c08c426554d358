"""Likelihood-ratio tests of item bias, against R's mirt and direct maximisation."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from flows.evaluating.dif import DifGroups, compute_item_bias
from pipeline.data.blocks import iter_blocks, pack_block
from pipeline.data.datasets import make_row_source
from pipeline.data.features import Feature, make_binary_features, split_levels
from pipeline.errors import FitError
from pipeline.evaluation import item_bias
from pipeline.evaluation.item_bias import (
    GroupFits,
    GroupTestResults,
    GroupTests,
    check_group_tests,
    count_by_score,
    draw_missing_answers,
    group_rows,
    mantel_haenszel,
    run_group_tests,
    run_purified_group_tests,
)
from pipeline.executors.base import SerialExecutor
from pipeline.executors.progress import ignore_progress
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import Items, Traits, make_params
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from tests.support.data import find_reference, write_arrays
from tests.support.strategies import DenseData, make_memory_rows

Array = NDArray[np.float64]
X_NODES = np.linspace(-6, 6, 121)
BIASED = 2
FIRST_GROUPS = {
    "sim2g": "ref",
    "verbal_aggression_gender12": "female",
    "verbal_aggression_gender24": "female",
}


def make_fits(X: NDArray[np.uint8], group: NDArray[Any]) -> GroupFits:
    rows, executor = make_memory_rows(DenseData(X, segments=group)), SerialExecutor()
    first = collect_statistics(FeatureCounts.from_block, rows, executor, "counts")
    features = make_binary_features([f"item{k}" for k in range(X.shape[1])])
    return GroupFits(rows, ("a", "b"), features, first, executor, 0, ignore_progress)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("verbal_aggression_gender12", "drop"),
        pytest.param("verbal_aggression_gender12", "add", marks=pytest.mark.matrix),
        pytest.param("verbal_aggression_gender24", "drop", marks=pytest.mark.matrix),
        pytest.param("sim2g", "drop", marks=pytest.mark.matrix),
        pytest.param("sim2g", "add", marks=pytest.mark.matrix),
    ],
)
def test_chi2_agrees_with_mirt(name: str, scheme: str) -> None:
    """`drop` frees one item more than the common fit, `add` makes one more equal."""
    with find_reference(f"data/{name}.csv").open() as file:
        header, *lines = csv.reader(file)
    with find_reference(f"02_groups/{name}_DIF_{scheme}_a1d.csv").open() as file:
        expected = {row["item"]: row for row in csv.DictReader(file)}
    table, items = np.array(lines), [item for item in header if item != "group"]
    X = table[:, [header.index(item) for item in items]].astype(np.uint8)
    group = (table[:, header.index("group")] != FIRST_GROUPS[name]).astype(np.int64)
    fits = make_fits(X, group)
    tested = [items.index(item) for item in expected]
    tests = run_group_tests(fits, tested if scheme == "add" else ())
    for column, found, tolerance in (("X2", "chi2", 1e-3), ("p", "p", 1e-4)):
        values = [float(row[column]) for row in expected.values()]
        np.testing.assert_allclose(getattr(tests.items, found)[tested], values, atol=tolerance)
    assert (tests.items.df == 2).all()
    assert not tests.unfinished


def test_items_with_several_levels_are_compared_by_fits() -> None:
    rng = np.random.default_rng(4)
    n = 700
    group = np.arange(n) % 2
    x = rng.standard_normal(n) + 0.5 * group
    values = 1.3 * x[:, None] + rng.logistic(size=(n, 4))
    values[:, BIASED] += 1.0 * group
    levels = np.digitize(values, [-0.5, 1.0]).astype(np.uint8)
    levels[:, 0] = np.minimum(levels[:, 0], 1)  # its highest level never occurs
    features = tuple(Feature(f"q{k}", ("0", "1", "2")) for k in range(4))
    X = split_levels(levels, features)
    rows, executor = make_memory_rows(DenseData(X, segments=group)), SerialExecutor()
    first = collect_statistics(FeatureCounts.from_block, rows, executor, "counts")
    check_group_tests(first, ("0", "1"), features)
    fits = GroupFits(rows, ("0", "1"), features, first, executor, 0, ignore_progress)
    tests = run_group_tests(fits)
    assert tests.items.df.tolist() == [2, 3, 3, 3]
    assert tests.items.p.argmin() == BIASED
    assert tests.items.difference[BIASED, 0] < -0.05
    found = []
    for free in ("", f"q{BIASED}"):
        model = LatentTrait(n_components=1, free=free, tol=1e-8)
        structured = model.with_structure(Structure(("0", "1"), features))
        found.append(fit_model(structured, rows, executor).diagnostics["fit_statistics"])
    gain = 2 * (found[1]["log_likelihood"] - found[0]["log_likelihood"])
    np.testing.assert_allclose(tests.items.chi2[BIASED], gain, atol=2e-3)
    assert found[1]["n_parameters"] - found[0]["n_parameters"] == tests.items.df[BIASED]


def draw_groups(
    n_rows: int, biases: tuple[float, ...], seed: int, n_groups: int = 2
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of six items, the first of which favour the reference group; focal traits differ."""
    rng = np.random.default_rng(seed)
    group = np.minimum(rng.integers(0, n_groups + 1, n_rows), n_groups - 1)
    x = 0.5 * group + (1 - 0.2 * group) * rng.standard_normal(n_rows)
    slopes, offsets = np.linspace(0.8, 1.6, 6), np.linspace(-1, 1, 6)
    eta = x[:, None] * slopes + offsets
    eta[:, : len(biases)] -= np.array(biases) * (group == 1)[:, None]
    return (rng.random(eta.shape) < expit(eta)).astype(np.uint8), group


def log_likelihood(
    theta: Array, X: NDArray[np.uint8], group: NDArray[np.int64], item: int | None
) -> float:
    """Integrate by the trapezoidal rule.

    `theta` is slopes, offsets, then μ, log σ of every focal group, and then the item's own slope
    and offset in every focal group.
    """
    n, n_focal = X.shape[1], int(group.max())
    own = theta[2 * n + 2 * n_focal :]
    total = 0.0
    for g in range(n_focal + 1):
        slopes, offsets, mean, sd = theta[:n].copy(), theta[n : 2 * n].copy(), 0.0, 1.0
        if g:
            mean, sd = theta[2 * n + 2 * g - 2], np.exp(theta[2 * n + 2 * g - 1])
        if g and item is not None:
            slopes[item], offsets[item] = own[2 * g - 2 : 2 * g]
        eta = (mean + sd * X_NODES)[:, None] * slopes + offsets
        rows = X[group == g]
        of_nodes = rows @ log_expit(eta).T + (1 - rows) @ log_expit(-eta).T - X_NODES**2 / 2
        step = (X_NODES[1] - X_NODES[0]) / np.sqrt(2 * np.pi)
        total += float((scipy.special.logsumexp(of_nodes, axis=1) + np.log(step)).sum())
    return total


def maximum(
    X: NDArray[np.uint8], group: NDArray[np.int64], item: int | None
) -> tuple[float, Array]:
    n, n_focal = X.shape[1], int(group.max())
    own = np.tile([1.0, 0.0], n_focal if item is not None else 0)
    start = np.r_[np.ones(n), np.zeros(n + 2 * n_focal), own]
    found = scipy.optimize.minimize(lambda t: -log_likelihood(t, X, group, item), start)
    return -float(found.fun), found.x


def compute_bias(
    path: Path,
    X: NDArray[np.uint8],
    group: NDArray[np.int64],
    observed: NDArray[np.uint8] | None = None,
    test: str = "likelihood-ratio",
    n_groups: int = 2,
    slopes: Array | None = None,
) -> dict[str, Any]:
    dataset = write_arrays(path, X, observed, columns={"group": group}, words_per_chunk=2)
    rows, names = make_row_source(dataset, columns=("group",)), dataset.feature_names
    groups = DifGroups("group", test, False, tuple(range(n_groups)), tuple("abc"[:n_groups]))
    features = make_binary_features(names)
    arguments = (groups, rows, features, 0, SerialExecutor(), ignore_progress)
    bias = compute_item_bias(*arguments, slopes)
    items = sorted(bias["items"], key=lambda item: names.index(item["feature"]))
    return {**bias, **{name: np.array([item[name] for item in items]) for name in items[0]}}


@pytest.mark.matrix
@pytest.mark.parametrize("n_groups", [2, 3])
def test_twice_the_gain_is_that_of_direct_maximisation(tmp_path: Path, n_groups: int) -> None:
    X, group = draw_groups(400, (0.0, 0.0, 1.0), 1, n_groups)
    bias = compute_bias(tmp_path / "d.zarr", X, group, n_groups=n_groups)
    (least, shared), (most, own) = (maximum(X, group, item) for item in (None, BIASED))
    chi2, n_focal = 2 * (most - least), n_groups - 1
    assert bias["chi2"][BIASED] == pytest.approx(chi2, abs=2e-3)
    assert bias["df"] == 2 * n_focal
    assert bias["p"][BIASED] == pytest.approx(scipy.stats.chi2.sf(chi2, 2 * n_focal), rel=2e-3)
    assert bias["p"][BIASED] == bias["p"].min()
    assert bias["p_adjusted"][BIASED] == pytest.approx(6 * bias["p"][BIASED])
    for g in range(n_focal):
        focal = bias["focal_trait"][g] if n_groups > 2 else bias["focal_trait"]
        expected = shared[12 + 2 * g], np.exp(shared[13 + 2 * g])
        assert (focal["mean"], focal["sd"]) == pytest.approx(expected, abs=5e-3)
        slope, offset = own[12 + 2 * n_focal + 2 * g :][:2]
        in_focal = [bias["slopes"][BIASED, g + 1], bias["offsets"][BIASED, g + 1]]
        assert in_focal == pytest.approx([slope, offset], abs=2e-2)
        x = own[12 + 2 * g] + np.exp(own[13 + 2 * g]) * X_NODES
        gap = expit(own[BIASED] * x + own[BIASED + 6]) - expit(slope * x + offset)
        density = scipy.special.softmax(-(X_NODES**2) / 2)
        effects = np.array([bias["difference"], bias["area"]]).reshape(2, 6, n_focal)[:, BIASED, g]
        assert effects == pytest.approx([density @ gap, density @ abs(gap)], abs=5e-3)


@pytest.mark.matrix
def test_rows_of_neither_group_and_missing_values_count_for_nothing(tmp_path: Path) -> None:
    X, group = draw_groups(300, (0.0, 0.0, 1.0), 2)
    few = compute_bias(tmp_path / "few.zarr", X, group)
    more = np.vstack([X, X[:20], np.ones((1, 6), np.uint8)])
    observed = np.ones_like(more)
    observed[-1] = 0
    of_none = np.r_[group, np.full(20, 7), 1]
    again = compute_bias(tmp_path / "more.zarr", more, of_none, observed)
    np.testing.assert_allclose(again["chi2"], few["chi2"], atol=1e-3)
    assert again["rows"] == few["rows"]


def test_missing_answers_are_drawn_from_their_distribution() -> None:
    """Over many rows with the same answers, against the posterior by the trapezoidal rule."""
    slopes, offsets = np.array([1.5, 0.8, 2.0]), np.array([0.3, -0.5, 0.2])
    traits = [(0.0, 1.0), (0.8, 0.5)]
    params = replace(
        make_params(slopes[:, None], offsets),
        segments=np.arange(2),
        segment_rows=np.array([1, 1]),
        traits=Traits(
            np.array([[mean] for mean, _ in traits]), np.array([[[sd**2]] for _, sd in traits])
        ),
        group_items=Items(np.tile(slopes[:, None], (2, 1, 1)), np.tile(offsets, (2, 1))),
    )
    X = np.tile(np.uint8([1, 0, 1]), (10_000, 1))
    observed = np.tile(np.uint8([1, 1, 0]), (10_000, 1))
    for g, (mean, sd) in enumerate(traits):
        drawn = draw_missing_answers(params, pack_block(X, observed, g), RowRandom(0))
        assert (drawn[:, :2] == X[:, :2]).all()
        P = expit((mean + sd * X_NODES)[:, None] * slopes + offsets)
        posterior = np.exp(-(X_NODES**2) / 2) * P[:, 0] * (1 - P[:, 1])
        expected = posterior @ P[:, 2] / posterior.sum()
        assert drawn[:, 2].mean() == pytest.approx(expected, abs=0.02)


@pytest.mark.matrix
def test_purification_clears_items_that_only_biased_anchors_made_look_biased() -> None:
    X, group = draw_groups(1500, (1.5, 1.5), 5)
    fits = make_fits(X, group)
    before = np.flatnonzero(run_group_tests(fits).items.p_adjusted < 0.05)
    tests, purification = run_purified_group_tests(fits)
    assert {0, 1} < {*before.tolist()}
    assert purification.excluded == (0, 1)
    assert purification.ending == "stable"
    assert np.flatnonzero(tests.items.p_adjusted < 0.05).tolist() == [0, 1]
    again = run_group_tests(fits, (0, 1))
    np.testing.assert_allclose(tests.items.chi2, again.items.chi2, atol=1e-3)


@pytest.mark.parametrize(
    ("found_by_round", "ending", "excluded"),
    [
        (["0", "0"], "stable", "0"),
        (["0", "01", "0"], "repeated", "01"),
        (["0", "0123"], "few-anchors", "0"),
        (["0", "1", "2", "3", "01", "02", "03", "12", "13", "23"], "max-rounds", "13"),
    ],
)
def test_purification_ends(
    monkeypatch: pytest.MonkeyPatch, found_by_round: list[str], ending: str, excluded: str
) -> None:
    """With tests of four items that find given ones in each round."""
    rounds, tested = iter(found_by_round), []

    def find_items(fits: GroupFits, excluded: Any = (), start: Any = None) -> GroupTests:
        tested.append("".join(map(str, excluded)))
        p_adjusted = np.ones(4)
        p_adjusted[[int(item) for item in next(rounds)]] = 0.0
        results = GroupTestResults(*[p_adjusted] * 8)
        return GroupTests(results, FitState(None), np.zeros(2), np.ones(2), ())

    monkeypatch.setattr(item_bias, "run_group_tests", find_items)
    _, purification = run_purified_group_tests(make_fits(np.ones((2, 4), np.uint8), np.zeros(2)))
    assert purification.ending == ending
    assert purification.excluded == tuple(map(int, excluded))
    assert purification.n_rounds == len(found_by_round)
    assert tested == ["", *found_by_round[:-1]]


@pytest.mark.parametrize(
    ("n_observed", "n_ones", "text"),
    [(9, 0, "constant"), (9, 9, "constant"), (0, 0, "never observed")],
)
def test_items_without_parameters_of_their_own_are_refused(
    n_observed: int, n_ones: int, text: str
) -> None:
    observed, ones = np.full((2, 3), 9), np.full((2, 3), 4)
    counts = FeatureCounts(np.arange(2), np.array([9, 9]), observed, ones)
    features = make_binary_features(["0", "1", "2"])
    check_group_tests(counts, ("a", "b"), features)
    observed[1, 2], ones[1, 2] = n_observed, n_ones
    with pytest.raises(FitError, match=f"'2' is {text} in the group 'b'"):
        check_group_tests(counts, ("a", "b"), features)


@pytest.mark.parametrize("is_masked", [False, True])
def test_groups_are_the_rows_with_their_values(tmp_path: Path, is_masked: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (300, 5), np.uint8)
    observed = rng.integers(0, 2, X.shape, np.uint8) if is_masked else None
    labels = rng.choice([4, 7, 9], 300)
    labels[128:256] = 9  # a chunk without any of the groups
    segments = rng.choice(["a", "b"], 300)
    path = tmp_path / "d.zarr"
    dataset = write_arrays(path, X, observed, segments, 2, columns={"label": labels})
    rows = group_rows(make_row_source(dataset, columns=("label",)), "label", (7, 4))
    blocks = [block for key in range(rows.n_chunks) for block in iter_blocks(rows.read(key))]
    assert rows.n_segments == 2
    for group, value in enumerate((7, 4)):
        own = [block for block in blocks if block.segment == group]
        kept = np.concatenate([block.rows for block in own])
        assert sorted(kept) == np.flatnonzero(labels == value).tolist()
        values = np.concatenate([block.unpack_values() for block in own])
        mask = np.ones_like(X) if observed is None else observed
        np.testing.assert_array_equal(values, (X & mask)[kept])
        for block in own:
            own_mask = block.unpack_mask()
            assert is_masked == (own_mask is not None)
            if own_mask is not None:
                np.testing.assert_array_equal(own_mask, mask[block.rows])


def draw_levels(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw levels of items with 4, 3 and 2 levels, and groups; the first item is biased."""
    rng = np.random.default_rng(n)
    group = rng.integers(0, 2, n)
    logistic = rng.normal(size=(n, 1)) + rng.logistic(size=(n, 3))
    logistic[:, 0] += 0.8 * group
    cuts = ([-1, 0, 1], [-0.5, 0.9], [0])
    levels = [np.digitize(y, c) for y, c in zip(logistic.T, cuts, strict=True)]
    return np.stack(levels, axis=1), group


def count_levels_by_score(levels: NDArray[np.int64], group: NDArray[np.int64]) -> Any:
    features = tuple(Feature(f"q{m}", tuple(map(str, range(m + 1)))) for m in (3, 2, 1))
    blocks = [
        pack_block(split_levels(levels[group == g].astype(np.uint8), features), segment=g)
        for g in (0, 1)
    ]
    sums = [
        count_by_score(None, np.zeros(block.n_features, np.bool_), RowRandom(0), block).values
        for block in blocks
    ]
    return mantel_haenszel(
        *(sums[0][n] + sums[1][n] for n in ("rows", "ones")), np.array([3, 2, 1])
    )


def test_levels_are_compared_by_the_definition_of_somes() -> None:
    """The covariance of the cells of each table is written out, without planes."""
    levels, group = draw_levels(700)
    found, total = count_levels_by_score(levels, group), levels.sum(axis=1)
    for item, n_levels in ((0, 4), (1, 3)):
        d, V, above, below = np.zeros(n_levels), np.zeros((n_levels, n_levels)), 0.0, 0.0
        for k in np.unique(total):
            table = np.zeros((2, n_levels))
            np.add.at(table, (group[total == k], levels[total == k, item]), 1)
            (n_0, n_1), columns, n = table.sum(axis=1), table.sum(axis=0), table.sum()
            if n_0 == 0 or n_1 == 0:
                continue
            d += table[0] - n_0 * columns / n
            V += n_0 * n_1 * (n * np.diag(columns) - np.outer(columns, columns)) / n**2 / (n - 1)
            for j in range(1, n_levels):
                (b, a), (e, c) = ((row[:j].sum(), row[j:].sum()) for row in table)
                above, below = above + a * e / n, below + b * c / n
        d, V = d[1:], V[1:, 1:]
        assert found.chi2[item] == pytest.approx(d @ np.linalg.solve(V, d))
        assert found.df[item] == n_levels - 1
        assert found.odds_ratio[item] == pytest.approx(above / below)
    assert found.p[0] < 1e-3
    assert found.odds_ratio[0] < 1


def test_reversed_items_count_in_reverse_in_the_sum_score(tmp_path: Path) -> None:
    X, group = draw_groups(600, (0.0, 0.0, 1.0), 4)
    recoded, slopes = X.copy(), np.ones(X.shape[1])
    recoded[:, 1], slopes[1] = 1 - X[:, 1], -1.0
    test = {"test": "mantel-haenszel"}
    expected = compute_bias(tmp_path / "d.zarr", X, group, **test)
    bias = compute_bias(tmp_path / "recoded.zarr", recoded, group, slopes=slopes, **test)
    assert len(bias["reversed"]) == 1
    assert expected["reversed"] == []
    for name in ("chi2", "p"):
        np.testing.assert_allclose(bias[name], expected[name], rtol=1e-9)
    assert bias["odds_ratio"][1] == pytest.approx(1 / expected["odds_ratio"][1])
    # The direction of the trait does not matter.
    turned = compute_bias(tmp_path / "turned.zarr", recoded, group, slopes=-slopes, **test)
    np.testing.assert_array_equal(turned["chi2"], bias["chi2"])


def test_two_items_are_too_few() -> None:
    counts = FeatureCounts(np.arange(2), np.array([9, 9]), np.full((2, 2), 9), np.full((2, 2), 4))
    with pytest.raises(FitError, match="needs at least 3 features"):
        check_group_tests(counts, ("a", "b"), make_binary_features(["0", "1"]))
