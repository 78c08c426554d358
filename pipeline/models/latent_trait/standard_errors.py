"""Standard errors of all parameters of items and traits, by the observed information.

With v_g the weights and offsets of forms as functions of u in group g, (L_gᵀ a, d + a·μ_g), and
s_g the score in them, the observed information about the parameters φ of forms, μ_g, L_g and Γ is

    Σ_g J_gᵀ I_g J_g − Σ_g Σ_k s_gk ∂²v_gk / ∂φ ∂(μ_g, L_g) − …,   J_g = ∂v_g / ∂(φ, μ_g, L_g),

where I_g is that of the model without groups. The second derivatives are 1 for w_im and L_ma, and
for w_im and μ_m. Only the sum over all groups of the scores in φ is 0 at the maximum, not that of
each group. With covariates, u ~ N(Θ_gᵀz, I) with Θ_g = Γ L_g⁻ᵀ, whose rows follow those of v_g. The
information is that for standardized covariates, so that it is well-conditioned; the parameters for
the covariates as they are are linear functions of those, up to terms that do not matter.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.design import LevelDesign
from pipeline.models.latent_trait.fit_design import FitDesign
from pipeline.models.latent_trait.forms import (
    Matrix,
    map_to_items,
    map_to_thresholds,
)
from pipeline.models.latent_trait.group_design import (
    factorize,
    get_traits,
    list_changes,
)
from pipeline.models.latent_trait.loadings import differentiate_loadings, join_derivatives
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.latent_trait.regression_design import (
    get_coefficients,
)
from pipeline.models.latent_trait.trait_errors import (
    compute_covariance_errors,
    differentiate_theta,
    list_variance_constraints,
    place_traits,
    sum_multipliers,
    sum_theta_derivatives,
)
from pipeline.models.latent_trait.wide_errors import (
    ItemCovariance,
    ItemInformation,
    SharedDirections,
    list_shared_directions,
)
from pipeline.numerics.information import invert_constrained_information
from pipeline.numerics.logistic.categories.scores import join_blocks, list_form_places
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

_RIDGE = 1e-10  # of the information of complete data
_CHANCE = 3.0  # times n^-½ for the smallest eigenvalue of the information of n rows


def differentiate_group(design: FitDesign, params: LatentTraitParams, group: int) -> Matrix:
    """Return J_g: the derivatives of the forms of u by all parameters, (n_forms (q + 1), p)."""
    places, (forms, regression) = design.places, design.center(params)
    mean, root = regression.mean, factorize(regression.covariance)
    slopes, n_free = forms[group, :, :-1], design.forms.n_free
    to_u = scipy.sparse.kron(
        scipy.sparse.eye_array(len(slopes)), list_changes(mean, root)[group], format="csr"
    )
    n_forms, q = slopes.shape
    by_trait = np.zeros((n_forms, q + 1, places.n_parameters - n_free + 1))
    for m in range(q):  # -1, of what is not free, is the last place
        by_trait[:, q, max(places.mean[group, m] - n_free, -1)] = slopes[:, m]
        for a in range(q):
            by_trait[:, a, max(places.root[group, m, a] - n_free, -1)] = slopes[:, m]
    by_trait = by_trait[:, :, :-1].reshape(n_forms * (q + 1), -1)
    none = scipy.sparse.csr_array((len(by_trait), design.n_coefficients))
    own = to_u @ design.forms.select_group(group).matrix
    return scipy.sparse.csr_array(
        scipy.sparse.hstack([own, scipy.sparse.csr_array(by_trait), none])
    )


def differentiate_forms(design: FitDesign, params: LatentTraitParams) -> Matrix:
    """Return J_g of all groups, one below the other."""
    parts = [differentiate_group(design, params, group) for group in range(design.forms.n_groups)]
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts))


def differentiate_block(design: FitDesign, params: LatentTraitParams, group: int) -> Matrix:
    """Return J_g, and below it the derivatives of Θ_g if there are covariates."""
    own = differentiate_group(design, params, group)
    if design.scale is None:
        return own
    _, regression = design.center(params)
    of_theta = differentiate_theta(design.places, regression, group)
    return scipy.sparse.csr_array(scipy.sparse.vstack([own, scipy.sparse.csr_array(of_theta)]))


def list_constraints(design: FitDesign, params: LatentTraitParams) -> Array:
    """Return the gradients of what identifies axes or scales, (n_constraints, p)."""
    traits, places = design.traits, design.places
    if not traits.is_rotatable:
        constraints = list_variance_constraints(traits, places, factorize(get_traits(params)[1]))
    else:
        groups = range(1 if traits.are_axes_shared else design.forms.n_groups)
        constraints = np.concatenate([_list_axis_constraints(design, params, g) for g in groups])
    missing = design.n_parameters - constraints.shape[1]
    return np.pad(constraints, ((0, 0), (0, missing)))


def _list_axis_constraints(design: FitDesign, params: LatentTraitParams, group: int) -> Array:
    """Return the gradients of Σ_i w_ia w_ib for a < b, (q (q − 1) / 2, n_free)."""
    own, q = design.forms.select_group(group), design.forms.n_components
    weights = params.select_group(group).weights
    to_weights, _ = map_to_items(own.n_planes, q, design.kind, own.matrix.shape[0])
    jacobian = (to_weights @ own.matrix).toarray()
    constraints = [
        weights[:, b] @ jacobian[a::q] + weights[:, a] @ jacobian[b::q]
        for a, b in combinations(range(q), 2)
    ]
    return np.reshape(constraints, (len(constraints), own.n_free))


def list_directions(design: FitDesign, params: LatentTraitParams) -> SharedDirections:
    """Return directions that items share in all parameters, (p, n_directions) each.

    Those of the traits, if they are parameters, tell also about rotations.
    """
    own, forms = design.forms, design.list_forms(params)
    common, n_traits = np.eye(own.n_free)[:, own.is_common], design.n_parameters - own.n_free
    parts = []
    for group, by_form in enumerate(forms):
        found = list_shared_directions(by_form[:, :-1])
        along = np.concatenate(found, axis=2)
        moved = np.zeros((*forms.shape, along.shape[2]))
        moved[group] = along
        parts.append(own.collect_changes(moved.reshape(-1, along.shape[2])))
    if own.n_groups == 1 and not n_traits and design.traits.is_rotatable:
        n_scales = found.scales.shape[2]
        return SharedDirections(
            np.column_stack([parts[0][:, :n_scales], common]), parts[0][:, n_scales:]
        )
    directions = scipy.linalg.block_diag(np.column_stack([*parts, common]), np.eye(n_traits))
    return SharedDirections(directions, np.zeros((len(directions), 0)))


class ParameterErrors(NamedTuple):
    """Covariance of all parameters, and which of them the data do not determine, (p,)."""

    covariance: ItemCovariance
    is_unknown: Flags


def invert(
    design: FitDesign,
    params: LatentTraitParams,
    statistics: Sums,
    form: str,
    prior_curvature: Array,
    left_out: Indices,
) -> ParameterErrors:
    """Invert the information about all parameters.

    Parameters
    ----------
    form
        `louis`, `crossproduct` or `sandwich`.
    prior_curvature
        Minus the second derivatives of the log prior of free parameters of forms, (n_free,).
    left_out
        Items that have no errors because of their estimates. They must not spoil those of others.
    """
    constraints, jacobian = list_constraints(design, params), differentiate_forms(design, params)
    is_left_out = np.isin(design.forms.item_of_row, left_out)
    size = abs(jacobian)
    is_bound, is_used = (
        np.asarray(size[rows].sum(axis=0)) > 0 for rows in (is_left_out, ~is_left_out)
    )
    is_free = is_used | ~is_bound
    prior = np.zeros(design.n_parameters)
    prior[: design.forms.n_free] = prior_curvature
    corrections = _sum_corrections(design, params, statistics, prior)
    if design.is_wide:
        own = _sum_item_information(design, params, statistics, jacobian, constraints, corrections)
        found, is_free_unknown = own.take(is_free).invert()
        to_all = scipy.sparse.eye_array(len(is_free), format="csr")[:, np.flatnonzero(is_free)]
        is_unknown = ~is_free
        is_unknown[is_free] = is_free_unknown
        return ParameterErrors(found.transform(to_all), is_unknown)
    sums, scale = statistics.values, compute_scale(statistics)
    if "information" not in sums:
        # The inverse of a sample covariance of normal scores is too large by a known factor.
        n_rows = float(sums["weight_informing"])
        scale *= n_rows / (n_rows - design.n_parameters - 1)
    if form == "crossproduct":
        information = scale * sums["products"] + np.diag(prior)
    else:
        information = scale * sums["information"] + corrections.toarray()
    covariance, is_unknown = np.zeros_like(information), np.ones(len(information), np.bool_)
    places = np.ix_(is_free, is_free)
    if is_free.any():
        inverse = invert_constrained_information(information[places], constraints[:, is_free])
        covariance[places] = inverse.covariance
        is_unknown[is_free] = inverse.find_unidentified((-1, 1))
    if form == "sandwich":
        middle = scale * sums.get("weighted_products", sums["products"])
        if isinstance(statistics, ClusteredSums):
            middle = statistics.sum_score_products()
        covariance = covariance @ middle @ covariance
    return ParameterErrors(ItemCovariance.from_array(covariance), is_unknown)


def invert_for_newton_steps(
    design: FitDesign, params: LatentTraitParams, statistics: Sums, prior_curvature: Array
) -> Array:
    """Return the inverse of the observed information of a sample, (p, p).

    The eigenvalues of the observed information relative to that of complete data are 1 − r, where r
    is the rate at which EM converges along the eigenvector. Chance decides about small ones, so
    they are raised to its size. Rotations of the traits may stay: gradients have no part along
    them.
    """
    sums, scale = statistics.values, compute_scale(statistics)
    prior = np.zeros(design.n_parameters)
    prior[: design.forms.n_free] = prior_curvature
    corrections = _sum_corrections(design, params, statistics, prior).toarray()
    observed = scale * sums["information"] + corrections
    complete = scale * sums["curvature"] + np.diag(prior)
    complete += _RIDGE * np.diag(np.diag(complete)) + np.finfo(float).tiny * np.eye(len(complete))
    basis = np.eye(len(complete))
    if not design.traits.is_rotatable and len(fixed := list_constraints(design, params)):
        basis = scipy.linalg.null_space(fixed)
    values, vectors = scipy.linalg.eigh(basis.T @ observed @ basis, basis.T @ complete @ basis)
    least = _CHANCE / math.sqrt(max(float(sums["weight_informing"]) / scale, 1.0))
    vectors = basis @ vectors / np.sqrt(np.maximum(values, min(least, 1.0)))
    return np.asarray(vectors @ vectors.T)


def compute_scale(statistics: Sums) -> float:
    """Return the number of rows per row whose scores are summed."""
    return statistics.weight / max(float(statistics.values["weight_informing"]), 1.0)


def _sum_item_information(
    design: FitDesign,
    params: LatentTraitParams,
    statistics: Sums,
    jacobian: Matrix,
    constraints: Array,
    corrections: Matrix,
) -> ItemInformation:
    """Return the information of each item, and along directions that items share."""
    values, scale, forms = statistics.values, compute_scale(statistics), design.forms
    known = own = corrections
    n_forms = jacobian.shape[0] // forms.n_groups
    for group in range(forms.n_groups):
        J = jacobian[group * n_forms : (group + 1) * n_forms]
        curvature, variance = (
            _join_items(forms, np.reshape(values[name], (forms.n_groups, -1))[group])
            for name in ("curvature", "item_variance")
        )
        known = known + scale * (J.T @ curvature @ J)
        own = own + scale * (J.T @ (curvature - variance) @ J)
    scales, rotations = list_directions(design, params)
    shared = scales.T @ (known @ scales) - scale * values["shared_variance"]
    n_traits = design.n_parameters - forms.n_free
    return ItemInformation(
        known.diagonal(),
        own.tocsr(),
        np.column_stack([scales, rotations]),
        np.pad(shared, (0, rotations.shape[1])),  # there is none about rotations
        np.append(forms.is_common, np.ones(n_traits, np.bool_)),
        constraints,
    )


def _join_items(forms: LevelDesign, flat: Array) -> Matrix:
    """Return the matrix with the blocks of items, which follow each other in `flat`."""
    places = list_form_places(forms.n_planes, forms.n_components)
    shapes = [(*own.shape, own.shape[1]) for own in places]
    parts = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    blocks = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return join_blocks(blocks, places, len(forms.constant) // forms.n_groups)


def _sum_corrections(
    design: FitDesign, params: LatentTraitParams, statistics: Sums, prior: Array
) -> Matrix:
    """Return what adds to the information of the rows about forms, (p, p), sparse."""
    total, values = scipy.sparse.diags_array(prior, format="csr"), statistics.values
    if "score" not in values:
        return total
    score, missing = values["score"], design.n_parameters - design.places.n_parameters
    if design.traits.has_free_correlation.any():
        slope = differentiate_forms(design, params).T @ score.ravel()
        total = total + scipy.sparse.diags_array(
            sum_multipliers(list_constraints(design, params), slope)
        )
    second = np.pad(_sum_second_derivatives(design, score), (0, missing))
    if design.scale is not None:
        second = second + sum_theta_derivatives(design.places, design.center(params)[1], values)
    return scipy.sparse.csr_array(total - scipy.sparse.csr_array(second))


def _sum_second_derivatives(design: FitDesign, score: Array) -> Array:
    """Return Σ_g Σ_k s_gk ∂²v_gk / ∂φ ∂(μ_g, L_g), (p, p), given s_g, (n_groups, n_forms (q + 1)).

    v_gja = Σ_m L_gma a_jm and v_gj,q+1 = d_j + Σ_m μ_gm a_jm, so the derivatives by L_gma and μ_gm
    are linear in the parameters of a_jm.
    """
    forms, places = design.forms, design.places
    q, n_traits = forms.n_components, places.n_parameters - forms.n_free
    across = np.zeros((forms.n_free, n_traits + 1))  # the last place is of what is not free
    mean, root = (np.where(p >= 0, p - forms.n_free, -1) for p in (places.mean, places.root))
    for group, own in enumerate(score):
        matrix, by_form = forms.select_group(group).matrix, own.reshape(-1, q + 1)
        for m in range(q):
            by_slope = matrix[m :: q + 1]
            across[:, mean[group, m]] += by_form[:, q] @ by_slope
            for a in range(m + 1):
                across[:, root[group, m, a]] += by_form[:, a] @ by_slope
    padded = np.pad(across[:, :-1], ((0, n_traits), (forms.n_free, 0)))
    return np.asarray(padded + padded.T)


def collect_errors(
    design: FitDesign, params: LatentTraitParams, found: ParameterErrors, left_out: Indices
) -> tuple[dict[str, Array], Indices, dict[str, Array]]:
    """Return arrays of standard errors, the features without any for lack of data, and covariances.

    Covariances are of the weights and the offset of an `item`, (n_groups, n_features, q + 1,
    q + 1), and with several levels of each `plane`, (n_groups, n_planes, q + 1, q + 1).
    """
    forms, (covariance, is_unknown) = design.forms, found
    arrays: dict[str, Array] = {}
    if design.scale is not None:
        moved = _differentiate_origin(design, params)
        covariance = ItemCovariance.from_array(moved @ covariance.blocks @ moved.T)
        n = design.places.n_parameters
        variance = np.where(is_unknown, np.nan, np.diag(covariance.blocks))[n:]
        arrays["coefficients_error"] = np.sqrt(variance).reshape(get_coefficients(params)[0].shape)
    of_items, unknown = covariance.take_first(forms.n_free), np.zeros(0, np.int64)
    by_group, covariances = [], list[dict[str, Array]]()
    for group in range(forms.n_groups):
        own, missing, joint = _collect_item_errors(
            design._replace(forms=forms.select_group(group)),
            params.select_group(group),
            ParameterErrors(of_items, is_unknown[: forms.n_free]),
            left_out,
        )
        by_group.append(own)
        covariances.append(joint)
        unknown = np.union1d(unknown, missing)
    arrays |= by_group[0]
    if params.segments is not None:
        arrays |= {
            f"group_{name}": np.stack([own[name] for own in by_group])
            for name in by_group[0]
            if not name.startswith(("difficulty", "level_difficulty"))
        }
    if params.traits is not None:
        arrays |= _collect_trait_errors(design, params, covariance, is_unknown)
    if params.standardized is not None:
        errors = by_group[0]["weights_error"]
        arrays |= _collect_loading_errors(design, params, covariance, is_unknown, errors)
    stacked = {name: np.stack([own[name] for own in covariances]) for name in covariances[0]}
    return arrays, unknown, stacked


def _collect_trait_errors(
    design: FitDesign, params: LatentTraitParams, covariance: ItemCovariance, is_unknown: Flags
) -> dict[str, Array]:
    places, n_free = place_traits(design.traits, 0), design.forms.n_free
    own = n_free + np.arange(places.n_parameters)
    of_traits, is_unknown = covariance.take_blocks(own[None])[0], is_unknown[own]
    variance = np.append(np.where(is_unknown, np.nan, np.diag(of_traits)), 0.0)
    root = factorize(get_traits(params)[1])
    return {
        "trait_mean_error": np.sqrt(np.maximum(variance[places.mean], 0.0)),
        "trait_covariance_error": compute_covariance_errors(
            design.traits, places, root, of_traits, is_unknown
        ),
    }


def _collect_loading_errors(
    design: FitDesign,
    params: LatentTraitParams,
    covariance: ItemCovariance,
    is_unknown: Flags,
    weights_error: Array,
) -> dict[str, Array]:
    """Return the standard errors of standardized loadings and communalities."""
    forms, n_planes = design.forms.select_group(0), design.forms.n_planes
    q, J = forms.n_components, forms.matrix
    places = place_traits(design.traits, forms.n_free)
    to_weights, _ = map_to_items(n_planes, q, design.kind, J.shape[0])
    first = (int(n_planes.sum()) + 1) * (q + 1) + q  # entry of the first deviation
    linear = join_derivatives(
        differentiate_loadings(params),
        to_weights @ J,
        J[first :: 2 * (q + 1)][: int((n_planes == 0).sum())],
        factorize(get_traits(params)[1])[0],
        places.root[0],
        len(is_unknown),
    )
    errors = np.sqrt(np.maximum(covariance.compute_covariances(linear, linear), 0.0))
    errors = np.where(abs(linear) @ is_unknown > 0, np.nan, errors).reshape(-1, q + 1)
    errors[np.isnan(weights_error).any(axis=1)] = np.nan
    return {"loadings_error": errors[:, :q], "communality_error": errors[:, q]}


def _collect_item_errors(
    design: FitDesign, params: LatentTraitParams, found: ParameterErrors, left_out: Indices
) -> tuple[dict[str, Array], Indices, dict[str, Array]]:
    """Return errors of the items of a group, the items without any, and joint covariances."""
    forms, kind, (covariance, is_unknown) = design.forms, design.kind, found
    q, J, n_planes = forms.n_components, forms.matrix, forms.n_planes
    n_features = len(n_planes)
    to_weights, to_offsets = map_to_items(n_planes, q, kind, J.shape[0])
    items = np.arange(n_features)
    is_left_out = np.isin(items, left_out)

    def compute_errors(linear: Matrix, owners: Indices) -> Array:
        """Return the standard errors of linear functions of weights and offsets of forms."""
        free = linear @ J
        variance, size = covariance.compute_covariances(free, free), abs(free)
        is_fixed = (size.sum(axis=1) == 0) | (size @ is_unknown > 0) | is_left_out[owners]
        errors = np.where(is_fixed, np.nan, np.sqrt(np.maximum(variance, 0.0)))
        return np.where(abs(linear) @ ~forms.is_known, errors, 0.0)

    def compute_joint(columns: list[Matrix], errors: Array) -> Array:
        """Return the covariances of linear functions, given their errors, (n, n_columns) both."""
        free = [column @ J for column in columns]
        joint = np.array([[covariance.compute_covariances(a, b) for b in free] for a in free])
        has_error = errors > 0
        joint = np.where(has_error[:, :, None] & has_error[:, None], joint.transpose(2, 0, 1), 0.0)
        is_missing = np.isnan(errors)
        return np.where(is_missing[:, :, None] | is_missing[:, None], np.nan, joint)

    of_planes = np.repeat(items, n_planes)
    weights_error = compute_errors(to_weights, np.repeat(items, q)).reshape(-1, q)
    is_estimated = np.asarray(abs(to_weights @ J).sum(axis=1)).reshape(-1, q) > 0
    is_missing = (np.isnan(weights_error) & is_estimated).any(axis=1) & ~is_left_out
    arrays = {"weights_error": weights_error, "offsets_error": compute_errors(to_offsets, items)}
    of_item = [*(to_weights[k::q] for k in range(q)), to_offsets]
    own_errors = np.column_stack([weights_error, arrays["offsets_error"]])
    covariances = {"item": compute_joint(of_item, own_errors)}
    all_entries = scipy.sparse.eye_array(J.shape[0], format="csr")
    if forms.has_asymptotes:
        logits = all_entries[n_features * (q + 1) + q :: q + 1]
        of_logits = compute_errors(logits, np.repeat(items, 2)).reshape(-1, 2)
        for name, errors in zip(("guessing", "slipping"), of_logits.T, strict=True):
            if (p := getattr(params.items, name)) is not None:
                arrays[f"{name}_error"] = p * (1 - p) * errors
    if params.n_levels is not None:
        by_form = compute_errors(all_entries, forms.item_of_row).reshape(-1, q + 1)
        arrays["level_offsets_error"] = by_form[: len(of_planes), -1]
        n_entries = len(of_planes) * (q + 1)
        of_plane = [all_entries[k : n_entries : q + 1] for k in range(q + 1)]
        covariances["plane"] = compute_joint(of_plane, by_form[: len(of_planes)])
        if kind == "nominal":
            arrays["level_weights_error"] = by_form[: len(of_planes), :-1]
        if params.items.deviations is not None:
            of_spreads = by_form[len(of_planes) + 1 :: 2, -1]
            arrays["deviations_error"] = params.items.deviations * of_spreads
    if q > 1:
        return arrays, np.flatnonzero(is_missing), covariances
    # The derivatives of −b / w.
    flat, slopes = params.get_level_items(kind).to_forms().reshape(-1), params.weights[:, 0]
    slopes = np.where(slopes == 0, np.finfo(float).tiny, slopes)

    def differentiate_ratio(to_form: Any, owners: Indices) -> Any:
        w = scipy.sparse.diags_array(1 / slopes[owners])
        ratio = scipy.sparse.diags_array((to_form @ flat) / slopes[owners])
        return w @ (ratio @ to_weights[owners] - to_form)

    with np.errstate(over="ignore"):
        own = differentiate_ratio(to_offsets, items)
    by_item = np.where(n_planes > 0, compute_errors(own, items), np.nan)
    arrays["difficulty_error"] = params.leave_out_nominal(by_item)
    if kind != "nominal" and params.n_levels is not None:
        own = differentiate_ratio(map_to_thresholds(forms, kind), of_planes)
        arrays["level_difficulty_error"] = compute_errors(own, of_planes)
    return arrays, np.flatnonzero(is_missing), covariances


def _differentiate_origin(design: FitDesign, params: LatentTraitParams) -> Array:
    """Return the derivatives of all parameters by those for standardized covariates."""
    assert design.scale is not None
    (coefficients, center), places, own = get_coefficients(params), design.places, design.forms
    n, width, scale = places.n_parameters, own.n_components + 1, design.scale
    moved = np.eye(n + coefficients.size)
    moved[n:, n:] = np.kron(np.diag(1 / scale), np.eye(own.n_components))
    if design.traits.origin == "means":
        by_trait = n + np.arange(coefficients.size).reshape(coefficients.shape).T
        for place in places.mean:
            moved[place[:, None], by_trait] = -center / scale
        return moved
    # d_j without covariates is d_j + a_j·shift minus a_j·shift.
    rows, shift = own.matrix.toarray().reshape(-1, width, own.n_free), center @ coefficients
    changed = rows.copy()
    changed[:, -1] -= np.einsum("jmf,m->jf", rows[:, :-1], shift)
    moved[: own.n_free, : own.n_free] = own.collect_changes(changed.reshape(-1, own.n_free))
    forms = design.list_forms(params).reshape(-1, width)
    by_coefficient = np.zeros((*forms.shape, coefficients.size))
    by_coefficient[:, -1] = -np.einsum("c,jm->jcm", center / scale, forms[:, :-1]).reshape(
        len(forms), -1
    )
    moved[: own.n_free, n:] = own.collect_changes(by_coefficient.reshape(-1, coefficients.size))
    return moved
