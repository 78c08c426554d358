"""One BLAS thread, as in every fit: with more, sums have other last bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.executors.base import one_blas_thread


@pytest.fixture(autouse=True)
def _one_blas_thread() -> Iterator[None]:
    with one_blas_thread():
        yield
