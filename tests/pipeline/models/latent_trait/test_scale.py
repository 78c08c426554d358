"""The scale of the traits under priors, their signs, and items that point the other way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

import latentbits as lb
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, start_fit
from pipeline.models.latent_trait.model import LatentTrait
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]


def draw_answers(
    n_rows: int, slopes: Floats, missing: float = 0.0, n_levels: int = 2, seed: int = 0
) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((n_rows, 1)) * slopes + rng.logistic(size=(n_rows, len(slopes)))
    latent += rng.standard_normal(len(slopes))
    answers = (latent[:, :, None] > np.linspace(-1, 1, n_levels + 1)[1:-1]).sum(axis=2) * 1.0
    answers[rng.random(answers.shape) < missing] = np.nan
    return pd.DataFrame(answers, columns=[f"q{k}" for k in range(len(slopes))])


def measure_population(fitted: lb.Fitted, table: Any) -> tuple[float, float]:
    codes = lb.transform(fitted, table)
    mean, variance = codes["mean"][:, 0], codes["variance"][:, 0]
    return float(mean.mean()), float(np.sqrt((mean**2 + variance).mean() - mean.mean() ** 2))


@pytest.mark.parametrize("precision", [0.1, 10.0])
@pytest.mark.parametrize("n_levels", [2, 3])
def test_a_prior_leaves_the_scale_of_the_population(n_levels: int, precision: float) -> None:
    slopes = np.random.default_rng(1).uniform(0.8, 2, 60)
    table = draw_answers(120, slopes, 0.4, n_levels)
    data = lb.from_dataframe(table, levels=None if n_levels == 2 else [0, 1, 2])
    settings: dict[str, Any] = {"errors": "none"} if n_levels == 2 else {}
    fitted = lb.fit(data, "latent-trait", components=1, prior_precision=precision, **settings)
    mean, deviation = measure_population(fitted, data)
    assert mean == pytest.approx(0.0, abs=1e-3)
    assert 0.995 < deviation < 1.005


def test_a_prior_leaves_the_scale_of_the_first_group() -> None:
    slopes = np.random.default_rng(1).uniform(0.8, 2, 40)
    table = draw_answers(200, slopes).astype(int)
    group = np.repeat(["a", "b"], 100)
    data = lb.from_dataframe(table.assign(group=group), keep=["group"])
    fitted = lb.fit(data, "latent-trait", components=1, prior_precision=5.0, group="group")
    codes = lb.transform(fitted, data)
    first = group == fitted.segment_names[0]
    mean, variance = codes["mean"][first, 0], codes["variance"][first, 0]
    assert 0.99 < np.sqrt((mean**2 + variance).mean()) < 1.005


def test_the_slopes_of_one_trait_have_a_positive_sum() -> None:
    for seed in range(3):
        slopes = np.array([1.0, 0.9, 1.2, 0.8, -2.0])
        fitted = lb.fit(draw_answers(400, slopes, seed=seed), "latent-trait", components=1)
        assert fitted.params.weights.sum() > 0
        assert fitted.params.weights[4, 0] < 0
        (warning,) = [text for text in fitted.warnings if "other way" in text]
        assert warning == (
            "1 item points the other way than the other 4: 'q4'. In a questionnaire, fit with "
            'reverse="q4"; in a test, check the key; roll calls may point either way'
        )


def test_items_that_point_both_ways_are_no_mistake() -> None:
    slopes = np.array([1.0, -0.9, 1.2, -0.8, 1.3])
    fitted = lb.fit(draw_answers(400, slopes), "latent-trait", components=1)
    assert not any("other way" in text for text in fitted.warnings)


def test_a_prior_keeps_many_separated_items_finite() -> None:
    rng = np.random.default_rng(0)
    theta = np.sort(rng.standard_normal(60))
    steep = (theta[:, None] > rng.uniform(-1, 1, 100)).astype(float)  # separates the rows
    usual = (rng.random((60, 200)) < 1 / (1 + np.exp(-theta[:, None]))).astype(float)
    table = np.column_stack([steep, usual])
    table = table[:, table.any(axis=0) & ~table.all(axis=0)]
    fitted = lb.fit(table, "latent-trait", components=1, prior_precision=1.0)
    assert np.abs(fitted.params.weights).max() < 20
    assert not any("diverge" in text for text in fitted.warnings)
    mean, deviation = measure_population(fitted, table)
    assert (mean, deviation) == pytest.approx((0.0, 1.0), abs=0.005)


def test_a_prior_that_moves_the_scale_still_shrinks_slopes_towards_each_other() -> None:
    slopes = np.linspace(0.8, 2, 60)
    table = draw_answers(120, slopes, 0.3)
    fits = [
        lb.fit(table, "latent-trait", components=1, prior_precision=precision)
        for precision in (0.0, 5.0)
    ]
    spreads = [fit.params.weights.std() / fit.params.weights.mean() for fit in fits]
    assert spreads[1] < 0.9 * spreads[0]
    # The objective has the prior of the slopes before the last stage.
    log_prior = fits[1].params.log_prior
    assert fits[0].params.log_prior is None
    assert -2.5 * (fits[1].params.weights ** 2).sum() < log_prior < 0
    log_likelihood = fits[1].manifest["diagnostics"]["fit_statistics"]["log_likelihood"]
    assert 120 * fits[1].objective == pytest.approx(log_likelihood + log_prior, abs=1e-2)


def test_a_fit_whose_scale_was_estimated_can_be_continued() -> None:
    table = draw_answers(120, np.linspace(0.8, 2, 60), 0.3).to_numpy()
    model = LatentTrait(n_components=1, prior_precision=5.0, errors="none")
    rows = make_memory_rows(DenseData(table == 1, ~np.isnan(table)), [120])
    executor = SerialExecutor()
    first = collect_first_statistics(model, rows, executor, 0)
    cold = fit_model(model, rows, executor)
    assert cold.params.log_prior is not None
    start = start_fit(model, first, rows, executor, 0, initial_params=cold.params)
    warm = fit_model(model, rows, executor, state=start)
    np.testing.assert_allclose(warm.params.weights, cold.params.weights, rtol=1e-2)
    assert warm.history[-1] == pytest.approx(cold.history[-1], abs=1e-4)


@pytest.mark.parametrize("n_levels", [2, 3])
def test_known_offsets_that_contradict_the_data_are_named(n_levels: int) -> None:
    rng = np.random.default_rng(5)
    slopes, offsets = rng.uniform(0.8, 2, 8), rng.standard_normal(8)
    latent = rng.standard_normal((800, 1)) * slopes + offsets + rng.logistic(size=(800, 8))
    names = [f"q{k}" for k in range(8)]
    above = (latent[:, :, None] > np.arange(n_levels - 1)).sum(axis=2)
    levels = None if n_levels == 2 else [0, 1, 2]
    data = lb.from_dataframe(pd.DataFrame(above, columns=names), levels=levels)

    def fit(shift: Floats) -> lb.Fitted:
        own = offsets + shift
        columns = {f"level_offsets_{j + 1}": own - j for j in range(n_levels - 1)}
        columns = {"offset": own} if n_levels == 2 else columns
        bank = pd.DataFrame({"feature": names, "slope": slopes, **columns})
        return lb.fit(data, "latent-trait", components=1, items=bank)

    assert not fit(np.zeros(8)).warnings
    assert not fit(np.full(8, 0.7)).warnings  # another mean of the trait
    (warning,) = fit(np.array([0, 0, 1.0, 0, 0, 0, 0, 0])).warnings
    assert "contradict the data" in warning
    assert "doubtful: 'q2'" in warning
    assert "The worst is the first, whose offset is too high" in warning
    (warning,) = (w for w in fit(4 * np.tile([1.0, -1.0], 4)).warnings if "contradict" in w)
    assert "8 of 8 items contradict the data" in warning


@pytest.mark.parametrize("n_levels", [2, 3])
def test_item_fit_does_not_depend_on_the_direction_of_items(n_levels: int) -> None:
    table = draw_answers(800, np.array([1.0, 1.4, 0.8, 1.2, 1.6, 1.1]), n_levels=n_levels)
    recoded = table.assign(q1=n_levels - 1 - table["q1"], q4=n_levels - 1 - table["q4"])
    levels = None if n_levels == 2 else [0, 1, 2]
    fits = [
        lb.fit(lb.from_dataframe(own, levels=levels), "latent-trait", components=1, tol=1e-9)
        for own in (table, recoded)
    ]
    assert (fits[1].params.weights[[1, 4]] < 0).all()
    assert np.isfinite(fits[0].params.s_x2).all()
    np.testing.assert_allclose(fits[1].params.s_x2, fits[0].params.s_x2, rtol=1e-3)
    np.testing.assert_allclose(fits[1].params.s_x2_df, fits[0].params.s_x2_df)
    points = np.linspace(-3, 3, 7)
    models: list[Any] = [fitted.model for fitted in fits]
    scores = [
        model.get_item_curves(fitted.params).compute_expected_score(points)
        for model, fitted in zip(models, fits, strict=True)
    ]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-3)
    assert (np.diff(scores[1]) > 0).all()


@pytest.mark.parametrize("n_levels", [2, 3])
def test_groups_with_slopes_of_their_own_have_the_signs_of_the_first(n_levels: int) -> None:
    """Each group by itself would be turned so that its slopes have a positive sum."""
    slopes = {"a": np.array([2.0, 1.4, -1.2, -1.0]), "b": np.array([1.2, 1.0, -1.9, -1.5])}
    tables = [draw_answers(500, own, n_levels=n_levels) for own in slopes.values()]
    group = np.repeat(list(slopes), 500)
    table = pd.concat(tables, ignore_index=True).astype(int).assign(group=group)
    levels = None if n_levels == 2 else [0, 1, 2]
    data = lb.from_dataframe(table, keep=["group"], levels=levels)
    fitted = lb.fit(data, "latent-trait", components=1, group="group", invariance="configural")
    signs = np.sign(fitted.params.group_weights[:, :, 0])
    np.testing.assert_array_equal(signs, np.tile([1, 1, -1, -1], (2, 1)))


def test_draws_that_cannot_estimate_the_scale_say_so() -> None:
    table = draw_answers(120, np.linspace(0.8, 2, 60))
    settings: dict[str, Any] = {"prior_precision": 10.0, "estimator": "sampling"}
    fitted = lb.fit(table, "latent-trait", components=1, **settings)
    assert any("stretches the traits" in text for text in fitted.warnings)


@pytest.mark.matrix
def test_posteriors_far_narrower_than_nodes_are_integrated_after_few_stages() -> None:
    """Nodes must not become a little finer in stage after stage."""
    rng, n, p = np.random.default_rng(0), 24, 1500
    x = rng.standard_normal(n)
    logits = x[:, None] * rng.uniform(2.0, 6.0, p) + 2 * rng.standard_normal(p)
    X = (logits + rng.logistic(size=(n, p)) > 0).astype(np.uint8)
    observed = (rng.random((n, p)) < 0.9).astype(np.uint8)
    data = DenseData(X & observed, observed)
    model = LatentTrait(n_components=1, prior_precision=1.0, constant_features="keep")
    state = fit_model(model, make_memory_rows(data), SerialExecutor())
    assert state.iteration < 60
    grid = np.linspace(-6, 6, 6001)[:, None]
    eta = grid @ state.params.weights.T + state.params.offsets
    log_p = (X & observed) @ eta.T - observed @ np.logaddexp(0, eta).T - grid[:, 0] ** 2 / 2
    expected = logsumexp(log_p, axis=1).sum() + n * np.log(0.002 / np.sqrt(2 * np.pi))
    found = state.diagnostics["fit_statistics"]["log_likelihood"]
    assert found == pytest.approx(expected, abs=1e-3)
