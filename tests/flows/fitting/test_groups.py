"""Fits by the groups of a column: those of rows that were ingested in these segments."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.fitting import checkpoints
from storage.artifacts.artifacts import Artifact, load_artifact
from storage.codes.codes import open_codes
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import append_dataset
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.support.data import ArrayBatch, write_arrays
from tests.support.processes import kill_fit_at

SITES = ("north", "south", "east", "west")
NAMES = ("bread", "milk", "eggs", "tea", "rice", "salt")
BLICA = ("--model", "blica", "--components", 2, "--set", "regularization=20", "--set", "starts=1")
MODELS: dict[str, tuple[Any, ...]] = {
    "blica": BLICA,
    "linear-ivae": ("--model", "linear-ivae", "--components", 2, "--set", "max_iter=6"),
}
SITE = ("--group", "site")


def draw_rows(rows_per_site: int = 150) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows of four sites, mixed, and their columns."""
    truth = draw_nonstationary_truth(len(NAMES), 2, len(SITES), seed=3)
    (batch,) = draw_nonstationary_rows(truth, rows_per_site, seed=3)
    order = np.random.default_rng(0).permutation(len(batch.X))
    _, codes = np.unique(batch.columns["segment"], return_inverse=True)
    i = np.arange(len(order))
    columns = {
        "site": np.array(SITES, object)[codes[order]],
        "number": codes[order].astype(float),
        "lone": np.where(i == 5, "x", np.where(i % 2, "y", "z")).astype(object),
        "gap": np.where(i == 5, "", "y").astype(object),
        "split": np.where(i % 3, "train", "test").astype(object),
        "count": np.where(codes[order] == 3, 0, 1),
    }
    return batch.X[order], columns


X, COLUMNS = draw_rows()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    """Stored in segments that are not the sites."""
    thirds = np.array(["a", "b", "c"])[np.arange(len(X)) % 3]
    return write_arrays(folder / "d.zarr", X, None, thirds, columns=COLUMNS, names=NAMES).path


@pytest.fixture(scope="module")
def by_site(folder: Path) -> Path:
    """The same rows, stored in the sites."""
    return write_arrays(folder / "s.zarr", X, None, COLUMNS["site"], names=NAMES).path


@pytest.fixture(scope="module")
def many_chunks(folder: Path) -> Path:
    columns = {**COLUMNS, "split": COLUMNS["site"]}
    write = {"columns": columns, "names": NAMES, "words_per_chunk": 2}
    return write_arrays(folder / "c.zarr", X, **write).path


def fit_once(cli: Any, output: Path, *options: object) -> Path:
    """Return the artifact of a fit, which is done by the first test that needs it."""
    if not output.exists():
        assert cli("fit", *options, *BLICA, "--output", output).code == 0
    return load_artifact(output).path


@pytest.fixture
def fitted(cli, folder: Path, dataset: Path) -> Path:
    return fit_once(cli, folder / "runs", "--dataset", dataset, *SITE, "--split", "all")


@pytest.fixture
def fitted_by_site(cli, folder: Path, by_site: Path) -> Path:
    return fit_once(cli, folder / "site runs", "--dataset", by_site)


def get_bytes(artifact: Artifact) -> dict[str, bytes]:
    return {name: artifact[name].tobytes() for name in artifact}


@pytest.mark.parametrize("model", ["blica", pytest.param("linear-ivae", marks=pytest.mark.matrix)])
def test_groups_give_the_bytes_of_segments(cli, dataset: Path, by_site: Path, model: str) -> None:
    settings = (*MODELS[model], "--json")
    expected = load_artifact(cli("fit", "--dataset", by_site, *settings).json["artifact"])
    for name in ("site", "number"):
        done = cli("fit", "--dataset", dataset, "--group", name, *settings, "--split", "all")
        assert done.code == 0, done.err
        found = load_artifact(done.json["artifact"])
        assert get_bytes(found) == get_bytes(expected)
        names = [*dict.fromkeys(COLUMNS["site" if name == "site" else "number"].tolist())]
        assert found.manifest["group"] == done.json["group"] == name
        assert found.manifest["segment_names"] == [
            text if isinstance(text, str) else f"{text:g}" for text in names
        ]
    assert "group" not in expected.manifest
    assert expected.manifest["segment_names"] == [*dict.fromkeys(COLUMNS["site"].tolist())]


