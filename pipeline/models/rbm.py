"""Restricted Boltzmann machine: bits that depend on hidden bits, and hidden bits on bits.

Model: P(x, h) = exp(xᵀWh + bᵀx + cᵀh) / Z (M. Sugiyama, "Introduction to statistical machine
learning", 2016, eqs 36.6 and 36.7; P. Smolensky 1986). Within each layer, units are independent
given the other layer: P(h_j = 1 | x) = σ(c_j + Σ_i x_i W_ij), P(x_i = 1 | h) = σ(b_i + Σ_j W_ij
h_j).

Fit by maximum likelihood if few units are hidden (`boltzmann_moments`): EM, in which both steps are
exact, from a few random starts. Each pass runs the E-step, and SQUAREM accelerates the passes.

Otherwise fit by contrastive divergence (figure 36.13; G. E. Hinton, Neural Computation 14, 2002):
steps along ⟨x hᵀ⟩ of a batch minus ⟨x hᵀ⟩ of chains. The chains take `steps` Gibbs steps, from the
rows of the batch (`cd`) or from their state after the previous batch (`pcd`; T. Tieleman, ICML
2008).
`pipeline.learning.training` describes the steps; the learning rate decays because after long steps
the chains no longer represent the model. All tasks start with the same persistent chains, and after
the pass each chain continues from the state it has in a randomly chosen task. The score of a pass
is the pseudo-likelihood. It hardly depends on how probable distant groups of rows are, about which
the chains make the largest errors at high rates. Training therefore ends with cooling passes, whose
steps shrink to 0, with more chains and more draws of the missing values. The result is the mean of
the parameters after these passes (B. T. Polyak, A. B. Juditsky, "Acceleration of stochastic
approximation by averaging", SIAM J. Control Optim. 30, 1992), and the last pass scores it. If a
layer has at most 16 units, up to 100 exact passes follow.

Missing values are drawn in every step from the model given the observed values; codes and
pseudo-likelihoods replace them by their mean field. The likelihood of a row is the marginal of its
observed values: exact if at most 10 are missing, or for at most 10 hidden units; otherwise
estimated with 100 draws of its hidden units. This is also right if observed values decide which
values are missing.

=========  ==============  =====================================================
symbol     field           shape
=========  ==============  =====================================================
W          weights         (n_features, n_components)
b          visible_biases  (n_features,)
c          hidden_biases   (n_components,)
b0         log_odds        (n_features,): of the data, where annealing starts
log Z      log_z           (): with the standard error `log_z_error`, 0 if exact
=========  ==============  =====================================================

The biases are weights of a unit that is always on: E = −(x, 1)ᵀ Θ (h, 1) with Θ = [[W, b], [cᵀ,
0]]. So one matrix product gives the whole gradient: ⟨x hᵀ⟩ of the rows minus ⟨x hᵀ⟩ of the chains.
Gradient and step use the centred model, E = −(x − μ)ᵀ W (h − λ) − …, in which features that are
mostly on, or mostly off, do not drag all weights along (J. Melchior, A. Fischer, L. Wiskott, "How
to center deep Boltzmann machines", JMLR 17, 2016, eqs 11 to 13). The step must be centred as well,
because Adam scales each number separately and would undo the centring of the gradient. Single
precision is enough for steps.

log Z is exact (by enumeration) if a layer has at most 20 units; otherwise it is estimated once
after the fit by annealed importance sampling, and all rows share its error (R. Salakhutdinov, I.
Murray, "On the quantitative analysis of deep belief networks", ICML 2008, section 4). Chains start
from independent features (weights 0, biases b0) at β = 0 and reach the machine at β = 1 through
p_β(x) ∝ exp((1 − β) b0ᵀx + β bᵀx) Π_j (1 + exp(β a_j)), a = Wᵀx + c. Each chain accumulates the log
weight Σ log p_β'(x) / p_β(x); the mean of the weights is an unbiased estimate of Z / Z_0.

Cost per block: (10 + 4 `steps`) n_samples n_features n_components multiplications. Passes: tens. Of
an exact fit, 4 n_samples n_features n_components, and for rows with missing values n_samples
n_features 2^n_components. Passes: 40 to 300 (chains 100 to 500), more if there are too many hidden
units.
Not identifiable: the order of the hidden units, and which state of each unit is 1: h_j → 1 − h_j is
compensated by W_ij → −W_ij, c_j → −c_j, b_i → b_i + W_ij. Contrastive divergence leaves a bias if
the chains mix slowly; `pcd` and more `steps` reduce it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.arrays import Array, Bits, Singles
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.central_work import label_map
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.learning.training import (
    GradientLearner,
    GradientTraining,
    compute_judged_log_likelihood,
    train_on_blocks,
)
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.gradient import CONTRASTIVE_RATES, GradientModel
from pipeline.models.settings import choose_number_of_starts, setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.logistic.logistic_units import (
    count_draw_words,
    fill_draws,
    fill_probabilities,
    row_states,
)
from pipeline.numerics.networks.boltzmann_moments import (
    HIDDEN_STATES_PER_VALUE_STATE,
    MAX_CELLS,
    compute_model_moments,
    match_moments,
    sum_row_moments,
)
from pipeline.numerics.networks.boltzmann_rows import (
    BoltzmannMachine,
    add_softplus,
    estimate_observed_log_weight,
    hidden_probabilities,
    log_mean_exp,
    minus_free_energy,
    pseudo_likelihoods,
)
from pipeline.numerics.networks.gradient_steps import apply_centred_step, centre_gradient
from pipeline.numerics.networks.ising_states import resample
from pipeline.numerics.networks.layered_network import Layer
from pipeline.numerics.networks.unit_states import list_states
from pipeline.params import array_field, optional_array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import StepSums

RowNumbers = NDArray[np.int64]

MAX_DEFAULT_COMPONENTS = 64
"""Largest number of hidden units that is chosen if none is given."""
# Standard deviations of the first inputs of hidden units.
_FIRST_INPUTS, _FIRST_EXACT_INPUTS = 0.5, 1.0
_SMOOTHING = 0.5
_MISSING_VALUE_DRAWS = 100
# For sampling: number of chains, temperatures of the annealing, Gibbs steps between two rows.
_SAMPLING_CHAINS, _BURN_IN, _SWEEPS_BETWEEN_SAMPLES = 5000, 500, 10
# Gibbs steps of the missing values before a step. Few leave them too near their features' means.
_MISSING_DRAWS, _COOLING_MISSING_DRAWS = 3, 8
_MAX_ENUMERATED_UNITS = 20  # units of the smaller layer up to which Z is exact
_STATES_PER_TASK, _STATES_AT_ONCE = 1 << 16, 1 << 12
_CHAINS_PER_TASK = 100
# Passes, unless the chains have taken few steps by then.
_MAX_PASSES, _MAX_PASSES_OF_FEW_STEPS, _MIN_STEPS, _COOLING_PASSES = 100, 1000, 200_000, 20
# The default rate is for so many steps in a pass; with fewer it is larger, up to a factor.
_STEPS_OF_RATE, _MAX_RATE_FACTOR = 150, 4.0
# Exact fits: passes of all starts and of one, L-BFGS steps per pass, and arrays of a task.
_MAX_EXACT_PASSES, _SHORT_PASSES, _M_STEPS, _EXACT_ARRAYS = 1000, 15, 10, 6
# They are fast up to so many units of the smaller layer, or hidden units if values are missing.
_MAX_EXACT_UNITS, _MAX_EXACT_UNITS_IF_INCOMPLETE = 12, 10
# Exact passes that end other fits: how many, up to so many units, and states of incomplete rows
# times units, of all passes.
_MIN_FINAL_PASSES, _MAX_FINAL_PASSES, _FINAL_M_STEPS = 10, 100, 5
_MAX_FINAL_UNITS, _FINAL_WORK = 16, 1 << 32
# In cooling passes, there are this many times as many chains, fewer the larger the machine is.
_MIN_CHAIN_FACTOR, _MAX_CHAIN_FACTOR, _COOLING_WORK = 2, 32, 1 << 19

_kernel = njit(nogil=True, cache=True, error_model="numpy")


@dataclass(frozen=True)
class RBMParams:
    """Parameters; the module's table gives shapes."""

    weights: Array = array_field("feature", "component")
    visible_biases: Array = array_field("feature")
    hidden_biases: Array = array_field("component")
    log_odds: Array = array_field("feature")
    log_z: Array | None = optional_array_field()
    log_z_error: Array | None = optional_array_field()

    @property
    def machine(self) -> BoltzmannMachine:
        """The learned parameters, as the kernels take them."""
        return BoltzmannMachine(self.weights, self.visible_biases, self.hidden_biases)

    @property
    def shares(self) -> Array:
        """Share of ones of each feature, (n_features,)."""
        shares: Array = expit(self.log_odds)
        return shares

    @property
    def baseline_log_likelihood(self) -> float:
        """Expected log-likelihood per row of independent features, nats."""
        p = self.shares
        return float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())

    @property
    def theta(self) -> Array:
        """Θ = [[W, b], [cᵀ, 0]], (n_features + 1, n_components + 1)."""
        above = np.column_stack([self.weights, self.visible_biases])
        return np.vstack([above, np.append(self.hidden_biases, 0.0)])

    def add_change(self, change: NDArray[Any]) -> RBMParams:
        """Return the parameters plus a change of Θ."""
        return self.with_theta(self.theta + change)

    def with_theta(self, theta: Array) -> RBMParams:
        """Return the parameters with another Θ."""
        return replace(
            self,
            weights=theta[:-1, :-1],
            visible_biases=theta[:-1, -1],
            hidden_biases=theta[-1, :-1],
        )


