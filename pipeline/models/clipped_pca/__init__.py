"""Clipped PCA."""

from pipeline.models.clipped_pca.model import MIN_NOISE, ClippedPCA, ClippedPCAParams

__all__ = ["MIN_NOISE", "ClippedPCA", "ClippedPCAParams"]
