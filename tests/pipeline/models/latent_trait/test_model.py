"""The latent-trait model against published likelihoods, integration and the truth."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import make_params
from pipeline.models.latent_trait.stages import NodeGrid, begin_finer_stage
from pipeline.models.state import FitState
from pipeline.numerics.logistic.centred_nodes import CENTRED_NODES_PER_AXIS
from pipeline.numerics.logistic.latent_nodes import gauss_hermite
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums
from tests.support.data import find_shared_data
from tests.support.strategies import DenseData, make_memory_rows

Bits = NDArray[np.uint8]

RNG = RowRandom(0)
LSAT6 = (
    (0.82566, 2.77323),
    (0.72274, 0.99020),
    (0.89087, 0.24915),
    (0.68837, 1.28476),
    (0.65686, 2.05327),
)
SERIAL = SerialExecutor()


def fitted(X: Bits, observed: Bits | None = None, **settings: Any) -> FitState:
    sizes = [len(X) // 2, len(X) - len(X) // 2]
    return fit_model(
        LatentTrait(**settings), make_memory_rows(DenseData(X, observed), sizes), SERIAL
    )


def shared_bits(name: str) -> tuple[Bits, Any]:
    with np.load(find_shared_data(f"{name}.npz")) as saved:
        arrays = dict(saved)
    return np.unpackbits(arrays["X"], axis=1)[:, : arrays["shape"][1]], arrays


@lru_cache
def two_factors(n_rows: int = 20_000) -> tuple[Bits, NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(1)
    weights, offsets = rng.uniform(0.5, 1.5, (12, 2)), rng.uniform(-1, 1, 12)
    weights *= rng.choice([-1, 1], weights.shape)
    x = rng.standard_normal((n_rows, 2))
    X = (rng.random((n_rows, 12)) < expit(x @ weights.T + offsets)).astype(np.uint8)
    return X, weights, offsets


def turned_error(found: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Root mean square difference after the best rotation (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(found.T @ truth)
    return float(np.sqrt(((found @ left @ right - truth) ** 2).mean()))


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", ["auto", "ep", "variational"])
def test_the_scale_of_wide_data_is_found_in_few_passes(estimator: str) -> None:
    """1,000 items determine the traits so well that plain EM hardly moves their scale."""
    rng = np.random.default_rng(1)
    x, slopes = 0.9 * rng.standard_normal(300), np.exp(0.3 * rng.standard_normal(1000))
    p = expit(np.outer(x, slopes) + rng.standard_normal(1000))
    X, observed = rng.random(p.shape) < p, rng.random(p.shape) < 0.7
    X, observed = X.astype(np.uint8), observed.astype(np.uint8)
    state = fitted(X, observed, n_components=1, estimator=estimator)
    codes = LatentTrait(n_components=1).transform(state.params, pack_block(X, observed), RNG)
    second_moment = (codes["mean"] ** 2 + codes["variance"]).mean()
    assert second_moment**0.5 == pytest.approx(1, abs=0.01)
    ratio = np.abs(state.params.weights[:, 0]) / (slopes * x.std())
    assert np.median(ratio) == pytest.approx(1, abs=0.03)
    assert state.iteration <= 40


def test_own_nodes_keep_slopes_equal() -> None:
    """Their fit is that of a grid, which still resolves the posteriors of so many items."""
    rng = np.random.default_rng(1)
    offsets = rng.standard_normal(120)
    p = expit(rng.standard_normal((400, 1)) + offsets)
    X = (rng.random(p.shape) < p).astype(np.uint8)
    settings: dict[str, Any] = {"equal_slopes": "yes", "errors": "none", "tol": 1e-9}
    own, on_grid = (fitted(X, n_components=1, nodes=n, **settings) for n in (None, 200))
    assert "node_spacing" in own.diagnostics
    assert np.ptp(own.params.weights) < 1e-12
    np.testing.assert_allclose(own.params.weights, on_grid.params.weights, rtol=1e-5)
    np.testing.assert_allclose(own.params.offsets, on_grid.params.offsets, atol=1e-4)


def test_stages_of_own_nodes_can_be_stored_in_a_checkpoint() -> None:
    numbers = CENTRED_NODES_PER_AXIS[1]
    nodes = NodeGrid(21, 1).make_working_state()
    own = {"has_own_nodes": np.array(1), "own_nodes": np.array(numbers[0])}
    state = FitState(make_params(np.ones((30, 1)), np.zeros(30)), working=nodes | own)
    for stage in range(1, len(numbers)):
        finer = begin_finer_stage(state, Sums(9, 9.0, -90.0 / 3**stage, {}), (), False)
        assert finer is not None
        state = finer
        assert int(state.working["own_nodes"]) == numbers[stage]
        assert all(np.isfinite(values).all() for values in state.working.values())


@pytest.mark.matrix
@pytest.mark.parametrize(("q", "has_missing"), [(1, False), (2, False), (1, True), (2, True)])
def test_the_objective_is_exact_for_narrow_posteriors(q: int, has_missing: bool) -> None:
    rng = np.random.default_rng(q)
    weights, offsets = rng.standard_normal((600, q)), rng.standard_normal(600)
    p = expit(rng.standard_normal((200, q)) @ weights.T + offsets)
    X = (rng.random(p.shape) < p).astype(np.uint8)
    observed = (rng.random(p.shape) < 0.9).astype(np.uint8) if has_missing else None
    settings: dict[str, Any] = {"constant_features": "keep", "errors": "none"}
    state = fitted(X, observed, n_components=q, **settings)
    is_centred = has_missing and q == 2  # one trait has enough equally spaced nodes
    assert ("nodes_are_centred" in state.diagnostics) == is_centred
    assert not any("narrower" in warning.text for warning in state.warnings)
    block = pack_block(X, observed)
    exact = LatentTrait(n_components=q).log_likelihood(state.params, block, RNG)
    within = 1e-4 if is_centred else 1e-6
    assert state.history[-1] == pytest.approx(exact.nats.mean(), abs=within)


@pytest.mark.parametrize(
    ("name", "settings", "published", "within"),
    [
        ("lsat6", {"n_components": 1}, -2466.65, 0.01),
        ("lsat6", {"n_components": 1, "equal_slopes": "yes"}, -2466.94, 0.01),
        ("wirs", {"n_components": 2}, -3340.9, 1.5),
        ("verbal_aggression", {"n_components": 1}, -4016.43, 0.05),
    ],
)
def test_quadrature_reaches_published_likelihoods(
    name: str, settings: dict[str, Any], published: float, within: float
) -> None:
    X, _ = shared_bits(name)
    state = fitted(X, estimator="quadrature", tol=1e-8, **settings)
    assert state.history[-1] * len(X) == pytest.approx(published, abs=within)
    assert np.diff(state.history).min() > -1e-9


def test_the_default_tolerance_finds_the_slopes_of_another_program() -> None:
    """Slopes and intercepts by R's mirt with TOL=1e-8; this maximum is flat."""
    X, _ = shared_bits("lsat6")
    found = fitted(X, n_components=1, estimator="quadrature").params
    slopes, offsets = np.array(LSAT6).T
    np.testing.assert_allclose(found.weights[:, 0], slopes, atol=5e-4)
    np.testing.assert_allclose(found.offsets, offsets, atol=5e-4)


