"""Functions that only kernels call."""

import math

import numba
import numpy as np
import pytest
from numba import float64, njit
from numba.core.codegen import CPUCodeLibrary

from pipeline.numerics import compilation
from pipeline.numerics.compilation import LATEST_NUMBA, _CalleeLibrary, callee


@callee(nogil=True)
def mean(values):
    return values.sum() / len(values)


@callee(nogil=True)
def variance(values):
    return ((values - mean(values)) ** 2).sum() / len(values)


@callee(nogil=True)
def check_sign(value):
    if value < 0:
        raise ValueError("negative")
    return math.sqrt(value)


@njit(nogil=True)
def deviation(values):
    return check_sign(variance(values) - 1.0)


def test_kernels_call_callees_of_callees():
    values = np.arange(12.0)
    assert deviation(values) == math.sqrt(values.var() - 1.0)


def test_an_error_in_a_callee_reaches_python():
    with pytest.raises(ValueError, match="negative"):
        deviation(np.zeros(3))


def test_numba_calls_what_callees_override():
    overridden = {"_optimize_final_module", "_finalize_final_module"}
    assert overridden <= vars(_CalleeLibrary).keys() & vars(CPUCodeLibrary).keys()


def test_a_later_version_compiles_functions_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "LATEST_NUMBA", (0, 0))
    square = callee(nogil=True)(lambda x: x * x)
    assert njit(lambda x: square(x) + 1.0)(3.0) == 10.0
    assert not isinstance(square.overloads[float64,].library, _CalleeLibrary)


def test_the_installed_version_was_tried():
    """If it is later and all tests pass with `LATEST_NUMBA` raised to it, raise it."""
    assert numba.version_info.short <= LATEST_NUMBA
