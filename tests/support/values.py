"""Rows of values by feature: levels counted from 0, and numbers of continuous features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, split_values
from pipeline.models.structure import Structure
from tests.support.strategies import DenseData


def make_features(counts: Sequence[int], prefix: str = "q") -> tuple[Feature, ...]:
    """Make features with these numbers of levels, 0 of a continuous one."""
    levels = (tuple(map(str, range(count))) for count in counts)
    return tuple(Feature(f"{prefix}{i}", own) for i, own in enumerate(levels))


def make_model(model: type[Any], counts: Sequence[int], **settings: Any) -> Any:
    """Make a model of features with these numbers of levels."""
    return model(**settings).with_structure(Structure(features=make_features(counts)))


def make_data(
    X: NDArray[Any], counts: Sequence[int], observed: NDArray[Any] | None = None, **columns: Any
) -> DenseData:
    """Make rows from values, (n_samples, n_features), NaN if missing, and perhaps a mask.

    `columns` are further fields of `DenseData`, such as segments and weights.
    """
    is_continuous = np.array(counts) == 0
    seen = ~np.isnan(X)
    if observed is not None:
        seen &= observed == 1
    levels, mask = np.where(seen, X, 0)[:, ~is_continuous], seen[:, ~is_continuous]
    planes, observed_planes = split_values(
        levels.astype(np.uint8),
        None if observed is None and mask.all() else mask.astype(np.uint8),
        [feature for feature in make_features(counts) if feature.levels],
    )
    if is_continuous.any():
        numbers = np.where(seen, X, np.nan)[:, is_continuous]
        columns["numbers"] = numbers.astype(np.float32)
    return DenseData(planes, observed_planes, **columns)
