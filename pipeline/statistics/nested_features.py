"""Name features that are equal or opposite, or where a one of one implies a one of the other.

The correlation of such a pair is at the limit of its range, or a guess: one cell of its table is
empty. Empty cells that chance explains are not mentioned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Counts
from pipeline.errors import FitWarning
from pipeline.statistics.correlations import PairTables
from pipeline.statistics.counts import PairTable

Bits = NDArray[np.bool_]

_NESTED_LEVEL = 1e-3  # chance that any cell of independent features is mentioned as empty


class _EmptyCells(NamedTuple):
    """Pairs of planes i, j whose table has no row in a cell, (n_planes, n_planes).

    The cells are x_i = 1 and x_j = 0, x_i = 0 and x_j = 1, both 1, and both 0.
    """

    only_i: Bits
    only_j: Bits
    both: Bits
    neither: Bits


def warn_about_nested_features(
    counts: PairTables, first_planes: Counts | None = None
) -> tuple[FitWarning, ...]:
    """Name pairs of features, of all segments together, by the indices of features.

    Parameters
    ----------
    counts
        Tables of the pairs of all planes.
    first_planes
        First plane of each feature, and their number, (n_features + 1,); None if all features are
        binary. Of features with more levels, only equal and opposite ones are named.
    """
    observed, ones = (each.sum(axis=0) for each in counts.margins())
    is_varying = (ones > 0) & (ones < observed)
    firsts = np.arange(len(ones) + 1) if first_planes is None else first_planes
    tables = (counts.table(segment) for segment in range(len(counts.segments)))
    n, ones_i, ones_j, both = _sum_tables(tables, (len(ones),) * 2)
    owners = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
    is_pair = (owners[:, None] < owners) & is_varying & is_varying[:, None] & (n > 0)
    min_expected = np.log(max(is_pair.sum(), 1) / _NESTED_LEVEL)
    share_i, share_j = ones_i / np.maximum(n, 1), ones_j / np.maximum(n, 1)
    cells = (
        (ones_i - both, share_i * (1 - share_j)),
        (ones_j - both, share_j * (1 - share_i)),
        (both, share_i * share_j),
        (n - ones_i - ones_j + both, (1 - share_i) * (1 - share_j)),
    )
    empty = _EmptyCells(*(is_pair & (rows == 0) for rows, _ in cells))
    surely = _EmptyCells(
        *(e & (n * share >= min_expected) for e, (_, share) in zip(empty, cells, strict=True))
    )
    text = "pairs of features"
    kinds = {
        f"{text} that are equal wherever both are observed": _compare_levels(
            empty.only_i & empty.only_j, surely.only_i & surely.only_j, firsts, 1
        ),
        f"{text} that are opposite wherever both are observed": _compare_levels(
            empty.both & empty.neither, surely.both & surely.neither, firsts, -1
        ),
    }
    is_binary = np.diff(firsts) == 1
    planes = np.ix_(firsts[:-1][is_binary], firsts[:-1][is_binary])
    only_i, only_j, is_excluded, is_covered = (cell[planes] for cell in surely)
    of_binary = {
        f"{text} of which a one in the first implies one in the second": only_i & ~only_j,
        f"{text} of which a one in the second implies one in the first": only_j & ~only_i,
        f"{text} that are never 1 together": is_excluded & ~is_covered,
        f"{text} that are never 0 together": is_covered & ~is_excluded,
    }
    indices = np.flatnonzero(is_binary)
    found = {name: np.argwhere(pairs) for name, pairs in kinds.items()}
    found |= {name: indices[np.argwhere(pairs)] for name, pairs in of_binary.items()}
    return tuple(
        FitWarning(f"{name}, {len(pairs):,}: {{features}}", tuple(pairs.ravel().tolist()))
        for name, pairs in found.items()
        if len(pairs)
    )


def _sum_tables(tables: Iterable[PairTable], shape: tuple[int, int]) -> PairTable:
    """Sum tables of the same pairs, each part as an array of a shape."""
    total = np.zeros((4, *shape))
    for table in tables:
        for part, values in zip(total, table, strict=True):
            part += values
    return PairTable(*total)


def _compare_levels(is_empty: Bits, is_sure: Bits, firsts: Counts, step: int) -> Bits:
    """Return the pairs of features with equal levels, or with opposite ones if `step` is −1.

    All pairs of planes that correspond must be so, and at least one not by chance.
    """
    n_planes = np.diff(firsts)
    found = np.zeros((len(n_planes),) * 2, np.bool_)
    for m in np.unique(n_planes[n_planes > 0]).tolist():
        features = np.flatnonzero(n_planes == m)
        left, right = firsts[features] + np.arange(m)[:, None], firsts[features]
        places = [
            np.ix_(own, right + other) for own, other in zip(left, range(m)[::step], strict=True)
        ]
        are_empty = np.logical_and.reduce([is_empty[place] for place in places])
        are_sure = np.logical_or.reduce([is_sure[place] for place in places])
        found[np.ix_(features, features)] = are_empty & are_sure
    return found
