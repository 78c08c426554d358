"""E-steps of the latent-trait model.

==================  ============================================================================
integrator          rows
==================  ============================================================================
shared nodes        all have the same nodes; rows that these do not suit have their own
own nodes           complete rows of binary items use a lattice, others nodes centred at each
bifactor            binary items of a bifactor pattern: one integral for each block of items
sites               expectation propagation
variational         the bound of binary items
==================  ============================================================================

The keys of `working`, see `stages`, tell which one a stage has. Every E-step returns the sums of
`LevelSums`: expected counts of levels at nodes, or an expected log-likelihood that is quadratic in
the forms of items. Near a maximum, the latter is that of a step of Newton's method.

All rows belong to one group. Items are functions of its standard traits u, see `TraitGroup`, which
the kernels call x.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.params import LatentTraitParams, unpack_answers
from pipeline.models.latent_trait.stages import (
    blocks_from_working,
    checks_from_working,
    count_own_nodes,
    nodes_from_working,
)
from pipeline.models.state import Arrays
from pipeline.numerics.logistic.bifactor import bifactor_e_step
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.e_step import LevelStatistics, sum_level_statistics
from pipeline.numerics.logistic.categories.row_posteriors import SharedNodes
from pipeline.numerics.logistic.categories.scores import LevelSums, RowRegression
from pipeline.numerics.logistic.categories.sites import sum_site_statistics
from pipeline.numerics.logistic.centred_nodes import CENTRED_NODES_PER_AXIS, centred_e_step
from pipeline.numerics.logistic.latent_nodes import Nodes, check_nodes, node_statistics
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH, lattice_e_step
from pipeline.numerics.logistic.logistic_bound import variational_e_step
from pipeline.numerics.logistic.logistic_sites import ep_e_step
from pipeline.numerics.logistic.newton_step import differentiate_on_nodes, unpack_triangles
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MIN_SHARE = 1e-9  # of the information that a row's values leave; below, it is rounding


def run_e_step(
    params: LatentTraitParams,
    items: LevelItems,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None,
) -> Sums:
    """Run the E-step of a stage on the rows of a block.

    Parameters
    ----------
    items
        As functions of u, see `TraitGroup`.
    regression
        Priors of the rows; None if all are standard normal.
    """
    if params.n_levels is not None:
        return _run_on_level_nodes(params, items, working, block, regression)
    is_cautious = params.traits is not None
    if regression is None:
        return _run_on_binary_items(items, working, block, None, is_cautious)
    is_far = np.asarray((np.abs(regression.means) > MAX_MEAN_REACH).any(axis=1))
    if not is_far.any():
        return _run_on_binary_items(items, working, block, regression, is_cautious)
    near, far = (block.take_rows(np.flatnonzero(part)) for part in (~is_far, is_far))
    near_priors = regression.take_rows(~is_far)
    sums = _run_on_binary_items(items, working, near, near_priors, is_cautious)
    others = _run_on_far_rows(items, far, regression.take_rows(is_far))
    return replace(
        sums,
        n_rows=sums.n_rows + others.n_rows,
        weight=sums.weight + others.weight,
        objective=sums.objective + others.objective,
        values={name: v + others.values.get(name, 0) for name, v in sums.values.items()},
    )


def _run_on_level_nodes(
    params: LatentTraitParams,
    items: LevelItems,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None,
) -> Sums:
    (X, observed), row_weights = unpack_answers(params, block), block.row_weights
    row_means = None if regression is None else regression.means
    if "by_sites" in working:
        rows = X, observed, items, working["line"]
        found = sum_site_statistics(*rows, row_weights, row_means)
    else:
        nodes = get_shared_nodes(working)
        found = sum_level_statistics(X, observed, items, nodes, row_weights, row_means)
    values = {
        **found.sums._asdict(),
        "peak": np.array(found.peak),
        "error": np.array(found.error),
        **sum_level_regression(found, regression, row_weights),
    }
    return _make_sums(block, found.log_likelihood, values)


def get_shared_nodes(working: Arrays) -> SharedNodes:
    """Return the nodes that rows share."""
    spacing, checks = working.get("spacing"), checks_from_working(working)
    assert checks is not None
    nodes = Nodes(working["points"], working["log_weights"])
    return SharedNodes(nodes, checks, None if spacing is None else float(spacing))


def _run_on_far_rows(items: LevelItems, block: BinaryBlock, regression: RowRegression) -> Sums:
    """Run the E-step for rows of binary items whose prior means are far from 0."""
    nodes = Nodes(np.zeros((1, items.weights.shape[1])), np.zeros(1))
    found = sum_level_statistics(
        block.unpack_values(),
        block.unpack_mask(),
        items,
        SharedNodes(nodes, check_nodes(nodes, None), None),
        block.row_weights,
        regression.means,
    )
    values = {  # no counts: those of near rows are at other nodes
        "linear": found.sums.linear,
        "curvatures": found.sums.curvatures,
        **sum_level_regression(found, regression, block.row_weights),
    }
    return _make_sums(block, found.log_likelihood, values)


def _run_on_binary_items(
    items: LevelItems,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None,
    is_cautious: bool,
) -> Sums:
    """Run the E-step of a stage of binary items; see `_run_on_shared_nodes` for `is_cautious`."""
    q, forms = items.weights.shape[1], (items.weights, items.offsets)
    if "has_own_nodes" in working:
        run: Any = partial(
            lattice_e_step,
            stretch=float(working.get("stretch", 1.0)),
            nodes_per_axis=count_own_nodes(q, working),
        )
        if regression is not None:
            run = partial(run, row_means=regression.means)
    elif "by_sites" in working:
        run = ep_e_step
    elif (blocks := blocks_from_working(working)) is not None:
        stretch = float(working.get("stretch", 1.0))
        run = partial(bifactor_e_step, blocks=blocks, stretch=stretch)
    elif (nodes := nodes_from_working(working)) is not None:
        return _run_on_shared_nodes(items, nodes, working, block, regression, is_cautious)
    else:
        bits = (block.words, block.observed_words, block.n_samples)
        bound = variational_e_step(*bits, *forms, block.row_weights)
        values = {
            **_name_quadratic_sums(bound.target, unpack_triangles(bound.curvature, q + 1)),
            "moments": bound.moments,
            "rounds": np.array(bound.rounds),
        }
        return _make_sums(block, bound.bound, values)
    found = run(block.unpack_values(), block.unpack_mask(), *forms, block.row_weights)
    values = {
        **_name_quadratic_sums(*_expand_at(items, found.gradient, found.curvature)),
        "moments": found.moments,
        "rounds": np.array(found.rounds),
        **sum_regression(regression, found.codes, block.row_weights),
    }
    return _make_sums(block, found.log_likelihood, values)


def _run_on_shared_nodes(
    items: LevelItems,
    nodes: Nodes,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None,
    is_cautious: bool,
) -> Sums:
    """Run the E-step on nodes; rows that these do not suit have their own if checks find them.

    Cautious sums allow one short step: parameters of the traits keep slopes from being scaled back,
    and several steps on coarse nodes would make steep ones run away.
    """
    X, observed = block.unpack_values(), block.unpack_mask()
    checks, forms = checks_from_working(working), (items.weights, items.offsets)
    n, q = items.weights.shape
    row_means = None if regression is None else regression.means
    counts = node_statistics(X, observed, items, nodes, block.row_weights, row_means, checks)
    extended = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    moments, log_likelihood = extended.T @ (counts.rows[:, None] * extended), counts.log_likelihood
    linear, curvatures = np.zeros((n, q + 1)), np.zeros((n, q + 1, q + 1))
    codes = counts.codes
    if checks is not None and (rows := np.flatnonzero(counts.is_outside)).size:
        others = centred_e_step(
            X[rows],
            None if observed is None else observed[rows],
            *forms,
            None if block.row_weights is None else block.row_weights[rows],
            None if row_means is None else row_means[rows],
            CENTRED_NODES_PER_AXIS[q][-1],
        )
        linear, curvatures = _expand_at(items, others.gradient, others.curvature)
        moments = moments + others.moments
        log_likelihood += others.log_likelihood
        if row_means is not None:
            codes[rows] = others.codes
    ones, mass = counts.ones, counts.mass
    if checks is not None and is_cautious:
        at = items.to_forms()
        gradient, hessian = differentiate_on_nodes(nodes.points, ones, mass, at)
        linear = linear + gradient + np.einsum("jab,jb->ja", hessian, at)
        curvatures = curvatures + hessian
        ones = mass = np.zeros((n, 0))
    values = {
        **_name_sums(ones, mass, linear, curvatures),
        "moments": moments,
        "peak": np.array(counts.peak),
        "error": np.array(counts.error),
        **sum_regression(regression, codes, block.row_weights),
    }
    return _make_sums(block, log_likelihood, values)


def _make_sums(block: BinaryBlock, log_likelihood: float, values: Arrays) -> Sums:
    values = {**values, "empty_rows": np.array(block.count_unobserved_rows())}
    return Sums.from_block(block, log_likelihood, values)


def _expand_at(items: LevelItems, gradient: Array, curvature: Array) -> tuple[Array, Array]:
    """Return the quadratic function with this gradient and curvature at the forms of items."""
    curvatures = unpack_triangles(curvature, items.weights.shape[1] + 1)
    return gradient + np.einsum("jab,jb->ja", curvatures, items.to_forms()), curvatures


def _name_quadratic_sums(linear: Array, curvatures: Array) -> Arrays:
    """Return the sums of an expected log-likelihood that is quadratic in the forms."""
    none = np.zeros((len(linear), 0))
    return _name_sums(none, none, linear, curvatures)


def _name_sums(ones: Array, mass: Array, linear: Array, curvatures: Array) -> Arrays:
    """Return the sums of binary items by name; there are none of continuous items."""
    width = linear.shape[1]
    of_numbers = np.zeros((0, width)), np.zeros((0, width, width)), np.zeros(0)
    return LevelSums(ones, mass, linear, curvatures, *of_numbers)._asdict()


def sum_regression(
    regression: RowRegression | None, codes: Array, row_weights: Array | None
) -> dict[str, Array]:
    """Return Σ_n r_n z_n ⟨u_n⟩ᵀ, (p, q), and Σ_n r_n ẑ_n ẑ_nᵀ with ẑ = (z, 1), (p + 1, p + 1).

    `codes` are ⟨u_n⟩, (n_samples, q), and `row_weights` r_n, (n_samples,), or all 1.
    """
    if regression is None:
        return {}
    z = np.column_stack([regression.covariates, np.ones(len(codes))])
    weighted = z if row_weights is None else z * row_weights[:, None]
    return {"covariate_codes": weighted[:, :-1].T @ codes, "covariate_products": weighted.T @ z}


def sum_level_regression(
    found: LevelStatistics, regression: RowRegression | None, row_weights: Array | None
) -> dict[str, Array]:
    """Return the moments of the traits, and the sums of `sum_regression`.

    A row whose prior mean m_n is far from 0 may decide Γ nearly alone, but only as far as its
    values inform about x: then ordinary EM hardly moves. Its step is that of Newton's method, with
    the curvature (1 − v) ẑ ẑᵀ of the log-likelihood of its values instead of ẑ ẑᵀ, where v is the
    smallest variance of its posterior, and 1 that of its prior. For that, the row has the weight
    1 − v, and its code the same distance from m_n divided by 1 − v.
    """
    if regression is None:
        return {"moments": found.moments}
    rows, d, covariance = found.far
    is_near = np.ones(len(regression.means), np.bool_)
    is_near[rows] = False
    weights = np.ones(len(is_near)) if row_weights is None else row_weights
    near = sum_regression(regression.take_rows(is_near), found.codes[is_near], weights[is_near])
    if not rows.size:
        return {"moments": found.moments, **near}
    r, (z, m) = weights[rows], regression.take_rows(rows)
    z = np.column_stack([z, np.ones(len(z))])
    share = 1 - np.linalg.eigvalsh(covariance)[:, 0]
    share = np.where(share > _MIN_SHARE, np.minimum(share, 1.0), 0.0)
    codes = share[:, None] * m + d
    moments = found.moments.copy()
    across = d[:, :, None] * m[:, None]
    squares = covariance + d[:, :, None] * d[:, None] + across + across.transpose(0, 2, 1)
    squares += share[:, None, None] * m[:, :, None] * m[:, None]
    moments[:-1, :-1] += np.tensordot(r, squares, 1)
    moments[-1, :-1] += r @ codes
    moments[:-1, -1] += r @ codes
    moments[-1, -1] += r.sum()
    return {
        "moments": moments,
        "covariate_codes": near["covariate_codes"] + (z[:, :-1] * r[:, None]).T @ codes,
        "covariate_products": near["covariate_products"] + (z * (r * share)[:, None]).T @ z,
    }
