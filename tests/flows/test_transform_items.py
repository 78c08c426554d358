"""Rows scored by a table of known items: `flows.transform --items`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.data import draw_probit_rows, find_reference, write_arrays


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    X, _ = draw_probit_rows(300, 4, 1, seed=1)
    write_arrays(tmp_path / "d.zarr", X, names=["a", "b", "c", "d"])
    return tmp_path


def write_items(path: Path, lines: str, header: str = "feature,slope,offset") -> Path:
    path.write_text(f"{header}\n{lines}\n", encoding="utf-8")
    return path


def test_scores_are_those_of_mirt(cli, tmp_path) -> None:
    """Expected a posteriori scores and their standard deviations, with missing answers."""
    with find_reference("04_fixed_calibration/verbal_aggression_fixed_values.csv").open() as file:
        items = [*csv.DictReader(file)]
    answers = find_reference("data/verbal_aggression_score_rows.csv")
    names = answers.read_text().splitlines()[0].replace('"', "").split(",")
    lines = "\n".join(f"{i['item']},{i['a1']},{i['d']}" for i in items if i["item"] in names)
    write_items(tmp_path / "items.csv", lines)
    assert cli("ingest", answers, "--dataset", "d.zarr").code == 0
    line = ("transform", "--dataset", "d.zarr", "--items", "items.csv", "--dtype", "float64")
    assert cli(*line, "--output", "z.csv").code == 0
    scores = find_reference("04_fixed_calibration/verbal_aggression_scores_prior_0.0_1.0.csv")
    found, expected = pd.read_csv(tmp_path / "z.csv"), pd.read_csv(scores)
    np.testing.assert_allclose(found["mean_1"], expected["EAP"], atol=1e-5)
    np.testing.assert_allclose(found["sd_1"], expected["EAP_SE"], atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("components", [1, 2])
def test_exported_items_give_the_codes_of_the_fit(cli, folder, components: int) -> None:
    model = ("--model", "latent-trait", "--components", str(components), "--json")
    artifact = cli("fit", "--dataset", "d.zarr", *model).json["artifact"]
    export = ("export", "--artifact", artifact, "--what", "items", "--output")
    for name in ("items.csv", "items.parquet", artifact):
        assert name == artifact or cli(*export, name).code == 0
        line = ("transform", "--dataset", "d.zarr", "--overwrite", "--person-fit")
        assert cli(*line, "--items", name, "--output", "items_z.csv").code == 0
        assert cli(*line, "--artifact", artifact, "--output", "fit_z.csv").code == 0
        pd.testing.assert_frame_equal(pd.read_csv("items_z.csv"), pd.read_csv("fit_z.csv"))


def test_the_order_of_items_does_not_matter(cli, folder) -> None:
    lines = ["a,1,0", "b,0.5,-1", "c,2,0.25", "d,1.5,1"]
    for name, order in (("one", lines), ("two", lines[::-1])):
        write_items(folder / f"{name}.csv", "\n".join(order))
        line = ("transform", "--dataset", "d.zarr", "--items", f"{name}.csv")
        assert cli(*line, "--output", f"{name}_z.csv").code == 0
    assert (folder / "one_z.csv").read_bytes() == (folder / "two_z.csv").read_bytes()


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        ("a,1,0\nb,1,0\nc,1,0", None, "lacks items of d.zarr: d. Give all features"),
        ("a,1,0\nb,1,0\nc,1,0\nd,1,0\ne,1,0", None, "has items that d.zarr lacks: e."),
        ("a,1,0\nb,1,0\nc,1,0\nd,1,0\na,1,0", None, "has items twice: a."),
        ("a,1,0\nb,,0\nc,1,0\nd,1,0", None, "has no slope of b, but scores need all"),
        ("a,1,0\nb,1,inf\nc,1,0\nd,1,0", None, "offset of b is inf. Give a number up to 10,000"),
        ("a,1,0\nb,x,0\nc,1,0\nd,1,0", None, "slope of b is 'x', which is not a number"),
        ("a,1,0", "feature,slope,other", "has no column 'offsets'"),
        ("a,1,0", "feature,other,offset", "has no column 'slope'"),
        ("a,1,0", "item,slope,offset", "has no column 'feature'"),
        ("a,1", "feature,slope,offset", "has 2 values in the line of 'a', but 3 columns"),
        ("a,1,2,0", "feature,slope,slope,offset", "has columns with the same name: 'slope'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    cli, folder, lines: str, header: str | None, message: str
) -> None:
    write_items(folder / "items.csv", lines, header or "feature,slope,offset")
    line = ("transform", "--dataset", "d.zarr", "--output", "z.csv", "--items", "items.csv")
    assert message in cli(*line).check_refused()
    assert not (folder / "z.csv").exists()


def test_an_artifact_or_a_table_is_needed(cli, folder) -> None:
    line = ("transform", "--dataset", "d.zarr", "--output", "z.csv")
    assert "Give --artifact, the folder of a fit, or --items" in cli(*line).check_refused()
    assert "none.csv cannot be read" in cli(*line, "--items", "none.csv").check_refused()
    refused = cli(*line, "--items", "items.txt").check_refused()
    assert "neither a .csv or .parquet table nor the folder of a fit" in refused
