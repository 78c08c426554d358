"""Clipped PCA of wide data with several levels: strips give what squares give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from pipeline.data.blocks import RowSource
from pipeline.data.features import Feature, split_values
from pipeline.errors import FitError
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.fitting import pair_work
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA, model, ordinal
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.statistics import null_spectrum
from tests.support.strategies import DenseData, make_memory_rows

N_FEATURES, N_ROWS = 130, 500
COUNTS = [2, 3, 5, 2, 4, 2, 2, 16, 3, 2] * (N_FEATURES // 10)
FEATURES = tuple(Feature(f"q{i}", tuple(map(str, range(k)))) for i, k in enumerate(COUNTS))
SERIAL = SerialExecutor()


def draw_levels() -> NDArray[np.uint8]:
    """Draw levels of two factors."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N_ROWS, 2)) @ rng.uniform(-0.8, 0.8, (2, N_FEATURES))
    x += rng.standard_normal(x.shape)
    cuts = (np.linspace(-1.5, 1.5, k + 1)[1:-1] for k in COUNTS)
    return np.column_stack([np.searchsorted(c, x[:, i]) for i, c in enumerate(cuts)]).astype(
        np.uint8
    )


def draw_mask() -> NDArray[np.uint8]:
    rng = np.random.default_rng(1)
    return (rng.random((N_ROWS, N_FEATURES)) < 0.8).astype(np.uint8)


def make_rows(
    levels: NDArray[np.uint8], mask: NDArray[np.uint8] | None = None, weights: Any = None
) -> RowSource:
    data = DenseData(*split_values(levels, mask, FEATURES), weights=weights)
    kind = "sampling" if weights is not None and weights.dtype.kind == "f" else "frequency"
    return make_memory_rows(data, [100] * (N_ROWS // 100), kind)


def make_case(name: str) -> tuple[RowSource, dict[str, Any]]:
    """Return rows and settings that strips should treat as squares do."""
    levels, mask = draw_levels(), draw_mask()
    times = np.arange(N_ROWS) % 4
    match name:
        case "missing":
            return make_rows(levels, mask), {}
        case "frequencies":
            return make_rows(levels, mask, times), {}
        case "survey":
            return make_rows(levels, weights=1 / (1 + times)), {}
        case "constant":
            levels[:, [7, 70]] = 1
            return make_rows(levels), {"constant_features": "keep"}
        case "shrunk":
            return make_rows(levels, mask, times == 1), {"repair": "shrink", "empty_cells": "none"}
    return make_rows(levels), {}


def fit_rows(rows: RowSource, executor: Executor = SERIAL, **settings: Any) -> FitState:
    settings = {"n_components": 2, "errors": "none", **settings}
    wide = ClippedPCA(**settings).with_structure(Structure(features=FEATURES))
    return fit_model(wide, rows, executor)


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[Any]]:
    """Make data wide; return the upper triangles of the pairs of the last fit."""
    squares: dict[str, NDArray[Any]] = {}
    run = pair_work.run_in_memory

    def keep(job: Any, *arguments: Any) -> Any:
        results = run(job, *arguments)
        squares.clear()
        for key in range(results.n_ranges):
            add_strip(squares, results.read(key), job.n_features)
        return results

    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", N_FEATURES - 1)
    monkeypatch.setattr(pair_work, "choose_strip_height", lambda *_: 40)
    monkeypatch.setattr("pipeline.fitting.loop.run_in_memory", keep)
    return squares


def add_strip(
    squares: dict[str, NDArray[Any]], strip: Mapping[str, NDArray[Any]], n_features: int
) -> None:
    for name, values in strip.items():
        square = squares.setdefault(name, np.zeros((n_features, n_features), values.dtype))
        first = n_features - values.shape[1]
        square[first : first + len(values), first:] = np.triu(values)


@pytest.mark.parametrize(
    "name", ["complete", "missing", "frequencies", "survey", "constant", "shrunk"]
)
def test_strips_of_levels_give_what_squares_give(name: str, request: pytest.FixtureRequest) -> None:
    rows, settings = make_case(name)
    whole = fit_rows(rows, **{**settings, "repair": "none"})
    strips = request.getfixturevalue("strips")
    wide = fit_rows(rows, **settings)
    assert sorted(strips) == ["correlation", "status"]
    assert_array_equal(strips["correlation"], np.triu(whole.params.correlation.astype(np.float32)))
    assert_array_equal(strips["status"], np.triu(whole.params.status))
    # Correlations are stored in 32 bits. Given them, the spectrum is that of the square.
    correlation = strips["correlation"].astype(np.float64)
    correlation += np.triu(correlation, 1).T
    if name == "shrunk":
        assert wide.diagnostics["shrinkage"] > 0
        correlation *= 1 - wide.diagnostics["shrinkage"]
        np.fill_diagonal(correlation, 1.0)
    constant = whole.auxiliary["constant"]
    correlation[constant, constant] = 0.0
    values, vectors = np.linalg.eigh(correlation)
    assert_allclose(wide.params.eigenvalues, values[:-3:-1], rtol=1e-10)
    expected = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1])
    signs = np.sign((expected * wide.params.loadings).sum(axis=0))
    assert_allclose(wide.params.loadings, expected * signs, atol=1e-8)
    assert_array_equal(wide.params.thresholds, whole.params.thresholds)
    assert_array_equal(wide.params.n_levels, COUNTS)
    kinds = [name for name in whole.diagnostics if name.startswith("pairs_")]
    assert [wide.diagnostics[k] for k in kinds] == [whole.diagnostics[k] for k in kinds]
    texts = [w.text for w in whole.warnings if "indefinite" not in w.text]
    assert [w.text for w in wide.warnings if "indefinite" not in w.text] == texts