@pytest.mark.matrix
def test_every_executor_gives_the_same_bytes(cli, many_chunks: Path, cluster: str) -> None:
    command = ("fit", "--dataset", many_chunks, *BLICA, *SITE, "--json")
    ways = (("--executor", "serial"), ("--executor", "threads"), ("--cluster", cluster))
    found = []
    for number, way in enumerate(ways):
        done = cli(*command, *way, "--output", f"runs/{number}")
        assert done.code == 0, done.err
        found.append(get_bytes(load_artifact(done.json["artifact"])))
    assert found[0] == found[1] == found[2]


def test_the_summary_names_the_column(cli, dataset: Path) -> None:
    done = cli("fit", "--dataset", dataset, *BLICA, *SITE)
    assert "4 by site" in " ".join(done.out.split())


def test_codes_are_those_of_segments(
    cli, dataset: Path, by_site: Path, fitted: Path, fitted_by_site: Path
) -> None:
    for name, data, artifact in (("g", dataset, fitted), ("s", by_site, fitted_by_site)):
        options = ("--artifact", artifact, "--output", f"{name}.zarr", "--dtype", "float64")
        done = cli("transform", "--dataset", data, *options, "--reconstruct", "probabilities")
        assert done.code == 0, done.err
        assert "not fitted" not in done.out
    own, other = open_codes(Path("g.zarr")), open_codes(Path("s.zarr"))
    for array in ("mean", "probabilities"):
        np.testing.assert_array_equal(own[array], other[array])
    table = ("--what", "codes", "--output", "g.csv")
    assert cli("export", "--codes", "g.zarr", *table).code == 0
    with Path("g.csv").open() as file:
        assert [line["segment"] for line in csv.DictReader(file)] == COLUMNS["site"].tolist()


def test_codes_of_a_split_are_a_table_too(cli, dataset: Path, fitted: Path) -> None:
    options = ("--artifact", fitted, "--split", "test", "--output", "t.csv")
    assert cli("transform", "--dataset", dataset, *options).code == 0
    with Path("t.csv").open() as file:
        lines = [*csv.DictReader(file)]
    assert [line["segment"] for line in lines] == [line["site"] for line in lines]


def test_rows_of_other_groups_take_the_mean_and_are_named(cli, fitted: Path) -> None:
    columns = {"site": np.where(np.arange(40) < 20, "north", "moon").astype(object)}
    write_arrays(Path("o.zarr"), X[:40], columns=columns, names=NAMES)
    options = ("--artifact", fitted, "--output", "o.csv", "--json")
    (warning,) = cli("transform", "--dataset", "o.zarr", *options).json["warnings"]
    assert warning.startswith("segments that were not fitted")
    assert warning.endswith("'moon'")


@pytest.mark.parametrize("command", ["transform", "evaluate", "report"])
def test_data_without_the_column_are_refused(
    cli, by_site: Path, fitted: Path, command: str
) -> None:
    output = () if command == "evaluate" else ("--output", "out.html")
    output = ("--output", "out.zarr") if command == "transform" else output
    refused = cli(command, "--dataset", by_site, "--artifact", fitted, *output)
    assert refused.code == 2
    expected = (
        f"{by_site} has no per-row column 'site', whose values are the groups of {fitted}. "
        "Add the column."
    )
    assert expected in " ".join(refused.err.split())


@pytest.mark.matrix
def test_scores_are_those_of_segments(
    cli, dataset: Path, by_site: Path, fitted: Path, fitted_by_site: Path
) -> None:
    options = ("--split", "all", "--label", "segment", "--json")
    own = cli("evaluate", "--dataset", dataset, "--artifact", fitted, *options).json
    other = cli("evaluate", "--dataset", by_site, "--artifact", fitted_by_site, *options[2:]).json
    for result in (own, other):
        for model in result["models"]:
            for name in ("name", "artifact"):
                model.pop(name)
    assert own["models"][0]["rows_fitted"] == "all"
    assert own["models"] == other["models"]


