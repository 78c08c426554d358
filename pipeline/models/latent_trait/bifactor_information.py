"""The pass for standard errors of a bifactor model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.standard_errors import select_rows
from pipeline.numerics.logistic.bifactor import (
    TraitBlocks,
    bifactor_e_step,
    bifactor_posterior,
    compute_bifactor_scores,
)
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.fit import sum_residuals
from pipeline.random import RowRandom
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]


def summarize_bifactor_information(
    params: LatentTraitParams,
    blocks: TraitBlocks,
    share: float,
    block: BinaryBlock,
    rng: RowRandom,
) -> Sums:
    """Compute the sums of `standard_errors.summarize_information` over a share of the rows.

    Slopes that are 0 have information 0.
    """
    log_likelihood = bifactor_e_step(
        block.unpack_values(),
        block.unpack_mask(),
        params.weights,
        params.offsets,
        block.row_weights,
        blocks=blocks,
    ).log_likelihood
    sample = select_rows(share, block, rng)
    X, observed, row_weights = sample.X, sample.observed, sample.row_weights
    scores = compute_bifactor_scores(
        X, observed, params.weights, params.offsets, row_weights, blocks
    )
    weights = np.ones(len(X)) if row_weights is None else row_weights
    size = params.free_parameters.size
    places = np.ix_(scores.parameters, scores.parameters)

    def expand(sums: Array) -> Array:
        matrix = np.zeros((size, size))
        matrix[places] = sums
        return matrix

    weighted = weights[:, None] * scores.scores
    values: dict[str, NDArray[Any]] = {
        "spread": expand(scores.spread),
        "products": expand(scores.scores.T @ weighted),
        "curvature": scores.curvature,
    }
    if sample.has_sampling_weights:
        values["weighted_products"] = expand(weighted.T @ weighted)
    posterior = bifactor_posterior(X, observed, params.weights, params.offsets, blocks)
    items = LevelItems.from_binary(*params.items)
    values |= sum_residuals(X, observed, items, posterior, row_weights)
    sums = Sums.from_block(block, log_likelihood, values)
    if block.clusters is None or row_weights is None:
        return sums
    clusters, cluster_places = np.unique(block.clusters, return_inverse=True)
    by_cluster = np.zeros((len(clusters), size))
    np.add.at(by_cluster, (cluster_places[:, None], scores.parameters), weighted)
    return ClusteredSums.from_sums(sums, clusters, by_cluster)
