"""When stages end."""

from __future__ import annotations

import pytest

from pipeline.learning.convergence import ByPasses, ByPatience, ended


@pytest.mark.parametrize(
    ("history", "converged"),
    [
        ((), False),
        ((-3.0,), False),
        ((-3.0, -2.0, -2.5), False),
        ((-3.0, -2.0, -2.5, -2.1), True),
        ((-3.0, -2.0, -2.5, -1.9), False),
        ((-2.0, -2.0, -2.0), True),
    ],
)
def test_patience_ends_two_passes_after_the_best(
    history: tuple[float, ...], converged: bool
) -> None:
    assert ByPatience(50, patience=2).converged(history) == converged
    assert ended(ByPatience(4, patience=9), history) == (len(history) >= 4)


def test_a_fixed_number_of_passes_is_made() -> None:
    assert [ended(ByPasses(2), (0.0,) * n) for n in range(4)] == [False, False, True, True]
