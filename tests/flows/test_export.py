"""The export command: every number is where its name says, whatever the model and the file."""

from __future__ import annotations

import zipfile
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flows.cli.errors import format_warnings, is_bad_input
from flows.exporting.files import collect_columns, write_table
from pipeline.models.registry import find_models
from storage import load_artifact, open_codes, open_dataset
from storage.dataset.dataset import BinaryDataset
from tests.conformance.models import FACTS
from tests.support.data import draw_probit_rows, find_shared_data, write_arrays
from tests.support.faults import limit_file_size
from tests.support.fits import build_model, write_fit

NAMES = ["=1+1", "b, c", 'say "d"', "é", "http://e", "0"]
NAMES_IN_CSV = ["'=1+1", *NAMES[1:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> BinaryDataset:
    """Four chunks of rows in three segments, with columns of every kind."""
    X, _ = draw_probit_rows(600, 6, 2, seed=2)
    observed = (np.random.default_rng(0).random(X.shape) < 0.95).astype(np.uint8)
    columns = {
        "person": np.char.add("p", np.arange(600).astype(str)),
        "mean_1": np.where(np.arange(600) % 5, "x", ""),
        "age": np.where(np.arange(600) % 7, np.arange(600) / 4, np.nan),
        "split": np.where(np.arange(600) % 3, "train", "test"),
    }
    segments = np.array(["south", "north", "all of it"])[np.arange(600) % 3]
    return write_arrays(folder / "d.zarr", X * observed, observed, segments, 3, columns, NAMES)


@pytest.fixture(scope="module")
def artifact(folder: Path, dataset: BinaryDataset) -> Any:
    """Path of the fit of a model."""

    def fitted(name: str, *settings: str) -> Path:
        model = build_model(name, "2", settings) if settings else FACTS[name].make_brief(10)
        return write_fit(folder / "-".join((name, *settings)), model, dataset)

    return lru_cache(fitted)


@pytest.fixture
def exported(cli):
    """Call the command, and read the CSV that it leaves."""

    def call(what: str, *options: object, output: str = "t.csv") -> pd.DataFrame:
        done = cli("export", "--what", what, "--output", output, *options, "--json")
        assert done.code == 0, done.err
        read = pd.read_csv if output.endswith("csv") else pd.read_parquet
        found = read(output)
        assert (done.json["n_rows"], done.json["columns"]) == (len(found), [*found.columns])
        return found

    return call


def cells(path: str) -> list[list[str]]:
    """Texts and numbers of a sheet, as Excel reads them."""
    space = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    with zipfile.ZipFile(path) as book:
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    assert not sheet.findall(".//m:f", space)  # formulas
    rows = sheet.findall(".//m:row", space)
    return [["".join(cell.itertext()) for cell in row] for row in rows]


# --- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(find_models()))
def test_all_parameters_of_features_are_there(exported, cli, artifact, name):
    path = artifact(name)
    saved = load_artifact(path)
    over_features = {
        key: np.moveaxis(saved[key], saved.dims(key).index("feature"), 0).reshape(6, -1)
        for key in saved
        if saved[key].size and saved.dims(key).count("feature") == 1
        if "feature_j" not in saved.dims(key) and "bound" not in saved.dims(key)
    }
    if not over_features:
        command = ("export", "--what", "items", "--artifact", path, "--output", "t.csv")
        assert "has no parameters of features" in cli(*command).check_refused()
        assert not Path("t.csv").exists()
        return
    found = exported("items", "--artifact", path)
    assert [*found["feature"]] == NAMES_IN_CSV
    for key, values in over_features.items():
        # Of arrays whose names begin alike, columns have another number of positions.
        deeper = "" if saved[key].ndim > 3 else "|[0-9]+_[0-9]"
        pattern = key if saved[key].ndim == 1 else f"{key}_(?!error|low|high{deeper})"
        columns = found.filter(regex=f"^{pattern}" + ("$" if saved[key].ndim == 1 else ""))
        if key == "parents":  # of features in trees: indices, exported as names
            named = pd.DataFrame(np.array([*NAMES_IN_CSV, ""])[values])
            np.testing.assert_array_equal(columns.fillna(""), named)
        else:
            np.testing.assert_array_equal(columns.to_numpy(float), values)


def test_what_a_constant_item_does_not_have_is_left_empty(cli, tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 1))
    X = (np.random.default_rng(1).random((300, 5)) < 1 / (1 + np.exp(-x))).astype(np.uint8)
    X[:, 0] = 1
    dataset = write_arrays(tmp_path / "d.zarr", X)
    model = build_model("latent-trait", "1", ["constant_features=keep"])
    fitted = write_fit(tmp_path / "trait", model, dataset)
    assert cli("report", "--artifact", fitted).code == 0
    command = ("export", "--what", "items", "--artifact", fitted, "--output", "t.csv")
    assert cli(*command).code == 0
    head, first, second = [line.split(",") for line in Path("t.csv").read_text().splitlines()[:3]]
    column = head.index('"s_x2_p"')
    assert first[column] == first[head.index('"weights_error_1"')] == ""
    assert 0 < float(second[column]) < 1


@pytest.mark.matrix
def test_columns_are_named_by_component_and_segment(exported, artifact):
    saved = load_artifact(artifact("blica", "regularization=20", "bootstrap=20"))
    found = exported("items", "--artifact", saved.path)
    low, high = saved["mixing_interval"]
    expected = ["feature"]
    for k in range(2):
        names = [f"mixing_{k + 1}", f"mixing_low_{k + 1}", f"mixing_high_{k + 1}"]
        for name, values in zip(names, (saved["mixing"], low, high), strict=True):
            np.testing.assert_array_equal(found[name], values[:, k])
        expected += names
    segments = ["south", "north", "all of it"]
    for k, segment in enumerate(segments):
        np.testing.assert_array_equal(found[f"thresholds_{segment}"], saved["thresholds"][k])
    expected += [
        f"{name}_{segment}" for name in ("thresholds", "scales", "varies") for segment in segments
    ]
    assert [*found.columns] == expected


def test_standard_errors_stand_beside(exported, artifact):
    saved = load_artifact(artifact("binary-ica-likelihood"))
    found = exported("items", "--artifact", saved.path)
    n = saved["mixing"].shape[1]
    mixing = [f"{name}_{k + 1}" for k in range(n) for name in ("mixing", "mixing_error")]
    assert [*found.columns] == ["feature", *mixing, "offsets", "offsets_error"]
    for k in range(n):
        np.testing.assert_array_equal(found[f"mixing_error_{k + 1}"], saved["mixing_error"][:, k])


# --- pairs and facts -----------------------------------------------------------------------------


def test_every_pair_has_a_line(exported, folder):
    X, _ = draw_probit_rows(300, 5, 2, seed=2)
    X[:, 3] = 1
    X[:, 1] &= X[:, 0]
    model = build_model("clipped-pca", "2", ["constant_features=keep"])
    path = write_fit(folder / "constant", model, write_arrays(folder / "constant.zarr", X))
    saved, found = load_artifact(path), exported("correlations", "--artifact", path)
    of_each = ("correlation", "status", "correlation_error")
    assert [*found.columns] == ["feature_1", "feature_2", *of_each]
    pairs = [*combinations(range(5), 2)]
    assert [*zip(found["feature_1"], found["feature_2"], strict=True)] == [
        (f"f{i}", f"f{j}") for i, j in pairs
    ]
    constant = np.array([3 in pair for pair in pairs])
    at = tuple(np.array(pairs).T)
    expected = np.where(constant, np.nan, saved["correlation"][at])
    np.testing.assert_array_equal(found["correlation"], expected)
    assert {*found["status"][constant]} == {"constant feature"}
    assert [*found["status"][:2]] == ["empty cell", "plain"]


@pytest.mark.few(1)
@pytest.mark.parametrize("at_once", [1, 13, 1 << 17])
def test_segments_have_correlations_of_their_own(exported, artifact, monkeypatch, at_once):
    monkeypatch.setattr("flows.exporting.artifacts._PAIRS_PER_BATCH", at_once)
    saved = load_artifact(artifact("blica", "regularization=20"))
    found = exported("correlations", "--artifact", saved.path, output="t.parquet")
    assert [*found.columns] == ["feature_1", "feature_2", "segment", "correlation", "status"]
    assert len(found) == 45
    upper = np.triu_indices(6, 1)
    for k, segment in enumerate(("south", "north", "all of it")):
        own = found[found["segment"] == segment]
        np.testing.assert_array_equal(own["correlation"], saved["correlations"][k][upper])


@pytest.mark.matrix
def test_a_fit_is_told_in_names_and_values(exported, artifact):
    path = artifact("latent-trait", "max_iter=2")
    manifest = load_artifact(path).manifest
    found = exported("fit", "--artifact", path)
    told = dict(zip(found["name"], found["value"], strict=True))
    assert [*found.columns] == ["name", "value"]
    assert len(told) == len(found)
    assert (told["model"], told["rows"], told["features"], told["components"]) == (
        *("latent-trait", "600", "6", "2"),
    )
    assert float(told["objective_per_row"]) == manifest["objective"]
    assert (told["converged"], told["passes"], told["seed"]) == (
        *("false", str(manifest["iterations"]), "0"),
    )
    assert int(told["warnings"]) == len(manifest["warnings"]) > 0
    assert told["warning_1"] == format_warnings(manifest["warnings"])[0]
    assert told["dataset"] == manifest["dataset"]["path"]


# --- rows ----------------------------------------------------------------------------------------


@pytest.fixture
def transformed(cli, dataset, artifact, monkeypatch):
    """Call the transform command, whose runs end elsewhere than chunks."""
    monkeypatch.setattr("pipeline.passes.row_ranges._MIN_ROWS", 50)

    def call(name: str, output: str, *options: object) -> None:
        command = ("--dataset", dataset.path, "--artifact", artifact(name), "--output", output)
        done = cli("transform", *command, *options)
        assert done.code == 0, done.err

    return call


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["latent-trait", "bernoulli-mixture", "blica", "clipped-pca"])
@pytest.mark.parametrize("split", [None, "test"])
def test_codes_stand_beside_what_is_known_of_their_rows(
    transformed, exported, dataset, name, split
):
    options = () if split is None else ("--split", split)
    transformed(name, "z.zarr", *options)
    codes, found = open_codes("z.zarr"), exported("codes", "--codes", "z.zarr")
    rows = np.arange(600) if split is None else np.arange(0, 600, 3)
    n = codes["mean"].shape[1]
    known = ["row", "segment", "person", "column_mean_1", "age", "split"]
    assert [*found.columns[:6]] == known
    np.testing.assert_array_equal(found["row"], rows)
    np.testing.assert_array_equal(found["segment"], dataset.segments()[rows])
    np.testing.assert_array_equal(found["person"], [f"p{row}" for row in rows])
    np.testing.assert_array_equal(found["column_mean_1"].isna(), rows % 5 == 0)
    np.testing.assert_array_equal(found["age"], dataset.column("age")[rows])
    means = found[[f"mean_{k + 1}" for k in range(n)]].to_numpy(np.float32)
    np.testing.assert_array_equal(means, codes["mean"])
    if "variance" in codes:
        errors = found[[f"sd_{k + 1}" for k in range(n)]].to_numpy(np.float32)
        np.testing.assert_array_equal(errors, np.sqrt(codes["variance"]))
        assert found.columns[6:8].tolist() == ["mean_1", "sd_1"]
    if "covariance" in codes:
        got = found["covariance_1_2"].to_numpy(np.float32)
        np.testing.assert_array_equal(got, codes["covariance"][:, 0, 1])
    if "converged" in codes:
        np.testing.assert_array_equal(found["converged"], codes["converged"])
    assert not {"variance_1", "covariance_1_1", "covariance_2_1"} & {*found.columns}


