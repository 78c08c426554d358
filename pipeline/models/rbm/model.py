"""Restricted Boltzmann machine: bits that depend on hidden bits, and hidden bits on bits.

Model: P(x, h) = exp(xᵀWh + bᵀx + cᵀh) / Z (M. Sugiyama, "Introduction to statistical machine
learning", 2016, eqs 36.6 and 36.7; P. Smolensky 1986). Within each layer, units are independent
given the other layer: P(h_j = 1 | x) = σ(c_j + Σ_i x_i W_ij), P(x_i = 1 | h) = σ(b_i + Σ_j W_ij
h_j).

Fit by contrastive divergence (figure 36.13; G. E. Hinton, Neural Computation 14, 2002): steps along
⟨x hᵀ⟩ of a batch minus ⟨x hᵀ⟩ of chains. The chains take `steps` Gibbs steps, either from the rows
of the batch (`cd`) or from their state after the previous batch (`pcd`; T. Tieleman, ICML 2008).
`pipeline.learning.training` describes the steps; the learning rate decays because after long steps
the chains no longer represent the model. All tasks start with the same persistent chains, and after
the pass each chain continues from the state it has in a randomly chosen task. Passes are judged by
the pseudo-likelihood.

Missing values are drawn in every step from the model given the observed values; codes and
pseudo-likelihoods replace them by their mean field. The likelihood of a row is the marginal of its
observed values, estimated with 100 draws of its hidden units. This is also right if observed values
decide which values are missing.

=========  ==============  =====================================================
symbol     field           shape
=========  ==============  =====================================================
W          weights         (n_features, n_components)
b          visible_biases  (n_features,)
c          hidden_biases   (n_components,)
b0         log_odds        (n_features,): of the data, where annealing starts
log Z      log_z           (): with the standard error `log_z_error`, 0 if exact
=========  ==============  =====================================================

log Z is exact (by enumeration) if a layer has at most 20 units; otherwise it is estimated once
after the fit by annealed importance sampling, and all rows share its error.

Cost per block: (10 + 4 `steps`) n_samples n_features n_components multiplications. Passes: tens.
Not identifiable: the order of the hidden units, and which state of each unit is 1: h_j → 1 − h_j is
compensated by W_ij → −W_ij, c_j → −c_j, b_i → b_i + W_ij. Contrastive divergence leaves a bias if
the chains mix slowly; `pcd` and more `steps` reduce it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.layered import CONTRASTIVE_RATES
from pipeline.learning.training import train_on_blocks
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.gradient import GradientModel
from pipeline.models.rbm.contrast import ContrastLearner, ContrastRule
from pipeline.models.rbm.partition import (
    enumerate_log_z,
    estimate_log_z,
    is_enumerable,
    run_annealing,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.networks.boltzmann_rows import (
    BoltzmannMachine,
    estimate_observed_log_weight,
    hidden_probabilities,
    minus_free_energy,
    pseudo_likelihoods,
)
from pipeline.params import array_field, optional_array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import StepSums

Array = NDArray[np.float64]

MAX_DEFAULT_COMPONENTS = 64
"""Largest number of hidden units that is chosen if none is given."""
_FIRST_WEIGHTS = 0.01  # standard deviation
_SMOOTHING = 0.5
_MISSING_VALUE_DRAWS = 100
# For sampling: number of chains, temperatures of the annealing, Gibbs steps between two rows.
_SAMPLING_CHAINS, _BURN_IN, _SWEEPS_BETWEEN_SAMPLES = 5000, 500, 10


@dataclass(frozen=True)
class RBMParams:
    """Parameters; the table in the module docstring gives their shapes."""

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
        theta = self.theta + change
        return replace(
            self,
            weights=theta[:-1, :-1],
            visible_biases=theta[:-1, -1],
            hidden_biases=theta[-1, :-1],
        )


@dataclass(frozen=True)
class ChainSteps(StepSums):
    """Sums over rows, plus persistent chains, which are not sums.

    `chains` (n_chains, n_features) holds each chain of the task with the smallest of `chain_keys`
    (n_chains,).
    """

    def merge(self, other: Self) -> Self:
        """Add the sums, and choose between the chains."""
        merged, left, right = super().merge(other), self.values, other.values
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
        Where the chains start: at the rows of each batch (cd), or where they were after the
        previous batch (pcd).
    steps
        Gibbs steps of the chains per batch.
    weight_decay
        This times the weights is subtracted from their gradient.
    sparsity
        Strength with which the mean of each hidden unit is pulled to `target`.
    target
        Mean activation of hidden units if `sparsity` is above 0.
    chains
        Number of chains in the estimate of log Z.
    temperatures
        Number of annealing steps of each of these chains.
    """

    name: ClassVar[str] = "rbm"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[ChainSteps]] = ChainSteps
    default_rates: ClassVar[Mapping[str, float]] = CONTRASTIVE_RATES
    params: ClassVar[type[RBMParams]] = RBMParams
    method: Literal["cd", "pcd"] = "pcd"
    steps: int = setting(1, minimum=1)
    momentum: float = setting(0.5, minimum=0, below=1, kw_only=True)
    weight_decay: float = setting(0.0, minimum=0)
    sparsity: float = setting(0.0, minimum=0)
    target: float = setting(0.1, above=0, below=1)
    chains: int = setting(500, minimum=2)
    temperatures: int = setting(2000, minimum=1)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's parameters, gradient, optimizer memory and units."""
        n_hidden = self.n_components or MAX_DEFAULT_COMPONENTS
        numbers = 8 * (n_features + 1) * (n_hidden + 1)
        units = 20 * max(self.batch or 100, self.chains) * (n_features + n_hidden)
        return (n_threads + 1) * (10 * numbers + units)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Start from independent features, with random weights.

        Raises
        ------
        FitError
            If a feature was never observed.
        """
        observed, ones = pool_margins(first)
        log_odds = logit((ones + _SMOOTHING) / (observed + 2 * _SMOOTHING))
        n_hidden = self.n_components or min(len(ones), MAX_DEFAULT_COMPONENTS)
        weights = _FIRST_WEIGHTS * rng.standard_normal((len(ones), n_hidden))
        params = RBMParams(weights, log_odds, np.zeros(n_hidden), log_odds)
        warnings = make_constant_feature_warnings(observed, ones)
        baseline = params.baseline_log_likelihood
        state = self._make_initial_state(
            params, first.n_samples, params.theta.size, baseline, warnings
        )
        chains = self._draw_first_chains(params.shares, state.working, rng)
        return replace(state, working={**state.working, "chains": chains})

    def _draw_first_chains(
        self, shares: Array, working: Arrays, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Draw the persistent chains from independent features; no chains for `cd`."""
        n_chains = int(working["batch"]) if self.method == "pcd" else 0
        return (rng.random((n_chains, len(shares))) < shares).astype(np.uint8)

    def warm_start(self, state: FitState, params: RBMParams) -> FitState:
        """Start from the parameters of an earlier fit."""
        params = replace(params, log_odds=state.params.log_odds, log_z=None, log_z_error=None)
        return replace(state, params=params)

    def learn(
        self,
        params: RBMParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> ChainSteps | None:
        """Take steps through a task's rows; return the change of Θ and the judged score."""
        theta, memory = params.theta.astype(np.float32), self._training.copy_memory(working)
        shares, chains = params.shares.astype(np.float32), working["chains"]
        learner = ContrastLearner(self._make_rule(working), theta, shares, memory, chains, rng)
        sums = train_on_blocks(learner, partial(_pseudo_score, params), blocks(), working, rng)
        if sums is None:
            return None
        values = {**sums.values, "chains": learner.chains, "chain_keys": learner.chain_keys}
        return ChainSteps(sums.n_samples, sums.objective, values)

    def _make_rule(self, working: Arrays) -> ContrastRule:
        return ContrastRule(
            self._training.optimiser,
            self.steps,
            int(working["batch"]),
            float(working["rate"]),
            self.weight_decay,
            self.sparsity,
            self.target,
        )

    def _score_scale(self, params: RBMParams) -> float:
        return params.baseline_log_likelihood

    def update(
        self,
        state: FitState,
        statistics: ChainSteps,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Apply the mean change of all tasks, or return to the best pass with new chains."""
        moved = super().update(state, statistics, map_items, rng)
        chains = statistics.values["chains"]
        if moved.params is state.best:
            chains = self._draw_first_chains(state.params.shares, moved.working, rng)
        return replace(moved, working={**moved.working, "chains": chains})

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        n_components = len(state.params.hidden_biases)
        return {"n_components": n_components, "objective_is": "pseudo-likelihood"}

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
        """Return log P of the observed values of each row.

        Raises
        ------
        FitError
            If log Z is not known, which is the case before the end of a fit.
        """
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


def _pseudo_score(params: RBMParams, batch: TrainingBatch) -> Array:
    return pseudo_likelihoods(params.machine, batch.X, batch.observed)
