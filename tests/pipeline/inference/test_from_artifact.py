"""A fitted model from what was recorded of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from pipeline.errors import FitError
from pipeline.inference.from_artifact import (
    REQUIRED_KEYS,
    model_from_artifact,
    objective_from_artifact,
)
from pipeline.models.stack import Stack, StackParams
from pipeline.numerics.networks.layered_network import Layer
from pipeline.params import get_named_arrays

MODEL = Stack(layers=(3, 2))
PARAMS = StackParams.from_layers(
    [Layer(np.ones((n, m)), np.zeros(n), np.zeros(m)) for n, m in ((4, 3), (3, 2))]
)


def recorded(**changes: Any) -> dict[str, Any]:
    known = {
        "model": "stack",
        "hyperparameters": asdict(MODEL),
        "feature_names": list("abcd"),
        "segment_names": ["all"],
        "n_components": 2,
        "history": [-3.0, -2.0, -4.0],
    }
    return {**dict.fromkeys(REQUIRED_KEYS), **known, **changes}


def arrays() -> dict[str, np.ndarray]:
    return {name: values for name, (_, values) in get_named_arrays(PARAMS).items()}


def test_a_stack_is_read_back() -> None:
    model, params = model_from_artifact(recorded(), arrays())
    assert model == MODEL
    assert params.sizes == (4, 3, 2)


@pytest.mark.parametrize(
    "changes", [{"feature_names": list("abc")}, {"feature_names": list("abcde")}]
)
def test_units_below_the_first_layer_are_the_features(changes: dict[str, Any]) -> None:
    with pytest.raises(FitError, match=r"of \d features, got 4\. Fit again\."):
        model_from_artifact(recorded(**changes), arrays())


def test_the_objective_is_that_recorded_or_of_former_artifacts_that_of_the_last_pass() -> None:
    assert objective_from_artifact(recorded(objective=-2.0)) == -2.0
    assert objective_from_artifact(recorded()) == -4.0
    assert objective_from_artifact(recorded(history=[])) is None
