"""BLICA against the truth of the data that it is fitted to, and data that are no good."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import log_ndtr
from scipy.stats import norm

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import gaussian_likelihood
from pipeline.models.binary_ica.blica import BLICA, BLICAParams, warn_about_choice
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from storage.examples import NonstationaryTruth, draw_nonstationary_truth
from tests.pipeline.models.binary_ica import (
    drawn,
    fitted,
    nonstationary,
    planted,
    small,
    truth_and_data,
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
    truth, data = truth_and_data(*SHAPE)
    return truth, fitted(data, n_components=2)


def arrays_of(params: BLICAParams) -> dict[str, NDArray[Any]]:
    return {name: values for name, (_, values) in get_named_arrays(params).items()}


def assert_finite(arrays: Any) -> None:
    assert [name for name, values in arrays.items() if not np.isfinite(values).all()] == []


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [SHAPE, (8, 3, 20, 2000), pytest.param((6, 6, 30, 3000), marks=pytest.mark.matrix)],
)
def test_the_mixing_is_recovered(shape: tuple[int, int, int, int]) -> None:
    truth, data = truth_and_data(*shape)
    state = fitted(data, n_components=shape[1])
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.98
    assert state.diagnostics["stability_of_starts"] > 0.99
    assert state.diagnostics["optimiser_converged"]
    assert state.warnings == ()


@pytest.mark.matrix
def test_as_many_sources_as_features_in_short_segments_raise_no_false_alarm() -> None:
    """Where segments say little of a variance, it must not run away and hide the others."""
    truth, data = truth_and_data(10, 10, 40, 1000)
    state = fitted(data, n_components=10, regularization=10.0, starts=2)
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.97
    assert state.warnings == ()
    lengths, _, order = matched(truth, state.params)
    ratios = state.params.source_variances[:, order] / (truth.source_variances * lengths**2)
    assert 0.7 < np.median(ratios) < 1.6
    assert ratios.max() < 8


@pytest.mark.matrix
def test_the_number_of_components_and_the_ridge_are_chosen() -> None:
    truth, data = truth_and_data(*SHAPE)
    state = fitted(data)
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


@pytest.mark.matrix
def test_neither_the_seed_nor_another_option_moves_the_choice() -> None:
    def choice(**more: Any) -> tuple[Any, ...]:
        state = fitted(truth_and_data(4, 2, 5, 300)[1], **more)
        tried = {n: a.tobytes() for n, a in arrays_of(state.params).items() if "candidate" in n}
        return state.diagnostics["n_components"], state.diagnostics["regularization"], tried

    assert choice(seed=1, starts=1, bootstrap=20) == choice()


def test_a_ridge_that_gains_less_than_chance_is_not_taken() -> None:
    """A ridge of r = 5 or less biases this mixing by more than its sampling error."""
    truth = planted(8, 2, 6, seed=0)
    data = drawn(truth, 5000, np.random.default_rng(0))
    state = fitted(data, n_components=2)
    assert state.diagnostics["regularization"] >= 50
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.999


@pytest.mark.matrix
def test_what_is_given_is_not_tried() -> None:
    _, data = truth_and_data(4, 2, 5, 300)
    both = fitted(data, n_components=2, regularization=50.0)
    assert both.params.candidate_scores.shape == (0,)
    assert both.diagnostics["regularization"] == 50.0
    ridge = fitted(data, n_components=2).params
    assert ridge.candidate_components.tolist()[0] == 0  # independence
    assert set(ridge.candidate_components[1:]) == {2}
    components = fitted(data, regularization=50.0).params
    assert set(components.candidate_regularization[1:]) == {50.0}


def matched(truth: NonstationaryTruth, params: BLICAParams) -> tuple[Floats, Floats, Labels]:
    """Signed lengths and the order that bring the true columns to those found."""
    lengths = np.linalg.norm(truth.mixing, axis=0)
    cosines = (truth.mixing / lengths).T @ params.mixing
    here, order = linear_sum_assignment(-np.abs(cosines))
    return lengths, np.sign(cosines[here, order]), order


def test_variances_are_those_of_the_sources_in_columns_of_length_one() -> None:
    truth, state = example()
    lengths, _, order = matched(truth, state.params)
    ratios = state.params.source_variances[:, order] / (truth.source_variances * lengths**2)
    assert 0.9 < np.median(ratios) < 1.1
    assert ratios.min() > 0.6
    assert ratios.max() < 1.7


def test_thresholds_and_means_are_those_of_the_sources() -> None:
    truth, state = example()
    lengths, signs, order = matched(truth, state.params)
    power = np.pi / 8 * truth.source_variances @ truth.mixing.T**2
    expected = -SCALE * truth.source_means @ truth.mixing.T / np.sqrt(1 + power)
    np.testing.assert_allclose(state.params.thresholds, expected, atol=0.13)
    np.testing.assert_allclose(
        state.params.source_means[:, order] * signs, truth.source_means * lengths, atol=0.6
    )
    assert state.params.mean_misfit.max() < 2


def test_margins_that_no_means_explain_are_told() -> None:
    """A feature of a segment whose values are flipped keeps its correlations up to sign."""
    _, data = truth_and_data(*SHAPE)
    X = data.X.copy()
    rare = (data.labels == 3) & (np.arange(len(X)) % 2 == 0)
    X[rare, 0] = 0
    misfit = fitted(DenseData(X, None, data.segments), n_components=2).params.mean_misfit
    assert misfit[3] > 5
    assert np.delete(misfit, 3).max() < 2


def test_columns_have_length_one_and_fall_in_variance() -> None:
    _, data = truth_and_data(8, 3, 20, 2000)
    params = fitted(data, n_components=3, regularization=50.0).params
    np.testing.assert_allclose(np.linalg.norm(params.mixing, axis=0), 1.0)
    assert (np.diff(params.segment_rows @ params.source_variances) < 0).all()
    assert (params.mixing[np.abs(params.mixing).argmax(axis=0), range(3)] > 0).all()


def test_missing_values_leave_the_estimate_where_it_was() -> None:
    truth, data = truth_and_data(*SHAPE)
    missing = np.where(np.arange(6) % 2, 0.5, 0.1)
    mask = np.random.default_rng(0).random(data.X.shape) >= missing
    state = fitted(DenseData(data.X, mask.astype(np.uint8), data.segments), n_components=2)
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.95
    assert state.warnings == ()


def test_threads_change_nothing() -> None:
    rows = make_memory_rows(small(), [400] * 3)
    model = BLICA(n_components=2, regularization=20.0, bootstrap=20)
    here, there = (fit_model(model, rows, executor) for executor in (SERIAL, ThreadsExecutor(3)))
    for name, values in arrays_of(here.params).items():
        assert values.tobytes() == arrays_of(there.params)[name].tobytes(), name


@pytest.mark.matrix
def test_central_work_tells_how_far_it_is() -> None:
    told: list[tuple[str, int, int]] = []

    def progress(label: str, done: int, total: int, rows: int) -> None:
        told.append((label, done, total))

    model = BLICA(n_components=2, bootstrap=20)
    fit_model(model, make_memory_rows(small()), SERIAL, progress=progress)
    kinds = [label.partition(",")[0] for label, _, _ in told]
    assert list(dict.fromkeys(kinds)) == [
        "feature counts", "pair counts", "choose", "halves", "starts", "bootstrap",
    ]  # fmt: skip
    assert ("bootstrap", 20, 20) in told
    assert ("choose, 2 components, regularization 10", 4, 4) in told
    assert all(done <= total for _, done, total in told if total)


# --- use of a fit ---------------------------------------------------------------------------------


def test_codes_follow_the_sources_that_made_the_data() -> None:
    truth = draw_nonstationary_truth(20, 2, 4, seed=3)
    rng, n = np.random.default_rng(0), 4000
    segments = np.repeat(np.arange(4), n)
    sources = truth.source_means[segments] + np.sqrt(
        truth.source_variances[segments]
    ) * rng.standard_normal((4 * n, 2))
    X = (rng.random((4 * n, 20)) < norm.cdf(SCALE * sources @ truth.mixing.T)).astype(np.uint8)
    state = fitted(DenseData(X, None, segments), n_components=2)
    lengths, signs, order = matched(truth, state.params)
    for u in range(4):
        here = segments == u
        codes = MODEL.transform(state.params, pack_block(X[here], None, u), RNG)
        errors = signs * codes["mean"][:, order] - lengths * sources[here]
        share = errors.var(axis=0) / (lengths**2 * truth.source_variances[u])
        assert share.max() < 0.35
        # The variances say how large the errors are.
        said = codes["variance"][:, order].mean(axis=0)
        np.testing.assert_allclose((errors**2).mean(axis=0), said, rtol=0.35)


def test_samples_of_a_fit_have_the_pair_shares_of_its_data() -> None:
    _, state = example()
    _, data = truth_and_data(*SHAPE)
    segments = np.repeat(np.arange(12), 20_000)
    X = MODEL.sample(state.params, len(segments), np.random.default_rng(0), segments)
    for u in range(12):
        a, b = (x[s == u].astype(np.float64) for x, s in ((X, segments), (data.X, data.labels)))
        np.testing.assert_allclose(a.T @ a / len(a), b.T @ b / len(b), atol=0.04)


def test_held_out_rows_are_likelier_under_the_fit_than_under_independence() -> None:
    truth, state = example()
    data = nonstationary(truth, 300, seed=9)
    gained = []
    for u in range(0, 12, 3):
        X = data.X[data.labels == u]
        model = MODEL.log_likelihood(state.params, pack_block(X, None, u), RNG).nats
        z = state.params.thresholds[u]
        alone = X @ log_ndtr(-z) + (1 - X) @ log_ndtr(z)
        gained.append((model - alone).mean())
    assert min(gained) > 0.1


@pytest.mark.few(2)
@pytest.mark.parametrize("segment", [0, 99])
@pytest.mark.parametrize("n_components", [2, 3])
def test_many_features_are_as_likely_as_the_few_of_them_that_are_observed(
    n_components: int, segment: int
) -> None:
    """By quadrature, nearer than what it is compared with, and by expectation propagation."""
    params = fitted(truth_and_data(*SHAPE)[1], n_components=n_components).params
    wide = replace(
        params,
        mixing=np.tile(params.mixing, (4, 1)),
        thresholds=np.tile(params.thresholds, (1, 4)),
    )
    X = np.random.default_rng(0).integers(0, 2, (50, 24)).astype(np.uint8)
    observed = np.zeros_like(X)
    observed[:, [1, 6, 8, 9, 17, 22]] = 1
    found = MODEL.log_likelihood(wide, pack_block(X, observed, segment), RNG)
    order = [6, 1, 8, 9, 22, 17]
    exact = MODEL.log_likelihood(params, pack_block(X[:, order], None, segment), RNG)
    errors = np.abs(found.nats - exact.nats)
    if n_components == 2:
        assert np.mean(found.integration_error) < 1e-4
        assert errors.max() < 4 * np.max(exact.standard_error)
    else:
        assert errors.mean() < np.mean(found.integration_error)
    assert errors.max() < 5e-3


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 2, 21])
def test_intervals_are_about_the_columns_that_they_stand_beside(seed: int) -> None:
    """Also where the two variances are nearly equal, so that little decides their order."""
    truth = draw_nonstationary_truth(5, 2, 6, seed)
    data = nonstationary(truth, 400, seed)
    params = fitted(data, n_components=2, regularization=3.0, bootstrap=20).params
    lower, upper = params.mixing_interval
    assert (lower < upper).all()
    middle = (lower + upper) / 2
    cosines = (middle * params.mixing).sum(axis=0) / np.linalg.norm(middle, axis=0)
    assert cosines.min() > 0.95


def test_segments_that_just_have_enough_rows_have_intervals() -> None:
    """Resampled groups have fewer rows than the segment; that is no reason to leave it out."""
    for min_rows in (60, 61):
        data = small(61)
        params = fitted(
            data, n_components=2, regularization=10.0, min_rows=min_rows, bootstrap=20
        ).params
        lower, upper = params.mixing_interval
        assert lower.shape == (5, 2)
        assert (lower < upper).all()


def test_without_a_bootstrap_there_are_no_intervals() -> None:
    assert fitted(small(), n_components=2).params.mixing_interval.shape == (0, 5, 2)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"n_components": 0}, "components must be at least 1, but is 0."),
        ({"regularization": 1.0}, "regularization must be above 1, but is 1.0."),
        ({"regularization": float("nan")}, "regularization must be above 1, but is nan."),
        ({"regularization": float("inf")}, "regularization must be above 1, but is inf."),
        ({"min_rows": 0}, "min_rows must be at least 1, but is 0."),
        ({"starts": 0}, "starts must be at least 1, but is 0."),
        ({"bootstrap": 19}, "bootstrap must be 0, or at least 20, but is 19."),
        ({"bootstrap": -1}, "bootstrap must be 0, or at least 20, but is -1."),
    ],
)
def test_bad_settings_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        BLICA(**more)


# --- awkward data --------------------------------------------------------------------------------


def check_awkward(data: DenseData, **more: Any) -> FitState | None:
    """Fit; None where that is refused, else everything must be finite."""
    try:
        state = fitted(data, **{"min_rows": 1, "starts": 2, **more})
    except FitError:
        return None
    assert_finite(arrays_of(state.params))
    assert_finite(state.diagnostics)
    for segment in (0, 1, 99):
        block: BinaryBlock = pack_block(data.X[:9], None, segment)
        assert_finite(MODEL.transform(state.params, block, RNG))
        assert np.isfinite(MODEL.composite_log_likelihood(state.params, block, RNG)).all()
        assert np.isfinite(MODEL.log_likelihood(state.params, block, RNG).nats).all()
    return state


awkward = settings(deadline=None, max_examples=10)
small_tables = tables(st.integers(1, 5), st.integers(3, 60))
n_components = st.sampled_from([None, 1, 2])
regularization = st.sampled_from([None, 1.01, 10.0, 1e9])


@awkward
@given(small_tables, n_components, regularization)
def test_small_tables_are_refused_or_fitted_finite(
    data: DenseData, n_components: int | None, regularization: float | None
) -> None:
    check_awkward(data, n_components=n_components, regularization=regularization)


@pytest.mark.matrix
@awkward
@given(st.integers(0, 2**32 - 1), n_components, regularization)
def test_sparse_tables_are_refused_or_fitted_finite(
    seed: int, n_components: int | None, regularization: float | None
) -> None:
    """Rarer values, more segments and more missing than strategies draw by themselves."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(20, 150)), int(rng.integers(2, 5)))
    X = (rng.random(shape) < rng.choice([0.1, 0.5, 0.9], shape[1])).astype(np.uint8)
    X[:, -1] = X[:, 0]
    mask = (rng.random(shape) < rng.choice([0.4, 0.8])).astype(np.uint8)
    data = DenseData(X, mask if seed % 2 else None, rng.integers(0, rng.integers(3, 7), len(X)))
    check_awkward(data, n_components=n_components, regularization=regularization)


