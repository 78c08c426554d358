"""Linear iVAE: a variational autoencoder for sources whose means and variances differ by segment.

Model, in segment u: z ~ N(μ, diag d), P(x_i = 1 | z) = σ(a_iᵀz + c_i). All segments share A and c
(A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022, appendix E; I. Khemakhem, D. P. Kingma, R. P. Monti,
A. Hyvärinen, "Variational Autoencoders and Nonlinear ICA", AISTATS 2020, made linear).

Fit: gradient steps on the lower bound of log P(x) under a normal q(z | x, u), whose mean and
log-variances are affine in the row and its segment. Each row gets one draw of z per step.
`pipeline.learning.training` takes the steps and judges them. `lower_bound` is computed without
draws.

==========  ================  ==============================================
symbol      field             shape
==========  ================  ==============================================
A           mixing            (n_features, n_components)
c           offsets           (n_features,)
μ           source_means      (n_segments, n_components)
d           source_variances  (n_segments, n_components)
W, w        code_weights      (n_features, n_components): E_q z = Wᵀ(x − x̄) + w
            code_offsets      (n_segments, n_components)
V, v        spread_weights    (n_features, n_components): log var_q z = Vᵀ(x − x̄) + v
            spread_offsets    (n_segments, n_components)
x̄           means             (n_features,): shares of ones of the data
==========  ================  ==============================================

Missing values: q sees the mean of the feature, and the likelihood leaves the value out. The bound
is then a bound of the observed values, which is right if values are missing at random.
Cost per row: about 12 n_features n_components multiplications. Passes: tens.
Not identifiable: order, sign and length of columns (ordered by explained variance, largest entry
positive, length 1); a common shift of c and μ (μ has mean 0 over rows); sources whose means and
variances change alike.
Accuracy: the bound is loose for strong sources, and then may be largest away from the true A,
however many rows there are. With 40 segments of 1,000 rows of `example:nonstationary`, the mean
cosine similarity to the true A was 0.96 for 6 features of 2 sources (median of 10 seeds; 4 seeds
reached only 0.68 to 0.85, and the seed at 0.69 did not improve from the true A). Over 5 seeds it
was 0.74 for 10 features of 5 sources, 0.64 for 6 of 6 and 0.61 for 10 of 10. With no more features
than sources it is hardly better than FastICA, or worse. In a fit to rows drawn from a fit, shares
of pairs are off by up to 0.01 for 10 features and 0.03 for 40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.data.blocks import BinaryBlock
from pipeline.data.segments import draw_segments
from pipeline.errors import FitError
from pipeline.learning.batches import TrainingBatch, take_batch_rows
from pipeline.learning.layered import compute_baseline_score
from pipeline.learning.training import (
    Optimiser,
    OptimiserMemory,
    compute_finite_score,
    train_on_blocks,
)
from pipeline.models.binary_ica.affine_vae import (
    AffineVAE,
    VAEBatch,
    lower_bound_gradient,
    row_lower_bounds,
)
from pipeline.models.gradient import GradientModel
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.networks.affine_rows import affine_outputs
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import StepSums

Array = NDArray[np.float64]
Singles = NDArray[np.float32]
Bits = NDArray[np.uint8]
Index = NDArray[np.int64]

_DEFAULT_COMPONENTS = 2
_SMOOTHING = 0.5


@dataclass(frozen=True)
class LinearIVAEParams:
    """Parameters; the module's table gives shapes. Segments are those with rows."""

    mixing: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    source_means: Array = array_field("segment", "component")
    source_variances: Array = array_field("segment", "component")
    code_weights: Array = array_field("feature", "component")
    code_offsets: Array = array_field("segment", "component")
    spread_weights: Array = array_field("feature", "component")
    spread_offsets: Array = array_field("segment", "component")
    means: Array = array_field("feature")
    segments: NDArray[np.int64] = array_field("segment")
    segment_rows: NDArray[np.int64] = array_field("segment")

    @property
    def vae(self) -> AffineVAE:
        """Parameters in the form that kernels take."""
        return AffineVAE(
            self.mixing,
            self.offsets,
            self.code_weights,
            self.spread_weights,
            self.code_offsets,
            self.spread_offsets,
            self.source_means,
            np.log(self.source_variances),
        )

    def segment_vae(self, index: int) -> AffineVAE:
        """Return the parameters of one segment; unfitted segments get the mean of the others."""
        is_segment = self.segments == index
        weights = is_segment if is_segment.any() else self.segment_rows
        shares = (weights / weights.sum())[None]
        return self.vae._replace(
            code_offsets=shares @ self.code_offsets,
            spread_offsets=shares @ self.spread_offsets,
            source_means=shares @ self.source_means,
            log_variances=np.log(shares @ self.source_variances),
        )

    def add_change(self, change: Array) -> LinearIVAEParams:
        """Add a change to all learnt parameters, laid out as by `AffineVAE.flatten`."""
        moved = self.vae.unflatten(self.vae.flatten() + change)._asdict()
        variances = np.exp(moved.pop("log_variances"))
        return replace(self, **moved, source_variances=variances)

    def normalize_columns(self) -> LinearIVAEParams:
        """Normalise columns to length 1, sign and order, and sources to mean 0 over rows."""
        shares = self.segment_rows / self.segment_rows.sum()
        lengths = np.linalg.norm(self.mixing, axis=0)
        lengths = np.where(lengths > 0, lengths, 1.0)
        order = np.argsort(-(shares @ self.source_variances) * lengths**2, kind="stable")
        mixing = fix_signs((self.mixing / lengths)[:, order])
        scale = np.where((mixing * self.mixing[:, order]).sum(axis=0) < 0, -1, 1) * lengths[order]
        centre = shares @ self.source_means
        return replace(
            self,
            mixing=mixing,
            offsets=self.offsets + self.mixing @ centre,
            source_means=(self.source_means - centre)[:, order] * scale,
            source_variances=self.source_variances[:, order] * scale**2,
            code_weights=self.code_weights[:, order] * scale,
            code_offsets=(self.code_offsets - centre)[:, order] * scale,
            spread_weights=self.spread_weights[:, order],
            spread_offsets=self.spread_offsets[:, order] + 2 * np.log(np.abs(scale)),
        )


