"""What a fit knows about its rows and features besides their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Indices
from pipeline.data.covariates import Covariates
from pipeline.data.features import Feature, are_binary, find_continuous
from pipeline.data.level_probabilities import count_levels
from pipeline.data.periods import RowPeriods
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.models.support import Part

ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class Structure:
    """Features, groups and covariates of rows, known items and loadings; empty if unknown.

    Attributes
    ----------
    groups
        Names of the groups, in the order of their first rows; empty without `--group`. Group g is
        segment g of the rows.
    features
        The features.
    known_items
        Known slopes and offsets of binary items side by side, (n_features, n_components + 1), NaN
        where the fit estimates them; None if all are estimated. If some items are not
        binary, there is a row for each plane, and after these, two rows for each continuous item,
        in the units of its values: (n_forms, n_components + 1).
    pattern
        Which items load on which traits, in the order of the features; None if all do.
    covariates
        The covariates of the rows; None without `--covariates`.
    periods
        The members and times of the rows; None without `--time`.
    """

    groups: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()
    known_items: NDArray[np.float64] | None = None
    pattern: LoadingPattern | None = None
    covariates: Covariates | None = None
    periods: RowPeriods | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is known besides features."""
        parts: Mapping[Part, Any] = {
            "groups": self.groups or None,
            "covariates": self.covariates,
            "pattern": self.pattern,
            "known items": self.known_items,
            "periods": self.periods,
        }
        return tuple(part for part, value in parts.items() if value is not None)

    @property
    def n_levels(self) -> NDArray[np.int64] | None:
        """Number of levels of each feature, 1 of a continuous one; None if all are binary."""
        return None if are_binary(self.features) else np.maximum(count_levels(self.features), 1)

    @property
    def continuous(self) -> Indices:
        """Indices of the continuous features."""
        return np.array(find_continuous(self.features), np.int64)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)
