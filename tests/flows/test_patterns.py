"""Loading patterns from the command line and from Python."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from pipeline.errors import FitError
from storage.artifacts.artifacts import load_artifact
from storage.dataset.writer import create_dataset
from tests.support.data import ArrayBatch, write_arrays

ITEMS = [f"q{k}" for k in range(6)]
PATTERN = {"item": ITEMS, "Want": [1, 1, "a", 0, 0, 0], "Do": [0, 0, 0, 1, 1, "a"]}


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((400, 2)) @ np.linalg.cholesky([[1, 0.5], [0.5, 1]]).T
    return (rng.logistic(size=(400, 6)) < 1.5 * np.repeat(x, 3, axis=1)).astype(np.uint8)


def test_a_pattern_is_read_from_files_and_frames(cli, tmp_path, rows) -> None:
    dataset = write_arrays(tmp_path / "d.zarr", rows, names=ITEMS)
    table = pd.DataFrame(PATTERN).astype(str)
    table.to_csv(tmp_path / "p.csv", index=False)
    table.to_parquet(tmp_path / "p.parquet")
    options = ("--dataset", dataset.path, "--model", "latent-trait", "--no-report", "--json")
    weights = []
    for suffix in ("csv", "parquet"):
        done = cli("fit", *options, "--pattern", tmp_path / f"p.{suffix}", "--executor", "serial")
        assert done.code == 0, done.err
        artifact = load_artifact(done.json["artifact"])
        weights.append(artifact["weights"])
        assert artifact.manifest["pattern"]["entries"][2] == ["a", "0"]
    fitted = lb.fit(str(dataset.path), "latent-trait", pattern=table)
    np.testing.assert_array_equal(weights, [fitted.params.weights] * 2)
    assert fitted.params.weights[2, 0] == fitted.params.weights[5, 1]
    exported = cli("export", "--artifact", artifact.path, "--what", "items", "--output", "i.csv")
    assert exported.code == 0, exported.err
    with open(tmp_path / "i.csv") as file:
        line = next(csv.DictReader(file))
    assert float(line["weights_Want"]) > 0
    assert float(line["weights_Do"]) == 0
    exported = cli("export", "--artifact", artifact.path, "--what", "factors", "--output", "f.csv")
    assert exported.code == 0, exported.err
    factors = pd.read_csv(tmp_path / "f.csv")
    assert factors["component"].tolist() == ["Want", "Do"]
    for name in ("", "_error"):
        expected = artifact[f"trait_covariance{name}"][0, :, 1]
        np.testing.assert_allclose(factors[f"correlation{name}_Do"], expected)
    fit = ("--artifact", artifact.path, "--dataset", dataset.path)
    done = cli("transform", *fit, "--output", "z.csv", "--standardize")
    assert "component Do " in done.out
    columns = pd.read_csv(tmp_path / "z.csv").columns.tolist()
    assert columns[1:] == ["mean_Want", "sd_Want", "mean_Do", "sd_Do", "covariance_Want_Do"]
    row = dict(zip(ITEMS, rows[0].tolist(), strict=True))
    assert {"mean_Want", "mean_Do", "variance_Do"} < {*lb.Scorer(fitted)(row)}
    assert "2: Want, Do" in repr(artifact)
    assert artifact.to_xarray()["component"].values.tolist() == ["Want", "Do"]
    report = fitted.report()
    assert "trait 1" not in report.html
    assert "Want is led by" in " ".join(report.findings)
    assert "No data determine the signs of traits, which are such" in " ".join(report.findings)


def test_a_table_of_scales_is_a_pattern(cli, tmp_path, rows) -> None:
    names = [*ITEMS[:5], "None", "apart"]
    X = np.column_stack([rows, np.zeros(len(rows), np.uint8)])  # no scale has the last feature
    X[:, 1] ^= 1
    dataset = write_arrays(tmp_path / "d.zarr", X, names=names)
    scales = {"item": names[5:2:-1] + names[:3], "scale": ["NA"] * 3 + ["W"] * 3}
    scales["reversed"] = ["", "no", None, "", "yes", "0"]
    pd.DataFrame(scales).to_csv(tmp_path / "s.csv", index=False)
    options = ("--dataset", dataset.path, "--model", "latent-trait", "--no-report", "--json")
    done = cli("fit", *options, "--pattern", "s.csv", "--executor", "serial")
    assert done.code == 0, done.err
    assert done.json["traits"] == ["NA", "W"]
    found = load_artifact(done.json["artifact"])
    assert found.manifest["feature_names"] == ["q0", "q1 (reversed)", *names[2:6]]
    wide = pd.DataFrame({"item": names[:6], "NA": [0, 0, 0, 1, 1, 1], "W": [1, 1, 1, 0, 0, 0]})
    chosen = {"features": names[:6], "reverse": ["q1"]}
    expected = lb.fit(str(dataset.path), "latent-trait", pattern=wide, **chosen)
    np.testing.assert_array_equal(found["weights"], expected.params.weights)
    assert expected.params.weights[:3, 1].min() > 0.5
    frame = pd.DataFrame(X, columns=names)
    again = lb.fit(frame, "latent-trait", pattern=pd.DataFrame(scales), drop=["q4"])
    assert again.feature_names == ("q0", "q1 (reversed)", "q2", "q3", "None")
    assert again.params.weights.shape == (5, 2)


@pytest.mark.matrix
def test_items_with_several_levels_take_a_pattern(cli, tmp_path, rows) -> None:
    rng = np.random.default_rng(3)
    X = rows + (rows & (rng.random(rows.shape) < 0.5))
    levels = dict.fromkeys(ITEMS[1:], ("no", "perhaps", "yes"))
    X[:, 0] = rows[:, 0]
    with create_dataset(tmp_path / "d.zarr", ITEMS, feature_levels=levels) as writer:
        writer.add(ArrayBatch(X, None, {}))
    pd.DataFrame(PATTERN).to_csv(tmp_path / "p.csv", index=False)
    data = ("--dataset", tmp_path / "d.zarr")
    options = (*data, "--model", "latent-trait", "--pattern", "p.csv", "--output", tmp_path / "fit")
    done = cli("fit", *options, "--report")
    assert done.code == 0, done.err
    artifact = load_artifact(tmp_path / "fit")
    value, error = (artifact[f"trait_covariance{name}"][0, 0, 1] for name in ("", "_error"))
    assert abs(value - 0.5) < 3 * error
    report = (artifact.path / "report.html").read_text()
    assert f"{value:.3f} <small>± {error:.3f}</small>" in report
    fit = ("--artifact", tmp_path / "fit")
    for command in (
        ("transform", *fit, *data, "--output", "codes", "--person-fit"),
        ("evaluate", *fit, *data, "--folds", "2"),
        ("sample", *fit, "--rows", "50", "--output", "s.zarr"),
        ("export", *fit, "--what", "items", "--output", "i.csv"),
    ):
        done = cli(*command)
        assert done.code == 0, done.err
    exported = pd.read_csv(tmp_path / "i.csv")
    assert (exported["weights_Want"] > 0).tolist() == [True] * 3 + [False] * 3
    assert exported["weights_Want"][2] == exported["weights_Do"][5]
    refused = cli("fit", *options, "--set", "items=nominal")
    assert refused.code == 2
    assert "Nominal items have a slope per level" in refused.err


def test_bad_patterns_are_refused(cli, tmp_path, rows) -> None:
    dataset = write_arrays(tmp_path / "d.zarr", rows, names=ITEMS)
    (tmp_path / "p.csv").write_text("item,A\nq0,1\nq1\n")
    (tmp_path / "p.txt").write_text("")
    (tmp_path / "s.csv").write_text("item,scale,reversed\nq0,A,yes\nq1,A,no\nq0,B,no\nq2,B,no\n")
    (tmp_path / "k.csv").write_text("item,scale,keyed\nq0,A,+\n")
    options = ("fit", "--dataset", dataset.path, "--model", "latent-trait", "--pattern")
    for name, message in (
        ("p.csv", "has 1 values in the line of 'q1', but 2 columns"),
        ("p.txt", "is neither .csv nor .parquet"),
        ("none.csv", "cannot be read"),
        ("s.csv", "item 'q0' is reversed, but not in scale 'B'. In one fit of all scales, it is"),
        ("k.csv", "has no column 'reversed', but has: 'keyed'. Rename the column"),
    ):
        refused = cli(*options, tmp_path / name)
        assert refused.code == 2
        assert message in refused.err
        assert "--pattern: " in refused.err
    with pytest.raises(FitError, match="pattern must be a path or a data frame"):
        lb.fit(rows, "latent-trait", pattern=3)


@pytest.mark.matrix
def test_folds_are_refitted_with_the_pattern(cli, tmp_path, rows) -> None:
    dataset = write_arrays(tmp_path / "d.zarr", rows, names=ITEMS)
    pd.DataFrame(PATTERN).to_csv(tmp_path / "p.csv", index=False)
    fit = ("fit", "--dataset", dataset.path, "--model", "latent-trait", "--no-report", "--json")
    scores = []
    for options in (("--pattern", "p.csv"), ("--components", 2, "--set", "estimator=quadrature")):
        artifact = cli(*fit, *options).json["artifact"]
        command = ("evaluate", "--dataset", dataset.path, "--artifact", artifact, "--folds", 2)
        scores.append(cli(*command, "--json").json["models"][0]["log_likelihood"])
    assert abs(scores[0] - scores[1]) > 1e-6


def test_later_commands_take_many_traits(cli, tmp_path) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, 5))
    logits = 1.2 * x[:, :1] + np.repeat(x[:, 1:], 4, axis=1)
    X = (rng.logistic(size=logits.shape) < logits).astype(np.uint8)
    items = [f"q{k}" for k in range(16)]
    dataset = write_arrays(tmp_path / "d.zarr", X, names=items)
    table = {"item": items, "general": [1] * 16}
    table |= {f"block{k}": [int(i // 4 == k) for i in range(16)] for k in range(4)}
    pd.DataFrame(table).to_csv(tmp_path / "p.csv", index=False)
    data = ("--dataset", dataset.path)
    options = (*data, "--model", "latent-trait", "--no-report", "--json")
    done = cli("fit", *options, "--pattern", "p.csv", "--executor", "serial")
    assert done.code == 0, done.err
    fit = ("--artifact", done.json["artifact"])
    codes = cli("transform", *fit, *data, "--output", "codes", "--person-fit")
    assert codes.code == 0, codes.err
    mean = lb.open_codes(tmp_path / "codes")["mean"]
    assert mean.shape == (500, 5)
    assert np.corrcoef(mean[:, 0], x[:, 0])[0, 1] > 0.7
    evaluated = cli("evaluate", *fit, *data, "--json")
    assert evaluated.code == 0, evaluated.err
    drawn = cli("sample", *fit, "--rows", "50", "--output", "s.zarr")
    assert drawn.code == 0, drawn.err
    refused = cli("export", *fit, "--what", "information", "--output", "i.csv")
    assert refused.code == 2
    assert "The fit has 5 traits" in refused.err
