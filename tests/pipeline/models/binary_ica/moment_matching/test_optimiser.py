"""Where the optimiser ends: at planted solutions, by its stopping rule, the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import FitError
from pipeline.executors.threads import ThreadsExecutor
from pipeline.models.binary_ica.moment_matching import optimiser
from pipeline.models.binary_ica.moment_matching.objective import (
    MatchSolution,
    SegmentMoments,
    likelihood_and_gradient,
)
from pipeline.models.binary_ica.moment_matching.optimiser import (
    Optimum,
    draw_start,
    maximise,
    maximise_from_seeds,
    maximise_variances,
)
from pipeline.numerics.metrics import mean_cosine_similarity
from tests.pipeline.models.binary_ica.moment_matching import correlations_of, moments_of, planted


@pytest.mark.parametrize("shape", [(6, 2, 8), (5, 3, 12), (4, 4, 16), (6, 1, 3)])
def test_planted_solutions_are_recovered(shape: tuple[int, int, int]) -> None:
    truth = planted(*shape)
    moments = moments_of(truth)
    best, *_ = maximise_from_seeds(moments, shape[1], range(2), map, tol=1e-10)
    assert best.converged
    assert mean_cosine_similarity(best.solution.mixing, truth.mixing) > 1 - 1e-4
    assert best.objective == pytest.approx(likelihood_and_gradient(moments, truth)[0], abs=1e-6)
    np.testing.assert_allclose(correlations_of(best.solution), moments.correlation, atol=3e-3)


def test_the_default_rule_stops_near_the_optimum() -> None:
    moments = moments_of(planted(6, 2, 8))
    loose, strict = (maximise(moments, draw_start(moments, 2, 0), tol=tol) for tol in (1e-7, 1e-12))
    assert loose.converged
    assert loose.iterations < strict.iterations
    assert strict.objective - loose.objective < 1e-5
    assert mean_cosine_similarity(loose.solution.mixing, strict.solution.mixing) > 1 - 1e-3


def test_running_out_of_iterations_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = moments_of(planted(6, 2, 8))
    monkeypatch.setattr(optimiser, "_MAX_ITERATIONS", 7)
    cut = maximise(moments, draw_start(moments, 2, 0))
    assert (cut.iterations, cut.converged) == (7, False)


def test_the_objective_is_that_of_the_solution() -> None:
    moments = moments_of(planted(6, 2, 8), 0.2)
    found = maximise(moments, draw_start(moments, 2, 0))
    assert found.objective == pytest.approx(
        likelihood_and_gradient(moments, found.solution)[0], rel=1e-12
    )


def test_a_better_optimum_comes_first_and_a_diverged_start_is_left_out() -> None:
    nothing = planted(2, 1, 1)

    def pretend(function: Any, items: Iterable[Any]) -> Iterator[Optimum]:
        ends = zip(items, (1.0, np.nan, 3.0, -np.inf, 2.0), strict=True)
        return (Optimum(nothing, value, 1, True) for _, value in ends)

    found = maximise_from_seeds(moments_of(nothing), 1, range(5), pretend)
    assert [optimum.objective for optimum in found] == [3.0, 2.0, 1.0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("part", "bad"),
    [("mixing", np.nan), ("mixing", np.inf), ("log_variances", np.nan), ("log_precisions", np.nan)],
)
def test_a_start_that_is_not_finite_is_dropped(
    part: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(moments: SegmentMoments, n_components: int, seed: int) -> MatchSolution:
        start = draw_start(moments, n_components, seed)
        if seed % 2:
            getattr(start, part)[:] = bad
        return start

    moments = moments_of(planted(6, 2, 8))
    monkeypatch.setattr(optimiser, "draw_start", spoilt)
    found = maximise_from_seeds(moments, 2, range(4), map)
    assert len(found) == 2
    for optimum in found:
        assert np.isfinite(optimum.objective)
        assert np.isfinite(optimum.solution.to_vector()).all()
    with pytest.raises(FitError, match=r"Every start of the search diverged\. Use a smaller reg"):
        maximise_from_seeds(moments, 2, [1, 3], map)


def test_starts_have_the_same_bytes_wherever_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = moments_of(planted(6, 3, 8), 0.1)
    here = maximise_from_seeds(moments, 3, range(3), map)
    there = maximise_from_seeds(moments, 3, range(3), ThreadsExecutor(3).map)
    monkeypatch.setattr(optimiser, "_MAX_BYTES_TO_SEND", 0)

    def unused(function: Any, items: Iterable[Any]) -> Iterator[Any]:
        raise AssertionError("large moments are not sent")

    large = maximise_from_seeds(moments, 3, range(3), unused)
    for other in (there, large):
        for a, b in zip(here, other, strict=True):
            assert a.solution.to_vector().tobytes() == b.solution.to_vector().tobytes()
            assert a[1:] == b[1:]


def test_a_start_hangs_on_its_seed_alone() -> None:
    moments = moments_of(planted(6, 3, 8))
    a, b, other = (draw_start(moments, 3, seed).to_vector() for seed in (4, 4, 5))
    assert a.tobytes() == b.tobytes()
    assert np.abs(a - other).max() > 0.1


@pytest.mark.parametrize("n_components", [1, 5])
def test_correlations_of_one_stay_within_the_bounds(n_components: int) -> None:
    """The likelihood of features that are all the same has no maximum."""
    moments = replace(moments_of(planted(5, 1, 4)), correlation=np.ones((4, 5, 5)))
    found = maximise(moments, draw_start(moments, n_components, 0))
    assert np.isfinite(found.objective)
    assert np.isfinite(found.solution.to_vector()).all()
    assert np.isfinite(likelihood_and_gradient(moments, found.solution)[1].to_vector()).all()


# --- variances alone -----------------------------------------------------------------------------


def log_posterior(moments: SegmentMoments, n_rows: float, at: MatchSolution) -> float:
    """The likelihood, and a normal prior of the logarithms about their mean over segments."""
    prior = -0.5 * len(at.log_variances) * at.log_variances.var(axis=0).sum()
    return likelihood_and_gradient(moments, at)[0] + prior / n_rows


def test_variances_are_those_of_the_largest_posterior_and_the_mixing_stays() -> None:
    truth = planted(5, 2, 6)
    moments, n_rows = moments_of(truth, 0.4, 0.4), 30.0
    found = maximise_variances(moments, n_rows, truth)
    assert found.converged
    assert found.solution.mixing.tobytes() == truth.mixing.tobytes()
    highest = log_posterior(moments, n_rows, found.solution)
    assert found.objective == pytest.approx(highest, rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(100):
        step = [0.03 * rng.standard_normal(part.shape) for part in truth]
        _, variances, precisions = (a + b for a, b in zip(found.solution, step, strict=True))
        assert (
            log_posterior(moments, n_rows, MatchSolution(truth.mixing, variances, precisions))
            < highest
        )


def test_the_prior_fades_with_the_rows() -> None:
    truth = planted(5, 2, 6)
    start = truth._replace(log_variances=np.zeros_like(truth.log_variances))
    spreads = [
        maximise_variances(moments_of(truth), n_rows, start).solution.log_variances.std(axis=0)
        for n_rows in (1e-3, 1e1, 1e9)
    ]
    assert (spreads[0] < 0.01).all()
    assert (spreads[0] < spreads[1]).all()
    assert (spreads[1] < spreads[2]).all()
    np.testing.assert_allclose(spreads[2], truth.log_variances.std(axis=0), rtol=0.02)
