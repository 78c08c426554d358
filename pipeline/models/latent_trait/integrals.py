"""Integrals over the traits of rows: codes, and log-likelihoods.

There is one way to integrate for each kind of model:

==================  ==================================================
traits              integral
==================  ==================================================
up to 3             quadrature (`numerics.logistic.categories`)
bifactor pattern    quadrature of the general and one other trait
more                none: codes by expectation propagation,
                    log-likelihoods by importance sampling
==================  ==================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.latent_trait.em import ItemKind, LatentTraitParams, unpack_answers
from pipeline.numerics.logistic.bifactor import bifactor_posterior, find_trait_blocks
from pipeline.numerics.logistic.categories.row_posteriors import compute_row_posterior
from pipeline.numerics.logistic.centred_points import RowPosterior, posterior_by_sampling
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS
from pipeline.numerics.logistic.logistic_sites import ep_posterior
from pipeline.random import RowRandom

Array = NDArray[np.float64]


def integrate_rows(
    params: LatentTraitParams, items: ItemKind, block: BinaryBlock
) -> RowPosterior | None:
    """Integrate over u, see `TraitGroup`, of each row by quadrature; None with too many traits."""
    X, observed = unpack_answers(params, block)
    group = params.get_group(block.segment)
    own = group.standardize(params.get_level_items(items, block.segment))
    if params.weights.shape[1] <= MAX_COMPONENTS:
        row_means = group.compute_row_means(block.covariates)
        return compute_row_posterior(X, observed, own, row_means)
    if (blocks := find_trait_blocks(params.weights != 0)) is None:
        return None
    return bifactor_posterior(X, observed, own.weights, own.offsets, blocks)


def compute_codes(
    params: LatentTraitParams, items: ItemKind, block: BinaryBlock
) -> tuple[Array, Array]:
    """Return the posterior means of the traits, (n_samples, q), and covariances."""
    posterior, group = integrate_rows(params, items, block), params.get_group(block.segment)
    if posterior is not None:
        return group.to_traits(posterior.mean, posterior.covariance)
    gaussians = ep_posterior(*unpack_answers(params, block), *group.items)
    return group.to_traits(gaussians.mean, gaussians.covariance)


def compute_log_likelihood(
    params: LatentTraitParams, items: ItemKind, block: BinaryBlock, rng: RowRandom
) -> LogLikelihood:
    """Return log P(t) of each row, and its errors."""
    if (posterior := integrate_rows(params, items, block)) is not None:
        nats, error = posterior.log_likelihood, posterior.standard_error
        return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)
    group_items = params.get_group(block.segment).items
    sampled = posterior_by_sampling(*unpack_answers(params, block), group_items, rng, block.rows)
    return LogLikelihood(sampled.log_likelihood, sampled.standard_error)
