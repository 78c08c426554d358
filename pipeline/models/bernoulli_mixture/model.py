"""Mixture of products of Bernoullis: rows of one of a few kinds, features independent within each.

Model: P(k) = π_k, P(x_i = 1 | k) = p_ki, features independent given k (G. J. McLachlan, D. Peel,
"Finite mixture models", 2000, section 5; known as latent class analysis).

Fit by EM with pseudo-counts: every p has a Beta(1 + s, 1 + s) prior and π a Dirichlet(1 + s) one, s
being `smoothing`. A start has the features' margins in every component, their log-odds moved at
random; the best of a few short runs goes on (C. Biernacki, G. Celeux, G. Govaert, Computational
Statistics & Data Analysis 41, 2003). Steps are extrapolated by SQUAREM in log p / (1 − p) and
log π. Missing values are left out of a row's likelihood, which is right also where observed values
decide which are missing; not where the missing ones themselves do.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
p          probabilities   (n_components, n_features)
π          weights         (n_components,)
=========  ==============  ================================

Cost a block: 2 n_components (its ones + its missing values). Passes: tens to hundreds.
Not identifiable: the order of components, which is by weight; and the components themselves where
features are fewer than about 2 log₂ n_components + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.learning.held_out import (
    HELD_OUT_SHARE,
    get_best_params,
    get_held_out_scores,
    record_held_out_score,
    run_e_step_with_held_out,
)
from pipeline.models.base import Model
from pipeline.models.bernoulli_mixture.kernels import (
    compute_mixture_terms,
    mixture_posterior,
    sum_mixture_statistics,
)
from pipeline.models.bernoulli_mixture.standard_errors import (
    MAX_PARAMETERS,
    MAX_ROWS,
    compute_mixture_errors,
    sum_mixture_information,
)
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.state import Arrays, FitState
from pipeline.params import array_field, optional_array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

MAX_HELD_OUT_COMPONENTS = 256
"""Components at which the search for their number ends."""
SHORT_RUN_TOL = 1e-3
"""Change of the objective at which a start is judged."""
_MIN_ROWS_TO_CHOOSE = 100  # of which about ten are held out
_MIN_SMOOTHING = 1e-6  # 1 − p keeps its digits up to a thousand million rows


@dataclass(frozen=True)
class BernoulliMixtureParams:
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    probabilities_error, probabilities_interval, weights_error
        Standard errors, and the ends of 95 % intervals; None where none were computed.
    """

    probabilities: Array = array_field("component", "feature")
    weights: Array = array_field("component")
    probabilities_error: Array | None = optional_array_field("component", "feature")
    probabilities_interval: Array | None = optional_array_field("bound", "component", "feature")
    weights_error: Array | None = optional_array_field("component")

    @property
    def free_parameters(self) -> Array:
        """Log-odds, then log-weights: a vector without bounds."""
        return np.concatenate(
            [scipy.special.logit(self.probabilities).ravel(), np.log(self.weights)]
        )

    def with_free_parameters(self, packed: Array, most: float) -> BernoulliMixtureParams:
        """Undo `packed`, log-odds not above `most` in size; log-weights need not sum to 1."""
        n_components, n_features = self.probabilities.shape
        log_odds = np.clip(packed[:-n_components], -most, most)
        log_weights = scipy.special.log_softmax(np.maximum(packed[-n_components:], -most))
        probabilities = scipy.special.expit(log_odds).reshape(n_components, n_features)
        return replace(self, probabilities=probabilities, weights=np.exp(log_weights))


