"""Features independent within each class of a column: it reads labels, and offers no samples.

Model: P(x_i = 1 | y) = p_yi, features independent given y.

Needs of the contract: a column of the dataset in `summarize`; a likelihood without samples.
Not identifiable: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.state import Arrays, FitState
from pipeline.params import NumberRange, array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LabelledParams:
    """Shares of ones and of rows by class."""

    probabilities: Array = array_field(
        "component", "feature", allowed=NumberRange(above=0, below=1)
    )
    weights: Array = array_field("component", allowed=NumberRange(above=0), total=1)


@dataclass(frozen=True)
class Labelled(Model):
    """Hyperparameters.

    Attributes
    ----------
    n_components
        Number of classes; None takes 2.
    column
        The per-row column whose codes are the classes; codes beyond the last count as the last.
    """

    name: ClassVar[str] = "labelled"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[LabelledParams]] = LabelledParams
    n_components: int | None = None
    column: str = "label"
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.column:
            raise FitError("column: Expected a name, got ''. Give one.")

    def list_required_columns(self) -> tuple[str, ...]:
        """Name the labels."""
        return (self.column,)

    def counts_key(self, n_features: int) -> str:
        """Name the sums by class."""
        return f"ones of {self.n_components or 2} classes of {self.column}"

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin with no classes."""
        observed, ones = pool_margins(first)
        constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
        noted = (FitWarning("constant: {features}", constant),) if constant else ()
        n = self.n_components or 2
        even = LabelledParams(np.full((n, len(ones)), 0.5), np.full(n, 1 / n))
        return FitState(even, warnings=noted)

    def summarize(
        self, params: LabelledParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Count ones and values of each class."""
        n = self.n_components or 2
        member = np.eye(n)[np.clip(block.column(self.column), 0, n - 1).astype(int)].T
        X, mask = block.unpack_values(), block.unpack_mask()
        observed = np.ones_like(X) if mask is None else mask
        values = {"ones": member @ X, "observed": member @ observed, "rows": member.sum(axis=1)}
        return Sums.from_block(block, 0.0, values)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Take the shares."""
        sums = statistics.values
        params = LabelledParams(
            (sums["ones"] + 0.5) / (sums["observed"] + 1), sums["rows"] / sums["rows"].sum()
        )
        return replace(state, params=params, diagnostics={"n_components": len(params.weights)})

    def transform(
        self, params: LabelledParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(y | x)."""
        return {"mean": np.exp(log_softmax(_joint(params, block), axis=1))}

    def log_likelihood(
        self, params: LabelledParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P(x)."""
        return LogLikelihood(logsumexp(_joint(params, block), axis=1), np.zeros(block.n_samples))


def _joint(params: LabelledParams, block: BinaryBlock) -> Array:
    """Return log P(x, y), (n_samples, n_classes), by sums that no other row changes."""
    X, mask = block.unpack_values(), block.unpack_mask()
    p = params.probabilities
    each = np.where(X[:, None], np.log(p), np.log1p(-p))
    if mask is not None:
        each = each * mask[:, None]
    return each.sum(axis=2) + np.log(np.maximum(params.weights, 1e-300))
