"""What integrals over the traits give besides E-steps: work, information, codes, log-likelihoods.

After a fit, `integrate_rows` integrates over up to 3 traits, or those of a bifactor pattern, by
quadrature. With more traits, codes are by expectation propagation, and log-likelihoods by
importance sampling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.latent_trait.e_steps import get_shared_nodes, run_e_step
from pipeline.models.latent_trait.error_sums import (
    FIXED_NANOSECONDS,
    ScoredRows,
    add_scores,
    count_complete_rows,
    draw_rows,
    estimate_information,
)
from pipeline.models.latent_trait.fit_design import MAX_PARAMETERS
from pipeline.models.latent_trait.forms import Matrix
from pipeline.models.latent_trait.params import (
    ItemKind,
    LatentTraitParams,
    unpack_answers,
)
from pipeline.models.latent_trait.stages import (
    blocks_from_working,
    count_own_nodes,
    nodes_from_working,
)
from pipeline.models.state import Arrays
from pipeline.numerics.logistic.bifactor import (
    TraitBlocks,
    bifactor_posterior,
    compute_bifactor_scores,
    estimate_bifactor_e_step,
    estimate_bifactor_scores,
    find_trait_blocks,
)
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.fit import sum_residuals
from pipeline.numerics.logistic.categories.row_posteriors import (
    compute_level_node_posterior,
    compute_row_posterior,
)
from pipeline.numerics.logistic.categories.scores import (
    RowRegression,
    count_points,
    leave_out_saturated,
    list_form_places,
    sum_block_scores,
)
from pipeline.numerics.logistic.categories.sites import (
    compute_site_posterior,
    list_sites,
    sample_log_likelihood,
    score_site_rows,
)
from pipeline.numerics.logistic.centred_points import (
    TraitItems,
    posterior_by_sampling,
)
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    Nodes,
    RowPosterior,
    node_posterior,
)
from pipeline.numerics.logistic.lattice_nodes import estimate_lattice_e_step, list_lattice_nodes
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.logistic_bound import (
    VariationalPosterior,
    variational_row_posterior,
)
from pipeline.numerics.logistic.logistic_sites import ep_posterior, sum_ep_score_products
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_NANOSECONDS = 60.0  # per level and point of a row, of scores of many items
_SITE_NANOSECONDS = 100.0  # per node and site of a row, of all rounds


def estimate_integrator(
    params: LatentTraitParams,
    working: Arrays,
    blocks: TraitBlocks | None,
    n_rows: int,
    n_groups: int,
) -> WorkEstimate:
    """Return the work of the E-step, and of the scores in the pass for errors."""
    if params.n_levels is None and blocks is None:
        return _estimate_binary_work(params, working, n_rows)
    items, n_planes = params.get_group(0).items, params.n_planes
    n_columns, q = int(np.maximum(n_planes, 1).sum()), params.weights.shape[1]
    share = float(working.get("share", 0.0))
    if blocks is not None:
        stretch = float(working.get("stretch", 1.0))
        by_row, shared = estimate_bifactor_e_step(*items, blocks, n_rows, stretch)
        n_sums = n_columns * q * (q + 3)
        if share:
            by_row += share * estimate_bifactor_scores(*items, blocks)
            n_sums += 2 * (n_columns * (q + 1)) ** 2
        return WorkEstimate(by_row, 8 * n_sums * n_groups, shared)
    if "line" in working:
        n_sites = len(list_sites(LevelItems.from_binary(*items)))
        nanoseconds = len(working["line"]) * (_SITE_NANOSECONDS * n_sites + 3 * n_columns)
        n_sums = 2 * n_columns * (len(working["line"]) + q**2)
        n_sums += n_columns * n_columns * (q + 1) ** 2 if share else 0
        return WorkEstimate(nanoseconds, 8 * n_sums * n_groups, FIXED_NANOSECONDS if share else 0)
    n_nodes = len(working["points"])
    nanoseconds = (3 + 0.3 * n_nodes) * n_columns + 15 * n_nodes + 500
    n_sums = 2 * n_columns * n_nodes
    if share:
        n_levels = n_columns + len(n_planes)
        if "directions" in working:
            nanoseconds += share * _NANOSECONDS * count_points(n_columns, q) * n_levels
            n_sums += 2 * sum(own.size * own.shape[1] for own in list_form_places(n_planes, q))
        else:
            nanoseconds += share * 0.15 * n_nodes * n_levels**2
            n_sums += 3 * (n_columns * (q + 1)) ** 2
    return WorkEstimate(nanoseconds, 8 * n_sums, FIXED_NANOSECONDS if share else 0)


def _estimate_binary_work(params: LatentTraitParams, working: Arrays, n_rows: int) -> WorkEstimate:
    (n_features, q), is_complete = params.weights.shape, bool(working.get("is_complete", False))
    width = (q + 1) * (q + 2)
    if "has_own_nodes" in working:
        n_nodes = count_own_nodes(q, working)
        own = (params.weights, params.offsets)
        nanoseconds = estimate_lattice_e_step(*own, is_complete, n_rows, n_nodes)
    elif "by_sites" in working:
        nanoseconds = (110 + q**2) * n_features + 1500
    elif (nodes := nodes_from_working(working)) is not None:
        n_nodes = len(nodes.points)
        nanoseconds, width = (20 + 0.3 * n_nodes) * n_features + 8 * n_nodes + 500, 2 * n_nodes
    else:
        nanoseconds = (20 + 1.1 * q**2) * n_features
    n_sums = n_features * width
    if "share" in working:
        is_wide, share = "directions" in working, float(working["share"])
        nanoseconds += estimate_information(params, share, is_complete, is_wide)
        n_sums += 3 * min(n_features * (q + 1), MAX_PARAMETERS) ** 2
    return WorkEstimate(nanoseconds, 8 * n_sums, FIXED_NANOSECONDS if "share" in working else 0)


def sum_information(
    params: LatentTraitParams,
    items: LevelItems,
    working: Arrays,
    block: BinaryBlock,
    rng: RowRandom,
    jacobian: Matrix,
    regression: RowRegression | None,
    is_reversed: NDArray[np.bool_] | None,
) -> Sums:
    """Sum the information about all parameters, and the residuals.

    Parameters
    ----------
    items
        As functions of u.
    jacobian
        Their derivatives by all parameters, and those of Θ.
    regression
        Priors of the rows; None if all are standard normal.
    is_reversed
        Items that count in reverse in sum scores, (n_features,); None if there are no fit
        statistics that need them.
    """
    (X, observed), row_weights = unpack_answers(params, block), block.row_weights
    has_sampling_weights = block.has_sampling_weights
    sample = ScoredRows(X, observed, row_weights, has_sampling_weights, regression)
    is_taken = draw_rows(float(working["share"]), block, rng)
    posterior: RowPosterior
    if params.n_levels is None:
        sample, is_own = sample.take_rows(is_taken), None
        if "by_sites" in working and items.weights.shape[1] > MAX_COMPONENTS:
            return _sum_only_scores(sample, items, working, block, jacobian)
        objective = run_e_step(params, items, working, block, regression).objective
        posterior, nodes = _integrate_binary_rows(sample, items, working)
    elif "by_sites" in working:
        return _sum_only_scores(sample.take_rows(is_taken), items, working, block, jacobian)
    else:
        shared = get_shared_nodes(working)
        row_means = None if regression is None else regression.means
        of_all = compute_level_node_posterior(X, observed, items, shared, row_means)
        weights = 1.0 if row_weights is None else row_weights
        objective = float((weights * of_all.log_likelihood).sum())
        posterior = taken = of_all.take_rows(is_taken)
        sample, nodes, is_own = sample.take_rows(is_taken), shared.nodes, taken.is_own
    if sample.regression is not None:
        sample = sample._replace(regression=leave_out_saturated(sample.regression, posterior))
    rows = sample.X, sample.observed, items, posterior
    values: dict[str, NDArray[Any]] = {**sum_residuals(*rows, sample.row_weights)}
    if is_reversed is not None:
        planes = np.repeat(is_reversed, items.n_planes)
        values |= count_complete_rows(block, block.unpack_values(), block.unpack_mask(), planes)
    if "directions" in working:
        if working["directions"].shape[1]:
            along = jacobian @ working["directions"]
            values |= sum_block_scores(*rows, along, sample.row_weights)._asdict()
        return Sums.from_block(block, objective, values)
    sums = Sums.from_block(block, objective, values)
    if (blocks := blocks_from_working(working)) is not None:
        return _add_bifactor_scores(sums, block, sample, items, blocks, jacobian)
    names = [name for name in ("products", "curvature") if working[f"has_{name}"]]
    return add_scores(sums, block, sample, items, posterior, jacobian, nodes, is_own, names)


def _integrate_binary_rows(
    sample: ScoredRows, items: LevelItems, working: Arrays
) -> tuple[RowPosterior, Nodes | None]:
    """Return the posterior of rows of binary items, and the nodes that it is on, if any."""
    own, nodes = TraitItems(items.weights, items.offsets), nodes_from_working(working)
    if (blocks := blocks_from_working(working)) is not None:
        return bifactor_posterior(sample.X, sample.observed, *own, blocks), None
    has_own_nodes, regression = "has_own_nodes" in working, sample.regression
    is_wide = "directions" in working and items.asymptotes is None
    if nodes is None or has_own_nodes or is_wide or regression is not None:
        means = None if regression is None else regression.means
        posterior = posterior_on_lattice(sample.X, sample.observed, own, means)
        has_nodes = has_own_nodes and not is_wide and regression is None
        return posterior, list_lattice_nodes(*own) if has_nodes else None
    return node_posterior(sample.X, sample.observed, items, nodes), nodes


def _sum_only_scores(
    sample: ScoredRows, items: LevelItems, working: Arrays, block: BinaryBlock, jacobian: Matrix
) -> Sums:
    """Sum the products of scores by expectation propagation, or what errors by item need."""
    values: dict[str, NDArray[Any]] = {"weight_informing": np.array(sample.weight)}
    rows = sample.X, sample.observed
    if "directions" in working:
        if working["directions"].shape[1]:
            forms = items.weights, items.offsets
            has_levels = "line" in working
            posterior = (
                compute_site_posterior(*rows, items) if has_levels else ep_posterior(*rows, *forms)
            )
            along = jacobian @ working["directions"]
            found = sum_block_scores(*rows, items, posterior, along, sample.row_weights)
            values |= found._asdict()
    elif "line" in working:
        scores = score_site_rows(sample.X, sample.observed, items, jacobian, working["line"])
        weighted = scores if sample.row_weights is None else sample.row_weights[:, None] * scores
        values["products"] = weighted.T @ scores
    else:
        forms = items.weights, items.offsets
        products = sum_ep_score_products(*rows, *forms, sample.row_weights)
        values["products"] = np.asarray(jacobian.T @ (jacobian.T @ products).T)
    return Sums.from_block(block, 0.0, values)


def _add_bifactor_scores(
    sums: Sums,
    block: BinaryBlock,
    sample: ScoredRows,
    items: LevelItems,
    blocks: TraitBlocks,
    jacobian: Matrix,
) -> Sums:
    """Return the sums of a block with scores of a sample of its rows; arguments as `add_scores`.

    They have integrals of their own. Slopes that are 0 have information 0.
    """
    (X, observed), row_weights = (sample.X, sample.observed), sample.row_weights
    found = compute_bifactor_scores(X, observed, items.weights, items.offsets, row_weights, blocks)
    scores = found.scores @ jacobian[found.parameters]
    weighted = scores if row_weights is None else row_weights[:, None] * scores
    curvature = scipy.sparse.block_diag([*found.curvature], format="csr")
    spread = jacobian[found.parameters].T @ found.spread
    products = scores.T @ weighted
    complete = (jacobian.T @ curvature @ jacobian).toarray()
    information = complete + products - spread @ jacobian[found.parameters]
    values = {"information": information, "products": products, "curvature": complete}
    if sample.has_sampling_weights:
        values["weighted_products"] = weighted.T @ weighted
    sums = replace(sums, values={**sums.values, **values})
    if block.clusters is None or row_weights is None:
        return sums
    clusters, places = np.unique(block.clusters, return_inverse=True)
    by_cluster = np.zeros((len(clusters), scores.shape[1]))
    np.add.at(by_cluster, places, weighted)
    return ClusteredSums.from_sums(sums, clusters, by_cluster)


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
    if params.n_levels is not None or (blocks := find_trait_blocks(own.weights != 0)) is None:
        return None
    return bifactor_posterior(X, observed, own.weights, own.offsets, blocks)


def compute_codes(
    params: LatentTraitParams, items: ItemKind, block: BinaryBlock
) -> tuple[Array, Array]:
    """Return the posterior means of the traits, (n_samples, q), and covariances."""
    posterior, group = integrate_rows(params, items, block), params.get_group(block.segment)
    rows = unpack_answers(params, block)
    if posterior is None and params.n_levels is not None:
        own = group.standardize(params.get_level_items(items, block.segment))
        posterior = compute_site_posterior(*rows, own)
    elif posterior is None:
        posterior = ep_posterior(*rows, *group.items)
    return group.to_traits(posterior.mean, posterior.covariance)


def compute_log_likelihood(
    params: LatentTraitParams, items: ItemKind, block: BinaryBlock, rng: RowRandom
) -> LogLikelihood:
    """Return log P(t) of each row, and its errors."""
    if (posterior := integrate_rows(params, items, block)) is not None:
        nats, error = posterior.log_likelihood, posterior.standard_error
        return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)
    group, rows = params.get_group(block.segment), unpack_answers(params, block)
    if params.n_levels is None:
        sampled = posterior_by_sampling(*rows, group.items, rng, block.rows)
    else:
        own = group.standardize(params.get_level_items(items, block.segment))
        sampled = sample_log_likelihood(*rows, own, rng, block.rows)
    return LogLikelihood(sampled.log_likelihood, sampled.standard_error)


def compute_variational_posterior(
    params: LatentTraitParams, block: BinaryBlock
) -> VariationalPosterior:
    """Return the variational posterior of each row of binary items without groups."""
    bits = (block.words, block.observed_words, block.n_samples)
    return variational_row_posterior(*bits, *params.get_group(block.segment).items)
