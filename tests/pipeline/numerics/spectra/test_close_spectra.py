"""Leading eigenpairs against dense ones, also where they lie close together or are equal."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pipeline.numerics.spectra.close_spectra import leading_eigenpairs_except

N = 1600  # beyond what is solved densely


def chain_of_rings(n_rings: int) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """D^−½ W D^−½ of rings with chords, joined by single links, and its known eigenvector."""
    at, size = np.arange(N), N // n_rings
    W = np.zeros((N, N))
    for step in (1, 7, 19):
        W[at, at // size * size + (at + step) % size] = 1
    ends = np.arange(size, N, size)
    W[ends - 1, ends] = 1
    W = np.maximum(W, W.T)
    root = np.sqrt(W.sum(axis=1))
    return scipy.sparse.csr_array(W / root / root[:, None]), root / np.linalg.norm(root)


@pytest.mark.matrix
def test_eigenpairs_that_lie_close_together_are_those_of_the_dense_matrix() -> None:
    for n_rings in (1, 40):  # of one ring every eigenvalue comes twice
        matrix, known = chain_of_rings(n_rings)
        dense = scipy.linalg.eigvalsh(matrix.toarray(), subset_by_index=(N - 6, N - 2))[::-1]
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
