"""Stack: layers of hidden units, pretrained one by one and then trained together.

Model: h_k = σ(W_kᵀ h_{k−1} + b_k) from h_0 = x up to the codes h_L, and back down with the same
weights, ĥ_{k−1} = σ(W_k ĥ_k + c_k) from ĥ_L = h_L to x̂ = ĥ_0 (M. Sugiyama, "Introduction to
statistical machine learning", 2016, section 36.5; G. E. Hinton, R. R. Salakhutdinov, Science 313,
2006, who untie the two directions at the end). The model defines no P(x).

Fit in L + 1 stages. The first L stages pretrain one layer each, to reconstruct the output of the
layers below: as autoencoders by cross-entropy (figure 36.10), or as restricted Boltzmann machines
by contrastive divergence (figure 36.13). Above the first layer the inputs are probabilities. The
last stage follows the gradient of Σ_i x_i log x̂_i + (1 − x_i) log(1 − x̂_i) in all parameters, by
back-propagation. Input bits are masked so that the network does not memorize the rows (P. Vincent
et al., JMLR 11, 2010). `pipeline.learning.training` describes the steps; the score of a pass is how
well the trained layers reconstruct clean rows. `pretrain=0` skips the first L stages and starts
from random weights.

Missing values are left out of the score, and count as the mean of their feature in W_1ᵀx.
If values are missing, weights start from factors of the correlations of pairs, see `autoencoder`.

========  =================  ==============================================
symbol    field              shape
========  =================  ==============================================
W_k       weights_{k−1}      (n_units of layer k − 1, n_units of layer k)
c_k       visible_biases_…   (n_units of layer k − 1,)
b_k       hidden_biases_…    (n_units of layer k,); layer 0 is the features
x̄         means              (n_features,): shares of ones in the data
========  =================  ==============================================

Cost per block: 6 n_samples Σ_k n_{k−1} n_k multiplications in the last stage. Passes: `pretrain`
per layer, then up to `max_iter`. The objective has many local maxima.
Not identifiable: the order of the units within a layer; any other network that reconstructs
equally well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import GradientTraining, train_on_blocks
from pipeline.models.gradient import (
    CONTRASTIVE_RATES,
    DEFAULT_RATES,
    Corruption,
    FillGradient,
    GradientModel,
    NetworkLearner,
    compute_baseline_score,
    convert_batch_to_float32,
    corrupt_bits,
    count_units,
    draw_first_layer,
    find_factors,
    propagate_factors,
    score_reconstructions,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.logistic.logistic_units import row_states
from pipeline.numerics.networks.gradient_steps import fill_contrastive_gradient
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    count_parameters,
    encode_layers,
    fill_gradient,
    flatten_layers,
    propagate_down,
    propagate_up,
    sigmoid,
    split_into_layers,
)
from pipeline.params import array_field, layer_arrays_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.pair_moments import PairMoments, estimate_memory_of_moments
from pipeline.statistics.sums import StepSums

EncodeBatch = Callable[[TrainingBatch], tuple[Any, Any]]
"""Function that returns the input of layers, and the mask of its observed values or None."""

MAX_DEFAULT_COMPONENTS = 16
"""Largest number of codes that is chosen if none is given."""
_DEFAULT_LAYERS = (256, 128)  # below the codes
_MAX_GROWTH = 10  # a layer has at most this many units per unit below
_SMOOTHING = 0.5


@dataclass(frozen=True)
class StackParams:
    """Parameters; the module's table gives shapes."""

    weights: tuple[Array, ...] = layer_arrays_field("below", "above")
    visible_biases: tuple[Array, ...] = layer_arrays_field("below")
    hidden_biases: tuple[Array, ...] = layer_arrays_field("above")
    means: Array = array_field("feature")

    @classmethod
    def from_layers(cls, layers: Layers, means: Array) -> StackParams:
        """Make the parameters from layers, lowest first, and the means of the features."""
        weights, visible, hidden = zip(*layers, strict=True)
        return cls(weights, visible, hidden, means)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The parameters as a network, lowest layer first."""
        parts = zip(self.weights, self.visible_biases, self.hidden_biases, strict=True)
        return tuple(Layer(*part) for part in parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of units of each layer, the features first."""
        return (len(self.visible_biases[0]), *map(len, self.hidden_biases))

    def split_at_stage(self, stage: int) -> tuple[Layers, Layers]:
        """Return the fixed layers below, and the layers that a stage trains."""
        layers = self.layers
        if stage == len(layers):
            return (), layers
        return layers[:stage], layers[stage : stage + 1]

    def add_stage_change(self, stage: int, change: Array) -> StackParams:
        """Return the parameters plus a change of the layers that a stage trains."""
        below, trained = self.split_at_stage(stage)
        moved = split_into_layers(flatten_layers(trained) + change, count_units(trained))
        layers = [*below, *moved, *self.layers[len(below) + len(moved) :]]
        return StackParams.from_layers(layers, self.means)


