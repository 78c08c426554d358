"""Sources whose variances do not differ over segments are named, and have no standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood
from pipeline.models.binary_ica.linear_ivae import LinearIVAE
from pipeline.models.binary_ica.rotations import find_rotatable_sources, warn_about_rotations
from tests.support.strategies import DenseData, make_memory_rows

ROTATION = "any rotation of these sources fits as well"
N_SEGMENTS, N_ROWS = 6, 700


def draw_sources(variances: NDArray[np.float64], seed: int) -> DenseData:
    """Draw rows of 8 features and two sources with these variances, (n_segments, 2)."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((8, 2))
    segments = np.repeat(np.arange(N_SEGMENTS), N_ROWS)
    z = rng.standard_normal((len(segments), 2)) * np.sqrt(variances)[segments]
    y = z @ (mixing / np.linalg.norm(mixing, axis=0)).T
    X = (y + rng.standard_normal(y.shape) > 0).astype(np.uint8)
    return DenseData(X, None, segments)


def draw_variances(kind: str, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed + 100)
    common = rng.uniform(1.0, 4.0, (N_SEGMENTS, 1))
    if kind == "different":
        logs = np.linspace(-1.5, 1.5, N_SEGMENTS)
        return np.exp(np.column_stack([logs, -logs]))
    return np.asarray(common * [1.0, 2.0] if kind == "proportional" else 0 * common + [3.0, 3.0])


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "seed"), [("equal", 1), ("proportional", 4), ("different", 0)])
@pytest.mark.parametrize(
    "model", [BLICA(2, 20.0), BinaryICALikelihood(2), BLICA(2), BLICA(2, 20.0, bootstrap=20)]
)
def test_sources_without_a_difference_are_named(model: Any, kind: str, seed: int) -> None:
    data = draw_sources(draw_variances(kind, seed), seed)
    state = fit_model(model, make_memory_rows(data), SerialExecutor())
    texts = [warning.text for warning in state.warnings if ROTATION in warning.text]
    assert len(texts) == (kind != "different")
    assert all("components 1 and 2 " in text for text in texts)
    for name in ("mixing_error", "log_variances_error", "mixing_interval"):
        if (errors := getattr(state.params, name, np.zeros(0))).size:
            assert np.isnan(errors).all() == (kind != "different")


@pytest.mark.parametrize(("kind", "seed"), [("equal", 1), ("proportional", 4), ("different", 1)])
def test_a_linear_ivae_names_sources_without_a_difference(kind: str, seed: int) -> None:
    """From many values, because weak sources show no difference."""
    data = draw_sources(8 * draw_variances(kind, seed), seed)
    state = fit_model(LinearIVAE(2), make_memory_rows(data), SerialExecutor())
    assert any(ROTATION in w.text for w in state.warnings) == (kind != "different")


def test_only_sources_without_a_difference_are_linked() -> None:
    rng = np.random.default_rng(0)
    truth = np.column_stack([*[np.linspace(-1, 1, 10)] * 2, *[np.linspace(1, -1, 10) ** 2] * 2])
    truth = np.column_stack([truth, np.zeros(10)]) * 3 + np.arange(5)
    logs = truth + 0.1 * rng.standard_normal(truth.shape)
    covariances = np.tile(0.01 * np.eye(5), (10, 1, 1))
    sets = find_rotatable_sources(logs, covariances)
    assert sets == [(0, 1), (2, 3)]
    assert "components 3 and 4 " in warn_about_rotations(sets)[1].text
    assert find_rotatable_sources(logs, 1e4 * covariances) == [(0, 1, 2, 3, 4)]