@pytest.mark.matrix
@pytest.mark.parametrize("output", ["t.csv", "t.parquet", "t.xlsx"])
def test_transform_writes_the_same_table(transformed, cli, output):
    transformed("clipped-pca", "z.zarr")
    transformed("clipped-pca", output)
    assert {path.name for path in Path().iterdir()} == {"z.zarr", output}
    done = cli("export", "--what", "codes", "--codes", "z.zarr", "--output", f"other-{output}")
    assert done.code == 0, done.err
    if output == "t.xlsx":  # which says when it was made
        found = cells(output)
        assert found == cells("other-t.xlsx")
        assert len(found) == 601
        assert found[1][:3] == ["0", "south", "p0"]
    else:
        assert Path(output).read_bytes() == Path(f"other-{output}").read_bytes()


def test_standardized_codes_and_the_way_back(transformed, cli, exported):
    """What a table of positions should have, with errors on the same scale."""
    transformed("latent-trait", "z.zarr")
    plain = exported("codes", "--codes", "z.zarr")
    transformed("latent-trait", "s.csv", "--standardize")
    found = pd.read_csv("s.csv")
    codes = ["mean_1", "mean_2"]
    np.testing.assert_allclose(found[codes].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(found[codes].std(ddof=0), 1, rtol=1e-6)
    command = ("export", "--what", "codes", "--codes", "z.zarr", "--standardize")
    scale = cli(*command, "--output", "u.csv", "--json").json["scale"]
    assert Path("u.csv").read_bytes() == Path("s.csv").read_bytes()
    means, sds = np.array(scale["mean"]), np.array(scale["sd"])
    np.testing.assert_allclose(means + sds * found[codes], plain[codes], rtol=1e-5, atol=1e-6)
    errors = ["sd_1", "sd_2"]
    np.testing.assert_allclose(found[errors] * sds, plain[errors], rtol=1e-5)
    covariance = found["covariance_1_2"] * sds.prod()
    np.testing.assert_allclose(covariance, plain["covariance_1_2"], rtol=1e-5, atol=1e-7)
    done = cli(*command, "--output", "v.csv")
    assert f"component 2: code of the fit = {means[1]:.6g} + {sds[1]:.6g} ×" in done.out


def test_equal_codes_and_folders_are_not_standardized(cli, artifact, dataset, tmp_path):
    same = write_arrays(tmp_path / "same.zarr", np.ones((80, 6), np.uint8), names=NAMES)
    command = ("transform", "--artifact", artifact("clipped-pca"), "--standardize", "--dataset")
    message = cli(*command, same.path, "--output", "t.csv").check_refused()
    assert "Component 1 has the same code in all rows" in message
    assert "Leave out --standardize" in message
    message = cli(*command, dataset.path, "--output", "z.zarr").check_refused()
    assert "--standardize needs a table, but --output is 'z.zarr'" in message


def test_no_column_takes_the_place_of_another(cli, exported, tmp_path):
    X, _ = draw_probit_rows(80, 4, 1, seed=0)
    columns = {"column_row": np.arange(80) + 1, "row": np.arange(80) + 2}
    dataset = write_arrays(tmp_path / "d.zarr", X, columns=columns)
    path = write_fit(tmp_path / "a", build_model("bernoulli-mixture", "2", []), dataset)
    command = ("transform", "--dataset", dataset.path, "--artifact", path, "--output", "z.zarr")
    assert cli(*command).code == 0
    found = exported("codes", "--codes", "z.zarr")
    names = ["row", "column_row", "column_column_row", "mean_1", "mean_2"]
    assert [*found.columns] == names
    assert found.iloc[0, :3].tolist() == [0, 1, 2]


@pytest.mark.matrix
def test_probabilities_go_by_the_names_of_features(transformed, exported):
    transformed("latent-trait", "z.zarr", "--reconstruct", "probabilities")
    found = exported("codes", "--codes", "z.zarr", output="t.parquet")
    names = [f"probabilities_{name}" for name in NAMES]
    np.testing.assert_array_equal(found[names], open_codes("z.zarr")["probabilities"])


@pytest.mark.matrix
def test_neighbours_are_rows_too(cli, exported, dataset):
    command = ("neighbours", "--dataset", dataset.path, "--k", 2, "--output", "n.zarr")
    assert cli(*command).code == 0
    found = exported("codes", "--codes", "n.zarr")
    nearest = open_codes("n.zarr")["indices"]
    np.testing.assert_array_equal(found[["indices_1", "indices_2"]], nearest)


def test_real_answers_keep_the_gender_of_who_gave_them(cli, exported, tmp_path):
    """The two-parameter model of a questionnaire, from the source to the table."""
    path = str(find_shared_data("verbal_aggression.npz"))
    assert cli("ingest", path, "--dataset", "anger.zarr").code == 0
    dataset = open_dataset("anger.zarr")
    fitted = write_fit(tmp_path / "trait", build_model("latent-trait", "1", []), dataset)
    items = exported("items", "--artifact", fitted)
    of_each = ("weights_1", "weights_error_1", "offsets", "offsets_error", "rotated_1")
    assert [*items.columns][:6] == ["feature", *of_each]
    assert items["feature"][0] == "S1WantCurse"
    command = ("transform", "--dataset", "anger.zarr", "--artifact", fitted)
    assert cli(*command, "--output", "z.csv").code == 0
    found = pd.read_csv("z.csv")
    assert [*found.columns] == ["row", "y", "mean_1", "sd_1"]
    np.testing.assert_array_equal(found["y"], dataset.column("y"))
    assert 0.9 < found["mean_1"].var() + (found["sd_1"] ** 2).mean() < 1.1


# --- files, and what is refused ------------------------------------------------------------------


def test_excel_gets_texts_as_they_are(cli, artifact):
    path = artifact("clipped-pca")
    done = cli("export", "--what", "items", "--artifact", path, "--output", "t.xlsx")
    assert done.code == 0, done.err
    head, *lines = cells("t.xlsx")
    assert head[:2] == ["feature", "loadings_1"]
    assert [line[0] for line in lines] == NAMES
    loadings = [float(line[1]) for line in lines]
    np.testing.assert_allclose(loadings, load_artifact(path)["loadings"][:, 0], rtol=1e-14)


def test_a_file_that_is_there_is_replaced_on_request_alone(cli, artifact):
    command = (
        "export",
        "--what",
        "fit",
        "--artifact",
        artifact("clipped-pca"),
        "--output",
        "t.csv",
    )
    Path("t.csv").write_text("mine")
    assert "--overwrite" in cli(*command).check_refused()
    assert Path("t.csv").read_text() == "mine"
    assert cli(*command, "--overwrite").code == 0
    assert Path("t.csv").read_text().startswith('"name","value"')
    assert [path.name for path in Path().iterdir()] == ["t.csv"]


def test_nothing_is_left_of_a_table_that_cannot_be_made(transformed, cli):
    transformed("clipped-pca", "z.zarr")
    damaged = sorted(Path("z.zarr/mean/c").iterdir())[-1] / "0"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    command = ("export", "--what", "codes", "--codes", "z.zarr", "--output", "t.csv")
    assert "mean: chunk" in cli(*command).check_refused()
    assert [path.name for path in Path().iterdir()] == ["z.zarr"]


@pytest.mark.matrix
def test_no_text_becomes_a_formula(tmp_path):
    """But numbers remain numbers, also those in a column of texts."""
    risky = ["=1", "+a", "-a", "@a", "\ta", "\ra", "-1-2"]
    other = ["-1.5", "+2e3", "-inf", "-1 -2.5", "a=1", "'", "é"]
    table = collect_columns({"=x": pa.array([*risky, *other, None]), "-y": pa.array([-1.0] * 15)})
    for suffix in ("csv", "parquet", "xlsx"):
        write_table(table, tmp_path / f"t.{suffix}", overwrite=False)
    found = pd.read_csv(tmp_path / "t.csv", lineterminator="\n", keep_default_na=False)
    assert [*found.columns] == ["'=x", "'-y"]
    assert [*found["'=x"]] == [*(f"'{text}" for text in risky), *other, ""]
    assert [*found["'-y"]] == [-1.0] * 15
    assert [*pd.read_parquet(tmp_path / "t.parquet").dropna()["=x"]] == [*risky, *other]
    assert [line[0] for line in cells(str(tmp_path / "t.xlsx"))[1:6]] == [*risky[:4], "\ta"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "xlsx"])
