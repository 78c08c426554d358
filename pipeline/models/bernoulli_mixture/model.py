"""Mixture of products of Bernoullis: each row is of one of a few kinds, with independent features.

Model: P(k) = π_k, P(x_i = 1 | k) = p_ki, features independent given k (G. J. McLachlan, D. Peel,
"Finite mixture models", 2000, section 5; also known as latent class analysis).

Fit by EM with pseudo-counts: every p has a Beta(1 + s, 1 + s) prior and π a Dirichlet(1 + s) prior,
where s is `smoothing`. At each start, every component has the margins of the features, with
randomly perturbed log-odds; the fit continues from the best of a few short runs (C. Biernacki, G.
Celeux, G. Govaert, Computational Statistics & Data Analysis 41, 2003). Steps are extrapolated by
SQUAREM in log p / (1 − p) and log π. Missing values are left out of a row's likelihood. This is
also right if observed values decide which values are missing, but not if the missing values
themselves do.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
p          probabilities   (n_components, n_features)
π          weights         (n_components,)
=========  ==============  ================================

Posteriors are computed from packed bits: log P(x, k) = log π_k + Σ_i log(1 − p_ki) + Σ_{x_i = 1}
log(p_ki / (1 − p_ki)). The first two terms are the same for all rows, so the cost of a row depends
only on its ones and its missing values, for which log(1 − p_ki) is subtracted again. A row's
posterior does not depend on the other rows of the call, not even in its last bit.

Standard errors use the observed information (T. A. Louis, 1982) of the log-odds λ_ki of p_ki and
the log-weights α_k of π. Let r_k = P(k | x), u_ki = m_i (x_i − p_ki), where m is the mask, and v_k
= (u_k, 1). The score of a row is (r_k v_k)_k minus a constant. The information is Σ_n diag(r_k m_i
p_ki (1 − p_ki)) for λ and N (diag π − π πᵀ) for α, minus the covariance of the component scores,
diag_k(r_k v_k v_kᵀ) − (r_k v_k)(r_k v_k)ᵀ. Intervals are symmetric in log-odds.

Cost per block: 2 n_components (number of ones + number of missing values). Passes: tens to
hundreds.
Not identifiable: the order of the components, which are sorted by weight; and the components
themselves if there are fewer than about 2 log₂ n_components + 1 features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.weights import WeightKind
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.executors.cancellation import check_cancelled
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.learning.held_out import (
    HELD_OUT_SHARE,
    get_best_params,
    get_held_out_scores,
    record_held_out_score,
    run_e_step_with_held_out,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.information import invert_information
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Words = NDArray[np.uint64]

MAX_HELD_OUT_COMPONENTS = 256
"""Number of components at which the search for their number ends."""
SHORT_RUN_TOL = 1e-3
"""Tolerance of the short runs."""
MAX_PARAMETERS = 1500
"""With more parameters, the information matrix is too large and there are no standard errors."""
MAX_ROWS = 20_000
"""Number of rows over which information is summed; more rows are sampled and scaled up."""
_MIN_ROWS_TO_CHOOSE = 100  # about ten of them are held out
_MIN_SMOOTHING = 1e-6  # keeps 1 − p accurate for up to 1e9 rows
_BATCH_ENTRIES = 2**20
_TWO_SIDED = float(scipy.special.ndtri(0.975))
_ROWS_PER_WORD = 64
_NEGLIGIBLE_LOG = -40.0  # exp of it is below the rounding of a sum of at least 1

_kernel = njit(nogil=True, cache=True, error_model="numpy")


@dataclass(frozen=True)
class BernoulliMixtureParams:
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    probabilities_error, probabilities_interval, weights_error
        Standard errors, and the ends of 95 % intervals; None if they were not computed.
    """

    probabilities: Array = array_field(
        "component", "feature", allowed=NumberRange(above=0, below=1)
    )
    weights: Array = array_field("component", allowed=NumberRange(above=0), total=1)
    probabilities_error: Array | None = optional_array_field("component", "feature")
    probabilities_interval: Array | None = optional_array_field("bound", "component", "feature")
    weights_error: Array | None = optional_array_field("component")

    @property
    def free_parameters(self) -> Array:
        """Log-odds, then log-weights: an unconstrained vector."""
        return np.concatenate(
            [scipy.special.logit(self.probabilities).ravel(), np.log(self.weights)]
        )

    def with_free_parameters(self, packed: Array, limit: float) -> BernoulliMixtureParams:
        """Return the parameters of such a vector, clipped at ±`limit`."""
        n_components, n_features = self.probabilities.shape
        log_odds = np.clip(packed[:-n_components], -limit, limit)
        log_weights = scipy.special.log_softmax(np.maximum(packed[-n_components:], -limit))
        probabilities = scipy.special.expit(log_odds).reshape(n_components, n_features)
        return replace(self, probabilities=probabilities, weights=np.exp(log_weights))


