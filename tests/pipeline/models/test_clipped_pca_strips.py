"""Clipped PCA of wide data: strips give what squares give."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.fitting import pair_work
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA, model
from pipeline.models.state import FitState
from pipeline.numerics.spectra.lanczos import max_leading_pairs
from pipeline.statistics import null_spectrum
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

N_FEATURES, N_ROWS = 130, 500
# Numbers of levels, 0 of continuous features.
ORDINAL = [2, 3, 5, 2, 4, 2, 2, 7, 3, 2] * (N_FEATURES // 10)
MIXED = [0, 3, 5, 0, 0, 2, 4, 6, 2, 0] * (N_FEATURES // 10)
SEPARATE = [3] * 30 + [0] * 60 + [3] * 40
CONTINUOUS = [0] * N_FEATURES
SERIAL = SerialExecutor()
BINARY = [2] * N_FEATURES
KINDS = {
    "binary": BINARY,
    "ordinal": ORDINAL,
    "mixed": MIXED,
    "separate": SEPARATE,
    "continuous": CONTINUOUS,
}


def draw_values(counts: list[int]) -> NDArray[np.float64]:
    """Draw levels and values of two factors."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N_ROWS, 2)) @ rng.uniform(-0.8, 0.8, (2, N_FEATURES))
    x += rng.standard_normal(x.shape)
    for i, k in enumerate(counts):
        if k:
            x[:, i] = np.searchsorted(np.linspace(-1.5, 1.5, k + 1)[1:-1], x[:, i])
        else:
            x[:, i] = 40 + (i + 1) * x[:, i]
    return x


