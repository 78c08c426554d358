"""Checks that several laws share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.features import find_continuous, split_levels, sum_planes
from pipeline.fitting.loop import FitState
from pipeline.models.capabilities import CanLearnLocally
from pipeline.params import get_named_arrays, list_nan_names
from tests.conformance.facts import Facts
from tests.conformance.rows import CENTER, SCALE
from tests.support.strategies import DenseData

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]


def offered(facts: Facts, *capabilities: type) -> None:
    """Skip a law of what the model does not offer."""
    for capability in capabilities:
        if not isinstance(facts.make(), capability):
            pytest.skip(f"this model is not {capability.__name__}")


def has_sums(facts: Facts) -> bool:
    """Whether passes of the model sum what `summarize` gives of blocks."""
    model, state = facts.make(), FitState(None)
    return (
        not isinstance(model, CanLearnLocally)
        and model.get_convergence_criterion(state).max_iter > 0
    )


def params_of(state: FitState) -> dict[str, NDArray[Any]]:
    return {name: values for name, (_, values) in get_named_arrays(state.params).items()}


def assert_same(a: Arrays, b: Arrays, rtol: float = 0.0) -> None:
    """Equal names and values; numbers that are not whole within the tolerance."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape
        assert a[name].dtype == b[name].dtype
        within = rtol if a[name].dtype.kind == "f" else 0.0
        np.testing.assert_allclose(a[name], b[name], rtol=within, atol=within, err_msg=name)


def assert_finite(arrays: Arrays) -> None:
    assert [name for name, values in arrays.items() if not np.isfinite(values).all()] == []


def assert_params_are_finite(state: FitState) -> None:
    """Only what the data may leave open, such as standard errors, is not a number."""
    may_be_nan = list_nan_names(type(state.params))
    assert_finite({k: values for k, values in params_of(state).items() if k not in may_be_nan})


def assert_well_formed(facts: Facts, data: DenseData) -> None:
    """Rows have levels in the planes, and finite numbers of the continuous features."""
    levels = sum_planes(data.X, facts.features)
    np.testing.assert_array_equal(data.X, split_levels(levels, facts.features))
    assert data.X.dtype == np.uint8
    if continuous := find_continuous(facts.features):
        assert data.numbers is not None
        assert data.numbers.shape == (len(data.X), len(continuous))
        assert np.isfinite(data.numbers).all()


def scale_columns(X: NDArray[Any], numbers: NDArray[Any] | None) -> Floats:
    """Bits of planes, then continuous features, scaled so that they vary less than bits."""
    if numbers is None:
        return X.astype(np.float64)
    return np.hstack([X, (numbers - CENTER) / (4 * SCALE)])


def pair_shares(data: DenseData) -> Floats:
    """Mean products of all pairs of planes and continuous features: shares of rows, of bits."""
    columns = scale_columns(data.X, data.numbers)
    return columns.T @ columns / len(columns)
