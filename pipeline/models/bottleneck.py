"""Bottleneck: predict a label of each row through a few hidden units, which are the codes.

Model: h = σ(Wᵀx + b), o = Vᵀh + c. For a category, P(y = k | x) = exp(o_k) / Σ_l exp(o_l); for a
number, the mean is μ_y + σ_y o (M. Sugiyama, "Introduction to statistical machine learning", 2016,
36.2: dimensionality reduction by a three-layer network that is trained to predict the output).

Fit by maximum likelihood (least squares for a number), in gradient steps on batches
(back-propagation); `pipeline.learning.training` describes the steps. The score of a pass is the
held-out log P(y | x), or −(y − ŷ)² / 2σ_y² for a number.

Missing values are replaced by the mean of their feature. This is right if they are missing at
random and carry little information; the model does not use which values are missing. Rows without a
label are left out.

============  =============  ===============================================================
symbol        field          shape
============  =============  ===============================================================
W             weights        (n_features, n_components)
b             biases         (n_components,)
V             outputs        (n_components, n_outputs): one output per category, or one number
c             output_biases  (n_outputs,)
x̄             means          (n_features,): shares of ones in the data
y             categories     (n_outputs,): code, integer or segment of each category, ascending
P(y = k)      shares         (n_outputs,): of the categories in the data
(μ_y, σ_y)    number         (2,): of the data, instead of `categories` and `shares`
============  =============  ===============================================================

Cost per block: 6 n_samples n_components (n_features + n_outputs) multiplications. Passes: tens.
Not identifiable: the order of the hidden units, and which end of each unit is 1: h_j → 1 − h_j is
compensated by W_ij → −W_ij, b_j → −b_j, V_jk → −V_jk, c_k → c_k + V_jk. For categories, also a
constant added to all c_k, or to all V_jk of one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import GradientLearner, GradientTraining, train_on_blocks
from pipeline.models.gradient import GradientModel
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.networks.layered_network import (
    ThreeLayerNetwork,
    compute_hidden_units,
    compute_outputs,
    row_scores,
    score_gradient,
)
from pipeline.params import array_field, optional_array_field
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

_DEFAULT_COMPONENTS = 10


@dataclass(frozen=True)
class BottleneckParams:
    """Parameters; the module's table gives shapes."""

    weights: Array = array_field("feature", "component")
    biases: Array = array_field("component")
    outputs: Array = array_field("component", "output")
    output_biases: Array = array_field("output")
    means: Array = array_field("feature")
    categories: Array | None = optional_array_field("output")
    shares: Array | None = optional_array_field("output")
    number: Array | None = optional_array_field("moment")

    @property
    def is_category(self) -> bool:
        """Whether the label is a category rather than a number."""
        return self.categories is not None

    @property
    def network(self) -> ThreeLayerNetwork:
        """The learned parameters, as the kernels take them."""
        return ThreeLayerNetwork(self.weights, self.biases, self.outputs, self.output_biases)

    @property
    def theta(self) -> Array:
        """Θ, (n_numbers,): the parameters of the same network for centred inputs x − x̄.

        In these parameters, features that are mostly 1 do not dominate the steps.
        """
        centred = self.biases + self.means @ self.weights
        return np.asarray(self.network._replace(biases=centred).flatten())

    def add_change(self, change: NDArray[Any]) -> BottleneckParams:
        """Return the parameters plus a change of Θ."""
        centred = self.network.unflatten(self.theta + change)
        plain = centred._replace(biases=centred.biases - self.means @ centred.weights)
        return replace(self, **plain._asdict())

    def make_targets(self, labels: Array) -> Array:
        """Return the target outputs of known labels, (n_samples, n_outputs)."""
        if self.categories is not None:
            return np.asarray(labels[:, None] == self.categories, np.float64)
        assert self.number is not None
        mean, deviation = self.number
        return np.asarray(((labels - mean) / deviation)[:, None])

    def ignore_features(self) -> BottleneckParams:
        """Return parameters that predict every label by the shares, or the mean, of the labels."""
        biases = np.zeros(1) if self.shares is None else np.log(self.shares)
        zeros = (np.zeros_like(a) for a in (self.weights, self.biases, self.outputs))
        weights, hidden_biases, outputs = zeros  # not the fitted ones, which may have diverged
        return replace(
            self, weights=weights, biases=hidden_biases, outputs=outputs, output_biases=biases
        )

    @property
    def baseline_score(self) -> float:
        """Mean score per row if the outputs ignored the row, nats."""
        if self.shares is None:
            return -0.5
        return float((self.shares * np.log(self.shares)).sum())


