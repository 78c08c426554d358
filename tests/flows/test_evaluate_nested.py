"""Likelihood-ratio tests of `flows.evaluate`, as the commands of R's ltm print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.acceptance.test_two_tables import saved
from tests.support.data import write_arrays


@pytest.fixture
def fits(cli: Any, tmp_path: Path) -> Any:
    """Fit LSAT-6 as each pair of a name and settings says."""
    X = saved("lsat6")["X"]
    write_arrays(tmp_path / "lsat6.zarr", X)
    write_arrays(tmp_path / "half.zarr", X[:500])
    write_arrays(tmp_path / "weighted.zarr", X, columns={"w": 1 + np.arange(len(X)) % 3})

    def fitted(name: str, *settings: str, dataset: str = "lsat6") -> str:
        path = str(tmp_path / name)
        line = ("fit", "--dataset", str(tmp_path / f"{dataset}.zarr"), "--output", path)
        done = cli(*line, "--no-report", "--model", "latent-trait", *settings)
        assert done.code == 0, done.err
        return path

    return fitted


def compared(cli: Any, tmp_path: Path, *artifacts: str) -> Any:
    named = [word for path in artifacts for word in ("--artifact", path)]
    line = ("evaluate", "--dataset", str(tmp_path / "lsat6.zarr"), *named)
    return cli(*line, "--likelihood-ratio", "--no-baselines", "--json")


@pytest.mark.matrix
def test_slopes_of_lsat_6_do_not_differ(cli: Any, fits: Any, tmp_path: Path) -> None:
    """χ² = 0.57, 4 df, p = 0.967 (D. Rizopoulos, Journal of Statistical Software 17(5), 2006)."""
    rasch = fits("rasch", "--components", "1", "--set", "equal_slopes=yes")
    two = fits("two", "--components", "1")
    (test,) = json.loads(compared(cli, tmp_path, two, rasch).out)["likelihood_ratio_tests"]
    assert (test["smaller"], test["larger"], test["df"]) == (rasch, two, 4)
    assert test["chi2"] == pytest.approx(0.57, abs=5e-3)
    assert test["p"] == pytest.approx(0.967, abs=1e-3)


@pytest.mark.matrix
def test_what_cannot_be_tested_is_refused(cli: Any, fits: Any, tmp_path: Path) -> None:
    one = fits("one", "--components", "1")
    half = fits("half", "--components", "1", dataset="half")
    prior = fits("prior", "--components", "2", "--set", "prior_precision=1")
    weight = ("--components", "2", "--weight", "w")
    weighted = fits("weighted", *weight, dataset="weighted")
    survey = fits("survey", *weight, "--weights", "sampling", dataset="weighted")
    bound = fits("bound", "--components", "1", "--set", "estimator=variational")
    for artifacts, told in {
        (one,): "--likelihood-ratio needs two or more artifacts. Repeat --artifact.",
        (one, half): "there is no likelihood-ratio test (fitted to another dataset).",
        (one, one): "(not nested: both have as many parameters).",
        (one, prior): "(penalized by prior_precision=1).",
        (one, weighted): "(fitted to another dataset).",
        (one, survey): "(not valid, as the rows have sampling weights).",
        (one, bound): "does not maximize an exact likelihood).",
    }.items():
        done = compared(cli, tmp_path, *artifacts)
        assert done.code == 2
        assert told in done.err
