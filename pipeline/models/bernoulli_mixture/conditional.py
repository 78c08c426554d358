"""Mixtures that know more than values: levels of features, and groups or covariates of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import are_binary, find_continuous, select_with_levels
from pipeline.data.level_probabilities import count_levels
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.bernoulli_mixture.gaussians import (
    MIN_DEVIATION,
    find_collapsed,
    find_smoothed,
    find_unsupported,
)
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import Arrays, FitState
from pipeline.statistics.counts import (
    FeatureCounts,
    count_level_rows,
    make_constant_feature_warnings,
    make_empty_level_warnings,
)
from pipeline.statistics.measurements import FIRST_KEY, MeasuredCounts, check_numbers
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_SHOWN = 3  # components in a warning


@dataclass(frozen=True)
class StructuredMixture(BernoulliMixture):
    """A mixture of features with levels, or with groups or covariates of the rows."""

    @property
    def n_levels(self) -> NDArray[np.int64] | None:
        """Number of levels of each feature, 1 of a continuous one; None if all have two."""
        features = self.structure.features
        return None if are_binary(features) else np.maximum(count_levels(features), 1)

    def _warn_about_features(self, first: FeatureCounts) -> tuple[FitWarning, ...]:
        if self.n_levels is None:
            return super()._warn_about_features(first)
        features = select_with_levels(self.structure.features)
        level_rows = count_level_rows(first, features)
        consequence = "only the smoothing determines their probabilities"
        total, largest = (np.array([f(r) for r in level_rows]) for f in (np.sum, np.max))
        warnings = (
            *make_constant_feature_warnings(total, largest, consequence),
            *make_empty_level_warnings(level_rows, consequence),
        )
        names = tuple(feature.name for feature in features)
        return tuple(warning.with_names(names) for warning in warnings)

    @property
    def _continuous(self) -> list[int]:
        return find_continuous(self.structure.features)

    @property
    def first_statistics(self) -> type[FeatureCounts]:  # type: ignore[override]
        """Counts of features, with moments of continuous ones."""
        return MeasuredCounts if self._continuous else FeatureCounts

    def first_key(self, seed: int) -> str:
        """Return a key of the counts, another one if they have moments."""
        return FIRST_KEY if self._continuous else super().first_key(seed)

    def _measure_numbers(self, first: FeatureCounts) -> Arrays:
        if not isinstance(first, MeasuredCounts):
            return {}
        check_numbers(first, self.structure.features)
        deviations = np.sqrt(first.squares / first.number_weights)
        return {"overall_means": first.means, "overall_deviations": deviations}

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step, and keep the numbers of rows that deviations rest on."""
        state = super().update(state, statistics, map_items, rng)
        if not self._continuous:
            return state
        auxiliary = {**state.auxiliary, "number_rows": statistics.values["numbers"]}
        return replace(state, auxiliary=auxiliary)

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Continue with the best start, of those without a collapsed component if there are any."""
        (starts,) = ranked.values()
        sensible = (start for start in starts if not self._has_collapsed(start))
        return self.select_start(next(sensible, starts[0]))

    def _has_collapsed(self, state: FitState) -> bool:
        rows = state.auxiliary.get("number_rows")
        return rows is not None and bool(find_collapsed(state.params.gaussians, rows).any())

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components, and name features and components with unreliable deviations."""
        rows = statistics.values.get("numbers")
        if rows is None:
            return super().finish(state, statistics)
        order = np.argsort(-state.params.weights, kind="stable")  # as `super` sorts
        state = super().finish(state, statistics)
        gaussians, overall, rows = state.params.gaussians, state.params.overall, rows[order]
        is_smoothed = find_smoothed(gaussians, overall, rows, self.smoothing)
        is_unsupported = find_unsupported(gaussians, rows) & ~is_smoothed
        kinds = (
            (
                is_smoothed,
                "features whose standard deviation in a component comes from {smoothing}, or from "
                f"its lower bound of {MIN_DEVIATION} of that in all rows, because the rows there "
                "are (nearly) equal",
            ),
            (
                is_unsupported,
                "features whose standard deviation in a component rests on few rows, which may "
                "only be close to each other by chance",
            ),
        )
        warnings = [
            self._warn_about_deviations(state.params, rows, places, text)
            for places, text in kinds
            if places.any()
        ]
        return replace(state, warnings=(*state.warnings, *warnings))

    def _warn_about_deviations(
        self, params: Any, rows: Array, places: NDArray[np.bool_], text: str
    ) -> FitWarning:
        """Name features, and the components with the fewest rows of those that are concerned."""
        components = np.flatnonzero(places.any(axis=1))
        fewest = np.where(places, rows, np.inf).min(axis=1)
        components = components[np.argsort(fewest[components], kind="stable")]
        ratios = np.where(places, params.deviations / params.overall_deviations, np.inf)
        shown = "; ".join(
            f"component {k + 1} with {fewest[k]:.1f} rows and a standard deviation of "
            f"{ratios[k].min():.2g} of that in all rows"
            for k in components[:_MAX_SHOWN].tolist()
        )
        more = len(components) - _MAX_SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        features = tuple(self._continuous[j] for j in np.flatnonzero(places.any(axis=0)).tolist())
        remedy = "choose fewer {components} or more {smoothing}"
        warning = FitWarning(f"{text}: {{features}} ({shown}); {remedy}", features)
        return warning.with_names(self.structure.feature_names)


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
