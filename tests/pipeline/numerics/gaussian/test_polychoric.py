"""Polychoric correlations against R's polycor and lavaan, and against searches of the maximum."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

from pipeline.errors import FitError
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.pair_tables import MAX_CORRELATION, PairStatus, tetrachoric
from pipeline.numerics.gaussian.polychoric import PolychoricResult, polychoric
from tests.support.data import find_reference


def estimate(levels: NDArray[Any], n_levels: list[int], **options: Any) -> PolychoricResult:
    """Estimate from levels (n_samples, n_features), counted from 0."""
    planes = np.hstack([levels[:, [i]] > np.arange(k - 1) for i, k in enumerate(n_levels)])
    first = np.cumsum([0, *(k - 1 for k in n_levels)])
    joint, ones = planes.T.astype(float) @ planes, planes.sum(axis=0)
    return polychoric(len(levels), ones[:, None], ones[None], joint, first, first, **options)


def estimate_table(table: Any, **options: Any) -> tuple[float, int]:
    """Estimate the correlation of one table of counts, and its status."""
    table = np.asarray(table)
    joint = table[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1].astype(float)
    planes = np.zeros((sum(table.shape) - 2,) * 2)
    rows = len(table) - 1
    planes[:rows, rows:] = joint[1:, 1:]
    ones = np.concatenate([joint[1:, 0], joint[0, 1:]])
    first = [0, rows, len(planes)]
    result = polychoric(joint[0, 0], ones[:, None], ones, planes, first, first, **options)
    return float(result.correlation[0, 1]), int(result.status[0, 1])


def search(table: NDArray[Any]) -> float:
    """Search the maximum of the likelihood, with thresholds from the margins."""
    n = table.sum()
    h, k = (ndtri(np.append(0, table.sum(axis=a).cumsum() / n).clip(0, 1)) for a in (1, 0))

    def loss(rho: float) -> float:
        corners = bivariate_normal_cdf_array(h[:, None], k[None], rho)
        cells = np.diff(np.diff(corners, axis=0), axis=1)
        # Differences would lose all digits of these cells, if ρ is near ±1.
        cells[-1, 0] = bivariate_normal_cdf_array(-h[-2], k[1], -rho)
        cells[0, 0] = corners[1, 1]
        return -float((table * np.log(np.maximum(cells, 1e-300)))[table > 0].sum())

    found = minimize_scalar(
        loss, bounds=(-0.9999, 0.9999), method="bounded", options={"xatol": 1e-9}
    )
    return float(found.x)


def draw_table(shape: tuple[int, int], rho: float, n: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n)
    cuts = [np.sort(rng.uniform(-1.8, 1.8, k - 1)) for k in shape]
    table = np.zeros(shape, np.int64)
    np.add.at(table, tuple(np.searchsorted(c, x) for c, x in zip(cuts, z.T, strict=True)), 1)
    return table


@pytest.mark.parametrize(("name", "offset"), [("bfi6_complete", 1), ("hs_mixed8", 0)])
def test_estimates_agree_with_r(name: str, offset: int) -> None:
    """To 1e-7 with lavaan and 1e-4 with polycor, which both search with a tolerance."""
    with find_reference(f"data/{name}.csv").open() as file:
        header, *lines = csv.reader(file)
    header = [item for item in header if item not in ("x1", "x2", "x8")]  # continuous
    columns = [k for k, item in enumerate(header)] if offset else [2, 3, 4, 5, 6]
    levels = np.array([[int(line[k]) - offset for k in columns] for line in lines])
    result = estimate(levels, (levels.max(axis=0) + 1).tolist())
    kind = "polychoric" if offset else "mixed"
    path = f"08_polychoric_mixed/{name.removesuffix('_complete')}_{kind}.csv"
    with find_reference(path).open() as file:
        rows = [r for r in csv.DictReader(file) if r["i"] in header and r["j"] in header]
    assert len(rows) == len(header) * (len(header) - 1) // 2
    names = {"bfi6_complete": "polycor_two_step", "hs_mixed8": "hetcor_two_step"}
    for row in rows:
        value = result.correlation[header.index(row["i"]), header.index(row["j"])]
        assert_allclose(value, float(row["exact_two_step"]), atol=1e-7)
        assert_allclose(value, float(row[names[name]]), atol=1e-4)


@pytest.mark.parametrize("rho", [-0.99, -0.6, 0.0, 0.15, 0.8, 0.98])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (16, 4)])
def test_the_estimate_maximizes_the_likelihood(shape: tuple[int, int], rho: float) -> None:
    table = draw_table(shape, rho, 3000, seed=1)
    value, status = estimate_table(table)
    assert status == PairStatus.PLAIN
    assert_allclose(value, search(table), atol=2e-7)


def test_outliers_that_no_normal_explains_are_weighed_exactly() -> None:
    """The cells of the outliers have probabilities below 1e-9, which differences would lose."""
    table = np.diag([30_000, 40_000, 30_000])
    table += np.diag([1000, 1000], 1) + np.diag([1000, 1000], -1)
    table[2, 0] = 1
    value, _ = estimate_table(table)
    h = ndtri(0.3)
    assert bivariate_normal_cdf_array(h, h, -value) < 1e-12
    assert_allclose(value, search(table), atol=1e-7)
    assert value < estimate_table(table - (table == 1))[0] - 1e-5


def test_two_by_two_tables_are_tetrachoric() -> None:
    rng = np.random.default_rng(2)
    bits = (rng.random((40, 12)) < rng.uniform(0.02, 0.98, 12)).astype(np.uint8)
    bits[:, 3] = bits[:, 4]
    joint, ones = bits.T.astype(float) @ bits, bits.sum(axis=0)
    upper = np.triu_indices(12, 1)
    for cells in ("none", "half"):
        expected = tetrachoric(40, ones[:, None], ones, joint, empty_cells=cells)  # type: ignore[arg-type]
        result = estimate(bits, [2] * 12, empty_cells=cells)
        assert_array_equal(result.status[upper], expected.status[upper])
        assert_allclose(result.correlation[upper], expected.correlation[upper], atol=1e-12)
        assert {*result.status[upper]} == {0, 1, 2}


def test_levels_without_rows_have_no_effect() -> None:
    table = draw_table((3, 3), 0.4, 500, seed=4)
    wide = np.zeros((6, 5), np.int64)
    wide[np.ix_([1, 2, 4], [0, 2, 4])] = table
    assert estimate_table(wide) == estimate_table(table)
    wide[:, 2:] = 0
    assert estimate_table(wide)[1] == PairStatus.CONSTANT_FEATURE
    assert np.isnan(estimate_table(wide)[0])
    assert estimate_table(0 * wide)[1] == PairStatus.NO_OBSERVATIONS


@pytest.mark.parametrize("sign", [1, -1])
def test_tables_without_contradiction_stay_bounded(sign: int) -> None:
    table = np.array([[30, 0, 0, 0], [5, 20, 0, 0], [0, 0, 7, 9]])[:, ::sign]
    assert estimate_table(table) == (sign * MAX_CORRELATION, PairStatus.EMPTY_CELL)
    value, status = estimate_table(table, empty_cells="half")
    assert status == PairStatus.EMPTY_CELL
    assert 0.9 < sign * value < 0.999
    assert_allclose(value, estimate_table(table + 2 / table.size)[0], atol=1e-9)
    table[2, 0 if sign > 0 else 3] += 1
    contradicted = [estimate_table(table, empty_cells=how) for how in ("none", "half")]
    assert contradicted[0] == contradicted[1]
    assert contradicted[0][1] == PairStatus.PLAIN
    assert_allclose(contradicted[0][0], search(table), atol=1e-7)


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_impossible_tables_are_refused(bad: float) -> None:
    table = np.array([[10.0, 3, 2], [4, 10, bad]])
    with pytest.raises(FitError, match=r"The table of the pair \(0, 1\) has a cell that is negati"):
        estimate_table(table)
