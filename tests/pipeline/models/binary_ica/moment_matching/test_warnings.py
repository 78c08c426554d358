"""What a person is told of data that cannot be used whole, and of fits that are in doubt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from pipeline.errors import FitError, FitWarning
from pipeline.models.binary_ica.moment_matching import optimiser
from pipeline.models.binary_ica.moment_matching.warnings import warn_about_choice
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays
from storage.examples import draw_nonstationary_truth
from tests.pipeline.models.binary_ica.moment_matching import (
    fitted,
    nonstationary,
    small,
    truth_and_data,
)
from tests.support.strategies import DenseData


def notices(state: FitState, text: str) -> list[FitWarning]:
    return [notice for notice in state.warnings if text in notice.text]


def test_fewer_than_three_segments_are_refused() -> None:
    data = small()
    refusal = r"at least 3 segments, but there are 2\. Give the segment of each row by seg"
    with pytest.raises(FitError, match=refusal):
        fitted(data.take_rows(data.labels < 2), n_components=2)


def test_fewer_than_three_segments_to_use_are_refused_naming_the_others() -> None:
    data = small()
    data = data.take_rows((data.labels < 2) | (np.arange(len(data.X)) % 200 < 19))
    refusal = r"3 usable segments, but there are 2\. Left out: 2, 3, 4, 5, for .*=20"
    with pytest.raises(FitError, match=refusal) as e:
        fitted(data, n_components=2)
    assert e.value.message.segments == (2, 3, 4, 5)
    assert fitted(data, n_components=2, min_rows=19).params.segment_status.tolist() == [0] * 6


def test_undefined_pairs_that_leave_too_few_segments_are_named() -> None:
    data, mask = small(), np.ones_like(small().X)
    mask[::2, [1, 3]] = mask[1::2, [2, 4]] = 0
    refusal = r"there are 0\. Left out: 0, 1, 2, 3, 4, 5, for .* pairs without"
    with pytest.raises(FitError, match=refusal) as e:
        fitted(DenseData(data.X, mask, data.segments), n_components=2)
    assert e.value.message.features == (1, 2, 3, 4)


def test_more_components_than_features_are_refused() -> None:
    with pytest.raises(FitError, match=r"components is 6, but there are only 5 features\."):
        fitted(small(), n_components=6)


def test_what_cannot_be_identified_is_told_with_the_count() -> None:
    data = small()
    state = fitted(data.take_rows(data.labels < 3), n_components=4, regularization=10.0)
    # 3 segments of 10 correlations against 3 x 4 variances and 5 x 4 entries of the mixing.
    (notice,) = notices(state, "more unknowns than correlations")
    assert "2 more unknowns" in notice.text
    assert "may not be identifiable" in notice.text
    assert state.diagnostics["surplus"] == -2
    assert not notices(fitted(data, n_components=2), "more unknowns than correlations")


def test_unidentifiable_numbers_of_components_are_not_chosen() -> None:
    data = small(1000)
    params = fitted(data.take_rows(data.labels < 3)).params
    assert params.candidate_components.max() <= 3


def test_a_choice_at_an_end_of_the_grid_is_told() -> None:
    """Two features that are all but the same, and as many rows: every ridge only biases."""
    _, data = truth_and_data(3, 2, 4, 1000)
    X = data.X.copy()
    X[:, 1] = X[:, 0]
    X[::400, 1] ^= 1
    data = DenseData(X, None, data.segments)
    state = fitted(data, n_components=1)
    assert state.diagnostics["regularization"] == 1e4
    assert len(notices(state, "regularization 10000 is the weakest that auto tries")) == 1
    assert not notices(fitted(data, n_components=1, regularization=1e4), "that auto tries")


def test_the_strongest_ridge_is_told_where_others_were_tried() -> None:
    at = [SimpleNamespace(regularization=r) for r in (2.0, 5.0)]
    match: Any = SimpleNamespace(
        choice=SimpleNamespace(ridges=at), regularization=2.0, ridge=np.ones(3), agreement=0.9
    )
    (notice,) = warn_about_choice(match)
    assert notice.text.startswith("regularization 2 is the strongest that auto tries")
    match.choice.ridges = at[:1]  # given, not chosen
    assert warn_about_choice(match) == ()


def test_halves_that_disagree_are_told() -> None:
    noise = np.random.default_rng(0).integers(0, 2, (160, 5), dtype=np.uint8)
    state = fitted(DenseData(noise, None, np.arange(160) % 4), n_components=2)
    assert state.diagnostics["stability_of_halves"] < 0.7
    assert len(notices(state, "halves of the rows disagree")) == 1
    sound = fitted(small(2000), n_components=2)
    assert sound.diagnostics["stability_of_halves"] > 0.9
    assert not notices(sound, "halves of the rows disagree")
    given = fitted(small(), n_components=2, regularization=10.0)
    assert "stability_of_halves" not in given.diagnostics


def test_a_feature_constant_in_a_segment_is_named_and_left_out_there() -> None:
    data = small()
    data.X[data.labels == 4, 1] = 1
    state = fitted(data, n_components=2, regularization=10.0)
    (notice,) = notices(state, "out of segments where they are constant")
    assert (notice.features, notice.segments) == ((1,), (4,))
    assert state.diagnostics["constant_in_a_segment"] == 1
    params = state.params
    expected = np.ones((6, 5))
    expected[4, 1] = 0
    np.testing.assert_array_equal(params.varies, expected)
    assert params.thresholds[4, 1] == pytest.approx(norm.isf(1 - 0.5 / 200))
    assert all(np.isfinite(values).all() for _, values in get_named_arrays(params).values())


def test_nothing_of_the_start_is_left_where_a_feature_is_constant() -> None:
    """Scales that the data say nothing of are those of the model: Q (I + A S Aᵀ) Q has ones."""
    data = small()
    data.X[data.labels == 4, 1] = 1
    params = fitted(data, n_components=2, regularization=10.0).params
    power = np.pi / 8 * params.source_variances @ params.mixing.T**2
    np.testing.assert_allclose(params.scales[4, 1], 1 / np.sqrt(1 + power[4, 1]), rtol=1e-6)


def test_features_that_vary_nowhere_are_refused_by_name() -> None:
    data = small()
    for u in range(6):
        data.X[data.labels == u, 3] = u % 2
    with pytest.raises(FitError, match="constant within every usable segment: 3") as error:
        fitted(data, n_components=2)
    assert error.value.message.features == (3,)


def test_features_that_vary_only_where_nothing_is_used_are_refused_by_name() -> None:
    """Their rows of the mixing would be those of the random start."""
    data = small()
    first = data.labels == 0
    data.X[first, :4] = 0
    data.X[~first, 4] = 1
    with pytest.raises(FitError) as error:
        fitted(data, n_components=4, regularization=10.0)
    assert 4 in error.value.message.features


def test_segments_left_out_are_named_with_the_reason() -> None:
    data = small()
    data = data.take_rows((data.labels != 1) | (np.arange(len(data.X)) % 200 < 19))
    data.X[data.labels == 2, 1:] = 0
    mask = np.ones_like(data.X)
    of_5 = np.flatnonzero(data.labels == 5)
    mask[np.ix_(of_5[::2], [1, 3])] = mask[np.ix_(of_5[1::2], [2, 4])] = 0
    state = fitted(DenseData(data.X, mask, data.segments), n_components=2, regularization=10.0)
    for text, segment in (
        ("fewer than 20 rows", 1),
        ("fewer than two features vary", 2),
        ("more than 10% of the pairs", 5),
    ):
        (notice,) = notices(state, text)
        assert notice.segments == (segment,)
        assert "left out" in notice.text
    params = state.params
    assert params.segment_status.tolist() == [0, 1, 2, 0, 0, 3]
    assert [state.diagnostics[f"segments_{name}"] for name in ("used", "too_small")] == [3, 1]
    left_out = params.segment_status > 0
    mean = params.source_variances[~left_out].mean(axis=0)
    np.testing.assert_allclose(params.source_variances[left_out], np.tile(mean, (3, 1)), rtol=0.02)
    assert all(np.isfinite(values).all() for _, values in get_named_arrays(params).values())
    np.testing.assert_array_equal(params.ridge[left_out], 0.0)


def test_undefined_pairs_are_named_and_take_the_correlations_of_the_model() -> None:
    data = small(1000)
    mask = np.ones_like(data.X)
    here = np.flatnonzero(data.labels == 3)
    mask[here[::2], 0] = mask[here[1::2], 2] = 0
    state = fitted(DenseData(data.X, mask, data.segments), n_components=2, regularization=50.0)
    (notice,) = notices(state, "pairs without a correlation")
    assert "set to the model's: 1, among" in notice.text
    assert (notice.features, notice.segments) == ((0, 2), (3,))
    assert state.diagnostics["pairs_no_observations"] == 1
    assert 0 < state.diagnostics["gap_rounds"] < 20
    whole = fitted(data, n_components=2, regularization=50.0).params
    found = state.params.correlations[3, 0, 2]
    assert found == pytest.approx(whole.correlations[3, 0, 2], abs=0.15)


def test_pairs_with_an_empty_cell_are_named() -> None:
    data = small(200)
    X = data.X.copy()
    here = np.flatnonzero(data.labels == 3)
    X[here, 0] = np.arange(len(here)) < 20
    X[here[:20], 2] = 0  # in this segment 0 and 2 are never 1 together
    state = fitted(DenseData(X, None, data.segments), n_components=2, regularization=50.0)
    (notice,) = notices(state, "pairs with an empty cell")
    assert "after adding ½ to every cell: 1, among" in notice.text
    assert (notice.features, notice.segments) == ((0, 2), (3,))
    assert state.diagnostics["pairs_empty_cell"] == 1
    assert not notices(fitted(data, n_components=2, regularization=50.0), "empty cell")


@pytest.mark.few(1)
@pytest.mark.parametrize("n_segments", [4, 12])
def test_stationary_data_warn_that_the_mixing_is_not_identified(n_segments: int) -> None:
    truth = draw_nonstationary_truth(5, 5, n_segments, seed=2)
    still = truth._replace(
        source_means=np.zeros_like(truth.source_means),
        source_variances=np.ones_like(truth.source_variances),
    )
    state = fitted(nonstationary(still, 2000), n_components=5, regularization=20.0)
    texts = [notice.text for notice in state.warnings]
    assert any("disagree" in text or "rise and fall together" in text for text in texts)


def test_proportional_variances_are_told_apart_from_the_others() -> None:
    truth = draw_nonstationary_truth(8, 3, 12, seed=1)
    variances = truth.source_variances.copy()
    lengths = np.linalg.norm(truth.mixing, axis=0)
    variances[:, 1] = variances[:, 0] * (lengths[0] / lengths[1]) ** 2
    state = fitted(
        nonstationary(truth._replace(source_variances=variances), 3000),
        n_components=3,
        regularization=100.0,
    )
    assert notices(state, "rise and fall together") or notices(state, "disagree")
    if found := notices(state, "rise and fall together"):
        pair = [int(word) - 1 for word in found[0].text.split() if word.isdigit()][:2]
        plane = np.linalg.qr(truth.mixing[:, :2])[0]
        # The two span the plane of the two sources, whatever way they are turned in it.
        within = np.linalg.norm(plane.T @ state.params.mixing[:, pair], axis=0)
        assert within.min() > 0.95


def test_a_strong_ridge_is_told() -> None:
    X = np.repeat(small(600).X[:, :1], 5, axis=1)
    state = fitted(DenseData(X, None, small(600).segments), n_components=1, regularization=1.1)
    (notice,) = notices(state, "shrunk to less than a tenth")
    assert notice.segments == tuple(range(6))


def test_running_out_of_iterations_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimiser, "_MAX_ITERATIONS", 3)
    state = fitted(small(), n_components=2, regularization=10.0)
    assert notices(state, "stopped after 3 iterations before converging")
    assert state.diagnostics["optimiser_converged"] is False
