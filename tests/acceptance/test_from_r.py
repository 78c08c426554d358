"""The numbers of `.docs/tasks/from-r.md`: those of R's mirt, psych and pscl."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.acceptance.test_two_tables import saved

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / ".docs" / "tasks" / "from-r.md").read_text(encoding="utf-8")
REFERENCE = ROOT / "tests" / "reference"


def write_csv(name: str, path: str) -> None:
    data = saved(name)
    values = data["X"].astype(float)
    if "M" in data:
        values[data["M"] == 0] = np.nan
    names = [name.replace(" ", "") for name in data["names"]]
    pd.DataFrame(values, columns=names).to_csv(path, index=False, float_format="%.0f")


def printed() -> pd.DataFrame:
    """The page's table of numbers."""
    lines = re.findall(r"^\| (?:item|\d) \|.*", PAGE, re.MULTILINE)
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return pd.DataFrame(cells[1:], columns=cells[0]).set_index("item").astype(float)


@pytest.fixture
def items(plain_cli: Callable[..., Any]) -> dict[str, pd.DataFrame]:
    write_csv("lsat6", "lsat6.csv")
    for line in re.findall(r"^    latentbits (.*)$", PAGE, re.MULTILINE):
        done = plain_cli(*shlex.split(line))
        assert done.code == 0, done.err[-2000:]
    return {name: pd.read_csv(f"{name}.csv") for name in ("irt", "pca")}


@pytest.mark.matrix
def test_the_numbers_of_the_page_are_those_of_both(items: dict[str, pd.DataFrame]) -> None:
    table = printed()
    mirt = pd.read_csv(REFERENCE / "mirt_items.csv").query("dataset == 'lsat6'")
    psych = pd.read_csv(REFERENCE / "psych_lsat6.csv")
    for column, value in [
        ("a1` of mirt", mirt["a"]),
        ("d` of mirt", mirt["d"]),
        ("PC1` of psych", psych["PC1"]),
        ("tau` of psych", psych["tau"]),
        *((name, items["irt"][name]) for name in ("weights_1", "offsets")),
        *((name, items["pca"][name]) for name in ("loadings_1", "thresholds")),
    ]:
        np.testing.assert_allclose(table[column], value, rtol=0, atol=5.5e-5, err_msg=column)


@pytest.mark.matrix
def test_numbers_of_r_and_ours_agree(
    items: dict[str, pd.DataFrame], plain_cli: Callable[..., Any]
) -> None:
    mirt = pd.read_csv(REFERENCE / "mirt_items.csv").query("dataset == 'lsat6'")
    np.testing.assert_allclose(items["irt"][["weights_1", "offsets"]], mirt[["a", "d"]], atol=1e-5)
    psych = pd.read_csv(REFERENCE / "psych_lsat6.csv")
    columns = ["loadings_1", "loadings_2"]
    np.testing.assert_allclose(items["pca"][columns], psych[["PC1", "PC2"]], atol=5e-5)
    np.testing.assert_allclose(items["pca"]["thresholds"], psych["tau"], atol=1e-8)
    done = plain_cli(
        *("export", "--artifact", "runs/pca", "--what", "correlations", "--output", "r.csv")
    )
    assert done.code == 0
    above = psych.to_numpy()[:, :5][np.triu_indices(5, 1)]
    # psych's optimiser stops 2e-5 short of the root, which ours meets to 1e-9.
    np.testing.assert_allclose(pd.read_csv("r.csv")["correlation"], above, atol=2e-5)


@pytest.mark.matrix
def test_ideal_points_are_those_of_pscl(plain_cli: Callable[..., Any]) -> None:
    write_csv("housevotes84", "votes.csv")
    fit = ("--model", "latent-trait", "--components", 1, "--set", "prior_precision=1")
    for words in (
        ("ingest", "votes.csv", "--dataset", "votes.zarr"),
        ("fit", "--dataset", "votes.zarr", *fit),
        ("transform", "--dataset", "votes.zarr", "--artifact", "runs/votes")
        + ("--output", "points.csv"),
    ):
        assert plain_cli(*words).code == 0
    ideal = pd.read_csv(REFERENCE / "pscl_housevotes84.csv")["ideal"]
    points = pd.read_csv("points.csv")["mean_1"]
    assert round(abs(np.corrcoef(ideal, points)[0, 1]), 3) == 0.998
    assert "correlation of 0.998" in " ".join(PAGE.split())