@pytest.mark.matrix
def test_fits_with_and_without_groups_are_compared(cli, dataset: Path, fitted: Path) -> None:
    fit = ("fit", "--dataset", dataset, "--split", "all", "--json")
    pooled = cli(*fit, "--components", 1).json["artifact"]
    segments = cli(*fit, *BLICA).json["artifact"]
    numbers = cli(*fit, *BLICA, "--group", "number").json["artifact"]
    evaluate = ("evaluate", "--dataset", dataset, "--split", "all", "--json", "--label", "split")
    done = cli(*evaluate, "--artifact", pooled, "--artifact", fitted)
    assert done.code == 0, done.err
    assert {model["rows_fitted"] for model in done.json["models"]} == {"all"}
    alone = [cli(*evaluate, "--artifact", path).json["models"][0] for path in (pooled, fitted)]
    for model, own in zip(done.json["models"], alone, strict=False):
        for name in ("wrong_bits", "nll_per_bit"):
            assert model[name] == pytest.approx(own[name], rel=1e-9)
    for other, text in ((segments, "segments"), (numbers, "groups by number")):
        refused = cli(*evaluate, "--artifact", other, "--artifact", fitted)
        assert refused.code == 2
        expected = f"{other} has {text} and {fitted} has groups by site. Evaluate them one by one."
        assert expected in " ".join(refused.err.split())


@pytest.mark.matrix
def test_folds_refit_the_groups(
    cli, dataset: Path, by_site: Path, fitted: Path, fitted_by_site: Path
) -> None:
    options = ("--folds", 2, "--json")
    own = cli("evaluate", "--dataset", dataset, "--artifact", fitted, "--split", "all", *options)
    other = cli("evaluate", "--dataset", by_site, "--artifact", fitted_by_site, *options)
    assert own.code == other.code == 0, own.err
    found, expected = own.json["models"][0], other.json["models"][0]
    assert found["wrong_bits"] == pytest.approx(expected["wrong_bits"], rel=1e-9)


def test_sampled_rows_have_the_column(cli, dataset: Path, fitted: Path) -> None:
    done = cli("sample", "--artifact", fitted, "--rows", 200, "--output", "r.zarr")
    assert done.code == 0, done.err
    sampled = open_dataset("r.zarr")
    assert sampled.column("site").tolist() == sampled.segments().tolist()
    options = ("--artifact", fitted, "--output", "r.csv")
    done = cli("transform", "--dataset", "r.zarr", *options)
    assert done.code == 0
    assert "not fitted" not in done.out


def test_reports_and_tables_name_the_groups(cli, dataset: Path) -> None:
    done = cli("fit", "--dataset", dataset, *BLICA, *SITE, "--json", "--report")
    page = Path(done.json["report"]).read_text()
    assert "4 by site" in page
    assert "latent space" in page
    artifact = done.json["artifact"]
    again = cli("report", "--artifact", artifact, "--output", "again.html")
    assert again.code == 0, again.err
    assert Path("again.html").read_text().count("<svg") == page.count("<svg")
    table = ("--what", "correlations", "--output", "c.csv")
    assert cli("export", "--artifact", artifact, *table).code == 0
    with Path("c.csv").open() as file:
        assert {line["segment"] for line in csv.DictReader(file)} == {*SITES}


@pytest.mark.matrix
def test_an_interrupted_fit_goes_on(cli, many_chunks: Path) -> None:
    settings = (*MODELS["linear-ivae"], *SITE, "--executor", "serial", "--no-report", "--json")
    command = ("fit", "--dataset", many_chunks, *settings)
    expected = load_artifact(cli(*command, "--output", "undisturbed").json["artifact"])
    kill_fit_at("states/000002/manifest.json", [str(word) for word in command[1:]])
    done = cli(*command, "--resume")
    assert done.code == 0, done.err
    assert get_bytes(load_artifact(done.json["artifact"])) == get_bytes(expected)


