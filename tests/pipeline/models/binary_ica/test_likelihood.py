"""Binary ICA by maximum likelihood: scores, steps, priors, recovery and errors."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from flows.experiments.base import pack_rows_in_memory
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.learning.convergence import is_stage_over, warn_about_ending
from pipeline.models.binary_ica import BLICA, BinaryICALikelihood
from pipeline.models.binary_ica.likelihood import find_patterns, sum_scores
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE
from pipeline.models.binary_ica.scoring_steps import (
    ParameterPoint,
    PosteriorMaximum,
    estimate_uniform_variance,
    find_maximum,
    limit_step,
    log_prior,
    make_empty_path,
    make_initial_priors,
    move_point,
    update_priors,
)
from pipeline.numerics.metrics import match_columns, mean_cosine_similarity
from pipeline.numerics.probit.probit_scores import quadrature_scores
from pipeline.statistics.sums import ScoreSums
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.support.derivatives import differentiate

SEGMENTS = 12


def draw_example(n_features=6, n_components=2, rows=400, seed=3, segments=SEGMENTS):
    """Return true parameters, a row source and the rows drawn with these parameters."""
    truth = draw_nonstationary_truth(n_features, n_components, segments, seed)
    X = np.concatenate([batch.X for batch in draw_nonstationary_rows(truth, rows, seed)])
    return truth, pack_rows_in_memory(X, segments), X


@pytest.fixture(scope="module")
def fitted_example():
    """Return true parameters, a row source, its rows and the fitted state."""
    truth, rows, X = draw_example()
    return truth, rows, X, fit_model(BinaryICALikelihood(2), rows, SerialExecutor(), 0)


def compute_log_likelihood(params, X, segments=SEGMENTS):
    """Return the log-likelihood of all rows, by quadrature."""
    parts = np.split(X, segments)
    blocks = [replace(pack_block(part), segment=u) for u, part in enumerate(parts)]
    return sum(sum_scores(params, block, quadrature_scores).log_likelihood for block in blocks)


def replace_point(params, mixing, means, variances):
    """Return parameters with another mixing, means and variances, and without offsets."""
    point = ParameterPoint(mixing, np.zeros(len(mixing)), means, np.log(variances))
    return params.with_point(point)


@pytest.mark.matrix
def test_fit_beats_blica_and_likelihood_of_truth():
    truth, rows, X = draw_example(rows=1000, segments=40)
    state = fit_model(BinaryICALikelihood(2), rows, SerialExecutor(), 0)
    blica = fit_model(BLICA(2, 20.0), rows, SerialExecutor(), 0).params
    similarity = mean_cosine_similarity(state.params.mixing, truth.mixing)
    assert similarity > max(0.999, mean_cosine_similarity(blica.mixing, truth.mixing))
    reached = compute_log_likelihood(state.params, X, 40)
    assert reached > compute_log_likelihood(replace_point(state.params, *truth), X, 40)
    start = replace_point(state.params, blica.mixing, blica.source_means, blica.source_variances)
    assert reached > compute_log_likelihood(start, X, 40)
    assert state.diagnostics["likelihood"] == "exact"
    assert state.diagnostics["likelihood_error"] < 1e-3
    assert not state.warnings


def test_fit_stopped_early_returns_best_scored_point():
    _, rows, X = draw_example(rows=100)
    state = fit_model(BinaryICALikelihood(2, max_iter=2), rows, SerialExecutor(), 0)
    assert "stopped before converging, at {max_iter=2}; raise it" in state.warnings[0].text
    # The fit sorts the columns of A at its end. Their order rotates the quadrature lattice, which
    # changes the result by its error of about 2e-7.
    A, offsets, means, log_variances, *_ = state.params.point
    likelihoods = [
        compute_log_likelihood(state.params.with_point(ParameterPoint(*point)), X) / len(X)
        for order in ([0, 1], [1, 0])
        for point in [(A[:, order], offsets, means[:, order], log_variances[:, order])]
    ]
    assert state.history[-1] in [pytest.approx(nats, rel=1e-12) for nats in likelihoods]


@pytest.mark.parametrize("variance", [0.0, np.inf])
def test_fit_without_improving_step_ends_and_warns_unless_noise_explains_it(variance):
    _, rows, _ = draw_example(rows=100)
    model, executor = BinaryICALikelihood(2), SerialExecutor()
    state = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    sums = collect_pass_statistics(model, state, rows, executor, 0)
    highest = state.params.point.to_vector()
    state = model.update(state, sums, executor.map, np.random.default_rng(0))
    lower, n_steps = replace(sums, log_likelihood=-1e9, variance=variance), 0
    while not is_stage_over(model.get_convergence_criterion(state), [-1.0]):
        state = model.update(state, lower, executor.map, np.random.default_rng(0))
        n_steps += 1
    assert n_steps > 1
    np.testing.assert_allclose(state.params.point.to_vector(), highest)
    warnings = warn_about_ending(model.get_convergence_criterion(state), [-1.0])
    texts = [warning.text for warning in warnings]
    expected = [] if variance else [True]
    assert ["no step raised the objective" in text for text in texts] == expected


def test_most_true_entries_are_within_two_standard_errors(fitted_example):
    truth, _, _, state = fitted_example
    lengths = np.linalg.norm(truth.mixing, axis=0)
    mixing = match_columns(truth.mixing / lengths, state.params.mixing)
    within = np.abs(mixing - state.params.mixing) < 2 * state.params.mixing_error
    assert within.mean() > 0.8
    assert (state.params.mixing_error < 0.2).all()
    assert (state.params.log_variances_error > 0).all()


def test_score_sums_match_finite_differences_and_information(fitted_example):
    _, _, X, state = fitted_example
    block = replace(pack_block(X[:400]), segment=0)
    sums = sum_scores(state.params, block, quadrature_scores)
    point, eps = state.params.point, 1e-4
    flat = np.concatenate([point.mixing.ravel(), point.offsets])

    def total(change):
        mixing = (flat + change)[: point.mixing.size].reshape(point.mixing.shape)
        changed = point._replace(mixing=mixing, offsets=(flat + change)[point.mixing.size :])
        return sum_scores(state.params.with_point(changed), block, quadrature_scores).log_likelihood

    slopes = differentiate(total, np.zeros(len(flat)), eps)
    scale = np.abs(np.array(slopes)).max()
    np.testing.assert_allclose(sums.gradient, slopes, rtol=0, atol=1e-3 * scale)

    def total_own(name, k, change):
        values = getattr(point, name).copy()
        values[0, k] += change
        changed = state.params.with_point(point._replace(**{name: values}))
        return sum_scores(changed, block, quadrature_scores).log_likelihood

    own = [
        (total_own(name, k, eps) - total_own(name, k, -eps)) / (2 * eps)
        for name in ("means", "log_variances")
        for k in range(2)
    ]
    np.testing.assert_allclose(sums.own_gradient[0], own, rtol=0, atol=1e-3 * scale)
    rows = [sum_scores(state.params, pack_block(row[None]), quadrature_scores) for row in X[:400]]
    expected = sum(np.outer(row.gradient, row.gradient) for row in rows)
    np.testing.assert_allclose(sums.information, expected, atol=1e-9 * np.abs(expected).max())


def test_equal_rows_are_scored_once():
    X = np.array([[0, 1], [1, 1], [0, 1], [0, 1]], np.uint8)
    patterns = find_patterns(pack_block(X))
    np.testing.assert_array_equal(patterns.block.unpack_values(), [[0, 1], [1, 1]])
    np.testing.assert_array_equal(patterns.count_rows(), [3, 1])


def test_missing_values_distinguish_rows_regardless_of_stored_value():
    X = np.array([[0, 1], [1, 1], [0, 1]], np.uint8)
    patterns = find_patterns(pack_block(X, np.array([[0, 1], [0, 1], [1, 1]], np.uint8)))
    assert sorted(patterns.count_rows().tolist()) == [1, 2]
    assert patterns.block.unpack_mask().sum() == 3


def test_non_finite_scores_raise(fitted_example):
    _, _, X, state = fitted_example
    block = replace(pack_block(X[:400]), segment=0)
    sums = sum_scores(state.params, block, quadrature_scores)
    broken = replace(sums, gradient=sums.gradient * np.nan)
    point = state.params.point
    one = ParameterPoint(*point[:2], point.means[:1], point.log_variances[:1])
    with pytest.raises(FitError, match="derivatives of the likelihood became NaN or infinite"):
        find_maximum(
            broken, one, make_initial_priors(one), make_empty_path(one).add_point(one, broken)
        )


def test_steps_are_limited_to_trust_region(fitted_example):
    point = fitted_example[3].params.point
    step = ParameterPoint(*(np.full_like(part, 7.0) for part in point))
    short = limit_step(step, point)
    longest = max(1.0, 1 / (0.9 * np.abs(point.mixing).max()))
    np.testing.assert_allclose(short.to_vector(), step.to_vector() / (7 * longest))
    np.testing.assert_allclose(limit_step(short, point).to_vector(), short.to_vector())


def test_steps_along_which_only_priors_change_keep_the_likelihood(fitted_example):
    _, _, X, state = fitted_example
    point = state.params.point
    growth, shift = np.array([0.4, -0.2]), np.array([0.5, 1.0])
    step = ParameterPoint(
        point.mixing * growth,
        -PROBIT_SCALE * point.mixing @ shift,
        np.ones_like(point.means) * shift - point.means * growth,
        np.ones_like(point.log_variances) * -2 * growth,
    )
    moved = move_point(point, step, 1.0)
    np.testing.assert_allclose(moved.mixing, point.mixing * np.exp(growth))
    likelihoods = [
        compute_log_likelihood(state.params.with_point(one), X) / len(X) for one in (point, moved)
    ]
    assert likelihoods[1] == pytest.approx(likelihoods[0], abs=1e-6)
    unmoved = move_point(point, step, 0.0)
    np.testing.assert_array_equal(unmoved.to_vector(), point.to_vector())


def test_prior_updates_converge_to_em_fixed_point(fitted_example):
    _, _, X, state = fitted_example
    point, n = state.params.point, 3
    logs = point.log_variances[:n] - point.log_variances[:n].mean(axis=0)
    # Means and variances are scaled to exceed the lower bounds of the prior variances.
    scaled_point = ParameterPoint(*point[:2], 20 * point.means[:n], 10 * logs)
    blocks = [replace(pack_block(X[400 * u : 400 * (u + 1)]), segment=u) for u in range(n)]
    sums = reduce(ScoreSums.merge, (sum_scores(state.params, b, quadrature_scores) for b in blocks))
    path, priors = (
        make_empty_path(scaled_point).add_point(scaled_point, sums),
        make_initial_priors(scaled_point),
    )
    for _ in range(500):
        priors = update_priors(scaled_point, find_maximum(sums, scaled_point, priors, path), priors)
    unknown = find_maximum(sums, scaled_point, priors, path).own_covariance.diagonal(
        axis1=1, axis2=2
    )
    for name, part in {"means": slice(0, 2), "log_variances": slice(2, 4)}.items():
        squares = getattr(scaled_point, name) ** 2 + unknown[:, part]
        assert getattr(priors, name) == pytest.approx(squares.mean(), rel=1e-6)


@pytest.mark.parametrize("shared", [0.0, 100.0])
def test_prior_of_lengths_matches_well_determined_lengths(fitted_example, shared):
    point = fitted_example[3].params.point
    lengths = np.array([0.01, 0.1, 1, 1, 3, 10])
    one = point._replace(mixing=lengths[:, None] * np.array([0.6, 0.8]))
    n_shared, n_segments = 3 * len(lengths), len(point.means)
    # All lengths may be known up to a common factor, which the sources can absorb.
    common = np.concatenate([one.mixing.ravel(), np.zeros(len(lengths))])
    known = PosteriorMaximum(
        one,
        0.0,
        shared * np.outer(common, common),
        np.zeros((n_segments, 4, 4)),
        np.zeros((n_segments, 4, n_shared)),
    )
    priors = make_initial_priors(one)
    for _ in range(10):
        priors = update_priors(one, known, priors)
    assert priors.norms == pytest.approx(np.log(lengths).var())


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_uniform_variance_matches_simulation(n):
    lengths = np.linalg.norm(np.random.default_rng(0).uniform(-1, 1, (100_000, n)), axis=1)
    assert estimate_uniform_variance(n) == pytest.approx(np.log(lengths).var(), rel=0.08)


def test_fit_converging_below_its_start_is_repeated_with_wider_priors():
    _, rows, _ = draw_example(rows=100)
    model, executor = BinaryICALikelihood(2, tol=1e9), SerialExecutor()
    rng = np.random.default_rng(0)
    state = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    start = state.params.point.to_vector()
    sums = collect_pass_statistics(model, state, rows, executor, 0)
    state = model.update(state, sums, executor.map, rng)
    priors = state.auxiliary["priors"]
    assert (state.params.point.to_vector() != start).any()
    lower = replace(sums, log_likelihood=sums.log_likelihood - 1)
    converging = {"gain": np.array(np.inf), "reached": np.array(-np.inf)}
    for n in range(1, 4):
        state = replace(state, auxiliary={**state.auxiliary, **converging})
        state = model.update(state, lower, executor.map, rng)
        np.testing.assert_array_equal(state.params.point.to_vector(), start)
        np.testing.assert_allclose(state.auxiliary["priors"], 4.0**n * priors)
        assert all(np.isfinite(array).all() for array in state.auxiliary.values())  # as in storage
        assert not is_stage_over(model.get_convergence_criterion(state), [-1.0])
        state = model.update(state, sums, executor.map, rng)
        np.testing.assert_allclose(state.auxiliary["priors"], 4.0**n * priors)
        assert (state.params.point.to_vector() != start).any()


def test_last_pass_below_the_start_is_undone():
    _, rows, _ = draw_example(rows=100)
    model, executor = BinaryICALikelihood(2, tol=1e9), SerialExecutor()
    rng = np.random.default_rng(0)
    state = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    sums = collect_pass_statistics(model, state, rows, executor, 0)
    state = model.update(state, sums, executor.map, rng)
    criterion = model.get_convergence_criterion(state)
    lower = replace(sums, log_likelihood=sums.log_likelihood - 1)
    last = model.update(state, lower, executor.map, rng)
    assert criterion.has_converged([-1.0])
    assert model.get_convergence_criterion(last).has_converged([-1.0])
    np.testing.assert_array_equal(last.auxiliary["points"], state.auxiliary["points"])
    assert last.auxiliary["likelihood"][0] == sums.log_likelihood


def test_fit_stopped_below_its_start_returns_start():
    _, rows, _ = draw_example(rows=100)
    model, executor = BinaryICALikelihood(2), SerialExecutor()
    state = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    start = state.params.normalize_columns()
    sums = collect_pass_statistics(model, state, rows, executor, 0)
    lower = replace(sums, log_likelihood=sums.log_likelihood - 1)
    for statistics in (sums, lower):
        state = replace(state, auxiliary={**state.auxiliary, "reached": np.array(-np.inf)})
        state = model.update(state, statistics, executor.map, np.random.default_rng(0))
    state = model.finish(replace(state, history=(-1.0,)), lower)
    np.testing.assert_array_equal(state.params.mixing, start.mixing)
    assert state.history == (sums.log_likelihood / sums.n_rows,)


@pytest.mark.matrix
def test_expectation_propagation_fits_more_components():
    truth, rows, _ = draw_example(10, 4, 600, segments=20)
    state = fit_model(BinaryICALikelihood(4), rows, SerialExecutor(), 0)
    assert state.diagnostics["likelihood"] == "ep"
    assert 0 < state.diagnostics["likelihood_error"] < 0.2
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.97


@pytest.mark.matrix
def test_exact_likelihood_fits_three_components():
    truth, rows, _ = draw_example(7, 3, 100)
    model = BinaryICALikelihood(3, likelihood="exact", max_iter=4)
    state = fit_model(model, rows, SerialExecutor(), 0)
    assert state.diagnostics["likelihood"] == "exact"
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.9


def test_more_parameters_than_rows_raise():
    _, rows, _ = draw_example(20, 10, 20, segments=5)
    with pytest.raises(FitError, match="do not determine all 220 entries of the mixing and the"):
        fit_model(BinaryICALikelihood(10, starts=1), rows, SerialExecutor(), 0)


def test_exact_likelihood_of_many_features_raises():
    _, rows, _ = draw_example(21, 3, 50)
    with pytest.raises(
        FitError, match=r"at most 20 features or 2 components, .* 21 features and 3 comp"
    ):
        fit_model(BinaryICALikelihood(3, likelihood="exact"), rows, SerialExecutor(), 0)


def test_step_without_data_reaches_maximum_of_prior(fitted_example):
    _, _, X, state = fitted_example
    point = state.params.point
    one = ParameterPoint(*point[:2], point.means[:1] + 1, point.log_variances[:1] + 1)
    sums = sum_scores(state.params, replace(pack_block(X[:400]), segment=0), quadrature_scores)
    nothing = type(sums).from_arrays({n: 0 * a for n, a in sums.to_arrays().items()})
    priors = make_initial_priors(one)
    step = find_maximum(nothing, one, priors, make_empty_path(one).add_point(one, nothing)).step
    changed = ParameterPoint(*(a + b for a, b in zip(one, step, strict=True)))
    assert log_prior(changed, priors) > log_prior(one, priors)
    np.testing.assert_allclose([*changed.means, *changed.log_variances], 0, atol=1e-8)
