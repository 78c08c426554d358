"""Clipped PCA by strips of features against clipped PCA by squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.executors.threads import ThreadsExecutor
from pipeline.fitting import pair_work as pairs
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA, model, strips
from pipeline.models.state import FitState
from pipeline.numerics.spectra.lanczos import max_leading_pairs
from tests.support.strategies import Bits, DenseData, draw_probit_data, make_memory_rows

N_FEATURES = 150
SERIAL = SerialExecutor()


@pytest.fixture
def in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 100)
    monkeypatch.setattr(pairs, "choose_strip_height", lambda *of: 40)


def drawn(n_rows: int = 1500) -> Bits:
    return draw_probit_data(n_rows, N_FEATURES, 3, np.random.default_rng(5))[0]


def some_missing() -> Bits:
    return (np.random.default_rng(1).random((1500, N_FEATURES)) < 0.9).astype(np.uint8)


def one_constant() -> Bits:
    X = drawn()
    X[:, 70] = 1
    return X


SAME: dict[str, tuple[DenseData, dict[str, Any]]] = {
    "plain": (DenseData(drawn()), {}),
    "missing": (DenseData(drawn(), some_missing()), {}),
    "segments and a split": (
        DenseData(drawn(), None, np.arange(1500) % 3, np.arange(1500) % 5 > 0),
        {},
    ),
    "arcsine": (DenseData(drawn()), {"estimator": "arcsine"}),
    "rare": (DenseData(drawn() & (np.random.default_rng(3).random((1500, N_FEATURES)) < 0.03)), {}),
    "boundary": (DenseData(drawn(60)), {"empty_cells": "none"}),
    "shrunk": (DenseData(drawn(60)), {"empty_cells": "none", "repair": "shrink"}),
    "constant": (DenseData(one_constant()), {"constant_features": "keep"}),
}


def fitted(data: DenseData, executor: Any = SERIAL, **settings: Any) -> FitState:
    given = {"n_components": 3, "errors": "none", **settings}
    rows = make_memory_rows(data, [64] * (len(data.X) // 64) + [len(data.X) % 64])
    return fit_model(ClippedPCA(**given), rows, executor)


@pytest.mark.parametrize("name", SAME)
def test_strips_give_what_squares_give(name: str, request: pytest.FixtureRequest) -> None:
    data, settings = SAME[name]
    whole = fitted(data, **settings)
    request.getfixturevalue("in_strips")
    found = fitted(data, **settings)
    assert found.params.correlation is None
    assert_allclose(found.params.eigenvalues, whole.params.eigenvalues[:3], rtol=1e-6)
    assert_allclose(found.params.loadings, whole.params.loadings, atol=1e-5)
    assert_array_equal(found.params.thresholds, whole.params.thresholds)
    kinds = [name for name in whole.diagnostics if name.startswith("pairs_")]
    assert [found.diagnostics[k] for k in kinds] == [whole.diagnostics[k] for k in kinds]
    told = {n.text.split(":")[0]: n.features for n in whole.warnings if "indefinite" not in n.text}
    assert {n.text.split(":")[0]: n.features for n in found.warnings}.items() >= told.items()
    assert found.done
    assert len(found.history) == 1


@pytest.mark.usefixtures("in_strips")
def test_bytes_do_not_depend_on_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_N_LEADING", 6)  # blocks are 12 wider, and a basis needs room
    one, other = (
        fitted(DenseData(drawn()), e, n_components=None) for e in (SERIAL, ThreadsExecutor(3))
    )
    for name in ("loadings", "eigenvalues", "null_eigenvalues"):
        assert getattr(one.params, name).tobytes() == getattr(other.params, name).tobytes()


def test_the_number_of_components_is_chosen_as_by_drawn_spectra(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_N_LEADING", 6)
    drawn_spectra = fitted(DenseData(drawn()), n_components=None)
    request.getfixturevalue("in_strips")
    by_margins = fitted(DenseData(drawn()), n_components=None)
    assert drawn_spectra.diagnostics["n_components"] == 3
    assert by_margins.diagnostics["n_components"] == 3
    before = drawn_spectra.params.null_eigenvalues[:6]
    assert_allclose(by_margins.params.null_eigenvalues, before, rtol=0.03)


@pytest.mark.usefixtures("in_strips")
def test_a_strip_is_symmetric_within_and_has_no_copy_of_others() -> None:
    state = fitted(DenseData(drawn()))
    work = pairs.make_pair_job(ClippedPCA(), state, make_memory_rows(DenseData(drawn())))
    results = pairs.run_in_memory(work, SERIAL)
    assert results.n_ranges == 4
    for key, first in enumerate((0, 40, 80, 120)):
        strip = results.read(key)
        height = min(40, N_FEATURES - first)
        assert strip["correlation"].shape == (height, N_FEATURES - first)
        assert (strip["correlation"].dtype, strip["joint"].dtype) == (np.float32, np.uint16)
        inner = strip["correlation"][:, :height]
        assert_array_equal(inner, inner.T)
        assert (inner.diagonal() == 1).all()
        assert list(results.read(key, ["status"])) == ["status"]


@pytest.mark.usefixtures("in_strips")
def test_what_strips_cannot_do_is_refused_at_once() -> None:
    most = max_leading_pairs(N_FEATURES)
    with pytest.raises(
        FitError, match=f"components is {most + 1}, but the limit is {most}, about an eighth of the"
    ):
        fitted(DenseData(drawn()), n_components=most + 1)
    with pytest.raises(
        FitError, match=r"repair=\"nearest\" takes at most 100 features.* there are 150"
    ):
        fitted(DenseData(drawn()), repair="nearest")


@pytest.mark.matrix
def test_eigenvalues_of_2000_features_are_those_of_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    data = DenseData(draw_probit_data(4000, 2000, 10, rng)[0])
    square = fitted(data, n_components=20)
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 1999)
    assert_allclose(
        fitted(data, n_components=20).params.eigenvalues,
        square.params.eigenvalues[:20],
        rtol=1e-8,
    )


def test_memory_grows_with_features_not_with_their_square() -> None:
    wide, wider = (strips.estimate_strips_memory(n, 20, 2) for n in (20_000, 40_000))
    assert wider < 2.1 * wide < 8e9
