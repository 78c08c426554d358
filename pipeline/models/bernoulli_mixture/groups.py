"""The mixture with groups of rows: class weights by group, and the same classes in all groups.

Model: P(k) = π_gk in group g, P(x_i = 1 | k) = p_ki (C. C. Clogg, L. A. Goodman, Journal of the
American Statistical Association 79, 1984). Each π_g has a Dirichlet(1 + s) prior.

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

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.executors.base import MapFunction
from pipeline.models.bernoulli_mixture.conditional import ConditionalMixture, propagate_errors
from pipeline.models.bernoulli_mixture.model import BernoulliMixtureParams
from pipeline.models.bernoulli_mixture.standard_errors import (
    name_feature_errors,
    warn_about_errors,
)
from pipeline.models.state import Arrays, FitState
from pipeline.random import RowRandom
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroupedMixture(ConditionalMixture):
    """The mixture with the groups of the rows as its structure."""

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.structure.groups)

    def _draw_start(
        self, auxiliary: Arrays, n_components: int, start: int
    ) -> BernoulliMixtureParams:
        params = super()._draw_start(auxiliary, n_components, start)
        return self._add_groups(params, np.tile(params.weights, (self.n_groups, 1)))

    def _add_groups(
        self, params: BernoulliMixtureParams, class_weights: Array
    ) -> BernoulliMixtureParams:
        return replace(
            params,
            segments=np.arange(self.n_groups),
            segment_rows=np.zeros(self.n_groups, np.int64),
            group_class_weights=class_weights,
        )

    def warm_start(self, state: FitState, params: BernoulliMixtureParams) -> FitState:
        """Start from an earlier fit, with or without groups."""
        class_weights = [params.get_class_weights(group) for group in range(self.n_groups)]
        return super().warm_start(state, self._add_groups(params, np.stack(class_weights)))

    def summarize(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group."""
        sums = super().summarize(params, working, block, rng)
        mass = np.zeros((self.n_groups, len(params.weights)))
        mass[block.segment] = sums.values["mass"]
        return replace(sums, values={**sums.values, "mass": mass})

    def _compute_log_prior_of_classes(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> float:
        assert params.group_class_weights is not None
        return float(np.log(params.group_class_weights).sum())

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step."""
        mass = statistics.values["mass"] + self.smoothing
        state = super().update(state, _pool_groups(statistics), map_items, rng)
        class_weights = mass / mass.sum(axis=1, keepdims=True)
        return replace(state, params=replace(state.params, group_class_weights=class_weights))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Count the rows of the groups, and sort the components by their mean weight."""
        group_weights = statistics.values["mass"].sum(axis=1)
        weights = group_weights @ state.params.group_class_weights / group_weights.sum()
        rows = np.rint(group_weights).astype(np.int64)
        params = replace(state.params, weights=weights, segment_rows=rows)
        state = super().finish(replace(state, params=params), _pool_groups(statistics))
        return self.add_likelihood(state, statistics)

    def summarize_information(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters, and the weights of the groups."""
        sums = super().summarize_information(params, working, block, rng)
        group_weights = np.zeros(self.n_groups)
        group_weights[block.segment] = block.weight
        return replace(sums, values={**sums.values, "group_weights": group_weights})

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, intervals, and the log-likelihood of the final parameters."""
        params, sums = state.params, dict(statistics.values)
        if isinstance(statistics, ClusteredSums):
            sums["score_products"] = statistics.sum_score_products()
        class_weights, group_weights = params.group_class_weights, sums["group_weights"]
        n_groups, n_components = class_weights.shape
        jacobians = class_weights[:, :, None] * (np.eye(n_components) - class_weights[:, None])
        curvature = np.zeros((n_components, n_groups, n_components, n_groups))
        for group, jacobian in enumerate(jacobians):
            total = group_weights[group] + n_components * self.smoothing
            curvature[:, group, :, group] = total * jacobian
        errors = self._compute_errors(state, curvature, sums)
        gradients = np.zeros((n_groups, n_components, n_components, n_groups))
        for group, jacobian in enumerate(jacobians):
            gradients[group, :, :, group] = jacobian
        mean = np.tensordot(group_weights / group_weights.sum(), gradients, axes=1)
        params = replace(
            params,
            **name_feature_errors(errors),
            weights_error=propagate_errors(mean, errors.coefficients),
            group_class_weights_error=propagate_errors(gradients, errors.coefficients),
        )
        state = warn_about_errors(replace(state, params=params), errors)
        return self.add_likelihood(state, statistics)


def _pool_groups(statistics: Sums) -> Sums:
    """Return the sums of a mixture without groups."""
    mass = statistics.values["mass"].sum(axis=0)
    return replace(statistics, values={**statistics.values, "mass": mass})
