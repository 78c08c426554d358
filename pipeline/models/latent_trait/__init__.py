"""The latent-trait model."""

from pipeline.models.latent_trait.model import LatentTrait

__all__ = ["LatentTrait"]
