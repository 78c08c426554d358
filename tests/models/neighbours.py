"""A smoother by nearest neighbours: exact, by Hamming distance, over all pairs of rows.

Model: none of how rows came about. f(x) is the mean of g over the k training rows nearest to x, and
g(x_j) the mean of the shares of ones over the k training rows nearest to x_j, itself among them. A
share is that of a group of features; ties go to the earlier row.

Needs of the contract: work on pairs of rows, its results in storage; a fit without passes.
Not identifiable: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, PassCountCriterion
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.params import array_field
from pipeline.passes.row_ranges import RangeResults
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins

Bits, Keys = NDArray[np.uint8], NDArray[np.int64]

FAR = np.iinfo(np.int64).max
"""The key of a neighbour that there is not."""
_ROW_BITS = 40
_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class NeighboursParams:
    """The training rows in their order, eight features a byte, and what was smoothed."""

    bits: Bits = array_field("row", "byte")
    observed: Bits = array_field("row", "byte")
    smoothed: NDArray[np.float64] = array_field("row", "component")


@dataclass(frozen=True)
class Neighbours(Model):
    """Hyperparameters.

    Attributes
    ----------
    n_components
        Groups of features; None takes 2.
    k
        Neighbours of a row, itself among them where it is a training row.
    """

    name: ClassVar[str] = "neighbours"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    params: ClassVar[type[NeighboursParams]] = NeighboursParams
    n_components: int | None = None
    k: int = setting(4, minimum=1)
    max_iter: int = field(default=0, init=False)
    tol: float = field(default=0.0, init=False)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin with no rows."""
        observed, ones = pool_margins(first)
        constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
        noted = (FitWarning("constant: {features}", constant),) if constant else ()
        nothing = np.empty((0, -(-len(ones) // 8)), np.uint8)
        empty = NeighboursParams(nothing, nothing, np.empty((0, self.n_components or 2)))
        return FitState(empty, warnings=noted)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Need no passes."""
        return PassCountCriterion(0)

    def compare(
        self,
        params: NeighboursParams,
        working: Arrays,
        left: BinaryBlock,
        right: BinaryBlock,
        before: Arrays | None,
    ) -> Arrays:
        """Find the nearest of all rows that came by, and keep each row's bits beside."""
        if before is None:
            bits, observed = rows_in_bytes(left)
            nearest = np.full((len(bits), self.k), FAR)
        else:
            bits, observed, nearest = before["bits"], before["observed"], before["nearest"]
        nearest = merged(nearest, bits, observed, *rows_in_bytes(right), right.rows)
        return {"bits": bits, "observed": observed, "nearest": nearest}

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Smooth the shares of each run's rows by those of its neighbours."""
        runs = [*map_items(results.read, range(results.n_ranges))]
        rows, bits, observed = (
            np.concatenate([run[name] for run in runs]) for name in ("row", "bits", "observed")
        )
        shares = self._shares(bits, observed)
        parts = [mean_of(shares, run["nearest"], rows) for run in runs]
        params = NeighboursParams(bits, observed, np.concatenate(parts))
        return replace(state, params=params, diagnostics={"n_components": shares.shape[1]})

    def _shares(self, bits: Bits, observed: Bits) -> NDArray[np.float64]:
        """Return the share of ones in each group of features, (n_rows, n_components)."""
        X, mask = (np.unpackbits(a, axis=1, bitorder="little") for a in (bits, observed))
        q = self.n_components or 2
        groups = [slice(c, None, q) for c in range(q)]
        counts = [np.maximum(1, mask[:, g].sum(axis=1)) for g in groups]
        return np.stack([X[:, g].sum(axis=1) / n for g, n in zip(groups, counts, strict=True)], 1)

    def transform(
        self, params: NeighboursParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the mean of what was smoothed over the nearest training rows."""
        places = np.arange(len(params.bits))
        none = np.full((block.n_samples, self.k), FAR)
        training = (params.bits, params.observed, places)
        nearest = merged(none, *rows_in_bytes(block), *training)
        return {"mean": mean_of(params.smoothed, nearest, places)}


def rows_in_bytes(block: BinaryBlock) -> tuple[Bits, Bits]:
    """Return a block's bits and what was observed, (n_samples, n_bytes) each."""
    X, mask = block.unpack_values(), block.unpack_mask()
    observed = np.ones_like(X) if mask is None else mask
    ones, seen = (np.packbits(a, axis=1, bitorder="little") for a in (X & observed, observed))
    return ones, seen


def merged(nearest: Keys, bits: Bits, observed: Bits, other: Bits, seen: Bits, rows: Keys) -> Keys:
    """Take further rows among the nearest: keys of distance, then row, (n_rows, k), ascending."""
    found, size = nearest.copy(), max(1, _PAIRS_AT_ONCE // max(1, len(rows)))
    for start in range(0, len(bits), size):
        some = slice(start, start + size)
        distances = np.zeros((len(bits[some]), len(rows)), np.int64)
        for byte in range(bits.shape[1]):  # quicker than a short axis in each array
            both = observed[some, byte, None] & seen[:, byte]
            distances += np.bitwise_count((bits[some, byte, None] ^ other[:, byte]) & both)
        keys = np.hstack([nearest[some], (distances << _ROW_BITS) | rows])
        k = nearest.shape[1]
        found[some] = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
    return found


def mean_of(values: NDArray[np.float64], nearest: Keys, rows: Keys) -> NDArray[np.float64]:
    """Return the mean value of the nearest rows; fewer where there are not so many."""
    there = nearest != FAR
    places = np.where(there, np.searchsorted(rows, nearest & ((1 << _ROW_BITS) - 1)), 0)
    chosen = np.where(there[:, :, None], values[places], 0.0)
    return chosen.sum(axis=1) / there.sum(axis=1)[:, None]
