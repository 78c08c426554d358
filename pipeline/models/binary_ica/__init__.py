"""Binary independent component analysis."""

from pipeline.models.binary_ica.blica import BLICA

__all__ = ["BLICA"]
