"""The items to ask next, against quadrature by SciPy and formulas of single items."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit

from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.inference.next_items import (
    ItemBank,
    ItemLimits,
    NextItems,
    choose_next_items,
    make_item_bank,
)
from pipeline.models.clipped_pca.model import ClippedPCA
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import Items, Traits, Units, make_params

SLOPES = np.array([1.5, -0.8, 2.5, 0.6, 1.1])
OFFSETS = np.array([0.2, -0.5, 1.0, -1.2, 0.0])
NAMES = [f"q{k}" for k in range(5)]


def make_bank(mean: float = 0.0, sd: float = 1.0) -> ItemBank:
    params = make_params(SLOPES[:, None], OFFSETS)
    params = replace(params, traits=Traits(np.array([[mean]]), np.array([[[sd**2]]])))
    return make_item_bank(LatentTrait(n_components=1), params, [Feature(n) for n in NAMES])


def average(function, posterior) -> float:
    """The mean of a function under an unnormalised posterior."""
    total = quad(posterior, -12, 12, points=[0], limit=200)[0]
    return quad(lambda x: function(x) * posterior(x), -12, 12, points=[0], limit=200)[0] / total


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (0.7, 1.6)])
def test_information_and_trait_agree_with_quadrature(mean: float, sd: float) -> None:
    bank = make_bank(mean, sd)
    answers = {"q0": 1, "q3": 0, "q1": None}

    def posterior(x):
        one, zero = expit(SLOPES[0] * x + OFFSETS[0]), expit(-SLOPES[3] * x - OFFSETS[3])
        return np.exp(-0.5 * ((x - mean) / sd) ** 2) * one * zero

    found = choose_next_items(bank, bank.find_answers(answers), n=9)
    expected_mean = average(lambda x: x, posterior)
    expected_error = average(lambda x: (x - expected_mean) ** 2, posterior) ** 0.5
    np.testing.assert_allclose([found.mean, found.error], [expected_mean, expected_error], 1e-9)
    information = {
        f"q{k}": average(
            lambda x, k=k: (
                SLOPES[k] ** 2
                * expit(SLOPES[k] * x + OFFSETS[k])
                * expit(-SLOPES[k] * x - OFFSETS[k])
            ),
            posterior,
        )
        for k in (1, 2, 4)
    }
    assert list(found.items) == sorted(information, key=information.__getitem__, reverse=True)
    np.testing.assert_allclose(
        found.information, [information[name] for name in found.items], rtol=1e-5
    )


def test_levels_asymptotes_and_measurements_count() -> None:
    # A graded item, a partial answer to it, and a measurement.
    params = make_params(np.array([[1.2], [0.8], [0.5]]), np.array([0.0, 0.0, 0.1]))
    items = Items(
        params.weights,
        params.offsets,
        level_offsets=np.array([1.0, -0.7, 0.3]),
        deviations=np.array([0.6]),
    )
    params = replace(
        params,
        items=items,
        n_levels=np.array([3, 2, 1]),
        units=Units(np.array([50.0]), np.array([10.0])),
    )
    features = [Feature("mood", ("low", "mid", "high")), Feature("q"), Feature("age", ())]
    bank = make_item_bank(LatentTrait(n_components=1), params, features)

    def posterior(x):
        mid = expit(1.2 * x + 1.0) - expit(1.2 * x - 0.7)
        z = (0.9 - 0.5 * x - 0.1) / 0.6  # age 59
        return np.exp(-0.5 * x**2 - 0.5 * z**2) * mid

    found = choose_next_items(bank, bank.find_answers({"mood": "mid", "age": 59.0}))
    assert found.items == ("q",)
    assert found.mean == pytest.approx(average(lambda x: x, posterior), rel=1e-8)
    rng = np.random.default_rng(1)
    traits = rng.standard_normal(400_000)
    levels = (rng.random((len(traits), 1)) < expit(1.2 * traits[:, None] + [1.0, -0.7])).sum(axis=1)
    scores = levels + (rng.random(len(traits)) < expit(0.8 * traits + 0.3))
    predicted = bank.predict_score({})
    assert predicted.score == pytest.approx(scores.mean(), abs=0.006)
    assert predicted.error == pytest.approx(scores.std(), abs=0.006)
    assert predicted.maximum == 3
    assert bank.predict_score({0: 2.0, 1: 0.0}).score == 2
    guessing = replace(
        make_params(SLOPES[:, None], OFFSETS),
        items=Items(SLOPES[:, None], OFFSETS, guessing=np.full(5, 0.2), slipping=np.zeros(5)),
    )
    bank = make_item_bank(
        LatentTrait(n_components=1, guessing="item"), guessing, [Feature(n) for n in NAMES]
    )
    found = choose_next_items(bank, {0: 1.0})

    def guessed(x):
        return np.exp(-0.5 * x**2) * (0.2 + 0.8 * expit(SLOPES[0] * x + OFFSETS[0]))

    assert found.mean == pytest.approx(average(lambda x: x, guessed), rel=1e-8)


def test_a_score_is_predicted() -> None:
    bank = make_bank()
    rng = np.random.default_rng(5)
    traits = rng.standard_normal(400_000)
    X = rng.random((len(traits), 5)) < expit(traits[:, None] * SLOPES + OFFSETS)
    like = X[:, 0] & ~X[:, 3]  # persons with these two answers
    found = bank.predict_score({0: 1.0, 3: 0.0})
    scores = X[like].sum(axis=1)
    n = len(scores)
    assert found.maximum == 5
    assert found.score == pytest.approx(scores.mean(), abs=4 * scores.std() / n**0.5)
    assert found.error == pytest.approx(scores.std(), rel=4 / n**0.5)
    known = bank.predict_score(dict.fromkeys(range(5), 1.0))
    assert known.score == 5
    assert known.error == pytest.approx(0, abs=1e-6)


def test_limits_hold() -> None:
    bank = make_bank()

    def ask(n: int = 5, answers: dict | None = None, **limits) -> NextItems:
        return choose_next_items(bank, answers or {}, n, ItemLimits(**limits))

    first = ask().items
    assert set(first) == set(NAMES)
    assert ask(exclude=first[:2]).items == first[2:]
    assert ask(exposure={first[0]: 0.2, first[1]: 0.1}, max_exposure=0.2).items == first[1:]
    assert ask(exclude=NAMES).is_done
    content = {"q0": "a", "q1": "b", "q2": "a", "q3": "b", "q4": "a"}
    # Groups have 3 and 2 of 5 items; q2 is the best of a, q1 of b.
    chosen = ask(content=content).items
    assert [content[name] for name in chosen] == ["a", "b", "a", "b", "a"]
    assert [n for n in chosen if content[n] == "a"] == [n for n in first if content[n] == "a"]
    assert [content[n] for n in ask(2, {0: 1.0, 2: 0.0}, content=content).items] == ["b", "b"]
    only_b = ask(content=content, shares={"b": 1}).items
    assert sorted(only_b) == ["q1", "q3"]


def test_a_test_ends_once_the_error_is_small_enough() -> None:
    bank, answers = make_bank(), {0: 1.0, 2: 1.0}
    error = choose_next_items(bank, answers).error
    done = choose_next_items(bank, answers, max_error=error)
    assert (done.is_done, done.items) == (True, ())
    assert not choose_next_items(bank, answers, max_error=error * 0.999).is_done
    all_answered = choose_next_items(bank, dict.fromkeys(range(5), 1.0))
    assert all_answered.is_done
    assert all_answered.error < error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "is 0. Choose at least 1"),
        ({"max_error": -1.0}, "is -1.0. Choose 0 or more"),
        ({"limits": ItemLimits(exclude=["q9"])}, "no item 'q9'. Leave out"),
        ({"limits": ItemLimits(content={"q9": "a"})}, "no item 'q9'"),
        ({"limits": ItemLimits(exposure={"q1": 2})}, "exposure of 'q1' is 2. Give the share"),
        ({"limits": ItemLimits(max_exposure=0)}, "is 0. Choose a share above 0"),
        ({"limits": ItemLimits(content={"q1": "a"}, shares={"b": 1})}, "groups are a"),
        ({"limits": ItemLimits(content={"q1": "a"}, shares={"a": 0})}, "are all 0"),
        ({"limits": ItemLimits(shares={"a": 1})}, "shares needs content"),
    ],
)
def test_mistakes_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(FitError, match=re.escape(message)):
        choose_next_items(make_bank(), {}, **arguments)


def test_other_models_and_several_traits_are_refused() -> None:
    features = [Feature(name) for name in NAMES]
    with pytest.raises(FitError, match="The fit is of clipped-pca, whose items have no info"):
        make_item_bank(ClippedPCA(), None, features)
    params = make_params(np.ones((5, 2)), OFFSETS)
    with pytest.raises(FitError, match=r"The fit has 2 traits\. Fit again with components=1"):
        make_item_bank(LatentTrait(n_components=2), params, features)
    with pytest.raises(FitError, match=r"no level 'often'\. Choose one of: 0, 1"):
        make_bank().find_answers({"q1": "often"})
