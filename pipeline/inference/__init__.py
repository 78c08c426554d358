"""Use a fitted model: transform, sample, reconstruct."""