@pytest.mark.matrix
def test_kept_counts_are_those_of_the_column(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits by several columns take turns, and rows are appended."""
    monkeypatch.setattr(checkpoints, "_MAX_SHARE", 1e9)
    n_first = 400
    columns = {
        "site": COLUMNS["site"],
        "next": np.roll(COLUMNS["site"], 1),
        "late": np.where(np.arange(len(X)) < n_first, COLUMNS["site"], "moon").astype(object),
    }

    def select_columns(rows: slice) -> dict[str, np.ndarray]:
        return {name: values[rows] for name, values in columns.items()}

    data: dict[str, Any] = {"words_per_chunk": 3, "names": NAMES}
    write_arrays(Path("d.zarr"), X[:n_first], columns=select_columns(slice(n_first)), **data)
    for group in columns:
        assert cli("fit", "--dataset", "d.zarr", *BLICA, "--group", group).code == 0
    kept = [*Path("d.zarr", checkpoints.STATISTICS_FOLDER).glob("*/manifest.json")]
    assert len(kept) % len(columns) == 0 < len(kept)
    with append_dataset(Path("d.zarr"), NAMES) as writer:
        writer.add(ArrayBatch(X[n_first:], None, select_columns(slice(n_first, None))))
    write_arrays(Path("fresh.zarr"), X, columns=columns, **data)
    drifts = []
    for group in reversed(columns):
        fit = (*BLICA, "--group", group, "--json")
        again, fresh = (
            load_artifact(cli("fit", "--dataset", path, *fit).json["artifact"])
            for path in ("d.zarr", "fresh.zarr")
        )
        np.testing.assert_allclose(again["mixing"], fresh["mixing"], rtol=1e-9)
        drifts.append(again.manifest["drift"])
    # The latest fit before had the same groups only once.
    assert drifts[0]["rows_new"] == len(X) - n_first
    assert drifts[0]["new_segments"] == ["moon"]
    assert [{*drift} for drift in drifts[1:]] == [{"note"}, {"note"}]
    assert all("had other rows or groups" in drift["note"] for drift in drifts[1:])


MIXTURE = ("--model", "bernoulli-mixture", "--components", 2, *SITE, "--split", "all", "--json")


def test_latent_classes_have_shares_by_group(cli, dataset: Path) -> None:
    done = cli("fit", "--dataset", dataset, *MIXTURE, "--output", "m")
    assert done.code == 0, done.err
    assert "warning" not in done.err
    found = load_artifact(done.json["artifact"])
    assert found["group_class_weights"].shape == (4, 2)
    assert (found["group_class_weights_error"] > 0).all()
    assert found["segment_rows"].tolist() == [150] * 4
    report = cli("report", "--artifact", "m", "--output", "r.html")
    assert report.code == 0, report.err
    page = Path("r.html").read_text()
    assert all(text in page for text in ("AIC, BIC", "Class weights by group", "4 by site"))

    codes = cli(
        "transform", "--dataset", dataset, "--artifact", "m", "--output", "z.zarr", "--json"
    )
    assert codes.code == 0, codes.err
    means = open_codes("z.zarr")["mean"]
    for k, site in enumerate(found.manifest["segment_names"]):
        shares = means[COLUMNS["site"] == site].mean(axis=0)
        np.testing.assert_allclose(shares, found["group_class_weights"][k], atol=2e-3)

    again = cli("fit", "--dataset", dataset, *MIXTURE, "--output", "m", "--warm-start")
    assert again.json["iterations"] < done.json["iterations"]
    drawn = cli("sample", "--artifact", "m", "--rows", 100, "--output", "s.zarr")
    assert drawn.code == 0, drawn.err
    assert open_dataset("s.zarr").column_names == ("site",)


REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "model": (
        ("--components", 1, *SITE),
        "--group: clipped-pca has no parameters by group. These models have: "
        "bernoulli-mixture, binary-ica-likelihood, blica, ising, latent-trait, linear-ivae.",
    ),
    "no column": ((*BLICA, "--group", "sites"), "there is no per-row column 'sites'. It has: site"),
    "missing": ((*BLICA, "--group", "gap"), "row 6 has no value in column 'gap'."),
    "one row": (
        (*BLICA, "--group", "lone", "--split", "all"),
        "--group: The group 'x' has 1 row, but at least 2 are needed.",
    ),
    "no row of the split": (
        (*BLICA, "--group", "lone", "--split", "test"),
        "--group: The group 'x' has 0 rows of the split test, but at least 2 are needed.",
    ),
    "damaged": (
        (*BLICA, *SITE, "--skip-corrupt"),
        "--group cannot be combined with --skip-corrupt. Leave out one of them.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_grouped_is_refused_in_a_sentence(cli, dataset: Path, case: str) -> None:
    options, message = REFUSALS[case]
    refused = cli("fit", "--dataset", dataset, *options)
    assert refused.code == 2
    assert message in " ".join(refused.err.split())
    assert not Path("runs").exists()
