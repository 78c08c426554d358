"""Parameters of binary ICA by likelihood, as its steps change them and segment by segment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.models.binary_ica.moment_matching.segment_model import SegmentModel
from pipeline.models.binary_ica.params import PROBIT_SCALE
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import array

Array = NDArray[np.float64]


class Point(NamedTuple):
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

    def moved(self, change: Point, share: float) -> Point:
        """Go a share of a change."""
        return Point(*(a + share * b for a, b in zip(self, change, strict=True)))

    def flat(self) -> Array:
        """Lay all end to end: A, c, and μ and log σ² segment by segment."""
        own = np.hstack([self.means, self.log_variances])
        return np.concatenate([self.mixing.ravel(), self.offsets, own.ravel()])

    def unflat(self, flat: Array) -> Point:
        """Undo `flat` for a point of the same shapes."""
        n_entries, n_components = self.mixing.size, self.mixing.shape[1]
        n_shared = n_entries + self.offsets.size
        own = flat[n_shared:].reshape(-1, 2 * n_components)
        return Point(
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

    mixing: Array = array("feature", "component")
    offsets: Array = array("feature")
    source_means: Array = array("segment", "component")
    source_variances: Array = array("segment", "component")
    mixing_error: Array = array("feature", "component")
    offsets_error: Array = array("feature")
    log_variances_error: Array = array("segment", "component")
    segments: NDArray[np.int64] = array("segment")
    segment_rows: NDArray[np.int64] = array("segment")

    @property
    def point(self) -> Point:
        """What steps change."""
        return Point(self.mixing, self.offsets, self.source_means, np.log(self.source_variances))

    def at(self, point: Point) -> BinaryICALikelihoodParams:
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

    def readable(self) -> BinaryICALikelihoodParams:
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
