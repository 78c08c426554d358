"""Autoencoder: reconstruct each row from a few hidden units, with the same weights both ways.

Model: h = σ(Wᵀx + b), x̂ = σ(W h + c) (M. Sugiyama, "Introduction to statistical machine learning",
2016, section 36.3 and figure 36.10; his W is the transpose of this one). The model defines no P(x):
it cannot draw rows or compute their likelihood.

Fit by gradient steps on Σ_i x_i log x̂_i + (1 − x_i) log(1 − x̂_i), or on minus half the squared
error. `sparsity` λ subtracts λ Σ_j h_j (`l1`) or λ Σ_j KL(ρ ‖ h̄_j) (`kl`), where h̄_j is the mean
of h_j over a batch and ρ is `target`. With `corruption`, bits of the input are flipped or masked
and the clean row is the target (P. Vincent et al., JMLR 11, 2010). `pipeline.learning.training`
describes the steps. Passes are scored on clean rows, minus the penalty.

Missing values are left out of the score, and count as the mean of their feature in Wᵀx. Codes of
rows with many missing values are therefore nearer to each other than codes of rows with few. If
values are missing, weights start from factors of the correlations of pairs. Otherwise, the same
cause may turn a unit on in one test form, and off in another.

=========  ==============  ===========================
symbol     field           shape
=========  ==============  ===========================
W          weights         (n_features, n_components)
c          visible_biases  (n_features,)
b          hidden_biases   (n_components,)
x̄          means           (n_features,): shares of ones in the data
=========  ==============  ===========================

Cost per block: 6 n_samples n_features n_components multiplications. Passes: tens.
Not identifiable: the order of the hidden units; the scale of a unit whose weights are small, where
the curves are nearly straight; any other network that reconstructs equally well. The objective has
many local maxima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import train_on_blocks
from pipeline.models.gradient import (
    DEFAULT_RATES,
    Corruption,
    GradientModel,
    NetworkLearner,
    compute_baseline_score,
    convert_batch_to_float32,
    corrupt_bits,
    draw_first_layer,
    find_factors,
    score_reconstructions,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    Numbers,
    encode_layers,
    fill_gradient,
    flatten_layers,
    propagate_up,
    split_into_layers,
)
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.pair_moments import PairMoments, estimate_memory_of_moments
from pipeline.statistics.sums import StepSums

MAX_DEFAULT_COMPONENTS = 64
"""Largest number of hidden units that is chosen if none is given."""
_MIN_MEAN_ACTIVATION = 1e-6  # nearer to 0 or 1, the gradient of the penalty `kl` is constant
_SMOOTHING = 0.5


@dataclass(frozen=True)
class AutoencoderParams:
    """Parameters; the module's table gives shapes."""

    weights: Array = array_field("feature", "component")
    visible_biases: Array = array_field("feature")
    hidden_biases: Array = array_field("component")
    means: Array = array_field("feature")

    @property
    def layers(self) -> tuple[Layer]:
        """The parameters as a network of one layer."""
        return (Layer(self.weights, self.visible_biases, self.hidden_biases),)

    def add_change(self, change: Array) -> AutoencoderParams:
        """Return the parameters plus a change, ordered as in `flatten_layers`."""
        sizes = self.weights.shape
        (layer,) = split_into_layers(flatten_layers(self.layers) + change, sizes)
        return AutoencoderParams(*layer, self.means)


