"""Fits are compared with independent features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

from pipeline.data.features import Feature
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.independence import compute_independent_log_likelihood
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.binary_ica.linear_ivae import LinearIVAE
from pipeline.models.bottleneck import Bottleneck
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.rbm import RestrictedBoltzmannMachine
from pipeline.models.structure import Structure
from pipeline.models.trees.tree_mixture import TreeMixture
from pipeline.statistics.counts import FeatureCounts, PairCounts
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS = 1500
RNG = np.random.default_rng(0)
INDEPENDENT = (RNG.random((N_ROWS, 6)) < np.linspace(0.2, 0.8, 6)).astype(np.uint8)
COPIES = (INDEPENDENT[:, :1] ^ (RNG.random((N_ROWS, 6)) < 0.1)).astype(np.uint8)


def doubts(model: Any, data: DenseData) -> list[str]:
    state = fit_model(model, make_memory_rows(data), SerialExecutor())
    return [w.text for w in state.warnings if w.text.startswith("no better than independent")]


@pytest.mark.parametrize(
    "model",
    [
        BernoulliMixture(1),
        RestrictedBoltzmannMachine(2, method="pcd", rate=1e-9, max_iter=5),
        RestrictedBoltzmannMachine(2, weight_decay=10.0),
        LinearIVAE(1, rate=1e-9, max_iter=2),
    ],
)
def test_a_fit_that_finds_no_dependence_says_so(model: Any) -> None:
    data = DenseData(COPIES, segments=np.arange(N_ROWS) % 3)
    (text,) = doubts(model, data)
    assert "than independent features with the same margins: " in text


@pytest.mark.parametrize(
    "model",
    [
        BernoulliMixture(2),
        TreeMixture(1),
        RestrictedBoltzmannMachine(1),
        RestrictedBoltzmannMachine(2, method="pcd"),
    ],
)
def test_a_fit_that_finds_dependence_does_not(model: Any) -> None:
    seen = (np.random.default_rng(1).random(COPIES.shape) < 0.8).astype(np.uint8)
    assert doubts(model, DenseData(COPIES)) == []
    assert doubts(model, DenseData(COPIES * seen, seen)) == []


@pytest.mark.parametrize(
    ("model", "is_dependent"),
    [(BernoulliMixture(1), False), (BernoulliMixture(2), True), (LatentTrait(1), True)],
)
def test_continuous_features_are_normal(model: Any, is_dependent: bool) -> None:
    structure = Structure(features=tuple(Feature(name, ()) for name in "ab"))
    rng = np.random.default_rng(4)
    numbers = rng.standard_normal((800, 1)) + rng.standard_normal((800, 2))
    data = DenseData(np.zeros((800, 0), np.uint8), numbers=numbers.astype(np.float32))
    assert (doubts(model.with_structure(structure), data) == []) is is_dependent


@pytest.mark.parametrize("rate", [1e-9, None])
def test_predictions_are_compared_with_those_that_ignore_the_features(rate: float | None) -> None:
    labels = INDEPENDENT[:, 2] ^ (np.random.default_rng(5).random(N_ROWS) < 0.2)
    data = DenseData(INDEPENDENT, segments=labels.astype(int))
    state = fit_model(Bottleneck(2, rate=rate), make_memory_rows(data), SerialExecutor())
    texts = [
        w.text for w in state.warnings if "than predictions that ignore the features" in w.text
    ]
    assert len(texts) == (rate is not None)


@pytest.mark.parametrize("counts", [FeatureCounts.from_block, PairCounts.from_block])
def test_the_likelihood_is_that_of_the_shares_of_observed_values(counts: Any) -> None:
    seen = np.random.default_rng(2).random(INDEPENDENT.shape) < 0.7
    block = DenseData(INDEPENDENT * seen, seen.astype(np.uint8)).pack()
    first = counts(block) if counts == FeatureCounts.from_block else counts(block, pooled=True)
    shares = (INDEPENDENT * seen).sum(axis=0) / seen.sum(axis=0)
    nats = np.where(INDEPENDENT, np.log(shares), np.log1p(-shares))[seen].sum() / N_ROWS
    model = BernoulliMixture(2)
    assert compute_independent_log_likelihood(model, first) == pytest.approx(nats, rel=1e-12)


def test_levels_have_a_share_each() -> None:
    levels = np.random.default_rng(3).choice(3, 500, p=[0.2, 0.5, 0.3])
    planes = np.column_stack([levels > 0, levels > 1, np.arange(500) % 2]).astype(np.uint8)
    features = (Feature("f", tuple("012")), Feature("g", tuple("01")))
    model = BernoulliMixture(2).with_structure(Structure(features=features))
    found = compute_independent_log_likelihood(
        model, FeatureCounts.from_block(DenseData(planes).pack())
    )
    expected = -scipy.stats.entropy(np.bincount(levels)) - np.log(2)
    assert found == pytest.approx(expected, rel=1e-12)
