"""Fits of weighted rows from the command line: equal to repeated rows, described, or refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifacts.artifacts import load_artifact
from tests.support.data import draw_probit_rows, write_arrays

LATENT_TRAIT = ("--model", "latent-trait", "--components", "1")
MIXTURE = ("--model", "bernoulli-mixture", "--components", "2")
SURVEY = ("--weight", "survey", "--weights", "sampling")


def count_patterns(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows and their numbers, in order of appearance."""
    counts = Counter(map(tuple, X.tolist()))
    return np.array([*counts], np.uint8), np.array([*counts.values()])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """1,500 rows, and their distinct rows with a column of frequencies and others."""
    folder = tmp_path_factory.mktemp("weights")
    X, _ = draw_probit_rows(1500, 6, 1, seed=5)
    patterns, frequency = count_patterns(X)
    columns = {
        "frequency": frequency,
        "texts": np.array([*map(str, frequency)], object),
        "names": np.array([f"p{i}" for i in range(len(patterns))], object),
        "survey": frequency / 7,
        "negative": np.where(np.arange(len(patterns)) == 3, -1, 1),
        "missing": np.where(np.arange(len(patterns)) == 3, np.nan, 1.0),
        "infinite": np.where(np.arange(len(patterns)) == 3, np.inf, 1.0),
        "unit": np.array([f"u{i % 20}" for i in range(len(patterns))], object),
        "only": np.array(["u"] * len(patterns), object),
        "first_unit": np.where(np.arange(len(patterns)) % 20 == 0, 1, 0),
        "gaps": np.array(["u0", ""] * len(patterns), object)[: len(patterns)],
        "nothing": np.zeros(len(patterns), np.int64),
        "split": np.array(["train", "test"] * len(patterns), object)[: len(patterns)],
    }
    rows = write_arrays(folder / "rows.zarr", X).path
    return rows, write_arrays(folder / "patterns.zarr", patterns, columns=columns).path


@pytest.mark.parametrize(
    ("model", "column"),
    [
        (("--components", "2"), "frequency"),
        (("--components", "2"), "texts"),
        (LATENT_TRAIT, "frequency"),
        (MIXTURE, "frequency"),
    ],
)
def test_a_frequency_is_that_many_rows(cli, datasets, model: tuple[str, ...], column: str) -> None:
    rows, patterns = datasets
    expanded = cli("fit", "--dataset", rows, *model, "--json").json
    options = ("--weight", column, "--split", "all", "--json")
    collapsed = cli("fit", "--dataset", patterns, *model, *options).json
    assert collapsed["row_weights"]["total"] == 1500
    expected, found = (load_artifact(s["artifact"]) for s in (expanded, collapsed))
    assert [*found] == [*expected]
    for name in expected:
        if expected[name].dtype.kind == "f":
            np.testing.assert_allclose(
                found[name], expected[name], rtol=1e-8, atol=1e-8, err_msg=name
            )


def test_weights_are_described(cli, datasets) -> None:
    _, patterns = datasets
    command = ("fit", "--dataset", patterns, *LATENT_TRAIT, "--split", "all")
    found = cli(*command, "--weight", "frequency")
    assert "frequency, which counts 1,500 rows" in found.out
    found = cli(*command, "--weight", "survey", "--weights", "sampling", "--report")
    assert "rows of equal weights" in found.out
    (report,) = (line for line in found.out.splitlines() if line.startswith("report: "))
    page = Path(report.removeprefix("report: ")).read_text()
    assert "rows of equal weights" in page
    assert "S-X² could not be computed: the rows have sampling weights" in page


def test_clipped_pca_of_a_survey_names_what_it_leaves_out(cli, datasets) -> None:
    command = ("fit", "--dataset", datasets[1], "--split", "all", *SURVEY)
    done = cli(*command, "--components", "2", "--json")
    artifact = load_artifact(done.json["artifact"])
    assert "correlation_error" not in artifact
    assert "there are no standard errors for sampling weights" in artifact.manifest["warnings"]
    message = cli(*command).check_refused()
    assert "cannot be chosen with sampling weights. Set --components." in message


def test_weights_are_of_the_rows_of_the_split(cli, datasets) -> None:
    _, patterns = datasets
    command = ("fit", "--dataset", patterns, *LATENT_TRAIT, "--json")
    halves = [
        cli(*command, "--weight", "frequency", "--split", name).json for name in ("train", "test")
    ]
    assert sum(half["row_weights"]["total"] for half in halves) == 1500
    assert [half["row_weights"]["n_rows"] for half in halves] == [
        half["n_samples"] for half in halves
    ]


def test_clusters_change_only_the_standard_errors(cli, plain_cli, datasets) -> None:
    command = ("fit", "--dataset", datasets[1], *LATENT_TRAIT, "--split", "all", *SURVEY)
    rows, clusters, on_threads = (
        load_artifact(call(*command, *options, "--no-report", "--json").json["artifact"])
        for call, options in (
            (cli, ()),
            (cli, ("--psu", "unit")),
            (plain_cli, ("--psu", "unit", "--executor", "threads")),
        )
    )
    for name in ("weights", "offsets"):
        np.testing.assert_array_equal(clusters[name], rows[name])
        assert not np.allclose(clusters[f"{name}_error"], rows[f"{name}_error"], rtol=0.01)
        np.testing.assert_array_equal(clusters[f"{name}_error"], on_threads[f"{name}_error"])
    assert clusters.manifest["row_weights"]["psu"] == "unit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weight", "nobody"), "no per-row column 'nobody'"),
        (("--weight", "names"), "'p0', which is not a number"),
        (("--weight", "negative"), "row 4: the weight -1 in negative is negative"),
        (("--weight", "missing"), "row 4: the weight in missing is missing"),
        (("--weight", "infinite"), "row 4: the weight inf in infinite is infinite"),
        (("--weight", "nothing"), "all weights in nothing are 0"),
        (("--weight", "survey"), "is not a whole number; use --weights sampling"),
        (("--weights", "sampling"), "--weights needs --weight COLUMN"),
        (("--weight", "frequency", "--skip-corrupt"), "cannot be combined with --skip-corrupt"),
        (("--weight", "frequency", "--model", "rbm"), "rbm cannot use weights"),
        (("--psu", "unit"), "--psu needs --weight COLUMN"),
        (("--psu", "unit", "--weight", "frequency"), "--psu needs --weights sampling"),
        ((*SURVEY, "--psu", "infinite"), "numbers that are not whole"),
        ((*SURVEY, "--psu", "survey"), "--psu: survey holds the weights"),
        ((*SURVEY, "--psu", "only"), "have the same unit in only"),
        (
            ("--weight", "first_unit", "--weights", "sampling", "--psu", "unit"),
            "all rows with a weight have the same unit in unit",
        ),
        ((*SURVEY, "--psu", "gaps"), "row 2 has no unit in gaps"),
        ((*SURVEY, "--psu", "nobody"), "no per-row column 'nobody'"),
        (
            (*SURVEY, "--psu", "unit", "--model", "clipped-pca"),
            "standard errors of clipped-pca do not allow for clusters",
        ),
    ],
)
def test_weights_that_cannot_be_used_are_refused(
    cli, datasets, tmp_path, options: tuple[Any, ...], message: str
) -> None:
    model = () if "--model" in options else LATENT_TRAIT
    output = tmp_path / "runs"
    command = ("fit", "--dataset", datasets[1], "--split", "all", "--output", output)
    assert message in cli(*command, *model, *options).check_refused()
    assert not output.exists()
