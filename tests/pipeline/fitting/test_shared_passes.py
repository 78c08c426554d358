"""Fits in shared passes, against fits one by one."""

from __future__ import annotations

import numpy as np

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model, initialize_fit
from pipeline.fitting.shared_passes import fit_in_shared_passes
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.counts import FeatureCounts
from tests.support.strategies import DenseData, make_memory_rows


def test_each_model_ends_where_it_ends_alone() -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((300, 5)) < 0.3 + 0.4 * rng.random((300, 1))).astype(np.uint8)
    rows, executor = make_memory_rows(DenseData(X), [200, 100]), SerialExecutor()
    first = collect_statistics(FeatureCounts.from_block, rows, executor, "counts")
    models = [
        LatentTrait(n_components=1, errors="none", prior_precision=prior) for prior in (0.0, 5.0)
    ]
    states = [initialize_fit(model, first, 0) for model in models]
    shared = fit_in_shared_passes(models, states, rows, executor)
    alone = [fit_model(model, rows, executor) for model in models]
    assert shared[0].iteration != shared[1].iteration  # one went on after the other had ended
    for found, expected in zip(shared, alone, strict=True):
        assert found.history == expected.history
        assert found.params.weights.tobytes() == expected.params.weights.tobytes()
        assert found.params.offsets.tobytes() == expected.params.offsets.tobytes()
