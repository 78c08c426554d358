"""The Gaussian kernel of packed bits, and kernel principal components."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigh

import pipeline.numerics.graphs.kernel_components as module
from pipeline.data.blocks import pack_block
from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.graphs.kernel_components import (
    KernelComponents,
    choose_landmarks,
    compute_squared_distances,
    decompose_landmarks,
    decompose_rows,
    gaussian_kernel,
    half_agreement,
    multiply_kernel,
    sum_kernel,
)

RNG = np.random.default_rng(3)


def data(n: int, n_features: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    X = RNG.integers(0, 2, (n, n_features), dtype=np.uint8)
    return X, (RNG.random(X.shape) >= missing).astype(np.uint8)


def packed(X: np.ndarray, mask: np.ndarray) -> BitRows:
    return pack_block(X, None if mask.all() else mask).to_packed_rows()


def dense_distances(X: np.ndarray, mask: np.ndarray, Y: np.ndarray, seen: np.ndarray) -> np.ndarray:
    both = mask[:, None].astype(bool) & seen[None].astype(bool)
    differ = ((X[:, None] != Y[None]) & both).sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = X.shape[1] * (differ / both.sum(axis=2))
    return np.where(both.any(axis=2), scaled, np.inf)


@pytest.mark.parametrize("n_features", [1, 63, 64, 130])
@pytest.mark.parametrize(("missing", "others_missing"), [(0, 0), (0.3, 0.3), (0, 0.3), (1, 0)])
def test_distances_are_those_of_dense_rows(
    n_features: int, missing: float, others_missing: float
) -> None:
    left, right = data(9, n_features, missing), data(7, n_features, others_missing)
    found = compute_squared_distances(packed(*left), packed(*right))
    expected = dense_distances(*left, *right)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    kernel = gaussian_kernel(packed(*left), packed(*right), 2.5)
    np.testing.assert_allclose(kernel, np.exp(-expected / 12.5), rtol=1e-14)


def test_products_of_a_row_do_not_depend_on_the_rows_beside() -> None:
    left, right = packed(*data(50, 70, 0.1)), packed(*data(40, 70, 0.1))
    columns = RNG.standard_normal((40, 3))
    whole = multiply_kernel(left, right, 3.0, columns)
    np.testing.assert_allclose(whole, gaussian_kernel(left, right, 3.0) @ columns, rtol=1e-12)
    part = multiply_kernel(left.take(slice(20, 31)), right, 3.0, columns)
    assert part.tobytes() == whole[20:31].tobytes()


WIDTH = 3.0


def rows_with_copies() -> tuple[BitRows, np.ndarray, BitRows]:
    """Distinct rows, their numbers, and all rows."""
    rng = np.random.default_rng(5)
    y = rng.standard_normal((150, 2)) @ rng.standard_normal((2, 40))
    X = np.unique((y + 0.5 * rng.standard_normal(y.shape) > 0).astype(np.uint8), axis=0)
    times = rng.integers(1, 5, len(X))
    return (
        pack_block(X).to_packed_rows(),
        times,
        pack_block(np.repeat(X, times, axis=0)).to_packed_rows(),
    )


def dense(rows: BitRows, n_leading: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Eigenvalues, codes and trace of H K H."""
    K = gaussian_kernel(rows, rows, WIDTH)
    centred = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
    values, vectors = eigh(centred)
    return (
        values[::-1][:n_leading],
        (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :n_leading],
        float(np.trace(centred)),
    )


def codes(rows: BitRows, landmarks: BitRows, found: KernelComponents) -> np.ndarray:
    return multiply_kernel(rows, landmarks, WIDTH, found.directions) - found.offsets


def assert_same_codes(found: np.ndarray, expected: np.ndarray, atol: float) -> None:
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found, expected * signs, atol=atol)


@pytest.mark.parametrize("dense_to", [module.FULL_SOLVER, 10])
def test_components_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch, dense_to: int) -> None:
    monkeypatch.setattr(module, "FULL_SOLVER", dense_to)
    monkeypatch.setattr(module, "_ROWS_PER_TASK", 64)
    rows, times, copies = rows_with_copies()
    found = decompose_rows(rows, times, WIDTH, 4, map)
    values, expected, trace = dense(copies, 4)
    np.testing.assert_allclose(found.components.eigenvalues, values, rtol=1e-10)
    assert_same_codes(codes(copies, rows, found.components), expected, 1e-9)
    assert found.total == pytest.approx(trace, rel=1e-12)
    assert found.lost_share == 0.0


def test_all_rows_for_landmarks_lose_nothing() -> None:
    rows, _, copies = rows_with_copies()
    sums = sum_kernel(copies, rows, WIDTH)
    found = decompose_landmarks(rows, WIDTH, sums, 4)
    values, expected, trace = dense(copies, 4)
    np.testing.assert_allclose(found.components.eigenvalues, values, rtol=1e-8)
    assert_same_codes(codes(copies, rows, found.components), expected, 1e-6)
    assert found.total == pytest.approx(trace, rel=1e-8)
    assert found.lost_share == pytest.approx(0.0, abs=1e-8)


def test_what_landmarks_lose_is_told() -> None:
    rows, _, copies = rows_with_copies()
    few = rows.take(np.arange(0, rows.n_rows, 8))
    sums = sum_kernel(copies, few, WIDTH)
    found = decompose_landmarks(few, WIDTH, sums, 2)
    K, cross = gaussian_kernel(copies, copies, WIDTH), gaussian_kernel(copies, few, WIDTH)
    nystroem = cross @ np.linalg.solve(gaussian_kernel(few, few, WIDTH), cross.T)
    assert found.lost_share == pytest.approx(1 - np.trace(nystroem) / len(K), rel=1e-6)
    values, expected, _ = dense(copies, 2)
    assert (found.components.eigenvalues <= values + 1e-9).all()  # K less Nyström's is no less
    own = codes(copies, few, found.components)
    half = rows.take(np.arange(0, rows.n_rows, 8)[: -(-few.n_rows // 2)])
    halved = decompose_landmarks(half, WIDTH, sum_kernel(copies, half, WIDTH), 2)
    basis = [np.linalg.qr(a)[0] for a in (own, codes(copies, half, halved.components))]
    overlap = np.square(basis[0].T @ basis[1]).sum() / 2
    assert half_agreement(found.components, few, WIDTH, sums, 2) == pytest.approx(overlap, rel=1e-8)
    assert 0.5 < overlap < np.square(basis[0].T @ np.linalg.qr(expected)[0]).sum() / 2


def test_landmarks_differ_and_spread() -> None:
    X = np.repeat(np.repeat(np.eye(4, dtype=np.uint8), 90, axis=1), 3, axis=0)
    X[1::3, 10] ^= 1  # four clusters of three rows, two of them alike
    rows, times = pack_block(X).to_packed_rows(), np.ones(12, np.int64)
    chosen = choose_landmarks(rows, times, 20.0, 12, np.random.default_rng(0))
    assert len(np.unique(X[chosen], axis=0)) == len(chosen) == 8
    assert len({c // 3 for c in chosen[:4].tolist()}) == 4
