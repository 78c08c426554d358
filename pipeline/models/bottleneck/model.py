"""Bottleneck: a few hidden units through which a network predicts a label of each row.

Model: h = σ(Wᵀx + b), o = Vᵀh + c; a category has P(y = k | x) = exp(o_k) / Σ_l exp(o_l), a number
the mean μ_y + σ_y o (M. Sugiyama, "Introduction to statistical machine learning", 2016, 36.2:
dimensionality reduction by a three-layer network, trained to predict the output). Codes are h.

Fit by maximum likelihood, least squares for a number, in steps along the gradient of batches
(back-propagation), as `pipeline.learning.training` tells. Passes are judged by log P(y | x), or
−(y − ŷ)² / 2σ_y², of rows held out.

Missing values stand at the mean of their feature. That is right where they are missing at random
and say little; nothing is learnt from which values are missing. Rows without a label are left out.

============  =============  ================================================================
symbol        field          shape
============  =============  ================================================================
W             weights        (n_features, n_components)
b             biases         (n_components,)
V             outputs        (n_components, n_outputs): a category each, or the number
c             output_biases  (n_outputs,)
x̄             means          (n_features,): shares of ones of the data
y             categories     (n_outputs,): code, whole number or segment of each, rising
P(y = k)      shares         (n_outputs,): of the data; both only of categories
(μ_y, σ_y)    number         (2,): of the data; only of a number
============  =============  ================================================================

Cost a row and pass: 6 n_components (n_features + n_outputs) multiplications. Passes: tens.
Not identifiable: the order of hidden units, and for each which of its ends is 1: with h_j → 1 − h_j
go W_ij → −W_ij, b_j → −b_j, V_jk → −V_jk, c_k → c_k + V_jk; nor a number that is added to all c_k
and V_jk of a unit, where outputs are categories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.learning.training import compute_finite_score, train_on_blocks
from pipeline.models.bottleneck.labels import describe_labels, is_categorical
from pipeline.models.bottleneck.learner import BottleneckLearner, score_rows
from pipeline.models.bottleneck.params import BottleneckParams
from pipeline.models.gradient import GradientModel
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.networks.three_layers import compute_hidden_units, compute_outputs
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.labels import (
    MAX_CATEGORIES,
    SEGMENT,
    LabelCounts,
    convert_labels_to_numbers,
    get_labels,
)
from pipeline.statistics.sums import StepSums

Array = NDArray[np.float64]

_DEFAULT_COMPONENTS = 10


@dataclass(frozen=True)
class Bottleneck(GradientModel):
    """Hyperparameters of the bottleneck.

    Attributes
    ----------
    n_components
        Number of hidden units; None takes 10.
    column
        The per-row column that is predicted; `segment` stands for the segments.
    kind
        What the column is: auto takes texts and whole numbers as categories, and fractions, or
        whole numbers of more than 1,000 values, as a number.
    """

    name: ClassVar[str] = "bottleneck"
    first_statistics: ClassVar[type[LabelCounts]] = LabelCounts
    default_rates: ClassVar[Mapping[str, float]] = {"adam": 0.05, "momentum": 0.1}
    params: ClassVar[type[BottleneckParams]] = BottleneckParams
    column: str = SEGMENT
    kind: Literal["auto", "category", "number"] = "auto"
    patience: int = setting(10, minimum=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.column:
            raise FitError("column: Expected the name of a per-row column, got ''. Give one.")

    def list_required_columns(self) -> tuple[str, ...]:
        """Name the column of the labels."""
        return () if self.column == SEGMENT else (self.column,)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the parameters with their gradient and memory, and of a batch, of each task."""
        n_hidden = self.n_components or _DEFAULT_COMPONENTS
        width = n_features + n_hidden + MAX_CATEGORIES
        return (n_threads + 1) * 8 * width * (10 * (n_hidden + 1) + 2 * (self.batch or 100))

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> LabelCounts:
        """MAP: count features and labels."""
        return LabelCounts.from_block(block, self.column)

    def first_key(self, seed: int) -> str:
        """Name the column, too."""
        return f"first, labels {self.column}"

    def initialize(self, first: LabelCounts, rng: np.random.Generator) -> FitState:
        """Begin at outputs that hardly depend on the row, with units that differ.

        Raises
        ------
        FitError
            If a feature was never observed, all rows are the same, or labels cannot be learnt.
        """
        observed, ones = pool_margins(first.counts)
        if ((ones == 0) | (ones == observed)).all():
            raise FitError(
                "Expected rows that differ, got the same values in all of them. Check the data."
            )
        is_category = is_categorical(first, self.column, self.kind)
        labels = describe_labels(first, is_category, self.column)
        params = self._draw_first_params(ones / observed, labels, rng)
        working = self._training.make_working_state(int(first.moments[0]), params.theta.size)
        begun = {**working, "unlearnt": np.array(params.baseline_score)}
        told = make_constant_feature_warnings(observed, ones, "they tell nothing of the label")
        return FitState(params, begun, warnings=told)

    def _draw_first_params(
        self, means: Array, labels: Mapping[str, Array], rng: np.random.Generator
    ) -> BottleneckParams:
        """Draw weights with which inputs of hidden units have variance 1 / 4."""
        n_hidden = self.n_components or _DEFAULT_COMPONENTS
        spread = 0.5 / np.sqrt((means * (1 - means)).sum())
        weights = spread * rng.standard_normal((len(means), n_hidden))
        at_rest = np.log(labels["shares"]) if "shares" in labels else np.zeros(1)
        outputs = 0.1 * rng.standard_normal((n_hidden, len(at_rest)))
        biases = -means @ weights
        return BottleneckParams(weights, biases, outputs, at_rest, means, **labels)

    def learn(
        self,
        params: BottleneckParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Step through the rows that have a label."""
        training, rate = self._training, float(working["rate"])
        memory = training.copy_memory(working)
        learner = BottleneckLearner(params, self.column, training.optimiser, memory, rate)
        judge = partial(score_rows, params, self.column)
        return train_on_blocks(learner, judge, self._iter_labelled_rows(blocks()), working, rng)

    def _iter_labelled_rows(self, blocks: Iterator[BinaryBlock]) -> Iterator[BinaryBlock]:
        for block in blocks:
            known = np.isfinite(convert_labels_to_numbers(get_labels(block, self.column)))
            if known.any():
                yield block if known.all() else block.take_rows(np.flatnonzero(known))

    def objective(self, params: BottleneckParams, statistics: StepSums) -> float:
        """Give the score of a row held out, nats."""
        return compute_finite_score(statistics, params.baseline_score)

    def finish(self, state: FitState, statistics: StepSums) -> FitState:
        """Say how many hidden units there are, and what is in doubt."""
        is_category = state.params.is_category
        named = "log-probability of the label" if is_category else "score of the label"
        told = {"n_components": len(state.params.biases), "objective_is": named}
        return replace(self._add_training_warnings(state), diagnostics=told)

    def transform(
        self, params: BottleneckParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give h as `mean`, (n_samples, n_components); labels are not looked at."""
        return {"mean": self._compute_hidden(params, block)}

    def _compute_hidden(self, params: BottleneckParams, block: BinaryBlock) -> Array:
        return compute_hidden_units(
            params.network, params.means, block.unpack_values(), block.unpack_mask()
        )

    def predict(self, params: BottleneckParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Give P(y | x), (n_samples, n_categories), or the expected number, (n_samples, 1)."""
        outputs = compute_outputs(params.network, self._compute_hidden(params, block))
        if params.number is not None:
            mean, deviation = params.number
            return np.asarray(mean + deviation * outputs)
        found: Array = softmax(outputs, axis=1)
        return found

    def categories(self, params: BottleneckParams) -> Array | None:
        """Give the values that stand for the categories in the data fitted; None of a number."""
        return params.categories
