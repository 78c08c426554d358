"""The Laplacian eigenmap: vertices, codes of their rows and of others, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import FitState, fit_model
from pipeline.models import laplacian_eigenmap
from pipeline.models.laplacian_eigenmap import LaplacianEigenmap
from pipeline.random import RowRandom
from tests.support.strategies import Bits, DenseData, make_memory_rows


def noisy_ring(n: int, seed: int, n_features: int = 40) -> tuple[Bits, NDArray[np.float64]]:
    """Rows whose features are on within a quarter of a ring, and where on it each row lies."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0, 2 * np.pi, n)
    places = 2 * np.pi * np.arange(n_features) / n_features
    on = np.cos(angles[:, None] - places) > np.cos(np.pi / 4)
    return (on ^ (rng.random(on.shape) < 0.02)).astype(np.uint8), angles


def fitted(X: Bits, observed: Bits | None = None, **settings: Any) -> tuple[Any, FitState]:
    model = LaplacianEigenmap(**{"n_components": 2, **settings})
    return model, fit_model(model, make_memory_rows(DenseData(X, observed)), SerialExecutor())


def codes(model: Any, state: FitState, X: Bits, mask: Bits | None = None) -> NDArray[np.float64]:
    found: NDArray[np.float64]
    found = model.transform(state.params, pack_block(X, mask), RowRandom(0))["mean"]
    return found


def resultant(z: NDArray[np.float64], angles: NDArray[np.float64]) -> float:
    """How constant the angle of codes is, up to a turn, against where rows lie: 1 is wholly."""
    turned = np.arctan2(z[:, 1], z[:, 0])
    return float(max(abs(np.exp(1j * (turned - s * angles)).mean()) for s in (1, -1)))


def check_vertices(model: Any, state: FitState, X: Bits, mask: Bits | None = None) -> None:
    """Rows that were fitted have the codes of their vertices."""
    params = state.params
    order = [
        (r.tobytes(), None if params.observed is None else o.tobytes())
        for r, o in zip(
            params.rows, params.rows if params.observed is None else params.observed, strict=True
        )
    ]
    at = {key: place for place, key in enumerate(order)}
    seen = np.ones_like(X) if mask is None else mask
    rows, masks = (np.packbits(a, axis=1, bitorder="little") for a in (X & seen, seen))
    keys = [
        (r.tobytes(), None if params.observed is None else m.tobytes())
        for r, m in zip(rows, masks, strict=True)
    ]
    assert len(at) == len({*keys}) == len(params.embedding)
    expected = params.embedding[[at[key] for key in keys]]
    np.testing.assert_array_equal(codes(model, state, X, mask), expected)


@pytest.mark.parametrize("weights", ["binary", "heat"])
def test_a_ring_is_found_and_new_rows_fall_onto_it(weights: str) -> None:
    (X, _), (new, angles) = noisy_ring(1500, 0), noisy_ring(300, 1)
    model, state = fitted(X, weights=weights)
    check_vertices(model, state, X)
    assert resultant(codes(model, state, new), angles) > 0.97


def test_the_extension_over_all_that_a_vertex_is_linked_to_gives_its_code() -> None:
    X = np.eye(12, dtype=np.uint8)
    mixed = np.concatenate([X, 1 - X[:6]])  # with k of all others the graph is complete
    params = fitted(mixed, k=17, n_components=1)[1].params
    others = np.full((18, 18), 1 / 17) - np.eye(18) / 17
    share = 1 - params.eigenvalues
    np.testing.assert_allclose(others @ params.embedding, params.embedding * share, atol=1e-12)


def test_rows_that_came_more_often_change_nothing() -> None:
    X, _ = noisy_ring(400, 0)
    once = np.unique(X, axis=0)
    (_, one), (_, other) = fitted(once), fitted(np.repeat(once, 3, axis=0))
    assert one.params.embedding.tobytes() == other.params.embedding.tobytes()
    assert other.diagnostics["vertices"] == len(once)


def test_missing_values_leave_the_ring_and_rows_without_values_have_the_mean() -> None:
    X, angles = noisy_ring(1500, 0)
    mask = (np.random.default_rng(2).random(X.shape) < 0.8).astype(np.uint8)
    mask[:5] = 0
    model, state = fitted(X, mask)
    check_vertices(model, state, X[5:], mask[5:])
    z = codes(model, state, X, mask)
    assert (z[:5] == 0).all()
    assert resultant(z[5:], angles[5:]) > 0.97
    assert "have the code 0: 5" in state.warnings[0].render()


def test_landmarks_are_drawn_by_the_seed() -> None:
    (X, _), (new, angles) = noisy_ring(1500, 0), noisy_ring(300, 1)
    model, state = fitted(X, landmarks=300)
    assert len(state.params.rows) == 300
    assert resultant(codes(model, state, new), angles) > 0.95
    again = fit_model(model, make_memory_rows(DenseData(X)), SerialExecutor(), seed=1)
    assert again.params.rows.tobytes() != state.params.rows.tobytes()


def test_parts_are_joined_and_told() -> None:
    X, _ = noisy_ring(300, 0)
    far = np.concatenate([np.hstack([X, 0 * X]), np.hstack([0 * X, X])])
    model, state = fitted(far, n_components=1)
    assert state.diagnostics["parts"] == 2
    assert "the graph has 2 unconnected parts (" in state.warnings[-1].render()
    z = codes(model, state, far)[:, 0]
    assert (z[:300] * z[300:] < 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 31}, r"^k is 31, but there are only 31 distinct rows\."),
        ({"k": 5, "n_components": 31}, r"^components is 31, but there are only 31 distinct rows\."),
        ({"weights": "heat", "width": 0.01}, r"^width is 0\.01, .* Choose about 1\.\d,"),
    ],
)
def test_settings_that_do_not_suit_the_rows_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    X = (np.arange(1, 32)[:, None] >> np.arange(5) & 1).astype(np.uint8)
    with pytest.raises(FitError, match=message):
        fitted(X, **settings)


def test_too_many_rows_are_refused_with_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplacian_eigenmap, "MAX_ROWS", 100)
    refusal = r"about .* distinct rows, .* takes at most 100\..*landmarks="
    with pytest.raises(FitError, match=refusal) as got:
        fitted(noisy_ring(500, 0)[0])
    assert "minutes" in str(got.value)
    assert "GB" in str(got.value)


def test_components_that_no_neighbours_share_are_told_and_finite() -> None:
    X = np.unique(np.random.default_rng(0).integers(0, 2, (60, 30), dtype=np.uint8), axis=0)
    model, state = fitted(X, n_components=50)
    assert (
        "components differ as much between neighbours as between any rows"
        in state.warnings[-1].render()
    )
    assert np.isfinite(codes(model, state, 1 - X)).all()
    state = replace(state, params=replace(state.params, width=np.array(1e-3)))
    assert np.isfinite(codes(model, state, 1 - X)).all()