@dataclass(frozen=True)
class ChainSteps(StepSums):
    """Sums over rows, plus persistent chains, which are not sums.

    For each chain, `chains` (n_chains, n_features) holds the state from the task whose key in
    `chain_keys` (n_chains,) is smallest.
    """

    def merge(self, other: Self) -> Self:
        """Add the sums, and choose between the chains."""
        merged, left, right = super().merge(other), self.values, other.values
        if "chains" not in left:
            return merged
        is_left = left["chain_keys"] <= right["chain_keys"]
        chosen = {
            "chains": np.where(is_left[:, None], left["chains"], right["chains"]),
            "chain_keys": np.minimum(left["chain_keys"], right["chain_keys"]),
        }
        return replace(merged, values={**merged.values, **chosen})


@dataclass(frozen=True)
class RestrictedBoltzmannMachine(GradientModel):
    """Hyperparameters of the restricted Boltzmann machine.

    Attributes
    ----------
    n_components
        Number of hidden units. None takes one per feature, at most 64.
    method
        Maximum likelihood (exact), or contrastive divergence with chains that start at the rows of
        each batch (cd) or where they were after the previous batch (pcd). auto is exact if that is
        fast and `sparsity` is 0, else pcd, with exact passes at the end if they are possible.
        Settings of steps, batches and chains are of cd and pcd.
    starts
        Number of random starts of the exact fit. None takes 3, or 10 if values are missing.
    steps
        Gibbs steps of the chains per batch.
    weight_decay
        Factor of the weights that is subtracted from their gradient.
    sparsity
        Strength with which the mean of each hidden unit is pulled to `target`; not for exact fits.
    target
        Mean activation of hidden units if `sparsity` is above 0.
    chains
        Number of chains in the estimate of log Z.
    temperatures
        Number of annealing steps of each of these chains.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer and the number of
        steps in a pass.
    max_iter
        Maximum number of passes over the data. None takes 1,000 for exact fits; 100 to 1,000 for
        others, more if there are few steps in a pass; and at most 100 for exact passes at the end.
    """

    name: ClassVar[str] = "rbm"
    indeterminacy: ClassVar[str] = "the order of the hidden units, and which state of each is 1"
    support: ClassVar[Support] = Support(("binary", "ordinal"), splits_levels=True)
    unlinked_effect: ClassVar[str] = (
        "how they depend on each other is not determined: predict only within a part"
    )
    statistics: ClassVar[type[ChainSteps]] = ChainSteps
    default_rates: ClassVar[Mapping[str, float]] = CONTRASTIVE_RATES
    params: ClassVar[type[RBMParams]] = RBMParams
    acceleration: ClassVar[str] = "squarem"
    method: Literal["auto", "exact", "cd", "pcd"] = "auto"
    starts: int | None = setting(None, minimum=1, kw_only=True)
    steps: int = setting(1, minimum=1)
    momentum: float = setting(0.5, minimum=0, below=1, kw_only=True)
    patience: int = setting(50, minimum=1, kw_only=True)
    max_iter: int | None = setting(None, minimum=1, kw_only=True)  # type: ignore[assignment]
    weight_decay: float = setting(0.0, minimum=0)
    sparsity: float = setting(0.0, minimum=0)
    target: float = setting(0.1, above=0, below=1)
    chains: int = setting(500, minimum=2)
    temperatures: int = setting(2000, minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "exact" and self.sparsity:
            raise FitError(
                "{sparsity} needs {method=cd} or {method=pcd}, but the method is exact.",
                parameter="sparsity",
            )

    @property
    def _training(self) -> GradientTraining:
        return self._make_training(_MAX_PASSES)

    def _make_training(self, default_passes: int) -> GradientTraining:
        n_passes = self.max_iter or default_passes
        n_cooling = max(min(_COOLING_PASSES, n_passes // 5), 1)
        training = GradientTraining.from_model(self, self.default_rates, n_cooling)
        return replace(training, max_iter=n_passes)

    def _get_stage_training(self, state: FitState) -> GradientTraining:
        training = self._make_training(int(state.working.get("default_passes", _MAX_PASSES)))
        factor = float(state.working.get("rate_factor", 1.0))
        rate, default_rate = training.rate * factor, training.default_rate * factor
        return replace(training, rate=rate, default_rate=default_rate)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's parameters, gradient, optimizer memory and units."""
        n_hidden = self.n_components or MAX_DEFAULT_COMPONENTS
        numbers = 8 * (n_features + 1) * (n_hidden + 1)
        batch = self.batch or 100
        n_places = batch * (1 + _choose_chain_factor(batch, n_features * n_hidden))
        units = 10 * max(n_places, 2 * self.chains) * (n_features + n_hidden)
        exact = 0 if self.method in ("cd", "pcd") else 8 * _EXACT_ARRAYS * MAX_CELLS
        return (n_threads + 1) * (10 * numbers + units + exact)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Start with random weights, and biases that roughly reproduce the margins."""
        observed, ones = pool_margins(first)
        log_odds = logit((ones + _SMOOTHING) / (observed + 2 * _SMOOTHING))
        n_hidden = self.n_components or min(len(ones), MAX_DEFAULT_COMPONENTS)
        warnings = make_constant_feature_warnings(observed, ones)
        is_free = (ones > 0) & (ones < observed)
        if self._is_exact(len(ones), n_hidden, first):
            n_starts = choose_number_of_starts(self.starts, is_complete=first.is_complete)
            return self._begin_exact_fit(log_odds, is_free, n_hidden, n_starts, warnings, rng)
        params = _draw_params(log_odds, n_hidden, _FIRST_INPUTS, rng)
        baseline = params.baseline_log_likelihood
        state = self._make_initial_state(
            params, first.n_rows, params.theta.size, baseline, warnings
        )
        n_steps = first.n_rows / int(state.working["batch"])
        n_passes = min(max(int(_MIN_STEPS / n_steps), _MAX_PASSES), _MAX_PASSES_OF_FEW_STEPS)
        working = {**state.working, "default_passes": np.array(n_passes)}
        n_final = self._count_final_passes(len(ones), n_hidden, first)
        auxiliary = {"is_free": is_free, "final_passes": np.array(n_final)} if n_final else {}
        state = replace(state, working=working, auxiliary=auxiliary)
        if self.rate is None:
            factor = min(max(_STEPS_OF_RATE / n_steps, 1.0), _MAX_RATE_FACTOR)
            rates = {"rate": state.working["rate"] * factor, "rate_factor": np.array(factor)}
            state = replace(state, working={**state.working, **rates})
        chains = self._draw_first_chains(params.shares, state.working, rng)
        return replace(state, working={**state.working, "chains": chains})

    def _is_exact(self, n_features: int, n_hidden: int, first: FeatureCounts) -> bool:
        """Return whether the likelihood is maximised exactly; refuse what would take too long.

        Each missing value doubles the states of a row, up to the states of the hidden units.
        """
        if self.method in ("cd", "pcd") or self.sparsity:
            return False
        n_units = min(n_features, n_hidden) if first.is_complete else n_hidden
        if self.method == "exact" and n_units > _MAX_ENUMERATED_UNITS:
            raise FitError(
                f"{{method=exact}} takes at most {_MAX_ENUMERATED_UNITS} hidden units, but there "
                f"are {n_hidden}. Use {{method=pcd}}, or fewer {{components}}.",
                parameter="method",
            )
        limit = _MAX_EXACT_UNITS if first.is_complete else _MAX_EXACT_UNITS_IF_INCOMPLETE
        return self.method == "exact" or n_units <= limit

    def _count_final_passes(self, n_features: int, n_hidden: int, first: FeatureCounts) -> int:
        """Return by how many passes of maximum likelihood contrastive divergence is followed.

        With many missing values, a pass takes long.
        """
        n_units = min(n_features, n_hidden) if first.is_complete else n_hidden
        if self.method != "auto" or self.sparsity or n_units > _MAX_FINAL_UNITS:
            return 0
        if first.is_complete:
            return _MAX_FINAL_PASSES
        observed = float(pool_margins(first)[0].sum())
        n_missing = int(n_features - observed / max(first.n_rows, 1)) + 1
        n_states = min(1 << n_hidden, HIDDEN_STATES_PER_VALUE_STATE << n_missing)
        n_passes = min(_FINAL_WORK // (first.n_rows * n_features * n_states), _MAX_FINAL_PASSES)
        return n_passes if n_passes >= _MIN_FINAL_PASSES else 0

    def _begin_exact_fit(
        self,
        log_odds: Array,
        is_free: NDArray[np.bool_],
        n_hidden: int,
        n_starts: int,
        warnings: tuple[FitWarning, ...],
        rng: np.random.Generator,
    ) -> FitState:
        """Return a state with several starts; constant features have no weights."""
        starts = []
        for _ in range(n_starts):
            params = _draw_params(log_odds, n_hidden, _FIRST_EXACT_INPUTS, rng)
            params = _fix_constant_features(params, is_free)
            auxiliary = {"is_free": is_free, "short": np.array(n_starts > 1)}
            working = {"exact": np.array(True)}
            starts.append(FitState(params, working, auxiliary, warnings=warnings))
        return replace(starts[0], starts=() if n_starts == 1 else tuple(starts))

    def _draw_first_chains(
        self, shares: Array, working: Arrays, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Draw the persistent chains from independent features; no chains for `cd`."""
        n_chains = int(working["batch"]) if self.method != "cd" else 0
        return (rng.random((n_chains, len(shares))) < shares).astype(np.uint8)

    def warm_start(self, state: FitState, params: RBMParams) -> FitState:
        """Start from the parameters of an earlier fit."""
        params = replace(params, log_odds=state.params.log_odds, log_z=None, log_z_error=None)
        return self.select_start(replace(state, params=params))

    def select_start(self, state: FitState) -> FitState:
        """Continue with the best start until it has converged."""
        auxiliary = {name: a for name, a in state.auxiliary.items() if name != "short"}
        return replace(state, auxiliary=auxiliary, starts=())

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop exact fits on the change of the likelihood, others after waiting in vain."""
        if "exact" not in state.working:
            return super().get_convergence_criterion(state)
        n_passes = self.max_iter or int(state.auxiliary.get("final_passes", _MAX_EXACT_PASSES))
        if state.auxiliary.get("short", False):
            n_passes = min(n_passes, _SHORT_PASSES)
        return ObjectiveCriterion(n_passes, self.tol, float(state.auxiliary.get("weight", 1)))

    def pack_params(self, params: RBMParams) -> Array:
        """Return Θ, flattened."""
        return params.theta.ravel()

    def unpack_params(self, params: RBMParams, packed: Array, weight: float) -> RBMParams:
        """Return the parameters with this Θ."""
        theta = packed.reshape(len(params.visible_biases) + 1, -1)
        return params.with_theta(theta)

    def learn(
        self,
        params: RBMParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> ChainSteps | None:
        """Take steps through a task's rows; return the change of Θ and the score.

        For exact fits, return the sums of the E-step.
        """
        if "exact" in working:
            parts = [_sum_block(params, block) for block in blocks()]
            return reduce(ChainSteps.merge, parts) if parts else None
        theta, shares = params.theta.astype(np.float32), params.shares.astype(np.float32)
        rule = self._make_rule(working)
        learner = ContrastLearner(rule, theta, shares, self._training, working, rng)
        sums = train_on_blocks(learner, partial(_pseudo_score, params), blocks(), working, rng)
        if sums is None:
            return None
        values = {**sums.values, "chains": learner.chains, "chain_keys": learner.chain_keys}
        return ChainSteps(sums.n_rows, sums.weight, sums.objective, values)

    def _make_rule(self, working: Arrays) -> ContrastRule:
        n_draws = _COOLING_MISSING_DRAWS if working["cooling"] > 0 else _MISSING_DRAWS
        return ContrastRule(self.steps, n_draws, self.weight_decay, self.sparsity, self.target)

    def _score_scale(self, params: RBMParams) -> float:
        return params.baseline_log_likelihood

    def update(
        self,
        state: FitState,
        statistics: ChainSteps,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Apply the mean change of all tasks, or return to the best pass with new chains.

        The last cooling pass takes no steps, but scores the mean of the others. For exact fits,
        run the M-step.
        """
        if "exact" in state.working:
            return self._run_m_step(state, statistics)
        moved = super().update(state, statistics, map_items, rng)
        chains, returns = statistics.values["chains"], moved.params is state.best
        if returns:
            chains = self._draw_first_chains(state.params.shares, moved.working, rng)
        if moved.working["cooling"] > 0:
            factor = _choose_chain_factor(int(moved.working["batch"]), moved.params.weights.size)
            n_chains = factor * int(moved.working["batch"]) if self.method != "cd" else 0
            chains = np.resize(chains, (n_chains, chains.shape[1]))  # repeats them
        moved = replace(moved, working={**moved.working, "chains": chains})
        return self._average_params(moved, int(state.working["cooling"]), returns)

    def _run_m_step(self, state: FitState, statistics: ChainSteps) -> FitState:
        auxiliary = {**state.auxiliary, "weight": np.array(statistics.weight)}
        machine = match_moments(
            state.params.machine,
            statistics.values["moments"] / statistics.weight,
            auxiliary["is_free"],
            self.weight_decay,
            _FINAL_M_STEPS if "final_passes" in auxiliary else _M_STEPS,
        )
        params = replace(
            state.params,
            weights=machine.weights,
            visible_biases=machine.visible,
            hidden_biases=machine.hidden,
        )
        return replace(state, params=params, auxiliary=auxiliary)

    def objective(self, params: RBMParams, statistics: ChainSteps) -> float:
        """Return the mean score of a row, nats; for exact fits, the penalised log-likelihood."""
        if "moments" not in statistics.values:
            return super().objective(params, statistics)
        penalty = self.weight_decay * float((params.weights**2).sum()) / 2
        return self.mean_log_likelihood(params, statistics) - penalty

    def mean_log_likelihood(self, params: RBMParams, statistics: ChainSteps) -> float:
        """Return the mean log-likelihood, or pseudo-likelihood, of the rows that score the pass."""
        if "moments" not in statistics.values:
            return super().objective(params, statistics)
        log_z = compute_model_moments(params.machine).log_weight
        return float(statistics.objective / statistics.weight) - log_z

    def independent_log_likelihood(self, state: FitState, statistics: ChainSteps) -> float | None:
        """Return that of independent features, of the same rows."""
        if "moments" in statistics.values:
            return state.independent
        return compute_judged_log_likelihood(state.params.shares, statistics)

    def next_stage(self, state: FitState, statistics: ChainSteps) -> FitState | None:
        """Continue a small machine from contrastive divergence by maximum likelihood."""
        if "exact" in state.working or "is_free" not in state.auxiliary:
            return None
        state, kept = self._add_training_warnings(state), ("is_free", "final_passes")
        return replace(
            state,
            params=_fix_constant_features(state.params, state.auxiliary["is_free"]),
            working={"exact": np.array(True)},
            auxiliary={name: state.auxiliary[name] for name in kept},
        )

    def finish(self, state: FitState, statistics: ChainSteps) -> FitState:
        """Add the diagnostics, and a warning if the learning rate was too high."""
        if "exact" not in state.working:
            return super().finish(state, statistics)
        return replace(state, diagnostics=self._diagnose(state))

    def _average_params(self, state: FitState, n_cooling: int, returns: bool) -> FitState:
        """Add the parameters after a cooling pass to their mean; move there before the last pass.

        The k-th pass has the weight k, because parameters still improve. A return to the best pass
        starts the mean anew.
        """
        n_left = self._training.cooling_passes - n_cooling
        if not n_cooling or not n_left:
            return state
        theta = state.params.theta
        mean = theta if n_cooling == 1 or returns else state.auxiliary["mean_theta"]
        mean = mean + (theta - mean) * 2 / (n_cooling + 1)
        state = replace(state, auxiliary={**state.auxiliary, "mean_theta": mean})
        if n_left > 1:
            return state
        params, working = state.params.add_change(mean - theta), {"rate": np.array(0.0)}
        return replace(state, params=params, working={**state.working, **working})

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        n_components = len(state.params.hidden_biases)
        is_exact = "exact" in state.working
        objective = "log-likelihood" if is_exact else "pseudo-likelihood"
        objective += " less penalty" if is_exact and self.weight_decay else ""
        return {"n_components": n_components, "objective_is": objective}

    def prepare(
        self, params: RBMParams, rng: np.random.Generator, map_items: MapFunction
    ) -> RBMParams:
        """Compute log Z by enumeration if a layer is small, else estimate it by annealing."""
        machine, seed = params.machine, int(rng.integers(2**63))
        if is_enumerable(machine):
            log_z, error = enumerate_log_z(machine, map_items), 0.0
        else:
            log_z, error = estimate_log_z(
                machine, params.log_odds, seed, self.chains, self.temperatures, map_items
            )
        return replace(params, log_z=np.array(log_z), log_z_error=np.array(error))

    def transform(
        self, params: RBMParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(h = 1 | x) as `mean`, (n_samples, n_components)."""
        return {
            "mean": hidden_probabilities(params.machine, block.unpack_values(), block.unpack_mask())
        }

    def log_likelihood(
        self, params: RBMParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P of the observed values of each row; `prepare` must have computed log Z."""
        if params.log_z is None or params.log_z_error is None:
            raise FitError(
                "log Z is missing: it is estimated at the end of a fit. Let the fit finish."
            )
        X, observed = block.unpack_values(), block.unpack_mask()
        if observed is None:
            nats = minus_free_energy(params.machine, X)
            error = np.zeros_like(nats)
        else:
            key = rng.stream("missing").key
            nats, error = estimate_observed_log_weight(
                params.machine, X, observed, key, block.rows, _MISSING_VALUE_DRAWS
            )
        return LogLikelihood(nats - params.log_z, error, float(params.log_z_error))

    def pseudo_log_likelihood(self, params: RBMParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return Σ_i log P(x_i | all others) over the observed values of each row, (n_samples,)."""
        return pseudo_likelihoods(params.machine, block.unpack_values(), block.unpack_mask())

    def sample(
        self,
        params: RBMParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows by block Gibbs sampling, (n_samples, n_features); segments are ignored.

        Chains are annealed from independent features and resampled by their weights in the estimate
        of Z. Then each chain yields one row every ten steps.
        """
        key = RowRandom(int(rng.integers(2**63))).key
        n_chains = max(min(n_samples, _SAMPLING_CHAINS), 1)
        chains = run_annealing(params.machine, params.log_odds, key, n_chains, _BURN_IN)
        chains.resample(rng)
        rows = np.empty((n_samples, len(params.visible_biases)), np.uint8)
        for first in range(0, n_samples, n_chains):
            for _ in range(_SWEEPS_BETWEEN_SAMPLES):
                chains.gibbs_step(1.0)
            rows[first : first + n_chains] = chains.units[: n_samples - first]
        return rows

    def reconstruct(
        self, params: RBMParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return σ(b + W codes), (n_samples, n_features); segments are ignored."""
        probabilities: Array = expit(codes @ params.weights.T + params.visible_biases)
        return probabilities


def _draw_params(
    log_odds: Array, n_hidden: int, spread: float, rng: np.random.Generator
) -> RBMParams:
    """Draw weights, with hidden inputs of about this standard deviation around 0.

    Weights that are too small leave the machine on a plateau, near independent features.
    """
    shares = expit(log_odds)
    weights = rng.standard_normal((len(log_odds), n_hidden))
    weights *= spread / np.sqrt((shares * (1 - shares)).sum())
    return RBMParams(weights, log_odds - weights.sum(axis=1) / 2, -shares @ weights, log_odds)


def _fix_constant_features(params: RBMParams, is_free: NDArray[np.bool_]) -> RBMParams:
    """Return the parameters without weights of constant features."""
    weights = np.where(is_free[:, None], params.weights, 0.0)
    visible = np.where(is_free, params.visible_biases, params.log_odds)
    return replace(params, weights=weights, visible_biases=visible)


def _sum_block(params: RBMParams, block: BinaryBlock) -> ChainSteps:
    """Run the E-step on the rows of a block."""
    X, observed = block.unpack_values(), block.unpack_mask()
    log_weight, moments = sum_row_moments(params.machine, X, observed)
    return ChainSteps(len(X), len(X), log_weight, {"moments": moments})


def _choose_chain_factor(n_chains: int, n_weights: int) -> int:
    """Return how many times as many chains cooling passes have."""
    factor = _COOLING_WORK // max(n_chains * n_weights, 1)
    return min(max(factor, _MIN_CHAIN_FACTOR), _MAX_CHAIN_FACTOR)


def _pseudo_score(params: RBMParams, batch: TrainingBatch) -> Array:
    return pseudo_likelihoods(params.machine, batch.X, batch.observed)


@dataclass(frozen=True)
class ContrastRule:
    """How a batch becomes a step: see the settings of `RestrictedBoltzmannMachine`.

    Per batch, `n_steps` is the number of Gibbs steps of the chains, and `n_missing_draws` that of
    the missing values.
    """

    n_steps: int
    n_missing_draws: int
    weight_decay: float
    sparsity: float
    target: float


class UnitDraws:
    """Random draws of some rows; every random word is used once."""

    def __init__(self, key: np.uint64, rows: RowNumbers) -> None:
        self._states, self._first = row_states(key, rows), 0

    def fill(self, inputs: Singles, width: int, out: Singles) -> None:
        """Draw units given their inputs."""
        fill_draws(inputs, width, self._states, self._first, out)
        self._first += count_draw_words(width)


class ContrastLearner(GradientLearner):
    """The parameters Θ, (n_features + 1, n_components + 1), while a task takes steps."""

    def __init__(
        self,
        rule: ContrastRule,
        theta: Singles,
        shares: Singles,
        training: GradientTraining,
        working: Arrays,
        rng: RowRandom,
    ) -> None:
        """Prepare the work space; `theta` is changed in place.

        `shares` (n_features,) is μ, the share of ones per feature. The working state holds the
        initial persistent `chains`, (n_chains, n_features), none if chains start at the rows.
        """
        super().__init__(theta, training, working)
        chains, batch = working["chains"], int(working["batch"])
        self._rule, self._shares, self._n_chains, self._first = rule, shares, len(chains), -1
        self._batch = batch
        self._missing, self._rng = rng.stream("missing"), rng.stream("chains")
        n_places, (n_rows, n_columns) = batch + (len(chains) or batch), theta.shape
        # The rows of a batch end where the chains start, so that both form one matrix.
        self._units = np.ones((n_places, n_rows), np.float32)
        self._hidden = np.empty((n_places, n_columns), np.float32)
        self._units[batch : batch + len(chains), :-1] = chains
        self._draws: UnitDraws | None = None
        # Reused by every step: newly allocated memory would have to be paged in.
        self._hidden_in = np.empty((n_places, n_columns - 1), np.float32)
        self._visible_in = np.empty((n_places, n_rows - 1), np.float32)
        self._gradient, self._change = np.empty_like(theta), np.zeros_like(theta)
        self._flat_gradient, self._flat_change = self._gradient.ravel(), self._change.ravel()
        self._up, self._down = theta[:, :-1], theta[:-1].T

    @property
    def chains(self) -> Bits:
        """State of the persistent chains, (n_chains, n_features)."""
        stop = self._batch + self._n_chains
        return self._units[self._batch : stop, :-1].astype(np.uint8)

    @property
    def chain_keys(self) -> NDArray[np.float64]:
        """Random key per chain, (n_chains,); 2, above all others, if no step was taken."""
        if self._draws is None:
            return np.full(self._n_chains, 2.0)
        keys = self._rng.stream(f"kept, row {self._first}")
        return keys.uniform(np.arange(self._n_chains), 1)[:, 0]

    def _take_step(self, batch: TrainingBatch) -> None:
        middle, rows, n_rows = self._batch, batch.rows, len(batch.rows)
        batch_places = slice(middle - n_rows, middle)
        self._units[batch_places, :-1] = batch.X
        if batch.observed is not None:
            self._fill_missing(batch_places, batch.observed, UnitDraws(self._missing.key, rows))
        chains = slice(middle, middle + (self._n_chains or n_rows))
        both = slice(batch_places.start, chains.stop)
        self._advance_chains(batch_places, chains, rows)
        units, hidden, inputs = self._units[both], self._hidden[both], self._hidden_in[both]
        activity = fill_contrast(inputs, n_rows, hidden)
        gradient = np.matmul(units.T, hidden, out=self._gradient)
        centre_theta_gradient(gradient, self._shares, activity)
        self._regularise(gradient, activity)
        self._optimiser.step(self._flat_change, self._flat_gradient, self.memory, self._rate)
        move_theta(self.theta, self._change, self._shares, activity)

    def _advance_chains(self, batch: slice, chains: slice, rows: RowNumbers) -> None:
        """Take the Gibbs steps, and fill in the inputs of the hidden units of rows and chains."""
        if self._n_chains:
            draws, start = self._get_chain_draws(int(rows[0])), chains
            self._fill_inputs(slice(batch.start, chains.stop))
        else:
            draws, start = UnitDraws(self._rng.key, rows), batch
            self._fill_inputs(batch)
        inputs = self._hidden_in[start]
        for _ in range(self._rule.n_steps):
            self._draw_units(chains, inputs, draws)
            inputs = self._fill_inputs(chains)

    def _get_chain_draws(self, row: int) -> UnitDraws:
        """Return the draws of persistent chains, keyed by the first row of the task."""
        if self._draws is None:
            self._first, numbers = row, np.arange(self._n_chains)
            self._draws = UnitDraws(self._rng.stream(f"row {row}").key, numbers)
        return self._draws

    def _fill_inputs(self, places: slice) -> Singles:
        """Compute the inputs of hidden units."""
        return np.matmul(self._units[places], self._up, out=self._hidden_in[places])

    def _draw_units(self, places: slice, inputs: Singles, draws: UnitDraws) -> None:
        """Draw hidden units given their inputs, then visible units."""
        hidden = self._hidden[places]
        hidden[:, -1] = 1
        draws.fill(inputs, inputs.shape[1], hidden)
        visible_in = np.matmul(hidden, self._down, out=self._visible_in[places])
        draws.fill(visible_in, visible_in.shape[1], self._units[places])

    def _fill_missing(self, places: slice, observed: Bits, draws: UnitDraws) -> None:
        """Draw missing values by Gibbs steps that start from the shares of ones."""
        units, mask = self._units[places, :-1], observed.astype(np.bool_)
        values = units.copy()
        np.copyto(units, self._shares, where=~mask)
        for _ in range(self._rule.n_missing_draws):
            self._draw_units(places, self._fill_inputs(places), draws)
            np.copyto(units, values, where=mask)

    def _regularise(self, gradient: Singles, activity: Singles) -> None:
        rule = self._rule
        if rule.weight_decay:
            gradient[:-1, :-1] -= np.float32(rule.weight_decay) * self.theta[:-1, :-1]
        if rule.sparsity:
            gradient[-1, :-1] += np.float32(rule.sparsity) * (np.float32(rule.target) - activity)


@_kernel
def fill_contrast(inputs: Singles, n_rows: int, out: Singles) -> Singles:
    """Compute the hidden units whose product with the units is the gradient.

    The `n_rows` rows come first, with their probabilities divided by `n_rows`. Then come the
    chains, with minus their probabilities divided by the number of chains. The last column holds
    the divided ones. `inputs` is (n_places, n_hidden) and `out` (n_places, n_hidden + 1).

    Returns
    -------
    Mean probabilities of the rows, (n_hidden,).
    """
    n_hidden = inputs.shape[1]
    activity = np.zeros(n_hidden, np.float32)
    share, chain_share = np.float32(1 / n_rows), np.float32(-1 / (len(inputs) - n_rows))
    out[:n_rows, n_hidden] = share
    out[n_rows:, n_hidden] = chain_share
    fill_probabilities(inputs[:n_rows], n_hidden, out[:n_rows], share)
    fill_probabilities(inputs[n_rows:], n_hidden, out[n_rows:], chain_share)
    for row in range(n_rows):
        for j in range(n_hidden):
            activity[j] += out[row, j]
    return activity


@_kernel
def centre_theta_gradient(gradient: Singles, below: Singles, above: Singles) -> None:
    """Centre the gradient of Θ, in place; see `centre_gradient`."""
    centre_gradient(theta_as_layer(gradient), below, above)


@_kernel
def move_theta(theta: Singles, change: Singles, below: Singles, above: Singles) -> None:
    """Change Θ by a step of the centred model, in place, and reset the step to 0.

    See `apply_centred_step`.
    """
    apply_centred_step(theta_as_layer(theta), theta_as_layer(change), below, above)
    change[:] = 0


@_kernel
def theta_as_layer(theta: Singles) -> Layer:
    """Return Θ as a layer whose weights include the biases, because whole rows are faster."""
    return Layer(theta, theta[:, -1], theta[-1])


def is_enumerable(machine: BoltzmannMachine) -> bool:
    """Return whether a layer is so small that log Z can be enumerated."""
    return bool(min(machine.weights.shape) <= _MAX_ENUMERATED_UNITS)


def enumerate_log_z(machine: BoltzmannMachine, map_items: MapFunction) -> float:
    """Compute log Z by summing over all states of the smaller layer."""
    n_states = 1 << min(machine.weights.shape)
    starts = [*range(0, n_states, _STATES_PER_TASK)]
    map_labelled = label_map(map_items, "log Z", len(starts))
    parts = [*map_labelled(partial(_sum_state_range, machine, n_states), starts)]
    return float(np.logaddexp.reduce(parts))


def _sum_state_range(machine: BoltzmannMachine, n_states: int, first: int) -> float:
    return log_sum_over_states(machine, first, min(first + _STATES_PER_TASK, n_states))


def estimate_log_z(
    machine: BoltzmannMachine,
    log_odds: Array,
    seed: int,
    n_chains: int,
    n_temperatures: int,
    map_items: MapFunction,
) -> tuple[float, float]:
    """Estimate log Z by annealed importance sampling.

    Return it with its standard error, estimated from the spread of the chains' weights.
    """
    weigh = partial(_anneal_log_weights, machine, log_odds, seed, n_chains, n_temperatures)
    firsts = range(0, n_chains, _CHAINS_PER_TASK)
    weights = np.concatenate([*label_map(map_items, "log Z", len(firsts))(weigh, firsts)])
    ratio, error = log_mean_exp(weights)
    independent = len(machine.hidden) * np.log(2) + np.logaddexp(0, log_odds).sum()
    return float(independent + ratio), float(error)


def _anneal_log_weights(
    machine: BoltzmannMachine,
    log_odds: Array,
    seed: int,
    n_chains: int,
    n_temperatures: int,
    first: int,
) -> Array:
    key, n_own = RowRandom(seed, first).key, min(_CHAINS_PER_TASK, n_chains - first)
    return run_annealing(machine, log_odds, key, n_own, n_temperatures).log_weights


def log_sum_over_states(machine: BoltzmannMachine, first: int, stop: int) -> float:
    """Return the log of the sum of exp(−E) over a range of states of the smaller layer.

    A layer of k units has 2^k states, see `list_states`. The other layer is summed out.
    """
    weights, smaller, larger = machine
    if len(smaller) > len(larger):
        weights, smaller, larger = weights.T, larger, smaller
    sums = []
    for start in range(first, stop, _STATES_AT_ONCE):
        states = list_states(len(smaller), start, min(start + _STATES_AT_ONCE, stop))
        logs = states @ smaller
        add_softplus(states @ weights + larger, logs)
        sums.append(np.logaddexp.reduce(logs))
    return float(np.logaddexp.reduce(sums))


class AnnealedChains:
    """Chains that move from independent features to a machine.

    `units` (n_chains, n_features) is their state, 0 or 1, and `log_weights` (n_chains,) are their
    log importance weights.
    """

    def __init__(
        self, machine: BoltzmannMachine, start: Array, key: np.uint64, n_chains: int
    ) -> None:
        """Draw the chains at β = 0, where features have the log-odds `start`, (n_features,)."""
        self._weights = machine.weights.astype(np.float32)
        self._back = np.ascontiguousarray(self._weights.T)
        self._machine, self._start = machine, start
        self._draws = UnitDraws(key, np.arange(n_chains))
        self.units = self._draw_units(np.tile(start.astype(np.float32), (n_chains, 1)))
        self.log_weights = np.zeros(n_chains)

    def _draw_units(self, inputs: Singles) -> Singles:
        units = np.empty_like(inputs)
        self._draws.fill(inputs, inputs.shape[1], units)
        return units

    def resample(self, rng: np.random.Generator) -> None:
        """Resample the chains by their weights, so that each mode has its share of chains."""
        self.units = self.units[resample(self.log_weights, rng)]
        self.log_weights = np.zeros(len(self.units))

    def advance_to(self, before: float, beta: float) -> None:
        """Update the weights for the step from one β to the next, and take a Gibbs step."""
        visible, hidden = self._machine.visible, self._machine.hidden
        inputs = self.units @ self._weights + hidden.astype(np.float32)
        self.log_weights += (beta - before) * (self.units @ (visible - self._start))
        _add_ratios(inputs, before, beta, self.log_weights)
        self.gibbs_step(beta, inputs)

    def gibbs_step(self, beta: float, inputs: Singles | None = None) -> None:
        """Draw hidden units, then visible units, at this β."""
        visible, hidden = self._machine.visible, self._machine.hidden
        if inputs is None:
            inputs = self.units @ self._weights + hidden.astype(np.float32)
        on = self._draw_units(np.float32(beta) * inputs)
        biases = ((1 - beta) * self._start + beta * visible).astype(np.float32)
        self.units = self._draw_units(np.float32(beta) * (on @ self._back) + biases)


@_kernel
def _add_ratios(inputs: Singles, before: float, beta: float, log_weights: Array) -> None:
    """Add Σ_j log((1 + exp(β' a_j)) / (1 + exp(β a_j)))."""
    for n in range(len(inputs)):
        total, product = 0.0, 1.0
        for j in range(inputs.shape[1]):
            a = np.float64(inputs[n, j])
            above = 1.0 + exp_minus(abs(beta * a))
            total += (beta - before) * max(a, 0.0)
            product *= above / (1.0 + exp_minus(abs(before * a)))
            if j % 256 == 255:
                total, product = total + np.log(product), 1.0
        log_weights[n] += total + np.log(product)


def run_annealing(
    machine: BoltzmannMachine, start: Array, key: np.uint64, n_chains: int, n_temperatures: int
) -> AnnealedChains:
    """Anneal chains from independent features to the machine.

    `start` (n_features,) are the log-odds of the independent features, and `n_temperatures` is the
    number of steps from β = 0 to 1.
    """
    chains = AnnealedChains(machine, start, key, n_chains)
    betas = np.linspace(0, 1, n_temperatures + 1).tolist()
    for k, (before, beta) in enumerate(pairwise(betas)):
        if k % 100 == 0:
            check_cancelled()
        chains.advance_to(before, beta)
    return chains
