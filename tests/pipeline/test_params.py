"""Parameters: arrays by name, of a variable number of layers, and such as may be absent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pipeline.models.base import Model
from pipeline.models.registry import find_models
from pipeline.params import (
    NumberRange,
    array_field,
    convert_to_c_order,
    find_unexpected_arrays,
    get_array,
    get_named_arrays,
    layer_arrays_field,
    list_arrays,
    list_nan_names,
    optional_array_field,
    optional_part_field,
    params_from_arrays,
    part_field,
    replace_arrays,
)


@dataclass(frozen=True)
class Params:
    weights: tuple[Any, ...] = layer_arrays_field("above", "below")
    offsets: Any = array_field("feature")
    log_z: Any = optional_array_field()


LAYERED = Params((np.ones((3, 4)), np.ones((2, 3)).T.copy().T), np.zeros(4))


def test_every_layer_has_a_name_and_dimensions() -> None:
    named = get_named_arrays(LAYERED)
    assert {name: dims for name, (dims, _) in named.items()} == {
        "weights_0": ("unit_1", "feature"),
        "weights_1": ("unit_2", "unit_1"),
        "offsets": ("feature",),
    }
    again = params_from_arrays(Params, {name: values for name, (_, values) in named.items()})
    assert len(again.weights) == 2
    assert again.log_z is None
    np.testing.assert_array_equal(again.weights[1], LAYERED.weights[1])
    assert convert_to_c_order(LAYERED).weights[1].flags["C_CONTIGUOUS"]
    assert "log_z" in get_named_arrays(Params((), np.zeros(1), np.array(2.0)))


def test_arrays_that_do_not_belong_are_named() -> None:
    whole = {name: values for name, (_, values) in get_named_arrays(LAYERED).items()}
    assert find_unexpected_arrays(Params, whole) == set()
    assert find_unexpected_arrays(Params, {**whole, "log_z": np.array(1.0)}) == set()
    without = {name: values for name, values in whole.items() if name != "offsets"}
    assert find_unexpected_arrays(Params, {**without, "surplus": np.zeros(1)}) == {
        "offsets",
        "surplus",
    }
    assert find_unexpected_arrays(Params, {**whole, "weights_3": np.zeros(1)}) == {"weights_3"}


@dataclass(frozen=True)
class Items:
    slopes: Any = array_field("plane", "component", allowed=NumberRange(minimum=0))
    asymptotes: Any = optional_array_field("feature")
    n_levels: Any = optional_array_field("feature")


@dataclass(frozen=True)
class PartParams:
    items: Items = part_field()
    means: Any = array_field("feature")
    items_error: Items | None = optional_part_field(suffix="_error")
    group_items: Items | None = optional_part_field("segment", prefix="group_")


ITEMS = Items(np.ones((3, 2)))
WHOLE = PartParams(ITEMS, np.zeros(3), group_items=Items(np.ones((4, 3, 2)), np.ones((4, 3))))


def list_values(params: Any) -> dict[str, Any]:
    return {name: values for name, (_, values) in get_named_arrays(params).items()}


def test_arrays_of_parts_have_flat_names() -> None:
    named = get_named_arrays(WHOLE)
    assert {name: dims for name, (dims, _) in named.items()} == {
        "slopes": ("feature", "component"),
        "means": ("feature",),
        "group_slopes": ("segment", "feature", "component"),
        "group_asymptotes": ("segment", "feature"),
    }
    again = params_from_arrays(PartParams, list_values(WHOLE))
    assert again.items_error is None
    assert get_named_arrays(again).keys() == named.keys()
    assert get_array(again, "group_asymptotes") is again.group_items.asymptotes
    assert get_array(again, "slopes") is ITEMS.slopes
    assert get_array(again, "slopes_error") is None
    assert get_array(again, "surplus") is None
    graded = replace(WHOLE, items=replace(ITEMS, n_levels=np.full(3, 2)))
    assert get_named_arrays(graded)["slopes"][0] == ("plane", "component")
    transposed = PartParams(Items(np.ones((2, 3)).T), np.zeros(3))
    assert convert_to_c_order(transposed).items.slopes.flags.c_contiguous


def test_replaced_arrays_may_be_of_parts_that_were_absent() -> None:
    changed = replace_arrays(WHOLE, {"slopes": np.zeros((3, 2)), "slopes_error": np.ones((3, 2))})
    assert not changed.items.slopes.any()
    assert changed.items_error.slopes.all()
    assert get_array(changed, "group_slopes") is get_array(WHOLE, "group_slopes")


def test_missing_arrays_of_parts_are_named() -> None:
    whole = list_values(WHOLE)
    assert find_unexpected_arrays(PartParams, whole) == set()
    del whole["slopes"], whole["group_slopes"]
    assert find_unexpected_arrays(PartParams, {**whole, "slopes_group": 0}) == {
        "slopes",
        "group_slopes",
        "slopes_group",
    }
    assert find_unexpected_arrays(PartParams, ["slopes", "means"]) == set()


def test_declarations_of_parts_know_the_whole() -> None:
    declared = list_arrays(PartParams)
    required = {name for name, array in declared.items() if array.is_required}
    assert required == {"slopes", "means"}
    assert declared["group_slopes"].allowed == NumberRange(minimum=0)
    assert declared["group_slopes"].dims == ("segment", "plane", "component")
    # Errors may be unknown.
    assert declared["slopes_error"].allowed == NumberRange()
    assert list_nan_names(PartParams) == {"slopes_error", "asymptotes_error", "n_levels_error"}


def test_two_arrays_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="Repeated has two arrays named slopes"):
        list_arrays(Repeated)


@dataclass(frozen=True)
class Repeated:
    slopes: Any = array_field("component")
    items: Items = part_field()


@pytest.mark.parametrize("kind", find_models().values(), ids=str)
def test_names_of_arrays_are_unique(kind: type[Model]) -> None:
    assert list_arrays(kind.params)