@dataclass(frozen=True)
class Bottleneck(GradientModel):
    """Hyperparameters of the bottleneck.

    Attributes
    ----------
    n_components
        Number of hidden units. None takes 10.
    column
        Per-row column to predict; `segment` predicts the segment.
    kind
        Type of the label. auto treats texts and whole numbers as categories, and fractions, or
        whole numbers with more than 1,000 distinct values, as a number.
    """

    name: ClassVar[str] = "bottleneck"
    indeterminacy: ClassVar[str] = "the order of the hidden units, and which end of each is 1"
    support: ClassVar[Support] = Support(("binary", "ordinal"), splits_levels=True)
    unlinked_effect: ClassVar[str] = ""  # the labels are common to all rows
    first_statistics: ClassVar[type[LabelCounts]] = LabelCounts
    default_rates: ClassVar[Mapping[str, float]] = {"adam": 0.05, "momentum": 0.1}
    params: ClassVar[type[BottleneckParams]] = BottleneckParams
    independence: ClassVar[str] = "predictions that ignore the features"
    column: str = SEGMENT
    kind: Literal["auto", "category", "number"] = "auto"
    patience: int = setting(10, minimum=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.column:
            raise FitError(
                "{column} is empty. Set it to the name of a per-row column.", parameter="column"
            )

    def list_required_columns(self) -> tuple[str, ...]:
        """Return the column of the labels."""
        return () if self.column == SEGMENT else (self.column,)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's parameters, gradient, optimizer memory and batch."""
        n_hidden = self.n_components or _DEFAULT_COMPONENTS
        width = n_features + n_hidden + MAX_CATEGORIES
        return (n_threads + 1) * 8 * width * (10 * (n_hidden + 1) + 2 * (self.batch or 100))

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> LabelCounts:
        """MAP: count features and labels."""
        return LabelCounts.from_block(block, self.column)

    def first_key(self, seed: int) -> str:
        """Return a key that includes the column of the labels."""
        return f"first, labels {self.column}"

    def initialize(self, first: LabelCounts, rng: np.random.Generator) -> FitState:
        """Start from random weights with outputs that hardly depend on the row."""
        observed, ones = pool_margins(first.counts)
        if ((ones == 0) | (ones == observed)).all():
            raise FitError(
                "All rows have the same values, so the label cannot be predicted. Check the data."
            )
        is_category = self._is_categorical(first)
        labels = self._describe_labels(first, is_category)
        params = self._draw_first_params(ones / observed, labels, rng)
        n_labelled, baseline = int(first.moments[0]), params.baseline_score
        warnings = make_constant_feature_warnings(
            observed, ones, "they carry no information about the label"
        )
        return self._make_initial_state(params, n_labelled, params.theta.size, baseline, warnings)

    def _is_categorical(self, first: LabelCounts) -> bool:
        """Return whether the labels are categories; refuse labels that cannot be learned."""
        column, kind = self.column, self.kind
        n_different, (n_texts, n_fractions) = len(first.values), first.kinds
        if n_different < 2:
            self._refuse_equal_labels(n_different)
        has_many = n_different > MAX_CATEGORIES
        if kind == "number" and n_texts:
            raise FitError(
                f"{{kind=number}} needs numbers, but column {column!r} has texts. Keep the column "
                "as numbers, for example from a Parquet or NPZ file.",
                parameter="kind",
            )
        if kind == "number" or (kind == "auto" and not n_texts and (n_fractions or has_many)):
            return False
        if has_many:
            alternative = "" if n_texts else ", or use {kind=number}"
            raise FitError(
                f"Column {column!r} has more than {MAX_CATEGORIES:,} different labels. Choose "
                f"another {{column}}{alternative}.",
                parameter="column",
            )
        return True

    def _refuse_equal_labels(self, n_different: int) -> None:
        if self.column == SEGMENT:
            raise FitError(
                "The dataset has only one segment, so there is nothing to predict. Name a per-row "
                "column by {column=NAME}.",
                parameter="column",
            )
        problem = "the same label in all rows" if n_different else "no labels"
        raise FitError(
            f"Column {self.column!r} has {problem}. Choose another {{column}}.", parameter="column"
        )

    def _describe_labels(self, first: LabelCounts, is_category: bool) -> dict[str, Any]:
        """Return the parameters that describe the labels; refuse numbers that are too large."""
        if is_category:
            return {"categories": first.values, "shares": first.rows / first.rows.sum()}
        n_labels, mean, squares = first.moments
        deviation = np.sqrt(squares / n_labels)
        if not 0 < deviation < np.inf:
            raise FitError(
                f"Column {self.column!r} has a variance of {deviation**2:g}. Scale the column.",
                parameter="column",
            )
        return {"number": np.array([mean, deviation])}

    def _draw_first_params(
        self, means: Array, labels: Mapping[str, Array], rng: np.random.Generator
    ) -> BottleneckParams:
        """Draw weights for which the inputs of the hidden units have variance 1 / 4."""
        n_hidden = self.n_components or _DEFAULT_COMPONENTS
        spread = 0.5 / np.sqrt((means * (1 - means)).sum())
        weights = spread * rng.standard_normal((len(means), n_hidden))
        output_biases = np.log(labels["shares"]) if "shares" in labels else np.zeros(1)
        outputs = 0.1 * rng.standard_normal((n_hidden, len(output_biases)))
        biases = -means @ weights
        return BottleneckParams(weights, biases, outputs, output_biases, means, **labels)

    def learn(
        self,
        params: BottleneckParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Take steps through a task's labelled rows; return the change and the score."""
        learner = BottleneckLearner(params, self.column, self._training, working)
        score = partial(_score_rows, params, self.column)
        rows, ignoring = self._iter_labelled_rows(blocks()), params.ignore_features()
        baseline = partial(_score_rows, ignoring, self.column)
        return train_on_blocks(learner, score, rows, working, rng, baseline)

    def _iter_labelled_rows(self, blocks: Iterator[BinaryBlock]) -> Iterator[BinaryBlock]:
        for block in blocks:
            is_labelled = np.isfinite(convert_labels_to_numbers(get_labels(block, self.column)))
            if is_labelled.any():
                yield block if is_labelled.all() else block.take_rows(np.flatnonzero(is_labelled))

    def mean_log_likelihood(self, params: BottleneckParams, statistics: StepSums) -> float:
        """Return the mean score of a pass."""
        return self.objective(params, statistics)

    def independent_log_likelihood(self, state: FitState, statistics: StepSums) -> float:
        """Return the mean score of predictions that ignore the features, of the same rows."""
        sums = statistics.values
        return float(sums["judged_baseline"]) / max(int(sums["n_judged"]), 1)

    def _score_scale(self, params: BottleneckParams) -> float:
        return params.baseline_score

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        score = "log-probability" if state.params.is_category else "score"
        return {"n_components": len(state.params.biases), "objective_is": f"{score} of the label"}

    def transform(
        self, params: BottleneckParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return h as `mean`, (n_samples, n_components), without looking at the labels."""
        return {"mean": self._compute_hidden(params, block)}

    def _compute_hidden(self, params: BottleneckParams, block: BinaryBlock) -> Array:
        return compute_hidden_units(
            params.network, params.means, block.unpack_values(), block.unpack_mask()
        )

    def predict(self, params: BottleneckParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return P(y | x), (n_samples, n_categories), or the expected number, (n_samples, 1)."""
        outputs = compute_outputs(params.network, self._compute_hidden(params, block))
        if params.number is not None:
            mean, deviation = params.number
            return np.asarray(mean + deviation * outputs)
        probabilities: Array = softmax(outputs, axis=1)
        return probabilities

    def categories(self, params: BottleneckParams) -> Array | None:
        """Return the label of each category as in the fitted data, or None for a number."""
        return params.categories


class BottleneckLearner(GradientLearner):
    """The parameters Θ, (n_numbers,), while a task takes steps."""

    def __init__(
        self, params: BottleneckParams, column: str, training: GradientTraining, working: Arrays
    ) -> None:
        """Start from `params`."""
        super().__init__(params.theta.astype(np.float32), training, working)
        self._params, self._column = params, column
        self._means = params.means.astype(np.float32)
        self._network = params.network.unflatten(self.theta)  # views, which change with Θ

    def _take_step(self, batch: TrainingBatch) -> None:
        labels = _get_batch_labels(batch, self._column)
        targets = self._params.make_targets(labels).astype(np.float32)
        X = batch.X - self._means
        inputs = X if batch.observed is None else X * batch.observed
        with np.errstate(all="ignore"):  # the score reveals training that diverges
            gradient = score_gradient(self._network, inputs, targets, self._params.is_category)
        self._optimiser.step(self.theta, gradient.flatten(), self.memory, self._rate)


def _get_batch_labels(batch: TrainingBatch, column: str) -> Array:
    labels = batch.segments if column == SEGMENT else batch.columns[column]
    return convert_labels_to_numbers(labels)


def _score_rows(params: BottleneckParams, column: str, batch: TrainingBatch) -> Array:
    """Return the score of each row, (n_samples,), nats."""
    with np.errstate(all="ignore"):
        hidden = compute_hidden_units(params.network, params.means, batch.X, batch.observed)
        outputs = compute_outputs(params.network, hidden)
        targets = params.make_targets(_get_batch_labels(batch, column))
        return row_scores(outputs, targets, params.is_category)
