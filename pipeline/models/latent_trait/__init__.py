"""The latent-trait model."""

from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import LatentTraitParams

__all__ = ["LatentTrait", "LatentTraitParams"]