def test_a_full_disk_is_named(tmp_path, suffix):
    target = tmp_path / f"t.{suffix}"
    numbers = pa.array(np.random.default_rng(0).random(9000))
    with limit_file_size(20_000), pytest.raises(OSError, match="File too large") as full:
        write_table(collect_columns({"x": numbers}), target, overwrite=False)
    assert full.value.filename == str(target)
    assert is_bad_input(full.value)
    assert [*tmp_path.iterdir()] == []


def test_excel_has_no_room_for_more_rows(cli, transformed, monkeypatch, dataset, artifact):
    monkeypatch.setattr("flows.cli.options._MAX_EXCEL_SHAPE", (599, 100))
    transformed("clipped-pca", "z.zarr")
    expected = "Excel takes at most 599 rows and 100 columns, but there are 600"
    export = ("export", "--what", "codes", "--codes", "z.zarr", "--output", "t.xlsx")
    assert expected in cli(*export).check_refused()
    command = ("transform", "--dataset", dataset.path, "--artifact", artifact("clipped-pca"))
    assert expected in cli(*command, "--output", "t.xlsx").check_refused()
    assert cli(*command, "--output", "t.xlsx", "--split", "test").code == 0


def test_the_extra_is_named_where_excel_cannot_be_written(cli, artifact, monkeypatch):
    monkeypatch.setattr("storage.extras.find_spec", lambda name: None)
    command = ("export", "--what", "fit", "--artifact", artifact("clipped-pca"))
    assert "pip install 'latentbits[excel]'" in cli(*command, "--output", "t.xlsx").check_refused()


