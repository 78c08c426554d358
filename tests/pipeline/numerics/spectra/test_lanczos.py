"""Block Lanczos and filtered Lanczos against dense eigensolvers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.spectra import lanczos as module
from pipeline.numerics.spectra.lanczos import (
    compute_leading_spectrum,
    leading_eigenpairs_except,
    max_leading_pairs,
)

Floats = NDArray[np.float64]
N = 400


def correlated(n: int, n_factors: int, n_rows: int) -> Floats:
    """Sample correlations with a few strong factors: beyond these, eigenvalues are close."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((n_rows, n_factors)) @ rng.standard_normal((n_factors, n))
    return np.corrcoef(rows + 2 * rng.standard_normal((n_rows, n)), rowvar=False)


def spectrum(matrix: Floats, n_leading: int, seed: int = 0) -> module.LeadingSpectrum:
    rng = np.random.default_rng(seed)
    return compute_leading_spectrum(lambda block: matrix @ block, len(matrix), n_leading, rng)


@pytest.mark.few(4)
@pytest.mark.parametrize("n_leading", [1, 5, 20])  # 20 are more than stand out
@pytest.mark.parametrize("n_rows", [250, 4000])  # with fewer rows than features it has no full rank
def test_it_gives_the_leading_eigenpairs(n_leading: int, n_rows: int) -> None:
    matrix = correlated(N, 6, n_rows)
    found, (values, vectors) = spectrum(matrix, n_leading), scipy.linalg.eigh(matrix)
    np.testing.assert_allclose(found.values, values[::-1][:n_leading], rtol=1e-10)
    overlap = np.abs((vectors[:, ::-1][:, :n_leading] * found.vectors).sum(axis=0))
    np.testing.assert_allclose(overlap, 1, atol=1e-6)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(n_leading), atol=1e-10)


def test_residuals_are_those_of_the_vectors() -> None:
    matrix = correlated(N, 6, 4000)
    found = spectrum(matrix, 12)
    left = matrix @ found.vectors - found.vectors * found.values
    assert np.linalg.norm(left, axis=0).max() <= found.residuals.max() + 1e-10
    assert (found.residuals <= 1e-8 * found.values).all()


def test_eigenvalues_below_those_of_noise_take_fewer_products() -> None:
    """Only the leading run above noise has accurate vectors."""
    matrix = correlated(N, 6, 4000)
    exact, noise = spectrum(matrix, 20), np.full(15, 2.0)
    rng = np.random.default_rng(0)
    found = compute_leading_spectrum(lambda block: matrix @ block, N, 20, rng, noise)

    assert found.n_products < exact.n_products
    assert (found.residuals[:6] <= 1e-8 * found.values[:6]).all()
    assert 1e-8 < (found.residuals[6:] / found.values[6:]).max() <= 1e-3
    np.testing.assert_allclose(found.values, exact.values, rtol=1e-5)


def test_it_begins_again_where_the_basis_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = correlated(N, 6, 4000)
    whole = spectrum(matrix, 8)
    monkeypatch.setattr(module, "_MAX_BASIS_BLOCKS", 3)
    short = spectrum(matrix, 8)
    assert short.n_products > whole.n_products
    np.testing.assert_allclose(short.values, whole.values, rtol=1e-10)


def test_negative_eigenvalues_are_seen_as_far_as_they_go() -> None:
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.standard_normal((N, N)))
    values = np.r_[np.full(10, -0.5), np.ones(N - 15), 5, 6, 7, 8, 9.0]
    matrix = (vectors * values) @ vectors.T
    found = spectrum(matrix, 5)
    np.testing.assert_allclose(found.values, [9, 8, 7, 6, 5])
    assert -5.0 - 1e-9 <= found.negative < -0.5


def test_equal_eigenvalues_are_all_found() -> None:
    matrix = np.diag(np.r_[np.full(7, 3.0), np.linspace(0, 1, N - 7)])
    np.testing.assert_allclose(spectrum(matrix, 7).values, 3)


def test_more_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(
        FitError, match=rf"components\b.* is 39, but .* only 1 to {max_leading_pairs(N)}"
    ):
        spectrum(np.eye(N), max_leading_pairs(N) + 1)


def test_what_does_not_converge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PRODUCTS", 3)
    with pytest.raises(FitError, match="converge within 3 products"):
        spectrum(correlated(N, 6, 4000), 20)


N_SPARSE = 1600  # beyond what is solved densely


def chain_of_rings(n_rings: int) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """D^−½ W D^−½ of rings with chords, joined by single links, and its known eigenvector."""
    at, size = np.arange(N_SPARSE), N_SPARSE // n_rings
    W = np.zeros((N_SPARSE, N_SPARSE))
    for step in (1, 7, 19):
        W[at, at // size * size + (at + step) % size] = 1
    ends = np.arange(size, N_SPARSE, size)
    W[ends - 1, ends] = 1
    W = np.maximum(W, W.T)
    root = np.sqrt(W.sum(axis=1))
    return scipy.sparse.csr_array(W / root / root[:, None]), root / np.linalg.norm(root)


@pytest.mark.matrix
def test_eigenpairs_that_lie_close_together_are_those_of_the_dense_matrix() -> None:
    for n_rings in (1, 40):  # of one ring every eigenvalue comes twice
        matrix, known = chain_of_rings(n_rings)
        dense = scipy.linalg.eigvalsh(
            matrix.toarray(), subset_by_index=(N_SPARSE - 6, N_SPARSE - 2)
        )[::-1]
        found = leading_eigenpairs_except(matrix, known, 5)
        np.testing.assert_allclose(found.values, dense, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            matrix @ found.vectors, found.vectors * found.values, rtol=0, atol=1e-11
        )
        np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(5), atol=1e-12)
        np.testing.assert_allclose(known @ found.vectors, 0, atol=1e-11)


def test_the_same_bytes_come_each_time() -> None:
    one, two = (leading_eigenpairs_except(*chain_of_rings(4), 3) for _ in "ab")
    assert one.vectors.tobytes() == two.vectors.tobytes()
