"""Rankings, contrasts and next items, from fits to tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from pipeline.errors import FitError

N_ROWS, NAMES = 60, [f"q{k}" for k in range(8)]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Answers of 60 models, of which the last answered nothing and some names look missing."""
    rng = np.random.default_rng(1)
    ability = np.linspace(-2, 2, N_ROWS)
    X = (rng.random((N_ROWS, 8)) < 1 / (1 + np.exp(-1.5 * ability[:, None]))).astype(float)
    X[-1] = np.nan
    frame = pd.DataFrame(X, columns=NAMES)
    frame.insert(0, "model", ["None", "NA", *(f"m{k}" for k in range(2, N_ROWS))])
    return frame


@pytest.fixture(scope="module")
def fitted(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> tuple[lb.Fitted, Path]:
    fit = lb.fit(rows[NAMES], "latent-trait", components=1, prior_precision=1.0)
    path = tmp_path_factory.mktemp("ranking") / "fit"
    fit.save(path)
    return fit, path


def test_a_ranking_has_the_rows_by_name(cli, plain_cli, fitted, rows: pd.DataFrame) -> None:
    fit, path = fitted
    rows.to_csv("rows.csv", index=False)
    assert plain_cli("ingest", "rows.csv", "--dataset", "d.zarr", "--keep", "model").code == 0
    scored = ("transform", "--artifact", path, "--dataset", "d.zarr", "--output", "z.zarr")
    assert cli(*scored).code == 0
    command = ("export", "--codes", "z.zarr", "--what", "ranking", "--output", "r.csv")
    done = cli(*command)
    assert done.code == 0, done.err
    table = pd.read_csv("r.csv", keep_default_na=False)
    codes = lb.transform(fit, rows[NAMES])
    mean, error = codes["mean"][:, 0], np.sqrt(codes["variance"][:, 0])
    order = np.argsort(-mean, kind="stable")
    assert table["row"].tolist() == order.tolist()
    np.testing.assert_allclose(table["score"], mean[order], rtol=1e-6)
    np.testing.assert_allclose(table["error"], error[order], rtol=1e-6)
    assert table.loc[table["row"] == 5, "model"].item() == "m5"
    assert (table["rank_low"] <= table["rank_high"]).all()
    unknown = table.loc[table["row"] == N_ROWS - 1]  # the row without answers may have any rank
    assert unknown["rank_low"].item() <= 3
    assert unknown["rank_high"].item() >= N_ROWS - 2
    assert (
        "--standardize cannot be used"
        in cli(*command[:-1], "s.csv", "--standardize").check_refused()
    )
    assert (
        "needs --codes"
        in cli(
            "export", "--artifact", path, "--what", "ranking", "--output", "x.csv"
        ).check_refused()
    )


def test_codes_of_other_models_have_no_ranking(cli, plain_cli, rows: pd.DataFrame) -> None:
    rows.head(50).to_csv("rows.csv", index=False)
    assert plain_cli("ingest", "rows.csv", "--dataset", "d.zarr", "--drop", "model").code == 0
    fit = ("fit", "--dataset", "d.zarr", "--model", "bernoulli-mixture", "--components", "2")
    artifact = cli(*fit, "--json").json["artifact"]
    cli("transform", "--artifact", artifact, "--dataset", "d.zarr", "--output", "z.zarr")
    done = cli("export", "--codes", "z.zarr", "--what", "ranking", "--output", "r.csv")
    assert "a ranking needs the codes of one trait, with standard errors" in done.check_refused()


def test_a_contrast_takes_codes_names_or_answers(fitted, rows: pd.DataFrame) -> None:
    fit, path = fitted
    codes = lb.transform(fit, rows[NAMES])
    by_place = lb.contrast(codes, 50, 3)
    mean, variance = codes["mean"][:, 0], codes["variance"][:, 0]
    assert by_place.difference == pytest.approx(mean[50] - mean[3])
    assert by_place.error == pytest.approx(np.sqrt(variance[50] + variance[3]))
    assert lb.contrast(codes, "m50", "m3", names=rows["model"]) == by_place
    assert lb.contrast(codes, "None", "NA", names=rows["model"]) == lb.contrast(codes, 0, 1)
    answers = [rows.loc[k, NAMES].to_dict() for k in (50, 3)]
    for source in (fit, str(path), lb.Scorer(fit)):
        np.testing.assert_allclose(lb.contrast(source, *answers), by_place, rtol=1e-6)
    for arguments, message in (
        ((codes, 0, 99), "There is no row 99. Rows are counted from 0 to 59"),
        ((codes, "m50", 0), "There is no row 'm50'"),
        ((fit, 0, 1), "Pass the codes of the rows"),
    ):
        with pytest.raises(FitError, match=message):
            lb.contrast(*arguments)
    with pytest.raises(FitError, match=r"0 rows have the name 'm500'\. Did you mean 'm50'"):
        lb.contrast(codes, "m500", "m3", names=rows["model"])
    with pytest.raises(FitError, match="2 of the names are missing: pandas"):
        lb.contrast(codes, "None", "m3", names=[np.nan, np.nan, *rows["model"][2:]])
    answered = rows[NAMES].head(N_ROWS - 1)
    for kind in ("wle", "sum"):
        scores = lb.transform(fit, answered, scores=kind)
        score, error = (np.ravel(scores[name]) for name in ("score", "standard_error"))
        contrast = lb.contrast(scores, 30, 3)
        assert contrast.difference == pytest.approx(score[30] - score[3])
        assert contrast.error == pytest.approx(np.hypot(error[30], error[3]))
    with pytest.warns(UserWarning, match="no ml score"):
        scores = lb.transform(fit, rows[NAMES], scores="ml")
    with pytest.raises(FitError, match="A row has no finite score"):
        lb.contrast(scores, N_ROWS - 1, 3)
    with pytest.raises(FitError, match="component is 2, but the codes have no mean and variance"):
        lb.contrast(codes, 0, 1, component=2)


def test_next_items_by_command_and_scorer(cli, fitted) -> None:
    fit, path = fitted
    scorer = lb.Scorer(fit)
    found = scorer.next_items({"q1": 1, "q2": None}, 3, exclude=["q3", "q4"])
    command = ("next-items", "--artifact", path, "--given", "q1=1", "--exclude", "q[34]")
    done = cli(*command, "--items", 3, "--json")
    assert done.code == 0, done.err
    assert done.json["items"] == list(found.items)
    assert done.json["mean"] == found.mean
    codes = scorer({"q1": 1})
    np.testing.assert_allclose(
        [found.mean, found.error**2], [codes["mean_1"], codes["variance_1"]], rtol=1e-6
    )
    assert not {"q1", "q3", "q4"} & {*found.items}
    lines = cli(*command).out.splitlines()
    assert lines[0].split() == ["answers", "1"]
    assert lines[-1].split()[0] == found.items[0]
    assert "done: the error is small enough" in cli(*command, "--max-error", 5).out
    content = {name: "ab"[k % 2] for k, name in enumerate(NAMES)}
    pd.DataFrame({"item": NAMES, "content": content.values(), "exposure": 0.1}).to_csv("l.csv")
    table = pd.read_csv("l.csv", index_col=0)
    table.to_csv("l.csv", index=False)
    limited = (*command, "--limits", "l.csv", "--shares", "a=1", "--items", 9, "--json")
    expected = scorer.next_items(
        {"q1": 1}, 9, exclude=["q3", "q4"], content=content, shares={"a": 1}
    )
    assert cli(*limited).json["items"] == list(expected.items)
    assert {*expected.items} == {"q0", "q2", "q6"}
    assert cli(*limited, "--max-exposure", 0.1).json["is_done"]
    table.rename(columns={"item": "feature"}).to_csv("l.csv", index=False)
    assert "l.csv needs lines and the columns item, and" in cli(*limited).check_refused()
    assert "'x' is not a number" in cli(*command, "--shares", "a=x").check_refused()
    assert "no item 'q9'" in cli(*command, "--exclude", "q9").check_refused()
