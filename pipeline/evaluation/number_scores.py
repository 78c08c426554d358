"""How well codes reconstruct the values of continuous features: errors, and correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.statistics.sums import Array, Sums, merge_means

_MIN_DEVIATION = 1e-12  # relative to the mean; rounding errors of equal values are smaller


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
