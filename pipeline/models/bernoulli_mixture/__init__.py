"""Mixture of products of Bernoullis."""

from pipeline.models.bernoulli_mixture.model import BernoulliMixture as BernoulliMixture
