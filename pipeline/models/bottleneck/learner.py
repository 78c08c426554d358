"""Steps that a task takes through batches of its rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import Optimiser, OptimiserMemory
from pipeline.models.bottleneck.params import BottleneckParams
from pipeline.numerics.networks.three_layers import (
    compute_hidden_units,
    compute_outputs,
    row_scores,
    score_gradient,
)
from pipeline.statistics.labels import SEGMENT, convert_labels_to_numbers

Array = NDArray[np.float64]
Singles = NDArray[np.float32]


class BottleneckLearner:
    """Parameters on their way through the batches of a task, in single precision.

    Attributes
    ----------
    theta
        Θ, (n_numbers,).
    memory
        Of the optimiser.
    n_rows
        Rows that steps were taken with.
    """

    def __init__(
        self,
        params: BottleneckParams,
        column: str,
        optimiser: Optimiser,
        memory: OptimiserMemory,
        rate: float,
    ) -> None:
        """Begin at some parameters; `memory` is changed in place."""
        self.theta: Singles = params.theta.astype(np.float32)
        self.memory, self.n_rows = memory, 0
        self._params, self._column = params, column
        self._optimiser, self._rate = optimiser, rate
        self._means = params.means.astype(np.float32)
        self._network = params.network.unflatten(self.theta)  # views: they go along with Θ

    def step(self, batch: TrainingBatch, at: NDArray[np.int64]) -> None:
        """Take the step of some rows of a batch; none where there are no rows."""
        if not len(at):
            return
        wanted = self._params.make_targets(get_labels(batch, self._column)[at]).astype(np.float32)
        with np.errstate(all="ignore"):  # training that diverges is told by its score
            found = score_gradient(
                self._network, self._inputs(batch, at), wanted, self._params.is_category
            )
        self._optimiser.step(self.theta, found.flatten(), self.memory, self._rate)
        self.n_rows += len(at)

    def _inputs(self, batch: TrainingBatch, at: NDArray[np.int64]) -> Singles:
        """Give values less the means of their features, 0 where missing."""
        X = batch.X[at] - self._means
        return X if batch.observed is None else X * batch.observed[at]


def get_labels(batch: TrainingBatch, column: str) -> Array:
    """Give the labels of a batch, (n_samples,)."""
    found = batch.segments if column == SEGMENT else batch.columns[column]
    return convert_labels_to_numbers(found)


def score_rows(params: BottleneckParams, column: str, batch: TrainingBatch) -> Array:
    """Give the score of each row, nats, (n_samples,)."""
    with np.errstate(all="ignore"):
        hidden = compute_hidden_units(params.network, params.means, batch.X, batch.observed)
        outputs = compute_outputs(params.network, hidden)
        wanted = params.make_targets(get_labels(batch, column))
        return row_scores(outputs, wanted, params.is_category)
