"""The mixture with class weights by group, against a dense likelihood and its derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logit, logsumexp, softmax

from pipeline.data.blocks import pack_block
from pipeline.data.matching import UNKNOWN_SEGMENT
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_statistics import add_fit_statistics
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.structure import Structure
from pipeline.params import get_array
from pipeline.random import RowRandom
from tests.support.derivatives import compute_sandwich, differentiate, differentiate_twice
from tests.support.enumeration import impute_by_likelihood
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]
SERIAL, RNG = SerialExecutor(), RowRandom(0)
P = np.array([[0.2, 0.7, 0.4, 0.8, 0.15], [0.8, 0.25, 0.6, 0.1, 0.7]])
CLASS_WEIGHTS = np.array([[0.75, 0.25], [0.5, 0.5], [0.2, 0.8]])
GROUPS = ("a", "b", "c")


def draw_groups(n_rows: int = 900, *, masked: bool = False, seed: int = 4) -> DenseData:
    """Rows of three groups in mixed order, of different sizes."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(3, n_rows, p=[0.5, 0.3, 0.2])
    classes = (rng.random(n_rows) < CLASS_WEIGHTS[groups, 1]).astype(int)
    X = (rng.random((n_rows, 5)) < P[classes]).astype(np.uint8)
    mask = (rng.random(X.shape) < 0.85).astype(np.uint8) if masked else None
    return DenseData(X, mask, groups)


