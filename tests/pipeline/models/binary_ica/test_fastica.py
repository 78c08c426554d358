"""FastICA of bits: comparison with scikit-learn, column order, and errors."""

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


def fit(X: NDArray[np.uint8], n_components: int | None, observed: Any = None) -> FitState:
    return fit_model(
        FastICA(n_components), make_memory_rows(DenseData(X, observed)), SerialExecutor()
    )


def compute_codes(
    state: FitState, X: NDArray[np.uint8], observed: Any = None
) -> NDArray[np.float64]:
    block = pack_block(X, observed)
    return np.asarray(FastICA().transform(state.params, block, RowRandom(0))["mean"])


def draw_feature_pairs() -> NDArray[np.uint8]:
    """Draw three independent bits and a copy of each in which a tenth of the values is flipped."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.random((4000, 3)) < [0.5, 0.3, 0.1], 2, axis=1).astype(np.uint8)
    X[:, 1::2] ^= rng.random((4000, 3)) < 0.1
    return X


def test_matches_scikit_learn_with_ordered_columns() -> None:
    X = draw_feature_pairs()
    params = fit(X, 3).params
    other = decomposition.FastICA(3, whiten="unit-variance", random_state=7, tol=1e-10).fit(X)
    assert mean_cosine_similarity(params.mixing, other.mixing_) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(np.linalg.norm(params.mixing, axis=0), 1)
    assert np.abs(params.mixing).argmax(axis=0).tolist() in ([0, 2, 4], [1, 3, 5], [1, 2, 4])
    assert (np.diff(compute_codes(fit(X, 3), X).var(axis=0)) < 0).all()


def test_all_components_reconstruct_rows() -> None:
    X = draw_feature_pairs()
    doubled = np.hstack([X, X[:, :1], np.ones_like(X[:, :1])])
    state = fit(doubled, None)
    assert state.diagnostics["n_components"] == 6
    reconstructed = state.params.means + compute_codes(state, doubled) @ state.params.mixing.T
    np.testing.assert_allclose(reconstructed, doubled, atol=1e-9)
    with pytest.raises(FitError, match=r"components is 7, but the rows span only 6 dimensions"):
        fit(doubled, 7)


def test_missing_values_are_replaced_by_feature_means() -> None:
    X = draw_feature_pairs()
    observed = (np.random.default_rng(1).random(X.shape) < 0.9).astype(np.uint8)
    state = fit(X, 3, observed)
    shares = (X & observed).sum(axis=0) / observed.sum(axis=0)
    filled = np.where(observed == 1, X, shares)
    expected = (filled - shares) @ np.linalg.pinv(state.params.mixing).T
    np.testing.assert_allclose(compute_codes(state, X & observed, observed), expected, atol=1e-12)


def test_large_data_are_fitted_on_sample_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    X = draw_feature_pairs()
    whole = fit(X, 3).params.mixing
    monkeypatch.setattr(fastica, "MAX_ROWS", 1000)
    sampled = fit(X, 3).params.mixing
    assert 0.9 < mean_cosine_similarity(sampled, whole) < 1 - 1e-6


def test_failed_search_warns_or_raises() -> None:
    shapes = ((40, 12), (60, 16), (100, 20))
    noise = [np.random.default_rng(0).integers(0, 2, n, dtype=np.uint8) for n in shapes]
    warnings = [warning for X in noise for warning in fit(X, None).warnings]
    assert any("did not converge" in str(warning) for warning in warnings)
    few = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1]], np.uint8)
    with pytest.raises(FitError, match="cannot separate 2 components with 3 rows"):
        fit(few, 2)


@pytest.mark.parametrize("source", ["normal", "bit"])
def test_normal_sources_are_named(source: str) -> None:
    rng = np.random.default_rng(3)
    z = rng.standard_normal((5000, 2))
    z = np.sign(z) if source == "bit" else z
    mixing = rng.standard_normal((20, 2))
    y = z @ (mixing / np.linalg.norm(mixing, axis=0)).T + 0.3 * rng.standard_normal((5000, 20))
    observed = (rng.random(y.shape) < 0.95).astype(np.uint8)
    state = fit((y > 0.1).astype(np.uint8) * observed, 2, observed)
    texts = [warning.text for warning in state.warnings if "any rotation" in warning.text]
    assert len(texts) == (source == "normal")
    assert all(text.startswith("components 1 and 2 differ from normal") for text in texts)
