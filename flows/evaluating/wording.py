"""What an evaluation says of a model in words, and of its shares by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluation.calibration import ShareComparison
from pipeline.models.base import Model
from pipeline.models.capabilities import CanReconstruct, CanSample


def warn_about_labels(predicted: Mapping[str, Any]) -> list[str]:
    """Say which labels were not looked at, or could not be right."""
    found = predicted.get("prediction", {})
    told = {
        "rows_without": "rows have no label, and are left out",
        "unseen": "rows have a label that was not fitted, which counts as wrong",
    }
    return [
        f"column {found['column']!r}: {found[name]:,} {text}"
        for name, text in told.items()
        if found.get(name)
    ]


def warn_about_capabilities(model: Model) -> list[str]:
    """Say what cannot be told of a model."""
    told = {
        CanSample: "the model draws no rows, so its marginals and pairs cannot be compared",
        CanReconstruct: "the model does not turn codes back into bits, so no bits are compared",
    }
    return [text for capability, text in told.items() if not isinstance(model, capability)]


def describe_shares(shares: ShareComparison, names: Sequence[str]) -> dict[str, Any]:
    """Describe how shares in the data and in the model differ, the largest differences by name."""
    return {
        "number": len(shares.observed),
        "rmse": shares.rmse,
        "rmse_by_chance": shares.chance_rmse,
        "largest": shares.describe_largest(names),
        "calibration": shares.bin_shares(),
    }
