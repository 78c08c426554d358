import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import FitError
from pipeline.numerics.gaussian.arcsine import arcsine_correlation, sign_correlation
from pipeline.numerics.gaussian.tetrachoric import tetrachoric


@settings(deadline=None)  # the first compiles
@given(st.floats(-1, 1))
def test_the_two_directions_are_inverse(clipped):
    assert sign_correlation(arcsine_correlation(clipped)) == pytest.approx(clipped, abs=1e-7)


@settings(deadline=None)
@given(st.integers(1, 499))
def test_agrees_with_tetrachoric_at_the_medians(joint):
    clipped = (4 * joint - 1000) / 1000  # E[s_i s_j] of a table with margins one half.
    expected = tetrachoric(1000, 500, 500, joint).correlation
    assert arcsine_correlation(clipped) == pytest.approx(expected, abs=1e-13)


def test_clipping_normal_variables_gives_the_law():
    rng = np.random.default_rng(0)
    y = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=200_000)
    clipped = np.mean(np.sign(y[:, 0]) * np.sign(y[:, 1]))
    assert sign_correlation(0.6) == pytest.approx(clipped, abs=0.01)


@pytest.mark.parametrize("convert", [arcsine_correlation, sign_correlation])
def test_rounding_beyond_one_is_one(convert):
    np.testing.assert_array_equal(convert([[-1 - 1e-15], [1 + 1e-15]]), [[-1], [1]])


@pytest.mark.parametrize("convert", [arcsine_correlation, sign_correlation])
@pytest.mark.parametrize("bad", [np.nan, 1.1, -np.inf])
def test_no_correlation_is_refused(convert, bad):
    with pytest.raises(FitError, match=r"at \(0, 1\)"):
        convert([[0.0, bad]])
