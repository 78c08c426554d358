"""Parameters of binary ICA by likelihood, and the scoring steps that maximise their posterior.

The information matrix is the sum of products of scores (Berndt, Hall, Hall & Hausman 1974) plus the
precision of the priors. Parameters of different segments interact only through the shared
parameters, so they are eliminated segment by segment. If the data do not follow the model, products
of scores do not equal the curvature; the changes of the scores over the last steps correct it
(limited-memory BFGS), unless a step was so long that the curvature changed along it. Steps follow
the curves along which the likelihood stays the same (`move_point`). Priors are normal. Their
variances are estimated by empirical Bayes with Laplace's approximation, one step of MacKay's fixed
point (Neural Computation 4 (1992), 415–447) per pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.features import MAX_LEVELS
from pipeline.errors import FitError
from pipeline.models.binary_ica.level_gaps import (
    join_level_offsets,
    make_gap_matrix,
    split_level_offsets,
)
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE, ContinuousUnits, SegmentModel
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.statistics.sums import ScoreSums

_PRIOR_WEIGHT = 12.0  # of the prior of norms, per norm that the data leave open
# Of the priors of log gaps and log scales; that of gaps matters only for levels without rows.
_GAP_VARIANCE = _SCALE_VARIANCE = 4.0
_MAX_PATH_POINTS = 8
_MAX_STEP = 1.0  # change of a log variance
_MAX_CURVATURE = 10.0  # times that by the information, along moves that correct it
_MAX_MIXING_STEP = 0.9  # change of A by its largest entry; at 1, it could become 0


class ParameterPoint(NamedTuple):
    """The parameters being optimised; lengths of columns are not fixed.

    Attributes
    ----------
    mixing, offsets
        A, (n_features, n_components), and c, (n_features,).
    means, log_variances
        Means and log variances of the sources, (n_segments, n_components).
    log_gaps
        Log gaps between the offsets of levels, (n_gaps,); none if all features are binary.
    log_scales
        Log standard deviations of the noise of continuous features, in units of the deviations of
        their values, (n_continuous,).
    """

    mixing: Array
    offsets: Array
    means: Array
    log_variances: Array
    log_gaps: Array = np.zeros(0)
    log_scales: Array = np.zeros(0)

    @property
    def n_shared(self) -> int:
        """Number of values that all segments share."""
        return self.mixing.size + self.offsets.size + self.log_gaps.size + self.log_scales.size

    def to_vector(self) -> Array:
        """Return all values in one vector.

        A, c, log gaps and log scales are followed by μ and log σ², segment by segment.
        """
        segments = np.hstack([self.means, self.log_variances])
        shared = self.mixing.ravel(), self.offsets, self.log_gaps, self.log_scales
        return np.concatenate([*shared, segments.ravel()])

    def from_vector(self, flat: Array) -> ParameterPoint:
        """Invert `to_vector` for a point of the same shapes."""
        n_entries, n_components = self.mixing.size, self.mixing.shape[1]
        n_offsets = n_entries + self.offsets.size
        n_gaps = n_offsets + self.log_gaps.size
        segments = flat[self.n_shared :].reshape(-1, 2 * n_components)
        return ParameterPoint(
            flat[:n_entries].reshape(self.mixing.shape),
            flat[n_entries:n_offsets],
            segments[:, :n_components],
            segments[:, n_components:],
            flat[n_offsets:n_gaps],
            flat[n_gaps : self.n_shared],
        )


@dataclass(frozen=True)
class BinaryICALikelihoodParams:
    """Parameters, for segments that have rows; the table in `likelihood.py` gives shapes.

    Attributes
    ----------
    mixing_error, offsets_error
        Standard errors of the entries of A, for columns of length 1, and of c. They are NaN for
        sources of which any rotation fits as well.
    log_variances_error
        Standard errors of log σ², likewise.
    n_levels
        Number of levels of each feature, 1 of a continuous one; None if all are binary.
    level_offsets, level_offsets_error
        The c of planes, whose mean is the c of their feature, and standard errors; None if all
        features are binary.
    number_means, number_deviations
        Mean and standard deviation of the values of each continuous feature; None, as all arrays
        of continuous features, if there are none.
    number_scales, number_scales_error
        Standard deviation of the noise of each continuous feature, and its standard error.
    """

    mixing: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    source_means: Array = array_field("segment", "component")
    source_variances: Array = array_field("segment", "component", allowed=NumberRange(minimum=0))
    mixing_error: Array = array_field("feature", "component")
    offsets_error: Array = array_field("feature")
    log_variances_error: Array = array_field("segment", "component")
    segments: NDArray[np.int64] = array_field("segment", allowed=NumberRange(minimum=0))
    segment_rows: NDArray[np.int64] = array_field("segment", allowed=NumberRange(minimum=1))
    n_levels: NDArray[np.int64] | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=1, maximum=MAX_LEVELS)
    )
    level_offsets: Array | None = optional_array_field("plane")
    level_offsets_error: Array | None = optional_array_field("plane")
    number_means: Array | None = optional_array_field("continuous")
    number_deviations: Array | None = optional_array_field(
        "continuous", allowed=NumberRange(above=0)
    )
    number_scales: Array | None = optional_array_field("continuous", allowed=NumberRange(above=0))
    number_scales_error: Array | None = optional_array_field("continuous")

    @property
    def point(self) -> ParameterPoint:
        """The values that steps change."""
        point = ParameterPoint(
            self.mixing, self.offsets, self.source_means, np.log(self.source_variances)
        )
        if self.level_offsets is not None and self.n_levels is not None:
            _, log_gaps = split_level_offsets(self.level_offsets, self.n_levels)
            point = point._replace(log_gaps=log_gaps)
        if self.number_scales is not None and self.number_deviations is not None:
            point = point._replace(log_scales=np.log(self.number_scales / self.number_deviations))
        return point

    @property
    def gap_slopes(self) -> Array | None:
        """Derivatives of offsets of planes by log gaps, (n_planes, n_gaps); None without levels."""
        if self.n_levels is None:
            return None
        return make_gap_matrix(self.n_levels) * np.exp(self.point.log_gaps)

    def with_point(self, point: ParameterPoint) -> BinaryICALikelihoodParams:
        """Return parameters with the values of a point."""
        level_offsets = scales = None
        if self.n_levels is not None:
            level_offsets = join_level_offsets(point.offsets, point.log_gaps, self.n_levels)
        if self.number_deviations is not None:
            scales = self.number_deviations * np.exp(point.log_scales)
        return replace(
            self,
            mixing=point.mixing,
            offsets=point.offsets,
            source_means=point.means,
            source_variances=np.exp(point.log_variances),
            level_offsets=level_offsets,
            number_scales=scales,
        )

    def segment_model(self, index: int) -> SegmentModel:
        """Return the model of a segment; unfitted segments get the mean of the others."""
        is_segment = self.segments == index
        weights = is_segment if is_segment.any() else self.segment_rows
        shares = weights / weights.sum()
        means, variances = shares @ self.source_means, shares @ self.source_variances
        slopes = PROBIT_SCALE * self.mixing
        offsets = self.offsets if self.level_offsets is None else self.level_offsets
        n_levels = np.full(len(slopes), 2) if self.n_levels is None else self.n_levels
        model = SegmentModel(slopes, -offsets, means, variances, n_levels)
        shifts, deviations = (
            model.repeat_for_planes(values)
            for values in (slopes @ means, np.sqrt(1 + slopes**2 @ variances))
        )
        model = model._replace(thresholds=-(offsets + shifts) / deviations)
        if self.number_means is None or self.number_scales is None:
            return model
        latents = (self.offsets + slopes @ means)[model.is_continuous]
        return model._replace(
            continuous=ContinuousUnits(latents, self.number_means, self.number_scales)
        )

    def order_columns(self) -> NDArray[np.intp]:
        """Return the columns in the order of the variance that they explain, (n_components,)."""
        shares = self.segment_rows / self.segment_rows.sum()
        lengths = np.linalg.norm(self.mixing, axis=0)
        return np.argsort(-(shares @ self.source_variances) * lengths**2, kind="stable")

    def without_errors(self, sets: Sequence[Sequence[int]]) -> BinaryICALikelihoodParams:
        """Return the parameters without standard errors of these sources: NaN."""
        columns = [k for own in sets for k in own]
        mixing, log_variances = self.mixing_error.copy(), self.log_variances_error.copy()
        mixing[:, columns] = log_variances[:, columns] = np.nan
        return replace(self, mixing_error=mixing, log_variances_error=log_variances)

    def normalize_columns(self) -> BinaryICALikelihoodParams:
        """Normalise columns to length 1, sign and order. Errors refer to that length already."""
        lengths, order = np.linalg.norm(self.mixing, axis=0), self.order_columns()
        mixing = fix_signs((self.mixing / lengths)[:, order])
        signs = np.sign((mixing * self.mixing[:, order]).sum(axis=0))
        scale = signs * lengths[order]
        return replace(
            self,
            mixing=mixing,
            source_means=self.source_means[:, order] * scale,
            source_variances=self.source_variances[:, order] * scale**2,
            mixing_error=self.mixing_error[:, order],
            log_variances_error=self.log_variances_error[:, order],
        )


class PriorVariances(NamedTuple):
    """Variances of the normal priors.

    Attributes
    ----------
    norms
        Variance of log ‖a_i‖ about its mean over features. With as many components as features, the
        data hardly determine it. As far as they leave it open, it has a prior at the variance for
        rows with K uniform entries.
    offsets, means, log_variances
        Variances of c, μ and log σ² about 0; at least 1 for μ, and at least 4 for log σ².
    """

    norms: float
    offsets: float
    means: float
    log_variances: float


# Narrower priors of means and log variances would pull values that the data determine, so that fits
# end below their start and intervals cover too little.
_LOWEST_VARIANCES = PriorVariances(norms=1e-4, offsets=1e-4, means=1.0, log_variances=4.0)


class PosteriorMaximum(NamedTuple):
    """Maximum of the quadratic approximation of the posterior.

    Attributes
    ----------
    step, gain
        Step to the maximum, and expected gain of the log posterior in nats.
    covariance
        Covariance of the values that all segments share, (n_shared, n_shared).
    own_covariance, mixed_covariance
        Covariance of μ and log σ² in each segment, (n_segments, n_own, n_own), and their covariance
        with the former, (n_segments, n_own, n_shared).
    """

    step: ParameterPoint
    gain: float
    covariance: Array
    own_covariance: Array
    mixed_covariance: Array


class SearchPath(NamedTuple):
    """Visited points, the latest last, and the derivatives of the log-likelihood there.

    Both are (n_points, n_parameters), with rows ordered as in `ParameterPoint.to_vector`.
    """

    points: Array
    scores: Array

    def add_point(self, point: ParameterPoint, sums: ScoreSums) -> SearchPath:
        """Append a point, and drop the first one if there are too many."""
        entry = point.to_vector(), np.concatenate([sums.gradient, sums.own_gradient.ravel()])
        extended = (np.vstack([*old, new]) for old, new in zip(self, entry, strict=True))
        return SearchPath(*(rows[-_MAX_PATH_POINTS:] for rows in extended))


def make_initial_priors(point: ParameterPoint) -> PriorVariances:
    """Return the initial prior variances."""
    spread = float((point.offsets**2).mean())
    return _LOWEST_VARIANCES._replace(
        norms=estimate_uniform_variance(point.mixing.shape[1]), offsets=max(spread, 0.25)
    )


def estimate_uniform_variance(n: int) -> float:
    """Return the variance of the log length of a row of n uniform entries, to within 6 %.

    For normal entries it is ψ′(n / 2) / 4. For uniform ones it is smaller by a factor close to
    0.4 (1 + 1 / n).
    """
    return float(0.1 * (1 + 1 / n) * scipy.special.polygamma(1, n / 2))


def log_prior(point: ParameterPoint, priors: PriorVariances) -> float:
    """Return the log density of a point under the priors, up to a constant."""
    logs = (
        (value**2).sum() / variance + value.size * np.log(variance)
        for value, variance in zip(_split_by_prior(point), priors, strict=True)
    )
    gaps = (point.log_gaps**2).sum() / _GAP_VARIANCE
    scales = (point.log_scales**2).sum() / _SCALE_VARIANCE
    return float(-0.5 * (sum(logs) + gaps + scales))


def _split_by_prior(point: ParameterPoint) -> tuple[Array, ...]:
    """Return the values that the priors describe, in their order."""
    return _log_norms(point.mixing), point.offsets, point.means, point.log_variances


def _log_norms(mixing: Array) -> Array:
    """Return log ‖a_i‖ minus its mean, (n_features,)."""
    logs = np.log(np.linalg.norm(mixing, axis=1))
    return np.asarray(logs - logs.mean())


def find_maximum(
    sums: ScoreSums, point: ParameterPoint, priors: PriorVariances, path: SearchPath
) -> PosteriorMaximum:
    """Find the maximum of the posterior's quadratic approximation around a point.

    The changes of the scores along the path to this point correct the information, because products
    of scores may differ from the curvature (limited-memory BFGS; Nocedal & Wright 2006, algorithm
    7.4, starting from the information instead of a multiple of I).
    """
    if not np.isfinite(path.scores).all():
        raise FitError(
            "The derivatives of the likelihood became NaN or infinite. "
            "Fit fewer {components}, or use another {seed}."
        )
    inverse = _invert_information(sums, point, priors)
    pulls = [_prior_gradient(point.from_vector(flat), priors).to_vector() for flat in path.points]
    gradients = path.scores + pulls
    step = _lbfgs_step(
        gradients[-1], inverse, np.diff(path.points, axis=0), -np.diff(gradients, axis=0)
    )
    mixed = -inverse.cross_terms @ inverse.covariance
    return PosteriorMaximum(
        point.from_vector(step),
        0.5 * float(gradients[-1] @ step),
        inverse.covariance,
        inverse.own - mixed @ inverse.cross_terms.transpose(0, 2, 1),
        mixed,
    )


class _InverseInformation(NamedTuple):
    """Inverse of the information matrix, segment by segment."""

    own: Array
    cross_terms: Array
    covariance: Array

    def solve(self, gradient: Array) -> Array:
        """Return the step for a gradient."""
        n_shared = len(self.covariance)
        shared, own = gradient[:n_shared], gradient[n_shared:].reshape(len(self.own), -1)
        step = self.covariance @ (shared - np.einsum("uap,ua->p", self.cross_terms, own))
        own_step = np.einsum("uab,ub->ua", self.own, own) - self.cross_terms @ step
        return np.concatenate([step, own_step.ravel()])


def _invert_information(
    sums: ScoreSums, point: ParameterPoint, priors: PriorVariances
) -> _InverseInformation:
    precision, own_precision = _prior_precisions(point, priors)
    own = np.linalg.inv(sums.own_information + own_precision)
    cross_terms = own @ sums.mixed_information  # (n_segments, n_own, n_shared)
    flat = (-1, len(precision))
    eliminated = sums.mixed_information.reshape(flat).T @ cross_terms.reshape(flat)
    precision += sums.information - eliminated
    return _InverseInformation(np.asarray(own), cross_terms, _invert(precision))


def _lbfgs_step(gradient: Array, inverse: _InverseInformation, moves: Array, falls: Array) -> Array:
    """Step by the information, corrected by earlier moves and falls of the gradient along them."""
    rising = [
        (s, y)
        for s, y in zip(moves, falls, strict=True)
        if 0 < float(y @ inverse.solve(y)) < _MAX_CURVATURE * float(s @ y)
    ]
    remainder, shares = gradient.copy(), []
    for s, y in reversed(rising):
        shares.append(float(s @ remainder) / float(s @ y))
        remainder -= shares[-1] * y
    step = inverse.solve(remainder)
    for (s, y), share in zip(rising, reversed(shares), strict=True):
        step += (share - float(y @ step) / float(s @ y)) * s
    return step


def _prior_gradient(point: ParameterPoint, priors: PriorVariances) -> ParameterPoint:
    norms, *variances = priors
    pull = -_log_norms(point.mixing)[:, None] * _log_norm_gradient(point.mixing) / norms
    variances += [_GAP_VARIANCE, _SCALE_VARIANCE]
    return ParameterPoint(
        pull, *(-value / v for value, v in zip(point[1:], variances, strict=True))
    )


def _prior_precisions(point: ParameterPoint, priors: PriorVariances) -> tuple[Array, Array]:
    """Return the prior precision of shared values, and of μ and log σ² of each segment."""
    n_entries, n_components = point.mixing.size, point.mixing.shape[1]
    # The effect of a row's norm on the mean over rows is neglected.
    slopes = _log_norm_gradient(point.mixing)
    precisions = np.concatenate(
        [
            np.full_like(point.offsets, 1 / priors.offsets),
            np.full_like(point.log_gaps, 1 / _GAP_VARIANCE),
            np.full_like(point.log_scales, 1 / _SCALE_VARIANCE),
        ]
    )
    precision = np.zeros((n_entries + len(precisions),) * 2)
    blocks = slopes[:, :, None] * slopes[:, None] / priors.norms
    precision[:n_entries, :n_entries] = scipy.linalg.block_diag(*blocks)
    precision[n_entries:, n_entries:] = np.diag(precisions)
    variances = np.repeat([priors.means, priors.log_variances], n_components)
    return precision, np.diag(1 / variances)


def _log_norm_gradient(mixing: Array) -> Array:
    """Return d log ‖a_i‖ / d a_i, (n_features, n_components)."""
    return np.asarray(mixing / (mixing**2).sum(axis=1, keepdims=True))


def _invert(precision: Array) -> Array:
    """Invert a positive definite matrix that may be nearly singular; refuse a singular one."""
    scale = np.sqrt(np.diag(precision))
    try:
        factor = scipy.linalg.cho_factor(
            precision / np.outer(scale, scale) + 1e-9 * np.eye(len(scale))
        )
    except scipy.linalg.LinAlgError as error:
        raise FitError(
            f"The rows do not determine all {len(scale)} entries of the mixing and the offsets. "
            "Fit fewer {components}, or more rows."
        ) from error
    inverse = scipy.linalg.cho_solve(factor, np.eye(len(scale)))
    return np.asarray(inverse / np.outer(scale, scale))


def _update_variance(
    values: Array, unknown: Array, current: float, prior_variance: float | None = None
) -> float:
    """Return the self-consistent variance (MacKay 1992), in steps of bounded size.

    `prior_variance` counts as the variance of `_PRIOR_WEIGHT` additional values for each value that
    the data leave open.
    """
    n_unknown = min(float(unknown.sum()) / current, values.size)
    squares, n_known = float((values**2).sum()), max(values.size - n_unknown, 1e-3)
    if prior_variance is not None:
        squares += _PRIOR_WEIGHT * n_unknown * prior_variance
        n_known += _PRIOR_WEIGHT * n_unknown
    return min(max(squares / n_known, current / 4), current * 4)


def make_empty_path(point: ParameterPoint) -> SearchPath:
    """Return a path without points."""
    empty = np.empty((0, point.to_vector().size))
    return SearchPath(empty, empty)


def update_priors(
    point: ParameterPoint, maximum: PosteriorMaximum, priors: PriorVariances
) -> PriorVariances:
    """Return the prior variances for a point and its remaining uncertainty."""
    n_entries, n_components = point.mixing.size, point.mixing.shape[1]
    slopes = _log_norm_gradient(point.mixing)
    entries = maximum.covariance[:n_entries, :n_entries].reshape(2 * point.mixing.shape)
    logs_covariance = np.einsum("ik,ikjl,jl->ij", slopes, entries, slopes)
    # Without the uncertainty of the mean over rows, which the variances of the sources share.
    centre = np.eye(len(slopes)) - 1 / len(slopes)
    own = np.diagonal(maximum.own_covariance, axis1=1, axis2=2)
    unknown = (
        np.diag(centre @ logs_covariance @ centre),
        np.diag(maximum.covariance)[n_entries : n_entries + len(point.offsets)],
        own[:, :n_components],
        own[:, n_components:],
    )
    prior_variances = (estimate_uniform_variance(n_components), None, None, None)
    *values, logs = _split_by_prior(point)
    values.append(_limit_common_part(logs))
    variances = map(_update_variance, values, unknown, priors, prior_variances)
    return PriorVariances(*map(max, variances, _LOWEST_VARIANCES))


def _limit_common_part(logs: Array) -> Array:
    """Scale down the mean over segments to at most the size of the differences between segments.

    Sources can shrink while A grows without changing the likelihood. If their prior widened
    accordingly, the size of neither would be determined.
    """
    common = logs.mean(axis=0)
    differences = logs - common
    ratio = np.sqrt((differences**2).mean() / max(float((common**2).mean()), 1e-300))
    return np.asarray(differences + min(float(ratio), 1.0) * common)


def limit_step(step: ParameterPoint, point: ParameterPoint) -> ParameterPoint:
    """Shorten a step to the range where the quadratic approximation is reliable."""
    longest = max(
        float(np.abs(step.log_variances).max()),
        float(np.abs(step.log_gaps).max(initial=0.0)),
        float(np.abs(step.log_scales).max(initial=0.0)),
        float(np.abs(step.mixing).max() / (_MAX_MIXING_STEP * np.abs(point.mixing).max())),
        _MAX_STEP,
    )
    return ParameterPoint(*(_MAX_STEP / longest * part for part in step))


def move_point(point: ParameterPoint, step: ParameterPoint, share: float) -> ParameterPoint:
    """Take a share of a step, along curves on which only the priors change.

    The likelihood stays the same if a column of A grows as the means and standard deviations of its
    source shrink, or if c makes up for equal changes of the means. A long straight step in such a
    direction would lower the likelihood of many rows.
    """
    growth = -0.5 * share * step.log_variances.mean(axis=0)
    mixing = (point.mixing * (1 - growth) + share * step.mixing) * np.exp(growth)
    means = (point.means * (1 + growth) + share * step.means) * np.exp(-growth)
    centre, change = point.means.mean(axis=0), share * step.means.mean(axis=0)
    straight = (point.mixing + share * step.mixing) @ centre + point.mixing @ change
    ahead = straight - mixing @ means.mean(axis=0)
    moved = ParameterPoint(*(part + share * own for part, own in zip(point, step, strict=True)))
    return moved._replace(mixing=mixing, means=means, offsets=moved.offsets + PROBIT_SCALE * ahead)


def standard_errors(point: ParameterPoint, maximum: PosteriorMaximum) -> tuple[Array, Array, Array]:
    """Return standard errors of A with columns of length 1, of c, and of log σ² at that length.

    These follow from the delta method. If a column a of length l changes by da, then a / l changes
    by (I − a aᵀ / l²) da / l, and log σ² by 2 aᵀ da / l².
    """
    n_features, n_components = point.mixing.shape
    n_entries = point.mixing.size
    errors = np.empty((n_features, n_components))
    log_variances = np.empty(point.log_variances.shape)
    own = np.diagonal(maximum.own_covariance, axis1=1, axis2=2)[:, n_components:]
    for k, column in enumerate(point.mixing.T):
        places = np.arange(k, n_entries, n_components)
        covariance, along = maximum.covariance[np.ix_(places, places)], column / (column @ column)
        across = (np.eye(n_features) - np.outer(column, along)) / np.linalg.norm(column)
        errors[:, k] = np.einsum("ij,jl,il->i", across, covariance, across)
        mixed = maximum.mixed_covariance[:, n_components + k, places]
        log_variances[:, k] = own[:, k] + 4 * along @ covariance @ along + 4 * mixed @ along
    offsets = np.diag(maximum.covariance)[n_entries : n_entries + n_features]
    return _safe_sqrt(errors), _safe_sqrt(offsets), _safe_sqrt(log_variances)


def level_offset_errors(
    params: BinaryICALikelihoodParams, maximum: PosteriorMaximum
) -> Array | None:
    """Return standard errors of the offsets of planes, (n_planes,); None without levels."""
    if params.n_levels is None or params.gap_slopes is None:
        return None
    by_mean = np.repeat(np.eye(len(params.n_levels)), params.n_levels - 1, axis=0)
    slopes = np.hstack([by_mean, params.gap_slopes])
    places = slice(params.mixing.size, params.mixing.size + slopes.shape[1])
    covariance = maximum.covariance[places, places]
    return _safe_sqrt(np.einsum("pi,ij,pj->p", slopes, covariance, slopes))


def number_scale_errors(
    params: BinaryICALikelihoodParams, maximum: PosteriorMaximum
) -> Array | None:
    """Return standard errors of the noise of continuous features; None if there are none."""
    if params.number_scales is None:
        return None
    last = np.diag(maximum.covariance)[-len(params.number_scales) :]
    return params.number_scales * _safe_sqrt(last)


def _safe_sqrt(variances: Array) -> Array:
    """Return square roots of variances, which rounding may make negative."""
    return np.asarray(np.sqrt(np.maximum(variances, 0)))
