"""Ordered categories in memory: levels in tables, planes in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.data.blocks import iter_blocks
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.features import list_features, list_plane_names, split_levels
from pipeline.data.plane_views import view_planes_as_features
from pipeline.data.tables import BinaryTable, convert_array, join_tables
from pipeline.errors import FitError

NAMES = ("mood", "sex", "pain")
LEVELS = {"mood": ("bad", "fair", "good", "great"), "pain": ("no", "some", "much")}


def draw_table(n_rows: int = 300, is_complete: bool = False) -> BinaryTable:
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.integers(k, size=n_rows) for k in (4, 2, 3)]).astype(np.uint8)
    observed = (rng.random(X.shape) < 0.9).astype(np.uint8)
    segments = np.array(["x", "y"], object)[rng.integers(2, size=n_rows)]
    columns = {"age": rng.integers(90, size=n_rows)}
    mask = None if is_complete else observed
    X = X if is_complete else X * observed
    return BinaryTable(X, mask, NAMES, segments, columns, LEVELS)


def unpack(dataset: MemoryDataset) -> BinaryTable:
    return join_tables([*dataset.iter_tables()])


@pytest.mark.parametrize("is_complete", [False, True])
def test_chunks_hold_planes_and_tables_levels(
    is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.data.datasets._CHUNK_BYTES", 8 * 6)  # 64 rows of 6 planes
    table = draw_table(is_complete=is_complete)
    dataset = make_memory_dataset([table])
    features = list_features(dataset)
    assert dataset.rows_per_chunk == [64, 64, 64, 64, 44]
    assert [feature.kind for feature in features] == ["ordinal", "binary", "ordinal"]
    planes = split_levels(table.X, features)
    for chunk in dataset.chunks:
        for block in iter_blocks(chunk):
            np.testing.assert_array_equal(block.unpack_values(), planes[block.rows])
            if (mask := block.unpack_mask()) is not None and table.observed is not None:
                expected = np.repeat(table.observed[block.rows], [3, 1, 2], axis=1)
                np.testing.assert_array_equal(mask, expected)
    found = unpack(dataset)
    np.testing.assert_array_equal(found.X, table.X)
    assert (found.observed is None) == is_complete
    if table.observed is not None:
        np.testing.assert_array_equal(found.observed, table.observed)
    assert found.feature_levels == LEVELS
    assert unpack(dataset.segment_by("age")).feature_levels == LEVELS


def test_planes_are_features_of_a_view() -> None:
    dataset = make_memory_dataset([draw_table()])
    view = view_planes_as_features(dataset)
    names = ("mood>=fair", "mood>=good", "mood>=great", "sex", "pain>=some", "pain>=much")
    assert view.feature_names == names == list_plane_names(dataset)
    assert not view.feature_levels
    table = unpack(dataset)
    np.testing.assert_array_equal(unpack(view).X, split_levels(table.X, list_features(dataset)))


def test_digests_depend_on_levels_of_ordinal_features_only() -> None:
    table = draw_table()
    own = make_memory_dataset([table]).describe()["digest"]
    renamed = {**LEVELS, "pain": ("no", "some", "unbearable")}
    other = BinaryTable(table.X, table.observed, NAMES, table.segments, table.columns, renamed)
    assert make_memory_dataset([other]).describe()["digest"] != own
    binary = convert_array(np.eye(3), levels=[0, 1]), convert_array(np.eye(3))
    digests = {make_memory_dataset(tables).describe()["digest"] for tables in binary}
    assert digests == {"6ddbc7306a47bfcc6b2b5effca423af49241023b950a627188ec29ec65c226a9"}


@pytest.mark.parametrize(
    "values",
    [
        [[0, 1], [2, 0], [1, 1]],
        [[0.0, 1.0], [2.0, np.nan], [1.0, 1.0]],
        [["0", "1"], ["2", None], ["1", "1"]],
        np.ma.masked_array([[0, 1], [2, 7], [1, 1]], [[0, 0], [0, 1], [0, 0]]),
    ],
)
def test_values_are_matched_with_names_of_levels(values: Any) -> None:
    table = next(iter(convert_array(values, ["a", "b"], levels={"a": range(3), "b": [0, 1, 5]})))
    np.testing.assert_array_equal(table.X[:, 0], [0, 2, 1])
    np.testing.assert_array_equal(table.X[[0, 2], 1], [1, 1])
    assert table.feature_levels == {"a": ("0", "1", "2"), "b": ("0", "1", "5")}
    assert table.observed is None or table.observed.tolist() == [[1, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (3, r"levels has the levels 3\. Pass a list of values"),
        (["no"], r"levels has 1 level\. 2 to 16 are possible"),
        (range(17), r"levels has 17 levels\. 2 to 16 are possible"),
        (["no", "yes", "no"], r"levels has the level 'no' twice\. Name it once"),
        ({"a": ["no", None]}, r"Feature 'a' has the levels \['no', None\]\. Pass a list of values"),
        ({"ba": range(3)}, r"levels has 'ba', which is no feature"),
        (["no", "yes"], r"row 2 \(counted from 1\), column 'b': the value is 'maybe', not one of "
         r"the levels no, yes or missing"),
    ],
)  # fmt: skip
def test_wrong_levels_are_refused(levels: Any, message: str) -> None:
    with pytest.raises(FitError, match=message):
        [*convert_array([["no", "yes"], ["yes", "maybe"]], ["a", "b"], levels=levels)]


def test_levels_and_rules_exclude_each_other() -> None:
    with pytest.raises(FitError, match="levels cannot be combined with map, threshold or binarize"):
        convert_array(np.eye(3), rule=0.5, levels=range(3))
