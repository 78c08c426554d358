"""The latent-trait model."""

from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.model import LatentTrait

__all__ = ["LatentTrait", "LatentTraitParams"]
