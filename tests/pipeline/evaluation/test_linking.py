"""Stocking and Lord's link of two calibrations, against a search over a grid of constants."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pipeline.errors import FitError
from pipeline.evaluation.linking import compute_link
from pipeline.models.known_items import KnownItems, parse_known_items

RNG = np.random.default_rng(2)
SLOPES, OFFSETS = RNG.uniform(0.6, 2.0, 6), RNG.normal(size=6)


def make_items(names: str, slopes: np.ndarray, offsets: np.ndarray) -> KnownItems:
    return parse_known_items({"feature": [*names], "slope": slopes, "offset": offsets}, names)


@pytest.mark.parametrize(("A", "B"), [(1.0, 0.0), (1.4, -0.8), (0.5, 2.0), (-1.2, 0.3)])
def test_equal_curves_are_linked_exactly(A: float, B: float) -> None:
    """x_old = A x_new + B, so w x_old + b = (w A) x_new + (b + w B)."""
    old = make_items("abcdef", SLOPES, OFFSETS)
    places = [5, 6, 2, 0, 1, 7]
    slopes, offsets = np.append(SLOPES, (0.9, 1.1)), np.append(OFFSETS, (0.2, -0.4))
    new = make_items("fxcaby", (A * slopes)[places], (offsets + B * slopes)[places])
    link = compute_link(new, old)
    assert pytest.approx((A, B), abs=1e-8) == (link.A, link.B)
    np.testing.assert_allclose(link.slopes, slopes[places], atol=1e-8)
    np.testing.assert_allclose(link.offsets, offsets[places], atol=1e-8)
    assert link.common == ("f", "c", "a", "b")
    assert link.difference == pytest.approx(0, abs=1e-8)


def test_the_constants_are_at_the_minimum_of_a_grid() -> None:
    noise = np.random.default_rng(0).normal(scale=0.3, size=(2, 6))
    new_slopes, new_offsets = SLOPES * 1.3 + noise[0], OFFSETS + 0.6 * SLOPES + noise[1]
    link = compute_link(
        make_items("abcdef", new_slopes, new_offsets), make_items("abcdef", SLOPES, OFFSETS)
    )
    points = np.linspace(-7, 7, 281)
    shares = scipy.stats.norm.pdf(points) * (points[1] - points[0])

    def curve(slopes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return (1 / (1 + np.exp(-(points[:, None] * slopes + offsets)))).sum(axis=1)

    target = curve(SLOPES, OFFSETS)

    def criterion(A: float, B: float) -> float:
        own = curve(new_slopes / A, new_offsets - new_slopes * B / A)
        return float(shares @ (own - target) ** 2)

    A, B = np.linspace(0.5, 2.5, 101), np.linspace(-2, 2, 101)
    values = np.array([[criterion(a, b) for b in B] for a in A])
    i, j = np.unravel_index(values.argmin(), values.shape)
    assert pytest.approx((A[i], B[j]), abs=0.04) == (link.A, link.B)
    assert criterion(link.A, link.B) == pytest.approx(link.difference**2, rel=1e-6)
    for step in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)):
        assert criterion(link.A + step[0], link.B + step[1]) > link.difference**2


def test_calibrations_that_cannot_be_linked_are_refused() -> None:
    old = make_items("abcdef", SLOPES, OFFSETS)
    for names, message in (("uvwxyz", "have 0 common items, but"), ("avwxyz", "items, 'a', but")):
        with pytest.raises(FitError, match=message):
            compute_link(make_items(names, SLOPES, OFFSETS), old)
    with pytest.raises(FitError, match="have slopes of 0"):
        compute_link(make_items("abcdef", 0 * SLOPES, OFFSETS), old)
    table = {"feature": ["a", "b"], "weights_1": [1, 1], "weights_2": [0, 1], "offset": [0, 0]}
    with pytest.raises(FitError, match="2 components, but only fits with one"):
        compute_link(parse_known_items(table, "two"), old)