@pytest.mark.matrix
def test_the_default_has_not_the_bias_of_the_bound() -> None:
    X, weights, _ = two_factors()
    exact = fitted(X, estimator="quadrature", tol=1e-7)
    bound = fitted(X, estimator="variational", tol=1e-7)
    default = fitted(X, tol=1e-7)
    assert default.diagnostics["estimator"] == "quadrature"
    assert default.history[-1] == pytest.approx(exact.history[-1], abs=1e-5)
    assert turned_error(exact.params.weights, weights) < 0.04
    assert turned_error(default.params.weights, weights) < 0.04
    assert turned_error(bound.params.weights, weights) > 0.06


def sparse_factor(n_rows: int) -> Bits:
    """Twelve items of 1 % ones behind one factor of loading 0.7."""
    rng = np.random.default_rng(0)
    factor, noise = rng.standard_normal((n_rows, 1)), rng.standard_normal((n_rows, 12))
    return (0.7 * factor + 0.51**0.5 * noise > 2.3263).astype(np.uint8)


@pytest.mark.matrix
@pytest.mark.parametrize("n_rows", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_sparse_items_keep_their_factor_from_every_seed(n_rows: int) -> None:
    """The bound's optimum is at weights of 0; the default starts there, and leaves."""
    X = sparse_factor(n_rows)
    rows, p = make_memory_rows(DenseData(X), [n_rows // 2] * 2), X.mean(axis=0)
    independent = (p * np.log(p) + (1 - p) * np.log1p(-p)).sum()
    found = [fit_model(LatentTrait(n_components=1), rows, SERIAL, seed) for seed in range(4)]
    reached = [state.history[-1] for state in found]
    assert min(reached) > independent + 0.06
    assert np.ptp(reached) < 1e-4
    norms = [np.linalg.norm(state.params.weights) for state in found]
    np.testing.assert_allclose(norms, 7.4, rtol=0.1)
    bound = fit_model(LatentTrait(n_components=1, estimator="variational"), rows, SERIAL)
    assert bound.history[-1] == pytest.approx(independent, abs=1e-4)
    assert np.abs(bound.params.weights).max() < 0.02
    assert any("components without weight: 1 of 1" in told.text for told in bound.warnings)
    assert bound.diagnostics["objective_is"] == "lower bound"


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", ["variational", "quadrature", "sampling", "ep"])
def test_the_objective_never_falls(estimator: str) -> None:
    X, *_ = two_factors()
    for acceleration in ("squarem", "none"):
        state = fitted(X[:3000], estimator=estimator, acceleration=acceleration, max_iter=60)
        fall = {"variational": 1e-3, "ep": 1e-5}.get(estimator, 1e-9)
        assert np.diff(state.history).min() > -fall


@pytest.mark.matrix
def test_acceleration_needs_fewer_passes() -> None:
    X, *_ = two_factors()
    settings: dict[str, Any] = {"estimator": "quadrature", "nodes": 21, "tol": 1e-8}
    fast, slow = (fitted(X, acceleration=a, **settings) for a in ("squarem", "none"))
    nearly_best = max(fast.history[-1], slow.history[-1]) - 1e-7
    passes = [int(np.argmax(np.array(fit.history) > nearly_best)) for fit in (fast, slow)]
    assert passes[0] < 0.7 * passes[1]
    assert fast.history[-1] >= slow.history[-1] - 1e-6


@pytest.mark.matrix
def test_validation_finds_the_number_of_traits() -> None:
    X, *_ = two_factors()
    state = fitted(X, n_components=None, estimator="quadrature", max_iter=15)
    assert state.diagnostics["n_components"] == 2
    assert not any("tries more" in notice.text for notice in state.warnings)
    scores = state.diagnostics["held_out_scores"]
    assert len(scores) == 3
    assert max(scores) == scores[1]
    assert state.working["held_out"] == 0


def four_factors() -> Bits:
    """Each of four independent factors is behind four of the items."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((3000, 4)), 4, axis=1)
    return (rng.random(x.shape) < expit(2.5 * x - 1)).astype(np.uint8)


@pytest.mark.matrix
def test_more_than_three_traits_are_found_and_the_limit_of_quadrature_is_said() -> None:
    X, settings = four_factors(), {"n_components": None, "nodes": 7, "tol": 1e-5}
    found = fitted(X, **settings)
    assert found.diagnostics["n_components"] == 4
    assert found.diagnostics["estimator"] == "ep"
    assert turned_error(found.params.weights, 2.5 * np.repeat(np.eye(4), 4, axis=0)) < 0.4
    limited = fitted(X, estimator="quadrature", **settings)
    assert limited.diagnostics["n_components"] == 3
    assert any("the maximum for quadrature" in notice.text for notice in limited.warnings)


def test_features_without_weight_are_named() -> None:
    X = np.column_stack([four_factors()[:, :4], np.arange(3000) % 2]).astype(np.uint8)
    pairs = np.concatenate([X, X ^ np.array([0, 0, 0, 0, 1], np.uint8)])
    told = fitted(pairs, n_components=1).warnings
    assert [notice.features for notice in told if "without weight" in notice.text] == [(4,)]


def histories(X: Bits, **settings: Any) -> tuple[FitState, list[list[float]]]:
    """The end, and the history of every stage."""
    model, rows = LatentTrait(**settings), make_memory_rows(DenseData(X))
    stages: list[list[float]] = [[]]

    def seen(state: FitState) -> None:
        if len(state.history) < len(stages[-1]):
            stages.append([])
        stages[-1] = list(state.history)

    return fit_model(model, rows, SERIAL, checkpoint=seen), stages


@pytest.mark.matrix
@pytest.mark.parametrize(
    "settings", [{"n_components": 3}, {"n_components": None, "estimator": "quadrature"}]
)
def test_every_stage_has_a_history_of_its_own_that_never_falls(settings: dict[str, Any]) -> None:
    X, *_ = two_factors()
    _, stages = histories(X[:3000], **settings)
    filled = [stage for stage in stages if stage]
    assert len(filled) >= 2
    assert all(np.diff(stage).min(initial=0) > -1e-3 for stage in filled)


@pytest.mark.matrix
@pytest.mark.parametrize("max_iter", [1, 2, 5])
def test_a_choice_of_components_that_is_cut_short_still_ends_with_all_rows(max_iter: int) -> None:
    X, *_ = two_factors()
    state, _ = histories(X[:2000], n_components=None, estimator="quadrature", max_iter=max_iter)
    assert state.working["held_out"] == 0
    assert state.diagnostics["n_components"] == state.params.weights.shape[1]
    assert len(state.diagnostics["held_out_scores"]) >= 2


def test_likelihood_bound_and_posterior_agree_with_integration() -> None:
    X, *_ = two_factors()
    model, state = LatentTrait(estimator="quadrature"), fitted(X[:3000], estimator="quadrature")
    rows = X[:50]
    params, block = state.params, pack_block(rows)
    nodes = gauss_hermite(40, 2)
    p = expit(nodes.points @ params.weights.T + params.offsets)
    joint = np.exp(
        rows @ np.log(p).T + (1 - rows.astype(float)) @ np.log(1 - p).T + nodes.log_weights
    )
    evidence = joint.sum(axis=1)
    found = model.log_likelihood(params, block, RNG).nats
    np.testing.assert_allclose(found, np.log(evidence), atol=1e-3)
    assert (model.lower_bound(params, block, RNG) <= found + 1e-9).all()
    mean = joint @ nodes.points / evidence[:, None]
    codes = model.transform(params, block, RNG)
    np.testing.assert_allclose(codes["mean"], mean, atol=5e-3)
    np.testing.assert_allclose(codes["variance"], np.einsum("nkk->nk", codes["covariance"]))


def test_nodes_too_far_apart_are_warned_of_with_their_remedy() -> None:
    """The objective of a fit is held against integration around each row's posterior."""
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.5, 2.5, (100, 1))
    X = (rng.random((500, 100)) < expit(rng.standard_normal((500, 1)) @ weights.T)).astype(np.uint8)
    found: dict[int, tuple[float, list[str]]] = {}
    for nodes in (15, 200):
        state = fitted(X, n_components=1, estimator="quadrature", nodes=nodes)
        exact = LatentTrait().log_likelihood(state.params, pack_block(X), RNG).nats.mean()
        warned = [notice.text for notice in state.warnings if "nodes per axis" in notice.text]
        found[nodes] = abs(state.history[-1] - exact), warned
    assert found[15][0] > 0.01
    assert found[15][1][0].startswith(
        "the posteriors of many rows are narrower than the distance of 15"
    )
    assert found[200][0] < 1e-3
    assert found[200][1] == []
    enough = int(found[15][1][0].rpartition("=")[2].rstrip("}"))
    assert 50 < enough < 200


@lru_cache
def survey(n_rows: int = 2000) -> Bits:
    """35 items of slopes up to 2, and one of 8.5."""
    rng = np.random.default_rng(4)
    weights, offsets = rng.uniform(0.5, 2, (35, 1)), rng.uniform(-1.5, 1.5, 35)
    weights[3] = 8.5
    x = rng.standard_normal((n_rows, 1))
    return (rng.random((n_rows, 35)) < expit(x @ weights.T + offsets)).astype(np.uint8)


def test_a_single_steep_item_gets_the_nodes_that_it_needs() -> None:
    settings: dict[str, Any] = {"n_components": 1, "estimator": "quadrature"}
    chosen, usual, most = (fitted(survey(), nodes=n, **settings) for n in (None, 41, 300))
    slopes = [abs(state.params.weights[3, 0]) for state in (chosen, usual, most)]
    assert abs(slopes[0] - slopes[2]) < 0.01 * slopes[2]
    assert abs(slopes[1] - slopes[2]) > 0.03 * slopes[2]
    assert chosen.diagnostics["node_spacing"] < 0.2
    assert chosen.warnings == most.warnings == ()
    (told,) = usual.warnings
    assert told.features == (3,)
    enough = int(told.text.split("nodes=")[1].partition("}")[0])
    assert 60 < enough < 200


def test_narrow_posteriors_get_the_nodes_that_they_need() -> None:
    X = survey()[:, np.arange(35) != 3]
    chosen, usual, most = (
        fitted(X, n_components=1, estimator="quadrature", nodes=n) for n in (None, 41, 300)
    )
    off = [abs(state.params.weights - most.params.weights).max() for state in (chosen, usual)]
    assert off[0] < 5e-4 < 1e-3 < off[1]
    assert chosen.diagnostics["node_spacing"] < 0.5


def test_items_of_usual_slopes_have_nodes_as_far_apart_as_usual() -> None:
    X, *_ = two_factors()
    observed = np.ones(X.shape, np.uint8)
    observed[0, 0] = 0
    state = fitted(X[:2000], observed[:2000], estimator="quadrature")
    assert 0.2 < state.diagnostics["node_spacing"] < 0.6
    assert state.warnings == ()


@pytest.mark.parametrize("nodes", [None, 80, 151])
def test_divergence_is_told_whatever_the_nodes(nodes: int | None) -> None:
    X, arrays = shared_bits("housevotes84")
    observed = np.unpackbits(arrays["M"], axis=1)[:, : X.shape[1]]
    state = fitted(X, observed, n_components=1, estimator="quadrature", nodes=nodes)
    (told,) = (notice for notice in state.warnings if 4 in notice.features)
    assert "the data separate these items" in told.text
    assert "prior_precision=1" in told.text


@pytest.mark.parametrize(("precision", "advised"), [(0.0, "1"), (0.02, "1"), (1.0, "10")])
def test_a_prior_that_is_advised_is_stronger_than_the_one_there_is(
    precision: float, advised: str
) -> None:
    X, *_ = two_factors()
    steep = np.repeat(X[:1000, :1], 4, axis=1)
    state = fitted(steep, n_components=1, prior_precision=precision, nodes=2, max_iter=20)
    (told,) = state.warnings[:1]
    assert f"{{prior_precision={advised}}}" in told.text


def test_a_warm_start_takes_up_the_nodes_that_its_items_need() -> None:
    model, rows = (
        LatentTrait(n_components=1, estimator="quadrature"),
        make_memory_rows(DenseData(survey())),
    )
    done = fit_model(model, rows, SERIAL)
    begun = model.warm_start(
        initialize_fit(model, collect_first_statistics(model, rows, SERIAL, 0), 0), done.params
    )
    again = fit_model(model, rows, SERIAL, state=begun)
    assert again.iteration < done.iteration / 3
    spacing = done.diagnostics["node_spacing"]
    assert again.diagnostics["node_spacing"] == pytest.approx(spacing, rel=1e-2)
    np.testing.assert_allclose(again.params.weights, done.params.weights, rtol=1e-2)


def test_missing_values_are_absent() -> None:
    X, weights, _ = two_factors()
    rng = np.random.default_rng(3)
    observed = (rng.random(X.shape) < 0.7).astype(np.uint8)
    observed[:5] = 0
    state = fitted(X, observed, estimator="quadrature", tol=1e-7)
    assert turned_error(state.params.weights, weights) < 0.06
    assert state.diagnostics["rows_without_values"] == 5
    assert any("without any value: 5" in notice.text for notice in state.warnings)
    codes = LatentTrait().transform(state.params, pack_block(X[:5], observed[:5]), RNG)
    np.testing.assert_allclose(codes["mean"], 0, atol=1e-12)
    np.testing.assert_allclose(codes["variance"], 1, atol=1e-6)


def test_items_that_separate_are_named_and_a_prior_keeps_them_finite() -> None:
    X, *_ = two_factors()
    X = X[:600].copy()
    X[:, 1] = X[:, 0]
    settings: dict[str, Any] = {"n_components": 1, "estimator": "quadrature", "max_iter": 200}
    loose = fitted(X, **settings)
    named = [notice for notice in loose.warnings if "diverge" in notice.text]
    assert named
    assert set(named[0].features) & {0, 1}
    tight = fitted(X, prior_precision=1.0, **settings)
    assert not any("diverge" in notice.text for notice in tight.warnings)
    assert np.abs(tight.params.weights).max() < 20


def test_constant_features_are_refused_or_pinned() -> None:
    X, *_ = two_factors()
    X = X[:500].copy()
    X[:, 3] = 1
    with pytest.raises(FitError, match="features are constant: 3"):
        fitted(X)
    state = fitted(X, constant_features="keep", estimator="quadrature")
    assert (state.params.weights[3] == 0).all()
    assert expit(state.params.offsets[3]) == pytest.approx(500.5 / 501)


def test_a_fit_that_goes_on_reaches_the_same_bytes() -> None:
    X, *_ = two_factors()
    rows, model = make_memory_rows(DenseData(X[:2000])), LatentTrait(max_iter=6, tol=1e-12, nodes=9)
    states: list[FitState] = []
    first = initialize_fit(model, collect_first_statistics(model, rows, SERIAL, 0), 0)
    whole = fit_model(model, rows, SERIAL, state=first, checkpoint=states.append)
    for state in states[:-1]:
        again = fit_model(model, rows, SERIAL, state=state)
        assert again.history == whole.history
        assert again.params.weights.tobytes() == whole.params.weights.tobytes()
    assert any(
        "stopped before converging, at {max_iter=6}; raise it" in notice.text
        for notice in whole.warnings
    )


@pytest.mark.parametrize("estimator", ["quadrature", "sampling"])
def test_nodes_of_a_fit_give_its_objective_again(estimator: str) -> None:
    X, *_ = two_factors()
    settings: dict[str, Any] = {"estimator": estimator, "nodes": 9, "tol": 1e-9}
    state = fitted(X[:500], **settings)
    again = collect_pass_statistics(
        LatentTrait(**settings), state, make_memory_rows(DenseData(X[:500])), SERIAL, 0
    )
    assert again.objective / 500 == pytest.approx(state.history[-1], abs=1e-7)


def test_weights_for_reading_are_rotations() -> None:
    X, *_ = two_factors()
    for rotation in ("principal", "varimax", "promax"):
        params = fitted(X[:2000], rotation=rotation).params
        explained = params.rotated @ params.component_correlation @ params.rotated.T
        np.testing.assert_allclose(explained, params.weights @ params.weights.T, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"n_components": 4, "estimator": "quadrature"},
            "components is 4, but quadrature takes at most 3",
        ),
        ({"equal_slopes": "yes"}, "equal_slopes=True cannot be combined with components=2"),
        (
            {"equal_slopes": "yes", "n_components": 1, "estimator": "ep"},
            'needs .* estimator="auto"',
        ),
        ({"nodes": 1}, "nodes must be at least 2, but is 1"),
        ({"prior_precision": -1.0}, "prior_precision must be at least 0, but is -1.0"),
        ({"max_iter": 0}, "max_iter must be at least 1, but is 0"),
        ({"tol": 0.0}, "tol must be above 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        LatentTrait(**settings)


def test_as_many_traits_as_features_are_refused() -> None:
    X, *_ = two_factors()
    with pytest.raises(
        FitError,
        match=r"components is 12, but the dataset has only 12 features\. Choose at most 11",
    ):
        fitted(X[:500], n_components=12)


@pytest.mark.matrix
def test_more_than_three_traits_have_an_estimate_with_its_error() -> None:
    """Traits with hardly any weight change nothing; weights of 0 would be a bifactor pattern."""
    X, *_ = two_factors()
    block = pack_block(X[:300], first_row=7)
    params = fitted(X[:2000], estimator="quadrature").params
    tiny = np.full((len(params.weights), 3), 1e-7)
    wider = params.with_items(weights=np.column_stack([params.weights, tiny]))
    model, exact = LatentTrait(), LatentTrait().log_likelihood(params, block, RNG)
    found = model.log_likelihood(wider, block, RNG)
    assert (exact.standard_error == 0).all()
    assert np.max(exact.integration_error) < 1e-4
    assert 0 < found.standard_error.min() <= found.standard_error.max() < 0.05
    scaled = (found.nats - exact.nats) / found.standard_error
    assert 0.8 < scaled.std() < 1.2
    assert abs(scaled.mean()) < 0.25
    assert (model.lower_bound(wider, block, RNG) < found.nats + 0.1).all()
    codes, truth = (model.transform(p, block, RNG) for p in (wider, params))
    assert codes["mean"].shape == (300, 5)
    np.testing.assert_allclose(codes["mean"][:, :2], truth["mean"], atol=0.02)
    np.testing.assert_allclose(codes["variance"][:, :2], truth["variance"], rtol=0.05)
    again = model.log_likelihood(wider, pack_block(X[100:300], first_row=107), RNG)
    assert again.nats.tobytes() == found.nats[100:].tobytes()


@pytest.mark.matrix
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rows_that_are_fewer_than_items_can_tell_apart_end_with_a_warning() -> None:
    """Nearly all items separate ten rows, so that their slopes diverge."""
    rng = np.random.default_rng(0)
    x = 3 * rng.normal(size=(10, 1))
    X = (rng.random((10, 300)) < expit(x * rng.uniform(1, 4, 300) + rng.normal(size=300))).astype(
        np.uint8
    )
    state = fitted(X[:, X.any(axis=0) & ~X.all(axis=0)], n_components=1)
    assert np.isfinite(state.params.free_parameters).all()
    assert any("separate these items" in warning.text for warning in state.warnings)
    assert "too few" in state.diagnostics["fit_statistics"]["m2_missing"]
