"""Standardized loadings of items on the traits of a loading pattern."""

from __future__ import annotations

import numpy as np

from pipeline.models.latent_trait.loadings import standardize_loadings
from pipeline.models.latent_trait.params import make_params


def test_loadings_are_those_of_mirt() -> None:
    """`summary` of mirt 1.45.1: two items of a bifactor model, from slopes of 8 digits."""
    slopes = np.array([[1.60935369, 1.09693290], [1.75803269, 1.16329583]])
    found = standardize_loadings(make_params(slopes, np.zeros(2)))
    expected = [[0.622208128, 0.424096063], [0.648868993, 0.429358679]]
    np.testing.assert_allclose(found.loadings, expected, atol=1e-8)
    np.testing.assert_allclose(found.communality, [0.567000425, 0.605379845], atol=1e-8)
