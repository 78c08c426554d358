"""Rows drawn to judge codes by, and what their neighbours tell, against plain loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.neighbourhoods import (
    NeighbourVote,
    SampledRows,
    code_rows,
    compute_value_distances,
    describe_neighbourhoods,
    describe_vote,
    draw_dataset_rows,
    draw_labelled_rows,
)
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.numerics.metrics import trustworthiness
from pipeline.random import RowRandom
from pipeline.statistics.labels import SEGMENT
from tests.pipeline.evaluation.test_prediction import Described
from tests.pipeline.numerics.graphs.test_neighbours import all_distances
from tests.support.strategies import DenseData, chunkings, make_memory_rows, tables

SERIAL = SerialExecutor()
RNG = np.random.default_rng(2)
DATA = DenseData(
    RNG.integers(0, 2, (90, 6)).astype(np.uint8),
    (RNG.random((90, 6)) < 0.9).astype(np.uint8),
    RNG.integers(0, 3, 90),
)
NAMED = Described({}, ("b", "a", "c"))


class Shares:
    """Codes of a row: its ones, and its segment as the model has it."""

    def transform(self, params: Any, block: Any, rng: RowRandom) -> dict[str, Any]:
        ones = block.unpack_values().sum(axis=1) * params
        return {"mean": np.column_stack([ones, np.full(block.n_samples, 10.0 * block.segment)])}


def subject(params: float = 1.0) -> EvaluatedModel:
    return EvaluatedModel(Shares(), params, np.array([2, 0, 1]))  # type: ignore[arg-type]


def labelled(data: DenseData, size: int = 1000, column: str = SEGMENT) -> SampledRows:
    return draw_labelled_rows(make_memory_rows(data), size, column, NAMED, SERIAL, 0)


@given(tables(), st.integers(1, 100), st.data())
def test_the_same_rows_are_drawn_however_the_data_are_cut(
    data: DenseData, size: int, draw: st.DataObject
) -> None:
    rows = make_memory_rows(data, draw.draw(chunkings(len(data.X))))
    kept = np.arange(len(data.X)) if data.keep is None else np.flatnonzero(data.keep)
    if not len(kept):
        return
    found = draw_dataset_rows(rows, size, ThreadsExecutor(2), 7)
    draws = RowRandom(7).stream("sample").uniform(kept, 1)[:, 0]
    expected = np.sort(kept[np.argsort(draws)[:size]])
    assert found.n_rows == len(kept)
    np.testing.assert_array_equal(found.block.rows, expected)
    np.testing.assert_array_equal(found.block.unpack_values(), (data.X & data.mask)[expected])
    np.testing.assert_array_equal(found.segments, data.labels[expected])


def test_codes_are_in_the_order_of_the_rows_by_the_segments_of_the_model() -> None:
    found = code_rows(
        subject(), draw_dataset_rows(make_memory_rows(DATA), 50, SERIAL, 0), SERIAL, 0
    )
    drawn = draw_dataset_rows(make_memory_rows(DATA, [40, 50]), 50, SERIAL, 0)
    rows = drawn.block.rows
    ones = (DATA.X & DATA.mask).sum(axis=1)[rows]
    by_segment = 10 * np.array([2, 0, 1])[DATA.labels[rows]]
    np.testing.assert_array_equal(found, np.column_stack([ones, by_segment]))
    with pytest.raises(FitError, match="the codes in mean are not finite"):
        code_rows(subject(np.nan), drawn, SERIAL, 0)


def test_labels_are_texts_and_rows_without_are_left_out() -> None:
    data = Described({"label": ["no", "yes"]}, ())
    found = draw_labelled_rows(make_memory_rows(DATA), 1000, "label", data, SERIAL, 0)
    assert set(found.labels) == {"no", "yes"}
    assert set(labelled(DATA).labels) == {"a", "b", "c"}
    numbers = draw_labelled_rows(make_memory_rows(DATA), 1000, "position", Described(), SERIAL, 0)
    assert numbers.labels.tolist() == [str(row) for row in range(90)]


def told(far: NDArray[np.float64], own: int | None, labels: NDArray[Any], k: int) -> Any:
    order = [j for j in np.argsort(far, kind="stable") if j != own][:k]
    votes = Counter(labels[order].tolist())  # the first counted is the nearest
    return votes.most_common(1)[0][0]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("n_fitted", [4, 90])
def test_votes_are_those_of_a_plain_loop(apart: bool, n_fitted: int) -> None:
    judged, fitted = labelled(DATA, 30), labelled(DATA, n_fitted)
    codes = [RNG.integers(0, 4, (len(drawn.labels), 2)).astype(float) for drawn in (judged, fitted)]
    found = describe_vote(NeighbourVote("x", judged, fitted, apart), *codes)
    k = min(5, n_fitted - 1)
    sides = [DATA.take_rows(drawn.block.rows) for drawn in (judged, fitted)]
    by_codes = ((codes[0][:, None] - codes[1]) ** 2).sum(axis=2)
    rows = fitted.block.rows.tolist()
    for name, far in (("", by_codes), ("_by_values", all_distances("hamming", *sides))):
        right = 0
        for i, row in enumerate(judged.block.rows):
            own = rows.index(row) if row in rows and not apart else None
            right += told(far[i], own, fitted.labels, k) == judged.labels[i]
        share = right / 30
        assert found[f"accuracy{name}"] == pytest.approx(share)
        error = np.sqrt(share * (1 - share) / 30)
        assert found[f"standard_error{name}"] == pytest.approx(error)
    assert (found["n_neighbors"], found["rows"], found["of"]) == (k, 30, 90)
    assert (found["neighbours"], found["neighbours_of"]) == (n_fitted, 90)
    assert found["commonest"] == Counter(judged.labels.tolist()).most_common(1)[0][1] / 30


def test_distances_of_values_are_those_of_gower() -> None:
    """Against a plain loop over features."""
    features = [
        Feature("a"),
        Feature("b", tuple("vwxyz"), is_nominal=True),
        Feature("c", ("1", "2", "3", "4")),
        Feature("d", ()),
    ]
    rng = np.random.default_rng(8)
    values = np.column_stack(
        [*(rng.integers(0, n, 40) for n in (2, 5, 4)), rng.normal(size=40)]
    ).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[0] = np.nan
    own, others = values[:12], values[5:]
    span = np.nanmax(others[:, 3]) - np.nanmin(others[:, 3])
    expected = np.full((12, 35), np.inf)
    for i, x in enumerate(own):
        for j, y in enumerate(others):
            parts = [abs(x[0] - y[0]), float(x[1] != y[1]), abs(x[2] - y[2]) / 3]
            parts.append(abs(float(x[3]) - float(y[3])) / span)
            seen = [p for p, a, b in zip(parts, x, y, strict=True) if np.isfinite(a + b)]
            if seen:
                expected[i, j] = np.mean(seen)
    found = compute_value_distances(own, others, features)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_neighbourhoods_are_of_bits_that_were_observed() -> None:
    drawn, codes = (
        draw_dataset_rows(make_memory_rows(DATA), 1000, SERIAL, 0),
        RNG.normal(size=(90, 2)),
    )
    found = describe_neighbourhoods(drawn, codes)
    by_bits = all_distances("hamming", DATA, DATA)
    by_codes = ((codes[:, None] - codes) ** 2).sum(axis=2)
    assert found["trustworthiness"] == trustworthiness(by_bits, by_codes, 5)
    assert found["continuity"] == trustworthiness(by_codes, by_bits, 5)
    assert (found["rows"], found["of"], found["n_neighbors"]) == (90, 90, 5)


def test_codes_that_are_all_the_same_and_few_rows_tell_nothing() -> None:
    drawn = labelled(DATA)
    same = np.ones((90, 2))
    assert describe_neighbourhoods(drawn, same) == {}
    assert describe_vote(NeighbourVote("x", drawn, drawn, False), same, same) == {}
    few = draw_dataset_rows(make_memory_rows(DATA), 10, SERIAL, 0)
    assert describe_neighbourhoods(few, RNG.normal(size=(10, 2))) == {}
