"""Restricted Boltzmann machine: bits that depend on hidden bits, and these on them.

Model: P(x, h) = exp(xᵀWh + bᵀx + cᵀh) / Z (M. Sugiyama, "Introduction to statistical machine
learning", 2016, eqs 36.6 and 36.7; P. Smolensky 1986). Both layers are independent given the other:
P(h_j = 1 | x) = σ(c_j + Σ_i x_i W_ij), P(x_i = 1 | h) = σ(b_i + Σ_j W_ij h_j).

Fit by contrastive divergence (figure 36.13; G. E. Hinton, Neural Computation 14, 2002): steps along
⟨x hᵀ⟩ of a batch less that of chains, which take `steps` Gibbs steps from the batch's rows (`cd`),
or go on from batch to batch (`pcd`; T. Tieleman, ICML 2008). Steps and their judgement are those of
`pipeline.learning.training`: chains that follow long steps do not stand for the model, so they grow
shorter. All tasks begin with the same chains, and after the pass each chain goes on from where a
task drawn by lot has it. Passes are judged by the pseudo-likelihood.

Missing values are drawn in each step, given the hidden units given what is observed, and so weigh
as the model expects them; codes and pseudo-likelihoods put them at their mean field. The likelihood
of a row is that of what is observed, by 100 draws of its hidden units. This is right also where
observed values decide which are missing.

=========  ==============  =====================================================
symbol     field           shape
=========  ==============  =====================================================
W          weights         (n_features, n_components)
b          visible_biases  (n_features,)
c          hidden_biases   (n_components,)
b0         log_odds        (n_features,): of the data, where annealing begins
log Z      log_z           (): with the standard error `log_z_error`, 0 if exact
=========  ==============  =====================================================

Log Z is exact by enumeration where a layer has 20 units at the most; else it is estimated once
after the fit by annealed importance sampling, and all rows share its error.

Cost a row: 10 n_features n_components multiplications, and `steps` times 4 more. Passes: tens.
Not identifiable: the order of hidden units, and for each which of its states is 1: with h_j → 1 −
h_j go W_ij → −W_ij, c_j → −c_j, b_i → b_i + W_ij. Contrastive divergence leaves a bias where chains
mix slowly, less with `pcd` or more `steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import compute_finite_score, train_on_blocks
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.gradient import GradientModel
from pipeline.models.rbm.checks import DEFAULT_RATES, check_settings
from pipeline.models.rbm.contrast import ContrastLearner, ContrastRule
from pipeline.models.rbm.normaliser import enumerate_log_z, estimate_log_z, is_enumerable
from pipeline.models.rbm.params import RBMParams
from pipeline.models.rbm.steps import ChainSteps, add_chains
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.networks.boltzmann_partition import run_annealing
from pipeline.numerics.networks.boltzmann_rows import (
    estimate_observed_log_weight,
    hidden_probabilities,
    minus_free_energy,
    pseudo_likelihoods,
)
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins

Array = NDArray[np.float64]

MAX_DEFAULT_COMPONENTS = 64
"""Hidden units where no number is given."""
_FIRST_WEIGHTS = 0.01  # standard deviation
_SMOOTHING = 0.5
_MISSING_VALUE_DRAWS = 100
_SAMPLING_CHAINS, _BURN_IN, _SWEEPS_BETWEEN_SAMPLES = 5000, 500, 10  # of samples


@dataclass(frozen=True)
class RestrictedBoltzmannMachine(GradientModel):
    """Hyperparameters of the restricted Boltzmann machine.

    Attributes
    ----------
    n_components
        Number of hidden units; None takes as many as there are features, 64 at the most.
    method
        Chains begin at the rows of every batch (cd), or go on from batch to batch (pcd).
    steps
        Gibbs steps of the chains for a batch.
    weight_decay
        Times the weights, is taken off their gradient.
    sparsity
        Strength with which hidden units are pulled to the share of ones `target`.
    target
        Share of ones of hidden units, where `sparsity` is above 0.
    chains
        Chains that log Z is estimated with.
    temperatures
        Steps of each chain from independent features to the model.
    """

    name: ClassVar[str] = "rbm"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[ChainSteps]] = ChainSteps
    default_rates: ClassVar[Mapping[str, float]] = DEFAULT_RATES
    params: ClassVar[type[RBMParams]] = RBMParams
    method: Literal["cd", "pcd"] = "pcd"
    steps: int = 1
    momentum: float = setting(0.5, minimum=0, below=1, kw_only=True)
    weight_decay: float = 0.0
    sparsity: float = 0.0
    target: float = 0.1
    chains: int = 500
    temperatures: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the parameters with their gradient and memory, and of units, of each task."""
        n_hidden = self.n_components or MAX_DEFAULT_COMPONENTS
        numbers = 8 * (n_features + 1) * (n_hidden + 1)
        units = 20 * max(self.batch or 100, self.chains) * (n_features + n_hidden)
        return (n_threads + 1) * (10 * numbers + units)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin at independent features, with weights that tell hidden units apart.

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
        working = self._training.make_working_state(first.n_samples, params.theta.size)
        chains = self._draw_first_chains(params.shares, working, rng)
        begun = {**working, "unlearnt": np.array(params.baseline_log_likelihood), "chains": chains}
        return FitState(params, begun, warnings=make_constant_feature_warnings(observed, ones))

    def _draw_first_chains(
        self, shares: Array, working: Arrays, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Draw the chains that go on from independent features; none where they begin at rows."""
        n_chains = int(working["batch"]) if self.method == "pcd" else 0
        return (rng.random((n_chains, len(shares))) < shares).astype(np.uint8)

    def warm_start(self, state: FitState, params: RBMParams) -> FitState:
        """Begin at the weights of an earlier fit."""
        begun = replace(params, log_odds=state.params.log_odds, log_z=None, log_z_error=None)
        return replace(state, params=begun)

    def learn(
        self,
        params: RBMParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> ChainSteps | None:
        """Step through the rows; give the change of Θ times the rows, and the score of others."""
        theta, memory = params.theta.astype(np.float32), self._training.copy_memory(working)
        shares, chains = params.shares.astype(np.float32), working["chains"]
        learner = ContrastLearner(self._make_rule(working), theta, shares, memory, chains, rng)
        return add_chains(
            learner,
            train_on_blocks(learner, partial(_pseudo_score, params), blocks(), working, rng),
        )

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

    def objective(self, params: RBMParams, statistics: ChainSteps) -> float:
        """Give the pseudo-log-likelihood of a row held out, nats."""
        return compute_finite_score(statistics, params.baseline_log_likelihood)

    def update(
        self,
        state: FitState,
        statistics: ChainSteps,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Move by the mean change of all tasks, or back, where chains begin anew."""
        moved = super().update(state, statistics, map_items, rng)
        chains = statistics.values["chains"]
        if moved.params is state.best:
            chains = self._draw_first_chains(state.params.shares, moved.working, rng)
        return replace(moved, working={**moved.working, "chains": chains})

    def finish(self, state: FitState, statistics: ChainSteps) -> FitState:
        """Say how many hidden units there are, and what is in doubt."""
        n_components = len(state.params.hidden_biases)
        told = {"n_components": n_components, "objective_is": "pseudo-likelihood"}
        return replace(self._add_training_warnings(state), diagnostics=told)

    def prepare(
        self, params: RBMParams, rng: np.random.Generator, map_items: MapFunction
    ) -> RBMParams:
        """Find log Z: by enumeration where a layer is small, else by annealing."""
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
        """Give P(h = 1 | x) as `mean`, (n_samples, n_components)."""
        return {
            "mean": hidden_probabilities(params.machine, block.unpack_values(), block.unpack_mask())
        }

    def log_likelihood(
        self, params: RBMParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Give log P(x) of each row, of the observed values where some are missing.

        Raises
        ------
        FitError
            If log Z is not known, as before the end of a fit.
        """
        if params.log_z is None or params.log_z_error is None:
            raise FitError("Expected log Z, which the end of a fit estimates. Fit to the end.")
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
        """Give Σ_i log P(x_i | the others) of each row over its observed values, (n_samples,)."""
        return pseudo_likelihoods(params.machine, block.unpack_values(), block.unpack_mask())

    def sample(
        self,
        params: RBMParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows by block Gibbs sampling, (n_samples, n_features); segments do not matter.

        Chains are annealed from independent features, and taken as often as their weights in the
        estimate of Z say; then each gives a row after every ten steps.
        """
        key, n_chains = (
            RowRandom(int(rng.integers(2**63))).key,
            max(min(n_samples, _SAMPLING_CHAINS), 1),
        )
        chains = run_annealing(params.machine, params.log_odds, key, n_chains, _BURN_IN)
        chains.resample(rng)
        drawn = np.empty((n_samples, len(params.visible_biases)), np.uint8)
        for first in range(0, n_samples, n_chains):
            for _ in range(_SWEEPS_BETWEEN_SAMPLES):
                chains.gibbs_step(1.0)
            drawn[first : first + n_chains] = chains.units[: n_samples - first]
        return drawn

    def reconstruct(
        self, params: RBMParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Give σ(b + W codes), (n_samples, n_features); segments do not matter."""
        probabilities: Array = expit(codes @ params.weights.T + params.visible_biases)
        return probabilities


def _pseudo_score(params: RBMParams, batch: TrainingBatch) -> Array:
    return pseudo_likelihoods(params.machine, batch.X, batch.observed)
