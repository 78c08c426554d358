"""Class weights by group of rows: the classes are the same in all groups.

Model: P(k) = π_gk in group g, P(x_i = 1 | k) = p_ki (C. C. Clogg, L. A. Goodman, Journal of the
American Statistical Association 79, 1984). Each π_g has a Dirichlet(1 + s) prior. Without groups,
all rows are of one group, whose class weights are π.

=========  =========================  =====================================
symbol     field                      shape
=========  =========================  =====================================
π_gk       group_class_weights        (n_segments, n_components)
=========  =========================  =====================================

Standard errors are those of `standard_errors.py`, where z are the indicators of the groups. That of
the mean of the class weights of all rows, `weights`, takes the sizes of the groups as known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams, GroupWeights
from pipeline.models.bernoulli_mixture.standard_errors import propagate_errors
from pipeline.statistics.sums import Sums


@dataclass(frozen=True)
class ClassWeightsByGroup:
    """How a fit estimates the class weights of groups.

    Attributes
    ----------
    names
        Names of the groups; empty if all rows are of one.
    smoothing
        s.
    """

    names: tuple[str, ...]
    smoothing: float
    needs_posterior: ClassVar[bool] = False

    @property
    def are_conditional(self) -> bool:
        """Whether rows differ in their class weights."""
        return bool(self.names)

    @property
    def predictor_units(self) -> Array:
        """Units of the indicators of groups."""
        return np.ones(max(len(self.names), 1))

    def begin(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        """Return the parameters to start from, given those of a fit of any structure."""
        n_groups, groups = len(self.names), None
        if self.names:
            own = np.stack([params.get_class_weights(group) for group in range(n_groups)])
            groups = GroupWeights(np.arange(n_groups), np.zeros(n_groups, np.int64), own)
        return replace(params, groups=groups, regression=None)

    def standardize(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        """Return the parameters in the units of the extrapolation."""
        return params

    unstandardize = standardize

    def compute_log_weights(self, params: BernoulliMixtureParams, block: BinaryBlock) -> Array:
        """Return log π of the rows of a block, (n_components,)."""
        return params.compute_class_weights(block)[1]

    def sum_rows(
        self,
        params: BernoulliMixtureParams,
        block: BinaryBlock,
        mass: Array,
        posterior: Array | None,
    ) -> dict[str, Array]:
        """Return the number of rows of each component by group, given those of a block."""
        return {"mass": self._assign_to_group(block, mass)}

    def _assign_to_group(self, block: BinaryBlock, values: Any) -> Array:
        """Return the values of the block's group, and 0 for the other groups."""
        by_group = np.zeros((max(len(self.names), 1), *np.shape(values)))
        by_group[block.segment if self.names else 0] = values
        return by_group

    def compute_log_prior(self, params: BernoulliMixtureParams, statistics: Sums) -> float:
        """Return the log prior of class weights divided by s."""
        own = params.weights if params.groups is None else params.groups.group_class_weights
        return float(np.log(own).sum())

    def update(self, params: BernoulliMixtureParams, statistics: Sums) -> BernoulliMixtureParams:
        """Run the M-step of the class weights of groups."""
        if params.groups is None:
            return params
        mass = statistics.values["mass"] + self.smoothing
        own = mass / mass.sum(axis=1, keepdims=True)
        return replace(params, groups=replace(params.groups, group_class_weights=own))

    def differentiate(self, params: BernoulliMixtureParams, statistics: Sums) -> Array:
        """Return the gradient in log-weights, (n_groups, n_components)."""
        own = params.weights[None] if params.groups is None else params.groups.group_class_weights
        mass = statistics.values["mass"] + self.smoothing
        gradient: Array = mass - mass.sum(axis=1, keepdims=True) * own
        return gradient

    def finish(self, params: BernoulliMixtureParams, statistics: Sums) -> BernoulliMixtureParams:
        """Add the mean of the class weights of all rows, and the numbers of rows of the groups."""
        if params.groups is None:
            return params
        totals = statistics.values["mass"].sum(axis=1)
        weights = totals @ params.groups.group_class_weights / totals.sum()
        rows = np.rint(totals).astype(np.int64)
        return replace(params, weights=weights, groups=replace(params.groups, segment_rows=rows))

    def sum_information(
        self, params: BernoulliMixtureParams, block: BinaryBlock
    ) -> dict[str, NDArray[Any]]:
        """Return the sums of the information about class weights: those of the row weights."""
        return {"group_weights": self._assign_to_group(block, block.weight)}

    def compute_curvature(
        self, params: BernoulliMixtureParams, sums: dict[str, NDArray[Any]], weight: float
    ) -> Array:
        """Return the information about β; see `compute_mixture_errors`."""
        jacobians = self._compute_jacobians(params)
        n_groups, n_components, _ = jacobians.shape
        curvature = np.zeros((n_components, n_groups, n_components, n_groups))
        for group, jacobian in enumerate(jacobians):
            total = sums["group_weights"][group] + n_components * self.smoothing
            curvature[:, group, :, group] = total * jacobian
        return curvature

    def _compute_jacobians(self, params: BernoulliMixtureParams) -> Array:
        """Return the derivatives of the class weights of each group in its log-weights."""
        groups = params.groups
        own = params.weights[None] if groups is None else groups.group_class_weights
        jacobians: Array = own[:, :, None] * (np.eye(own.shape[1]) - own[:, None])
        return jacobians

    def compute_errors(
        self,
        params: BernoulliMixtureParams,
        sums: dict[str, NDArray[Any]],
        weight: float,
        covariance: Array,
    ) -> tuple[BernoulliMixtureParams, Array]:
        """Return the parameters with errors of groups, and the errors of `weights`."""
        jacobians = self._compute_jacobians(params)
        n_groups, n_components, _ = jacobians.shape
        gradients = np.zeros((n_groups, n_components, n_components, n_groups))
        for group, jacobian in enumerate(jacobians):
            gradients[group, :, :, group] = jacobian
        shares = sums["group_weights"] / sums["group_weights"].sum()
        weights_error = propagate_errors(np.tensordot(shares, gradients, axes=1), covariance)
        if params.groups is None:
            return params, weights_error
        own = propagate_errors(gradients, covariance)
        groups = replace(params.groups, group_class_weights_error=own)
        return replace(params, groups=groups), weights_error
