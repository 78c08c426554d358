"""Information criteria and entropy, against poLCA and their definitions."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from pipeline.statistics.information_criteria import compute_criteria, describe_entropy
from tests.support.data import find_reference


def test_criteria_are_those_of_polca() -> None:
    text = find_reference("10_latent_classes/summary.csv").read_text()
    by_case: dict[str, dict[str, float]] = {}
    for line in csv.DictReader(text.splitlines()):
        by_case.setdefault(line["case"], {})[line["quantity"]] = float(line["value"])
    cases = [case for case in by_case.values() if {"llik", "npar", "N", "aic", "bic"} <= {*case}]
    assert len(cases) > 5
    for case in cases:
        found = compute_criteria(
            case["llik"], int(case["npar"]), case["N"], has_sampling_weights=False
        )
        assert found["aic"] == pytest.approx(case["aic"], rel=1e-12)
        assert found["bic"] == pytest.approx(case["bic"], rel=1e-12)


def test_criteria_of_mirt() -> None:
    """A fit with 22 parameters to 1,300 rows; mirt calls the adjusted BIC SABIC."""
    found = compute_criteria(-7159.56138024211, 22, 1300, has_sampling_weights=False)
    assert found["aic"] == pytest.approx(14363.1227604842)
    assert found["adjusted_bic"] == pytest.approx(14406.9820263175)
    assert found["bic"] == pytest.approx(14476.8653904401)
    assert found["caic"] == pytest.approx(14476.8653904401 + 22)


def test_sampling_weights_have_no_criteria() -> None:
    found = compute_criteria(-10.0, 3, 7.5, has_sampling_weights=True)
    assert found["n_rows"] == 7.5
    assert "sampling weights" in found["aic_missing"]
    assert "bic" not in found


def test_entropy_of_posteriors() -> None:
    posterior = np.array([[0.9, 0.1], [0.5, 0.5], [1.0, 0.0], [0.6, 0.4]])
    safe = np.where(posterior > 0, posterior, 1.0)
    entropy = -float((posterior * np.log(safe)).sum())
    found = describe_entropy(entropy, posterior.sum(axis=0))
    shares = posterior.mean(axis=0)
    by_chance = -4 * float(shares @ np.log(shares))
    assert found["entropy_r2"] == pytest.approx(1 - entropy / by_chance)
    assert found["relative_entropy"] == pytest.approx(1 - entropy / (4 * np.log(2)))
    assert describe_entropy(0.0, np.array([4.0])) == {}
    assert describe_entropy(0.0, np.array([4.0, 0.0]))["entropy_r2"] == 1
