"""A stack on real images: the first two thirds of USPS are fitted, the others brought back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit

from flows.experiments.base import fit_linear_pca
from pipeline.data.blocks import pack_block
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.stack import Stack, StackParams
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts
from tests.support.data import find_shared_data
from tests.support.strategies import DenseData, make_memory_rows

pytestmark = pytest.mark.slow

Floats = NDArray[np.float64]
N_CODES = 16


@pytest.fixture(scope="module")
def images() -> tuple[Any, Any]:
    with np.load(find_shared_data("usps16_train.npz")) as found:
        X = np.unpackbits(found["X"], axis=1)[:, : found["shape"][1]]
    n = 2 * len(X) // 3
    return X[:n], X[n:]


def score(probabilities: Floats, X: Any) -> tuple[float, float]:
    """Nats of a row, and the share of wrong bits."""
    p = np.clip(probabilities, 1e-9, 1 - 1e-9)
    nats = np.where(X, np.log(p), np.log1p(-p)).sum(axis=1).mean()
    return float(nats), float(((p > 0.5) != X).mean())


def of_linear_pca(X: Any, new: Any) -> tuple[float, float]:
    """Linear PCA through the logistic curve that suits its training rows best."""
    found = fit_linear_pca(PairCounts.from_block(pack_block(X), pooled=True), N_CODES)
    vectors = found.vectors[:, :N_CODES]

    def probabilities(rows: Any, slope: float) -> Floats:
        projected = found.mean + (rows - found.mean) @ vectors @ vectors.T
        p: Floats = expit(slope * (projected - 0.5))
        return p

    slope = minimize_scalar(
        lambda s: -score(probabilities(X, s), X)[0], bounds=(1, 30), method="bounded"
    ).x
    return score(probabilities(new, slope), new)


def of_stack(model: Stack, params: StackParams, new: Any) -> tuple[float, float]:
    codes = model.transform(params, pack_block(new), RowRandom(0))["mean"]
    return score(model.reconstruct(params, codes), new)


@pytest.mark.parametrize("block", ["autoencoder", "rbm"])
def test_fine_tuning_beats_pretraining_and_linear_pca(images: tuple[Any, Any], block: Any) -> None:
    X, new = images
    model, states = Stack(layers=(256, 64, N_CODES), block=block), list[FitState]()
    done = fit_model(
        model, make_memory_rows(DenseData(X)), SerialExecutor(), checkpoint=states.append
    )
    pretrained = next(s.params for s in states if int(s.working["stage"]) == 3)
    nats, wrong = of_stack(model, done.params, new)
    for other, far in ((of_stack(model, pretrained, new), 20), (of_linear_pca(X, new), 2)):
        assert nats > other[0] + far
        assert wrong < 0.99 * other[1]


def test_a_random_start_learns_as_well_in_as_many_passes(images: tuple[Any, Any]) -> None:
    """Steep first weights and steps by Adam leave pretraining little to do here."""
    X, new = images
    model = Stack(layers=(256, 64, N_CODES), pretrain=0, max_iter=160)
    done = fit_model(model, make_memory_rows(DenseData(X)), SerialExecutor())
    nats, wrong = of_stack(model, done.params, new)
    assert -49 < nats < -44
    assert 0.074 < wrong < 0.082
