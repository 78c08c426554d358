"""Stack: layers of hidden units, learned one upon the other, then all together.

Model: h_k = σ(W_kᵀ h_{k−1} + b_k) up from h_0 = x to the codes h_L, and back down by the same
weights, ĥ_{k−1} = σ(W_k ĥ_k + c_k) from ĥ_L = h_L to x̂ = ĥ_0 (M. Sugiyama, "Introduction to
statistical machine learning", 2016, section 36.5; G. E. Hinton, R. R. Salakhutdinov, Science 313,
2006, who let the ways up and down part in the end). There is no P(x).

Fit in L + 1 stages. The first L learn a layer each, which must bring back what the layers below
make of a row, probabilities above the first: as autoencoders by cross-entropy (figure 36.10), or as
restricted Boltzmann machines by contrastive divergence (figure 36.13). The last unrolls the network
and goes along the gradient of Σ_i x_i log x̂_i + (1 − x_i) log(1 − x̂_i) in all its parameters, by
back-propagation. Bits of the rows that go in are masked, lest the network learn these rows by heart
(P. Vincent et al., JMLR 11, 2010). Steps and their judgement are those of
`pipeline.learning.training`, each stage judged by how well its layers bring back clean rows.
`pretrain=0` leaves out the first L stages: random weights.

Missing values are left out of the sums: of W_1ᵀx, as if they were 0, and of the score.

========  =================  ==============================================
symbol    field              shape
========  =================  ==============================================
W_k       weights_{k−1}      (n_units of layer k − 1, n_units of layer k)
c_k       visible_biases_…   (n_units of layer k − 1,)
b_k       hidden_biases_…    (n_units of layer k,); layer 0 is the features
========  =================  ==============================================

Cost a row: in the last stage 6 Σ_k n_{k−1} n_k multiplications. Passes: `pretrain` a layer, and
`max_iter`.
Not identifiable: the order of units within a layer, and whatever reconstructs as well. The error
has many local minima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.layered import (
    DEFAULT_RATES,
    Corruption,
    FillSlopes,
    NetworkLearner,
    compute_baseline_score,
    convert_batch_to_float32,
    corrupt_bits,
    count_units,
    draw_first_layer,
    score_reconstructions,
)
from pipeline.learning.training import GradientTraining, compute_finite_score, train_on_blocks
from pipeline.models.gradient import GradientModel
from pipeline.models.rbm.checks import DEFAULT_RATES as RATES_OF_CONTRAST
from pipeline.models.stack.checks import check_growth, check_settings
from pipeline.models.stack.params import StackParams, add_stage_change, format_sizes, split_at_stage
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.logistic_units import row_states
from pipeline.numerics.networks.contrast import fill_contrastive_gradient
from pipeline.numerics.networks.layer_rows import encode_layers
from pipeline.numerics.networks.layered_network import (
    Layer,
    Layers,
    count_parameters,
    fill_gradient,
    flatten_layers,
    propagate_down,
    propagate_up,
    sigmoid,
    split_into_layers,
)
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import StepSums

Array = NDArray[np.float64]

MAX_DEFAULT_COMPONENTS = 16
"""Codes where no number is given."""
_DEFAULT_LAYERS = (256, 128)  # below the codes
_SMOOTHING = 0.5


@dataclass(frozen=True)
class Stack(GradientModel):
    """Hyperparameters of the stack.

    Attributes
    ----------
    n_components
        Units of the last layer; None takes as many as `layers` says, or else as there are features,
        16 at the most.
    layers
        Units of each layer from the data up, the last being the components; None takes 256 and 128
        below the components, no more than there are features and no less than components.
    block
        What a layer is learned as: a restricted Boltzmann machine (rbm) or an autoencoder.
    pretrain
        Passes that each layer is learned by itself; 0 begins all at once at random weights.
    corruption
        How rows go in while all layers are learned, or the first as an autoencoder: as they are
        (none), with bits flipped (flip) or set to 0 (mask); clean ones should come out.
    noise
        Share of the bits that are flipped or masked.
    rate
        Length of the first steps of each stage, that of the last is 0; None takes what suits the
        optimizer.
    max_iter
        Passes of the last stage at the most.
    """

    name: ClassVar[str] = "stack"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    default_rates: ClassVar[Mapping[str, float]] = DEFAULT_RATES
    params: ClassVar[type[StackParams]] = StackParams
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("before_fine_tuning",)
    layers: tuple[int, ...] | None = None
    block: Literal["rbm", "autoencoder"] = "autoencoder"
    pretrain: int = 20
    corruption: Corruption = "mask"
    noise: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)

    def _stage_training(self, stage: int, sizes: tuple[int, ...]) -> GradientTraining:
        """Give how steps of a stage are taken; stages are numbered as the layers."""
        if stage == len(sizes) - 1:
            return self._training
        rates = RATES_OF_CONTRAST if self.block == "rbm" else DEFAULT_RATES
        return replace(GradientTraining.from_model(self, rates), max_iter=self.pretrain)

    def _get_stage_training(self, state: FitState) -> GradientTraining:
        return self._stage_training(int(state.working["stage"]), state.params.sizes)

    def _sizes(self, n_features: int) -> tuple[int, ...]:
        if self.layers is not None:
            return (n_features, *self.layers)
        n_codes = self.n_components or min(n_features, MAX_DEFAULT_COMPONENTS)
        between = (max(n_codes, min(n_features, usual)) for usual in _DEFAULT_LAYERS)
        return (n_features, *between, n_codes)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the parameters with their gradient and memory, and of units, of each task."""
        sizes = self._sizes(n_features)
        return (n_threads + 1) * (
            80 * count_parameters(sizes) + 40 * (self.batch or 100) * sum(sizes)
        )

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin at independent features, with weights that tell units apart.

        Raises
        ------
        FitError
            If a feature was never observed, or the first layer is beyond sense.
        """
        observed, ones = pool_margins(first)
        sizes = self._sizes(len(ones))
        check_growth(sizes)
        shares_of_features = (ones + _SMOOTHING) / (observed + 2 * _SMOOTHING)
        below = [shares_of_features, *(np.full(size, 0.5) for size in sizes[1:-1])]
        layers = [draw_first_layer(s, n, rng) for s, n in zip(below, sizes[1:], strict=True)]
        unlearnt = compute_baseline_score(below[0], observed / first.n_samples)
        state = FitState(
            StackParams.from_layers(layers),
            auxiliary={"unlearnt": np.array(unlearnt), "n_samples": np.array(first.n_samples)},
            warnings=make_constant_feature_warnings(observed, ones),
        )
        stage = 0 if self.pretrain else len(layers)
        return self._begin_stage(state, stage)

    def _begin_stage(self, state: FitState, stage: int) -> FitState:
        """Begin a stage."""
        sizes, unlearnt = state.params.sizes, state.auxiliary["unlearnt"]
        n_samples = int(state.auxiliary["n_samples"])
        _, learns = split_at_stage(state.params, stage)
        if 0 < stage < len(sizes) - 1:
            unlearnt = np.array(-sizes[stage] * np.log(2))
        first = self._stage_training(stage, sizes).make_working_state(
            n_samples, len(flatten_layers(learns))
        )
        return replace(state, working={**first, "stage": np.array(stage), "unlearnt": unlearnt})

    def warm_start(self, state: FitState, params: StackParams) -> FitState:
        """Begin the last stage at the weights of an earlier fit.

        Raises
        ------
        FitError
            If its layers are others.
        """
        if params.sizes != state.params.sizes:
            wanted, there = (format_sizes(p.sizes[1:]) for p in (state.params, params))
            raise FitError(
                f"--warm-start: Expected a fit with layers {wanted}, got one with {there}. "
                f"Give --layers {there}, or fit without --warm-start."
            )
        return self._begin_stage(replace(state, params=params), len(params.weights))

    def learn(
        self,
        params: StackParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Step through the rows; give the change of what is learnt, and the score of others."""
        stage = int(working["stage"])
        (below, learns), is_last = split_at_stage(params, stage), stage == len(params.weights)
        below = [Layer(*(part.astype(np.float32) for part in layer)) for layer in below]
        fill: FillSlopes = partial(self._fill_reconstruction, below, rng.stream("corruption"))
        if self.block == "rbm" and not is_last:
            fill = partial(_fill_contrast, below, rng.stream("hidden"))
        learner = NetworkLearner(self._stage_training(stage, params.sizes), working, learns, fill)
        before = split_into_layers(learner.theta.copy(), count_units(learns))
        return train_on_blocks(
            learner, partial(_score_reconstruction, below, before), blocks(), working, rng
        )

    def _fill_reconstruction(
        self, below: Layers, draws: RowRandom, batch: TrainingBatch, layers: Layers, slopes: Layers
    ) -> None:
        """Fill in the slopes of a batch; what layers make of data goes in as it is."""
        wanted, seen = _layer_inputs(below, batch)
        kind = "none" if below else self.corruption
        given = corrupt_bits(wanted, seen, kind, self.noise, batch.rows, draws)
        fill_gradient(layers, given, wanted, seen, slopes)

    def objective(self, params: StackParams, statistics: StepSums) -> float:
        """Give the score of a row held out, nats: how well the layers learnt bring back."""
        return compute_finite_score(statistics, -max(params.sizes))

    def _move_params(self, state: FitState, change: Array) -> StackParams:
        return add_stage_change(state.params, int(state.working["stage"]), change)

    def next_stage(self, state: FitState, statistics: StepSums) -> FitState | None:
        """Go on with the next layer, or with all of them."""
        stage = int(state.working["stage"]) + 1
        if stage > len(state.params.weights):
            return None
        return self._begin_stage(self._add_training_warnings(state), stage)

    def finish(self, state: FitState, statistics: StepSums) -> FitState:
        """Say how many components there are, what there was before, and what is in doubt."""
        sizes = state.params.sizes
        told = {
            "n_components": sizes[-1],
            "layers": list(sizes[1:]),
            "objective_is": "reconstruction",
            "before_fine_tuning": state.history[0],
        }
        return replace(self._add_training_warnings(state), diagnostics=told)

    def transform(
        self, params: StackParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give the units of the last layer as `mean`, (n_samples, n_components)."""
        return {"mean": encode_layers(params.layers, block.unpack_values(), block.unpack_mask())}

    def reconstruct(
        self, params: StackParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Give x̂ of codes, (n_samples, n_features); segments do not matter."""
        return sigmoid(propagate_down(params.layers, codes)[-1])


def _layer_inputs(below: Layers, batch: TrainingBatch) -> Any:
    """Give what goes into the layers that are learnt, and where it counts."""
    X, seen = convert_batch_to_float32(batch)
    return (propagate_up(below, X)[-1], None) if below else (X, seen)


def _fill_contrast(
    below: Layers, draws: RowRandom, batch: TrainingBatch, layers: Layers, slopes: Layers
) -> tuple[Any, Any]:
    given, seen = _layer_inputs(below, batch)
    return fill_contrastive_gradient(
        layers[0], given, seen, row_states(draws.key, batch.rows), slopes[0]
    )


def _score_reconstruction(below: Layers, layers: Layers, batch: TrainingBatch) -> Array:
    return score_reconstructions(layers, *_layer_inputs(below, batch))
