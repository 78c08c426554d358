"""Linear iVAE: a variational autoencoder for sources whose means and variances differ by segment.

Model, in segment u: z ~ N(μ, diag d), P(x_i = 1 | z) = σ(a_iᵀz + c_i). All segments share A and c
(A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022, appendix E; I. Khemakhem, D. P. Kingma, R. P. Monti,
A. Hyvärinen, "Variational Autoencoders and Nonlinear ICA", AISTATS 2020, made linear).

Fit: gradient steps on the lower bound of log P(x) under a normal q(z | x, u), whose mean and
log-variances are affine in the row and its segment. Each row gets one draw of z per step.
`pipeline.learning.training` describes the steps.

The bound on log P(x) is E_q log P(x | z) − KL(q ‖ N(μ, diag d)). `lower_bound` is computed without
draws: it has a closed form except for an expectation over each logit a_iᵀz + c_i, which is normal
under q.

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
is then a bound of the observed values, which is right if values are missing at random. The mixing
starts from factors of the correlations of pairs, so that signs of features that few rows link suit
each other.
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
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.arrays import Array, Bits
from pipeline.data.blocks import BinaryBlock
from pipeline.data.matching import draw_segments
from pipeline.errors import FitError
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.training import (
    GradientLearner,
    GradientTraining,
    compute_judged_log_likelihood,
    train_on_blocks,
)
from pipeline.models.binary_ica.rotations import (
    UNLINKED_SOURCES,
    find_rotatable_sources,
    warn_about_rotations,
)
from pipeline.models.gradient import (
    GradientModel,
    compute_baseline_score,
    draw_first_weights,
    find_factors,
)
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.logistic.logistic_units import mean_softplus
from pipeline.numerics.networks.boltzmann_rows import affine_outputs
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import NumberRange, array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import make_constant_feature_warnings, pool_margins
from pipeline.statistics.pair_moments import PairMoments, estimate_memory_of_moments
from pipeline.statistics.sums import StepSums

Index = NDArray[np.int64]
Numbers = NDArray[Any]

_DEFAULT_COMPONENTS = 2
_SMOOTHING = 0.5
_MIN_RELIABILITY = 0.01


@dataclass(frozen=True)
class LinearIVAEParams:
    """Parameters, for segments that have rows; the module's table gives shapes."""

    mixing: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    source_means: Array = array_field("segment", "component")
    source_variances: Array = array_field("segment", "component", allowed=NumberRange(minimum=0))
    code_weights: Array = array_field("feature", "component")
    code_offsets: Array = array_field("segment", "component")
    spread_weights: Array = array_field("feature", "component")
    spread_offsets: Array = array_field("segment", "component")
    means: Array = array_field("feature")
    segments: NDArray[np.int64] = array_field("segment", allowed=NumberRange(minimum=0))
    segment_rows: NDArray[np.int64] = array_field("segment", allowed=NumberRange(minimum=1))

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
        """Add a change to all learned parameters, ordered as in `AffineVAE.flatten`."""
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
    indeterminacy: ClassVar[str] = (
        "the order, signs and lengths of the components, and those that change alike"
    )
    support: ClassVar[Support] = Support(parts=("groups",))
    unlinked_effect: ClassVar[str] = UNLINKED_SOURCES
    first_statistics: ClassVar[type[PairMoments]] = PairMoments
    default_rates: ClassVar[Mapping[str, float]] = {"adam": 0.03, "momentum": 0.1}
    params: ClassVar[type[LinearIVAEParams]] = LinearIVAEParams
    signed_arrays: ClassVar[tuple[str, ...]] = (
        "mixing",
        "source_means",
        "code_weights",
        "code_offsets",
    )
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
    }

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's parameters, gradient, optimizer memory and batch."""
        n_components = self.n_components or _DEFAULT_COMPONENTS
        numbers = (3 * n_features + 4 * n_segments) * n_components + n_features
        units = 40 * (self.batch or 100) * (n_features + n_components)
        pairs = estimate_memory_of_moments(n_features, 1)
        return (n_threads + 1) * max(80 * numbers + units, pairs)

    def initialize(self, first: PairMoments, rng: np.random.Generator) -> FitState:
        """Start with a weak mixing, and the posterior of the sources under it."""
        observed, ones = pool_margins(first.counts)
        self._check_shape(len(ones), len(first.counts.segments))
        shares = (ones + _SMOOTHING) / (observed + 2 * _SMOOTHING)
        params = self._draw_first_params(first, shares, rng)
        baseline = compute_baseline_score(shares, observed / first.n_rows)
        n_numbers = params.vae.flatten().size
        warnings = make_constant_feature_warnings(observed, ones)
        return self._make_initial_state(params, first.n_rows, n_numbers, baseline, warnings)

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
        self, first: PairMoments, shares: Array, rng: np.random.Generator
    ) -> LinearIVAEParams:
        shape = len(shares), min(self.n_components or _DEFAULT_COMPONENTS, len(shares))
        factors, counts = find_factors(first, shape[1], rng), first.counts
        mixing = draw_first_weights(factors, *shape, rng)
        slope = shares * (1 - shares)
        precision = np.eye(shape[1]) + (mixing.T * slope) @ mixing
        zeros = np.zeros((len(counts.segments), shape[1]))
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
            segments=counts.segments,
            segment_rows=counts.rows,
        )

    def learn(
        self,
        params: LinearIVAEParams,
        working: Arrays,
        blocks: Callable[[], Iterator[BinaryBlock]],
        rng: RowRandom,
    ) -> StepSums | None:
        """Take steps through a task's rows; return the change and the bound of held-out rows."""
        learner = _IVAELearner(params, self._training, working, rng.stream("codes"))
        return train_on_blocks(learner, partial(_score_rows, params), blocks(), working, rng)

    def _score_scale(self, params: LinearIVAEParams) -> float:
        return -len(params.offsets)

    def mean_log_likelihood(self, params: LinearIVAEParams, statistics: StepSums) -> float:
        """Return the mean lower bound of the rows that score the pass."""
        return self.objective(params, statistics)

    def independent_log_likelihood(self, state: FitState, statistics: StepSums) -> float:
        """Return the mean log-likelihood of independent features, of the same rows."""
        return compute_judged_log_likelihood(state.params.means, statistics)

    def finish(self, state: FitState, statistics: StepSums) -> FitState:
        """Normalise the columns, and add diagnostics and warnings."""
        params = state.params.normalize_columns()
        diagnostics = {"n_components": params.mixing.shape[1], "objective_is": "lower bound"}
        state = self._add_training_warnings(state)
        rotatable = find_rotatable_sources(
            np.log(params.source_variances), _estimate_variance_errors(params)
        )
        warnings = (*state.warnings, *warn_about_rotations(rotatable))
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def transform(
        self, params: LinearIVAEParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the mean and variance of q(z | x, u), (n_samples, n_components) each."""
        vae = params.segment_vae(block.segment)
        X, observed = block.unpack_values(), block.unpack_mask()
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


class _IVAELearner(GradientLearner):
    """All learned parameters, (n_numbers,), while a task takes steps."""

    def __init__(
        self,
        params: LinearIVAEParams,
        training: GradientTraining,
        working: Arrays,
        draws: RowRandom,
    ) -> None:
        """Start with the given parameters."""
        super().__init__(params.vae.flatten().astype(np.float32), training, working)
        self._params, self._draws = params, draws
        self._vae = params.vae.unflatten(self.theta)  # views of Θ, which change with it

    def _take_step(self, batch: TrainingBatch) -> None:
        rows = _make_batch_rows(self._params, batch, np.float32)
        noise = self._draws.normal(batch.rows, self._vae.mixing.shape[1])
        with np.errstate(all="ignore"):  # the score reveals training that diverges
            gradient = lower_bound_gradient(self._vae, rows, noise.astype(np.float32))
        self._optimiser.step(self.theta, gradient.flatten(), self.memory, self._rate)


def _estimate_variance_errors(params: LinearIVAEParams) -> Array:
    """Estimate covariances of errors of log-variances, (n_segments, n_components, n_components).

    A row tells as much about a variance as the square of the share that is not left in q.
    """
    left = np.exp(params.spread_offsets) / params.source_variances
    reliability = np.clip(1 - left, _MIN_RELIABILITY, 1.0)
    errors = 2 / (params.segment_rows[:, None] * reliability**2)
    covariances: Array = errors[:, :, None] * np.eye(errors.shape[1])
    return covariances


def _make_batch_rows(
    params: LinearIVAEParams, batch: TrainingBatch, dtype: type[Any] = np.float64
) -> VAEBatch:
    """Return the rows of a batch, whose segments must have been fitted, as numbers of a dtype."""
    places = np.searchsorted(params.segments, batch.segments)
    return _make_rows(params.means, batch.X, batch.observed, places, dtype)


def _make_rows(
    means: Array, X: Bits, observed: Bits | None, places: Index, dtype: type[Any] = np.float64
) -> VAEBatch:
    values = X.astype(dtype)
    inputs = values - means.astype(dtype)
    if observed is None:
        return VAEBatch(values, inputs, None, places)
    mask = observed.astype(dtype)
    return VAEBatch(values * mask, inputs * mask, mask, places)


def _score_rows(params: LinearIVAEParams, batch: TrainingBatch) -> Array:
    with np.errstate(all="ignore"):
        return row_lower_bounds(params.vae, _make_batch_rows(params, batch))


class AffineVAE(NamedTuple):
    """Parameters, or their gradient, all of one dtype.

    Attributes
    ----------
    mixing, offsets
        A, (n_features, n_components), and c, (n_features,).
    code_weights, spread_weights
        W and V, (n_features, n_components).
    code_offsets, spread_offsets
        w and v, (n_segments, n_components).
    source_means, log_variances
        μ and log d, (n_segments, n_components).
    """

    mixing: Numbers
    offsets: Numbers
    code_weights: Numbers
    spread_weights: Numbers
    code_offsets: Numbers
    spread_offsets: Numbers
    source_means: Numbers
    log_variances: Numbers

    def flatten(self) -> Numbers:
        """Return all parameters in one vector, (n_numbers,)."""
        return np.concatenate([part.ravel() for part in self])

    def unflatten(self, flat: Numbers) -> AffineVAE:
        """Return parameters of these shapes whose arrays are views of `flat`."""
        ends = np.cumsum([part.size for part in self])[:-1]
        parts = zip(np.split(flat, ends), self, strict=True)
        return AffineVAE(*(values.reshape(part.shape) for values, part in parts))


class VAEBatch(NamedTuple):
    """Rows as numbers of one dtype."""

    X: Numbers  # bits, (n_samples, n_features), 0 where missing
    inputs: Numbers  # bits minus the means of their features, 0 where missing
    mask: Numbers | None  # 1 where observed, 0 where missing; None if all values are observed
    segments: Index  # place of each row's segment, (n_samples,)


def encoder_moments(vae: AffineVAE, rows: VAEBatch) -> tuple[Numbers, Numbers]:
    """Return the means and the log-variances of q, (n_samples, n_components) each."""
    means = rows.inputs @ vae.code_weights + vae.code_offsets[rows.segments]
    return means, rows.inputs @ vae.spread_weights + vae.spread_offsets[rows.segments]


def lower_bound_gradient(vae: AffineVAE, rows: VAEBatch, noise: Numbers) -> AffineVAE:
    """Compute the gradient of the mean lower bound of rows, with one draw of z per row.

    `noise` (n_samples, n_components) is standard normal: z is the mean of q plus the noise times
    its deviation (D. P. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014, eq. 10).
    """
    share = rows.X.dtype.type(1 / len(rows.X))
    means, log_spreads = encoder_moments(vae, rows)
    deviations = np.exp(log_spreads / 2)
    z = means + deviations * noise
    error = (rows.X - expit(z @ vae.mixing.T + vae.offsets)) * share
    if rows.mask is not None:
        error *= rows.mask
    down = error @ vae.mixing
    precisions = np.exp(-vae.log_variances[rows.segments]) * share
    pull = (means - vae.source_means[rows.segments]) * precisions
    spread = deviations**2 * precisions
    by_mean = down - pull
    by_log_spread = (down * noise * deviations - spread + share) / 2
    by_log_variance = (spread + pull**2 / precisions - share) / 2
    up = (rows.inputs.T @ by_mean, rows.inputs.T @ by_log_spread)
    row_gradients = np.stack([by_mean, by_log_spread, pull, by_log_variance], axis=1)
    sums = np.zeros((len(vae.source_means), *row_gradients.shape[1:]), row_gradients.dtype)
    np.add.at(sums, rows.segments, row_gradients)
    by_segment = np.ascontiguousarray(np.moveaxis(sums, 1, 0))
    return AffineVAE(error.T @ z, error.sum(axis=0), *up, *by_segment)


def row_lower_bounds(vae: AffineVAE, rows: VAEBatch) -> Array:
    """Compute the bound of each row over its observed values, in nats, (n_samples,)."""
    means, log_spreads = encoder_moments(vae, rows)
    spreads = np.exp(log_spreads)
    logits = means @ vae.mixing.T + vae.offsets
    nats = rows.X * logits - mean_softplus(logits, np.sqrt(spreads @ vae.mixing.T**2))
    if rows.mask is not None:
        nats *= rows.mask
    return np.asarray(nats.sum(axis=1) - _kl_divergences(vae, rows, means, log_spreads), np.float64)


def _kl_divergences(
    vae: AffineVAE, rows: VAEBatch, means: Numbers, log_spreads: Numbers
) -> Numbers:
    """Compute KL(q ‖ prior) of each row, (n_samples,)."""
    differences = means - vae.source_means[rows.segments]
    log_ratios = log_spreads - vae.log_variances[rows.segments]
    scaled = differences**2 * np.exp(-vae.log_variances[rows.segments])
    return np.asarray((np.exp(log_ratios) - log_ratios - 1 + scaled).sum(axis=1) / 2)