def test_the_executor_and_the_height_of_strips_do_not_matter(
    strips: dict[str, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(null_spectrum, "_MAX_GROUPS", 8)
    rows, _ = make_case("missing")
    serial = fit_rows(rows, n_components=None)
    correlation = strips["correlation"]
    threads = fit_rows(rows, ThreadsExecutor(3), n_components=None)
    for name in ("loadings", "eigenvalues", "null_eigenvalues"):
        assert getattr(threads.params, name).tobytes() == getattr(serial.params, name).tobytes()
    assert serial.diagnostics["n_components"] == 2
    monkeypatch.setattr(pair_work, "choose_strip_height", lambda *_: 10)
    low = fit_rows(rows)
    assert_array_equal(strips["correlation"], correlation)
    assert_allclose(low.params.eigenvalues, serial.params.eigenvalues[:2], rtol=1e-10)


def test_many_levels_make_data_wide_too(
    strips: dict[str, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", N_FEATURES)
    n_planes = sum(COUNTS) - N_FEATURES
    rows, _ = make_case("complete")
    monkeypatch.setattr(ordinal, "MAX_PLANES", n_planes)
    assert fit_rows(rows).params.correlation is not None
    monkeypatch.setattr(ordinal, "MAX_PLANES", n_planes - 1)
    assert fit_rows(rows).params.correlation is None
    text = rf"takes at most {N_FEATURES} features with {n_planes - 1} levels above the lowest"
    with pytest.raises(FitError, match=rf"{text} .* there are {N_FEATURES} features with"):
        fit_rows(rows, repair="nearest")


def test_memory_grows_with_features_not_with_the_square_of_planes() -> None:
    def estimate(n_features: int) -> int:
        features = tuple(Feature(f"q{i}", tuple("abcde")) for i in range(n_features))
        wide = ClippedPCA(n_components=20).with_structure(Structure(features=features))
        return wide.estimate_memory(4 * n_features, 1, 2)

    assert estimate(20_000) < 2.1 * estimate(10_000) < 4e9
