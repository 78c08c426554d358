"""The parameters of a fit: forms of items, and the distribution of the traits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.models.latent_trait.design import LevelDesign
from pipeline.models.latent_trait.forms import (
    stack_forms,
)
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    get_traits,
)
from pipeline.models.latent_trait.params import ItemKind, LatentTraitParams
from pipeline.models.latent_trait.regression_design import (
    Regression,
    get_coefficients,
    move_origin,
)
from pipeline.models.latent_trait.trait_errors import (
    TraitPlaces,
    place_traits,
)

Array = NDArray[np.float64]

MAX_PARAMETERS = 3000
"""With more parameters, the information matrix is too large; see `wide_errors`."""


class FitDesign(NamedTuple):
    """The parameters of a fit.

    Attributes
    ----------
    forms, traits
        How forms of items depend on parameters, and which parameters of the traits are estimated.
    kind
        Curves of the items.
    scale
        Standard deviations of the covariates; None without covariates.
    has_few_rows
        Whether rows are too few for the information matrix of all parameters.
    """

    forms: LevelDesign
    traits: GroupDesign
    kind: ItemKind
    scale: Array | None
    has_few_rows: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether errors are by item; see `wide_errors`."""
        return self.has_few_rows or self.forms.n_free > MAX_PARAMETERS

    @property
    def places(self) -> TraitPlaces:
        """Places of the parameters of the traits, which follow the parameters of forms."""
        return place_traits(self.traits, self.forms.n_free)

    @property
    def n_coefficients(self) -> int:
        """Number of coefficients of covariates, which are the last parameters."""
        return 0 if self.scale is None else len(self.scale) * self.forms.n_components

    @property
    def n_parameters(self) -> int:
        """Number of all parameters."""
        return self.places.n_parameters + self.n_coefficients

    def count_parameters(self) -> int:
        """Count the identifiable parameters, that is, without rotations of the traits."""
        traits, q, n_groups = self.traits, self.forms.n_components, self.forms.n_groups
        n_axes = (1 if traits.are_axes_shared else n_groups) if traits.is_rotatable else 0
        n_variances = q * int(np.count_nonzero(traits.has_free_correlation))
        return max(self.n_parameters - n_axes * math.comb(q, 2) - n_variances, 0)

    def list_forms(self, params: LatentTraitParams) -> Array:
        """Return the forms of all groups as functions of x, (n_groups, n_forms, q + 1)."""
        return stack_forms(params, self.kind, self.forms.n_groups)

    def center(self, params: LatentTraitParams) -> tuple[Array, Regression]:
        """Return forms and traits for standardized covariates, and their coefficients."""
        forms, (mean, covariance) = self.list_forms(params), get_traits(params)
        if self.scale is None:
            return forms, Regression(mean, covariance, np.zeros((0, mean.shape[1])))
        coefficients, center = get_coefficients(params)
        forms, mean = move_origin(self.traits, forms, mean, center @ coefficients)
        return forms, Regression(mean, covariance, coefficients * self.scale[:, None])
