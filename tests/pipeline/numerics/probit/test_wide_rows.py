import subprocess
import sys

import numpy as np
import pytest

from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.wide_rows import probit_codes
from tests.pipeline.numerics.probit.test_expectation_propagation import (
    low_rank_model,
    random_problem,
    rows_of,
)


def assert_close(codes, posterior, mean=2e-3, variance=0.03):
    """Compare codes with the result of `probit_posterior`."""
    np.testing.assert_allclose(codes["mean"], posterior.mean, atol=mean, rtol=0)
    np.testing.assert_allclose(codes["variance"], posterior.variance, rtol=variance)
    assert codes["converged"].all()


@pytest.mark.parametrize("communalities", [(0.02, 0.1), (0.3, 0.9)])
@pytest.mark.parametrize("share", [1.0, 0.8])
def test_wide_rows_agree_with_the_full_method(communalities, share):
    rng = np.random.default_rng(0)
    weights, offsets = low_rank_model(rng, 1500, 4, communalities)
    X = rows_of(rng, weights, offsets, 40)
    arguments = X, weights, offsets, rng.random(X.shape) < share
    codes, posterior = probit_codes(*arguments), probit_posterior(*arguments)
    assert_close(codes, posterior)
    assert (codes["mean"] != posterior.mean).all()  # not the full method itself


def test_rows_with_few_values_get_the_full_method():
    X, *parameters, _ = random_problem(2, 12, 1100, 3)
    observed = np.ones(X.shape, np.bool_)
    observed[::3, 999:] = False
    observed[1, :] = False
    X[1] = 1 - X[1]  # missing, so without effect
    codes = probit_codes(X, *parameters, observed)
    posterior = probit_posterior(X, *parameters, observed)
    is_full = (codes["mean"] == posterior.mean).all(axis=1)
    assert np.flatnonzero(is_full).tolist() == [0, 1, 3, 6, 9]
    np.testing.assert_array_equal(codes["variance"][is_full], posterior.variance[is_full])
    assert_close(codes, posterior)
    np.testing.assert_allclose(codes["variance"][1], 1)


def test_rows_that_one_value_dominates_get_the_full_method():
    rng = np.random.default_rng(6)
    weights, offsets = low_rank_model(rng, 1000, 2, (0.01, 0.02))
    X = rows_of(rng, weights, offsets, 40)
    weights[0], offsets[0] = [300, 0], 0.0  # tells the sign of the first component
    X[:, 0] = rng.integers(0, 2, 40)
    arguments = X, weights, offsets
    codes, posterior = probit_codes(*arguments), probit_posterior(*arguments)
    is_full = (codes["mean"] == posterior.mean).all(axis=1)
    assert is_full.any()
    assert not is_full.all()
    assert_close(codes, posterior)


def test_values_that_contradict_the_model_change_little():
    rng = np.random.default_rng(3)
    weights, offsets = low_rank_model(rng, 1000, 2)
    X = rows_of(rng, weights, offsets, 8)
    X[:4, :100] = weights[:100, 0] > 0  # far from any u
    X[4:] = offsets < 0
    arguments = X, weights, offsets
    assert_close(probit_codes(*arguments), probit_posterior(*arguments), mean=5e-3, variance=0.05)


def test_narrow_rows_get_the_full_method():
    arguments = random_problem(4)
    posterior, codes = probit_posterior(*arguments), probit_codes(*arguments)
    assert [*codes] == ["mean", "variance", "converged"]
    for name, values in codes.items():
        np.testing.assert_array_equal(values, getattr(posterior, name))


@pytest.mark.matrix
def test_wide_rows_do_not_compile_the_full_method():
    script = """
import numpy as np
from pipeline.numerics.probit import expectation_propagation
from tests.pipeline.numerics.probit.test_wide_rows import (
    low_rank_model, probit_codes, rows_of
)
rng = np.random.default_rng(0)
weights, offsets = low_rank_model(rng, 1000, 3)
probit_codes(rows_of(rng, weights, offsets, 4), weights, offsets)
probit_codes(np.zeros((0, 5), np.uint8), weights[:5], offsets[:5])
assert not expectation_propagation._fill_posteriors.signatures
"""
    subprocess.run([sys.executable, "-c", script], check=True)
