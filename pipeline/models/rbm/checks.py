"""Settings of the restricted Boltzmann machine within their ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.errors import FitError

DEFAULT_RATES = {"adam": 0.01, "momentum": 0.05}
"""Length of the first steps where none is given."""
_COUNTS = ("steps", "temperatures")


def check_settings(model: Any) -> None:
    """Refuse settings out of range.

    Raises
    ------
    FitError
        Naming the first.
    """
    for name, least in (*((name, 1) for name in _COUNTS), ("chains", 2)):
        if (value := getattr(model, name)) < least:
            raise FitError(f"{name}: Expected at least {least}, got {value}. Give more.")
    for name in ("weight_decay", "sparsity"):
        if not 0 <= (value := getattr(model, name)) < np.inf:
            raise FitError(f"{name}: Expected at least 0, got {value}.")
    if not 0 < model.target < 1:
        raise FitError(f"target: Expected above 0 and below 1, got {model.target}.")
