"""Noisy-OR belief networks."""

from pipeline.models.noisy_or.estimation import NoisyOrParams
from pipeline.models.noisy_or.model import NoisyOr

__all__ = ["NoisyOr", "NoisyOrParams"]
