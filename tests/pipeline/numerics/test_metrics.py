"""Measures of fit: by brute force, and where they are known."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import FitError
from pipeline.numerics.metrics import mean_cosine_similarity

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)


def best_of_all_matchings(a: Any, b: Any) -> float:
    """Try every way to match; missing columns are zeros."""
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b))
    lengths = np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=0))
    cosines = np.abs(a.T @ b) / np.where(lengths > 0, lengths, 1)
    return max(cosines[range(width), order].mean() for order in permutations(range(width)))


@settings(deadline=None)
@given(sizes, sizes, sizes, seeds)
def test_the_best_matching_is_found(n: int, k1: int, k2: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(n, k)) * rng.integers(0, 2, k) for k in (k1, k2))
    similarity = mean_cosine_similarity(a, b)
    assert similarity == pytest.approx(best_of_all_matchings(a, b), abs=1e-12)
    assert mean_cosine_similarity(b, a) == pytest.approx(similarity, abs=1e-12)


@settings(deadline=None)
@given(sizes, sizes, seeds)
def test_order_sign_and_length_of_columns_do_not_matter(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, k))
    b = rng.permutation(a * rng.choice([-1e-200, 3.0, 1e200], k), axis=1)
    assert mean_cosine_similarity(a, b) == pytest.approx(1, abs=1e-12)
    assert mean_cosine_similarity(a, b) <= 1


def test_unmatched_columns_and_zeros_count_as_nothing() -> None:
    axes = np.eye(4)
    assert mean_cosine_similarity(axes[:, :1], axes) == 0.25
    assert mean_cosine_similarity(axes * [1, 1, 1, 0], axes) == 0.75
    assert mean_cosine_similarity(np.zeros((4, 2)), axes) == 0


@pytest.mark.parametrize(
    ("estimated", "reference", "expected"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), "The matrices have 3 and 4 features"),
        (np.ones((3, 0)), np.ones((3, 2)), r"The estimated matrix has the shape \(3, 0\)"),
        (np.ones((0, 2)), np.ones((0, 2)), r"has the shape \(0, 2\)"),
        (np.ones((3, 2)), np.ones(3), r"The reference matrix has the shape \(3,\)"),
        (np.ones((2, 2)), np.array([[1, 2], [3, np.nan]]), "has nan at row 1, column 1"),
        (np.array([[1, np.inf]]), np.ones((1, 2)), "has inf at row 0, column 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(estimated: Any, reference: Any, expected: str) -> None:
    with pytest.raises(FitError, match=expected):
        mean_cosine_similarity(estimated, reference)
