"""Parameters of the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.networks.three_layers import ThreeLayerNetwork
from pipeline.params import array_field, optional_array_field

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BottleneckParams:
    """Parameters; the table of the model's module gives shapes."""

    weights: Array = array_field("feature", "component")
    biases: Array = array_field("component")
    outputs: Array = array_field("component", "output")
    output_biases: Array = array_field("output")
    means: Array = array_field("feature")
    categories: Array | None = optional_array_field("output")
    shares: Array | None = optional_array_field("output")
    number: Array | None = optional_array_field("moment")

    @property
    def is_category(self) -> bool:
        """Whether the label is a category, and not a number."""
        return self.categories is not None

    @property
    def network(self) -> ThreeLayerNetwork:
        """What kernels are given."""
        return ThreeLayerNetwork(self.weights, self.biases, self.outputs, self.output_biases)

    @property
    def theta(self) -> Array:
        """Parameters of the network of inputs less their means, one after another, (n_numbers,).

        It is the same network, but steps are not dragged along by features that are mostly on.
        """
        around = self.biases + self.means @ self.weights
        return np.asarray(self.network._replace(biases=around).flatten())

    def add_change(self, change: NDArray[Any]) -> BottleneckParams:
        """Add to Θ."""
        found = self.network.unflatten(self.theta + change)
        plain = found._replace(biases=found.biases - self.means @ found.weights)
        return replace(self, **plain._asdict())

    def make_targets(self, labels: Array) -> Array:
        """Give what the outputs should be, (n_samples, n_outputs), of labels that are known."""
        if self.categories is not None:
            return np.asarray(labels[:, None] == self.categories, np.float64)
        assert self.number is not None
        mean, deviation = self.number
        return np.asarray(((labels - mean) / deviation)[:, None])

    @property
    def baseline_score(self) -> float:
        """Score of a row expected of outputs that do not depend on it: nats."""
        if self.shares is None:
            return -0.5
        return float((self.shares * np.log(self.shares)).sum())
