"""Layers learned one upon the other."""

from pipeline.models.stack.model import Stack
from pipeline.models.stack.params import StackParams

__all__ = ["Stack", "StackParams"]
