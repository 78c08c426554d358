"""Fits of several scales of one dataset, and their tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from storage.artifacts.artifacts import load_artifact

N_ROWS = 200
CODES = ("mean_1", "sd_1", "converged")
SCALES = "item,scale,reversed\na1,calm,no\na2,calm,yes\na3,calm,\nb1,None,0\nb2,None,0\na1,None,1\n"


@pytest.fixture
def answers(plain_cli, tmp_path: Path) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    traits = np.repeat(rng.standard_normal((N_ROWS, 2)), [3, 2], axis=1)
    y = traits + rng.standard_normal((N_ROWS, 5))
    y[:, 1] *= -1
    table = pd.DataFrame((y > 0.2).astype(float), columns=["a1", "a2", "a3", "b1", "b2"])
    table.loc[3, ["a1", "a2", "a3"]] = np.nan  # no item of one scale is observed
    table.insert(0, "id", [f"p{k}" for k in range(N_ROWS)])
    table.to_csv(tmp_path / "a.csv", index=False)
    done = plain_cli("ingest", "a.csv", "--dataset", "a.zarr", "--keep", "id")
    assert done.code == 0, done.err
    return table


def fit(cli, text: str, *options: str):
    Path("scales.csv").write_text(text)
    words = ("fit", "--dataset", "a.zarr", "--scales", "scales.csv", "--output", "out")
    return cli(*words, "--executor", "serial", *options)


def test_scales_are_fitted_and_joined(plain_cli, answers: pd.DataFrame, tmp_path: Path) -> None:
    done = fit(plain_cli, SCALES)
    assert done.code == 0, done.err
    choice = ("--features", "a*", "--reverse", "a2", "--components", "1", "--output", "alone")
    done = plain_cli("fit", "--dataset", "a.zarr", *choice, "--no-report", "--executor", "serial")
    assert done.code == 0, done.err
    own, alone = load_artifact(tmp_path / "out" / "calm"), load_artifact(tmp_path / "alone")
    assert own.manifest["feature_names"] == ["a1", "a2 (reversed)", "a3"]
    np.testing.assert_array_equal(own["loadings"], alone["loadings"])
    combined = tmp_path / "out" / "combined"
    scores = pd.read_csv(combined / "scores.csv")
    columns = [f"{scale}_{name}" for scale in ("calm", "None") for name in CODES]
    assert [*scores] == ["row", "id", *columns]
    assert [*scores["id"]] == [*answers["id"]]
    words = ("--artifact", "alone", "--dataset", "a.zarr", "--output", "codes.csv")
    done = plain_cli("transform", *words)
    assert done.code == 0, done.err
    codes = pd.read_csv(tmp_path / "codes.csv")
    np.testing.assert_array_equal(scores["calm_mean_1"], codes["mean_1"])
    items = pd.read_csv(combined / "items.csv", keep_default_na=False)
    assert [*items["scale"]] == ["calm"] * 3 + ["None"] * 3
    assert [*items["feature"]] == ["a1", "a2 (reversed)", "a3", "a1 (reversed)", "b1", "b2"]
    page = (combined / "report.html").read_text()
    links = re.findall('href="([^"]+)"', page)
    assert len(links) == 2
    assert all((combined / link).is_file() for link in links)
    fits = lb.fit_scales(answers, "scales.csv", "clipped-pca")
    assert [*fits] == ["calm", "None"]
    np.testing.assert_array_equal(fits["calm"].params.loadings, alone["loadings"])
    by_pattern = lb.fit_scales(answers, {"calm": "a*"}, "clipped-pca", reverse="a2")
    np.testing.assert_array_equal(by_pattern["calm"].params.loadings, alone["loadings"])
    words = ("evaluate", "--dataset", "a.zarr", "--reliability", "--artifact")
    done = plain_cli(*words, "out", "--tables", "tables")
    assert done.code == 0, done.err
    shown = re.findall("^(calm|None) +all rows +200 +3 ", done.out, re.MULTILINE)
    assert shown == ["calm", "None"]
    table = pd.read_csv(tmp_path / "tables" / "reliability-items.csv", keep_default_na=False)
    assert [*zip(table["scale"], table["feature"], strict=True)] == [
        *zip(items["scale"], items["feature"], strict=True)
    ]
    done = plain_cli(*words, "out", "--artifact", "alone")
    assert (done.code, "alone has no scales, unlike out. Name folders" in done.err) == (2, True)
    done = plain_cli("compare", "out", "./out", "--output", "models.csv")
    assert done.code == 0, done.err
    assert "\n1: out\n" in done.out
    models = pd.read_csv(tmp_path / "models.csv", keep_default_na=False)
    assert [*models["scale"]] == ["calm", "calm", "None", "None"]
    assert [*models["n_rows"]] == [200] * 4
    done = plain_cli("compare", "out", "gone")
    assert (done.code, "gone: there is no such artifact. List the fits:" in done.err) == (2, True)
    done = plain_cli(*words, "out/calm", "--artifact", "out/None")
    assert done.code == 2
    assert "Evaluate fits to other features one at a time." in done.err
    # A run that was interrupted before the tables fits nothing again.
    (combined / "scores.csv").unlink()
    done = fit(plain_cli, SCALES, "--resume", "--json")
    assert done.code == 0, done.err
    assert done.json["scales"]["calm"]["artifact"].endswith(own.path.name)
    assert (combined / "scores.csv").is_file()
    others = ("--reverse", "b2", "--drop", "b1", "--no-report")
    done = fit(plain_cli, SCALES, "--resume", "--json", *others)
    assert done.json["scales"]["None"]["items"] == ["b2", "a1"]
    assert done.json["scales"]["None"]["reversed"] == ["b2", "a1"]
    assert done.json["scales"]["calm"]["artifact"].endswith(own.path.name)
    assert not (combined / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("item,scale\na11,A\n", (), "has no feature 'a11' of scale 'A' (perhaps 'a1"),
        (
            "item,scale\nB2,A\na1,A\nB2,C\n" + "".join(f"z{k}x,A\n" for k in range(7)),
            (),
            "has no feature 'B2' of scale 'A' (perhaps 'b2'), 'z0x' of scale 'A', 'z1x' of scale "
            "'A', 'z2x' of scale 'A', 'z3x' of scale 'A' and 3 more. Correct the names, or delete "
            "the lines. Features: a1, ",
        ),
        ("item,scale\na1,A\na2,A\na1,A\n", (), "item 'a1' is twice in scale 'A'. Delete a line."),
        ("item,scale\nz,A\n", (), "'z' of scale 'A'. Correct the name, or delete the line. "),
        ("item,scale\n", (), "scales.csv has no items. Write a line for each item."),
        ("item,scale\na1,\n", (), "item 'a1' has no scale. Name one, or delete the line."),
        ("feature,scale\na1,A\n", (), "has no column 'item'. It has: 'feature', 'scale'."),
        ("item,scale,key\na1,A,-1\n", (), "has no column 'reversed', but has: 'key'. Rename the"),
        ("item,scale\na1,../A\n", (), "scale '../A' cannot be the name of a folder."),
        ("item,scale,reversed\na1,A,-\n", (), "'-' is in the column 'reversed' of item 'a1'."),
        (SCALES, ("--features", "a1"), "--scales and --features cannot be combined."),
        (SCALES, ("--drop", "a*"), "--drop leaves no item of scale 'calm'. Keep one or more."),
        (SCALES, ("--reverse", "c"), "there is no feature 'c'. Features: a1, a2, a3, b1, b2"),
        (SCALES, ("--components", "9"), "scale calm: "),
    ],
)  # fmt: skip
def test_wrong_scales_are_refused(plain_cli, answers, text, options, message: str) -> None:
    done = fit(plain_cli, text, *options)
    assert (done.code, message in done.err) == (2, True), done.err
    assert not Path("out").exists()
