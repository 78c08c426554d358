"""Conditional probabilities by command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from flows.query import parse_evidence
from storage.errors import DataError
from storage.quoting import split_names

NAMES = ["milk", "bread", "butter, salted", "mood"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[lb.Fitted, Path]:
    """A mixture with groups, of three binary features and one with three levels."""
    rng = np.random.default_rng(2)
    kind = rng.random((500, 1)) < 0.4
    X = rng.random((500, 4)) < np.where(kind, [0.8, 0.7, 0.2, 0.6], [0.1, 0.3, 0.4, 0.2])
    columns = {name: values.astype(int) for name, values in zip(NAMES, X.T, strict=True)}
    mood = X[:, 3].astype(int) + (rng.random(500) < 0.3)
    columns["mood"] = pd.Categorical.from_codes(mood, ["bad", "fair", "good"], ordered=True)
    frame = pd.DataFrame({**columns, "shop": np.where(kind[:, 0], "north", "south")})
    dataset = lb.from_dataframe(frame, keep=["shop"])
    fit = lb.fit(dataset, "bernoulli-mixture", components=2, group="shop", max_iter=30)
    path = tmp_path_factory.mktemp("query") / "fit"
    fit.save(path)
    return fit, path


def test_a_query_prints_what_python_returns(cli, fitted, tmp_path: Path) -> None:
    fit, path = fitted
    command = ("query", "--artifact", path, "--given", "milk=1,mood=fair")
    expected = lb.query(str(path), {"milk": 1, "mood": "fair"}, ["bread"])
    done = cli(*command, "--of", "bread")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["given", "milk=1,", "mood=fair"]
    assert lines[1][-1] == f"{expected.log_evidence:.6g}"
    assert lines[2] == ["probability", "marginal", "lift"]
    probability, marginal, lift = (expected[name][0] for name in lines[2])
    assert lines[3] == ["bread=1", f"{probability:.4g}", f"{marginal:.4g}", f"{lift:.2f}"]
    assert len(lines) == 4
    more = ("--of", "bread", "--given", "butter, salted=0", "--segment", "north", "--json")
    done = cli(*command, *more)
    given = {"milk": 1, "mood": "fair", "butter, salted": 0}
    expected = lb.query(fit, given, "bread", segment="north")
    assert done.json["probabilities"][0]["probability"] == expected["probability"][0]
    assert done.json["log_evidence"] == expected.log_evidence
    assert done.json["given"] == {name: str(value) for name, value in given.items()}


def test_tables_are_written(cli, fitted, tmp_path: Path) -> None:
    fit, path = fitted
    given = ("query", "--artifact", path, "--given", "milk=0", "--of", "mood,bread")
    for joint in (False, True):
        options = ("--joint",) if joint else ()
        done = cli(*given, *options, "--output", "t.parquet", "--overwrite")
        assert done.code == 0, done.err
        assert done.out.endswith("table: t.parquet\n")
        expected = pd.DataFrame(lb.query(fit, {"milk": 0}, ["mood", "bread"], joint=joint))
        assert len(expected) == (6 if joint else 4)
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), expected)
    assert "t.parquet already exists" in cli(*given, "--output", "t.parquet").check_refused()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--of", "bred"), "error: --of: The fit has no feature 'bred'. Did you mean 'bread'?"),
        (("--of", "milk", "--given", "mood"), "error: --given: 'mood' has no value. Write mood="),
        (("--of", "milk", "--given", "mood=ok"), "'mood' has no level 'ok'. Choose one of: bad, "),
        (("--of", "milk", "--given", "milk=1"), "error: 'milk' is in both --given and --of. "),
        (("--of", "milk", "--segment", "nord"), "no segment 'nord'. Did you mean 'north'? Leave "),
        (("--of", "milk", "--output", "t.txt"), "error: --output is 't.txt', but must end in "),
    ],
)
def test_mistakes_are_refused(cli, fitted, options: tuple[str, ...], message: str) -> None:
    assert message in cli("query", "--artifact", fitted[1], *options).check_refused()


def test_a_segment_is_refused_if_segments_share_their_parameters(cli, tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((60, 3)) < 0.5
    fit = lb.fit(lb.from_numpy(X, segment=np.arange(60) % 2), "tree-mixture", components=1)
    with pytest.raises(ValueError, match="the same parameters in all segments"):
        lb.query(fit, of=["f0"], segment="1")
    fit.save(tmp_path / "fit")
    refused = cli("query", "--artifact", tmp_path / "fit", "--of", "f0", "--segment", "1")
    assert "The fit has the same parameters in all segments." in refused.check_refused()


def test_names_with_commas_and_signs_are_understood() -> None:
    names = ["a, b", "c", "q>=2", "d"]
    assert split_names(["a, b", "c,q>=2"], names) == ["a, b", "c", "q>=2"]
    texts = ["a, b=1", "c=low,q>=2=0"]
    assert parse_evidence(texts, names) == {"a, b": "1", "c": "low", "q>=2": "0"}
    for texts in (["c=low", "c=high"], ["c=low,c=low"]):
        with pytest.raises(DataError, match=r"^given: c is given twice\. Choose one value\.$"):
            parse_evidence(texts, names)


def test_names_and_values_may_be_quoted() -> None:
    names = {"a", "b,c", "d=e"}
    texts = ['a=1,"b,c"="x,y"', '"d=e"=2']
    assert parse_evidence(texts, names) == {"a": "1", "b,c": "x,y", "d=e": "2"}
    assert split_names(['"b,c",a', "b,c"], names) == ["b,c", "a", "b,c"]
