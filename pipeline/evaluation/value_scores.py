"""How well values are predicted: wrong levels, log loss, rank correlations and squared errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature, find_first_planes, join_values, sum_planes
from pipeline.data.level_probabilities import (
    count_levels,
    find_level_probabilities,
    find_likely_levels,
    order_planes,
)
from pipeline.errors import FitError
from pipeline.numerics.metrics import MIN_PROBABILITY, compute_bit_losses
from pipeline.statistics.sums import Sums, merge_means

_MIN_STEPS, _MAX_STEPS = 8, 128
_MAX_CELLS = 1 << 22
_MIN_DEVIATION = 1e-12  # relative to the mean; rounding errors of equal values are smaller


class LevelLosses(NamedTuple):
    """Losses of the reconstructed levels of rows.

    Attributes
    ----------
    wrong_levels, n_observed
        Number of features with another level than the most likely one, and of observed features, of
        each row, (n_samples,).
    values
        Sums over rows: `wrong_by_feature` and `observed_by_feature`, (n_features,); and
        `level_table`, the number of rows with each expected level, in equal steps from the lowest
        level to the highest, and each true level, (n_features, n_steps + 1, n_most_levels).
    """

    wrong_levels: Counts
    n_observed: Counts
    values: Mapping[str, Counts]


def compute_level_losses(
    block: BinaryBlock, planes: Array, features: Sequence[Feature]
) -> LevelLosses:
    """Compute the losses of a block, given the probability of each plane, (n_samples, n_planes)."""
    levels = sum_planes(block.unpack_values(), features)
    by_level = find_level_probabilities(order_planes(planes, features), count_levels(features))
    mask = block.unpack_mask()
    observed = np.ones(levels.shape, np.bool_)
    if mask is not None:
        observed = mask[:, find_first_planes(features)[:-1]] == 1
    wrong = (find_likely_levels(by_level, features) != levels) & observed
    values = {
        "wrong_by_feature": wrong.sum(axis=0),
        "observed_by_feature": observed.sum(axis=0),
        "level_table": _count_levels(sum_planes(planes, features), levels, observed, features),
    }
    return LevelLosses(wrong.sum(axis=1), observed.sum(axis=1), values)


def sum_value_losses(block: BinaryBlock, planes: Array, features: Sequence[Feature]) -> Array:
    """Sum the losses of predicted values over the rows of a block.

    Parameters
    ----------
    block
        The true values.
    planes
        Predicted probability of each plane, (n_samples, n_planes).
    features
        The features with levels; empty if all are binary.

    Returns
    -------
    ndarray
        Number of values that are not the most probable ones, sum of −log P(value) in nats, and
        number of observed values, (3,). Probabilities below `MIN_PROBABILITY` count as that.
    """
    losses = compute_value_losses(block, planes, features)
    wrong, nats, observed = losses.wrong, losses.nats, losses.observed
    return np.array([wrong[observed].sum(), nats[observed].sum(), observed.sum()], np.float64)


class ValueLosses(NamedTuple):
    """Losses of single values, (n_samples, n_features) each.

    Attributes
    ----------
    levels
        The values, as levels counted from 0.
    wrong, nats
        Whether another level is more probable, and −log P(value).
    observed
        Whether the value is observed.
    """

    levels: NDArray[np.uint8]
    wrong: NDArray[np.bool_]
    nats: Array
    observed: NDArray[np.bool_]


def compute_value_losses(
    block: BinaryBlock, planes: Array, features: Sequence[Feature]
) -> ValueLosses:
    """Compute the losses of the values of a block; parameters as for `sum_value_losses`."""
    values, mask = block.unpack_values(), block.unpack_mask()
    if not features:
        wrong, nats = compute_bit_losses(values, planes)
    else:
        values, mask = join_values(values, mask, features)
        n_levels = count_levels(features)
        by_level = find_level_probabilities(order_planes(planes, features), n_levels)
        wrong = find_likely_levels(by_level, features) != values
        places = np.cumsum(n_levels) - n_levels + values
        own = np.take_along_axis(by_level, places, axis=1)
        nats = -np.log(np.maximum(own, MIN_PROBABILITY))
    observed = np.ones(values.shape, np.bool_) if mask is None else mask == 1
    return ValueLosses(values, wrong, nats, observed)


def _count_levels(
    expected: Array, levels: NDArray[np.uint8], observed: NDArray[np.bool_], features: Any
) -> Counts:
    """Count the rows with each expected and true level of each feature; see `LevelLosses`."""
    n_levels = count_levels(features)
    n_features, n_most = len(n_levels), int(n_levels.max())
    n_steps = int(np.clip(_MAX_CELLS // (n_features * n_most), _MIN_STEPS, _MAX_STEPS))
    steps = np.rint(expected / (n_levels - 1) * n_steps).astype(np.int64)
    cells = (np.arange(n_features) * (n_steps + 1) + steps) * n_most + levels
    n_cells = n_features * (n_steps + 1) * n_most
    counts = np.bincount(cells[observed], minlength=n_cells)
    return counts.reshape(n_features, n_steps + 1, n_most)


def describe_level_losses(
    values: Mapping[str, NDArray[Any]], features: Sequence[Feature]
) -> dict[str, Any]:
    """Describe the losses summed over rows.

    Returns
    -------
    dict
        `wrong_levels`, the share of observed values whose most likely level is another;
        `rank_correlation`, the mean over features of Spearman's correlation between expected and
        true level, None if it is nowhere defined, as for nominal features; and `levels`, both for
        each feature.
    """
    wrong, observed = values["wrong_by_feature"], values["observed_by_feature"]
    correlations = [
        None if feature.kind == "nominal" else compute_rank_correlation(table)
        for feature, table in zip(features, values["level_table"], strict=True)
    ]
    found = [value for value in correlations if value is not None]
    return {
        "wrong_levels": float(wrong.sum() / max(observed.sum(), 1)),
        "rank_correlation": sum(found) / len(found) if found else None,
        "levels": [
            {
                "feature": feature.name,
                "wrong_levels": float(wrong[i] / max(observed[i], 1)),
                "rank_correlation": correlations[i],
            }
            for i, feature in enumerate(features)
        ],
    }


def compute_rank_correlation(table: Counts) -> float | None:
    """Compute Spearman's correlation of a cross table of two ordered variables.

    Equal values have the mean of their ranks. None if a variable has one value only.
    """
    rows, columns = (_rank_centred(table.sum(axis=axis)) for axis in (1, 0))
    n_rows, n_columns = table.sum(axis=1), table.sum(axis=0)
    spread = float((rows**2 @ n_rows) * (columns**2 @ n_columns))
    return float(rows @ table @ columns / np.sqrt(spread)) if spread > 0 else None


def _rank_centred(counts: Counts) -> Array:
    """Return the mean rank of each value, less the mean of all ranks."""
    ranks: Array = np.cumsum(counts) - counts / 2 - counts.sum() / 2
    return ranks


@dataclass(frozen=True)
class ReconstructionSums(Sums):
    """Sums over rows, which may include the moments of `compute_number_losses`."""

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        total = super().merge(other)
        if "number_means" not in self.values:
            return total
        own, others = (
            (sums.values["observed_numbers"], sums.values["number_means"]) for sums in (self, other)
        )
        merged = merge_means(*own, *others)
        between = merged.factor * merged.difference[:, None] * merged.difference
        moments = {
            "number_means": merged.means,
            "number_products": total.values["number_products"] + between,
        }
        return replace(total, values={**total.values, **moments})


def compute_number_losses(block: BinaryBlock, reconstructed: Array) -> dict[str, NDArray[Any]]:
    """Compute the losses of a block, given reconstructed values, (n_samples, n_continuous).

    Returns
    -------
    dict
        Over the observed values of each continuous feature: `observed_numbers` and
        `squared_number_errors`, (n_continuous,); the means of the values and of their
        reconstructions, `number_means`, (2, n_continuous); and sums of products of deviations from
        these means, `number_products`, (2, 2, n_continuous).
    """
    assert block.numbers is not None
    values = block.numbers.astype(np.float64)
    is_observed = ~np.isnan(values)
    if not (is_finite := np.isfinite(reconstructed)).all():
        row = block.rows[int(np.argmin(is_finite.all(axis=1)))]
        raise FitError(
            f"row {row + 1}: the expected values are not finite. Fit again with other settings."
        )
    n_observed = is_observed.sum(axis=1)
    pairs = np.where(is_observed, [values, reconstructed.T], 0.0)
    means = pairs.sum(axis=2) / np.maximum(n_observed, 1)
    deviations = np.where(is_observed, pairs - means[:, :, None], 0.0)
    return {
        "observed_numbers": n_observed,
        "squared_number_errors": ((pairs[0] - pairs[1]) ** 2).sum(axis=1),
        "number_means": means,
        "number_products": (deviations[:, None] * deviations).sum(axis=3),
    }


def describe_number_losses(
    values: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> dict[str, Any]:
    """Describe the losses of continuous features with these names, summed over rows.

    Returns
    -------
    dict
        `continuous`, for each feature: `rmse`, the root mean squared error in the feature's units,
        None if no value is observed; `r2`, 1 − Σ(x − x̂)² / Σ(x − x̄)², where x̂ is the
        reconstruction of x, None if all values are equal; and `correlation` of x and x̂, None if all
        values or all reconstructions are equal. `r2` and `correlation` are the means over the
        features for which they are defined, or None.
    """
    n_observed, errors = values["observed_numbers"], values["squared_number_errors"]
    products, means = values["number_products"], values["number_means"]
    spreads = products.diagonal().T
    is_varying = spreads > n_observed * (_MIN_DEVIATION * means) ** 2
    found = [
        {
            "feature": name,
            "rmse": float(np.sqrt(errors[i] / n_observed[i])) if n_observed[i] else None,
            "r2": float(1 - errors[i] / spreads[0, i]) if is_varying[0, i] else None,
            "correlation": (
                float(products[0, 1, i] / np.sqrt(spreads[0, i] * spreads[1, i]))
                if is_varying[:, i].all()
                else None
            ),
        }
        for i, name in enumerate(names)
    ]
    return {
        **{name: average_scores(found, name) for name in ("r2", "correlation")},
        "continuous": found,
    }


def average_scores(found: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a score over the features that have it, or None."""
    values = [own[name] for own in found if own[name] is not None]
    return sum(values) / len(values) if values else None
