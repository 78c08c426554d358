"""Moment matching for binary ICA: from segment correlations to a mixing and source variances."""
