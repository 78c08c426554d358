"""Reliability: values of R's psych, jackknife errors, weights, missing values and groups."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from pipeline.data.datasets import make_row_source
from pipeline.data.features import list_features
from pipeline.errors import FitError
from pipeline.evaluation.reliability import describe_reliability
from pipeline.executors.base import SerialExecutor
from pipeline.numerics.spectra.reliability import compute_trait_omega
from tests.support.data import find_reference

KEYS = {
    "alpha, raw, reversed items turned": "alpha",
    "alpha, standardized": "standardized_alpha",
    "alpha, ordinal (of the polychoric matrix)": "ordinal_alpha",
    "omega total, one factor, polychoric, ml": "omega",
}


def make_dataset(X: np.ndarray, names: list[str] | None = None, **keep: Any) -> Any:
    import polars as pl

    names = names or [f"q{i}" for i in range(X.shape[1])]
    levels = [str(k) for k in range(int(X.max()) + 1)]
    frame = pl.DataFrame(
        {n: [None if v < 0 else str(v) for v in x] for n, x in zip(names, X.T, strict=True)}
    )
    frame = frame.with_columns(pl.col(names).cast(pl.Enum(levels)), **keep)
    return lb.from_dataframe(frame, keep=list(keep))


def describe(dataset: Any, **options: Any) -> list[dict[str, Any]]:
    rows = make_row_source(dataset, **options)
    names = dataset.segment_names
    return describe_reliability(rows, list_features(dataset), names, {}, SerialExecutor())


def draw_answers(n: int, seed: int = 0) -> np.ndarray:
    """Draw four items of three levels, the last of which is reversed."""
    rng = np.random.default_rng(seed)
    trait, loadings = rng.standard_normal((n, 1)), np.array([0.8, 0.7, 0.6, -0.6])
    x = trait * loadings + np.sqrt(1 - loadings**2) * rng.standard_normal((n, 4))
    return (x > -0.5).astype(np.int64) + (x > 0.6)


def compute_alpha_of_rows(X: np.ndarray) -> float:
    """Return alpha of pairwise covariances; -1 is missing."""
    k = X.shape[1]
    S = np.empty((k, k))
    for i in range(k):
        for j in range(k):
            both = (X[:, i] >= 0) & (X[:, j] >= 0)
            S[i, j] = np.cov(X[both, i], X[both, j])[0, 1]
    return float(k / (k - 1) * (1 - np.trace(S) / S.sum()))


def test_coefficients_are_those_of_psych() -> None:
    """Values of psych 2.2.9 (R 4.2.2): 25 items, five scales, four of them with reversed items."""
    with find_reference("data/bfi25.csv").open() as file:
        names, *lines = csv.reader(file)
    X = np.array(lines, np.int64)
    with find_reference("11_factor_analysis/bfi25_summary.csv").open() as file:
        expected = [line for line in csv.reader(file) if line[0].startswith("bfi25 ")]
    for scale in "ACENO":
        own = [i for i, name in enumerate(names) if name[0] == scale]
        (found,) = describe(make_dataset(X[:, own], [names[i] for i in own]))
        values = {
            ",".join(line[1:-1]): float(line[-1]) for line in expected if line[0][-1] == scale
        }
        assert len(found["reversed"]) == values["reversed items"]
        turned = found["turned"] or found["coefficients"]
        for text, key in KEYS.items():
            assert turned[key]["value"] == pytest.approx(values[text], abs=5e-5)
            low, high = turned[key]["interval"]
            assert low < values[text] < high


def test_errors_are_those_of_a_jackknife() -> None:
    X = draw_answers(120)
    (found,) = describe(make_dataset(X))
    assert found["reversed"] == ["q3"]
    without = [describe(make_dataset(np.delete(X, row, axis=0)))[0]["turned"] for row in range(120)]
    for key, tolerance in (("alpha", 0.04), ("ordinal_alpha", 0.15), ("omega", 0.15)):
        values = np.array([own[key]["value"] for own in without])
        error = np.sqrt(119 / 120 * ((values - values.mean()) ** 2).sum())
        assert found["turned"][key]["standard_error"] == pytest.approx(error, rel=tolerance)


def test_missing_values_leave_pairwise_covariances() -> None:
    X, rng = draw_answers(500), np.random.default_rng(1)
    X[rng.random(X.shape) < 0.2] = -1
    X[:100, 0], X[100:200, 1] = -1, -1
    (found,) = describe(make_dataset(X))
    assert not found["is_complete"]
    expected = compute_alpha_of_rows(X)
    assert found["coefficients"]["alpha"]["value"] == pytest.approx(expected, rel=1e-12)
    turned = X.copy()
    turned[:, 3] = np.where(X[:, 3] < 0, -1, 2 - X[:, 3])
    expected = compute_alpha_of_rows(turned)
    assert found["turned"]["alpha"]["value"] == pytest.approx(expected, rel=1e-12)
    without = compute_alpha_of_rows(turned[:, 1:])
    assert found["by_item"][0]["alpha_without"] == pytest.approx(without, rel=1e-12)


def test_frequencies_are_repeated_rows() -> None:
    X, times = draw_answers(200), np.arange(200) % 3
    weighted = make_dataset(X, times=np.array([*map(float, times)]))
    fitted = lb.fit(weighted, "clipped-pca", components=1, weight="times")
    (found,) = lb.evaluate(fitted, weighted, reliability=True)["reliability"]
    (expected,) = describe(make_dataset(np.repeat(X, times, axis=0)))
    for key, own in expected["turned"].items():
        assert found["turned"][key]["value"] == pytest.approx(own["value"], abs=1e-9)
        assert found["turned"][key]["standard_error"] == pytest.approx(own["standard_error"])


def test_groups_are_described_one_by_one() -> None:
    """An item is constant in a group, and no row of another group has values of a pair."""
    X = draw_answers(600)
    X[:200, 0] = 1
    X[200:300, 1], X[300:400, 2] = -1, -1
    site = np.repeat(["None", "b", "c"], 200)
    dataset = make_dataset(X, site=site)
    fitted = lb.fit(dataset, "latent-trait", components=1)
    grouped = dataset.segment_by("site")
    everyone, *groups = lb.evaluate(fitted, grouped, reliability=True)["reliability"]
    assert everyone["group"] is None
    assert everyone["rows"] == 600
    by_name = {group["group"]: group for group in groups}
    assert by_name["None"]["constant"] == ["q0"]
    assert by_name["b"]["missing"] == "no rows have values of both q1 and q2 (1 such pairs)"
    (alone,) = describe(make_dataset(X[400:]))
    assert by_name["c"]["turned"]["omega"] == alone["turned"]["omega"]
    marginal = fitted.statistics["marginal_reliability"]
    assert everyone["traits"]["fit"]["marginal"] == pytest.approx(marginal)


def test_two_items_have_no_omega_and_one_has_no_coefficients() -> None:
    X = draw_answers(100)
    (two,) = describe(make_dataset(X[:, :2]))
    assert two["coefficients"]["omega"] is None
    assert two["coefficients"]["alpha"]["value"] > 0.3
    X[:, 1] = 1
    (one,) = describe(make_dataset(X[:, :2]))
    assert one["missing"] == "fewer than two items vary"


def test_continuous_features_are_refused() -> None:
    X = np.random.default_rng(0).standard_normal((50, 3))
    with pytest.raises(FitError, match="continuous"):
        describe(lb.from_numpy(X, continuous=True))


def test_omega_of_a_bifactor_fit_follows_from_its_loadings() -> None:
    """Standardized loadings of mirt (R); its slopes are 1.702 times those of normal variables."""
    tables = []
    for name in ("slopes", "standardised_loadings"):
        path = find_reference(f"05_loading_patterns/sim_bifactor12_{name}.csv")
        with path.open() as file:
            tables.append(np.array([line[1:5] for line in csv.reader(file)][1:], np.float64))
    slopes, loadings = tables
    common = (loadings.sum(axis=0) ** 2).sum()
    total = common + (1 - (loadings**2).sum(axis=1)).sum()
    expected = common / total, loadings[:, 0].sum() ** 2 / total
    assert compute_trait_omega(slopes / 1.702, np.eye(4)) == pytest.approx(expected, abs=1e-6)
    assert compute_trait_omega(slopes[:, :1], np.eye(1))[1] is None
