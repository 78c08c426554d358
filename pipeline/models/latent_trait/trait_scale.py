"""Parameters on another scale of the traits, y = A x + c, with the same likelihood.

Forms of items are a·x + d = a'·y + d' with a' = A⁻ᵀ a and d' = d − a'·c. Traits that are N(μ, Σ)
become N(A μ + c, A Σ Aᵀ). Standard errors are those for known A and c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.models.latent_trait.group_design import convert_to_correlation, factorize, get_traits
from pipeline.models.latent_trait.params import (
    ItemKind,
    Items,
    LatentTraitParams,
    Positions,
    Traits,
)

Array = NDArray[np.float64]


class TraitScale(NamedTuple):
    """A, (q, q), and c, (q,)."""

    matrix: Array
    shift: Array

    @property
    def form_matrix(self) -> Array:
        """The matrix that turns (a, d) into (a', d'), (q + 1, q + 1)."""
        q = len(self.shift)
        T = np.eye(q + 1)
        T[:q, :q] = np.linalg.inv(self.matrix).T
        T[q, :q] = -self.shift @ T[:q, :q]
        return T

    def compute_form_errors(self, covariance: Array) -> tuple[Array, Array]:
        """Return errors of a', (…, q), and d', (…,), given the covariance of (a, d)."""
        T = self.form_matrix
        variance = np.einsum("ab,...bc,ac->...a", T, covariance, T)
        errors = np.sqrt(np.maximum(variance, 0.0))
        return errors[..., :-1], errors[..., -1]


def move_traits(
    params: LatentTraitParams,
    kind: ItemKind,
    scale: TraitScale,
    covariances: Mapping[str, Array],
) -> LatentTraitParams:
    """Return the parameters on another scale of the traits.

    Parameters
    ----------
    params, kind
        Parameters without known items or a loading pattern, and the curves of their items.
    scale
        A and c. With groups or covariates, A is diagonal.
    covariances
        Covariances of weights and offsets, see `collect_errors`; empty if there are no errors.
    """
    A, c = scale
    size = np.abs(np.diag(A))
    mean, covariance = get_traits(params)
    moved = replace(params, traits=Traits(mean @ A.T + c, A @ covariance @ A.T))
    if params.traits_error is not None:
        mean, covariance = params.traits_error.mean, params.traits_error.covariance
        moved = replace(moved, traits_error=Traits(mean * size, covariance * np.outer(size, size)))
    if params.population is not None:
        mean, covariance = params.population.mean, params.population.covariance
        moved = replace(moved, population=Traits(mean @ A.T + c, A @ covariance @ A.T))
    if (own := params.regression) is not None:
        errors = own.coefficients_error
        errors = None if errors is None else errors * size
        own = replace(own, coefficients=own.coefficients @ A.T, coefficients_error=errors)
        moved = replace(moved, regression=own)
    moved = replace(moved, items=_move_items(params, kind, scale, None))
    if params.segments is not None:
        groups = [_move_items(params, kind, scale, own) for own in params.segments.tolist()]
        moved = replace(moved, group_items=Items.combine(groups, np.stack))
    moved = replace(moved, rotated=moved.items.weights.copy())
    if params.traits is None:
        moved = replace(moved, component_correlation=convert_to_correlation((A @ A.T)[None])[0])
    if (positions := params.positions) is not None:
        moved = replace(moved, positions=_move_positions(positions, A[0, 0], c[0]))
    if (positions := params.positions_error) is not None:
        moved = replace(moved, positions_error=_move_positions(positions, size[0], 0.0))
    return _move_errors(moved, scale, covariances)


def _move_items(
    params: LatentTraitParams, kind: ItemKind, scale: TraitScale, segment: int | None
) -> Items:
    """Return the items of a group, or those of the first one."""
    own = params.items if segment is None else params.select_group(segment).items
    T = scale.form_matrix
    to_weights, to_offset = T[:-1, :-1].T, T[-1, :-1]
    moved = replace(
        own, weights=own.weights @ to_weights, offsets=own.offsets + own.weights @ to_offset
    )
    if own.level_offsets is None:
        return moved
    of_planes = params.get_level_items(kind, segment).weights
    level_weights = own.level_weights
    return replace(
        moved,
        level_offsets=own.level_offsets + of_planes @ to_offset,
        level_weights=None if level_weights is None else level_weights @ to_weights,
    )


def _move_positions(positions: Positions, slope: float, shift: float) -> Positions:
    by_level = positions.level_difficulty
    return Positions(
        slope * positions.difficulty + shift, None if by_level is None else slope * by_level + shift
    )


def _move_errors(
    params: LatentTraitParams, scale: TraitScale, covariances: Mapping[str, Array]
) -> LatentTraitParams:
    if params.items_error is None or not covariances:
        return params
    of_weights, of_offsets = scale.compute_form_errors(covariances["item"])
    arrays = {"weights": of_weights, "offsets": of_offsets}
    if "plane" in covariances:
        of_weights, of_offsets = scale.compute_form_errors(covariances["plane"])
        arrays["level_offsets"] = of_offsets
        if params.items_error.level_weights is not None:
            arrays["level_weights"] = of_weights
    first = {name: values[0] for name, values in arrays.items()}
    params = replace(params, items_error=replace(params.items_error, **first))
    if params.group_items_error is None:
        return params
    return replace(params, group_items_error=replace(params.group_items_error, **arrays))


def standardize_traits(params: LatentTraitParams, kind: ItemKind) -> LatentTraitParams:
    """Return the parameters on the scale where the traits of the first group are standard."""
    mean, covariance = get_traits(params)
    matrix = np.linalg.inv(factorize(covariance[:1])[0])
    return move_traits(params, kind, TraitScale(matrix, -matrix @ mean[0]), {})
