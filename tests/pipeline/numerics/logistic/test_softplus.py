"""Expectations of log(1 + exp(y)) against fine sums over normals."""

from __future__ import annotations

import numpy as np

from pipeline.numerics.logistic.logistic_units import mean_softplus


def test_they_are_those_of_normals_narrow_and_wide() -> None:
    grid = np.linspace(-10, 10, 20_001)
    mass = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()
    cases = [(m, s) for m in (-30.0, -2.0, 0.0, 0.5, 6.0) for s in (0.0, 0.3, 1.5, 1.6, 4.0, 40.0)]
    mean, deviation = np.array(cases).T
    expected = np.logaddexp(0, mean[:, None] + deviation[:, None] * grid) @ mass
    found = mean_softplus(mean, deviation)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
