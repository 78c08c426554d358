"""Parameters of binary ICA by likelihood, as its steps change them and segment by segment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.models.binary_ica.moment_matching.segment_model import SegmentModel
from pipeline.models.binary_ica.params import PROBIT_SCALE
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import array_field

Array = NDArray[np.float64]


class ParameterPoint(NamedTuple):
    """What is climbed over; lengths of columns are not fixed.

    Attributes
    ----------
    mixing, offsets
        A, (n_features, n_components), and c, (n_features,).
    means, log_variances
        Of the sources, (n_segments, n_components).
    """

    mixing: Array
    offsets: Array
    means: Array
    log_variances: Array

    def move_by(self, change: ParameterPoint, share: float) -> ParameterPoint:
        """Go a share of a change."""
        return ParameterPoint(*(a + share * b for a, b in zip(self, change, strict=True)))

    def to_vector(self) -> Array:
        """Lay all end to end: A, c, and μ and log σ² segment by segment."""
        own = np.hstack([self.means, self.log_variances])
        return np.concatenate([self.mixing.ravel(), self.offsets, own.ravel()])

    def from_vector(self, flat: Array) -> ParameterPoint:
        """Undo `flat` for a point of the same shapes."""
        n_entries, n_components = self.mixing.size, self.mixing.shape[1]
        n_shared = n_entries + self.offsets.size
        own = flat[n_shared:].reshape(-1, 2 * n_components)
        return ParameterPoint(
            flat[:n_entries].reshape(self.mixing.shape),
            flat[n_entries:n_shared],
            own[:, :n_components],
            own[:, n_components:],
        )


@dataclass(frozen=True)
class BinaryICALikelihoodParams:
    """Parameters; the table of `likelihood` gives shapes. Segments are those that have rows.

    Attributes
    ----------
    mixing_error, offsets_error
        Standard errors of the entries of A, columns having length 1, and of c.
    log_variances_error
        Standard errors of log σ².
    """

    mixing: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    source_means: Array = array_field("segment", "component")
    source_variances: Array = array_field("segment", "component")
    mixing_error: Array = array_field("feature", "component")
    offsets_error: Array = array_field("feature")
    log_variances_error: Array = array_field("segment", "component")
    segments: NDArray[np.int64] = array_field("segment")
    segment_rows: NDArray[np.int64] = array_field("segment")

    @property
    def point(self) -> ParameterPoint:
        """What steps change."""
        return ParameterPoint(
            self.mixing, self.offsets, self.source_means, np.log(self.source_variances)
        )

    def with_point(self, point: ParameterPoint) -> BinaryICALikelihoodParams:
        """Take a point over."""
        return replace(
            self,
            mixing=point.mixing,
            offsets=point.offsets,
            source_means=point.means,
            source_variances=np.exp(point.log_variances),
        )

    def segment_model(self, index: int) -> SegmentModel:
        """Find the model of a segment; one that was not fitted has the mean of the others."""
        here = self.segments == index
        weights = here if here.any() else self.segment_rows
        shares = weights / weights.sum()
        means, variances = shares @ self.source_means, shares @ self.source_variances
        slopes = PROBIT_SCALE * self.mixing
        thresholds = -(self.offsets + slopes @ means) / np.sqrt(1 + slopes**2 @ variances)
        return SegmentModel(slopes, thresholds, means, variances)

    def normalize_columns(self) -> BinaryICALikelihoodParams:
        """Give columns length 1, their signs and order. Errors are of that length already."""
        shares = self.segment_rows / self.segment_rows.sum()
        lengths = np.linalg.norm(self.mixing, axis=0)
        order = np.argsort(-(shares @ self.source_variances) * lengths**2, kind="stable")
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
