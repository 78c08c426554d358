"""Fits in shared passes, against fits one by one."""

from __future__ import annotations

import numpy as np

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.fitting.shared_passes import fit_in_shared_passes
from pipeline.models.latent_trait.model import LatentTrait
from tests.support.designs import link_by_rows
from tests.support.strategies import DenseData, make_memory_rows
from tests.support.traits import draw_answers


def test_each_model_ends_where_it_ends_alone() -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((300, 5)) < 0.3 + 0.4 * rng.random((300, 1))).astype(np.uint8)
    rows, executor = make_memory_rows(DenseData(X), [200, 100]), SerialExecutor()
    models = [
        LatentTrait(n_components=1, errors="none", prior_precision=prior) for prior in (0.0, 5.0)
    ]
    first = collect_first_statistics(models[0], rows, executor, 0)
    states = [initialize_fit(model, first, 0) for model in models]
    shared = fit_in_shared_passes(models, states, rows, executor)
    alone = [fit_model(model, rows, executor) for model in models]
    assert shared[0].iteration != shared[1].iteration  # one went on after the other had ended
    for found, expected in zip(shared, alone, strict=True):
        assert found.history == expected.history
        assert found.params.weights.tobytes() == expected.params.weights.tobytes()
        assert found.params.offsets.tobytes() == expected.params.offsets.tobytes()


def test_several_starts_share_passes_too() -> None:
    rng = np.random.default_rng(1)
    answers = draw_answers(link_by_rows(300, 8, rng, 1 / 300), 1, 2, rng)
    mask = (~np.isnan(answers.X)).astype(np.uint8)
    data = DenseData(np.nan_to_num(answers.X).astype(np.uint8), mask)
    rows, executor = make_memory_rows(data), SerialExecutor()
    model = LatentTrait(n_components=1, errors="none", tol=1e-4)
    state = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    assert len(state.starts) == 2
    (shared,) = fit_in_shared_passes([model], [state], rows, executor)
    alone = fit_model(model, rows, executor)
    assert shared.params.weights.tobytes() == alone.params.weights.tobytes()
