"""Standard errors of clipped PCA with continuous features.

As in `standard_errors`, errors of correlations are those of the delta method, and loadings have
theirs from rows drawn from the fitted Gaussians. With ρ a correlation, and z the standardized
values of two continuous features, a row moves Pearson's correlation by

    z_i z_j − ρ_ij (z_i² + z_j²) / 2,

whose standard deviation is 1 − ρ². See `numerics.gaussian.polychoric_influence` for two features
with levels, and `numerics.gaussian.polyserial_influence` for one of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Indices
from pipeline.models.clipped_pca.standard_errors import (
    CorrelationInfluence,
    add_errors_of_loadings,
    compute_moves,
    cut_gaussians,
)
from pipeline.models.state import FitState
from pipeline.numerics.gaussian.polyserial import PolyserialPairs
from pipeline.numerics.gaussian.polyserial_influence import (
    PolyserialInfluence,
    evaluate_influence,
    polyserial_influence,
)


class MixedCounts(NamedTuple):
    """What the errors need to know of the data, besides polyserial correlations.

    Attributes
    ----------
    weight
        Sum of the weights of all rows, ().
    pair_rows
        Rows that observe a continuous feature and another one, all continuous features first,
        (n_continuous, n_features).
    observed_shares
        Share of the rows that observe each feature, (n_features,).
    levels_joint, levels_single, levels_constant
        `CorrelationInfluence` of the features with levels.
    levels_error
        Standard errors of their correlations, (n_ordinal, n_ordinal).
    """

    weight: Array
    pair_rows: Array
    observed_shares: Array
    levels_joint: Array
    levels_single: Array
    levels_constant: Array
    levels_error: Array

    @property
    def influence(self) -> CorrelationInfluence:
        """Influence of bits on the correlations of features with levels."""
        return CorrelationInfluence(self.levels_joint, self.levels_single, self.levels_constant)


def add_mixed_errors(
    state: FitState,
    counts: MixedCounts,
    pairs: PolyserialPairs,
    continuous: Indices,
    rng: np.random.Generator,
) -> FitState:
    """Add standard errors to the correlations and loadings of a `ClippedPCA`.

    `continuous` are the indices of the continuous features; `rng` draws the simulated rows.
    """
    params, n = state.params, len(continuous)
    ordinal = np.setdiff1d(np.arange(len(params.n_levels)), continuous)
    n_levels, varies = params.n_levels[ordinal], np.ones(len(params.n_levels), np.bool_)
    varies[state.auxiliary["constant"]] = False
    has_rows = counts.pair_rows > 0
    is_informative = has_rows[:, n:] & varies[continuous, None] & varies[ordinal]
    is_informative &= np.abs(params.correlation[np.ix_(continuous, ordinal)]) > 0
    polyserial = polyserial_influence(pairs, is_informative, n_levels)
    root = np.sqrt(np.maximum(counts.pair_rows, 1.0))
    errors = np.full(params.correlation.shape, np.nan)
    errors[np.ix_(ordinal, ordinal)] = counts.levels_error
    own = params.correlation[np.ix_(continuous, continuous)]
    has_pearson = has_rows[:, :n] & varies[continuous, None] & varies[continuous]
    errors[np.ix_(continuous, continuous)] = np.where(has_pearson, 1 - own**2, np.nan) / root[:, :n]
    errors[np.ix_(continuous, ordinal)] = polyserial.deviation / root[:, n:]
    errors[np.ix_(ordinal, continuous)] = errors[np.ix_(continuous, ordinal)].T
    np.fill_diagonal(errors, 0.0)
    state = replace(state, params=replace(params, correlation_error=errors))
    scale = np.where(has_rows, counts.weight / np.maximum(counts.pair_rows, 1.0), 0.0)
    moves = _Moves(
        continuous, ordinal, n_levels, params.thresholds, own, counts.influence, polyserial, pairs
    )

    def iter_moves(x: Array, mask: NDArray[np.uint8] | None, vectors: Array) -> Iterator[Array]:
        return moves.iter_vectors(x, mask, scale, vectors)

    row_size = len(params.thresholds) + n * len(params.loadings)
    weight = float(counts.weight)
    return add_errors_of_loadings(state, counts.observed_shares, weight, rng, iter_moves, row_size)


@dataclass(frozen=True)
class _Moves:
    """Computes D v of rows, where D is the influence of a row on all correlations."""

    continuous: Indices
    ordinal: Indices
    n_levels: Indices
    thresholds: Array
    pearson: Array
    levels: CorrelationInfluence
    polyserial: PolyserialInfluence
    pairs: PolyserialPairs

    def iter_vectors(
        self, x: Array, mask: NDArray[np.uint8] | None, scale: Array, vectors: Array
    ) -> Iterator[Array]:
        """Yield D v for each eigenvector v, (n_rows, n_features).

        Parameters
        ----------
        x, mask
            Gaussians, and which are observed, (n_rows, n_features).
        scale
            Factors of the influence of rows that observe both features, as all rows are counted,
            (n_continuous, n_features) with continuous features first.
        vectors
            (n_features, n_components).
        """
        n, continuous, ordinal = len(self.continuous), self.continuous, self.ordinal
        m = np.ones((1, x.shape[1])) if mask is None else mask.astype(np.float64)
        bits = cut_gaussians(x[:, ordinal], self.thresholds, self.n_levels).astype(np.float64)
        firsts = np.cumsum(self.n_levels - 1) - (self.n_levels - 1)
        levels = np.add.reduceat(bits, firsts, axis=1).astype(np.uint8)
        own, others = m[:, continuous], m[:, ordinal]
        if mask is not None:
            bits *= np.repeat(others, self.n_levels - 1, axis=1)
        z = x[:, continuous]
        mixed = np.stack(
            [
                evaluate_influence(self.polyserial, self.pairs, z[:, c], levels, self.n_levels, c)
                for c in range(n)
            ],
            axis=1,
        )
        mixed *= scale[:, n:] * own[:, :, None] * others[:, None]
        weights = scale[:, :n] * (1 - np.eye(n))
        for v in vectors.T:
            moves = np.empty(x.shape)
            moves[:, ordinal] = compute_moves(
                bits, others, v[ordinal], self.levels, self.n_levels
            ) + np.einsum("nij,i->nj", mixed, v[continuous])
            u = own * v[continuous]
            half = 0.5 * weights * self.pearson
            pearson = z * ((z * u) @ weights) - z**2 * (u @ half) - (z**2 * u) @ half
            moves[:, continuous] = own * pearson + mixed @ v[ordinal]
            yield moves
