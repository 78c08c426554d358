"""What models share whose rows are in hidden states that follow a Markov chain.

They differ in the distribution of a row given its state. Their parameters have the `weights` of
states, their `initial` distribution and their `transition` matrix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.models.hidden_markov.chains import (
    find_path,
    maximize_rows,
    multiply_rows,
    scale_densities,
    sum_paths,
)
from pipeline.models.hidden_markov.links import Links, Neighbours, SequenceColumns
from pipeline.models.state import Arrays
from pipeline.random import RowRandom

LEAST_WEIGHT = 1e-300
"""Weight of a state that the neighbours of a row exclude."""


class PathSums(NamedTuple):
    """Sums over the paths through a block, see `chains.sum_paths`.

    `densities` are those of the rows, up to a factor of each, (n_samples, n_states), and `nats` is
    the log-likelihood of the rows given those before the block.
    """

    densities: Array
    earlier: Array
    later: Array
    transitions: Array
    starts: Array
    nats: float


class HiddenStates:
    """The methods of `HasSequences`, for such a model."""

    @property
    def columns(self) -> SequenceColumns:
        """The columns that say which sequence a row is of, and when."""
        return SequenceColumns("", "")

    def _compute_log_densities(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return log P(x_n | k), (n_samples, n_states), and which rows are held out."""
        raise NotImplementedError

    def summarize_links(
        self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Links:
        """MAP: multiply the matrices of the rows, and maximize over paths if they are asked for."""
        begins = self.columns.find_first_rows(block)
        logs, is_out = self._compute_log_densities(params, working, block, rng)
        n_states = len(params.weights)
        best = np.empty((0, 0))
        if "paths" in working:
            best = np.empty((n_states + 1, n_states))
            maximize_rows(logs, begins, np.log(params.transition), np.log(params.initial), best)
        logs[is_out] = 0.0
        product = np.zeros((n_states + 1, n_states))
        lines = product[n_states:] if block.row_numbers[0] == 0 else product
        scale_densities(logs, np.empty(len(logs)))
        multiply_rows(logs, begins, params.transition, params.initial, lines)
        return Links.from_block(block, self.columns, product, best)

    def connect_links(self, params: Any, links: Links) -> Arrays:
        """CENTRAL: return what the rows before and after each block say."""
        return links.connect(self.columns)

    def condition(self, params: Any, working: Arrays, block: BinaryBlock) -> BinaryBlock:
        """MAP: return the block with what its neighbours say about each row, as covariates.

        These are log P(z_n | earlier rows), log P(later rows | z_n) up to a term, each
        (n_samples, n_states), and the state of the likeliest path.
        """
        found = Neighbours.find(working, block, len(params.weights))
        begins = self.columns.find_first_rows(block)
        begins[:1] = found.begins
        logs, _ = self._compute_log_densities(params, {}, block, RowRandom(0))
        path = np.empty(block.n_samples, np.int64)
        chain = np.log(params.transition), np.log(params.initial)
        find_path(logs, begins, *chain, found.state_before or 0, found.last_state or 0, path)
        sums = self._sum_paths(params, working, block, logs)
        own = (np.log(np.maximum(part, LEAST_WEIGHT)) for part in (sums.earlier, sums.later))
        return replace(block, covariates=np.hstack([*own, path[:, None]]))

    def _sum_paths(self, params: Any, working: Arrays, block: BinaryBlock, logs: Array) -> PathSums:
        """Sum over all paths through a block; `logs`, the log densities, become densities."""
        found = Neighbours.find(working, block, len(params.weights))
        begins = self.columns.find_first_rows(block)
        begins[:1] = found.begins
        peaks, earlier, later = np.empty(len(logs)), np.empty_like(logs), np.empty_like(logs)
        scale_densities(logs, peaks)
        sums = earlier, later, np.zeros_like(params.transition), np.zeros_like(params.initial)
        own = (params.transition, params.initial, found.before, found.after)
        nats = sum_paths(logs, begins, *own, *sums) + peaks.sum()
        return PathSums(logs, *sums, float(nats))


def split_columns(covariates: Array) -> tuple[Array, Array, Array]:
    """Return the covariates of `HiddenStates.condition`."""
    n_states = covariates.shape[1] // 2
    return covariates[:, :n_states], covariates[:, n_states:-1], covariates[:, -1]
