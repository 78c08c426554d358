"""How the traits of rows are integrated out: E-steps, sums for standard errors, codes.

During a fit:

==================  ===============================  ==============================================
integrator          keys of the working state        rows
==================  ===============================  ==============================================
shared nodes        `points`, `spacing`              any items; rows that the nodes do not suit
                                                     have points of their own
lattice             `points`, `has_own_nodes`        binary items; complete rows on a lattice,
                                                     others on nodes centred at each row
bifactor            `loads`                          binary items of a bifactor pattern
==================  ===============================  ==============================================

Every E-step returns the sums of `LevelSums`: expected counts of levels at nodes, or an expected
log-likelihood that is quadratic in the forms.

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
from pipeline.models.latent_trait.bifactor_information import summarize_bifactor_information
from pipeline.models.latent_trait.em import (
    ItemKind,
    LatentTraitParams,
    blocks_from_working,
    checks_from_working,
    count_own_nodes,
    e_step,
    make_params,
    nodes_from_working,
    sum_far_rows,
    sum_level_regression,
    unpack_answers,
)
from pipeline.models.latent_trait.forms import Matrix
from pipeline.models.latent_trait.standard_errors import (
    MAX_ITEMS,
    ScoredRows,
    add_scores,
    count_complete_rows,
    draw_rows,
    select_rows,
    summarize_information,
    summarize_regression_scores,
)
from pipeline.models.state import Arrays
from pipeline.numerics.logistic.bifactor import (
    TraitBlocks,
    bifactor_posterior,
    estimate_bifactor_e_step,
    estimate_bifactor_scores,
    find_trait_blocks,
)
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.e_step import sum_level_statistics
from pipeline.numerics.logistic.categories.fit import sum_residuals
from pipeline.numerics.logistic.categories.row_posteriors import (
    SharedNodes,
    compute_level_node_posterior,
    compute_row_posterior,
)
from pipeline.numerics.logistic.categories.scores import (
    LevelSums,
    RowRegression,
    choose_point_rule,
    leave_out_saturated,
    list_form_places,
    sum_block_scores,
)
from pipeline.numerics.logistic.centred_points import posterior_by_sampling
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, Nodes, RowPosterior
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.logistic_sites import ep_posterior
from pipeline.numerics.logistic.newton_step import unpack_triangles
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_NANOSECONDS = 60.0  # per level and point of a row, of scores of many items
_SCORE_SUMS = ("spread", "products", "weighted_products")


def run_e_step(
    params: LatentTraitParams,
    items: LevelItems,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None,
) -> Sums:
    """Run the E-step of a stage on the rows of a block; `items` are functions of u."""
    if items.asymptotes is not None:
        own = make_params(items.weights, items.offsets, items.asymptotes)
        return _convert_counts(items, e_step(own, working, block))
    if params.n_levels is None:
        own = make_params(items.weights, items.offsets)
        return _convert_newton_sums(items, _run_binary_e_step(own, working, block, regression))
    (X, observed), row_weights = unpack_answers(params, block), block.row_weights
    row_means = None if regression is None else regression.means
    nodes = get_shared_nodes(working)
    found = sum_level_statistics(X, observed, items, nodes, row_weights, row_means)
    sums = {
        **found.sums._asdict(),
        "peak": np.array(found.peak),
        "error": np.array(found.error),
        "empty_rows": np.array(block.count_unobserved_rows()),
        **sum_level_regression(found, regression, row_weights),
    }
    return Sums.from_block(block, found.log_likelihood, sums)


def _run_binary_e_step(
    own: LatentTraitParams, working: Arrays, block: BinaryBlock, regression: RowRegression | None
) -> Sums:
    """Run the E-step of binary items; rows whose prior means are far from 0 have their own."""
    if regression is None:
        return e_step(own, working, block, may_leave_nodes=True)
    is_far = np.asarray((np.abs(regression.means) > MAX_MEAN_REACH).any(axis=1))
    if not is_far.any():
        return e_step(own, working, block, regression, may_leave_nodes=True)
    near, far = (block.take_rows(np.flatnonzero(part)) for part in (~is_far, is_far))
    sums = e_step(own, working, near, regression.take_rows(~is_far), may_leave_nodes=True)
    others = sum_far_rows(own, far, regression.take_rows(is_far))
    return replace(
        sums,
        n_rows=sums.n_rows + others.n_rows,
        weight=sums.weight + others.weight,
        objective=sums.objective + others.objective,
        values={name: v + others.values.get(name, 0) for name, v in sums.values.items()},
    )


def _convert_counts(items: LevelItems, sums: Sums) -> Sums:
    """Return the sums of E-steps on nodes that count ones and values of binary items."""
    n, q = items.weights.shape
    own = np.zeros((n, q + 1)), np.zeros((n, q + 1, q + 1))
    numbers = np.zeros((0, q + 1)), np.zeros((0, q + 1, q + 1)), np.zeros(0)
    level_sums = LevelSums(sums.values["ones"], sums.values["mass"], *own, *numbers)
    return replace(sums, values={**sums.values, **level_sums._asdict()})


def _convert_newton_sums(items: LevelItems, sums: Sums) -> Sums:
    """Return the sums of an expected log-likelihood that is quadratic in the forms.

    Its gradient and curvature are those of a step of Newton's method.
    """
    values, (n, q) = dict(sums.values), items.weights.shape
    gradient, curvature = values.pop("gradient"), unpack_triangles(values.pop("curvature"), q + 1)
    slopes = gradient + np.einsum("jab,jb->ja", curvature, items.to_forms())
    none = np.zeros((n, 0))
    numbers = np.zeros((0, q + 1)), np.zeros((0, q + 1, q + 1)), np.zeros(0)
    level_sums = LevelSums(none, none, slopes, curvature, *numbers)
    return replace(sums, values={**values, **level_sums._asdict()})


def get_shared_nodes(working: Arrays) -> SharedNodes:
    """Return the nodes that rows share."""
    spacing, checks = working.get("spacing"), checks_from_working(working)
    assert checks is not None
    nodes = Nodes(working["points"], working["log_weights"])
    return SharedNodes(nodes, checks, None if spacing is None else float(spacing))


def estimate_integrator(
    items: tuple[Array, Array],
    working: Arrays,
    blocks: TraitBlocks | None,
    n_planes: Indices,
    n_rows: int,
    n_groups: int,
) -> WorkEstimate:
    """Return the work of the E-step, and of the scores in the pass for errors."""
    n_columns, q = int(np.maximum(n_planes, 1).sum()), items[0].shape[1]
    share = float(working.get("share", 0.0))
    if blocks is not None:
        stretch = float(working.get("stretch", 1.0))
        by_row, shared = estimate_bifactor_e_step(*items, blocks, n_rows, stretch)
        n_sums = n_columns * q * (q + 3)
        if share:
            by_row += share * estimate_bifactor_scores(*items, blocks)
            n_sums += 2 * (n_columns * (q + 1)) ** 2
        return WorkEstimate(by_row, 8 * n_sums * n_groups, shared)
    n_nodes = len(working["points"])
    nanoseconds = (3 + 0.3 * n_nodes) * n_columns + 15 * n_nodes + 500
    n_sums = 2 * n_columns * n_nodes
    if share:
        n_levels = n_columns + len(n_planes)
        if "directions" in working:
            n_points = len(choose_point_rule(n_columns, q).points)
            nanoseconds += share * _NANOSECONDS * n_points * n_levels
            n_sums += 2 * sum(own.size * own.shape[1] for own in list_form_places(n_planes, q))
        else:
            nanoseconds += share * 0.15 * n_nodes * n_levels**2
            n_sums += 3 * (n_columns * (q + 1)) ** 2
    return WorkEstimate(nanoseconds, 8 * n_sums)


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
    if params.n_levels is None:
        return _sum_binary_information(items, working, block, rng, jacobian, regression)
    shared, (X, observed) = get_shared_nodes(working), unpack_answers(params, block)
    row_means = None if regression is None else regression.means
    of_all = compute_level_node_posterior(X, observed, items, shared, row_means)
    row_weights = np.ones(len(X)) if block.row_weights is None else block.row_weights
    log_likelihood = float((row_weights * of_all.log_likelihood).sum())
    values: dict[str, NDArray[Any]] = {}
    has_fit = is_reversed is not None and not block.has_sampling_weights
    if block.n_features <= MAX_ITEMS and is_reversed is not None and has_fit:
        planes = np.repeat(is_reversed, items.n_planes)
        values |= count_complete_rows(block, block.unpack_values(), observed, planes)
    is_taken = draw_rows(float(working["share"]), block, rng)
    sample = ScoredRows(X, observed, row_weights, block.has_sampling_weights, regression)
    sample, posterior = sample.take_rows(is_taken), of_all.take_rows(is_taken)
    if sample.regression is not None:
        sample = sample._replace(regression=leave_out_saturated(sample.regression, posterior))
    rows = sample.X, sample.observed, items, posterior
    values |= sum_residuals(*rows, sample.row_weights)
    sums = Sums.from_block(block, log_likelihood, values)
    if "directions" not in working:
        is_own, nodes = posterior.is_own, shared.nodes
        return add_scores(sums, block, sample, items, posterior, jacobian, nodes, is_own)
    return _add_item_scores(sums, rows, working, jacobian, sample.row_weights)


def _add_item_scores(
    sums: Sums,
    rows: tuple[Any, Any, LevelItems, RowPosterior],
    working: Arrays,
    jacobian: Matrix,
    row_weights: Array | None,
) -> Sums:
    """Add the information of each item of many; `rows` are the arguments of `sum_block_scores`."""
    if not working["directions"].shape[1]:
        return sums
    X, observed, items, posterior = rows
    along = jacobian @ working["directions"]
    found = sum_block_scores(X, observed, items, posterior, along, row_weights)
    return replace(sums, values={**sums.values, **found._asdict()})


def _sum_binary_information(
    items: LevelItems,
    working: Arrays,
    block: BinaryBlock,
    rng: RowRandom,
    jacobian: Matrix,
    regression: RowRegression | None,
) -> Sums:
    """Sum the information about the parameters of binary items."""
    own = make_params(items.weights, items.offsets, items.asymptotes)
    share = float(working["share"])
    if (blocks := blocks_from_working(working)) is not None and "directions" not in working:
        sums = summarize_bifactor_information(own, blocks, share, block, rng)
        return convert_information(sums, jacobian)
    if "directions" not in working and regression is None:
        nodes = None if "has_own_nodes" in working else nodes_from_working(working)
        n_own = count_own_nodes(own, working)
        return summarize_information(own, nodes, share, block, rng, n_own, jacobian)
    objective = _run_binary_e_step(own, working, block, regression).objective
    if "directions" not in working:
        assert regression is not None
        sums = summarize_regression_scores(own, share, block, rng, regression, jacobian)
        return replace(sums, objective=objective)
    sample = select_rows(share, block, rng, regression)
    means = None if sample.regression is None else sample.regression.means
    posterior = posterior_on_lattice(sample.X, sample.observed, own.items, means)
    rows = sample.X, sample.observed, items, posterior
    values = sum_residuals(*rows, sample.row_weights)
    sums = Sums.from_block(block, objective, values)
    return _add_item_scores(sums, rows, working, jacobian, sample.row_weights)


def convert_information(sums: Sums, jacobian: Matrix) -> Sums:
    """Return the sums about parameters, given those about forms of binary items."""
    values = dict(sums.values)
    curvature = scipy.sparse.block_diag([*values["curvature"]], format="csr")
    values["curvature"] = (jacobian.T @ curvature @ jacobian).toarray()
    for name in _SCORE_SUMS:
        if name in values:
            values[name] = np.asarray(jacobian.T @ (jacobian.T @ values[name]).T)
    if isinstance(sums, ClusteredSums):
        return replace(sums, values=values, scores=sums.scores @ jacobian)
    return replace(sums, values=values)


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
