"""Steps of layered networks through batches, for `pipeline.learning.training`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from pipeline.learning.batches import TrainingBatch, take_batch_rows
from pipeline.learning.training import Arrays, GradientTraining
from pipeline.numerics.logistic.logistic_units import fill_draws, row_states
from pipeline.numerics.networks.gradient_steps import apply_centred_step
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    flatten_layers,
    negative_cross_entropies,
    negative_squared_errors,
    propagate_down,
    propagate_up,
    split_into_layers,
)
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Singles = NDArray[np.float32]
Corruption = Literal["none", "flip", "mask"]
FillSlopes = Callable[[TrainingBatch, Layers, Layers], tuple[Singles, Singles] | None]
"""Fills in the slopes of layers, summed over the rows of a batch: given batch, layers, slopes.

Gives the means below and above that the slopes of a single layer are around, where they are.
"""

DEFAULT_RATES = {"adam": 0.03, "momentum": 0.1}
"""Default initial learning rate for reconstruction losses, by optimizer."""
CONTRASTIVE_RATES = {"adam": 0.01, "momentum": 0.05}
"""Default initial learning rate for contrastive divergence, by optimizer."""
_STEEPNESS = 4.0  # a sigmoid rises by ¼: with flatter curves signals fade from layer to layer


class NetworkLearner:
    """Parameters of layers on their way through the batches of a task.

    Attributes
    ----------
    theta
        All of them, as `flatten_layers` puts them.
    memory
        Of the optimiser.
    n_rows
        Rows that steps were taken with.
    """

    def __init__(
        self, training: GradientTraining, working: Arrays, layers: Layers, fill: FillSlopes
    ) -> None:
        self.theta: Singles = flatten_layers(layers).astype(np.float32)
        self.memory, self.n_rows = training.copy_memory(working), 0
        self._optimiser, self._rate, self._fill = training.optimiser, float(working["rate"]), fill
        sizes = count_units(layers)
        self._slope, self._move = np.empty_like(self.theta), np.empty_like(self.theta)
        self._layers, self._slopes, self._moves = (
            split_into_layers(flat, sizes) for flat in (self.theta, self._slope, self._move)
        )

    def step(self, batch: TrainingBatch, at: NDArray[np.int64]) -> None:
        """Take the step of some rows of a batch; none where there are no rows."""
        if not len(at):
            return
        around = self._fill(take_batch_rows(batch, at), self._layers, self._slopes)
        self._slope /= np.float32(len(at))
        self._move[:] = 0
        self._optimiser.step(self._move, self._slope, self.memory, self._rate)
        if around is None:
            self.theta += self._move
        else:
            apply_centred_step(self._layers[0], self._moves[0], *around)
        self.n_rows += len(at)


def draw_first_layer(shares: Array, n_above: int, rng: np.random.Generator) -> Layer:
    """Return initial weights that distinguish the units, and biases of the margins alone.

    Units above are near ½ for the mean row, and what comes back is near the shares.

    Parameters
    ----------
    shares
        Of ones of the units below, (n_below,).
    n_above
        Units above.
    rng
        Draws the weights.
    """
    spread = _STEEPNESS / np.sqrt(len(shares) + n_above)
    weights = spread * rng.standard_normal((len(shares), n_above))
    return Layer(weights, logit(shares) - weights.sum(axis=1) / 2, -shares @ weights)


def compute_baseline_score(shares: Array, seen: Array, *, squared: bool = False) -> float:
    """Return the mean score per row of the shares of ones alone, in nats.

    Parameters
    ----------
    shares
        Of ones of each unit, (n_units,).
    seen
        Of rows that the unit counts in, (n_units,).
    squared
        As of `score_reconstructions`.
    """
    if squared:
        return float(-0.5 * seen @ (shares * (1 - shares)))
    return float(seen @ (shares * np.log(shares) + (1 - shares) * np.log1p(-shares)))


def count_units(layers: Layers) -> tuple[int, ...]:
    """Count the units, from those of the data up."""
    return (len(layers[0].visible), *(len(layer.hidden) for layer in layers))


def convert_batch_to_float32(batch: TrainingBatch) -> tuple[Singles, Singles | None]:
    """Return rows as numbers, 0 where a value is missing, and the mask: (n_samples, n_features)."""
    X = batch.X.astype(np.float32)
    if batch.observed is None:
        return X, None
    seen = batch.observed.astype(np.float32)
    return X * seen, seen


def score_reconstructions(
    layers: Layers, given: NDArray[Any], seen: NDArray[Any] | None, *, squared: bool = False
) -> Array:
    """Compute the reconstruction log-likelihood of each row, in nats, (n_samples,).

    Cross-entropy, or else half the squared error, which is that of Gaussians of variance 1 but for
    a constant.
    """
    inputs = propagate_down(layers, propagate_up(layers, given)[-1])[-1]
    return (negative_squared_errors if squared else negative_cross_entropies)(inputs, given, seen)


def corrupt_bits(
    X: Singles,
    seen: Singles | None,
    kind: Corruption,
    share: float,
    rows: NDArray[np.int64],
    draws: RowRandom,
) -> Singles:
    """Flip a share of the bits, or mask it, drawn by their rows; what is missing stays 0.

    Parameters
    ----------
    X, seen
        As `convert_batch_to_float32` gives them.
    kind, share
        What to do, and with what share of the bits.
    rows
        Original numbers of the rows, (n_samples,).
    draws
        Of the pass.
    """
    if kind == "none":
        return X
    hit = np.empty_like(X)
    fill_draws(np.full_like(X, logit(share)), X.shape[1], row_states(draws.key, rows), 0, hit)
    given = np.abs(X - hit) if kind == "flip" else X * (1 - hit)
    return given if seen is None else given * seen