def test_codes_of_other_fits_and_rows_are_refused(transformed, cli, artifact, tmp_path):
    transformed("clipped-pca", "z.zarr")
    X, _ = draw_probit_rows(600, 6, 2, seed=9)
    other = write_arrays(tmp_path / "o.zarr", X, names=NAMES).path
    command = ("export", "--what", "codes", "--codes", "z.zarr", "--output", "t.csv")
    message = cli(*command, "--dataset", other).check_refused()
    assert f"{other}: z.zarr contains codes of another dataset" in message
    message = cli(*command, "--artifact", artifact("latent-trait")).check_refused()
    assert "z.zarr was not computed with" in message
    assert cli(*command, "--artifact", artifact("clipped-pca")).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--what", "items", "--output", "t.csv"), "--what items needs --artifact."),
        (("--what", "codes", "--output", "t.csv"), "--what codes needs --codes."),
        (
            ("--what", "fit", "--output", "t.tsv"),
            "--output is 't.tsv', but must end in .csv, .parquet or .xlsx.",
        ),
        (
            ("--what", "fit", "--output", "s3://key:secret@b/t.csv?secret"),
            "error: s3://b/t.csv is a URL, but only a local path works here.",
        ),
        (("--what", "all", "--output", "t.csv"), "--what"),
    ],
)
def test_what_cannot_be_written_is_refused(cli, options, message):
    assert message in cli("export", *options).check_refused()


def test_options_of_other_tables_are_refused(cli, artifact):
    path = artifact("latent-trait")
    command = ("export", "--artifact", path, "--output", "t.csv", "--what")
    assert (
        "--codes cannot be used with --what fit"
        in cli(*command, "fit", "--codes", "z").check_refused()
    )
    message = cli(*command, "correlations").check_refused()
    assert "latent-trait has no correlations of features" in message
