"""Parameters: arrays by name, of a variable number of layers, and such as may be absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.params import (
    array,
    array_per_layer,
    in_c_order,
    named_arrays,
    odd_arrays,
    optional_array,
    params_from_arrays,
)


@dataclass(frozen=True)
class Params:
    former: ClassVar[tuple[str, ...]] = ("nodes",)
    weights: tuple[Any, ...] = array_per_layer("above", "below")
    offsets: Any = array("feature")
    log_z: Any = optional_array()


LAYERED = Params((np.ones((3, 4)), np.ones((2, 3)).T.copy().T), np.zeros(4))


def test_every_layer_has_a_name_and_dimensions() -> None:
    named = named_arrays(LAYERED)
    assert {name: dims for name, (dims, _) in named.items()} == {
        "weights_0": ("unit_1", "feature"),
        "weights_1": ("unit_2", "unit_1"),
        "offsets": ("feature",),
    }
    again = params_from_arrays(Params, {name: values for name, (_, values) in named.items()})
    assert len(again.weights) == 2
    assert again.log_z is None
    np.testing.assert_array_equal(again.weights[1], LAYERED.weights[1])
    assert in_c_order(LAYERED).weights[1].flags["C_CONTIGUOUS"]
    assert "log_z" in named_arrays(Params((), np.zeros(1), np.array(2.0)))


def test_arrays_that_do_not_belong_are_named() -> None:
    whole = {name: values for name, (_, values) in named_arrays(LAYERED).items()}
    assert odd_arrays(Params, whole) == set()
    assert odd_arrays(Params, {**whole, "log_z": np.array(1.0), "nodes": np.zeros(1)}) == set()
    without = {name: values for name, values in whole.items() if name != "offsets"}
    assert odd_arrays(Params, {**without, "surplus": np.zeros(1)}) == {"offsets", "surplus"}
    assert odd_arrays(Params, {**whole, "weights_3": np.zeros(1)}) == {"weights_3"}
