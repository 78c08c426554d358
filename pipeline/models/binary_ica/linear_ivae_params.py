"""Parameters of the linear iVAE, as its steps change them and segment by segment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.models.binary_ica.affine_vae import AffineVAE
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import array_field

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearIVAEParams:
    """Parameters; the table of `linear_ivae` gives shapes. Segments are those that have rows."""

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
        """What kernels are given."""
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
        """Give the same for one segment; one that was not fitted has the mean of the others."""
        here = self.segments == index
        weights = here if here.any() else self.segment_rows
        shares = (weights / weights.sum())[None]
        return self.vae._replace(
            code_offsets=shares @ self.code_offsets,
            spread_offsets=shares @ self.spread_offsets,
            source_means=shares @ self.source_means,
            log_variances=np.log(shares @ self.source_variances),
        )

    def add_change(self, change: Array) -> LinearIVAEParams:
        """Add to all that is learnt, as `AffineVAE.flat` puts it."""
        moved = self.vae.unflatten(self.vae.flatten() + change)._asdict()
        variances = np.exp(moved.pop("log_variances"))
        return replace(self, **moved, source_variances=variances)

    def normalize_columns(self) -> LinearIVAEParams:
        """Give columns length 1, their signs and order, and sources the mean 0 over rows."""
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
