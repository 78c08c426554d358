"""Mixtures that know more than values: levels of features, and groups or covariates of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import are_binary
from pipeline.data.level_probabilities import count_levels
from pipeline.errors import FitWarning
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.statistics.counts import (
    FeatureCounts,
    count_level_rows,
    make_constant_feature_warnings,
    make_empty_level_warnings,
)
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StructuredMixture(BernoulliMixture):
    """Hyperparameters of the mixture, and what is known of features and rows.

    Attributes
    ----------
    structure
        The features, and the groups or the covariates of the rows.
    """

    structure: Structure = field(default_factory=Structure, metadata={"is_setting": False})

    @classmethod
    def from_model(cls, model: BernoulliMixture, structure: Structure) -> Self:
        """Add a structure to a model."""
        settings = {f.name: getattr(model, f.name) for f in fields(BernoulliMixture)}
        return cls(**settings, structure=structure)

    @property
    def n_levels(self) -> NDArray[np.int64] | None:
        """Number of levels of each feature; None if all have two."""
        features = self.structure.features
        if are_binary(features):
            return None
        return count_levels(features)

    def _warn_about_features(self, first: FeatureCounts) -> tuple[FitWarning, ...]:
        if self.n_levels is None:
            return super()._warn_about_features(first)
        level_rows = count_level_rows(first, self.structure.features)
        consequence = "only the smoothing determines their probabilities"
        total, largest = (np.array([f(rows) for rows in level_rows]) for f in (np.sum, np.max))
        warnings = (
            *make_constant_feature_warnings(total, largest, consequence),
            *make_empty_level_warnings(level_rows, consequence),
        )
        return tuple(warning.with_names(self.structure.feature_names) for warning in warnings)


@dataclass(frozen=True)
class ConditionalMixture(StructuredMixture):
    """A mixture whose class weights depend on the groups or the covariates of the rows."""

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors; all rows count, as few may be alike."""
        working = super().begin_information_pass(state)
        return None if working is None else {"share": np.array(1.0)}

    def add_likelihood(self, state: FitState, statistics: Sums) -> FitState:
        """Add the log-likelihood, and the information criteria unless rows are of a survey."""
        n_parameters = self.count_mixture_parameters(state.params)
        nats = statistics.objective
        found: dict[str, Any] = {"log_likelihood": nats, "n_parameters": n_parameters}
        if state.auxiliary["has_sampling_weights"]:
            found["aic_missing"] = "the rows have sampling weights"
        else:
            found["aic"] = 2 * n_parameters - 2 * nats
            found["bic"] = n_parameters * float(np.log(statistics.weight)) - 2 * nats
        return replace(state, diagnostics={**state.diagnostics, "fit_statistics": found})


def propagate_errors(gradients: Array, covariance: Array) -> Array:
    """Return standard errors, (...), given gradients (..., n_components, n_predictors)."""
    products = np.tensordot(gradients, covariance, axes=2)
    variances = (products * gradients).sum(axis=(-2, -1))
    errors: Array = np.sqrt(np.maximum(variances, 0.0))
    return errors
