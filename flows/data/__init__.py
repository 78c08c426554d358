"""Finds the datasets and fitted models that options name."""