@dataclass(frozen=True)
class BernoulliMixture(Model):
    """Hyperparameters of the mixture of products of Bernoullis.

    Attributes
    ----------
    n_components
        Number of components. None doubles it from 1 while held-out rows gain.
    smoothing
        Pseudo-counts of ones, of zeros and of rows in every component.
    starts
        Number of short runs; the fit continues with the best.
    errors
        Standard errors from the observed information (`louis`), or `none`. With sampling weights
        they are those of the sandwich.
    max_iter
        Maximum number of passes, for each start and number of components.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats. The limit for all rows together is 10,000
        times this.
    """

    name: ClassVar[str] = "bernoulli-mixture"
    weight_kinds: ClassVar[tuple[WeightKind, ...]] = ("frequency", "sampling")
    has_cluster_errors: ClassVar[bool] = True
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[BernoulliMixtureParams]] = BernoulliMixtureParams
    acceleration: ClassVar[str] = "squarem"
    n_components: int | None = 10
    smoothing: float = setting(0.1, minimum=_MIN_SMOOTHING)
    starts: int = setting(3, minimum=1)
    errors: Literal["louis", "none"] = "louis"
    max_iter: int = setting(500, minimum=1)
    tol: float = setting(1e-6, above=0, below=1)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's sums and logarithms, and of the extrapolation."""
        return (
            8 * n_features * (self.n_components or MAX_HELD_OUT_COMPONENTS) * (6 * n_threads + 10)
        )

    def estimate_work(
        self, params: BernoulliMixtureParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step if half of the values are ones; sparse rows take less.

        The pass for errors also multiplies the scores of a share of the rows.
        """
        n_components, n_parameters = len(params.weights), params.free_parameters.size
        nanoseconds = n_features * (3 + 0.13 * n_components) + 10 * n_components
        n_sums = 2 * n_features * n_components
        if "share" in working:
            nanoseconds += float(working["share"]) * (30 + 0.06 * n_parameters) * n_parameters
            n_sums += n_parameters**2
        return WorkEstimate(nanoseconds, 8 * n_sums)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, and start from random components around the margins."""
        observed, ones = pool_margins(first)
        if self.n_components is None and first.weight < _MIN_ROWS_TO_CHOOSE:
            raise FitError(
                f"The dataset has only {first.weight:.0f} rows; choosing {{components}} needs at "
                f"least {_MIN_ROWS_TO_CHOOSE}. Give a number.",
                parameter="components",
            )
        if (self.n_components or 1) > first.weight:
            raise FitError(
                f"{{components}} is {self.n_components}, but the dataset has only "
                f"{first.weight:.0f} rows. Choose at most {first.weight:.0f}.",
                parameter="components",
            )
        auxiliary = {
            "n_rows": np.array(first.n_rows),
            "weight": np.array(first.weight),
            "has_sampling_weights": np.array(first.has_sampling_weights),
            "margins": scipy.special.logit(
                (ones + self.smoothing) / (observed + 2 * self.smoothing)
            ),
            "seed": rng.integers(2**63, size=1),
        }
        consequence = "only the smoothing determines how often they differ"
        warnings = make_constant_feature_warnings(observed, ones, consequence)
        state = FitState(None, auxiliary=auxiliary, warnings=warnings)
        return self._begin_stage(
            state, self.n_components or 1, 0.0 if self.n_components else HELD_OUT_SHARE
        )

    def _begin_stage(self, state: FitState, n_components: int, held_out: float) -> FitState:
        """Start with components around the margins, from several starts if they differ."""
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
        noise = rng.standard_normal((n_components, len(margins))) if n_components > 1 else 0.0
        probabilities = np.atleast_2d(scipy.special.expit(margins + noise))
        return BernoulliMixtureParams(probabilities, np.full(n_components, 1 / n_components))

    def warm_start(self, state: FitState, params: BernoulliMixtureParams) -> FitState:
        """Start from an earlier fit, without short runs."""
        return replace(self._begin_long_run(state, 0.0), params=params)

    def _begin_long_run(self, state: FitState, held_out: float) -> FitState:
        """Begin a run that continues until it has converged."""
        auxiliary = {**state.auxiliary, "short": np.array(False)}
        working = {"held_out": np.array(held_out)}
        return replace(state, working=working, auxiliary=auxiliary, starts=())

    def summarize(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        return run_e_step_with_held_out(
            partial(_e_step, params), float(working["held_out"]), block, rng
        )

    def objective(self, params: BernoulliMixtureParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        p = params.probabilities
        log_prior = np.log(p).sum() + np.log1p(-p).sum() + np.log(params.weights).sum()
        return float((statistics.objective + self.smoothing * log_prior) / statistics.weight)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop on the change of the objective, sooner in the short runs."""
        is_short = bool(state.auxiliary.get("short", False))
        tol = max(self.tol, is_short * SHORT_RUN_TOL)
        return ObjectiveCriterion(self.max_iter, tol, float(state.auxiliary.get("weight", 1)))

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step."""
        s, values = self.smoothing, statistics.values
        ones, mass = values["ones"].T, values["mass"]
        # Rounding must not lead to more ones than values.
        observed = np.maximum(mass[:, None] - values["missing"].T, ones)
        weights = (mass + s) / (mass + s).sum()
        params = BernoulliMixtureParams((ones + s) / (observed + 2 * s), weights)
        return replace(state, params=params)

    def pack_params(self, params: BernoulliMixtureParams) -> Array:
        """Return log-odds, then log-weights."""
        return params.free_parameters

    def unpack_params(self, params: BernoulliMixtureParams, packed: Array, weight: float) -> Any:
        """Return the parameters, within the bounds that an M-step can reach."""
        limit = np.log((weight + len(params.weights)) / self.smoothing + 1)
        return params.with_free_parameters(packed, limit)

    def select_start(self, state: FitState) -> FitState:
        """Continue with the best start."""
        return self._begin_long_run(state, float(state.working["held_out"]))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Double the components while held-out rows gain, then continue with all rows."""
        if state.working["held_out"] == 0:
            return None
        auxiliary, is_best = record_held_out_score(state.params, state.auxiliary, statistics)
        state, n_doubled = replace(state, auxiliary=auxiliary), 2 * len(state.params.weights)
        if is_best and n_doubled <= min(MAX_HELD_OUT_COMPONENTS, statistics.weight):
            return self._begin_stage(state, n_doubled, HELD_OUT_SHARE)
        return replace(
            self._begin_long_run(state, 0.0), params=get_best_params(self.params, auxiliary)
        )

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components by weight, and add diagnostics and warnings."""
        order = np.argsort(-state.params.weights, kind="stable")
        params = BernoulliMixtureParams(
            state.params.probabilities[order], state.params.weights[order]
        )
        n_components = len(order)
        empty = int((statistics.values["mass"] < 1).sum())
        warnings = (*state.warnings, *self._warn_about_components(n_components, empty))
        diagnostics = {
            "n_components": n_components,
            "rows_without_values": int(statistics.values["empty_rows"]),
            "held_out_scores": get_held_out_scores(state.auxiliary).tolist(),
        }
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors, unless there are too many parameters."""
        if self.errors == "none" or state.params.free_parameters.size > MAX_PARAMETERS:
            return None
        share = MAX_ROWS / max(int(state.auxiliary["n_rows"]), 1)
        if state.auxiliary["has_sampling_weights"]:  # scores are summed by cluster
            share = 1.0
        return {"share": np.array(min(share, 1.0))}

    def summarize_information(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters over a share of the rows."""
        uniform = rng.stream("information").uniform(block.rows, 1)[:, 0]
        block = block.take_rows(np.flatnonzero(uniform < working["share"]))
        posterior, nats = _posterior(params, block)
        weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
        arguments = (block.unpack_values(), block.unpack_mask(), params, posterior, weights)
        information = sum_mixture_information(*arguments)
        sums = Sums.from_block(block, float(weights @ nats), information)
        if not block.has_sampling_weights:
            return sums
        if block.clusters is None:
            products = np.zeros_like(information["products"])
            for _, scores in _iter_scores(*arguments):
                products += scores.T @ scores
            return replace(sums, values={**information, "score_products": products})
        clusters, places = np.unique(block.clusters, return_inverse=True)
        by_cluster = np.zeros((len(clusters), len(information["products"])))
        for rows, scores in _iter_scores(*arguments):
            np.add.at(by_cluster, places[rows], scores)
        return ClusteredSums.from_sums(sums, clusters, by_cluster)

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors and intervals."""
        params, weight = state.params, float(state.auxiliary["weight"])
        scale = weight / statistics.weight if statistics.weight else 1.0
        sums = {name: scale * values for name, values in statistics.values.items()}
        if isinstance(statistics, ClusteredSums):
            sums["score_products"] = statistics.sum_score_products()
        errors = compute_mixture_errors(
            params.probabilities, params.weights, sums, weight, self.smoothing
        )
        params = replace(
            params,
            probabilities_error=errors.probabilities,
            probabilities_interval=errors.interval,
            weights_error=errors.weights,
        )
        return replace(state, params=params)

    def _warn_about_components(self, n_components: int, empty: int) -> tuple[FitWarning, ...]:
        """Warn about empty components, or about the end of the search for their number."""
        text = f"components with less than one row: {empty} of {n_components}"
        if empty and self.n_components is None:
            filled = n_components - empty
            text += f"; their number was doubled automatically, {{components={filled}}} avoids them"
            return (FitWarning(text),)
        if empty:
            return (FitWarning(f"{text}; choose fewer {{components}}"),)
        if self.n_components is None and n_components == MAX_HELD_OUT_COMPONENTS:
            text = (
                f"held-out rows still gain at {n_components}, where the search for {{components}} "
            )
            return (FitWarning(text + "ends; set a larger number"),)
        return ()

    def count_mixture_parameters(self, params: BernoulliMixtureParams) -> int:
        """Return the number of probabilities, and of weights less one."""
        return params.probabilities.size + len(params.weights) - 1

    def transform(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(k | x) as `mean`, (n_samples, n_components)."""
        return {"mean": _posterior(params, block)[0]}

    def log_likelihood(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row."""
        _, nats = _posterior(params, block)
        return LogLikelihood(nats, np.zeros_like(nats))

    def sample(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features); segments are ignored."""
        components = rng.choice(len(params.weights), n_samples, p=params.weights)
        uniform = rng.random((n_samples, params.probabilities.shape[1]))
        return (uniform < params.probabilities[components]).astype(np.uint8)

    def reconstruct(
        self,
        params: BernoulliMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k p_k clipped to 0 and 1, (n_samples, n_features)."""
        probabilities: Array = np.clip(codes @ params.probabilities, 0.0, 1.0)
        return probabilities


def _e_step(params: BernoulliMixtureParams, block: BinaryBlock) -> Sums:
    terms = compute_mixture_terms(params.probabilities, params.weights)
    sums = sum_mixture_statistics(
        block.words, block.observed_words, block.n_samples, terms, block.row_weights
    )
    values = {
        "mass": sums.mass,
        "ones": sums.ones,
        "missing": sums.missing,
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums.from_block(block, sums.log_likelihood, values)


def _posterior(params: BernoulliMixtureParams, block: BinaryBlock) -> tuple[Array, Array]:
    terms = compute_mixture_terms(params.probabilities, params.weights)
    return mixture_posterior(block.words, block.observed_words, block.n_samples, terms)


class MixtureErrors(NamedTuple):
    """Standard errors, and the ends of 95 % intervals of probabilities.

    Shapes: `probabilities` (n_components, n_features), `interval` (2, n_components, n_features),
    `weights` (n_components,).
    """

    probabilities: Array
    interval: Array
    weights: Array


def sum_mixture_information(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    params: BernoulliMixtureParams,
    posterior: Array,
    row_weights: Array,
) -> dict[str, Array]:
    """Compute the sums of the information over rows times their weights.

    `X` and `observed` are (n_samples, n_features), `posterior` is P(k | x), (n_samples,
    n_components), and `row_weights` are (n_samples,).

    Returns
    -------
    dict
        `values`: Σ r_k m_i, (n_components, n_features); `spread`: Σ r_k v_k v_kᵀ, (n_components,
        n_features + 1, n_features + 1); `products`: Σ (r_k v_k)_k (r_k v_k)_kᵀ, (p, p).
    """
    n_components, n_features = params.probabilities.shape
    width = n_features + 1
    values = np.zeros(params.probabilities.shape)
    spread = np.zeros((n_components, width, width))
    products = np.zeros((n_components * width,) * 2)
    for rows, mask, v, r in _iter_score_vectors(X, observed, params, posterior):
        weighted = r * row_weights[rows]
        values += weighted @ mask
        spread += np.swapaxes(v * weighted[:, :, None], 1, 2) @ v
        expected = np.moveaxis(v * r[:, :, None], 0, 1).reshape(len(mask), -1)
        products += (expected * row_weights[rows, None]).T @ expected
    return {"values": values, "spread": spread, "products": products}


def _iter_scores(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    params: BernoulliMixtureParams,
    posterior: Array,
    row_weights: Array,
) -> Iterator[tuple[slice, Array]]:
    """Yield rows, and their scores times their weights, (n_rows, p).

    Parameters are as for `sum_mixture_information`.
    """
    for rows, mask, v, r in _iter_score_vectors(X, observed, params, posterior):
        scores = v * r[:, :, None]
        scores[:, :, -1] -= params.weights[:, None]
        flat = np.moveaxis(scores, 0, 1).reshape(len(mask), -1)
        yield rows, flat * row_weights[rows, None]


def _iter_score_vectors(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    params: BernoulliMixtureParams,
    posterior: Array,
) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Yield rows, their mask, v, (n_components, n_rows, width), and r, (n_components, n_rows)."""
    n_components, width = len(params.weights), X.shape[1] + 1
    height = max(1, _BATCH_ENTRIES // (n_components * width))
    for start in range(0, len(X), height):
        check_cancelled()
        rows = slice(start, start + height)
        mask = np.ones(X[rows].shape) if observed is None else observed[rows].astype(np.float64)
        v = np.ones((n_components, len(mask), width))
        v[:, :, :-1] = mask * (X[rows] - params.probabilities[:, None])
        yield rows, mask, v, posterior[rows].T


def compute_mixture_errors(
    probabilities: Array,
    weights: Array,
    sums: Mapping[str, NDArray[Any]],
    weight: float,
    smoothing: float,
) -> MixtureErrors:
    """Invert the information in `sums`, the result of `sum_mixture_information` for all rows.

    `weight` is the sum of their weights. The pseudo-counts `smoothing` add information like rows.
    With `score_products` in `sums`, (p, p), the errors are those of the sandwich.
    """
    n_components, n_features = probabilities.shape
    width = n_features + 1
    variances = probabilities * (1 - probabilities)
    diagonal = np.zeros((n_components, width))
    diagonal[:, :-1] = (sums["values"] + 2 * smoothing) * variances
    information = np.diag(diagonal.ravel()) - scipy.linalg.block_diag(*sums["spread"])
    information += sums["products"]
    places = np.arange(n_components) * width + n_features
    jacobian = np.diag(weights) - np.outer(weights, weights)
    information[np.ix_(places, places)] += (weight + n_components * smoothing) * jacobian
    # Log-weights are determined up to a constant, so the last one is fixed.
    directions = np.delete(np.eye(len(information)), places[-1], axis=1)
    inverse = invert_information(information, directions)
    covariance = inverse.covariance
    if "score_products" in sums:
        covariance = covariance @ sums["score_products"] @ covariance
    log_odds = np.sqrt(np.diag(covariance)).reshape(n_components, width)[:, :-1]
    unknown = inverse.find_unidentified((n_components, width, 1))[:, :-1]
    half_width = _TWO_SIDED * np.where(unknown, np.inf, log_odds)
    centre = scipy.special.logit(probabilities)
    interval = scipy.special.expit(np.stack([centre - half_width, centre + half_width]))
    weights_error = np.sqrt(np.diag(jacobian @ covariance[np.ix_(places, places)] @ jacobian))
    return MixtureErrors(np.where(unknown, np.nan, variances * log_odds), interval, weights_error)


class MixtureTerms(NamedTuple):
    """The terms of log P(x, k).

    `log_odds` and `log_absent` are log(p / (1 − p)) and log(1 − p), (n_features, n_components);
    `start` is log P(k, x = 0), (n_components,).
    """

    log_odds: Array
    log_absent: Array
    start: Array


class MixtureSums(NamedTuple):
    """Sums over rows, weighted by the posterior of each component.

    `log_likelihood` is Σ log P(x), nats, and `mass` (n_components,) the number of rows per
    component. `ones` and `missing` (n_features, n_components) count ones and missing values.
    """

    log_likelihood: float
    mass: Array
    ones: Array
    missing: Array


def compute_mixture_terms(probabilities: Array, weights: Array) -> MixtureTerms:
    """Compute the logarithms that all rows share.

    `probabilities`, (n_components, n_features), must be strictly between 0 and 1; `weights` are
    (n_components,).
    """
    log_absent = np.ascontiguousarray(np.log1p(-probabilities).T)
    log_odds = np.ascontiguousarray(np.log(probabilities).T) - log_absent
    return MixtureTerms(log_odds, log_absent, np.log(weights) + log_absent.sum(axis=0))


def mixture_posterior(
    words: Words, observed_words: Words | None, n_samples: int, terms: MixtureTerms
) -> tuple[Array, Array]:
    """Return P(k | x), (n_samples, n_components), and log P(x), (n_samples,), nats.

    `words` and `observed_words` are the packed values and mask, (n_features, n_words); the mask is
    None if all values are observed.
    """
    shares = np.empty((n_samples, len(terms.start)))
    log_likelihood = np.empty(n_samples)
    _fill_posterior(*_interleave_words(words, observed_words), *terms, shares, log_likelihood)
    return shares, log_likelihood


def sum_mixture_statistics(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    terms: MixtureTerms,
    row_weights: Array | None = None,
) -> MixtureSums:
    """Compute the sums of the M-step; parameters as for `mixture_posterior`.

    `row_weights` are (n_samples,) or all 1.
    """
    own_weights = np.ones(n_samples) if row_weights is None else row_weights
    mass = np.zeros(len(terms.start))
    ones, missing = np.zeros_like(terms.log_odds), np.zeros_like(terms.log_odds)
    by_word = _interleave_words(words, observed_words)
    log_likelihood = _add_sums(*by_word, own_weights, *terms, mass, ones, missing)
    return MixtureSums(float(log_likelihood), mass, ones, missing)


def _interleave_words(words: Words, observed_words: Words | None) -> tuple[Words, Words]:
    """Transpose to (n_words, n_features); without a mask, return an empty one."""
    mask = np.empty((len(words), 0), np.uint64) if observed_words is None else observed_words
    return np.ascontiguousarray(words.T), np.ascontiguousarray(mask.T)


def _generate_count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Generate LLVM's count of trailing zeros, the position of the lowest set bit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


_count_trailing_zeros: Any = intrinsic(_generate_count_trailing_zeros)


@_kernel
def _score_word(
    words: Words,
    observed: Words,
    w: int,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    shares: Array,
    log_likelihood: Array,
) -> None:
    """Fill in P(k | x) and log P(x) of the rows of word w."""
    for row in range(len(shares)):  # compiles faster than an assignment of arrays
        for k in range(len(start)):
            shares[row, k] = start[k]
    for i in range(words.shape[1]):
        _add_to_rows(words[w, i], 1.0, log_odds[i], shares)
        if len(observed):
            _add_to_rows(_mark_missing(observed[w, i], len(shares)), -1.0, log_absent[i], shares)
    for row in range(len(shares)):
        log_likelihood[row] = _normalise(shares[row])


@_kernel
def _mark_missing(observed: Any, n_rows: int) -> Any:
    """Return a word with the bits of missing values set, among the first `n_rows`."""
    every = np.uint64(0xFFFFFFFFFFFFFFFF)
    return ~observed & (every >> np.uint64(_ROWS_PER_WORD - n_rows))


@_kernel
def _add_to_rows(marked: Any, sign: float, term: Array, shares: Array) -> None:
    while marked:
        row = shares[_count_trailing_zeros(marked)]
        for k in range(len(term)):
            row[k] += sign * term[k]
        marked &= marked - np.uint64(1)


@_kernel
def _add_rows_to_total(marked: Any, shares: Array, total: Array) -> None:
    """Add the shares of the marked rows to a total."""
    while marked:
        row = shares[_count_trailing_zeros(marked)]
        for k in range(len(total)):
            total[k] += row[k]
        marked &= marked - np.uint64(1)


@_kernel
def _normalise(scores: Array) -> float:
    """Turn log P(x, k) into P(k | x), in place, and return log P(x)."""
    largest = scores.max()
    total = 0.0
    for k in range(len(scores)):
        gap = scores[k] - largest
        scores[k] = math.exp(gap) if gap > _NEGLIGIBLE_LOG else 0.0
        total += scores[k]
    for k in range(len(scores)):
        scores[k] /= total
    return float(largest + math.log(total))


@_kernel
def _fill_posterior(
    words: Words,
    observed: Words,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    shares: Array,
    log_likelihood: Array,
) -> None:
    for w in range(len(words)):
        rows = slice(_ROWS_PER_WORD * w, min(_ROWS_PER_WORD * (w + 1), len(shares)))
        _score_word(
            words, observed, w, log_odds, log_absent, start, shares[rows], log_likelihood[rows]
        )


@_kernel
def _add_sums(
    words: Words,
    observed: Words,
    row_weights: Array,
    log_odds: Array,
    log_absent: Array,
    start: Array,
    mass: Array,
    ones: Array,
    missing: Array,
) -> float:
    scratch, nats = np.empty((_ROWS_PER_WORD, len(start))), np.empty(_ROWS_PER_WORD)
    total = 0.0
    for w in range(len(words)):
        first = _ROWS_PER_WORD * w
        n_rows = min(_ROWS_PER_WORD, len(row_weights) - first)
        shares = scratch[:n_rows]
        _score_word(words, observed, w, log_odds, log_absent, start, shares, nats[:n_rows])
        for row in range(n_rows):
            weight = row_weights[first + row]
            total += weight * nats[row]
            for k in range(len(start)):
                shares[row, k] *= weight
            mass += shares[row]
        for i in range(words.shape[1]):
            _add_rows_to_total(words[w, i], shares, ones[i])
            if len(observed):
                _add_rows_to_total(_mark_missing(observed[w, i], n_rows), shares, missing[i])
    return total