@dataclass(frozen=True)
class Stack(GradientModel):
    """Hyperparameters of the stack.

    Attributes
    ----------
    n_components
        Units of the last layer. None takes the last of `layers`, else one per feature, at most 16.
    layers
        Units per layer from the data up; the last number is the number of components. None takes
        256 and 128 below the components, at most the number of features and at least the number of
        components.
    block
        Kind of layer in pretraining: restricted Boltzmann machine (rbm) or autoencoder.
    pretrain
        Passes per layer in pretraining; 0 trains all layers together from random weights.
    corruption
        Noise on the input of the last stage, and of the first layer pretrained as an autoencoder:
        none, flip (invert bits) or mask (set bits to 0).
    noise
        Share of bits that are flipped or masked.
    rate
        Initial learning rate of each stage; it decays to 0. None picks one for the optimizer.
    max_iter
        Maximum number of passes of the last stage.
    """

    name: ClassVar[str] = "stack"
    indeterminacy: ClassVar[str] = "the order of the hidden units"
    support: ClassVar[Support] = Support(("binary", "ordinal"), splits_levels=True)
    unlinked_effect: ClassVar[str] = (
        "codes of different parts cannot be compared: predict only within a part"
    )
    first_statistics: ClassVar[type[PairMoments]] = PairMoments
    default_rates: ClassVar[Mapping[str, float]] = DEFAULT_RATES
    params: ClassVar[type[StackParams]] = StackParams
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("before_fine_tuning",)
    layers: tuple[int, ...] | None = setting(None, minimum=1)
    block: Literal["rbm", "autoencoder"] = "autoencoder"
    pretrain: int = setting(20, minimum=0)
    corruption: Corruption = "mask"
    noise: float = setting(0.2, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            _check_layers(self.layers, self.n_components)

    def _stage_training(self, stage: int, sizes: tuple[int, ...]) -> GradientTraining:
        """Return how a stage takes steps; stage k < L trains layer k."""
        if stage == len(sizes) - 1:
            return self._training
        rates = CONTRASTIVE_RATES if self.block == "rbm" else DEFAULT_RATES
        return replace(GradientTraining.from_model(self, rates), max_iter=self.pretrain)

    def _get_stage_training(self, state: FitState) -> GradientTraining:
        return self._stage_training(int(state.working["stage"]), state.params.sizes)

    def _sizes(self, n_features: int) -> tuple[int, ...]:
        if self.layers is not None:
            return (n_features, *self.layers)
        n_codes = self.n_components or min(n_features, MAX_DEFAULT_COMPONENTS)
        between = (max(n_codes, min(n_features, size)) for size in _DEFAULT_LAYERS)
        return (n_features, *between, n_codes)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's parameters, gradient, optimizer memory and units."""
        sizes = self._sizes(n_features)
        units = 40 * (self.batch or 100) * sum(sizes)
        pairs = estimate_memory_of_moments(n_features, 1)
        return (n_threads + 1) * max(80 * count_parameters(sizes) + units, pairs)

    def initialize(self, first: PairMoments, rng: np.random.Generator) -> FitState:
        """Start from independent features, with random weights or rotated factors."""
        observed, ones = pool_margins(first.counts)
        sizes = self._sizes(len(ones))
        _check_growth(sizes)
        feature_shares = (ones + _SMOOTHING) / (observed + 2 * _SMOOTHING)
        below = [feature_shares, *(np.full(size, 0.5) for size in sizes[1:-1])]
        factors, layers = find_factors(first, sizes[-1], rng), []
        for shares, n_above in zip(below, sizes[1:], strict=True):
            layers.append(draw_first_layer(shares, n_above, rng, factors))
            factors = propagate_factors(factors, layers[-1].weights)
        baseline = compute_baseline_score(below[0], observed / first.n_rows)
        state = FitState(
            StackParams.from_layers(layers, feature_shares),
            auxiliary={"unlearnt": np.array(baseline), "n_samples": np.array(first.n_rows)},
            warnings=make_constant_feature_warnings(observed, ones),
        )
        return self._begin_stage(state, 0 if self.pretrain else len(layers))

    def _begin_stage(self, state: FitState, stage: int) -> FitState:
        sizes, baseline = state.params.sizes, state.auxiliary["unlearnt"]
        n_samples = int(state.auxiliary["n_samples"])
        _, trained = state.params.split_at_stage(stage)
        if 0 < stage < len(sizes) - 1:
            baseline = np.array(-sizes[stage] * np.log(2))
        working = self._stage_training(stage, sizes).make_working_state(
            n_samples, len(flatten_layers(trained))
        )
        return replace(state, working={**working, "stage": np.array(stage), "unlearnt": baseline})

    def warm_start(self, state: FitState, params: StackParams) -> FitState:
        """Start the last stage from the parameters of an earlier fit with the same layers."""
        if params.sizes != state.params.sizes:
            new, old = (_format_sizes(p.sizes[1:]) for p in (state.params, params))
            raise FitError(
                f"The fit given to {{warm_start}} has layers {old}, but this one has {new}. Use "
                f"{{layers={old}}}, or fit without {{warm_start}}.",
                parameter="warm_start",
            )
        return self._begin_stage(replace(state, params=params), len(params.weights))

    def learn(
        self,
        params: StackParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Take steps through a task's rows; return the change and the score."""
        stage = int(working["stage"])
        (below, trained), is_last = params.split_at_stage(stage), stage == len(params.weights)
        below = [Layer(*(part.astype(np.float32) for part in layer)) for layer in below]
        encode = partial(_encode_batch, params.means, below)
        kind = "none" if below else self.corruption  # only the data itself, not hidden units
        draws = rng.stream("corruption")
        fill: FillGradient = partial(self._fill_reconstruction, encode, kind, draws)
        if self.block == "rbm" and not is_last:
            fill = partial(_fill_contrast, encode, rng.stream("hidden"))
        learner = NetworkLearner(self._stage_training(stage, params.sizes), working, trained, fill)
        before = split_into_layers(learner.theta.copy(), count_units(trained))
        score = partial(_score_reconstruction, encode, before)
        return train_on_blocks(learner, score, blocks(), working, rng)

    def _fill_reconstruction(
        self,
        encode: EncodeBatch,
        kind: Corruption,
        draws: RowRandom,
        batch: TrainingBatch,
        layers: Layers,
        gradient: Layers,
    ) -> None:
        targets, mask = encode(batch)
        inputs = corrupt_bits(targets, mask, kind, self.noise, batch.rows, draws)
        fill_gradient(layers, inputs, targets, mask, gradient)

    def _score_scale(self, params: StackParams) -> float:
        return -max(params.sizes)

    def _move_params(self, state: FitState, change: Array) -> StackParams:
        params: StackParams = state.params
        return params.add_stage_change(int(state.working["stage"]), change)

    def next_stage(self, state: FitState, statistics: StepSums) -> FitState | None:
        """Start the next layer, or the last stage, which trains all layers."""
        stage = int(state.working["stage"]) + 1
        if stage > len(state.params.weights):
            return None
        return self._begin_stage(self._add_training_warnings(state), stage)

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        sizes = state.params.sizes
        return {
            "n_components": sizes[-1],
            "layers": list(sizes[1:]),
            "objective_is": "reconstruction",
            "before_fine_tuning": state.history[0],
        }

    def transform(
        self, params: StackParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the units of the last layer as `mean`, (n_samples, n_components)."""
        X, mask = block.unpack_values(), block.unpack_mask()
        return {"mean": encode_layers(params.layers, params.means, X, mask)}

    def reconstruct(
        self, params: StackParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return x̂ given codes, (n_samples, n_features); segments are ignored."""
        return sigmoid(propagate_down(params.layers, codes)[-1])


def _encode_batch(means: Array, below: Layers, batch: TrainingBatch) -> Any:
    """Return the input of the trained layers, and the mask of its observed values."""
    X, mask = convert_batch_to_float32(batch, means)
    return (propagate_up(below, X)[-1], None) if below else (X, mask)


def _fill_contrast(
    encode: EncodeBatch,
    draws: RowRandom,
    batch: TrainingBatch,
    layers: Layers,
    gradient: Layers,
) -> tuple[Any, Any]:
    inputs, mask = encode(batch)
    return fill_contrastive_gradient(
        layers[0], inputs, mask, row_states(draws.key, batch.rows), gradient[0]
    )


def _score_reconstruction(encode: EncodeBatch, layers: Layers, batch: TrainingBatch) -> Array:
    return score_reconstructions(layers, *encode(batch))


def _format_sizes(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def _check_layers(layers: tuple[int, ...], n_components: int | None) -> None:
    _check_growth(layers)
    if n_components not in (None, layers[-1]):
        raise FitError(
            f"{{components}} is {n_components}, but the last of {{layers}} is {layers[-1]}. "
            "Leave out one of the two.",
            parameter="components",
        )


def _check_growth(sizes: Sequence[int]) -> None:
    """Refuse a layer that is far wider than the one below."""
    for below, above in pairwise(sizes):
        if above > _MAX_GROWTH * below:
            raise FitError(
                f"{{layers}} has {above} units above {below}, more than {_MAX_GROWTH} times as "
                "many. Choose fewer.",
                parameter="layers",
            )
