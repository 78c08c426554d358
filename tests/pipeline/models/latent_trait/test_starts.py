"""Starts from pair counts: no fit of linked forms ends below the truth or changes its signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import latentbits as lb
from pipeline.data.blocks import pack_block
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.starts import (
    compute_score_correlations,
    convert_to_slopes,
    find_moved_features,
    stretch_offsets,
)
from pipeline.statistics.counts import FeatureCounts
from tests.benchmarks.linked_forms import try_fit
from tests.support.designs import link_by_features, link_by_rows, rotate_members
from tests.support.traits import count_sign_changes, draw_answers

Floats = NDArray[np.float64]
N_ROWS, N_ITEMS = 1000, 16


@pytest.mark.parametrize("n_levels", [2, 3])
@pytest.mark.parametrize(
    "design", ["10 linking rows", "1 common items", "chain of 3 forms", "rotating members"]
)
def test_one_trait_keeps_its_signs(design: str, n_levels: int) -> None:
    outcome = try_fit(design, 1, n_levels, 0)
    assert outcome.gain > 0
    assert outcome.sign_changes == 0


@pytest.mark.parametrize("n_levels", [2, 3])
@pytest.mark.parametrize("design", ["10 linking rows", "2 common items"])
def test_two_traits_are_not_below_the_truth(design: str, n_levels: int) -> None:
    assert try_fit(design, 2, n_levels, 1).gain > 0


def draw_linked(n_levels: int = 2, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Return answers to two forms with 30 linking rows, slopes and traits."""
    rng = np.random.default_rng(seed)
    observed = link_by_rows(N_ROWS, N_ITEMS, rng, 0.03)
    answers = draw_answers(observed, 1, n_levels, rng)
    return answers.X, answers.slopes, answers.traits[:, 0]


@pytest.mark.parametrize(
    "settings",
    [
        {"group": "group"},
        {"group": "group", "invariance": "metric"},
        {"covariates": ["covariate"]},
        {"weight": "weight"},
        {"guessing": "common"},
        {"prior_precision": 1.0},
        {"estimator": "variational"},
        {"estimator": "sampling"},
    ],
)
def test_every_kind_of_fit_keeps_the_signs(settings: dict[str, Any]) -> None:
    X, slopes, traits = draw_linked()
    rng = np.random.default_rng(1)
    columns = {
        "group": np.where(rng.random(N_ROWS) < 0.5, "a", "b"),
        "covariate": traits + rng.standard_normal(N_ROWS),
        "weight": rng.integers(1, 4, N_ROWS),
    }
    data = lb.from_numpy(X, keep=columns)
    fitted = lb.fit(data, "latent-trait", components=1, errors="none", **settings)
    assert count_sign_changes(fitted.params.weights, slopes) == 0


@pytest.mark.parametrize("items", ["graded", "partial-credit", "nominal"])
def test_every_kind_of_levels_keeps_the_signs(items: str) -> None:
    X, slopes, _ = draw_linked(3)
    data = lb.from_numpy(X, levels=["0", "1", "2"])
    params = lb.fit(data, "latent-trait", components=1, errors="none", items=items).params
    weights = params.weights if items != "nominal" else params.level_weights[1::2]
    assert count_sign_changes(weights, slopes) == 0


def test_known_items_decide_about_the_signs() -> None:
    X, slopes, _ = draw_linked()
    known = pd.DataFrame({"feature": ["f0", "f1"], "slope": -slopes[:2, 0], "offset": [0.0, 0.0]})
    fitted = lb.fit(X, "latent-trait", components=1, errors="none", items=known)
    assert (fitted.params.weights * slopes < 0).all()


