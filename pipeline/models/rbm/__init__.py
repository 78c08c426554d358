"""The restricted Boltzmann machine."""

from pipeline.models.rbm.model import RestrictedBoltzmannMachine

__all__ = ["RestrictedBoltzmannMachine"]
