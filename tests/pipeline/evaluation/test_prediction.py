"""Labels of another dataset are found by name; accuracy and R² are those of the plain formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.errors import FitError
from pipeline.evaluation.prediction import (
    TargetLabels,
    describe_prediction,
    find_target_labels,
    name_categories,
    summarize_predictions,
)
from pipeline.random import RowRandom
from pipeline.statistics.labels import SEGMENT

RNG = RowRandom(0)


@dataclass(frozen=True)
class Described:
    """What a dataset says of its labels."""

    levels: Mapping[str, list[str]] = field(default_factory=dict)
    segment_names: tuple[str, ...] = ("all",)


@dataclass(frozen=True)
class Told:
    """Predicts what it is told to."""

    column: str = "y"
    known: tuple[float, ...] | None = None
    says: Any = 0.0

    def predict(self, params: Any, block: BinaryBlock, rng: RowRandom) -> NDArray[np.float64]:
        if self.known is None:
            return np.asarray(self.says)[block.rows, None]
        return np.eye(len(self.known))[np.asarray(self.says)[block.rows]]

    def categories(self, params: Any) -> NDArray[np.float64] | None:
        return None if self.known is None else np.array(self.known, np.float64)


def rows(values: NDArray[Any]) -> BinaryBlock:
    X = np.zeros((len(values), 2), np.uint8)
    return replace(pack_block(X), columns={"y": values})


def of(model: Any, names: Any, data: Any) -> TargetLabels:
    found = find_target_labels(model, None, names, data)
    assert found is not None
    return found


def test_texts_are_named_by_the_codes_that_were_fitted() -> None:
    data = Described({"y": ["left", "right", "", "centre"]})
    assert name_categories(Told(known=(0, 3)), None, data) == ("left", "centre")  # type: ignore[arg-type]
    assert name_categories(Told(known=(-2, 7)), None, Described()) == ("-2", "7")  # type: ignore[arg-type]
    segments = Described(segment_names=("a", "b", "c"))
    model: Any = Told(SEGMENT, (0, 2))
    assert name_categories(model, None, segments) == ("a", "c")
    assert name_categories(Told(), None, data) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (Described({"y": ["5", "3", "9"]}), np.array([1, 0, 2, -1], np.int32)),
        (Described(), np.array([3, 5, 9, 2])),
        (Described(), np.array([3.0, 5.0, 9.5, np.nan])),
    ],
)
def test_labels_are_found_by_name_whatever_their_codes(data: Any, values: Any) -> None:
    found = of(Told(known=(3, 5)), ("3", "5"), data).encode_labels(rows(values))
    last = -1 if values.dtype == np.int64 else np.nan
    np.testing.assert_array_equal(found, [0, 1, -1, last])


def test_segments_are_found_by_name() -> None:
    labels = of(Told(SEGMENT, (0, 1)), ("a", "b"), Described(segment_names=("new", "b", "a")))
    block = rows(np.zeros(2))
    found = [labels.encode_labels(replace(block, segment=s)).tolist() for s in range(3)]
    assert found == [[-1, -1], [1, 1], [0, 0]]
    assert labels.columns == ()


def test_numbers_are_not_texts() -> None:
    with pytest.raises(FitError, match="column 'y': the model was fitted to numbers, but"):
        of(Told(), (), Described({"y": ["3"]}))


def summary(model: Any, names: Any, values: NDArray[Any]) -> dict[str, Any]:
    labels = of(model, names, Described())
    sums = summarize_predictions(labels, model, None, rows(values), RNG)
    return dict(describe_prediction(labels, sums)["prediction"])


def test_accuracy_counts_unseen_labels_as_wrong_and_leaves_missing_ones_out() -> None:
    wanted = np.array([3, 5, 5, 9, np.nan, 3, 5, 5])
    model = Told(known=(3, 5), says=[0, 1, 0, 1, 1, 0, 1, 1])
    found = summary(model, ("3", "5"), wanted)
    assert (found["rows"], found["rows_without"], found["unseen"]) == (7, 1, 1)
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert found["commonest"] == pytest.approx(4 / 7)
    assert found["standard_error"] == pytest.approx(np.sqrt(5 / 7 * 2 / 7 / 7))


def test_r2_is_the_share_of_variance() -> None:
    rng = np.random.default_rng(0)
    wanted = 2000 + 30 * rng.standard_normal(500)
    says = wanted + 10 * rng.standard_normal(500)
    found = summary(Told(says=says), (), np.append(wanted, [np.nan, np.inf]))
    lost = ((wanted - says) ** 2).mean()
    assert (found["rows"], found["rows_without"]) == (500, 2)
    assert found["r2"] == pytest.approx(1 - lost / wanted.var(), rel=1e-9)
    assert found["rmse"] == pytest.approx(np.sqrt(lost))


def test_without_any_label_there_is_nothing_to_judge_by() -> None:
    with pytest.raises(FitError, match="column 'y': none of these rows has a label"):
        summary(Told(says=np.zeros(3)), (), np.full(3, np.nan))


def test_equal_numbers_have_no_r2() -> None:
    found = summary(Told(says=np.zeros(3)), (), np.full(3, 0.1))
    assert found["r2"] is None
    assert found["rmse"] == pytest.approx(0.1)
