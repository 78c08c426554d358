"""Parameters of the stack, and those that a stage learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.layered import count_units
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    flatten_layers,
    split_into_layers,
)
from pipeline.params import layer_arrays_field

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StackParams:
    """Parameters; the table of the module gives shapes."""

    weights: tuple[Array, ...] = layer_arrays_field("below", "above")
    visible_biases: tuple[Array, ...] = layer_arrays_field("below")
    hidden_biases: tuple[Array, ...] = layer_arrays_field("above")

    @classmethod
    def from_layers(cls, layers: Layers) -> StackParams:
        """Take layers, from the lowest up."""
        return cls(*map(tuple, zip(*layers, strict=True)))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """As a network."""
        parts = zip(self.weights, self.visible_biases, self.hidden_biases, strict=True)
        return tuple(Layer(*part) for part in parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of units, from the features up."""
        return (len(self.visible_biases[0]), *map(len, self.hidden_biases))


def format_sizes(sizes: tuple[int, ...]) -> str:
    """Write sizes of layers as options take them."""
    return ",".join(map(str, sizes))


def split_at_stage(params: StackParams, stage: int) -> tuple[Layers, Layers]:
    """Give the layers below those that a stage learns, and these: one, or in the end all."""
    layers = params.layers
    return ((), layers) if stage == len(layers) else (layers[:stage], layers[stage : stage + 1])


def add_stage_change(params: StackParams, stage: int, change: Array) -> StackParams:
    """Add to what a stage learns."""
    below, learns = split_at_stage(params, stage)
    moved = split_into_layers(flatten_layers(learns) + change, count_units(learns))
    return StackParams.from_layers([*below, *moved, *params.layers[len(below) + len(moved) :]])
