"""Fits of few rows that start on a sample, as fits of many do, or on all rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pipeline.fitting import sample_start
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays


def lower_thresholds(monkeypatch: pytest.MonkeyPatch, n_rows: int) -> None:
    """Let fits of so many rows start on a third of them."""
    monkeypatch.setattr(sample_start, "MIN_ROWS", 1000)
    monkeypatch.setattr(sample_start, "MIN_SAMPLE", n_rows // 3)
    monkeypatch.setattr(sample_start, "_MAX_SHARE", 0.8)


@contextmanager
def start_on_all_rows() -> Iterator[None]:
    """Let fits of any number of rows start on all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_start, "MIN_ROWS", 10**9)
        yield


def get_bytes(state: FitState) -> dict[str, bytes]:
    """Return the bytes of all parameters, and of the objectives."""
    arrays = {
        name: values.tobytes() for name, (_, values) in get_named_arrays(state.params).items()
    }
    return {**arrays, "history": np.array(state.history).tobytes()}
