"""BLICA: recovery of true parameters, use of fits, intervals, and degenerate data."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import gaussian_likelihood
from pipeline.models.binary_ica.blica import BLICA, BLICAParams, warn_about_choice
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from storage.examples import NonstationaryTruth, draw_nonstationary_truth
from tests.pipeline.models.binary_ica import (
    draw_nonstationary_data,
    draw_rows,
    draw_small_data,
    draw_solution,
    draw_truth_and_data,
    fit_blica,
)
from tests.support.strategies import DenseData, make_memory_rows, tables
from tests.support.traced_memory import measure_peak_memory, start_tracing_process

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

MODEL, SERIAL, RNG = BLICA(), SerialExecutor(), RowRandom(0)
SCALE = np.sqrt(np.pi / 8)
SHAPE = (6, 2, 12, 2000)


@lru_cache
def example() -> tuple[NonstationaryTruth, FitState]:
    truth, data = draw_truth_and_data(*SHAPE)
    return truth, fit_blica(data, n_components=2)


def get_arrays(params: BLICAParams) -> dict[str, NDArray[Any]]:
    return {name: values for name, (_, values) in get_named_arrays(params).items()}


def assert_finite(arrays: Any) -> None:
    assert [name for name, values in arrays.items() if not np.isfinite(values).all()] == []


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SHAPE, (8, 3, 20, 2000)])
def test_mixing_is_recovered(shape: tuple[int, int, int, int]) -> None:
    truth, data = draw_truth_and_data(*shape)
    state = fit_blica(data, n_components=shape[1])
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.98
    assert state.diagnostics["stability_of_starts"] > 0.99
    assert state.diagnostics["optimiser_converged"]
    assert state.warnings == ()


@pytest.mark.matrix
def test_as_many_sources_as_features_give_no_false_warning() -> None:
    """A variance that segments hardly determine must not diverge and mask the others."""
    truth, data = draw_truth_and_data(10, 10, 40, 1000)
    state = fit_blica(data, n_components=10, regularization=10.0, starts=2)
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.97
    assert state.warnings == ()
    lengths, _, order = match_to_truth(truth, state.params)
    ratios = state.params.source_variances[:, order] / (truth.source_variances * lengths**2)
    assert 0.7 < np.median(ratios) < 1.6
    assert ratios.max() < 8


@pytest.mark.matrix
def test_components_and_regularization_are_chosen() -> None:
    truth, data = draw_truth_and_data(*SHAPE)
    state = fit_blica(data)
    assert state.params.mixing.shape == (6, 2)
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.98
    tried = list(
        zip(
            state.params.candidate_components.tolist(),
            state.params.candidate_regularization.tolist(),
            strict=True,
        )
    )
    assert len(set(tried)) == len(tried)
    assert (2, state.diagnostics["regularization"]) in tried
    assert {k for k, _ in tried} >= {1, 2, 3, 4}
    assert np.isfinite(state.params.candidate_scores).all()


def test_strong_regularization_without_significant_gain_is_not_chosen() -> None:
    """Regularization of 5 or less biases this mixing by more than its sampling error."""
    truth = draw_solution(8, 2, 6, seed=0)
    data = draw_rows(truth, 5000, np.random.default_rng(0))
    state = fit_blica(data, n_components=2)
    assert state.diagnostics["regularization"] >= 50
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.999


@pytest.mark.matrix
def test_fixed_settings_are_not_searched() -> None:
    _, data = draw_truth_and_data(4, 2, 5, 300)
    both = fit_blica(data, n_components=2, regularization=50.0)
    assert both.params.candidate_scores.shape == (0,)
    assert both.diagnostics["regularization"] == 50.0
    ridge = fit_blica(data, n_components=2).params
    assert ridge.candidate_components.tolist()[0] == 0  # independence
    assert set(ridge.candidate_components[1:]) == {2}
    components = fit_blica(data, regularization=50.0).params
    assert set(components.candidate_regularization[1:]) == {50.0}


def match_to_truth(truth: NonstationaryTruth, params: BLICAParams) -> tuple[Floats, Floats, Labels]:
    """Return lengths, signs and order that map the true columns to the estimated ones."""
    lengths = np.linalg.norm(truth.mixing, axis=0)
    cosines = (truth.mixing / lengths).T @ params.mixing
    rows, order = linear_sum_assignment(-np.abs(cosines))
    return lengths, np.sign(cosines[rows, order]), order


def test_thresholds_and_source_means_are_recovered() -> None:
    truth, state = example()
    lengths, signs, order = match_to_truth(truth, state.params)
    power = np.pi / 8 * truth.source_variances @ truth.mixing.T**2
    expected = -SCALE * truth.source_means @ truth.mixing.T / np.sqrt(1 + power)
    np.testing.assert_allclose(state.params.thresholds, expected, atol=0.13)
    np.testing.assert_allclose(
        state.params.source_means[:, order] * signs, truth.source_means * lengths, atol=0.6
    )
    assert state.params.mean_misfit.max() < 2


def test_unexplained_margins_have_large_mean_misfit() -> None:
    """Half of the values of one feature in one segment are set to zero."""
    _, data = draw_truth_and_data(*SHAPE)
    X = data.X.copy()
    rare = (data.labels == 3) & (np.arange(len(X)) % 2 == 0)
    X[rare, 0] = 0
    misfit = fit_blica(DenseData(X, None, data.segments), n_components=2).params.mean_misfit
    assert misfit[3] > 5
    assert np.delete(misfit, 3).max() < 2


def test_mixing_is_recovered_with_missing_values() -> None:
    truth, data = draw_truth_and_data(*SHAPE)
    missing = np.where(np.arange(6) % 2, 0.5, 0.1)
    mask = np.random.default_rng(0).random(data.X.shape) >= missing
    state = fit_blica(DenseData(data.X, mask.astype(np.uint8), data.segments), n_components=2)
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.95
    assert state.warnings == ()


@pytest.mark.matrix
def test_progress_is_reported_for_every_step() -> None:
    calls: list[tuple[str, int, int]] = []

    def progress(label: str, done: int, total: int, rows: int) -> None:
        calls.append((label, done, total))

    model = BLICA(n_components=2, bootstrap=20)
    fit_model(model, make_memory_rows(draw_small_data()), SERIAL, progress=progress)
    kinds = [label.partition(",")[0] for label, _, _ in calls]
    assert list(dict.fromkeys(kinds)) == [
        "feature counts",
        "pair counts",
        "stage 1 of 4: choosing the regularization",
        "stage 2 of 4: comparing halves",
        "stage 3 of 4: final fit",
        "stage 4 of 4: bootstrap",
    ]
    assert ("stage 4 of 4: bootstrap", 20, 20) in calls
    assert all(done <= total for _, done, total in calls if total)


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [0, 2, 21])
def test_intervals_are_aligned_with_mixing_columns(seed: int) -> None:
    """Also if the two variances are nearly equal, so that their order is uncertain."""
    truth = draw_nonstationary_truth(5, 2, 6, seed)
    data = draw_nonstationary_data(truth, 400, seed)
    params = fit_blica(data, n_components=2, regularization=3.0, bootstrap=20).params
    lower, upper = params.mixing_interval
    assert (lower < upper).all()
    middle = (lower + upper) / 2
    cosines = (middle * params.mixing).sum(axis=0) / np.linalg.norm(middle, axis=0)
    assert cosines.min() > 0.95


def test_segments_at_min_rows_have_intervals() -> None:
    """Resampled groups may have fewer than `min_rows` rows; the segment must still be used."""
    for min_rows in (60, 61):
        data = draw_small_data(61)
        params = fit_blica(
            data, n_components=2, regularization=10.0, min_rows=min_rows, bootstrap=20
        ).params
        lower, upper = params.mixing_interval
        assert lower.shape == (5, 2)
        assert (lower < upper).all()


# --- degenerate data -----------------------------------------------------------------------------


def check_degenerate(data: DenseData, **more: Any) -> FitState | None:
    """Return None if the fit raises; otherwise check that all results are finite."""
    try:
        state = fit_blica(data, **{"min_rows": 1, "starts": 2, **more})
    except FitError:
        return None
    arrays = get_arrays(state.params)
    arrays.pop("mixing_interval")  # NaN for pairs with an empty cell
    assert_finite(arrays)
    assert_finite(state.diagnostics)
    for segment in (0, 1, 99):
        block: BinaryBlock = pack_block(data.X[:9], None, segment)
        assert_finite(MODEL.transform(state.params, block, RNG))
        assert np.isfinite(MODEL.composite_log_likelihood(state.params, block, RNG)).all()
        assert np.isfinite(MODEL.log_likelihood(state.params, block, RNG).nats).all()
    return state


small_tables = tables(st.integers(1, 5), st.integers(3, 60))
n_components = st.sampled_from([None, 1, 2])
regularization = st.sampled_from([None, 1.01, 10.0, 1e9])


@given(small_tables, n_components, regularization)
def test_small_tables_raise_or_give_finite_results(
    data: DenseData, n_components: int | None, regularization: float | None
) -> None:
    check_degenerate(data, n_components=n_components, regularization=regularization)


def _fit_short_segments(n_features: int, n_segments: int, more: dict[str, Any]) -> None:
    """Fit short segments, whose halves have pairs with empty cells."""
    truth = draw_nonstationary_truth(n_features, 2, n_segments, seed=1)
    fit_blica(draw_nonstationary_data(truth, 60), n_components=2, **more)


@pytest.mark.matrix
def test_peak_memory_is_within_estimate() -> None:
    more = {"regularization": 20.0}
    estimate = BLICA(n_components=2, **more).estimate_memory(200, 6, n_threads=1)
    with start_tracing_process() as process:
        process.submit(_fit_short_segments, 6, 4, more).result()  # compile the kernels
        _, peak = process.submit(measure_peak_memory, _fit_short_segments, 200, 6, more).result()
    assert 0.5 * estimate < peak <= estimate


def find_warnings(state: FitState, text: str) -> list[FitWarning]:
    return [warning for warning in state.warnings if text in warning.text]


def test_fewer_than_three_segments_raise() -> None:
    data = draw_small_data()
    message = r"at least 3 segments, but there are 2\. Give the segment of each row by seg"
    with pytest.raises(FitError, match=message):
        fit_blica(data.take_rows(data.labels < 2), n_components=2)


def test_fewer_than_three_usable_segments_raise_naming_the_others() -> None:
    data = draw_small_data()
    data = data.take_rows((data.labels < 2) | (np.arange(len(data.X)) % 200 < 19))
    message = r"3 usable segments, but there are 2\. Left out: 2, 3, 4, 5, for .*=20"
    with pytest.raises(FitError, match=message) as e:
        fit_blica(data, n_components=2)
    assert e.value.message.segments == (2, 3, 4, 5)
    assert fit_blica(data, n_components=2, min_rows=19).params.segment_status.tolist() == [0] * 6


def test_too_many_undefined_pairs_raise_naming_features() -> None:
    data, mask = draw_small_data(), np.ones_like(draw_small_data().X)
    mask[::2, [1, 3]] = mask[1::2, [2, 4]] = 0
    message = r"there are 0\. Left out: 0, 1, 2, 3, 4, 5, for .* pairs without"
    with pytest.raises(FitError, match=message) as e:
        fit_blica(DenseData(data.X, mask, data.segments), n_components=2)
    assert e.value.message.features == (1, 2, 3, 4)


def test_unidentifiable_fit_warns_with_number_of_unknowns() -> None:
    data = draw_small_data()
    state = fit_blica(data.take_rows(data.labels < 3), n_components=4, regularization=10.0)
    # 3 segments of 10 correlations against 3 x 4 variances and 5 x 4 entries of the mixing.
    (warning,) = find_warnings(state, "more unknowns than correlations")
    assert "2 more unknowns" in warning.text
    assert "may not be identifiable" in warning.text
    assert state.diagnostics["surplus"] == -2
    assert not find_warnings(fit_blica(data, n_components=2), "more unknowns than correlations")


@pytest.mark.matrix
def test_unidentifiable_numbers_of_components_are_not_tried() -> None:
    data = draw_small_data(1000)
    params = fit_blica(data.take_rows(data.labels < 3)).params
    assert params.candidate_components.max() <= 3


@pytest.mark.matrix
def test_weakest_regularization_of_grid_warns() -> None:
    """With two nearly identical features, every ridge only adds bias."""
    _, data = draw_truth_and_data(3, 2, 4, 1000)
    X = data.X.copy()
    X[:, 1] = X[:, 0]
    X[::400, 1] ^= 1
    data = DenseData(X, None, data.segments)
    state = fit_blica(data, n_components=1)
    assert state.diagnostics["regularization"] == 1e4
    assert len(find_warnings(state, "regularization 10000 is the weakest that auto tries")) == 1
    assert not find_warnings(fit_blica(data, n_components=1, regularization=1e4), "that auto tries")


def test_strongest_regularization_of_grid_warns() -> None:
    at = [SimpleNamespace(regularization=r) for r in (2.0, 5.0)]
    match: Any = SimpleNamespace(
        choice=SimpleNamespace(ridges=at), regularization=2.0, ridge=np.ones(3), agreement=0.9
    )
    (warning,) = warn_about_choice(match)
    assert warning.text.startswith("regularization 2 is the strongest that auto tries")
    match.choice.ridges = at[:1]  # fixed, not chosen
    assert warn_about_choice(match) == ()


@pytest.mark.matrix
def test_disagreeing_halves_warn() -> None:
    noise = np.random.default_rng(0).integers(0, 2, (160, 5), dtype=np.uint8)
    state = fit_blica(DenseData(noise, None, np.arange(160) % 4), n_components=2)
    assert state.diagnostics["stability_of_halves"] < 0.7
    assert len(find_warnings(state, "halves of the rows disagree")) == 1
    sound = fit_blica(draw_small_data(2000), n_components=2)
    assert sound.diagnostics["stability_of_halves"] > 0.9
    assert not find_warnings(sound, "halves of the rows disagree")
    given = fit_blica(draw_small_data(), n_components=2, regularization=10.0)
    assert "stability_of_halves" not in given.diagnostics


def test_feature_constant_in_segment_is_excluded_there_with_warning() -> None:
    data = draw_small_data()
    data.X[data.labels == 4, 1] = 1
    state = fit_blica(data, n_components=2, regularization=10.0)
    (warning,) = find_warnings(state, "out of segments where they never vary")
    assert (warning.features, warning.segments) == ((1,), (4,))
    assert state.diagnostics["constant_in_a_segment"] == 1
    params = state.params
    expected = np.ones((6, 5))
    expected[4, 1] = 0
    np.testing.assert_array_equal(params.varies, expected)
    assert params.thresholds[4, 1] == pytest.approx(norm.isf(1 - 0.5 / 200))
    assert all(np.isfinite(values).all() for _, values in get_named_arrays(params).values())


def test_scales_of_constant_features_follow_the_model() -> None:
    """Scales that the data do not determine make the diagonal of Q (I + A S Aᵀ) Q one."""
    data = draw_small_data()
    data.X[data.labels == 4, 1] = 1
    params = fit_blica(data, n_components=2, regularization=10.0).params
    power = np.pi / 8 * params.source_variances @ params.mixing.T**2
    np.testing.assert_allclose(params.scales[4, 1], 1 / np.sqrt(1 + power[4, 1]), rtol=1e-6)


def test_features_constant_in_every_segment_raise() -> None:
    data = draw_small_data()
    for u in range(6):
        data.X[data.labels == u, 3] = u % 2
    with pytest.raises(FitError, match="vary within no usable segment: 3") as error:
        fit_blica(data, n_components=2)
    assert error.value.message.features == (3,)


def test_features_varying_only_in_unused_segments_raise() -> None:
    """Their rows of the mixing would keep their random initial values."""
    data = draw_small_data()
    first = data.labels == 0
    data.X[first, :4] = 0
    data.X[~first, 4] = 1
    with pytest.raises(FitError) as error:
        fit_blica(data, n_components=4, regularization=10.0)
    assert 4 in error.value.message.features


def test_excluded_segments_warn_with_reason() -> None:
    data = draw_small_data()
    data = data.take_rows((data.labels != 1) | (np.arange(len(data.X)) % 200 < 19))
    data.X[data.labels == 2, 1:] = 0
    mask = np.ones_like(data.X)
    rows_of_5 = np.flatnonzero(data.labels == 5)
    mask[np.ix_(rows_of_5[::2], [1, 3])] = mask[np.ix_(rows_of_5[1::2], [2, 4])] = 0
    state = fit_blica(DenseData(data.X, mask, data.segments), n_components=2, regularization=10.0)
    for text, segment in (
        ("fewer than 20 rows", 1),
        ("fewer than two features vary", 2),
        ("more than 10% of the pairs", 5),
    ):
        (warning,) = find_warnings(state, text)
        assert warning.segments == (segment,)
        assert "left out" in warning.text
    params = state.params
    assert params.segment_status.tolist() == [0, 1, 2, 0, 0, 3]
    assert [state.diagnostics[f"segments_{name}"] for name in ("used", "too_small")] == [3, 1]
    excluded = params.segment_status > 0
    mean = params.source_variances[~excluded].mean(axis=0)
    np.testing.assert_allclose(params.source_variances[excluded], np.tile(mean, (3, 1)), rtol=0.02)
    assert all(np.isfinite(values).all() for _, values in get_named_arrays(params).values())
    np.testing.assert_array_equal(params.ridge[excluded], 0.0)


def test_undefined_pairs_warn_and_get_model_correlations() -> None:
    data = draw_small_data(1000)
    mask = np.ones_like(data.X)
    segment_rows = np.flatnonzero(data.labels == 3)
    mask[segment_rows[::2], 0] = mask[segment_rows[1::2], 2] = 0
    state = fit_blica(DenseData(data.X, mask, data.segments), n_components=2, regularization=50.0)
    (warning,) = find_warnings(state, "pairs without a correlation")
    assert "set to the model's: 1, among" in warning.text
    assert (warning.features, warning.segments) == ((0, 2), (3,))
    assert state.diagnostics["pairs_no_observations"] == 1
    assert 0 < state.diagnostics["gap_rounds"] < 20
    whole = fit_blica(data, n_components=2, regularization=50.0).params
    correlation = state.params.correlations[3, 0, 2]
    assert correlation == pytest.approx(whole.correlations[3, 0, 2], abs=0.15)


def test_pairs_with_empty_cell_warn() -> None:
    data = draw_small_data(200)
    X = data.X.copy()
    segment_rows = np.flatnonzero(data.labels == 3)
    X[segment_rows, 0] = np.arange(len(segment_rows)) < 20
    X[segment_rows[:20], 2] = 0  # in this segment, features 0 and 2 are never both 1
    state = fit_blica(DenseData(X, None, data.segments), n_components=2, regularization=50.0)
    (warning,) = find_warnings(state, "pairs with an empty cell")
    assert "after adding ½ to every cell: 1, among" in warning.text
    assert (warning.features, warning.segments) == ((0, 2), (3,))
    assert state.diagnostics["pairs_empty_cell"] == 1
    assert not find_warnings(fit_blica(data, n_components=2, regularization=50.0), "empty cell")


def test_strong_regularization_warns() -> None:
    X = np.repeat(draw_small_data(600).X[:, :1], 5, axis=1)
    state = fit_blica(
        DenseData(X, None, draw_small_data(600).segments), n_components=1, regularization=1.1
    )
    (warning,) = find_warnings(state, "shrunk to less than a tenth")
    assert warning.segments == tuple(range(6))


def test_reaching_iteration_limit_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_likelihood, "_MAX_ITERATIONS", 3)
    state = fit_blica(draw_small_data(), n_components=2, regularization=10.0)
    assert find_warnings(state, "stopped after 3 iterations before converging")
    assert state.diagnostics["optimiser_converged"] is False


def test_nested_features_are_named_and_have_no_intervals() -> None:
    data = draw_truth_and_data(*SHAPE)[1]
    X = data.X.copy()
    X[:, 1] = X[:, 0]
    X[:, 3] &= X[:, 2]
    state = fit_blica(replace(data, X=X), n_components=2, bootstrap=20)
    named = {w.text.partition(",")[0]: w.features for w in state.warnings}
    assert named["pairs of features that are equal wherever both are observed"] == (0, 1)
    implied = "pairs of features of which a one in the second implies one in the first"
    assert named[implied] == (2, 3)
    is_missing = np.isnan(state.params.mixing_interval).all(axis=(0, 2))
    np.testing.assert_array_equal(np.flatnonzero(is_missing), [0, 1, 2, 3])
