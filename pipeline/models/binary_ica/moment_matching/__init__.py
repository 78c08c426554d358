"""Moment matching of binary ICA: correlations of segments to a mixing and source variances."""
