"""Settings: bad ones are refused by name."""

from __future__ import annotations

import re
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from pipeline.errors import FitError
from pipeline.models.registry import find_model_class
from pipeline.models.settings import list_hyperparameters
from tests.conformance.facts import Facts


def bad_values(kind: Any) -> list[Any]:
    """Values that no setting of this type takes."""
    if get_origin(kind) is Literal:
        return ["no-such-choice"]
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    lists = [(0,)] * any(get_origin(one) is tuple for one in kinds)
    return lists + [-3] * (int in kinds) + [float("nan")] * (float in kinds)


def test_bad_hyperparameters_are_refused_by_name(facts: Facts, subtests: pytest.Subtests) -> None:
    hints = get_type_hints(facts.model)
    settings = ["n_components", *list_hyperparameters(facts.model)]
    bad = [(setting, value) for setting in settings for value in bad_values(hints[setting])]
    for setting, value in [("n_components", 0), *bad]:
        spelled = "components" if setting == "n_components" else setting
        refusal = rf"^{spelled} must be .*, but is '?{re.escape(str(value))}'?\."
        with subtests.test(setting=setting, value=value), pytest.raises(FitError, match=refusal):
            facts.make(**{setting: value})


def test_models_are_found_by_their_names(facts: Facts) -> None:
    name = facts.model.name
    assert find_model_class(facts.name) is find_model_class(name) is facts.model
    with pytest.raises(FitError, match=f"Did you mean '{name}'.* The models are .*{name}"):
        find_model_class(name + "x")


def test_memory_grows_with_the_features(facts: Facts) -> None:
    needs = [facts.make().estimate_memory(n_features, 1, 2) for n_features in (10, 100, 1000)]
    assert needs == sorted(needs)
    assert all(isinstance(need, int) and need >= 0 for need in needs)
