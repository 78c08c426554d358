"""The restricted Boltzmann machine."""

from pipeline.models.rbm.model import RBMParams, RestrictedBoltzmannMachine

__all__ = ["RBMParams", "RestrictedBoltzmannMachine"]
