"""Positions over time, against a Gibbs sampler and brute-force integrals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from flows.evaluating.folds import check_folds
from flows.report.figures.paths import make_change_table
from flows.report.page import build_report_from_artifact
from pipeline.errors import FitError
from tests.reference.make_random_walk import draw_votes

REFERENCE = Path(__file__).parents[3] / "reference/random_walk.csv"
COLUMNS = {"row_id": "member", "time": "term"}


def fit(votes: np.ndarray, member: Any, term: Any, **settings: Any) -> tuple[lb.Fitted, Any]:
    data = lb.from_numpy(votes, keep={"member": np.asarray(member), "term": np.asarray(term)})
    fitted = lb.fit(
        data, "latent-trait", dynamics="walk", executor="serial", **{**COLUMNS, **settings}
    )
    return fitted, data


@pytest.fixture(scope="module")
def court() -> tuple[lb.Fitted, Any]:
    members, terms, votes, _ = draw_votes()
    return fit(votes, members, terms, innovation=0.1)


def test_positions_equal_those_of_the_sampler(court: tuple[lb.Fitted, Any]) -> None:
    fitted, data = court
    table = np.loadtxt(REFERENCE, delimiter=",", skiprows=1)
    terms = table[:, 1]
    codes = lb.transform(fitted, data)
    position = codes["mean"][:, 0]
    sign = np.sign(position @ table[:, 2])
    for term in np.unique(terms):
        own = terms == term
        assert np.corrcoef(sign * position[own], table[own, 2])[0, 1] > 0.97
    ratio = np.sqrt(codes["variance"][:, 0]) / table[:, 3]
    assert 0.7 < np.median(ratio) < 1.2  # errors are given the items
    np.testing.assert_allclose(position, fitted.params.position, atol=0.02)


def test_the_objective_is_nearly_the_log_likelihood() -> None:
    """Against the integral over the positions of one member in two terms, on a grid."""
    rng = np.random.default_rng(2)
    member, term = np.repeat(np.arange(30), 2), np.tile([0, 3], 30)
    x = rng.normal(size=30)[member] + np.where(term == 3, rng.normal(0, 0.7, 60), 0.0)
    votes = (rng.random((60, 10)) < 1 / (1 + np.exp(-1.5 * x[:, None]))) * 1.0
    votes[term == 0, 5:], votes[term == 3, :5] = np.nan, np.nan
    fitted, _ = fit(votes, member, term, tol=1e-6)
    params = fitted.params
    grid = np.linspace(-9, 9, 361)
    P = 1 / (1 + np.exp(-(grid[:, None] * params.weights[:, 0] + params.offsets)))
    log_P = np.log(np.where(np.nan_to_num(votes)[:, None] == 1, P, 1 - P))
    L = np.exp((log_P * ~np.isnan(votes)[:, None]).sum(axis=2))
    variance = 3 * float(params.innovation_variance)
    step = np.exp(-0.5 * (grid[:, None] - grid) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
    first, width = np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), grid[1] - grid[0]
    nats = np.log(np.einsum("mi,i,ij,mj->m", L[::2], first, step, L[1::2]) * width**2).sum()
    assert 60 * fitted.objective - float(params.log_prior) == pytest.approx(nats, abs=0.2)


def simulate(n_members: int, n_periods: int, n_items: int) -> tuple[Any, ...]:
    """Draw votes of members that come and go; some lack a period."""
    rng = np.random.default_rng(5)
    w, b = rng.normal(0, 1.5, (n_periods, n_items)), rng.normal(0, 1, (n_periods, n_items))
    rows, members, times, truth = [], [], [], []
    for member in range(n_members):
        start, x = int(rng.integers(0, n_periods - 3)) * (member % 2), rng.normal()
        for k in range(start, min(n_periods, start + 6)):
            if k > start:
                x += np.sqrt(0.2) * rng.normal()
            if (member + k) % 7 == 0 and k > start:
                continue
            row = np.full((n_periods, n_items), np.nan)
            row[k] = rng.random(n_items) < 1 / (1 + np.exp(-(w[k] * x + b[k])))
            rows.append(row.ravel())
            members.append(f"m{member}")
            times.append(k)
            truth.append(x)
    return np.array(rows), members, times, np.array(truth)


def test_simulated_positions_are_covered() -> None:
    votes, members, times, truth = simulate(150, 8, 20)
    fitted, data = fit(votes, members, times)
    codes = lb.transform(fitted, data)
    position, error = codes["mean"][:, 0], np.sqrt(codes["variance"][:, 0])
    slope, shift = np.polyfit(position, truth, 1)
    moved = slope * position + shift
    assert np.corrcoef(position, truth)[0, 1] ** 2 > 0.9**2
    assert np.mean(np.abs(moved - truth) < 1.96 * abs(slope) * error) > 0.9
    assert slope**2 * fitted.params.innovation_variance == pytest.approx(0.2, rel=0.3)


def test_rows_in_any_order_have_the_same_positions() -> None:
    votes, members, times, _ = simulate(30, 5, 12)
    votes = votes[:, np.nanstd(votes, axis=0) > 0]
    order = np.random.default_rng(0).permutation(len(votes))
    fitted, data = fit(votes, members, times)
    names, when = np.array(members)[order], np.array(times)[order]
    shuffled, own = fit(votes[order], names, when)
    expected = lb.transform(fitted, data)["mean"][order]
    found = lb.transform(shuffled, own)["mean"]
    sign = np.sign((expected * found).sum())
    np.testing.assert_allclose(sign * found, expected, atol=0.02)
    changed = lb.from_numpy(votes, keep={"member": np.array(members), "term": np.array(times) + 9})
    with pytest.raises(FitError, match=r"row 1: the fit has no position of this member at time"):
        lb.transform(fitted, changed)


def test_the_unit_of_time_does_not_matter() -> None:
    members, terms, votes, _ = draw_votes()
    years, _ = fit(votes, members, terms, max_iter=5)
    seconds, _ = fit(votes, members, 3e7 * np.asarray(terms), max_iter=5)
    np.testing.assert_allclose(seconds.params.position, years.params.position, atol=1e-6)
    ratio = years.params.innovation_variance / seconds.params.innovation_variance
    assert ratio == pytest.approx(3e7, rel=1e-6)


def test_untidy_members_have_positions() -> None:
    """One vote, unanimous votes, no vote, a gap, and periods that nobody links."""
    votes, members, times, _ = simulate(30, 4, 15)
    votes = votes[:, np.nanstd(votes, axis=0) > 0]
    n = len(votes)
    extra = np.full((4, votes.shape[1]), np.nan)
    extra[0, 0] = 1
    extra[1, :10] = 1
    votes = np.vstack([votes, extra])
    members, times = [*members, "None", "NA", "empty", "m0"], [*times, 0, 0, 0, 50]
    fitted, data = fit(votes, members, times)
    codes = lb.transform(fitted, data)
    variance = codes["variance"][:, 0]
    assert np.isfinite(codes["mean"]).all()
    assert variance[n + 2] == pytest.approx(1.0)  # the prior
    assert any("rows without any value: 2; their" in text for text in fitted.warnings)
    assert variance[n + 1] < variance[n] < 1.0
    last = max(variance[k] for k in range(n) if members[k] == "m0" and times[k] <= 5)
    assert variance[n + 3] > 40 * float(fitted.params.innovation_variance) > last / 100
    alone = np.where(np.array(times[:n]) < 2, "a", "b").astype(object) + np.array(members[:n])
    unlinked, _ = fit(votes[:n], alone.astype(str), times[:n])
    assert any("fewer than 3 members link these times" in text for text in unlinked.warnings)


def test_few_answers_of_items_are_warned_about() -> None:
    members, terms, votes, _ = draw_votes()
    fitted, _ = fit(votes, members, terms, max_iter=2)
    assert any("items have only 9.0 answers on average" in text for text in fitted.warnings)


def test_items_may_be_constant_or_reversed() -> None:
    votes, members, times, _ = simulate(30, 4, 15)
    votes = np.column_stack([votes, np.where(np.array(times) == 1, 1.0, np.nan)])
    with pytest.raises(FitError, match="These features are constant"):
        fit(votes, members, times)
    fitted, _ = fit(votes, members, times, constant_features="keep")
    assert fitted.params.weights[-1] == 0
    reversed_fit, _ = fit(1 - votes, members, times, constant_features="keep")
    product = fitted.params.weights[:, 0] @ reversed_fit.params.weights[:, 0]
    agreement = fitted.params.position @ reversed_fit.params.position
    assert product * agreement < 0
    assert fitted.params.weights.sum() > 0


def test_a_member_chooses_the_sign() -> None:
    votes, members, times, _ = simulate(30, 4, 15)
    votes = votes[:, np.nanstd(votes, axis=0) > 0]
    for sign in (1, -1):
        fitted, data = fit(votes, members, times, orient=[f"m3={sign:+d}"])
        first = fitted.params.position[fitted.params.member == 3][0]
        assert sign * (first - fitted.params.position.mean()) > 0
        codes = lb.transform(fitted, data)["mean"][:, 0]
        assert np.sign(codes[members.index("m3")] - codes.mean()) == sign


def test_a_fit_is_saved_and_loaded(court: tuple[lb.Fitted, Any], tmp_path: Path) -> None:
    fitted, data = court
    fitted.save(tmp_path / "fit")
    loaded = lb.load(tmp_path / "fit")
    assert type(loaded.model) is type(fitted.model)
    np.testing.assert_array_equal(
        lb.transform(loaded, data)["mean"], lb.transform(fitted, data)["mean"]
    )


def test_the_report_opens_with_the_members_who_moved_most(
    court: tuple[lb.Fitted, Any], tmp_path: Path
) -> None:
    fitted, _ = court
    fitted.save(tmp_path / "fit")
    report = build_report_from_artifact(tmp_path / "fit")
    topic, sentences = next(iter(report.topics.items()))
    params, names = fitted.params, fitted.manifest["periods"]["members"]
    changes = {
        names[k]: own[-1] - own[0]
        for k in range(len(names))
        for own in [params.position[params.member == k]]
    }
    first = max(changes, key=lambda name: abs(changes[name]))
    change = f"{changes[first]:.2f}".replace("-", "−")
    assert topic == "Positions"
    assert sentences[0].startswith(f"{first} moved most: from ")
    assert f"a change of {change} (95 % interval " in sentences[0]
    assert (
        "a position changes by 0.32 (standard deviation; the variance s² is 0.1, as set)"
        in (sentences[-1])
    )
    assert report.figures[0].title == "Positions over time"
    assert not any("Information" in figure.title for figure in report.figures)
    table = make_change_table(report.fitted.artifact)
    assert table is not None
    assert [row[0] for row in table.rows] == sorted(changes, key=lambda n: -abs(changes[n]))[:12]
    members, terms, votes, _ = draw_votes()
    still, _ = fit(votes, members, terms, innovation=0.0, max_iter=1)
    still.save(tmp_path / "still")
    report = build_report_from_artifact(tmp_path / "still")
    assert report.topics["Positions"][-1] == (
        "Positions do not change: their variance s² is 0, as set."
    )
    assert make_change_table(report.fitted.artifact) is None


def test_rows_of_roll_calls_have_the_names_of_members_and_times(
    court: tuple[lb.Fitted, Any],
) -> None:
    members, terms, votes, _ = draw_votes()
    names = np.array([f"Justice {member}" for member in members], object)
    texts = fit(votes, names, terms, innovation=0.1, tol=1e-2)
    for own, (fitted, data) in ((members, court), (names, texts)):
        lines = lb.evaluate(fitted, data, roll_calls=True)["roll_calls"]["by_row"]
        expected = [f"{member}, {term:g}" for member, term in zip(own, terms, strict=True)]
        assert [line["name"] for line in lines] == expected


def test_rows_are_evaluated_by_the_positions_of_their_members(
    court: tuple[lb.Fitted, Any],
) -> None:
    fitted, data = court
    found = lb.evaluate(fitted, data, executor="serial")
    codes = lb.transform(fitted, data, reconstruct="bits")
    members, terms, votes, _ = draw_votes()
    is_wrong = (codes["bits"] != votes) & ~np.isnan(votes)
    assert found["wrong_bits"] == pytest.approx(is_wrong.sum() / (~np.isnan(votes)).sum())
    assert "neighbourhoods" in found
    with pytest.raises(FitError, match="folds cannot be used with positions over time"):
        check_folds(2, None, [fitted.model], len(votes))
    later = lb.from_numpy(votes, keep={"member": members, "term": np.asarray(terms) + 1})
    with pytest.raises(FitError, match="the fit has no position of this member at time"):
        lb.evaluate(fitted, later)


def test_unsupported_combinations_are_refused() -> None:
    members, terms, votes, _ = draw_votes()
    refusals: dict[str, dict[str, Any]] = {
        "has one trait": {"components": 2},
        "cannot be combined with rotation": {"rotation": "varimax"},
        "no parameters by group": {"group": "term"},
        "cannot use covariates": {"covariates": ["term"]},
        "cannot use weights": {"weight": "term"},
        "needs row_id": {"row_id": None},
        "needs the member and the time": {"row_id": None, "time": None},
        "time: member is the column of row ids": {"time": "member"},
        "the sign by a member or a feature": {"anchors": {"0": 1, "1": -1}},
    }
    for text, settings in refusals.items():
        with pytest.raises(FitError, match=text):
            fit(votes, members, terms, **settings)
    data = lb.from_numpy(votes, keep={"member": members, "term": terms})
    with pytest.raises(FitError, match="no positions over time"):
        lb.fit(data, "clipped-pca", **COLUMNS)
    with pytest.raises(FitError, match="rows 1 and 2 are both of '0' at term 0"):
        fit(votes, members, np.where(np.arange(len(terms)) == 1, 0, terms))
    with pytest.raises(FitError, match="row 3: term is missing"):
        fit(votes, members, np.where(np.arange(len(terms)) == 2, np.nan, terms))
    with pytest.raises(FitError, match="needs dynamics"):
        lb.fit(data, "latent-trait", innovation=0.1)


def test_a_time_far_from_all_others_is_named() -> None:
    votes, members, times, _ = simulate(30, 5, 12)
    votes = votes[:, np.nanstd(votes, axis=0) > 0]
    stray = np.where(np.arange(len(times)) == 7, 999, times)
    fitted, _ = fit(votes, members, stray, max_iter=1)
    far = [text for text in fitted.warnings if "far from all others" in text]
    assert len(far) == 1
    assert "times of term far from all others: 999 (row 8). They are 995 away" in far[0]
    regular, _ = fit(votes, members, 1900 + 4 * np.array(times), max_iter=1)
    assert not any("far from" in text for text in regular.warnings)


@pytest.mark.parametrize("n_members", [3, 30])
def test_members_who_always_vote_with_their_party_are_told_apart(n_members: int) -> None:
    """Without a bound on their scale, positions diverge, and then all become 0."""
    rng = np.random.default_rng(0)
    n_terms, n_votes = 3, 15
    party = np.arange(n_members) % 2 == 0
    votes = np.full((n_terms, n_members, n_terms, n_votes), np.nan)
    for term in range(n_terms):
        votes[term, :, term] = party[:, None] ^ (rng.random(n_votes) < 0.5)
    member, term = np.tile(np.arange(n_members), n_terms), np.repeat(range(n_terms), n_members)
    votes = votes.reshape(len(member), -1)
    objectives = []
    for acceleration in ("squarem", "none"):
        fitted, data = fit(votes, member, term, acceleration=acceleration, innovation=0.1)
        position = lb.transform(fitted, data)["mean"][:, 0]
        assert fitted.converged
        assert abs(np.corrcoef(position, party[member])[0, 1]) > 0.98
        assert any("nearly separate members" in text for text in fitted.warnings)
        objectives.append(fitted.objective)
    assert objectives[0] > objectives[1] - 0.01


def test_few_members_keep_their_sign_from_term_to_term() -> None:
    """A start by the signs of the last term alone ended at −13.2, where items tell nothing."""
    rng = np.random.default_rng(1)
    n_terms, n_votes = 8, 30
    w, b = rng.normal(0, 1.5, (n_terms, n_votes)), rng.normal(0, 1, (n_terms, n_votes))
    member, term = np.repeat(np.arange(3), n_terms), np.tile(np.arange(n_terms), 3)
    x = np.concatenate([np.cumsum([rng.normal(), *rng.normal(0, 0.3, n_terms - 1)]) for _ in "abc"])
    votes = np.full((len(x), n_terms, n_votes), np.nan)
    for row, (k, position) in enumerate(zip(term, x, strict=True)):
        votes[row, k] = rng.random(n_votes) < 1 / (1 + np.exp(-(w[k] * position + b[k])))
    votes = votes.reshape(len(x), -1)
    votes = votes[:, np.nanstd(votes, axis=0) > 0]
    fitted, _ = fit(votes, member, term, innovation=0.0)
    assert np.abs(fitted.params.weights).max() > 1
