"""What models share whose rows are of classes in which features are independent.

Binary features and the planes of levels are Bernoulli variables within a class, see `levels.py`;
continuous features are normal, see `gaussians.py`. Such models differ in the probabilities of the
classes of a row: π of a mixture, or those of a state given the rows before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import select_with_levels
from pipeline.data.level_probabilities import find_level_probabilities
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.bernoulli_mixture.e_step import (
    MixtureTerms,
    compute_log_joint,
    mixture_posterior,
)
from pipeline.models.bernoulli_mixture.gaussians import (
    MIN_DEVIATION,
    Gaussians,
    compute_log_prior,
    find_collapsed,
    find_smoothed,
    find_unsupported,
    update_gaussians,
)
from pipeline.models.bernoulli_mixture.imputation import compute_plane_probabilities
from pipeline.models.bernoulli_mixture.levels import (
    count_levels_from,
    count_reached,
    cumulate_planes,
    draw_levels,
    mask_unreached_planes,
)
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams
from pipeline.models.mixture import Mixture
from pipeline.models.state import Arrays, FitState
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    count_present_levels,
    count_rows_by_level,
    pool_margins,
    warn_about_levels,
)
from pipeline.statistics.measurements import MeasuredCounts, check_numbers
from pipeline.statistics.sums import Sums

ParamsT = TypeVar("ParamsT", bound=BernoulliMixtureParams)
_MAX_SHOWN = 3  # components in a warning
MIN_SMOOTHING = 1e-6
"""Least number of pseudo-counts; it keeps 1 − p accurate for up to 1e9 rows."""


class ClassMixture(Mixture):
    """A model whose rows are of classes in which features are independent."""

    params: ClassVar[type[BernoulliMixtureParams]] = BernoulliMixtureParams

    def _begin_params(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        """Return the parameters that a start begins with, given the classes of the start."""
        raise NotImplementedError

    def _run_m_step(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> BernoulliMixtureParams:
        raise NotImplementedError

    def _draw_components(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Draw the components of rows, (n_samples,)."""
        raise NotImplementedError

    @property
    def n_levels(self) -> NDArray[np.int64] | None:
        """Number of levels of each feature, 1 of a continuous one; None if all have two."""
        return self.structure.n_levels

    @property
    def _pseudo_ones(self) -> Array | float:
        """Pseudo-counts of the ones of each plane; those of its zeros are `smoothing`."""
        return self.smoothing * count_levels_from(self.n_levels)

    def _measure_numbers(self, first: FeatureCounts) -> Arrays:
        if not isinstance(first, MeasuredCounts):
            return {}
        check_numbers(first, self.structure.features)
        deviations = np.sqrt(first.squares / first.number_weights)
        return {"overall_means": first.means, "overall_deviations": deviations}

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Prefer starts without a collapsed component."""
        (starts,) = ranked.values()
        return super().select_starts({"": sorted(starts, key=self._has_collapsed)})

    def _has_collapsed(self, state: FitState) -> bool:
        rows = state.auxiliary.get("number_rows")
        return rows is not None and bool(find_collapsed(state.params.gaussians, rows).any())

    def _warn_about_numbers(self, gaussians: Gaussians, rows: Array) -> list[FitWarning]:
        """Name features and components with unreliable deviations."""
        is_smoothed = find_smoothed(gaussians, rows, self.smoothing)
        word = self.vocabulary.component
        is_unsupported = find_unsupported(gaussians, rows) & ~is_smoothed
        kinds = (
            (
                is_smoothed,
                f"features whose standard deviation in a {word} comes from {{smoothing}}, or from "
                f"its lower bound of {MIN_DEVIATION} of that in all rows, because the rows there "
                "are (nearly) equal",
            ),
            (
                is_unsupported,
                f"features whose standard deviation in a {word} rests on few rows, which may "
                "only be close to each other by chance",
            ),
        )
        return [
            self._warn_about_deviations(gaussians, rows, places, text)
            for places, text in kinds
            if places.any()
        ]

    def _warn_about_deviations(
        self, gaussians: Gaussians, rows: Array, places: NDArray[np.bool_], text: str
    ) -> FitWarning:
        """Name features, and the components with the fewest rows of those that are concerned."""
        components = np.flatnonzero(places.any(axis=1))
        fewest = np.where(places, rows, np.inf).min(axis=1)
        components = components[np.argsort(fewest[components], kind="stable")]
        ratios = np.where(places, gaussians.deviations / gaussians.overall_deviations, np.inf)
        shown = "; ".join(
            f"{self.vocabulary.component} {k + 1} with {fewest[k]:.1f} rows and a standard "
            f"deviation of {ratios[k].min():.2g} of that in all rows"
            for k in components[:_MAX_SHOWN].tolist()
        )
        more = len(components) - _MAX_SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        features = tuple(self.structure.continuous[places.any(axis=0)].tolist())
        remedy = "choose fewer {components} or more {smoothing}"
        warning = FitWarning(f"{text}: {{features}} ({shown}); {remedy}", features)
        return warning.with_names(self.structure.feature_names)

    def transform(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(k | x) as `mean`, (n_samples, n_components)."""
        return {"mean": compute_class_posterior(params, block)[0]}

    def compute_posterior(
        self, params: BernoulliMixtureParams, block: BinaryBlock
    ) -> tuple[Array, Array]:
        """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,)."""
        return compute_class_posterior(params, block)

    def impute(self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return P(plane = 1 | all other values of the row), (n_samples, n_planes)."""
        masked, terms = prepare_rows(params, block)
        joint = compute_log_joint(masked.words, masked.observed_words, masked.n_samples, terms)
        return compute_plane_probabilities(
            block, params.planes_per_feature, terms, params.probabilities, joint
        )

    def reconstruct(
        self,
        params: BernoulliMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k p_k clipped to 0 and 1, (n_samples, n_features)."""
        probabilities: Array = np.clip(codes @ params.probabilities, 0.0, 1.0)
        return probabilities

    def reconstruct_numbers(
        self,
        params: BernoulliMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k μ_k, (n_samples, n_continuous)."""
        if params.gaussians is None:
            return np.empty((len(codes), 0))
        numbers: Array = codes @ params.gaussians.means
        return numbers

    def number_probabilities(
        self,
        params: BernoulliMixtureParams,
        codes: Mapping[str, Array],
        numbers: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k Φ((x − μ_k) / σ_k), (n_samples, n_continuous)."""
        probabilities = np.zeros(numbers.shape)
        if params.gaussians is None:
            return probabilities
        means, deviations = params.gaussians.means, params.gaussians.deviations
        for k, weights in enumerate(codes["mean"].T):
            probabilities += weights[:, None] * scipy.special.ndtr(
                (numbers - means[k]) / deviations[k]
            )
        return probabilities

    def _draw_start(
        self, auxiliary: Arrays, n_components: int, start: int
    ) -> BernoulliMixtureParams:
        margins = auxiliary["margins"]
        rng = np.random.default_rng([int(auxiliary["seed"][0]), n_components, start])
        noise = rng.standard_normal((n_components, len(margins))) if n_components > 1 else 0.0
        probabilities = np.atleast_2d(scipy.special.expit(margins + noise))
        params = BernoulliMixtureParams(
            cumulate_planes(probabilities, self.n_levels),
            np.full(n_components, 1 / n_components),
            n_levels=self.n_levels,
        )
        if "overall_means" in auxiliary:
            overall = auxiliary["overall_means"], auxiliary["overall_deviations"]
            shape = (n_components, len(overall[0]))
            noise = rng.standard_normal(shape) if n_components > 1 else np.zeros(shape)
            deviations = np.broadcast_to(overall[1], shape)
            gaussians = Gaussians(overall[0] + deviations * noise, deviations.copy(), *overall)
            params = replace(params, gaussians=gaussians)
        return self._begin_params(params)

    def sample(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features), of the groups of these segments if there are any."""
        return self.sample_numbers(params, n_samples, rng, segments)[0]

    def sample_numbers(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows as `sample` does, with values of continuous features."""
        components = self._draw_components(params, n_samples, rng, segments)
        uniform = rng.random((n_samples, params.probabilities.shape[1]))
        bits = (uniform < params.continuation[components]).astype(np.uint8)
        numbers = rng.standard_normal((n_samples, params.n_numbers))
        if params.gaussians is not None:
            numbers *= params.gaussians.deviations[components]
            numbers += params.gaussians.means[components]
        return draw_levels(bits, params.n_levels), numbers

    def _describe_counts(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, and return the state before starts are drawn."""
        features = select_with_levels(self.structure.features)
        level_rows = count_rows_by_level(first, features)
        observed, ones = pool_margins(first)
        observed = count_reached(observed, ones, self.n_levels)
        self._check_number_of_components(first)
        auxiliary = {
            "n_rows": np.array(first.n_rows),
            "weight": np.array(first.weight),
            "is_complete": np.array(first.is_complete),
            "n_present": count_present_levels(level_rows),
            "margins": scipy.special.logit(
                (ones + self._pseudo_ones) / (observed + (self._pseudo_ones + self.smoothing))
            ),
            "seed": rng.integers(2**63, size=1),
            **self._measure_numbers(first),
        }
        return FitState(None, auxiliary=auxiliary, warnings=warn_about_levels(level_rows, features))

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step."""
        params = self._run_m_step(state.params, statistics)
        if params.gaussians is None:
            return replace(state, params=params)
        # The deviations rest on these rows.
        auxiliary = {**state.auxiliary, "number_rows": statistics.values["numbers"]}
        return replace(state, params=params, auxiliary=auxiliary)

    def _measure_again(self, state: FitState, params: ParamsT) -> ParamsT:
        """Return parameters of an earlier fit with means and deviations of the rows of this one."""
        if params.gaussians is None:
            return params
        own = {name: state.auxiliary[name] for name in ("overall_means", "overall_deviations")}
        return replace(params, gaussians=replace(params.gaussians, **own))

    def _compute_log_prior_of_features(self, params: BernoulliMixtureParams) -> float:
        """Return the log prior of probabilities, means and deviations for a smoothing of 1."""
        p = params.continuation
        log_prior = (count_levels_from(self.n_levels) * np.log(p)).sum() + np.log1p(-p).sum()
        if params.gaussians is not None:
            log_prior += compute_log_prior(params.gaussians)
        return float(log_prior)

    def _update_features(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> BernoulliMixtureParams:
        """Return the parameters with the likeliest probabilities, means and deviations."""
        s, values = self.smoothing, statistics.values
        observed = count_observed(statistics)
        continuation = (values["ones"].T + self._pseudo_ones) / (observed + (self._pseudo_ones + s))
        params = replace(params, probabilities=cumulate_planes(continuation, self.n_levels))
        if params.gaussians is None:
            return params
        return replace(params, gaussians=update_gaussians(params.gaussians, values, s))

    def _finish_classes(
        self, state: FitState, params: BernoulliMixtureParams, statistics: Sums
    ) -> FitState:
        """Sort the components by their weight, and add diagnostics and warnings."""
        values = statistics.values
        order = self.sort_components(state, params.weights, params.probabilities)
        params = params.take_components(order)
        if params.n_levels is not None:
            by_level = find_level_probabilities(params.probabilities, params.planes_per_feature + 1)
            params = replace(params, level_probabilities=by_level)
        mass = values["mass"].sum(axis=0)
        state = self._describe_components(state, mass, values["empty_rows"])
        if params.gaussians is not None:
            warnings = self._warn_about_numbers(params.gaussians, values["numbers"][order])
            state = replace(state, warnings=(*state.warnings, *warnings))
        return replace(state, params=params)


def count_observed(statistics: Sums) -> Array:
    """Return the observed values of each plane by component, (n_components, n_planes)."""
    values = statistics.values
    mass: Array = values["mass"].sum(axis=0)[:, None]
    # Rounding must not lead to more ones than values.
    observed: Array = np.maximum(mass - values["missing"].T, values["ones"].T)
    return observed


def prepare_rows(
    params: BernoulliMixtureParams, block: BinaryBlock
) -> tuple[BinaryBlock, MixtureTerms]:
    """Return the rows without the planes that they do not reach, and the terms of the E-step."""
    _, log_weights = params.compute_class_weights(block)
    terms = params.compute_terms(block, log_weights)
    return mask_unreached_planes(block, params.n_levels), terms


def compute_class_posterior(
    params: BernoulliMixtureParams, block: BinaryBlock
) -> tuple[Array, Array]:
    """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,)."""
    block, terms = prepare_rows(params, block)
    return mixture_posterior(block.words, block.observed_words, block.n_samples, terms)
