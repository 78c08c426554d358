"""The memory that BLICA states is what its fit takes."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.models.binary_ica.blica import BLICA
from storage.examples import draw_nonstationary_truth
from tests.pipeline.models.binary_ica.moment_matching import fitted, nonstationary
from tests.support.traced_memory import measure_peak_memory, start_tracing_process


def _fit(n_features: int, n_segments: int, more: dict[str, Any]) -> None:
    """Short segments, whose halves have pairs with empty cells."""
    truth = draw_nonstationary_truth(n_features, 2, n_segments, seed=1)
    fitted(nonstationary(truth, 60), n_components=2, **more)


matrix = pytest.mark.matrix


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("shape", "more"),
    [
        pytest.param((200, 6), {"regularization": 20.0}, id="nothing chosen"),
        pytest.param((300, 8), {}, marks=matrix, id="ridge chosen"),
        pytest.param(
            (300, 8), {"regularization": 20.0, "bootstrap": 20}, marks=matrix, id="bootstrap"
        ),
        pytest.param((150, 40), {}, marks=matrix, id="segments"),
    ],
)
def test_a_fit_takes_no_more_than_is_stated(shape: tuple[int, int], more: dict[str, Any]) -> None:
    stated = BLICA(n_components=2, **more).estimate_memory(*shape, n_threads=1)
    with start_tracing_process() as process:
        process.submit(_fit, 6, 4, more).result()  # compiles
        _, peak = process.submit(measure_peak_memory, _fit, *shape, more).result()
    assert 0.5 * stated < peak <= stated
