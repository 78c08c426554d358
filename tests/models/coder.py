"""A stack of sigmoid coders with tied weights, learned layer by layer, many steps a pass.

Model: h_k = σ(W_k h_{k−1} + b_k), and back ĥ_{k−1} = σ(W_kᵀ h_k + c_k), with h_0 = x.

Needs of the contract: steps of tasks, parameters of a variable number of layers, a layer a stage,
working state (layer and rate), streams of draws, settings of all kinds, patience.
Not identifiable: order and signs of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.batches import TrainingBatch, iter_shuffled_rows, split_into_batches
from pipeline.learning.convergence import ConvergenceCriterion, PatienceCriterion
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.params import layer_arrays_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CoderParams:
    """Weights and biases, upwards and back, of every layer."""

    weights: tuple[Array, ...] = layer_arrays_field("above", "below")
    biases: tuple[Array, ...] = layer_arrays_field("above")
    back: tuple[Array, ...] = layer_arrays_field("below")

    def up(self, x: Array, n_layers: int) -> Array:
        """Code rows by the first layers."""
        for w, b in zip(self.weights[:n_layers], self.biases, strict=False):
            x = expit(x @ w.T + b)
        return x

    def layer(self, k: int) -> tuple[Array, Array, Array]:
        """Return one layer."""
        return self.weights[k], self.biases[k], self.back[k]

    def with_layer(self, k: int, layer: tuple[Array, Array, Array]) -> CoderParams:
        """Replace one layer."""
        parts = zip((self.weights, self.biases, self.back), layer, strict=True)
        return CoderParams(*((*old[:k], new, *old[k + 1 :]) for old, new in parts))


@dataclass(frozen=True)
class Coder(Model):
    """Hyperparameters of the stack of coders.

    Attributes
    ----------
    n_components
        Units of the last layer; None takes 2.
    layers
        Units of the layers below it.
    batch
        Rows of a step.
    rate
        Length of a step.
    denoise
        Flip a tenth of the bits before they are coded.
    max_iter
        Passes of a layer at the most.
    """

    name: ClassVar[str] = "coder"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[CoderParams]] = CoderParams
    n_components: int | None = None
    layers: tuple[int, ...] = ()
    batch: int = setting(50, minimum=1)
    rate: float = setting(0.5, above=0)
    denoise: bool = False
    max_iter: int = setting(8, minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.layers, default=1) < 1:  # unlike a declared range, this allows no layers
            raise FitError(f"{{layers}} must be at least 1 each, but is {self.layers}.")

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin with small random weights."""
        observed, ones = pool_margins(first)
        sizes = [len(ones), *self.layers, self.n_components or 2]
        pairs = [*pairwise(sizes)]
        params = CoderParams(
            tuple(0.5 * rng.standard_normal((above, below)) for below, above in pairs),
            tuple(np.zeros(above) for _, above in pairs),
            tuple(np.zeros(below) for below, _ in pairs),
        )
        working = {"layer": np.array(0), "rate": np.array(self.rate)}
        constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
        noted = (FitWarning("constant: {features}", constant),) if constant else ()
        return FitState(params, working, warnings=noted)

    def learn(
        self,
        params: CoderParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> Sums | None:
        """Step through the rows; return the change of the layer times the rows."""
        k, rate, flips = int(working["layer"]), float(working["rate"]), rng.stream("flips")
        n_rows, objective, now = 0, 0.0, params.layer(k)
        portions = iter_shuffled_rows(blocks(), self.batch, rng)
        for batch in chain.from_iterable(
            split_into_batches(p, self.batch, np.ones(len(p.rows), bool)) for p in portions
        ):
            clean = inputs(batch)
            given = clean
            if self.denoise:
                flipped = flips.uniform(batch.rows, clean.shape[1]) < 0.1
                given = np.where(flipped, 1 - clean, clean)
            below = params.up(given, k)
            gained, slope = gradient(now, below, params.up(clean, k) if k else clean)
            now = tuple(a + rate / len(clean) * g for a, g in zip(now, slope, strict=True))
            n_rows, objective = n_rows + len(clean), objective + gained
        if not n_rows:
            return None
        moved = zip(now, params.layer(k), strict=True)
        changes = {
            f"part_{i}": n_rows * (after - before) for i, (after, before) in enumerate(moved)
        }
        return Sums(n_rows, n_rows, objective, changes)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Move by the mean change of all tasks; the next pass takes shorter steps."""
        k = int(state.working["layer"])
        changes = [statistics.values[f"part_{i}"] / statistics.n_rows for i in range(3)]
        moved = zip(state.params.layer(k), changes, strict=True)
        params = state.params.with_layer(k, tuple(a + change for a, change in moved))
        return replace(
            state, params=params, working={**state.working, "rate": 0.9 * state.working["rate"]}
        )

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Wait two passes for something better."""
        return PatienceCriterion(self.max_iter, patience=2)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Go on with the next layer."""
        k = int(state.working["layer"]) + 1
        if k == len(state.params.weights):
            return None
        return replace(state, working={"layer": np.array(k), "rate": np.array(self.rate)})

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Say how many components there are."""
        return replace(state, diagnostics={"n_components": len(state.params.biases[-1])})

    def transform(
        self, params: CoderParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the units of the last layer."""
        x, mask = block.unpack_values().astype(np.float64), block.unpack_mask()
        x = x if mask is None else np.where(mask, x, 0.5)
        # Row by row: products of matrices round by the number of rows.
        codes = [params.up(row[None], len(params.weights))[0] for row in x]
        return {"mean": np.array(codes).reshape(len(x), len(params.biases[-1]))}

    def reconstruct(
        self, params: CoderParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Go back down to the bits."""
        for w, c in zip(params.weights[::-1], params.back[::-1], strict=True):
            codes = expit(codes @ w + c)
        return codes


def inputs(batch: TrainingBatch) -> Array:
    """Rows as numbers; a missing value is one half."""
    x = batch.X.astype(np.float64)
    return x if batch.observed is None else np.where(batch.observed, x, 0.5)


def gradient(
    layer: tuple[Array, Array, Array], given: Array, wanted: Array
) -> tuple[float, tuple[Array, Array, Array]]:
    """Log-likelihood of what is wanted, summed over rows, and its gradient."""
    w, b, c = layer
    h = expit(given @ w.T + b)
    guessed = np.clip(expit(h @ w + c), 1e-12, 1 - 1e-12)
    gained = float((wanted * np.log(guessed) + (1 - wanted) * np.log1p(-guessed)).sum())
    error = wanted - guessed
    through = (error @ w.T) * h * (1 - h)
    return gained, (through.T @ given + h.T @ error, through.sum(axis=0), error.sum(axis=0))
