"""Clipped PCA."""

from pipeline.models.clipped_pca.model import ClippedPCA
from pipeline.models.clipped_pca.params import MIN_NOISE, ClippedPCAParams

__all__ = ["MIN_NOISE", "ClippedPCA", "ClippedPCAParams"]