def fit_groups(data: DenseData, n_groups: int = 3, kind: Any = "frequency", **more: Any) -> Any:
    model = BernoulliMixture(**{"n_components": 2, "tol": 1e-10, **more})
    grouped = model.with_structure(Structure(groups=GROUPS[:n_groups]))
    sizes = [len(data.X) // 2, len(data.X) - len(data.X) // 2]
    rows = make_memory_rows(data, sizes, kind)
    return add_fit_statistics(grouped, fit_model(grouped, rows, SERIAL), rows, SERIAL, 0)


def score_rows(at: Floats, data: DenseData) -> Floats:
    """Log-likelihood of each row at log-odds of p, then log(π_g1 / π_g2) of each group."""
    p = expit(at[:10]).reshape(2, 5)
    log_weights = log_softmax(np.column_stack([at[10:], np.zeros(3)]), axis=1)
    each = data.X[:, None] * np.log(p) + (1 - data.X[:, None]) * np.log1p(-p)
    joint = (data.mask[:, None] * each).sum(axis=2) + log_weights[data.labels]
    return np.asarray(logsumexp(joint, axis=1))


def free_parameters(params: Any) -> Floats:
    ratios = np.log(
        params.groups.group_class_weights[:, 0] / params.groups.group_class_weights[:, 1]
    )
    return np.concatenate([logit(params.probabilities).ravel(), ratios])


def check_errors(params: Any, covariance: Floats, group_sizes: Floats) -> None:
    """Compare standard errors with those of a covariance of `free_parameters`."""
    p, weights = params.probabilities, params.groups.group_class_weights
    deviations = np.sqrt(np.diag(covariance))
    expected = (p * (1 - p)) * deviations[:10].reshape(2, 5)
    np.testing.assert_allclose(params.errors.probabilities_error, expected, rtol=1e-3)
    slopes = weights.prod(axis=1)
    by_group = np.tile((slopes * deviations[10:])[:, None], 2)
    np.testing.assert_allclose(params.groups.group_class_weights_error, by_group, rtol=1e-3)
    gradient = group_sizes / group_sizes.sum() * slopes
    mean = np.sqrt(gradient @ covariance[10:, 10:] @ gradient)
    np.testing.assert_allclose(params.errors.weights_error, mean, rtol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
def test_estimates_and_errors_are_those_of_the_likelihood(masked: bool) -> None:
    data, s = draw_groups(masked=masked), 0.4
    state = fit_groups(data, smoothing=s)
    params, at = state.params, free_parameters(state.params)

    def log_posterior(place: Floats) -> float:
        p = expit(place[:10])
        weights = log_softmax(np.column_stack([place[10:], np.zeros(3)]), axis=1)
        prior = np.log(p).sum() + np.log1p(-p).sum() + weights.sum()
        return float(score_rows(place, data).sum() + s * prior)

    np.testing.assert_allclose(differentiate(log_posterior, at), 0.0, atol=0.02)
    assert state.history[-1] * 900 == pytest.approx(log_posterior(at), abs=1e-4)
    check_errors(
        params,
        np.linalg.inv(-differentiate_twice(log_posterior, at)),
        np.bincount(data.labels).astype(float),
    )
    fit = state.diagnostics["fit_statistics"]
    assert fit["log_likelihood"] == pytest.approx(score_rows(at, data).sum(), abs=1e-8)
    assert fit["n_parameters"] == 13
    assert params.groups.segment_rows.tolist() == np.bincount(data.labels).tolist()
    shares = params.groups.segment_rows / 900
    np.testing.assert_allclose(params.weights, shares @ params.groups.group_class_weights)


def test_errors_with_sampling_weights_are_those_of_the_sandwich() -> None:
    data = draw_groups(600)
    weights = 0.2 + 2 * np.random.default_rng(3).random(600)
    survey = replace(data, weights=weights, clusters=np.arange(600) % 50)
    params = fit_groups(survey, kind="sampling", smoothing=1e-6).params
    scaled, at = weights / weights.mean(), free_parameters(params)
    covariance = compute_sandwich(lambda x: score_rows(x, data), at, scaled, survey.clusters)
    check_errors(params, covariance, np.bincount(data.labels, scaled))


def test_a_single_group_changes_nothing() -> None:
    data = replace(draw_groups(), segments=None)
    sizes = [450, 450]
    plain = fit_model(
        BernoulliMixture(n_components=2, tol=1e-10), make_memory_rows(data, sizes), SERIAL
    )
    grouped = fit_groups(data, 1)
    assert grouped.history == plain.history
    np.testing.assert_allclose(grouped.params.groups.group_class_weights[0], plain.params.weights)
    for name in ("probabilities", "weights", "probabilities_error", "weights_error"):
        found, expected = (get_array(state.params, name) for state in (grouped, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)


def test_rows_have_the_class_weights_of_their_group() -> None:
    """Rows of a group that was not fitted have the mean of all rows."""
    data, model = draw_groups(), BernoulliMixture()
    params = fit_groups(data).params
    for segment in (0, 1, 2, UNKNOWN_SEGMENT):
        weights = params.weights if segment < 0 else params.groups.group_class_weights[segment]
        X = data.X[:20]
        p = params.probabilities
        each = X[:, None] * np.log(p) + (1 - X[:, None]) * np.log1p(-p)
        joint = each.sum(axis=2) + np.log(weights)
        block = pack_block(X, segment=segment)
        codes = model.transform(params, block, RNG)["mean"]
        np.testing.assert_allclose(codes, softmax(joint, axis=1), atol=1e-12)
        nats = model.log_likelihood(params, block, RNG).nats
        np.testing.assert_allclose(nats, logsumexp(joint, axis=1))


def test_samples_have_the_classes_of_their_groups() -> None:
    params, model = fit_groups(draw_groups(3000)).params, BernoulliMixture()
    rng = np.random.default_rng(0)
    for segment in range(3):
        X = model.sample(params, 20_000, rng, np.full(20_000, segment))
        expected = params.groups.group_class_weights[segment] @ params.probabilities
        np.testing.assert_allclose(X.mean(axis=0), expected, atol=0.015)
    X = model.sample(params, 20_000, rng)
    np.testing.assert_allclose(X.mean(axis=0), params.weights @ params.probabilities, atol=0.015)


def test_values_are_imputed_with_the_weights_of_the_group() -> None:
    data = draw_groups(300, masked=True)
    state = fit_groups(data)
    at, model = free_parameters(state.params), BernoulliMixture()
    for segment in range(3):
        own = data.take_rows(data.labels == segment)
        found = model.impute(state.params, own.pack(segment), RNG)
        expected = impute_by_likelihood(
            lambda X, mask, own=own: score_rows(at, replace(own, X=X, observed=mask)),
            own.X,
            own.mask,
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9)
