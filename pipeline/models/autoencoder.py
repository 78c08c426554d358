"""Autoencoder: a row comes back from a few hidden units, up and down by the same weights.

Model: h = σ(Wᵀx + b), x̂ = σ(W h + c) (M. Sugiyama, "Introduction to statistical machine learning",
2016, section 36.3 and figure 36.10, whose W is this one's transpose). There is no P(x): it neither
draws rows nor says how likely they are.

Fit by steps along the closed-form gradient of Σ_i x_i log x̂_i + (1 − x_i) log(1 − x̂_i), or of half
the squared error. `sparsity` takes off λ Σ_j h_j (`l1`), or λ Σ_j KL(ρ ‖ h̄_j) of the means over a
batch (`kl`), ρ the `target`. With `corruption` the row goes in with bits flipped, or ones masked,
and the clean one should come out (P. Vincent et al., JMLR 11, 2010). Steps and their judgement are
those of `pipeline.learning.training`; passes are judged by clean rows, less the penalty.

Missing values are left out of the sums: of Wᵀx, as if they were 0, and of the score. Codes of rows
with many missing values are therefore not comparable with those of rows with few.

=========  ==============  ===========================
symbol     field           shape
=========  ==============  ===========================
W          weights         (n_features, n_components)
c          visible_biases  (n_features,)
b          hidden_biases   (n_components,)
=========  ==============  ===========================

Cost a row: 6 n_features n_components multiplications. Passes: tens.
Not identifiable: the order of hidden units; how far a unit's range is used, where W is small and
the curves are near straight; and whatever reconstructs as well. The error has many local minima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.data.blocks import BinaryBlock
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.layered import (
    DEFAULT_RATES,
    Corruption,
    NetworkLearner,
    compute_baseline_score,
    convert_batch_to_float32,
    corrupt_bits,
    draw_first_layer,
    score_reconstructions,
)
from pipeline.learning.training import compute_finite_score, train_on_blocks
from pipeline.models.gradient import GradientModel
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.networks.layer_rows import encode_layers
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    Numbers,
    fill_gradient,
    flatten_layers,
    propagate_up,
    split_into_layers,
)
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import StepSums

Array = NDArray[np.float64]

MAX_DEFAULT_COMPONENTS = 64
"""Hidden units where no number is given."""
_MIN_SHARE = 1e-6
"""Of ones of a hidden unit: beyond, the slope of KL(ρ ‖ h̄) is that of this share."""
_SMOOTHING = 0.5


@dataclass(frozen=True)
class AutoencoderParams:
    """Parameters; the table of the module gives shapes."""

    weights: Array = array_field("feature", "component")
    visible_biases: Array = array_field("feature")
    hidden_biases: Array = array_field("component")

    @property
    def layers(self) -> tuple[Layer]:
        """As a network of one layer."""
        return (Layer(self.weights, self.visible_biases, self.hidden_biases),)

    def add_change(self, change: Array) -> AutoencoderParams:
        """Add to all parameters, as `flatten_layers` puts them."""
        sizes = self.weights.shape
        (layer,) = split_into_layers(flatten_layers(self.layers) + change, sizes)
        return AutoencoderParams(*layer)


@dataclass(frozen=True)
class Autoencoder(GradientModel):
    """Hyperparameters of the autoencoder.

    Attributes
    ----------
    n_components
        Number of hidden units; None takes as many as there are features, 64 at the most.
    loss
        What to reconstruct well by: cross-entropy, or half the squared error.
    corruption
        How rows go in: as they are (none), with bits flipped (flip) or set to 0 (mask).
    noise
        Share of the bits that are flipped or masked.
    sparsity
        Strength of the penalty on hidden units, 0 for none.
    penalty
        On how far units are on (l1), or on how far their means are from `target` (kl).
    target
        Share of ones that the penalty kl pulls hidden units to.
    """

    name: ClassVar[str] = "autoencoder"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
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
        """Bytes of the parameters with their gradient and memory, and of units, of each task."""
        n_hidden = self.n_components or MAX_DEFAULT_COMPONENTS
        numbers = 8 * (n_features + 1) * (n_hidden + 1)
        units = 40 * (self.batch or 100) * (n_features + n_hidden)
        return (n_threads + 1) * (10 * numbers + units)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin at independent features, with weights that tell hidden units apart.

        Raises
        ------
        FitError
            If a feature was never observed.
        """
        observed, ones = pool_margins(first)
        shares = (ones + _SMOOTHING) / (observed + 2 * _SMOOTHING)
        n_hidden = self.n_components or min(len(shares), MAX_DEFAULT_COMPONENTS)
        params = AutoencoderParams(*draw_first_layer(shares, n_hidden, rng))
        unlearnt = compute_baseline_score(
            shares, observed / first.n_samples, squared=self._is_squared
        )
        working = self._training.make_working_state(
            first.n_samples, len(flatten_layers(params.layers))
        )
        begun = {**working, "unlearnt": np.array(unlearnt)}
        return FitState(params, begun, warnings=make_constant_feature_warnings(observed, ones))

    def warm_start(self, state: FitState, params: AutoencoderParams) -> FitState:
        """Begin at the weights of an earlier fit."""
        return replace(state, params=params)

    def learn(
        self,
        params: AutoencoderParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Step through the rows; give the change of all parameters, and the score of others."""
        fill = partial(self._fill_slopes, rng.stream("corruption"))
        learner = NetworkLearner(self._training, working, params.layers, fill)
        before = split_into_layers(learner.theta.copy(), params.weights.shape)
        return train_on_blocks(learner, partial(self._score, before), blocks(), working, rng)

    def _score(self, layers: Layers, batch: TrainingBatch) -> Array:
        X, seen = convert_batch_to_float32(batch)
        scores = score_reconstructions(layers, X, seen, squared=self._is_squared)
        return scores - self._penalties(propagate_up(layers, X)[-1]) if self.sparsity else scores

    def _penalties(self, h: Numbers) -> Array:
        """Give the penalty of each row, (n_samples,): one of means is the same for all."""
        if self.penalty == "l1":
            sums: Array = h.sum(axis=1, dtype=np.float64)
            return self.sparsity * sums
        mean, rho = np.clip(h.mean(axis=0), _MIN_SHARE, 1 - _MIN_SHARE), self.target
        divergences = rho * np.log(rho / mean) + (1 - rho) * np.log((1 - rho) / (1 - mean))
        return np.full(len(h), self.sparsity * float(divergences.sum()))

    def _fill_slopes(
        self, draws: RowRandom, batch: TrainingBatch, layers: Layers, slopes: Layers
    ) -> None:
        """Fill in the slopes of a batch."""
        wanted, seen = convert_batch_to_float32(batch)
        given = corrupt_bits(wanted, seen, self.corruption, self.noise, batch.rows, draws)
        pull = self._penalty_gradient if self.sparsity else None
        fill_gradient(layers, given, wanted, seen, slopes, squared=self._is_squared, pull=pull)

    def _penalty_gradient(self, means: Numbers) -> Numbers:
        """Give the slope of minus the penalty, times the rows, by the hidden units of a row."""
        if self.penalty == "l1":
            return np.full_like(means, -self.sparsity)
        kept = np.clip(means, _MIN_SHARE, 1 - _MIN_SHARE)
        pull: Numbers = self.sparsity * (self.target / kept - (1 - self.target) / (1 - kept))
        return pull

    def objective(self, params: AutoencoderParams, statistics: StepSums) -> float:
        """Give the score of a row held out, nats: minus its loss and penalty."""
        return compute_finite_score(statistics, -len(params.visible_biases))

    def finish(self, state: FitState, statistics: StepSums) -> FitState:
        """Say how many hidden units there are, and what is in doubt."""
        named = "reconstruction less penalty" if self.sparsity else "reconstruction"
        told = {"n_components": len(state.params.hidden_biases), "objective_is": named}
        return replace(self._add_training_warnings(state), diagnostics=told)

    def transform(
        self, params: AutoencoderParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give the hidden units as `mean`, (n_samples, n_components)."""
        return {"mean": encode_layers(params.layers, block.unpack_values(), block.unpack_mask())}

    def reconstruct(
        self, params: AutoencoderParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Give σ(W codes + c), (n_samples, n_features); segments do not matter."""
        probabilities: Array = expit(codes @ params.weights.T + params.visible_biases)
        return probabilities
