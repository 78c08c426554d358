"""Counts of statistics and unknowns."""

from __future__ import annotations

import pytest

from pipeline.models.binary_ica.moment_matching.identifiability import count_surplus_equations

# Hyttinen et al. (2022), table 1: K = n, for n = 2 ... 10.
TABLE = {
    2: [-6, -9, -12, -15, -18, -21, -24, -27, -30],
    3: [-7, -9, -10, -10, -9, -7, -4, 0, 5],
    4: [-8, -9, -8, -5, 0, 7, 16, 27, 40],
    5: [-9, -9, -6, 0, 9, 21, 36, 54, 75],
    6: [-10, -9, -4, 5, 18, 35, 56, 81, 110],
}


@pytest.mark.parametrize("n_segments", TABLE)
def test_as_many_components_as_features_give_the_table_of_the_paper(n_segments: int) -> None:
    assert [count_surplus_equations(n, n, n_segments) for n in range(2, 11)] == TABLE[n_segments]


def test_fewer_components_leave_more() -> None:
    # 3 segments of 6 correlations against 3 x 2 variances and 4 x 2 entries of the mixing.
    assert count_surplus_equations(4, 2, 3) == 3 * 6 - 3 * 2 - 4 * 2
