"""FastICA of bits: what it finds, in what order, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import decomposition

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import FastICA, fastica
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, make_memory_rows


def fitted(X: NDArray[np.uint8], n_components: int | None, observed: Any = None) -> FitState:
    return fit_model(
        FastICA(n_components), make_memory_rows(DenseData(X, observed)), SerialExecutor()
    )


def codes(state: FitState, X: NDArray[np.uint8], observed: Any = None) -> NDArray[np.float64]:
    block = pack_block(X, observed)
    return np.asarray(FastICA().transform(state.params, block, RowRandom(0))["mean"])


def pairs_of_features() -> NDArray[np.uint8]:
    """Three independent bits, each twice, every tenth value of the second flipped."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.random((4000, 3)) < [0.5, 0.3, 0.1], 2, axis=1).astype(np.uint8)
    X[:, 1::2] ^= rng.random((4000, 3)) < 0.1
    return X


def test_it_is_that_of_scikit_learn_with_columns_in_order() -> None:
    X = pairs_of_features()
    found = fitted(X, 3).params
    other = decomposition.FastICA(3, whiten="unit-variance", random_state=7, tol=1e-10).fit(X)
    assert mean_cosine_similarity(found.mixing, other.mixing_) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found.mixing, axis=0), 1)
    assert np.abs(found.mixing).argmax(axis=0).tolist() in ([0, 2, 4], [1, 3, 5], [1, 2, 4])
    assert (np.diff(codes(fitted(X, 3), X).var(axis=0)) < 0).all()


def test_as_many_components_as_dimensions_give_rows_back() -> None:
    X = pairs_of_features()
    doubled = np.hstack([X, X[:, :1], np.ones_like(X[:, :1])])
    state = fitted(doubled, None)
    assert state.diagnostics["n_components"] == 6
    back = state.params.means + codes(state, doubled) @ state.params.mixing.T
    np.testing.assert_allclose(back, doubled, atol=1e-9)
    with pytest.raises(FitError, match=r"components is 7, but the rows span only 6 dimensions"):
        fitted(doubled, 7)


def test_missing_values_stand_at_the_mean_of_their_feature() -> None:
    X = pairs_of_features()
    observed = (np.random.default_rng(1).random(X.shape) < 0.9).astype(np.uint8)
    state = fitted(X, 3, observed)
    shares = (X & observed).sum(axis=0) / observed.sum(axis=0)
    filled = np.where(observed == 1, X, shares)
    expected = (filled - shares) @ np.linalg.pinv(state.params.mixing).T
    np.testing.assert_allclose(codes(state, X & observed, observed), expected, atol=1e-12)


def test_a_sample_of_the_rows_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    X = pairs_of_features()
    whole = fitted(X, 3).params.mixing
    monkeypatch.setattr(fastica, "MAX_ROWS", 1000)
    some = fitted(X, 3).params.mixing
    assert 0.9 < mean_cosine_similarity(some, whole) < 1 - 1e-6


def test_a_search_that_finds_nothing_is_told() -> None:
    shapes = ((40, 12), (60, 16), (100, 20))
    noise = [np.random.default_rng(0).integers(0, 2, n, dtype=np.uint8) for n in shapes]
    notes = [note for X in noise for note in fitted(X, None).warnings]
    assert any("did not converge" in str(note) for note in notes)
    few = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1]], np.uint8)
    with pytest.raises(FitError, match="cannot separate 2 components with 3 rows"):
        fitted(few, 2)
