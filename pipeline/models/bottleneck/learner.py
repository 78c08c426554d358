"""Steps that a task takes through batches of its rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.batches import Batch
from pipeline.learning.optimisers import Memory, Optimiser
from pipeline.models.bottleneck.params import BottleneckParams
from pipeline.numerics.networks.three_layers import hidden_units, outputs_of, scores, slopes
from pipeline.statistics.labels import SEGMENT, as_numbers

Array = NDArray[np.float64]
Singles = NDArray[np.float32]


class Learner:
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
        memory: Memory,
        rate: float,
    ) -> None:
        """Begin at some parameters; `memory` is changed in place."""
        self.theta: Singles = params.theta.astype(np.float32)
        self.memory, self.n_rows = memory, 0
        self._params, self._column = params, column
        self._optimiser, self._rate = optimiser, rate
        self._means = params.means.astype(np.float32)
        self._network = params.network.filled(self.theta)  # views: they go along with Θ

    def step(self, batch: Batch, at: NDArray[np.int64]) -> None:
        """Take the step of some rows of a batch; none where there are no rows."""
        if not len(at):
            return
        wanted = self._params.wanted(labels_in(batch, self._column)[at]).astype(np.float32)
        with np.errstate(all="ignore"):  # training that diverges is told by its score
            found = slopes(self._network, self._inputs(batch, at), wanted, self._params.is_category)
        self._optimiser.step(self.theta, found.flat(), self.memory, self._rate)
        self.n_rows += len(at)

    def _inputs(self, batch: Batch, at: NDArray[np.int64]) -> Singles:
        """Give values less the means of their features, 0 where missing."""
        X = batch.X[at] - self._means
        return X if batch.observed is None else X * batch.observed[at]


def labels_in(batch: Batch, column: str) -> Array:
    """Give the labels of a batch, (n_samples,)."""
    found = batch.segments if column == SEGMENT else batch.columns[column]
    return as_numbers(found)


def score(params: BottleneckParams, column: str, batch: Batch) -> Array:
    """Give the score of each row, nats, (n_samples,)."""
    with np.errstate(all="ignore"):
        hidden = hidden_units(params.network, params.means, batch.X, batch.observed)
        outputs = outputs_of(params.network, hidden)
        wanted = params.wanted(labels_in(batch, column))
        return scores(outputs, wanted, params.is_category)
