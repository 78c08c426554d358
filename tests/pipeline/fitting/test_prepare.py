"""What a user asks of a fit is checked in one order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import latentbits
from latentbits.data import make_dataset
from pipeline.errors import FitError
from pipeline.fitting.prepare import FitRequest, PatternTable, prepare
from pipeline.models.known_items import parse_known_items

NAMES = ["a", "b", "c", "d"]
X = np.random.default_rng(0).integers(0, 2, (60, 4))
SCHOOLS = np.repeat(["x", "y"], 30)
DATASET = make_dataset(latentbits.from_numpy(X, feature_names=NAMES, keep={"school": SCHOOLS}))
KNOWN = {"feature": ["z"], "slope": [1.0], "offset": [0.0]}
WISHES: list[tuple[str, Any, str]] = [
    ("settings", {"nonsense": 1}, "has no setting 'nonsense'"),
    ("cut", ["z>=1"], "no feature is named 'z'"),
    ("weight", "school", "is not a number|contains texts"),
    ("group", "class", "no per-row column 'class'"),
    ("covariates", ["age"], "no per-row column 'age'"),
    ("pattern", lambda: PatternTable({"item": ["a"], "F": [1]}, "t.csv"), "lacks features"),
    ("items", lambda: parse_known_items(KNOWN, "i.csv"), "items that the dataset lacks: z"),
    ("orient", ["nobody=+1"], "no row and no feature has this name"),
]


@pytest.mark.parametrize("first", range(len(WISHES)))
def test_the_first_step_that_cannot_be_taken_is_the_one_in_the_error(first: int) -> None:
    asked = {name: value for name, value, _ in WISHES[first:]}
    with pytest.raises(FitError, match=WISHES[first][2]):
        prepare(FitRequest("latent-trait", **asked), DATASET)


def test_what_was_prepared_is_described_as_manifests_record_it() -> None:
    request = FitRequest("latent-trait", 1, group="school", orient="a=+1")
    fit = prepare(request, DATASET)
    assert fit.dataset.segment_names == fit.model.structure.groups == ("x", "y")  # type: ignore[attr-defined]
    assert fit.choices == {"group": "school", "orient": ["a=+1"]}
    assert [feature.name for feature in fit.features] == NAMES
    plain = prepare(replace(request, group=None, orient=()), DATASET)
    assert (plain.choices, plain.poles) == ({}, ())


def test_files_are_read_only_for_models_that_can_use_them() -> None:
    def read() -> Any:
        raise AssertionError

    for name in ("items", "pattern"):
        with pytest.raises(FitError, match=name):
            prepare(FitRequest("clipped-pca", **{name: read}), DATASET)


def test_lists_and_arrays_are_as_good_as_tuples() -> None:
    for layers in ([4, 2], np.array([4, 2])):
        request = FitRequest("stack", settings={"layers": layers}, cut=["a>=1"])
        assert (request.settings, request.cut) == ({"layers": (4, 2)}, ("a>=1",))
