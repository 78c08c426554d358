"""Binary independent component analysis, and the models it is compared with."""

from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.fastica import FastICA
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood
from pipeline.models.binary_ica.linear_ivae import LinearIVAE

__all__ = ["BLICA", "BinaryICALikelihood", "FastICA", "LinearIVAE"]
