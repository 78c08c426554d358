"""Item bias of `flows.evaluate`, beside what R's `mantelhaen.test` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.models.registry import find_models
from tests.acceptance.test_two_tables import saved
from tests.support.data import write_arrays
from tests.support.fits import write_fit

# R 4.2.2, mantelhaen.test(table(gender, answer, score), correct = TRUE), strata with both genders:
# χ², p, and the odds ratio of the larger group, women, against men.
OF_R = {
    "S1DoCurse": (0.1323893, 0.7159675, 0.7967412),
    "S1WantScold": (2.148593, 0.1427006, 1.770179),
    "S1DoScold": (2.750114, 0.0972475, 0.4994841),
}


@pytest.fixture
def evaluated(cli: Any, tmp_path: Path) -> Any:
    data = saved("verbal_aggression")
    columns = {
        "gender": np.where(data["y"] == 1, "M", "F"),
        "few": np.where(np.arange(316) < 9, "a", "b"),
        "many": (np.arange(316) % 3).astype(str),
        "curse": np.where(data["X"][:, 0] == 1, "yes", "no"),
        "half": np.arange(316) / 2,
    }
    dataset = write_arrays(tmp_path / "d.zarr", data["X"], names=data["names"], columns=columns)
    fitted = write_fit(tmp_path / "f", find_models()["clipped-pca"](n_components=1), dataset)
    line = ("evaluate", "--dataset", tmp_path / "d.zarr", "--artifact", fitted, "--no-baselines")
    return lambda *words: cli(*line, *words)


def test_women_and_men_are_compared_as_by_r(evaluated: Any) -> None:
    bias = evaluated("--dif", "gender", "--json").json["item_bias"]
    assert (bias["reference"], bias["focal"], bias["rows"]) == ("F", "M", [243, 73])
    p = [item["p"] for item in bias["items"]]
    assert p == sorted(p)
    items = {item["feature"]: item for item in bias["items"]}
    for name, (chi2, p_of_r, ratio) in OF_R.items():
        found = items[name]
        assert (found["chi2"], found["p"]) == pytest.approx((chi2, p_of_r), rel=1e-5)
        assert found["odds_ratio"] == pytest.approx(ratio, rel=1e-5)
    assert items["S2WantShout"]["grade"] == "C"  # large, and beyond chance
    assert items["S2WantScold"]["grade"] == "A"  # large by chance


def test_the_table_says_whom_items_favour(evaluated: Any) -> None:
    done = evaluated("--dif", "gender")
    assert "gender: F (243 rows) against M (73)" in done.out
    own = evaluated("--dif", "curse").out  # groups by the answer to an item
    assert "< 0.0001" in own
    assert " 0.0000" not in own
    assert "S2WantShout" in done.out


LIKELIHOOD_RATIO = ("--dif-test", "likelihood-ratio")


@pytest.mark.matrix
def test_a_fit_for_every_item_tells_its_slopes_and_offsets(evaluated: Any) -> None:
    words = ("--dif", "gender", *LIKELIHOOD_RATIO, "--dif-purify")
    bias = evaluated(*words, "--json").json["item_bias"]
    assert (bias["test"], bias["reference"], bias["rows"]) == ("likelihood-ratio", "F", [243, 73])
    first = bias["items"][0]
    assert first["feature"] == "S2WantShout"
    assert first["chi2"] == pytest.approx(11.96, abs=0.01)
    assert first["offsets"][0] - first["offsets"][1] > 0.5
    assert bias["purification"] == {"n_rounds": 1, "excluded": [], "ending": "stable"}
    out = evaluated(*words).out
    for text in ("whose trait has mean 0.2", "S2WantShout", "anchors: all other items\n"):
        assert text in out
    assert "purification: 1 round; the last found the items that were not anchors" in out


@pytest.mark.matrix
def test_three_groups_have_effects_against_the_first(evaluated: Any) -> None:
    words = ("--dif", "many", *LIKELIHOOD_RATIO)
    bias = evaluated(*words, "--json").json["item_bias"]
    assert (bias["reference"], bias["focal"], bias["df"]) == ("0", ["1", "2"], 4)
    assert len(bias["focal_trait"]) == 2
    first = bias["items"][0]
    assert [len(first[name]) for name in ("difference", "area", "slopes", "offsets")] == [
        2,
        2,
        3,
        3,
    ]
    lines = evaluated(*words).out.splitlines()
    (line,) = [line for line in lines if line.startswith(first["feature"])]
    largest = max((0, 1), key=lambda g: first["area"][g])
    shown = f"{first['difference'][largest]:.2f}", f"{first['area'][largest]:.2f}"
    assert line.split()[-3:] == [*shown, bias["focal"][largest]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("few",), "the group 'a' has only 9 rows in"),
        (
            ("many",),
            "instead of two. Choose or store another column, or use --dif-test likelihood-r",
        ),
        (("half",), "has fractions"),
        (("nobody",), "nobody"),
        (("gender", "--dif-purify"), "--dif-purify needs --dif-test likelihood-ratio"),
        (("curse", *LIKELIHOOD_RATIO), "'S1WantCurse' is constant in the group 'yes'"),
    ],
)
def test_groups_that_cannot_be_compared_are_refused(
    evaluated: Any, words: tuple[str, ...], told: str
) -> None:
    done = evaluated("--dif", *words)
    assert done.code == 2
    assert told in done.err


def test_a_fit_with_weights_is_refused(cli: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).integers(0, 2, (80, 4), np.uint8)
    columns = {"group": np.arange(80) % 2, "times": np.arange(80) % 3}
    path = tmp_path / "d.zarr"
    write_arrays(path, X, columns=columns)
    fit = ("--model", "clipped-pca", "--components", "1", "--weight", "times")
    fitted = cli("fit", "--dataset", path, *fit, "--output", tmp_path / "f", "--json").json
    done = cli("evaluate", "--dataset", path, "--artifact", fitted["artifact"], "--dif", "group")
    assert done.code == 2
    assert "was fitted to rows with weights, but --dif counts every row once" in done.err


def test_a_test_of_no_column_is_refused(evaluated: Any) -> None:
    done = evaluated(*LIKELIHOOD_RATIO)
    assert done.code == 2
    assert "--dif-test needs --dif" in done.err
