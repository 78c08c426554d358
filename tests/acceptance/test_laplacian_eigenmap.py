"""Codes of the Laplacian eigenmap keep digits apart, also of rows that were not fitted.

USPS, 10 components: 5 nearest neighbours among codes of two thirds of the rows name the digits of
the last third. `-s` shows the table.
"""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.data.blocks import pack_block
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.laplacian_eigenmap import LaplacianEigenmap
from pipeline.random import RowRandom
from tests.acceptance.test_bottleneck import N_COMPONENTS, by_neighbours, digits


def accuracy(seed: int, weights: str = "binary", landmarks: int | None = None) -> float:
    data = digits(seed)
    model = LaplacianEigenmap(
        n_components=N_COMPONENTS,
        weights=weights,  # type: ignore[arg-type]
        landmarks=landmarks,
    )
    params = fit_model(model, data.rows, SerialExecutor(), seed).params
    codes = (
        model.transform(params, pack_block(X), RowRandom(0))["mean"] for X in (data.X, data.X_new)
    )
    return by_neighbours(data, *codes)


@pytest.mark.matrix
def test_codes_of_new_rows_tell_digits_apart() -> None:
    assert accuracy(0) >= 0.9


@pytest.mark.slow
def test_they_do_in_every_split_and_by_landmarks() -> None:
    kinds = {"binary": {}, "heat": {"weights": "heat"}, "landmarks": {"landmarks": 2000}}
    found = {name: [accuracy(seed, **kind) for seed in range(5)] for name, kind in kinds.items()}
    print()
    for name, shares in found.items():
        print(f"{name:10}" + "".join(f"{share:8.4f}" for share in shares))
    assert np.min([found["binary"], found["heat"]]) >= 0.9
    assert min(found["landmarks"]) >= 0.85
