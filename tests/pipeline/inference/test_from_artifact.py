"""A fitted model from what was recorded of it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from pipeline.errors import FitError
from pipeline.inference.from_artifact import (
    REQUIRED_KEYS,
    model_from_artifact,
)
from pipeline.models.bernoulli_mixture import BernoulliMixture
from pipeline.models.settings import get_settings
from pipeline.models.stack import Stack, StackParams
from pipeline.numerics.networks.layered_network import Layer
from pipeline.params import get_named_arrays

MODEL = Stack(layers=(3, 2))
PARAMS = StackParams.from_layers(
    [Layer(np.ones((n, m)), np.zeros(n), np.zeros(m)) for n, m in ((4, 3), (3, 2))], np.zeros(4)
)


def recorded(**changes: Any) -> dict[str, Any]:
    known = {
        "model": "stack",
        "hyperparameters": get_settings(MODEL),
        "feature_names": list("abcd"),
        "segment_names": ["all"],
        "n_components": 2,
        "history": [-3.0, -2.0, -4.0],
    }
    return {**dict.fromkeys(REQUIRED_KEYS), **known, **changes}


class RecordedFit(dict[str, np.ndarray]):
    """An artifact in memory, with the arrays of `PARAMS`."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__({name: a for name, (_, a) in get_named_arrays(PARAMS).items()})
        self.manifest = manifest


def test_a_stack_is_read_back() -> None:
    loaded = model_from_artifact(RecordedFit(recorded()))
    assert loaded.model == MODEL
    assert loaded.params.sizes == (4, 3, 2)


@pytest.mark.parametrize(
    "changes", [{"feature_names": list("abc")}, {"feature_names": list("abcde")}]
)
def test_units_below_the_first_layer_are_the_features(changes: dict[str, Any]) -> None:
    with pytest.raises(FitError, match=r"has 4 features instead of \d\. Fit again\."):
        model_from_artifact(RecordedFit(recorded(**changes)))


def test_an_artifact_of_an_earlier_version_is_refused() -> None:
    manifest = recorded()
    del manifest["objective"]
    with pytest.raises(
        FitError, match=r"version of latentbits: it has no objective\. Fit again\.$"
    ):
        model_from_artifact(RecordedFit(manifest))


def make_mixture() -> RecordedFit:
    model = BernoulliMixture(n_components=2)
    changes = {"model": model.name, "hyperparameters": get_settings(model)}
    artifact = RecordedFit(recorded(**changes))
    artifact.clear()
    artifact |= {"probabilities": np.full((2, 4), 0.5), "weights": np.full(2, 0.5)}
    return artifact


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, -1e19])
def test_parameters_that_no_fit_gives_are_refused(value: float) -> None:
    artifact = RecordedFit(recorded())
    artifact["weights_1"] = artifact["weights_1"].copy()
    artifact["weights_1"][2, 1] = value
    message = re.escape(f"The entry weights_1[2, 1] is {value}, but must be a finite number up to")
    with pytest.raises(FitError, match=message):
        model_from_artifact(artifact)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("probabilities", -0.1, r"probabilities\[0, 0\] is -0.1, but must be above 0 and below 1"),
        ("weights", -1.0, r"weights\[0\] is -1.0, but must be above 0"),
        ("weights", 0.6, r"entries of weights sum to 1.2, but must sum to 1"),
    ],
)
def test_parameters_outside_their_range_are_refused(name: str, value: float, expected: str) -> None:
    artifact = make_mixture()
    artifact[name] = np.full_like(artifact[name], value)
    with pytest.raises(FitError, match=rf"{expected}\. Fit again\.$"):
        model_from_artifact(artifact)


@pytest.mark.parametrize(
    ("name", "value", "is_allowed"),
    [
        ("probabilities_error", np.nan, True),
        ("probabilities_error", 1e40, True),
        ("probabilities_error", np.inf, False),
        ("probabilities_interval", 1e40, True),
        ("probabilities_interval", np.nan, False),
    ],
)
def test_standard_errors_may_be_unknown_and_large(
    name: str, value: float, is_allowed: bool
) -> None:
    artifact = make_mixture()
    shapes = {"probabilities_error": (2, 4), "probabilities_interval": (2, 2, 4)}
    artifact |= {error: np.ones(shape) for error, shape in shapes.items()}
    artifact |= {"weights_error": np.ones(2), name: np.full(shapes[name], value)}
    with nullcontext() if is_allowed else pytest.raises(FitError, match=rf"The entry {name}\[0"):
        model_from_artifact(artifact)
