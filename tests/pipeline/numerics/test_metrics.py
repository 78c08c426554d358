"""Measures of fit: by brute force, and where they are known."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.manifold import trustworthiness as by_sklearn

from pipeline.errors import FitError
from pipeline.numerics.metrics import (
    NOT_AMONG_OTHERS,
    find_nearest_places,
    majority_label,
    mean_cosine_similarity,
    trustworthiness,
)

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)


def best_of_all_matchings(a: Any, b: Any) -> float:
    """Try every way to match; missing columns are zeros."""
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b))
    lengths = np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=0))
    cosines = np.abs(a.T @ b) / np.where(lengths > 0, lengths, 1)
    return max(cosines[range(width), order].mean() for order in permutations(range(width)))


@given(sizes, sizes, sizes, seeds)
def test_the_best_matching_is_found(n: int, k1: int, k2: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(n, k)) * rng.integers(0, 2, k) for k in (k1, k2))
    similarity = mean_cosine_similarity(a, b)
    assert similarity == pytest.approx(best_of_all_matchings(a, b), abs=1e-12)
    assert mean_cosine_similarity(b, a) == pytest.approx(similarity, abs=1e-12)


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


def test_trustworthiness_and_continuity_are_scikit_learns() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(120, 6))
    Z = X[:, :2] + 0.3 * rng.normal(size=(120, 2))
    by_x, by_z = cdist(X, X), cdist(Z, Z)
    for k in (1, 5, 40):
        expected = by_sklearn(X, Z, n_neighbors=k), by_sklearn(Z, X, n_neighbors=k)
        found = trustworthiness(by_x, by_z, k), trustworthiness(by_z, by_x, k)
        assert found == pytest.approx(expected, abs=1e-12)
    assert trustworthiness(by_x, by_x, 5) == 1


def test_of_equally_far_rows_the_earlier_is_nearer() -> None:
    """By Hamming distances, to which scikit-learn is told the order of the rows as well."""
    rng = np.random.default_rng(4)
    X = rng.integers(0, 2, (100, 7)).astype(np.float64)
    Z = X @ rng.normal(size=(7, 2)) + 0.1 * rng.normal(size=(100, 2))
    by_bits, by_codes = cdist(X, X, "cityblock"), cdist(Z, Z)
    in_order = by_bits + np.arange(100) / 1000
    expected = by_sklearn(in_order, Z, n_neighbors=5, metric="precomputed")
    assert trustworthiness(by_bits, by_codes, 5) == pytest.approx(expected, abs=1e-12)
    assert trustworthiness(by_codes, by_bits, 5) == trustworthiness(by_codes, in_order, 5)


FAR = st.sampled_from([0.0, 1.0, 2.0, np.inf])


@given(hnp.arrays(np.float64, (5, 9), elements=FAR), st.integers(1, 8), st.data())
def test_the_nearest_are_the_first_of_all_in_order(
    distances: NDArray[np.float64], k: int, draw: st.DataObject
) -> None:
    own = draw.draw(hnp.arrays(np.int64, 5, elements=st.integers(NOT_AMONG_OTHERS, 8)))
    expected = [
        [j for j in np.argsort(far, kind="stable") if j != own[i]][:k]
        for i, far in enumerate(distances)
    ]
    np.testing.assert_array_equal(find_nearest_places(distances, k, own), expected)


def test_the_commonest_label_wins_and_of_several_the_nearests() -> None:
    labels = np.array([[3, 1, 1, 2, 2], [0, 2, 2, 0, 1], [4, 4, 4, 4, 4], [1, 2, 3, 4, 5]])
    assert majority_label(labels).tolist() == [1, 0, 4, 1]
