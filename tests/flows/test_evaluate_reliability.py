"""Reliability as the command prints it: groups, reversed items, traits and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.data import write_arrays

N_ROWS = 400


def write_answers(path: Path) -> Path:
    """Write five binary items, the second of which is reversed, of rows in two groups."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((N_ROWS, 5)) + 1.5 * rng.standard_normal((N_ROWS, 1))
    X = (x > 0).astype(np.uint8)
    X[:, 1] = 1 - X[:, 1]
    X[: N_ROWS // 2, 4] = 0
    sites = np.repeat(["None", "west"], N_ROWS // 2)
    return write_arrays(path, X, None, sites, names=["a", "b", "c", "d", "NA"]).path


def test_reliability_is_printed_instead_of_a_comparison(cli: Any, tmp_path: Path) -> None:
    dataset = write_answers(tmp_path / "d.zarr")
    fit = ("--dataset", dataset, "--model", "latent-trait", "--components", 1, "--no-report")
    assert (done := cli("fit", *fit, "--output", tmp_path / "r")).code == 0, done.err
    line = ("evaluate", "--dataset", dataset, "--artifact", tmp_path / "r", "--reliability")
    done = cli(*line)
    assert done.code == 0, done.err
    text = done.out
    for shown in ("all rows", "west", "with b reversed", "marginal", "ordinal alpha", "omega"):
        assert shown in text
    assert "None: constant and left out: NA" in text
    assert "b points the other way than most items" in text
    assert "nats per row" not in text
    everyone, *groups = cli(*line, "--json").json["reliability"]
    assert everyone["reversed"] == ["b"]
    alpha, turned = (everyone[key]["alpha"]["value"] for key in ("coefficients", "turned"))
    assert turned > alpha + 0.2
    assert [group["group"] for group in groups] == ["None", "west"]
    (traits,) = everyone["traits"].values()
    assert 0.5 < traits["marginal"] < 0.9
    done = cli(*line, "--tables", tmp_path / "tables")
    assert done.code == 0, done.err
    lines = (tmp_path / "tables" / "reliability.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3 * 4 + 3
    assert "standard_error" in lines[0]