def test_halves_without_a_segment_to_use_are_refused_or_fitted() -> None:
    """Every feature is constant in the first half of every segment."""
    data = small(40)
    data.X[np.arange(len(data.X)) % 40 < 20] = 1
    check_awkward(data, n_components=1, min_rows=20)


@pytest.mark.matrix
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["the same", "complementary", "independent", "one pair"])
def test_extreme_dependence_is_fitted_finite(kind: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (600, 4), dtype=np.uint8)
    if kind == "the same":
        X[:] = X[:, :1]
    elif kind == "complementary":
        X[:, 1:3], X[:, 3:] = X[:, :1], 1 - X[:, :1]
    elif kind == "one pair":
        X[:, 1] = X[:, 0]
    data = DenseData(X, None, np.arange(600) % 4)
    given = ({"n_components": k, "regularization": r} for k, r in ((4, 10.0), (2, 1e12)))
    for more in ({}, *given):
        assert check_awkward(data, **more) is not None


@pytest.mark.matrix
def test_resampling_awkward_data_stays_finite() -> None:
    rng = np.random.default_rng(0)
    for n_rows in (30, 90):
        X = (rng.random((n_rows, 4)) < 0.3).astype(np.uint8)
        data = DenseData(X, None, np.arange(n_rows) % 3)
        check_awkward(data, n_components=1, regularization=10.0, bootstrap=20)


