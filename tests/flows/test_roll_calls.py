"""Statistics of roll calls: against NumPy, and as the command prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from tests.support.data import draw_probit_rows, write_arrays

N_ROWS, N_VOTES = 90, 7
NAMES = np.array([f"member {k}" for k in range(N_ROWS)], object)
SETTINGS: dict[str, Any] = {
    "components": 1,
    "tol": 1e-3,
    "errors": "none",
    "constant_features": "keep",
}


def draw_votes() -> tuple[np.ndarray, np.ndarray]:
    """Draw votes and which were cast: one is unanimous, one member casts one, one casts none."""
    X, observed = draw_probit_rows(N_ROWS, N_VOTES, 1, seed=2)[0], np.ones((N_ROWS, N_VOTES))
    observed[::7, 2], observed[5], observed[6, 1:], X[:, 4] = 0, 0, 0, 1
    return X, observed == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roll_calls")
    X, observed = draw_votes()
    arguments: dict[str, Any] = {"columns": {"name": NAMES}, "words_per_chunk": 1}
    dataset = write_arrays(folder / "d.zarr", X, observed.astype(np.uint8), **arguments)
    lb.fit(dataset, "latent-trait", **SETTINGS).save(folder / "fit")
    return folder


def test_votes_and_members_are_as_by_numpy(folder: Path) -> None:
    X, observed = draw_votes()
    dataset, fitted = lb.open_dataset(folder / "d.zarr"), lb.load(folder / "fit")
    codes = lb.transform(fitted, dataset)["mean"]
    P = 1 / (1 + np.exp(-(codes @ fitted.params.weights.T + fitted.params.offsets)))
    errors = ((P > 0.5) != X) & observed
    cast = observed.sum(axis=0)
    most = (X * observed).sum(axis=0) > cast / 2
    minority = (most != X) & observed
    nats = np.log(np.where(X, P, 1 - P)) * observed
    found = lb.evaluate(fitted, dataset, roll_calls=True)
    assert set(found) == {"roll_calls"}
    totals = found["roll_calls"]
    assert totals["correct"] == pytest.approx(1 - errors.sum() / observed.sum())
    assert totals["apre"] == pytest.approx((minority.sum() - errors.sum()) / minority.sum())
    assert totals["gmp"] == pytest.approx(np.exp(nats.sum() / observed.sum()), rel=1e-6)
    assert totals["unanimous"] == 1
    for axis, key in ((0, "by_feature"), (1, "by_row")):
        for k, line in enumerate(totals[key]):
            n, m, e = (int(own.sum(axis=axis)[k]) for own in (observed, minority, errors))
            assert (line["votes"], line["minority"], line["errors"]) == (n, m, e)
            assert line["correct"] == (pytest.approx(1 - e / n) if n else None)
            assert line["pre"] == (pytest.approx((m - e) / m) if m else None)
            gmp = np.exp(nats.sum(axis=axis)[k] / n) if n else None
            assert line["gmp"] == (pytest.approx(gmp, rel=1e-6) if n else None)
    assert [line["name"] for line in totals["by_row"]] == NAMES.tolist()
    assert totals["by_feature"][4]["majority"] == "1"


def test_the_command_prints_the_worst_and_writes_all(cli: Any, folder: Path) -> None:
    line = ("evaluate", "--dataset", folder / "d.zarr", "--artifact", folder / "fit")
    done = cli(*line, "--roll-calls", "--tables", folder / "tables")
    assert done.code == 0, done.err
    for shown in ("APRE", "GMP", "the 6 worst of 7", "member, the 10 worst of 90", "no minority"):
        assert shown in done.out
    assert "nats per row" not in done.out
    votes = (folder / "tables" / "roll-calls.csv").read_text().splitlines()
    members = (folder / "tables" / "roll-call-rows.csv").read_text().splitlines()
    assert (len(votes), len(members)) == (1 + N_VOTES, 1 + N_ROWS)
    assert cli(*line, "--roll-calls", "--json").json["roll_calls"][0]["unanimous"] == 1


def test_the_majority_of_a_nominal_question_is_its_most_frequent_category() -> None:
    rng = np.random.default_rng(0)
    media = rng.choice(["web", "radio", "tv"], 200, p=[0.2, 0.3, 0.5])
    table = pd.DataFrame({"media": pd.Categorical(media), "reads": (media == "tv").astype(int)})
    table.loc[3, "media"] = None
    fitted = lb.fit(table, "bernoulli-mixture", components=2, errors="none")
    (first, _) = lb.evaluate(fitted, table, roll_calls=True)["roll_calls"]["by_feature"]
    rest = table["media"].count() - table["media"].value_counts()["tv"]
    assert (first["majority"], first["votes"], first["minority"]) == ("tv", 199, rest)
    assert first["errors"] < rest
