"""The types that type checkers and editors see: those of the estimators are a written file."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import latentbits as lb
from latentbits.estimators import make_estimators

ROOT = Path(__file__).parents[2]
SCRIPT = """
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import latentbits as lb

X = np.random.default_rng(0).integers(0, 2, (100, 5))
model = lb.LatentTrait(n_components=2, rotation="varimax").fit(X)
assert_type(model, lb.LatentTrait)
assert_type(model.weights_, NDArray[np.float64])
assert_type(model.score(X), float)
codes = model.transform(X)
print(codes.shape, model.components_.shape, model.converged_)
mixture = lb.BernoulliMixture(n_components=3).fit(X)
assert_type(mixture.predict(X), NDArray[np.int64])
fitted = lb.fit(X, "latent-trait", components=1)
assert_type(fitted, lb.Fitted)
print(lb.transform(fitted, X)["mean"].mean(), lb.evaluate(fitted, X)["log_likelihood"])
print(lb.open_dataset("example:digits").feature_names, lb.from_numpy(X).segment_names)
print(lb.Scorer(fitted)({"f0": 1})["mean_1"], lb.load("runs/votes").warnings)
"""
WRONG = """
lb.LatentTrait(n_component=2)
lb.LatentTrait(rotation="upside down")
"""


def test_the_written_types_are_those_of_the_estimators() -> None:
    """After a change of a model's settings or parameters, run `.ci/stubs`."""
    written = (ROOT / "latentbits" / "estimators.pyi").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / ".ci" / "stubs"))["write_stubs"]() == written
    assert {*make_estimators()} <= {*lb.__all__}


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_mypy_understands_a_script_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(SCRIPT + WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2, done.stdout
    assert 'Unexpected keyword argument "n_component" for "LatentTrait"' in errors[0]
    assert "incompatible type \"Literal['upside down']\"" in errors[1]
    assert all(line.startswith("wrong.py") for line in errors)
