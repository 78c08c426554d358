"""Correlations of features with codes."""

from __future__ import annotations

import numpy as np

from flows.report.figures.parameters import correlate_features_with_codes
from flows.report.figures.rows import CodedRows


def test_correlations_are_of_what_was_observed() -> None:
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((300, 2))
    X = (codes @ rng.standard_normal((2, 5)) + rng.standard_normal((300, 5)) > 0).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[:, 3], X[:, 4] = 1.0, np.nan
    coded = CodedRows(codes, X.astype(np.float32), np.arange(300), np.zeros(300), {})
    found = correlate_features_with_codes(coded)
    for i in range(3):
        seen = np.isfinite(X[:, i])
        expected = [np.corrcoef(X[seen, i], codes[seen, k])[0, 1] for k in range(2)]
        np.testing.assert_allclose(found[i], expected, atol=1e-12)
    assert not found[3:].any()
