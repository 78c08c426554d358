"""Eigenpairs, signs, and the nearest correlation matrix against published and dense results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.spectra import linalg
from pipeline.numerics.spectra.linalg import (
    fix_signs,
    leading_eigenpairs,
    leading_eigenvalues,
    nearest_correlation,
)

Matrix = NDArray[np.float64]

symmetric = (
    st.integers(1, 7)
    .flatmap(lambda n: hnp.arrays(np.float64, (n, n), elements=st.floats(-1, 1)))
    .map(lambda square: np.tril(square, -1) + np.tril(square, -1).T + np.eye(len(square)))
)


def low_rank_plus_noise(n: int, seed: int = 0) -> Matrix:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((n, 4)) * [2.0, 1.5, 1.0, 0.7]
    noise = rng.standard_normal((n, n)) / 10
    return factor @ factor.T + noise + noise.T


@given(symmetric)
def test_eigenpairs_are_those_of_the_matrix(matrix: Matrix) -> None:
    values, vectors = leading_eigenpairs(matrix, 2)
    assert np.all(np.diff(values) <= 0)
    np.testing.assert_allclose(vectors @ np.diag(values) @ vectors.T, matrix, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(matrix)), atol=1e-12)
    np.testing.assert_allclose(leading_eigenvalues(matrix, 2), values, atol=1e-12)


@pytest.mark.parametrize("n_leading", [1, 4, 64])
def test_the_partial_solver_equals_the_full(
    n_leading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = low_rank_plus_noise(200)
    full_values, full_vectors = leading_eigenpairs(matrix, n_leading)
    assert full_values.shape == (200,)
    monkeypatch.setattr(linalg, "FULL_SOLVER", 100)
    values, vectors = leading_eigenpairs(matrix, n_leading)
    assert values.shape == (n_leading,)
    np.testing.assert_allclose(values, full_values[:n_leading], rtol=1e-9)
    np.testing.assert_allclose(vectors, full_vectors[:, :n_leading], atol=1e-6)
    np.testing.assert_array_equal(leading_eigenvalues(matrix, n_leading), values)
    assert leading_eigenpairs(matrix, n_leading)[1].tobytes() == vectors.tobytes()


def test_the_partial_solver_gives_way_where_most_pairs_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linalg, "FULL_SOLVER", 3)
    matrix = low_rank_plus_noise(6)
    for n_leading in (3, 6, 64):
        assert leading_eigenpairs(matrix, n_leading)[0].shape == (6,)
        assert leading_eigenvalues(matrix, n_leading).shape == (6,)


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(128),
        np.kron(np.eye(64), [[1, 0.5], [0.5, 1]]),
        np.cos(2 * np.pi / 128 * np.subtract.outer(range(128), range(128))),
    ],
    ids=["identity", "pairs", "ring"],
)
def test_equal_eigenvalues_give_the_same_bytes_each_time(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanczos starts again by itself where a start vector meets few of the eigenvectors."""
    monkeypatch.setattr(linalg, "FULL_SOLVER", 50)
    values, vectors = leading_eigenpairs(matrix, 5)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1][:5], atol=1e-9)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-8)
    for _ in range(3):
        assert leading_eigenpairs(matrix, 5)[1].tobytes() == vectors.tobytes()


def test_the_entry_of_largest_size_is_positive() -> None:
    columns = np.array([[0.5, 0.1, 0.0], [-0.8, 0.9, 0.0], [0.3, -0.4, 0.0]])
    np.testing.assert_array_equal(fix_signs(columns), columns * [-1, 1, 1])


def test_of_equal_entries_the_first_is_positive_whatever_the_last_digits() -> None:
    for nudge in (0.0, 1e-15, -1e-15, 1e-8, -1e-8):
        column = np.array([[-0.5 + nudge], [0.5], [0.5], [-0.5]])
        assert fix_signs(column)[0, 0] > 0


@given(hnp.arrays(np.float64, (5, 3), elements=st.integers(-8, 8).map(lambda eighths: eighths / 8)))
def test_signs_do_not_depend_on_signs(columns: Matrix) -> None:
    np.testing.assert_array_equal(np.abs(fix_signs(columns)), np.abs(columns))
    np.testing.assert_array_equal(fix_signs(-columns) + 0.0, fix_signs(columns) + 0.0)


def test_the_nearest_correlation_of_higham_2002() -> None:
    """The example of section 5: nearest matrix and distance to four decimals."""
    given_matrix = np.array([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]])
    repaired, distance = nearest_correlation(given_matrix)
    expected = [[1, 0.7607, 0.1573], [0.7607, 1, 0.7607], [0.1573, 0.7607, 1]]
    np.testing.assert_allclose(repaired, expected, atol=5e-5)
    assert distance == pytest.approx(0.5278, abs=5e-5)
    assert given_matrix[0, 2] == 0  # the argument is left alone


@given(symmetric)
def test_the_nearest_correlation_is_one_and_no_other_is_nearer(matrix: Matrix) -> None:
    repaired, distance = nearest_correlation(matrix)
    np.testing.assert_array_equal(repaired, repaired.T)
    np.testing.assert_array_equal(repaired.diagonal(), 1.0)
    assert np.linalg.eigvalsh(repaired)[0] > -1e-6
    assert distance == pytest.approx(np.linalg.norm(repaired - matrix))
    # The nearest point of a convex set sees every other of its points at an obtuse angle.
    rng = np.random.default_rng(0)
    for _ in range(20):
        factor = rng.standard_normal(matrix.shape)
        factor /= np.linalg.norm(factor, axis=1, keepdims=True)
        step = factor @ factor.T - repaired
        assert np.sum(step * (matrix - repaired)) <= 1e-5


def test_a_correlation_matrix_stays_where_it_is() -> None:
    X = np.random.default_rng(0).standard_normal((50, 6))
    correlation = np.corrcoef(X.T)
    repaired, distance = nearest_correlation(correlation)
    np.testing.assert_allclose(repaired, correlation, atol=1e-8)
    assert distance < 1e-8


def test_a_repair_that_does_not_converge_is_refused() -> None:
    with pytest.raises(FitError, match="not found within 2 rounds"):
        nearest_correlation(np.array([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]]), max_rounds=2)