@dataclass(frozen=True)
class LinearIVAE(GradientModel):
    """Hyperparameters of the linear iVAE.

    Attributes
    ----------
    n_components
        Number of components; None takes 2.
    """

    name: ClassVar[str] = "linear-ivae"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    default_rates: ClassVar[Mapping[str, float]] = {"adam": 0.03, "momentum": 0.1}
    params: ClassVar[type[LinearIVAEParams]] = LinearIVAEParams
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
    }

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the parameters with gradient and optimiser memory, and of a batch, per task."""
        n_components = self.n_components or _DEFAULT_COMPONENTS
        numbers = (3 * n_features + 4 * n_segments) * n_components + n_features
        units = 40 * (self.batch or 100) * (n_features + n_components)
        return (n_threads + 1) * (80 * numbers + units)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Start with a weak mixing, and the posterior of the sources under it.

        Raises
        ------
        FitError
            If there is only one segment, there are more components than features, or a feature was
            never observed.
        """
        observed, ones = pool_margins(first)
        self._check_shape(len(ones), len(first.segments))
        shares = (ones + _SMOOTHING) / (observed + 2 * _SMOOTHING)
        params = self._draw_first_params(first, shares, rng)
        baseline = compute_baseline_score(shares, observed / first.n_samples)
        working = self._training.make_working_state(first.n_samples, params.vae.flatten().size)
        initial_state = {**working, "unlearnt": np.array(baseline)}
        return FitState(
            params, initial_state, warnings=make_constant_feature_warnings(observed, ones)
        )

    def _check_shape(self, n_features: int, n_segments: int) -> None:
        if n_segments < 2:
            raise FitError(
                f"The linear iVAE needs at least 2 segments, but there is {n_segments}. "
                "Give the segment of each row by {segment}, or fit another model."
            )
        if self.n_components is not None and self.n_components > n_features:
            raise FitError(
                f"{{components}} is {self.n_components}, but there are only {n_features} features.",
                parameter="components",
            )

    def _draw_first_params(
        self, first: FeatureCounts, shares: Array, rng: np.random.Generator
    ) -> LinearIVAEParams:
        shape = len(shares), min(self.n_components or _DEFAULT_COMPONENTS, len(shares))
        mixing = rng.standard_normal(shape)
        slope = shares * (1 - shares)
        precision = np.eye(shape[1]) + (mixing.T * slope) @ mixing
        zeros = np.zeros((len(first.segments), shape[1]))
        return LinearIVAEParams(
            mixing=mixing,
            offsets=logit(shares),
            code_weights=scipy.linalg.solve(precision, mixing.T, assume_a="pos").T,
            spread_weights=np.zeros(shape),
            code_offsets=zeros,
            spread_offsets=zeros - np.log(np.diag(precision)),
            source_means=zeros,
            source_variances=zeros + 1,
            means=shares,
            segments=first.segments,
            segment_rows=first.rows,
        )

    def learn(
        self,
        params: LinearIVAEParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Train on the rows; return the change of all parameters and the bound of held-out rows."""
        training, rate = self._training, float(working["rate"])
        memory, draws = training.copy_memory(working), rng.stream("codes")
        learner = _IVAELearner(params, training.optimiser, memory, rate, draws)
        return train_on_blocks(learner, partial(_score_rows, params), blocks(), working, rng)

    def objective(self, params: LinearIVAEParams, statistics: StepSums) -> float:
        """Return the mean bound of a held-out row, in nats."""
        return compute_finite_score(statistics, -len(params.offsets))

    def finish(self, state: FitState, statistics: StepSums) -> FitState:
        """Normalise the columns, and add diagnostics and warnings."""
        params = state.params.normalize_columns()
        diagnostics = {"n_components": params.mixing.shape[1], "objective_is": "lower bound"}
        return replace(self._add_training_warnings(state), params=params, diagnostics=diagnostics)

    def transform(
        self, params: LinearIVAEParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the mean and variance of q(z | x, u), (n_samples, n_components) each."""
        vae, X, observed = (
            params.segment_vae(block.segment),
            block.unpack_values(),
            block.unpack_mask(),
        )
        encoders = ((vae.code_weights, vae.code_offsets), (vae.spread_weights, vae.spread_offsets))
        mean, log_variance = (
            affine_outputs(weights, offsets[0] - params.means @ weights, params.means, X, observed)
            for weights, offsets in encoders
        )
        return {"mean": mean, "variance": np.exp(log_variance)}

    def lower_bound(self, params: LinearIVAEParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Compute the lower bound of log P(x) of each row's observed values, (n_samples,)."""
        vae, places = params.segment_vae(block.segment), np.zeros(block.n_samples, np.int64)
        return row_lower_bounds(
            vae, _make_rows(params.means, block.unpack_values(), block.unpack_mask(), places)
        )

    def sample(
        self,
        params: LinearIVAEParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features); by default segments are as frequent as their rows."""
        if segments is None:
            segments = draw_segments(params, n_samples, rng)
        z = rng.standard_normal((n_samples, params.mixing.shape[1]))
        for index in np.unique(segments):
            vae, rows = params.segment_vae(index), segments == index
            z[rows] = vae.source_means + np.exp(vae.log_variances / 2) * z[rows]
        X = rng.random((n_samples, len(params.mixing))) < self.reconstruct(params, z)
        return X.astype(np.uint8)

    def reconstruct(
        self, params: LinearIVAEParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(x = 1 | z), (n_samples, n_features); segments do not matter."""
        probabilities: Array = expit(codes @ params.mixing.T + params.offsets)
        return probabilities


class _IVAELearner:
    """Parameters during the batches of a task, in single precision.

    Attributes
    ----------
    theta
        All learnt parameters, (n_numbers,).
    memory
        Memory of the optimiser.
    n_rows
        Number of rows used in steps.
    """

    def __init__(
        self,
        params: LinearIVAEParams,
        optimiser: Optimiser,
        memory: OptimiserMemory,
        rate: float,
        draws: RowRandom,
    ) -> None:
        """Start with the given parameters; `memory` is changed in place."""
        self.theta: Singles = params.vae.flatten().astype(np.float32)
        self.memory, self.n_rows = memory, 0
        self._params, self._optimiser, self._rate, self._draws = params, optimiser, rate, draws
        self._vae = params.vae.unflatten(self.theta)  # views of Θ, which change with it

    def step(self, batch: TrainingBatch, places: NDArray[np.int64]) -> None:
        """Take a step with some rows of a batch; do nothing without rows."""
        if not len(places):
            return
        rows = _select_known_rows(self._params, take_batch_rows(batch, places), np.float32)
        noise = self._draws.normal(batch.rows[places], self._vae.mixing.shape[1])
        with np.errstate(all="ignore"):  # diverging training shows in its score
            gradient = lower_bound_gradient(self._vae, rows, noise.astype(np.float32))
        self._optimiser.step(self.theta, gradient.flatten(), self.memory, self._rate)
        self.n_rows += len(places)


def _select_known_rows(
    params: LinearIVAEParams, batch: TrainingBatch, dtype: type[Any] = np.float64
) -> VAEBatch:
    """Return the rows of a batch whose segments were fitted, as numbers of the given dtype."""
    places = np.searchsorted(params.segments, batch.segments)
    return _make_rows(params.means, batch.X, batch.observed, places, dtype)


def _make_rows(
    means: Array, X: Bits, observed: Bits | None, places: Index, dtype: type[Any] = np.float64
) -> VAEBatch:
    values = X.astype(dtype)
    inputs = values - means.astype(dtype)
    if observed is None:
        return VAEBatch(values, inputs, None, places)
    seen = observed.astype(dtype)
    return VAEBatch(values * seen, inputs * seen, seen, places)


def _score_rows(params: LinearIVAEParams, batch: TrainingBatch) -> Array:
    with np.errstate(all="ignore"):
        return row_lower_bounds(params.vae, _select_known_rows(params, batch))
