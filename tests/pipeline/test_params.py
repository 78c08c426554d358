"""Parameters: arrays by name, of a variable number of layers, and such as may be absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.params import (
    array_field,
    convert_to_c_order,
    find_unexpected_arrays,
    get_named_arrays,
    layer_arrays_field,
    optional_array_field,
    params_from_arrays,
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