@pytest.mark.parametrize("n_continuous", [N_ITEMS // 2, N_ITEMS])
def test_continuous_items_keep_the_signs(n_continuous: int) -> None:
    rng = np.random.default_rng(3)
    loadings = rng.uniform(0.5, 0.9, N_ITEMS) * np.where(rng.random(N_ITEMS) < 0.3, -1, 1)
    noise = rng.standard_normal((N_ROWS, N_ITEMS)) * np.sqrt(1 - loadings**2)
    X = rng.standard_normal((N_ROWS, 1)) * loadings + noise
    order = rng.permutation(N_ITEMS)
    X[:, order[n_continuous:]] = X[:, order[n_continuous:]] > 0
    X[~link_by_rows(N_ROWS, N_ITEMS, rng, 0.02)] = np.nan
    data = lb.from_numpy(X, continuous=[f"f{k}" for k in order[:n_continuous]])
    params = lb.fit(data, "latent-trait", components=1, errors="none").params
    assert count_sign_changes(params.weights, loadings) == 0


def test_traits_of_a_pattern_keep_their_signs() -> None:
    rng = np.random.default_rng(0)
    trait = np.arange(N_ITEMS) % 2
    slopes = rng.uniform(0.8, 2, N_ITEMS) * np.where(rng.random(N_ITEMS) < 0.3, -1, 1)
    traits = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], N_ROWS)
    logits = traits[:, trait] * slopes + rng.standard_normal(N_ITEMS)
    X = (rng.logistic(size=logits.shape) < logits).astype(float)
    X[~link_by_features(N_ROWS, N_ITEMS, rng, 2)] = np.nan
    columns = {f"trait{k}": (trait == k).astype(int) for k in (0, 1)}
    pattern = pd.DataFrame({"item": [f"f{k}" for k in range(N_ITEMS)], **columns})
    params = lb.fit(X, "latent-trait", pattern=pattern, errors="none").params
    for k in (0, 1):
        assert count_sign_changes(params.weights[trait == k, k], slopes[trait == k]) == 0
    sign = np.sign((params.weights[np.arange(N_ITEMS), trait] * slopes)[:2]).prod()
    assert sign * params.trait_covariance[0, 0, 1] == pytest.approx(0.5, abs=0.15)


def test_members_with_short_terms_keep_their_signs() -> None:
    rng = np.random.default_rng(5)
    answers = draw_answers(rotate_members(400, 80, rng, 0.3), 1, 3, rng)
    data = lb.from_numpy(answers.X, levels=["0", "1", "2"])
    params = lb.fit(data, "latent-trait", components=1, errors="none").params
    assert count_sign_changes(params.weights, answers.slopes) == 0


def test_start_has_the_margins_and_slopes_of_the_data() -> None:
    rng = np.random.default_rng(6)
    answers = draw_answers(np.ones((20_000, 12), np.bool_), 1, 2, rng)
    block = pack_block(answers.X.astype(np.uint8))
    model = LatentTrait(n_components=1)
    first = model.summarize_first(block, None)  # type: ignore[arg-type]
    params = model.initialize(first, np.random.default_rng(0)).params
    sign = np.sign((params.weights * answers.slopes).sum())
    np.testing.assert_allclose(sign * params.weights, answers.slopes, atol=0.35)
    np.testing.assert_allclose(params.offsets, answers.offsets[:, 0], atol=0.2)


def test_score_correlations_are_those_of_cut_normals() -> None:
    z = np.random.default_rng(7).standard_normal(100_000)
    levels = np.searchsorted([-0.5, 0.8], z)
    bits = np.stack([levels >= 1, levels >= 2, z > 1], axis=1).astype(np.uint8)
    counts = FeatureCounts.from_block(pack_block(bits))
    found = compute_score_correlations(counts, np.array([2, 1]))
    expected = [np.corrcoef(z, levels)[0, 1], np.corrcoef(z, z > 1)[0, 1]]
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_slopes_and_offsets_of_loadings() -> None:
    loadings = np.array([[0.6, 0.0], [0.0, -0.8]])
    slopes = convert_to_slopes(loadings, np.array([1, 0]))
    np.testing.assert_allclose(slopes, [[1.702 * 0.75, 0.0], [0.0, -0.8]])
    np.testing.assert_allclose(stretch_offsets(slopes[:1]), [1.25])


@pytest.mark.parametrize(
    ("n_links", "q", "n_levels", "is_weak"),
    [(1, 2, 2, True), (1, 2, 3, True), (2, 2, 2, False), (1, 1, 2, False)],
)
def test_signs_that_links_hardly_determine_are_reported(
    n_links: int, q: int, n_levels: int, is_weak: bool
) -> None:
    """One common item relates two traits of two forms except for a reflection."""
    rng = np.random.default_rng(0)
    observed = link_by_features(1200, 17 - n_links % 2 + 1, rng, n_links)
    X = draw_answers(observed, q, n_levels, rng).X
    levels = None if n_levels == 2 else ["0", "1", "2"]
    data = lb.from_numpy(X, levels=levels)
    fitted = lb.fit(data, "latent-trait", components=q, errors="none", tol=1e-5)
    found = [text for text in fitted.warnings if "hardly determined" in text]
    assert len(found) == is_weak
    if is_weak:
        assert "'f" in found[0]
        assert "nats less)" in found[0]


def test_moved_features_are_those_that_no_rotation_brings_back() -> None:
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal((20, 2))
    turn = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    assert not find_moved_features(slopes, slopes @ turn).size
    others = slopes @ turn
    others[:5] *= -1
    np.testing.assert_array_equal(find_moved_features(slopes, others), np.arange(5))
