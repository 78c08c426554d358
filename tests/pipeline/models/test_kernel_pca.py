"""Kernel PCA: codes of scikit-learn, spirals, landmarks, missing values, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import KernelPCA as Peer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import euclidean_distances

import pipeline.models.kernel_pca as module
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.kernel_pca import KernelPCA
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, draw_probit_data, make_memory_rows

Floats = NDArray[np.float64]


def fitted(X: NDArray[np.uint8], observed: Any = None, **settings: Any) -> FitState:
    rows = make_memory_rows(DenseData(X, observed), [len(part) for part in np.array_split(X, 3)])
    return fit_model(KernelPCA(**settings), rows, SerialExecutor())


def coded(state: FitState, X: NDArray[np.uint8], observed: Any = None) -> Floats:
    return KernelPCA().transform(state.params, pack_block(X, observed), RowRandom(0))["mean"]


def probit(n_rows: int, n_features: int = 60) -> NDArray[np.uint8]:
    return draw_probit_data(n_rows, n_features, 3, np.random.default_rng(2), (0.5, 0.9), 0.7)[0]


def share_right(codes: Floats, y: NDArray[np.int64]) -> float:
    """Share of rows on the right side of a plane."""
    scaled = codes / codes.std(axis=0)
    return float(LogisticRegression(C=1e4, max_iter=10_000).fit(scaled, y).score(scaled, y))


@pytest.mark.matrix
def test_codes_are_those_of_scikit_learn() -> None:
    X = np.vstack([probit(1800), probit(200)])  # with copies
    state = fitted(X, n_components=4, width=4.0)
    peer = Peer(4, kernel="rbf", gamma=1 / 32, eigen_solver="dense").fit(X.astype(float))
    new = probit(2300)[2000:]
    for rows in (X, new):
        found, expected = coded(state, rows), peer.transform(rows.astype(float))
        signs = np.sign((found * expected).sum(axis=0))
        np.testing.assert_allclose(found, expected * signs, atol=1e-8)
    np.testing.assert_allclose(state.params.eigenvalues[:4], peer.eigenvalues_, rtol=1e-9)
    K = np.exp(-euclidean_distances(X.astype(float), squared=True) / 32)
    trace = np.trace(K) - K.mean() * len(K)
    assert state.diagnostics["explained"] == pytest.approx(peer.eigenvalues_.sum() / trace)


def test_interleaved_spirals_come_apart() -> None:
    """The coordinates of points are thermometers of 64 bits; a plane tells linear codes nothing."""
    rng, y = np.random.default_rng(0), np.repeat([0, 1], 500)
    angle = 2 * np.pi * np.sqrt(rng.uniform(0.07, 1.0, 1000))
    points = angle * np.array([np.cos(angle + np.pi * y), np.sin(angle + np.pi * y)]) / (2 * np.pi)
    levels = np.linspace(-1, 1, 66)[1:-1]
    X = (points.T[:, :, None] > levels).reshape(1000, -1).astype(np.uint8)
    found = coded(fitted(X, n_components=5, width=1.0), X)
    assert share_right(found, y) > 0.99
    centred = X - X.mean(axis=0)
    linear = centred @ np.linalg.svd(centred, full_matrices=False)[2][:5].T
    assert share_right(linear, y) < 0.9


def test_the_width_is_the_median_distance_of_distinct_rows() -> None:
    X = np.repeat(probit(40, 20), 5, axis=0)
    distinct = np.unique(X, axis=0).astype(int)
    squared = (distinct[:, None] != distinct).sum(axis=2)[np.triu_indices(len(distinct), 1)]
    assert fitted(X).diagnostics["width"] == pytest.approx(np.sqrt(np.median(squared)))


@pytest.mark.matrix
def test_landmarks_come_near_and_say_how_near() -> None:
    X = probit(3000)
    whole = coded(fitted(X, n_components=2, width=4.0), X)
    shared, told = [], []
    for n_landmarks in (10, 100, 800):
        state = fitted(X, n_components=2, width=4.0, landmarks=n_landmarks)
        bases = [np.linalg.qr(codes)[0] for codes in (coded(state, X), whole)]
        shared.append(np.square(bases[0].T @ bases[1]).sum() / 2)
        told.append(state.diagnostics["half_agrees"])
        assert state.diagnostics["landmarks"] == len(state.params.landmarks) == n_landmarks
        is_doubted = any("codes may change with more landmarks" in w.text for w in state.warnings)
        assert is_doubted == (told[-1] < 0.9)
    assert shared == sorted(shared)
    assert shared[-1] > 0.999
    assert told[0] < 0.9 < told[-1]


def test_rows_without_values_are_in_the_middle_and_change_nothing() -> None:
    X = probit(300, 12)
    mask = (np.random.default_rng(0).random(X.shape) < 0.8).astype(np.uint8)
    mask[::50] = 0
    for settings in ({}, {"landmarks": 40}):
        state = fitted(X, mask, **settings)
        kept = mask.any(axis=1)
        other = fitted(X[kept], mask[kept], **settings)
        found = coded(state, X, mask)
        assert not found[~kept].any()
        np.testing.assert_allclose(found[kept], coded(other, X[kept], mask[kept]), atol=1e-9)
        np.testing.assert_allclose(found[kept].mean(axis=0), 0, atol=1e-9)
        assert np.isfinite(found).all()


SAME = np.ones((50, 6), np.uint8)


@pytest.mark.parametrize(
    ("X", "settings", "told"),
    [
        (SAME, {}, "No two rows differ in features observed in both, so there is nothing to fit"),
        (SAME, {"width": 1.0}, "No two rows differ in features observed in both"),
        (SAME, {"landmarks": 10}, "No two rows differ in features observed in both"),
        (
            np.eye(6, dtype=np.uint8),
            {"n_components": 6},
            "components is 6, but there are only 6 distinct rows",
        ),
        (
            probit(99),
            {"landmarks": 9, "n_components": 9},
            "components is 9, but there are only 9 landmarks",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    X: NDArray[np.uint8], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(FitError, match=told):
        fitted(X, **settings)


def test_too_many_rows_are_refused_with_the_cost_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 100)
    X = probit(300)
    with pytest.raises(FitError, match=r"exact fit takes at most 100;.* minutes.*landmarks=1000"):
        fitted(X)
    assert fitted(X, landmarks=20).diagnostics["landmarks"] == 20


def test_rows_without_a_common_feature_are_warned_of() -> None:
    X, text = probit(300, 12), "of the pairs of rows have no feature observed in both"
    form = (np.arange(300)[:, None] % 2 == 0) == (np.arange(12) < 6)
    form[:20] = True  # these rows link the two forms
    forms = fitted(X, form.astype(np.uint8), n_components=2)
    assert [w.text[:3] for w in forms.warnings if text in w.text] == ["31%"]
    some = (np.random.default_rng(0).random(X.shape) < 0.8).astype(np.uint8)
    assert not any(text in w.text for w in fitted(X, some, n_components=2).warnings)
