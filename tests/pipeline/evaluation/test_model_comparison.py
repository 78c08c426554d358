"""Comparison of fits: tests of nested ones, and the reasons why there is none."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from pipeline.data.datasets import MemoryDataset
from pipeline.errors import FitError
from tests.support.data import find_reference

NAMES = [f"q{k}" for k in range(6)]
N = 400


def draw_answers(n: int = N, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    traits = rng.standard_normal((n, 1))
    slopes = np.array([0.6, 0.9, 1.2, 1.5, 1.0, 0.8])
    P = 1 / (1 + np.exp(-(slopes * traits + np.linspace(-1, 1, 6))))
    return (rng.random(P.shape) < P).astype(np.uint8)


@pytest.fixture(scope="module")
def data() -> Any:
    keep = {
        "school": np.where(np.arange(N) % 3 == 0, "north", "south"),
        "age": np.arange(N) % 7,
        "times": 1 + np.arange(N) % 2,
    }
    return lb.from_numpy(draw_answers(), NAMES, keep=keep)


@pytest.fixture(scope="module")
def fits(data: Any) -> dict[str, lb.Fitted]:
    """Small fits of all kinds."""
    pattern = {"item": NAMES, "general": [1] * 6, "own": [1, 1, 1, 0, 0, 0]}
    same = {**pattern, "own": ["a", "a", "a", 0, 0, 0]}

    def trait(**settings: Any) -> lb.Fitted:
        return lb.fit(data, "latent-trait", **{"components": 1, "errors": "none", **settings})

    def classes(**settings: Any) -> lb.Fitted:
        own = {"components": 2, "smoothing": 1e-6, "errors": "none", **settings}
        return lb.fit(data, "bernoulli-mixture", **own)

    return {
        "equal": trait(equal_slopes="yes"),
        "one": trait(),
        "scalar": trait(group="school"),
        "metric": trait(group="school", invariance="metric"),
        "configural": trait(group="school", invariance="configural"),
        "age": trait(covariates=["age"]),
        "prior": trait(prior_precision=1.0),
        "own": trait(components=None, pattern=pd.DataFrame(pattern)),
        "same": trait(components=None, pattern=pd.DataFrame(same)),
        "weighted": trait(weight="times"),
        "bound": trait(estimator="variational"),
        "half": lb.fit(data_of(draw_answers()[:200]), "latent-trait", components=2, errors="none"),
        "five": lb.fit(data_of(draw_answers()[:, :5]), "latent-trait", components=1),
        "two classes": classes(),
        "three classes": classes(components=3),
        "by school": classes(group="school"),
        "smooth": classes(group="school", smoothing=0.1),
        "tree": lb.fit(data, "chow-liu"),
    }


def data_of(X: np.ndarray) -> MemoryDataset:
    dataset: Any = lb.from_numpy(X, NAMES[: X.shape[1]])
    return dataset


def compare(fits: dict[str, lb.Fitted], *names: str) -> dict[str, Any]:
    """Return the line of the larger of two fits."""
    table = lb.compare({name: fits[name] for name in names})
    return {column: values[-1] for column, values in table.items()}


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("equal", "one"),
        ("one", "scalar"),
        ("scalar", "metric"),
        ("metric", "configural"),
        ("one", "configural"),
        ("one", "age"),
        ("one", "own"),
        ("same", "own"),
        ("two classes", "by school"),
    ],
)
def test_nested_fits_are_tested(fits: dict[str, lb.Fitted], small: str, large: str) -> None:
    line = compare(fits, large, small)
    a, b = (fits[name].statistics for name in (small, large))
    assert (line["fit"], line["against"], line["no_test"]) == (large, small, "")
    assert line["df"] == b["n_parameters"] - a["n_parameters"] > 0
    gain = b["log_likelihood"] - a["log_likelihood"]
    assert line["chi2"] == pytest.approx(max(2 * gain, 0))
    assert 0 < line["p"] <= 1
    assert line["is_comparable"]


@pytest.mark.parametrize(
    ("small", "large", "reason"),
    [
        ("one", "one", "as many parameters"),
        ("one", "half", "fitted to another dataset"),
        ("one", "weighted", "fitted to other rows (split or weights)"),
        ("one", "prior", "penalized by prior_precision=1"),
        ("one", "bound", "does not maximize an exact likelihood"),
        ("one", "tree", "another model"),
        ("age", "configural", "lacks covariates"),
        ("two classes", "three classes", "follows no χ² distribution"),
        ("two classes", "smooth", "penalized by smoothing=0.1"),
    ],
)
def test_reasons_for_no_test(
    fits: dict[str, lb.Fitted], small: str, large: str, reason: str
) -> None:
    found = {"small": fits[small], "large": fits[large]}
    table = lb.compare(found)
    assert reason in table["no_test"][-1]
    assert table["against"] == [None, None]
    has_same_rows = "fitted to" not in reason
    assert table["is_comparable"] == [True, has_same_rows]


def test_the_largest_special_case_is_tested_against(fits: dict[str, lb.Fitted]) -> None:
    table = lb.compare({n: fits[n] for n in ("configural", "two classes", "one", "equal")})
    assert table["fit"] == ["equal", "one", "two classes", "configural"]
    assert table["against"] == [None, "equal", None, "one"]
    assert "another model, latent-trait" in table["no_test"][2]
    frame = pd.DataFrame(table)
    assert frame["bic"].notna().all()
    assert frame["entropy_r2"].notna().tolist() == [False, False, True, False]
    lines = repr(table).splitlines()
    assert len(lines) == 5
    assert "no test against one: another model" in lines[3]


def test_models_are_described(fits: dict[str, lb.Fitted]) -> None:
    table = lb.compare([fits[n] for n in ("equal", "scalar", "age", "own", "smooth")])
    assert sorted(table["model"]) == [
        "bernoulli-mixture, 2 components, groups by school",
        "latent-trait, 1 component, covariates age",
        "latent-trait, 1 component, equal_slopes=yes",
        "latent-trait, 1 component, groups by school, invariance=scalar",
        "latent-trait, 2 components, loading pattern, correlations=none",
    ]
    assert sorted(table["fit"]) == [f"fit {k}" for k in range(1, 6)]


def test_one_fit_is_refused(fits: dict[str, lb.Fitted]) -> None:
    with pytest.raises(FitError, match="two or more fits"):
        lb.compare([fits["one"]])


def test_invariance_is_tested_as_by_mirt() -> None:
    """`anova` of two groups, which the fits of mirt put in this order."""
    lines = [*csv.reader(find_reference("data/sim2g.csv").read_text().splitlines())]
    table = np.array(lines[1:])
    data = lb.from_numpy(
        table[:, :-1].astype(np.uint8), lines[0][:-1], keep={"group": table[:, -1]}
    )
    fits = {
        name: lb.fit(
            data, "latent-trait", components=1, group="group", invariance=name, errors="none"
        )
        for name in ("scalar", "metric", "configural")
    }
    found = lb.compare(fits)
    assert found["fit"] == ["scalar", "metric", "configural"]
    assert found["n_parameters"] == [22, 31, 40]
    for k, name in enumerate(("scalar_metric", "metric_configural"), start=1):
        text = find_reference(f"02_groups/sim2g_anova_{name}.csv").read_text().splitlines()
        expected = [*csv.DictReader(text)][1]
        assert found["df"][k] == int(expected["df"])
        assert found["chi2"][k] == pytest.approx(float(expected["X2"]), abs=5e-3)
        assert found["p"][k] == pytest.approx(float(expected["p"]), abs=1e-3)
        assert found["adjusted_bic"][k] == pytest.approx(float(expected["SABIC"]), abs=5e-3)
