"""Noisy-OR belief networks."""

from pipeline.models.noisy_or.model import NoisyOr
from pipeline.models.noisy_or.params import NoisyOrParams

__all__ = ["NoisyOr", "NoisyOrParams"]
