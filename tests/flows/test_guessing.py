"""Guessing and slipping from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from storage.artifacts.artifacts import load_artifact
from tests.support.data import write_arrays

NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(4)
    P = 0.25 + 0.75 * expit(np.outer(rng.standard_normal(600), np.linspace(1.5, 2.5, 6)))
    X = (rng.random(P.shape) < P).astype(np.uint8)
    return write_arrays(tmp_path_factory.mktemp("guessing") / "d.zarr", X, names=NAMES).path


@pytest.fixture
def fit(cli: Any, dataset: Path) -> Any:
    def run(output: str, *settings: str) -> str:
        line = ("fit", "--dataset", dataset, "--model", "latent-trait", "--components", "1")
        options = [word for setting in settings for word in ("--set", setting)]
        output_options = ("--output", output, "--no-report", "--json")
        done = cli(*line, *output_options, "--set", "tol=1e-6", *options)
        assert done.code == 0, done.err
        return str(done.json["artifact"])

    return run


def test_every_command_uses_the_asymptotes(cli: Any, fit: Any, dataset: Path) -> None:
    path = fit("guess", "guessing=common", "guessing_prior=normal(-1,1)")
    artifact = load_artifact(path)
    assert artifact["guessing"][0] == pytest.approx(0.25, abs=0.15)
    assert "trait_mean" not in artifact
    done = cli("export", "--artifact", path, "--what", "information", "--output", "i.csv")
    assert done.code == 0
    expected_score = pd.read_csv("i.csv")["expected_score"]
    assert expected_score[0] > 6 * artifact["guessing"][0]
    done = cli(
        "export", "--artifact", path, "--what", "short-test", "--items", "6", "--output", "s.csv"
    )
    assert done.code == 0
    assert set(pd.read_csv("s.csv")["guessing"]) == {artifact["guessing"][0]}
    folds = ("evaluate", "--dataset", dataset, "--artifact", path, "--folds", "2")
    held_out = json.loads(cli(*folds, "--no-baselines", "--json").out)
    in_sample = json.loads(cli(*folds[:5], "--no-baselines", "--json").out)
    (by_fold,), (by_all,) = held_out["models"], in_sample["models"]
    assert by_fold["log_likelihood"] == pytest.approx(by_all["log_likelihood"], abs=0.1)


def test_exported_items_give_the_codes_of_the_fit(cli: Any, fit: Any, dataset: Path) -> None:
    path = fit("guess", "guessing=common", "slipping=common")
    assert cli("export", "--artifact", path, "--what", "items", "--output", "i.csv").code == 0
    line = ("transform", "--dataset", dataset, "--person-fit", "--overwrite", "--output")
    assert cli(*line, "fit.csv", "--artifact", path).code == 0
    for items in ("i.csv", path):
        assert cli(*line, "items.csv", "--items", items).code == 0
        pd.testing.assert_frame_equal(pd.read_csv("items.csv"), pd.read_csv("fit.csv"))
    bias = ("evaluate", "--dataset", dataset, "--artifact", path, "--dif", "group")
    done = cli(*bias, "--dif-test", "likelihood-ratio")
    assert done.code == 2
    assert "but --dif-test likelihood-ratio fits items without" in done.err
    again = ("fit", "--dataset", dataset, "--model", "latent-trait", "--items", "i.csv")
    link = ("export", "--artifact", path, "--what", "linked-items", "--link-to", path)
    for command, user in ((again, "a fit"), ((*link, "--output", "l.csv"), "a link")):
        done = cli(*command)
        assert done.code == 2
        expected = f"has items with guessing or slipping, but {user} takes only known slopes"
        assert expected in done.err


def test_asymptotes_that_are_no_curve_are_refused(cli: Any, dataset: Path) -> None:
    table = {"feature": NAMES, "slope": 1.0, "offset": 0.0, "guessing": 0.6, "slipping": 0.4}
    pd.DataFrame(table).to_csv("i.csv", index=False)
    done = cli("transform", "--dataset", dataset, "--items", "i.csv", "--output", "z.csv")
    assert done.code == 2
    assert "a has guessing 0.6 and slipping 0.4. Both are probabilities" in done.err


@pytest.mark.matrix
def test_likelihoods_are_compared_only_without_priors(cli: Any, fit: Any, dataset: Path) -> None:
    two = fit("two")
    common = fit("common", "guessing=common", "guessing_prior=none")
    each = fit("each", "guessing=item")
    line = ("evaluate", "--dataset", dataset, "--likelihood-ratio", "--no-baselines", "--json")
    done = cli(*line, "--artifact", two, "--artifact", common)
    (test,) = json.loads(done.out)["likelihood_ratio_tests"]
    assert test["df"] == 1
    done = cli(*line, "--artifact", two, "--artifact", each)
    assert done.code == 2
    assert "there is no likelihood-ratio test (penalized by guessing_prior=beta(5,17))" in done.err