def _fit(n_features: int, n_segments: int, more: dict[str, Any]) -> None:
    """Short segments, whose halves have pairs with empty cells."""
    truth = draw_nonstationary_truth(n_features, 2, n_segments, seed=1)
    fitted(nonstationary(truth, 60), n_components=2, **more)


slow = pytest.mark.slow


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("shape", "more"),
    [
        pytest.param((200, 6), {"regularization": 20.0}, id="nothing chosen"),
        pytest.param((300, 8), {}, marks=slow, id="ridge chosen"),
        pytest.param(
            (300, 8), {"regularization": 20.0, "bootstrap": 20}, marks=slow, id="bootstrap"
        ),
        pytest.param((150, 40), {}, marks=slow, id="segments"),
    ],
)
def test_a_fit_takes_no_more_than_is_stated(shape: tuple[int, int], more: dict[str, Any]) -> None:
    stated = BLICA(n_components=2, **more).estimate_memory(*shape, n_threads=1)
    with start_tracing_process() as process:
        process.submit(_fit, 6, 4, more).result()  # compiles
        _, peak = process.submit(measure_peak_memory, _fit, *shape, more).result()
    assert 0.5 * stated < peak <= stated


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


@pytest.mark.matrix
def test_unidentifiable_numbers_of_components_are_not_chosen() -> None:
    data = small(1000)
    params = fitted(data.take_rows(data.labels < 3)).params
    assert params.candidate_components.max() <= 3


@pytest.mark.matrix
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


@pytest.mark.matrix
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
    (notice,) = notices(state, "out of segments where they never vary")
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
    with pytest.raises(FitError, match="vary within no usable segment: 3") as error:
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


@pytest.mark.matrix
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
    monkeypatch.setattr(gaussian_likelihood, "_MAX_ITERATIONS", 3)
    state = fitted(small(), n_components=2, regularization=10.0)
    assert notices(state, "stopped after 3 iterations before converging")
    assert state.diagnostics["optimiser_converged"] is False