@dataclass(frozen=True)
class BernoulliMixture(Model):
    """Hyperparameters of the mixture of products of Bernoullis.

    Attributes
    ----------
    n_components
        Number of components; None doubles it from 1 while rows held out gain.
    smoothing
        Pseudo-counts of ones, of zeros and of rows in every component.
    starts
        Short runs, the best of which goes on.
    errors
        How standard errors are made: by the observed information (`louis`), or `none`.
    max_iter
        Passes at the most, of each start and of what follows, for each number of components tried.
    tol
        Change of the objective per row, relative where that is above 1, in the last three passes
        and in all that are to come, at which to stop.
    """

    name: ClassVar[str] = "bernoulli-mixture"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[BernoulliMixtureParams]] = BernoulliMixtureParams
    acceleration: ClassVar[str] = "squarem"
    n_components: int | None = 10
    smoothing: float = 0.1
    starts: int = 3
    errors: Literal["louis", "none"] = "louis"
    max_iter: int = 500
    tol: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _MIN_SMOOTHING <= self.smoothing < np.inf:
            raise FitError(f"smoothing: Expected at least 0.000001, got {self.smoothing}.")
        for name in ("starts", "max_iter"):
            if (value := getattr(self, name)) < 1:
                raise FitError(f"{name}: Expected at least 1, got {value}.")
        if not 0 < self.tol < 1:
            raise FitError(f"tol: Expected above 0 and below 1, got {self.tol}.")

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of sums and logarithms of the tasks under way, and of what extrapolation keeps."""
        return (
            8 * n_features * (self.n_components or MAX_HELD_OUT_COMPONENTS) * (6 * n_threads + 10)
        )

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts; components begin at random around the margins.

        Raises
        ------
        FitError
            If a feature was never observed, or there are more components than rows.
        """
        observed, ones = pool_margins(first)
        if self.n_components is None and first.n_samples < _MIN_ROWS_TO_CHOOSE:
            raise FitError(
                f"--components: Expected at least {_MIN_ROWS_TO_CHOOSE} rows to choose a number by, "
                f"got {first.n_samples}. Give a number."
            )
        if (self.n_components or 1) > first.n_samples:
            raise FitError(
                f"--components: Expected at most {first.n_samples}, the number of rows, "
                f"got {self.n_components}."
            )
        auxiliary = {
            "n_rows": np.array(first.n_samples),
            "margins": scipy.special.logit(
                (ones + self.smoothing) / (observed + 2 * self.smoothing)
            ),
            "seed": rng.integers(2**63, size=1),
        }
        so = "smoothing alone decides how often they are not"
        warnings = make_constant_feature_warnings(observed, ones, so)
        state = FitState(None, auxiliary=auxiliary, warnings=warnings)
        return self._begin_stage(
            state, self.n_components or 1, 0.0 if self.n_components else HELD_OUT_SHARE
        )

    def _begin_stage(self, state: FitState, n_components: int, held_out: float) -> FitState:
        """Begin with so many components around the margins, several times where they can differ."""
        working = {"held_out": np.array(held_out)}
        is_single = self.starts == 1 or n_components == 1
        auxiliary = {**state.auxiliary, "short": np.array(not is_single)}
        state = replace(state, working=working, auxiliary=auxiliary)
        starts = tuple(
            replace(state, params=self._draw_params_near_margins(auxiliary, n_components, k))
            for k in range(1 if is_single else self.starts)
        )
        return replace(starts[0], starts=() if is_single else starts)

    def _draw_params_near_margins(
        self, auxiliary: Arrays, n_components: int, start: int
    ) -> BernoulliMixtureParams:
        margins = auxiliary["margins"]
        rng = np.random.default_rng([int(auxiliary["seed"][0]), n_components, start])
        moves = rng.standard_normal((n_components, len(margins))) if n_components > 1 else 0.0
        probabilities = np.atleast_2d(scipy.special.expit(margins + moves))
        return BernoulliMixtureParams(probabilities, np.full(n_components, 1 / n_components))

    def warm_start(self, state: FitState, params: BernoulliMixtureParams) -> FitState:
        """Begin where an earlier fit ended, without short runs before."""
        return replace(self._begin_long_run(state, 0.0), params=params)

    def _begin_long_run(self, state: FitState, held_out: float) -> FitState:
        """Begin a run that goes on until it has converged."""
        auxiliary = {**state.auxiliary, "short": np.array(False)}
        working = {"held_out": np.array(held_out)}
        return replace(state, working=working, auxiliary=auxiliary, starts=())

    def summarize(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Do the E-step of a block's rows; those held out are scored instead."""
        return run_e_step_with_held_out(
            partial(_e_step, params), float(working["held_out"]), block, rng
        )

    def objective(self, params: BernoulliMixtureParams, statistics: Sums) -> float:
        """Give the log-likelihood of a row with its share of the log prior: nats."""
        p = params.probabilities
        log_prior = np.log(p).sum() + np.log1p(-p).sum() + np.log(params.weights).sum()
        return float((statistics.objective + self.smoothing * log_prior) / statistics.n_samples)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Judge starts sooner than what follows them."""
        is_short = bool(state.auxiliary.get("short", False))
        return ObjectiveCriterion(self.max_iter, max(self.tol, is_short * SHORT_RUN_TOL))

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Do the M-step."""
        s, values = self.smoothing, statistics.values
        ones, mass = values["ones"].T, values["mass"]
        # Rounding must not leave more ones than values.
        observed = np.maximum(mass[:, None] - values["missing"].T, ones)
        weights = (mass + s) / (mass + s).sum()
        params = BernoulliMixtureParams((ones + s) / (observed + 2 * s), weights)
        return replace(state, params=params)

    def pack_params(self, params: BernoulliMixtureParams) -> Array:
        """Give log-odds, then log-weights."""
        return params.free_parameters

    def unpack_params(self, params: BernoulliMixtureParams, packed: Array, n_samples: int) -> Any:
        """Undo `packed`, within what an M-step of so many rows leads to."""
        most = np.log((n_samples + len(params.weights)) / self.smoothing + 1)
        return params.with_free_parameters(packed, most)

    def select_start(self, state: FitState) -> FitState:
        """Go on from the best start."""
        return self._begin_long_run(state, float(state.working["held_out"]))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Go on with twice the components while that helps rows held out, then with all rows."""
        if state.working["held_out"] == 0:
            return None
        auxiliary, is_best = record_held_out_score(state.params, state.auxiliary, statistics)
        state, n_more = replace(state, auxiliary=auxiliary), 2 * len(state.params.weights)
        if is_best and n_more <= min(MAX_HELD_OUT_COMPONENTS, statistics.n_samples):
            return self._begin_stage(state, n_more, HELD_OUT_SHARE)
        return replace(
            self._begin_long_run(state, 0.0), params=get_best_params(self.params, auxiliary)
        )

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort components by weight, and say what is in doubt."""
        order = np.argsort(-state.params.weights, kind="stable")
        params = BernoulliMixtureParams(
            state.params.probabilities[order], state.params.weights[order]
        )
        n_components = len(order)
        empty = int((statistics.values["mass"] < 1).sum())
        noted = (*state.warnings, *self._warn_about_components(n_components, empty))
        diagnostics = {
            "n_components": n_components,
            "rows_without_values": int(statistics.values["empty_rows"]),
            "held_out_scores": get_held_out_scores(state.auxiliary).tolist(),
        }
        return replace(state, params=params, diagnostics=diagnostics, warnings=noted)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Ask for standard errors, of as many parameters as that is possible for."""
        if self.errors == "none" or state.params.free_parameters.size > MAX_PARAMETERS:
            return None
        share = MAX_ROWS / max(int(state.auxiliary["n_rows"]), 1)
        return {"share": np.array(min(share, 1.0))}

    def summarize_information(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Sum information about the parameters."""
        uniform = rng.stream("information").uniform(block.rows, 1)[:, 0]
        block = block.take_rows(np.flatnonzero(uniform < working["share"]))
        posterior, nats = _posterior(params, block)
        found = sum_mixture_information(
            block.unpack_values(), block.unpack_mask(), params.probabilities, posterior
        )
        return Sums(block.n_samples, float(nats.sum()), found)

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors and intervals."""
        params, n_rows = state.params, int(state.auxiliary["n_rows"])
        scale = n_rows / max(statistics.n_samples, 1)
        sums = {name: scale * values for name, values in statistics.values.items()}
        found = compute_mixture_errors(
            params.probabilities, params.weights, sums, n_rows, self.smoothing
        )
        params = replace(
            params,
            probabilities_error=found.probabilities,
            probabilities_interval=found.interval,
            weights_error=found.weights,
        )
        return replace(state, params=params)

    def _warn_about_components(self, n_components: int, empty: int) -> tuple[FitWarning, ...]:
        """Say what is in doubt of the number of components, with one remedy."""
        told = f"components with less than one row: {empty} of {n_components}"
        if empty and self.n_components is None:
            filled = n_components - empty
            told += f", as auto doubles their number; --components {filled} does without them"
            return (FitWarning(told),)
        if empty:
            return (FitWarning(f"{told}; ask for fewer"),)
        if self.n_components is None and n_components == MAX_HELD_OUT_COMPONENTS:
            told = f"rows held out still gain at {n_components} components, where auto ends; "
            return (FitWarning(told + "give a larger number"),)
        return ()

    def transform(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give P(k | x) as `mean`, (n_samples, n_components)."""
        return {"mean": _posterior(params, block)[0]}

    def log_likelihood(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Give log P(x) of each row, exact; of the observed values where some are missing."""
        _, nats = _posterior(params, block)
        return LogLikelihood(nats, np.zeros_like(nats))

    def sample(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features); segments do not matter."""
        components = rng.choice(len(params.weights), n_samples, p=params.weights)
        uniform = rng.random((n_samples, params.probabilities.shape[1]))
        return (uniform < params.probabilities[components]).astype(np.uint8)

    def reconstruct(
        self,
        params: BernoulliMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Give Σ_k codes_k p_k, (n_samples, n_features), cut to 0 and 1; segments do not matter."""
        probabilities: Array = np.clip(codes @ params.probabilities, 0.0, 1.0)
        return probabilities


def _e_step(params: BernoulliMixtureParams, block: BinaryBlock) -> Sums:
    terms = compute_mixture_terms(params.probabilities, params.weights)
    found = sum_mixture_statistics(block.words, block.observed_words, block.n_samples, terms)
    values = {
        "mass": found.mass,
        "ones": found.ones,
        "missing": found.missing,
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, found.log_likelihood, values)


def _posterior(params: BernoulliMixtureParams, block: BinaryBlock) -> tuple[Array, Array]:
    terms = compute_mixture_terms(params.probabilities, params.weights)
    return mixture_posterior(block.words, block.observed_words, block.n_samples, terms)
