"""Exploratory factors on the command line: tables, report, codes and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import latentbits as lb
from flows.report.findings import summarize_findings
from flows.report.tables import make_factor_table, make_fit_statistics_table, make_parameter_table
from pipeline.inference.from_artifact import model_from_artifact
from storage.artifacts.artifacts import load_artifact
from tests.support.data import draw_probit_rows, write_arrays

NAMES = ["None", "NA", "c", "d", "e", "f", "g", "h"]
FIT = ("fit", "--executor", "serial", "--no-report", "--json", "--components", "2")
FACTORS = ("--set", "estimator=minres", "--set", "rotation=oblimin")


def test_tables_and_codes_are_those_of_the_rotated_factors(cli) -> None:
    X, _ = draw_probit_rows(800, 8, 2, seed=5)
    write_arrays(Path("d.zarr"), X, names=NAMES)
    line = [*FIT, *FACTORS, "--dataset", "d.zarr"]
    path = cli(*line).json["artifact"]
    line.remove("--json")
    assert "RMSEA, TLI, normal theory" in cli(*line).out
    params = lb.load(path).params
    export = ("export", "--artifact", path, "--what")
    assert cli(*export, "items", "--output", "i.parquet").code == 0
    items = pd.read_parquet("i.parquet").set_index("feature")
    assert [*items.index] == NAMES
    np.testing.assert_array_equal(items[["loadings_1", "loadings_2"]], params.loadings)
    np.testing.assert_allclose(items["communality"] + items["uniqueness"], 1)
    assert cli(*export, "factors", "--output", "f.parquet").code == 0
    factors = pd.read_parquet("f.parquet")
    assert factors["component"].tolist() == [1, 2]
    np.testing.assert_allclose(factors["sum_of_squares"].sum(), items["communality"].sum())
    correlations = factors[["correlation_1", "correlation_2"]]
    np.testing.assert_array_equal(correlations, params.component_correlation)
    assert cli(*export, "fit", "--output", "t.csv").code == 0
    assert {"rmsr", "rmsea", "normal_tli", "map_components"} < {*pd.read_csv("t.csv")["name"]}

    artifact = load_artifact(path)
    table = make_parameter_table(artifact, None)
    assert table is not None
    assert table.columns[:4] == ("loadings 1", "loadings 2", "communality", "uniqueness")
    places = [NAMES.index(name) for name, _ in table.rows]
    sizes = np.abs(params.loadings[places])
    main = sizes.argmax(axis=1)
    assert (np.diff(main) >= 0).all()
    assert all((np.diff(sizes[main == k, k]) <= 0).all() for k in range(2))
    shown = [cells[0].value for _, cells in table.rows]
    np.testing.assert_allclose(shown, params.loadings[places, 0])
    by_factor = make_factor_table(artifact)
    assert by_factor is not None
    assert len(by_factor.rows) == 2
    fit = make_fit_statistics_table(artifact.manifest)
    assert fit is not None
    assert [row[0] for row in fit.rows[:3]] == ["RMSR", "parameters", "χ²"]
    topics = summarize_findings(model_from_artifact(artifact), None, None)
    findings = " ".join(topics["Factors"] + topics["Fit"])
    assert "RMSR" in findings
    assert "of the variance of the items" in findings


def test_fits_without_factors_have_no_table_of_them(cli) -> None:
    X, _ = draw_probit_rows(200, 6, 1, seed=6)
    write_arrays(Path("d.zarr"), X)
    path = cli(*FIT, "--dataset", "d.zarr").json["artifact"]
    done = cli("export", "--artifact", path, "--what", "factors", "--output", "f.csv")
    assert "has no factors" in done.check_refused()
    assert make_factor_table(load_artifact(path)) is None
    refused = cli(*FIT[:-1], "5", *FACTORS, "--dataset", "d.zarr")
    assert "at most 3 factors" in refused.check_refused()