@dataclass(frozen=True)
class Autoencoder(GradientModel):
    """Hyperparameters of the autoencoder.

    Attributes
    ----------
    n_components
        Number of hidden units. None takes one per feature, at most 64.
    loss
        Reconstruction loss: cross-entropy, or half the squared error.
    corruption
        Noise on the input: none, flip (invert bits) or mask (set bits to 0).
    noise
        Share of bits that are flipped or masked.
    sparsity
        Strength of the penalty on hidden units; 0 for none.
    penalty
        Penalize the activations of hidden units (l1), or the distance of their means from `target`
        (kl).
    target
        Mean activation that the penalty kl pulls hidden units to.
    """

    name: ClassVar[str] = "autoencoder"
    indeterminacy: ClassVar[str] = "the order of the hidden units"
    support: ClassVar[Support] = Support(("binary", "ordinal"), splits_levels=True)
    unlinked_effect: ClassVar[str] = (
        "codes of different parts cannot be compared: predict only within a part"
    )
    first_statistics: ClassVar[type[PairMoments]] = PairMoments
    default_rates: ClassVar[Mapping[str, float]] = DEFAULT_RATES
    params: ClassVar[type[AutoencoderParams]] = AutoencoderParams
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    corruption: Corruption = "none"
    noise: float = setting(0.1, above=0, below=1)
    sparsity: float = setting(0.0, minimum=0)
    penalty: Literal["l1", "kl"] = "kl"
    target: float = setting(0.1, above=0, below=1)

    @property
    def _is_squared(self) -> bool:
        return self.loss == "squared"

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's parameters, gradient, optimizer memory and units."""
        n_hidden = self.n_components or MAX_DEFAULT_COMPONENTS
        numbers = 8 * (n_features + 1) * (n_hidden + 1)
        units = 40 * (self.batch or 100) * (n_features + n_hidden)
        pairs = estimate_memory_of_moments(n_features, 1)
        return (n_threads + 1) * max(10 * numbers + units, pairs)

    def initialize(self, first: PairMoments, rng: np.random.Generator) -> FitState:
        """Start from independent features, with random weights or rotated factors."""
        observed, ones = pool_margins(first.counts)
        shares = (ones + _SMOOTHING) / (observed + 2 * _SMOOTHING)
        n_hidden = self.n_components or min(len(shares), MAX_DEFAULT_COMPONENTS)
        factors = find_factors(first, n_hidden, rng)
        params = AutoencoderParams(*draw_first_layer(shares, n_hidden, rng, factors), shares)
        baseline = compute_baseline_score(shares, observed / first.n_rows, squared=self._is_squared)
        warnings = make_constant_feature_warnings(observed, ones)
        n_numbers = len(flatten_layers(params.layers))
        return self._make_initial_state(params, first.n_rows, n_numbers, baseline, warnings)

    def warm_start(self, state: FitState, params: AutoencoderParams) -> FitState:
        """Start from the parameters of an earlier fit."""
        return replace(state, params=params)

    def learn(
        self,
        params: AutoencoderParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Take steps through a task's rows; return the change and the score."""
        fill = partial(self._fill_gradient, params.means, rng.stream("corruption"))
        learner = NetworkLearner(self._training, working, params.layers, fill)
        before = split_into_layers(learner.theta.copy(), params.weights.shape)
        score = partial(self._score, params.means, before)
        return train_on_blocks(learner, score, blocks(), working, rng)

    def _score(self, means: Array, layers: Layers, batch: TrainingBatch) -> Array:
        X, mask = convert_batch_to_float32(batch, means)
        scores = score_reconstructions(layers, X, mask, squared=self._is_squared)
        return scores - self._penalties(propagate_up(layers, X)[-1]) if self.sparsity else scores

    def _penalties(self, h: Numbers) -> Array:
        """Return the penalty of each row, (n_samples,); `kl` is the same for all rows."""
        if self.penalty == "l1":
            sums: Array = h.sum(axis=1, dtype=np.float64)
            return self.sparsity * sums
        mean = np.clip(h.mean(axis=0), _MIN_MEAN_ACTIVATION, 1 - _MIN_MEAN_ACTIVATION)
        rho = self.target
        divergences = rho * np.log(rho / mean) + (1 - rho) * np.log((1 - rho) / (1 - mean))
        return np.full(len(h), self.sparsity * float(divergences.sum()))

    def _fill_gradient(
        self,
        means: Array,
        draws: RowRandom,
        batch: TrainingBatch,
        layers: Layers,
        gradient: Layers,
    ) -> None:
        targets, mask = convert_batch_to_float32(batch, means)
        inputs = corrupt_bits(targets, mask, self.corruption, self.noise, batch.rows, draws)
        pull = self._penalty_gradient if self.sparsity else None
        fill_gradient(layers, inputs, targets, mask, gradient, squared=self._is_squared, pull=pull)

    def _penalty_gradient(self, means: Numbers) -> Numbers:
        """Return the gradient of −n_samples × penalty with respect to a row's hidden units."""
        if self.penalty == "l1":
            return np.full_like(means, -self.sparsity)
        means = np.clip(means, _MIN_MEAN_ACTIVATION, 1 - _MIN_MEAN_ACTIVATION)
        pull: Numbers = self.sparsity * (self.target / means - (1 - self.target) / (1 - means))
        return pull

    def _score_scale(self, params: AutoencoderParams) -> float:
        return -len(params.visible_biases)

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        objective = "minus half the squared error" if self._is_squared else "reconstruction"
        objective += " less penalty" if self.sparsity else ""
        return {"n_components": len(state.params.hidden_biases), "objective_is": objective}

    def transform(
        self, params: AutoencoderParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the hidden units as `mean`, (n_samples, n_components)."""
        X, mask = block.unpack_values(), block.unpack_mask()
        return {"mean": encode_layers(params.layers, params.means, X, mask)}

    def reconstruct(
        self, params: AutoencoderParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return σ(W codes + c), (n_samples, n_features); segments are ignored."""
        probabilities: Array = expit(codes @ params.weights.T + params.visible_biases)
        return probabilities