def make_rows(
    values: NDArray[np.float64], counts: list[int], mask: Any = None, weights: Any = None
) -> RowSource:
    kind = "sampling" if weights is not None and weights.dtype.kind == "f" else "frequency"
    data = make_data(values, counts, mask, weights=weights)
    return make_memory_rows(data, [100] * (N_ROWS // 100), kind)


def make_case(name: str, counts: list[int]) -> tuple[RowSource, dict[str, Any]]:
    """Return rows and settings that strips should treat as squares do."""
    values = draw_values(counts)
    mask = (np.random.default_rng(1).random(values.shape) < 0.8).astype(np.uint8)
    times = np.arange(N_ROWS) % 4
    match name:
        case "missing":
            return make_rows(values, counts, mask), {}
        case "frequencies":
            return make_rows(values, counts, mask, times), {}
        case "survey":
            return make_rows(values, counts, weights=1 / (1 + times)), {}
        case "constant":
            values[:, [0, 7, 70]] = 1
            return make_rows(values, counts), {"constant_features": "keep"}
        case "rare":
            return make_rows(
                values * (np.random.default_rng(3).random(values.shape) < 0.03), counts
            ), {}
        case "arcsine":
            return make_rows(values, counts), {"correlation": "arcsine"}
        case "shrunk":
            settings = {"repair": "shrink", "empty_cells": "none"}
            return make_rows(values, counts, mask, (times == 1).astype(np.int64)), settings
    return make_rows(values, counts), {}


def fit_rows(
    rows: RowSource, counts: list[int], executor: Executor = SERIAL, **settings: Any
) -> FitState:
    settings = {"n_components": 2, "errors": "none", **settings}
    return fit_model(make_model(ClippedPCA, counts, **settings), rows, executor)


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
    inner = strip["correlation"][:, : len(strip["correlation"])]
    assert_array_equal(inner, inner.T)
    for name, values in strip.items():
        square = squares.setdefault(name, np.zeros((n_features, n_features), values.dtype))
        first = n_features - values.shape[1]
        square[first : first + len(values), first:] = np.triu(values)


ALL = ("complete", "missing", "frequencies", "survey", "constant", "shrunk")
CASES = dict.fromkeys(
    [
        ("binary", "missing"),
        ("mixed", "frequencies"),
        ("ordinal", "shrunk"),
        ("mixed", "constant"),
        ("continuous", "survey"),
        ("separate", "missing"),
        *product(("binary", "ordinal", "mixed"), ALL),
        *product(("binary",), ("rare", "arcsine")),
        *product(("continuous",), ("complete", "missing")),
    ]
)


@pytest.mark.few(6)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_strips_give_what_squares_give(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    counts = KINDS[kind]
    rows, settings = make_case(name, counts)
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 10**4)
    whole = fit_rows(rows, counts, **{**settings, "repair": "none"})
    strips = request.getfixturevalue("strips")
    wide = fit_rows(rows, counts, **settings)
    assert {"correlation", "status"} <= strips.keys()
    assert ("joint" in strips) == (kind == "binary")
    # Correlations are stored in 32 bits.
    expected = np.triu(whole.params.correlation)
    assert_allclose(strips["correlation"], expected.astype(np.float32), rtol=2e-7, atol=1e-10)
    if kind in ("binary", "ordinal"):
        assert_array_equal(strips["correlation"], expected.astype(np.float32))
    assert_array_equal(strips["status"], np.triu(whole.params.status))
    # Given them, the spectrum is that of the square.
    correlation = strips["correlation"].astype(np.float64)
    correlation += np.triu(correlation, 1).T
    if name == "shrunk":
        assert wide.diagnostics["shrinkage"] > 0
        correlation *= 1 - wide.diagnostics["shrinkage"]
        np.fill_diagonal(correlation, 1.0)
    constant = whole.auxiliary["constant"]
    assert len(constant) == (3 if name == "constant" else 0)
    correlation[constant, constant] = 0.0
    values, vectors = np.linalg.eigh(correlation)
    assert_allclose(wide.params.eigenvalues, values[:-3:-1], rtol=1e-10)
    loadings = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1])
    signs = np.sign((loadings * wide.params.loadings).sum(axis=0))
    assert_allclose(wide.params.loadings, loadings * signs, atol=1e-8)
    for field in ("thresholds", "n_levels"):
        assert_array_equal(getattr(wide.params, field), getattr(whole.params, field))
    if whole.params.means is not None:  # sums of tasks of another size
        assert_allclose(wide.params.means, whole.params.means, rtol=1e-15)
        assert_allclose(wide.params.scales, whole.params.scales, rtol=1e-15)
    statuses = [name for name in whole.diagnostics if name.startswith("pairs_")]
    assert [wide.diagnostics[k] for k in statuses] == [whole.diagnostics[k] for k in statuses]
    texts = [w.text for w in whole.warnings if "indefinite" not in w.text]
    assert [w.text for w in wide.warnings if "indefinite" not in w.text] == texts


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_executor_and_the_height_of_strips_do_not_matter(
    kind: str, strips: dict[str, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = KINDS[kind]
    rows, _ = make_case("missing", counts)
    serial = fit_rows(rows, counts)
    correlation = strips["correlation"]
    threads = fit_rows(rows, counts, ThreadsExecutor(3))
    for name in ("loadings", "eigenvalues"):
        assert getattr(threads.params, name).tobytes() == getattr(serial.params, name).tobytes()
    assert_array_equal(strips["correlation"], correlation)
    monkeypatch.setattr(pair_work, "choose_strip_height", lambda *_: 17)
    low = fit_rows(rows, counts)
    assert_allclose(strips["correlation"], correlation, rtol=2e-7, atol=1e-10)
    assert_allclose(low.params.eigenvalues, serial.params.eigenvalues, rtol=1e-7)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["mixed", "binary", "ordinal", "continuous"])
def test_the_number_of_components_is_chosen_as_by_drawn_spectra(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(null_spectrum, "_MAX_GROUPS", 6)
    rows, _ = make_case("missing", KINDS[kind])
    whole = fit_rows(rows, KINDS[kind], n_components=None)
    request.getfixturevalue("strips")
    serial, threads = (
        fit_rows(rows, KINDS[kind], executor, n_components=None)
        for executor in (SERIAL, ThreadsExecutor(2))
    )
    found = serial.params.null_eigenvalues
    assert found.tobytes() == threads.params.null_eigenvalues.tobytes()
    assert_allclose(found, whole.params.null_eigenvalues[: len(found)], rtol=0.03)
    assert [fit.diagnostics["n_components"] for fit in (whole, serial)] == [2, 2]


@pytest.mark.usefixtures("strips")
def test_wide_data_have_fewer_components() -> None:
    most = max_leading_pairs(N_FEATURES)
    refusal = f"components is {most + 1}, but the limit is {most}, about an eighth of the"
    with pytest.raises(FitError, match=refusal):
        fit_rows(make_case("complete", BINARY)[0], BINARY, n_components=most + 1)


def test_many_levels_make_data_wide_too(
    strips: dict[str, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", N_FEATURES)
    n_planes = sum(ORDINAL) - N_FEATURES
    rows, _ = make_case("complete", ORDINAL)
    monkeypatch.setattr(model, "MAX_SQUARE_PLANES", n_planes)
    assert fit_rows(rows, ORDINAL).params.correlation is not None
    monkeypatch.setattr(model, "MAX_SQUARE_PLANES", n_planes - 1)
    assert fit_rows(rows, ORDINAL).params.correlation is None
    text = rf"takes at most {N_FEATURES} features with {n_planes - 1} levels above the lowest"
    with pytest.raises(FitError, match=rf"{text} .* there are {N_FEATURES} features with"):
        fit_rows(rows, ORDINAL, repair="nearest")


def test_continuous_features_and_levels_together_make_data_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not make_model(ClippedPCA, [0, *[2] * 1999]).has_pair_tables(1999)
    assert make_model(ClippedPCA, [0, *[2] * 1998, 3]).has_pair_tables(2000)
    rows, _ = make_case("complete", CONTINUOUS)
    text = "takes at most 99 continuous features and levels above the lowest ones, .* are 130"
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 99)
    with pytest.raises(FitError, match=text):
        fit_rows(rows, CONTINUOUS, repair="nearest")


def test_memory_grows_with_features_not_with_the_square_of_planes() -> None:
    def estimate(n_features: int) -> int:
        wide = make_model(ClippedPCA, [5] * n_features, n_components=20)
        return int(wide.estimate_memory(4 * n_features, 1, 2))

    assert estimate(20_000) < 2.1 * estimate(10_000) < 4e9
