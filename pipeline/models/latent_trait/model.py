"""Latent-trait model: binary items that depend on a few Gaussian traits through logistic curves.

Model: x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_i·x + b_i), items independent given x (M. E. Tipping,
"Probabilistic visualisation of high-dimensional binary data", NIPS 1998).

Fit by EM, with one of four E-steps. `variational`: the paper's, by the bound of Jaakkola & Jordan;
any q; biased, the slopes of strongly dependent items most, and of sparse items towards 0.
`quadrature`: exact marginal likelihood on Gauss–Hermite nodes (Bock & Aitkin 1981), q ≤ 3. `ep`:
nearly that likelihood, by expectation propagation (Minka 2001); any q. `sampling`: the paper's
rival, over fixed random draws of x. `auto` goes on from the variational fit by quadrature, or by
`ep` where q > 3. Steps are extrapolated by SQUAREM.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
w          weights         (n_features, n_components)
b          offsets         (n_features,)
s.e. of w  weights_error   (n_features, n_components)
s.e. of b  offsets_error   (n_features,)
=========  ==============  ================================

Cost a block: n_samples n_features q² a round of the variational E-step, of which a row needs 5 to
20, and of `ep`, which needs 4, each 10 times as long; n_samples n_features n_nodes by quadrature.
Passes: tens to hundreds.
Missing values are left out of a row's likelihood, which is right also where observed values decide
which are missing; not where the missing ones themselves do.
Not identifiable: rotations of x; columns of w are its principal axes, the entry of largest size
positive.
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
    record_held_out_score,
    run_e_step_with_held_out,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.latent_trait.checks import (
    check_settings,
    restart_empty_components,
    warn_about_component_limit,
)
from pipeline.models.latent_trait.em import (
    LatentTraitParams,
    e_step,
    m_step,
    make_params,
    variational_posterior,
)
from pipeline.models.latent_trait.finish import add_fit_information, finish_fit
from pipeline.models.latent_trait.information import (
    choose_row_share,
    summarize_information,
    summarize_scores,
)
from pipeline.models.latent_trait.nodes import (
    NODES_PER_AXIS_LIMITS,
    NodeGrid,
    begin_finer_stage,
    choose_first_grid,
    grid_from_working,
    has_likelihood,
    is_variational,
    nodes_from_working,
)
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.centred_points import posterior_by_quadrature, posterior_by_sampling
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    draw_nodes,
)
from pipeline.numerics.logistic.logistic_sites import ep_posterior
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_DEFAULT_DRAWS = 500
_FIRST_STAGE_TOL = 1e-4  # of a bound that another estimator goes on from


@dataclass(frozen=True)
class LatentTrait(Model):
    """Hyperparameters of the latent-trait model.

    Attributes
    ----------
    n_components
        Number of traits; None chooses it by the objective of held-out rows.
    estimator
        `auto`, `variational`, `quadrature` (up to 3 components), `ep` (expectation propagation) or
        `sampling`. `auto` is quadrature up to 3 components and `ep` beyond, from where the
        variational fit ends.
    nodes
        Nodes of an axis for quadrature, draws for sampling; None begins with 41, 21 or 15 for 1, 2
        or 3 components and goes up to 300, 61 or 21 where items are steep or rows' posteriors
        narrow, and takes 500 draws.
    prior_precision
        Of a normal prior on the weights; above 0 it keeps separable items finite.
    equal_slopes
        `yes` gives all items one weight; one component, by quadrature or sampling.
    constant_features
        `refuse` them, or `pin` them: weights of 0 and the offset of their margin.
    acceleration
        `squarem` or `none`.
    rotation
        What the weights for reading are turned to: `principal` axes, `varimax` or `promax`.
    errors
        How standard errors are made: by the observed information (`louis`), by the `crossproduct`
        of scores, which more than 3 components always have, by both (`sandwich`, right also where
        the model is not); `none`. The bound and sampling, whose own error is larger, have none.
    max_iter
        Passes at the most, of each number of components tried and of each estimator.
    tol
        Change of the objective per row, relative where that is above 1, in the last three passes
        and in all that are to come, at which to stop; the beginning of `auto` stops at 1e-4.
    """

    name: ClassVar[str] = "latent-trait"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[LatentTraitParams]] = LatentTraitParams
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
        "covariance": ("component", "component_j"),
    }
    former: ClassVar[tuple[str, ...]] = ("polish",)
    n_components: int | None = 2
    estimator: Literal["auto", "variational", "quadrature", "ep", "sampling"] = "auto"
    nodes: int | None = None
    prior_precision: float = 0.0
    equal_slopes: Literal["no", "yes"] = "no"
    constant_features: Literal["refuse", "pin"] = "refuse"
    acceleration: Literal["squarem", "none"] = "squarem"
    rotation: Literal["principal", "varimax", "promax"] = "principal"
    errors: Literal["louis", "sandwich", "crossproduct", "none"] = "louis"
    max_iter: int = 500
    tol: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the sums over nodes, or of the curvatures, of the tasks under way."""
        q = self.n_components or n_features
        width = (q + 1) * (q + 2)
        if self.estimator in ("auto", "ep"):
            width *= 2
        if self.estimator not in ("variational", "ep"):
            width = max(width, 2 * self._n_nodes(min(q, MAX_COMPONENTS)))
        return 8 * n_features * width * 4 * n_threads

    def _n_nodes(self, n_components: int) -> int:
        if self.estimator == "sampling":
            return self.nodes or _DEFAULT_DRAWS
        return int((self.nodes or NODES_PER_AXIS_LIMITS[n_components]) ** n_components)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the margins; weights begin at random, offsets with the margins.

        Raises
        ------
        FitError
            If a feature is constant or never observed, or there are as many components as features.
        """
        observed, ones = pool_margins(first)
        n_features = len(ones)
        if self.n_components is not None and self.n_components >= n_features:
            raise FitError(
                f"--components: Expected fewer than the {n_features} features, "
                f"got {self.n_components}."
            )
        constant = np.flatnonzero((ones == 0) | (ones == observed))
        if constant.size and self.constant_features == "refuse":
            raise FitError(
                "Expected features that vary, got constant ones: {features}. Leave them out, "
                "or pin them by --set constant_features=pin.",
                constant.tolist(),
            )
        weights = 0.5 * rng.standard_normal((n_features, self.n_components or 1))
        weights[constant] = 0.0
        offsets = scipy.special.logit(np.clip(ones, 0.5, observed - 0.5) / observed)
        auxiliary = {
            "constant": constant,
            "margins": offsets,
            "seed": rng.integers(2**63, size=1),
            "n_rows": np.array(first.n_samples),
        }
        text = "constant, pinned at their margins: {features}"
        noted = (FitWarning(text, tuple(constant.tolist())),) if constant.size else ()
        state = FitState(make_params(weights, offsets), auxiliary=auxiliary, warnings=noted)
        if self.n_components is None:
            return self._begin_stage(state, weights, HELD_OUT_SHARE, self._last_estimator(1))
        begins = self.estimator == "auto" and self.equal_slopes == "no"
        last = self._last_estimator(self.n_components)
        return self._begin_stage(state, weights, 0.0, "variational" if begins else last)

    def _last_estimator(self, n_components: int) -> str:
        if self.estimator != "auto":
            return self.estimator
        return "quadrature" if n_components <= MAX_COMPONENTS else "ep"

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Begin a stage: other weights, another E-step or other rows."""
        params, q = make_params(weights, state.params.offsets), weights.shape[1]
        working = {"held_out": np.array(held_out)}
        if estimator == "quadrature":
            grid = NodeGrid(self.nodes, q) if self.nodes else choose_first_grid(weights)
            working |= grid.working()
        elif estimator == "sampling":
            rng = np.random.default_rng(state.auxiliary["seed"])
            working |= draw_nodes(self.nodes or _DEFAULT_DRAWS, q, rng)._asdict()
        elif estimator == "ep":
            working["by_sites"] = np.array(1)
        return replace(state, params=params, working=working)

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Begin the last stage where an earlier fit ended, on the axes of its last pass."""
        constant, margins = state.auxiliary["constant"], state.auxiliary["margins"]
        axes = np.eye(params.weights.shape[1]) if params.axes is None else params.axes
        weights, offsets = params.weights @ axes.T, params.offsets.copy()
        weights[constant], offsets[constant] = 0.0, margins[constant]
        at = replace(state, params=replace(params, offsets=offsets))
        return self._begin_stage(at, weights, 0.0, self._last_estimator(weights.shape[1]))

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Do the E-step of a block's rows; those held out are scored instead."""
        one = partial(e_step, params, nodes_from_working(working), "by_sites" in working)
        return run_e_step_with_held_out(one, float(working["held_out"]), block, rng)

    def objective(self, params: LatentTraitParams, statistics: Sums) -> float:
        """Give the log-likelihood of a row, its bound or estimate, less the prior's share: nats."""
        penalty = 0.5 * self.prior_precision * float((params.weights**2).sum())
        return (statistics.objective - penalty) / statistics.n_samples

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Judge the bound's stage sooner where another one follows it."""
        is_beginning = self.estimator == "auto" and is_variational(state.working)
        return ObjectiveCriterion(self.max_iter, max(self.tol, is_beginning * _FIRST_STAGE_TOL))

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Do the M-step; constant features stay where they are."""
        nodes, is_equal = nodes_from_working(state.working), self.equal_slopes == "yes"
        packed, diverging = m_step(state.params, nodes, statistics, self.prior_precision, is_equal)
        constant = state.auxiliary["constant"]
        packed[constant], diverging[constant] = 0.0, False
        packed[constant, -1] = state.auxiliary["margins"][constant]
        if (grid := grid_from_working(state.working)) is not None:
            diverging |= grid.is_diverging(packed[:, :-1])
        auxiliary = {**state.auxiliary, "diverging": np.flatnonzero(diverging)}
        return replace(state, params=state.params.with_free_parameters(packed), auxiliary=auxiliary)

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Give weights and offsets side by side, (n_features, n_components + 1)."""
        return params.free_parameters

    def unpack_params(self, params: LatentTraitParams, packed: Array, n_samples: int) -> Any:
        """Undo `packed`."""
        return params.with_free_parameters(packed)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Go on with more components, with all rows, from the bound to what is better, finer."""
        if state.working["held_out"] > 0:
            return self._add_component(state, statistics)
        if self.estimator == "auto" and is_variational(state.working):
            weights = restart_empty_components(
                state.params.weights, _component_rng(state), state.auxiliary["constant"]
            )
            return self._begin_stage(state, weights, 0.0, self._last_estimator(weights.shape[1]))
        return begin_finer_stage(state, statistics) if self.nodes is None else None

    def _add_component(self, state: FitState, statistics: Sums) -> FitState:
        """Add a component while that helps rows held out; then fit all rows with the best."""
        auxiliary, is_best = record_held_out_score(state.params, state.auxiliary, statistics)
        state = replace(state, auxiliary=auxiliary)
        n_features, q = state.params.weights.shape
        most = MAX_COMPONENTS if self.estimator == "quadrature" else n_features - 1
        if is_best and q < min(most, n_features - 1):
            column = 0.5 * _component_rng(state).standard_normal((n_features, 1))
            column[state.auxiliary["constant"]] = 0.0
            weights = np.column_stack([state.params.weights, column])
            return self._begin_stage(state, weights, HELD_OUT_SHARE, self._last_estimator(q + 1))
        if is_best and q == most:
            state = replace(state, warnings=(*state.warnings, warn_about_component_limit(q)))
        state = replace(state, params=get_best_params(LatentTraitParams, auxiliary))
        weights = state.params.weights
        return self._begin_stage(state, weights, 0.0, self._last_estimator(weights.shape[1]))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Turn the weights, and say what is in doubt."""
        q = state.params.weights.shape[1]
        estimator = "variational" if is_variational(state.working) else self._last_estimator(q)
        return finish_fit(self, state, statistics, estimator)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Ask for standard errors, and by quadrature for fit statistics, of likelihoods alone.

        What a bound and random draws put an estimate off by is no error that rows tell.
        """
        if self.errors == "none" or not has_likelihood(state.working):
            return None
        n_rows, shape = int(state.auxiliary["n_rows"]), state.params.weights.shape
        share = choose_row_share(n_rows, shape, self.errors)
        return {**state.working, "share": np.array(share)}

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Sum information about the parameters, residuals and counts."""
        share, nodes = float(working["share"]), nodes_from_working(working)
        if nodes is None:
            return summarize_scores(params, share, block, rng)
        return summarize_information(params, nodes, share, block, rng)

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, and how well items and pairs fit."""
        return add_fit_information(self, state, statistics)

    def transform(
        self, params: LatentTraitParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give the posterior of x: `mean`, `variance` (n_samples, n_components), `covariance`.

        By quadrature for up to 3 components, else by expectation propagation: with 10 traits behind
        16 x 16 digits its means are 0.005 standard deviations off in the median and 0.06 at most,
        its variances 0.98 of the true ones in the median and 0.74 at least.
        """
        X, observed = block.unpack_values(), block.unpack_mask()
        if params.weights.shape[1] <= MAX_COMPONENTS:
            found: Any = posterior_by_quadrature(X, observed, params.items)
        else:
            found = ep_posterior(X, observed, params.weights, params.offsets)
        variance = np.diagonal(found.covariance, axis1=1, axis2=2)
        return {"mean": found.mean, "variance": variance, "covariance": found.covariance}

    def lower_bound(self, params: LatentTraitParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Give the variational lower bound on log P(t) of each row in nats, (n_samples,)."""
        return variational_posterior(params, block).bound

    def log_likelihood(
        self, params: LatentTraitParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Give log P(t) of each row, by quadrature for up to 3 components, else by draws."""
        X, observed = block.unpack_values(), block.unpack_mask()
        if params.weights.shape[1] <= MAX_COMPONENTS:
            found = posterior_by_quadrature(X, observed, params.items)
            nats, error = found.log_likelihood, found.standard_error
            return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)
        found = posterior_by_sampling(X, observed, params.items, rng, block.rows)
        return LogLikelihood(found.log_likelihood, found.standard_error)

    def sample(
        self,
        params: LatentTraitParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features); segments do not matter."""
        codes = rng.standard_normal((n_samples, params.weights.shape[1]))
        uniform = rng.random((n_samples, len(params.weights)))
        return (uniform < self.reconstruct(params, codes)).astype(np.uint8)

    def reconstruct(
        self, params: LatentTraitParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Give P(t = 1 | x), (n_samples, n_features); segments do not matter."""
        probabilities: Array = scipy.special.expit(codes @ params.weights.T + params.offsets)
        return probabilities


def _component_rng(state: FitState) -> np.random.Generator:
    """Draws for components that are added to as many as there are."""
    return np.random.default_rng([int(state.auxiliary["seed"][0]), state.params.weights.shape[1]])
