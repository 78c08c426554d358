"""The bottleneck from the command line: fitted to a kept column, and judged by other rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentbits import functions as api
from storage import load_artifact, open_codes, open_dataset
from tests.support.data import write_arrays

SETTINGS = {"max_iter": 30, "batch": 20}
SPELLED = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
BOTTLENECK = ("--model", "bottleneck", "--components", 2, "--no-report", *SPELLED)
KINDS = np.array(["ape", "bee", "cat"])
N_ROWS = 1500


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bits, and which of three kinds: the place of the first two bits that are on."""
    X = np.random.default_rng(seed).integers(0, 2, (N_ROWS, 10), dtype=np.uint8)
    return X, np.where(X[:, 0] == 1, 0, np.where(X[:, 1] == 1, 1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`d.zarr` with labels of all sorts, and a fit to the texts of its split `train`."""
    folder = tmp_path_factory.mktemp("bottleneck")
    X, kind = rows()
    texts = KINDS[kind].astype(object)
    texts[:30] = ""
    noise = np.random.default_rng(1).standard_normal(N_ROWS)
    columns = {
        "kind": texts,
        "number": kind,
        "size": X @ np.arange(10.0) + noise,
        "same": np.full(N_ROWS, 4),
        "none": np.full(N_ROWS, np.nan),
        "split": np.where(np.arange(N_ROWS) % 3, "train", "test"),
    }
    write_arrays(folder / "d.zarr", X, words_per_chunk=2, columns=columns)
    segments = [f"s{k}" for k in kind]
    write_arrays(folder / "parts.zarr", X, segments=segments, words_per_chunk=16)
    return folder


@pytest.fixture(scope="module")
def fits() -> dict[str, str]:
    return {}


@pytest.fixture
def fitted(cli: Any, folder: Path, fits: dict[str, str]) -> Any:
    """Call the command, once for each column; return the artifact."""

    def call(column: str, data: str = "d.zarr") -> str:
        if column not in fits:
            given = ("--dataset", folder / data, *BOTTLENECK, "--set", f"column={column}")
            done = cli("fit", *given, "--output", folder / column, "--json")
            assert done.code == 0, done.err
            assert all("stopped before converging" in text for text in done.json["warnings"])
            fits[column] = done.json["artifact"]
        return fits[column]

    return call


def evaluated(cli: Any, dataset: Path, artifact: str, *more: object) -> dict[str, Any]:
    given = ("--dataset", dataset, "--artifact", artifact, *more, "--no-baselines")
    done = cli("evaluate", *given, "--json")
    assert done.code == 0, done.err
    (found,) = done.json["models"]
    return dict(found)


@pytest.mark.matrix
def test_texts_are_predicted_of_rows_that_were_not_fitted(cli, folder, fitted):
    artifact = fitted("kind")
    stored = load_artifact(artifact)
    assert sorted(stored.manifest["labels"]) == KINDS.tolist()
    assert stored.manifest["split"] == "train"
    found = evaluated(cli, folder / "d.zarr", artifact, "--split", "test")
    told = found["prediction"]
    assert (told["column"], told["rows"], told["rows_without"]) == ("kind", 490, 10)
    assert told["accuracy"] > 0.98
    assert told["commonest"] < 0.6
    assert found["kind"] == "none"
    assert any("10 rows have no label and are left out" in text for text in found["warnings"])
    given = ("--dataset", folder / "d.zarr", "--artifact", artifact)
    done = cli("evaluate", *given, "--split", "test")
    assert f"{told['accuracy']:.2%} right" in done.out
    assert f"kind: {told['accuracy']:.4f} ± " in done.out
    assert "independent features" in done.out


def test_codes_are_the_hidden_units(cli, folder, fitted):
    artifact = load_artifact(fitted("kind"))
    done = cli(
        *("transform", "--dataset", folder / "d.zarr", "--artifact", artifact.path),
        *("--output", "z.zarr", "--dtype", "float64"),
    )
    assert done.code == 0, done.err
    inputs = rows()[0] @ artifact["weights"] + artifact["biases"]
    np.testing.assert_allclose(open_codes("z.zarr")["mean"], 1 / (1 + np.exp(-inputs)))


@pytest.mark.matrix
def test_categories_are_found_by_name_in_another_dataset(cli, folder, fitted, tmp_path):
    X, kind = rows(seed=7)
    same = evaluated(cli, folder / "d.zarr", fitted("kind"))["prediction"]["accuracy"]
    for order in (slice(None), slice(None, None, -1)):  # codes are given in order of appearance
        path = tmp_path / f"{order.step}.zarr"
        write_arrays(path, X[order], columns={"kind": KINDS[kind][order]})
        told = evaluated(cli, path, fitted("kind"))["prediction"]
        assert told["accuracy"] == pytest.approx(same, abs=0.02)
        assert told["unseen"] == 0
    swapped = np.where(kind == 1, "dog", KINDS[kind])
    found = evaluated(
        cli, write_arrays(tmp_path / "new.zarr", X, columns={"kind": swapped}).path, fitted("kind")
    )
    n_new = int((kind == 1).sum())
    assert found["prediction"]["unseen"] == n_new
    assert found["prediction"]["accuracy"] == pytest.approx(1 - n_new / N_ROWS, abs=0.02)
    assert f"column 'kind': {n_new} rows have a label that was not fitted" in found["warnings"][0]


@pytest.mark.matrix
def test_whole_numbers_are_categories_and_fractions_are_not(cli, folder, fitted):
    told = evaluated(cli, folder / "d.zarr", fitted("number"), "--split", "test")["prediction"]
    assert told["accuracy"] > 0.98
    assert load_artifact(fitted("number")).manifest["labels"] == ["0", "1", "2"]
    told = evaluated(cli, folder / "d.zarr", fitted("size"), "--split", "test")["prediction"]
    assert 0.9 < told["r2"] < 1
    assert 1 < told["rmse"] < 3
    given = ("--dataset", folder / "d.zarr", "--artifact", fitted("size"), "--no-baselines")
    assert f"R² {told['r2']:.4f}" in cli("evaluate", *given, "--split", "test").out


@pytest.mark.matrix
def test_segments_are_predicted_unless_a_column_is_told(cli, folder, fitted):
    told = evaluated(cli, folder / "parts.zarr", fitted("segment", "parts.zarr"))["prediction"]
    assert (told["column"], told["rows"]) == ("segment", N_ROWS)
    assert told["accuracy"] > 0.98


@pytest.mark.matrix
def test_a_notebook_finds_the_same(folder, fitted, cli):
    dataset = open_dataset(folder / "d.zarr")
    found = api.Fitted.from_artifact(load_artifact(fitted("kind")))
    expected = evaluated(cli, folder / "d.zarr", fitted("kind"))["prediction"]
    assert api.evaluate(found, dataset, split="test")["prediction"] == expected
    settings: dict[str, Any] = {"column": "kind", **SETTINGS}
    again = api.fit(dataset, "bottleneck", components=2, split="train", **settings)
    assert again.labels == found.labels
    np.testing.assert_array_equal(again.params.weights, found.params.weights)


def arrays(artifact: str) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in load_artifact(artifact).items()}


@pytest.mark.matrix
def test_every_executor_gives_the_same_bytes(cli, folder, fitted, cluster):
    expected = arrays(fitted("kind"))
    given = ("--dataset", folder / "d.zarr", *BOTTLENECK, "--set", "column=kind", "--json")
    for where in (("--executor", "serial"), ("--executor", "threads"), ("--cluster", cluster)):
        done = cli("fit", *given, *where)
        assert done.code == 0, done.err
        assert arrays(done.json["artifact"]) == expected, where


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            (),
            "has only one segment, so segments cannot be predicted. Choose a per-row column by",
        ),
        (("column=",), "column is empty. Set it to the name of a per-row column"),
        (
            ("column=sex",),
            "there is no per-row column 'sex'. It has: kind, number, size, same, none, split.",
        ),
        (("column=same",), "Column 'same' has the same label in all rows"),
        (("column=none",), "Column 'none' has no labels"),
        (("column=kind", "kind=number"), "--set kind=number needs numbers, but column 'kind'"),
        (("column=kind", "rate=0"), "rate must be above 0, but is 0.0"),
        (("column=kind", "rate=-0.1"), "rate must be above 0, but is -0.1"),
    ],
)
def test_what_cannot_be_predicted_is_refused(cli, folder, settings, message):
    spelled = [word for setting in settings for word in ("--set", setting)]
    done = cli("fit", "--dataset", folder / "d.zarr", *BOTTLENECK, *spelled)
    assert done.code == 2
    assert message in done.message
    assert "\n" not in done.message.strip()


def test_no_components_are_refused(cli, folder):
    given = ("--dataset", folder / "d.zarr", "--model", "bottleneck", "--set", "column=kind")
    done = cli("fit", *given, "--components", 0)
    assert (done.code, "--components must be at least 1, but is 0" in done.message) == (2, True)


def test_rows_that_are_all_the_same_are_refused(cli, tmp_path):
    X, kind = rows()
    write_arrays(tmp_path / "same.zarr", np.ones_like(X), columns={"kind": KINDS[kind]})
    done = cli("fit", "--dataset", tmp_path / "same.zarr", *BOTTLENECK, "--set", "column=kind")
    assert done.code == 2
    assert "All rows have the same values" in done.message


def test_training_that_diverges_is_told(cli, folder):
    given = ("--dataset", folder / "d.zarr", *BOTTLENECK[:4], "--no-report", "--json")
    settings = ("column=kind", "rate=1e30", "max_iter=5")
    done = cli("fit", *given, *(word for setting in settings for word in ("--set", setting)))
    assert done.code == 0, done.err
    told, independent, stopped = done.json["warnings"]
    assert "training diverged" in told
    assert "no better than" in independent
    assert "stopped before converging, at --set max_iter=5" in stopped
    assert "Use a lower learning rate: --set rate=0.05." in told
    assert not done.json["converged"]


def test_rows_without_labels_cannot_be_judged_by(cli, folder, fitted, tmp_path):
    X, kind = rows()
    bare = write_arrays(tmp_path / "bare.zarr", X).path
    empty = write_arrays(
        tmp_path / "empty.zarr", X, columns={"kind": np.full(N_ROWS, "", object)}
    ).path
    texts = write_arrays(tmp_path / "texts.zarr", X, columns={"size": KINDS[kind]}).path
    for path, column, message in (
        (bare, "kind", "there is no per-row column 'kind'. It has: none."),
        (empty, "kind", "column 'kind': none of these rows has a label"),
        (
            texts,
            "size",
            "column 'size': the model was fitted to numbers, but",
        ),
    ):
        done = cli("evaluate", "--dataset", path, "--artifact", fitted(column), "--no-baselines")
        assert done.code == 2, path
        assert message in done.message
        assert "\n" not in done.message.strip()
