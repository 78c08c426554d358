"""Limit BLAS to one thread, as fits do: more threads change the last bits of sums."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.executors.base import limit_blas_threads


@pytest.fixture(autouse=True)
def _one_blas_thread() -> Iterator[None]:
    with limit_blas_threads():
        yield
