"""Mixture of trees."""

from pipeline.models.tree_mixture.model import TreeMixture as TreeMixture
