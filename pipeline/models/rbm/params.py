"""Parameters of the restricted Boltzmann machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.networks.boltzmann_rows import BoltzmannMachine
from pipeline.params import array_field, optional_array_field

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RBMParams:
    """Parameters; the table of the model's module gives shapes."""

    weights: Array = array_field("feature", "component")
    visible_biases: Array = array_field("feature")
    hidden_biases: Array = array_field("component")
    log_odds: Array = array_field("feature")
    log_z: Array | None = optional_array_field()
    log_z_error: Array | None = optional_array_field()

    @property
    def machine(self) -> BoltzmannMachine:
        """What kernels are given."""
        return BoltzmannMachine(self.weights, self.visible_biases, self.hidden_biases)

    @property
    def shares(self) -> Array:
        """Shares of ones of the features, (n_features,)."""
        shares: Array = expit(self.log_odds)
        return shares

    @property
    def baseline_log_likelihood(self) -> float:
        """Log-likelihood of a row if its features were independent, expected: nats."""
        p = self.shares
        return float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())

    @property
    def theta(self) -> Array:
        """Θ = [[W, b], [cᵀ, 0]], (n_features + 1, n_components + 1)."""
        above = np.column_stack([self.weights, self.visible_biases])
        return np.vstack([above, np.append(self.hidden_biases, 0.0)])

    def add_change(self, change: NDArray[Any]) -> RBMParams:
        """Add to Θ."""
        theta = self.theta + change
        return replace(
            self,
            weights=theta[:-1, :-1],
            visible_biases=theta[:-1, -1],
            hidden_biases=theta[-1, :-1],
        )
