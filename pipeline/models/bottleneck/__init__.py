"""The bottleneck: a network of three layers that predicts a label of each row."""

from pipeline.models.bottleneck.model import Bottleneck

__all__ = ["Bottleneck"]
