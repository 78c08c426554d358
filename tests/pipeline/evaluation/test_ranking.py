"""Ranks, groups and differences of rows, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pipeline.errors import FitError
from pipeline.evaluation.ranking import MAX_RANKED_ROWS, compare_scores, rank_rows


def test_the_expected_rank_is_a_sum_of_pairwise_probabilities() -> None:
    rng = np.random.default_rng(3)
    scores, variances = rng.standard_normal(40), rng.uniform(0.01, 0.5, 40)
    gaps = scores[None] - scores[:, None]
    is_higher = norm.cdf(gaps / np.sqrt(variances[None] + variances[:, None]))
    np.fill_diagonal(is_higher, 0)
    expected = 1 + is_higher.sum(axis=1)
    ranking = rank_rows(scores, variances)
    assert ranking.order.tolist() == np.argsort(-scores).tolist()
    # A rank has a standard deviation below 6 here, and there are 4,000 draws.
    np.testing.assert_allclose(ranking.rank, expected[ranking.order], atol=4 * 6 / 4000**0.5)
    assert (ranking.rank_low <= ranking.rank).all()
    assert (ranking.rank <= ranking.rank_high).all()


def test_the_interval_of_two_rows_follows_the_probability_that_one_is_higher() -> None:
    for gap, high in ((1.0, 2), (3.5, 1)):  # one is higher with probability 0.76 and 0.993
        ranking = rank_rows(np.array([0.0, gap]), np.ones(2))
        assert ranking.rank_low.tolist() == [1, 3 - high]
        assert ranking.rank_high.tolist() == [high, 2]


def test_equal_rows_share_a_position_and_rows_without_error_have_one_rank() -> None:
    ranking = rank_rows(np.array([2.0, 5.0, 2.0, 1.0]), np.zeros(4))
    assert ranking.order.tolist() == [1, 0, 2, 3]
    assert ranking.position.tolist() == [1, 2, 2, 4]
    assert ranking.rank_low.tolist() == ranking.rank_high.tolist() == [1, 2, 3, 4]
    assert ranking.group.tolist() == [1, 2, 2, 3]


def test_no_two_rows_of_a_group_differ_also_if_errors_are_unequal() -> None:
    # The third row differs from the second one, but not from the uncertain first one.
    scores, errors = np.array([1.0, 0.9, 0.0, -0.05]), np.array([3.0, 0.1, 0.1, 0.1])
    ranking = rank_rows(scores, errors**2)
    assert ranking.group.tolist() == [1, 1, 2, 2]
    rng = np.random.default_rng(0)
    scores, variances = rng.standard_normal(200), rng.uniform(0.001, 0.2, 200)
    ranking = rank_rows(scores, variances)
    for group in np.unique(ranking.group):
        own = ranking.order[ranking.group == group]
        for i in own:
            for j in own:
                p = compare_scores((scores[i], scores[j]), (variances[i], variances[j])).p
                assert p >= 0.05


def test_draws_belong_to_rows_and_seeds() -> None:
    scores, variances = np.linspace(0, 1, 30), np.full(30, 0.2)
    first, again, other = (rank_rows(scores, variances, seed) for seed in (0, 0, 1))
    assert first.rank.tobytes() == again.rank.tobytes()
    assert first.rank.tobytes() != other.rank.tobytes()


def test_a_contrast_is_a_z_test() -> None:
    contrast = compare_scores((1.0, 0.2), (0.09, 0.07))
    assert contrast.error == pytest.approx(0.4)
    assert contrast.p == pytest.approx(2 * norm.sf(2.0))
    assert compare_scores((1.0, 1.0), (0.0, 0.0)).p == 1
    assert compare_scores((1.0, 2.0), (0.0, 0.0)).p == 0


def test_a_ranking_of_too_many_rows_is_refused() -> None:
    with pytest.raises(FitError, match="2 rows have no finite score, so they have no rank"):
        rank_rows(np.array([1.0, np.nan, 2.0]), np.array([1.0, 1.0, np.nan]))
    n = MAX_RANKED_ROWS + 1
    with pytest.raises(FitError, match="There are 100,001 rows, but a ranking has at most 100,000"):
        rank_rows(np.zeros(n), np.zeros(n))
