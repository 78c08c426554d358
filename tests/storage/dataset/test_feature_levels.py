"""Features with several ordered levels: what is stored comes back, also through views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from storage.errors import DataError
from tests.storage.conftest import ArrayBatch

NAMES = ["a", "mood", "b", "pain"]
LEVELS = {"mood": ["no", "perhaps", "yes"], "pain": ["0", "1", "2", "3", "4"]}
COUNTS = np.array([2, 3, 2, 5])


def draw_levels(n_rows: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, COUNTS, (n_rows, 4)).astype(np.uint8)


def draw_mask(n_rows: int) -> NDArray[np.uint8]:
    return (np.random.default_rng(9).random((n_rows, 4)) < 0.8).astype(np.uint8)


def write(
    path: Path, X: NDArray[np.uint8], mask: Any = None, segments: Any = None
) -> BinaryDataset:
    options: dict[str, Any] = {"words_per_chunk": 2, "feature_levels": LEVELS}
    with create_dataset(path, NAMES, **options) as writer:
        for part in (slice(0, 130), slice(130, len(X))):
            own = None if mask is None else mask[part]
            writer.add(ArrayBatch(X[part], own, {}), None if segments is None else segments[part])
    return open_dataset(path)


def read(dataset: BinaryDataset) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    X, observed = zip(*map(dataset.dense, range(dataset.n_chunks)), strict=True)
    return np.concatenate(X), np.concatenate(observed)


def test_levels_come_back(tmp_path: Path) -> None:
    X, mask = draw_levels(300), draw_mask(300)
    segments = np.array(["u", "v", "w"])[np.arange(300) % 3]
    dataset = write(tmp_path / "d", X, mask, segments)
    assert dataset.feature_levels == {name: tuple(own) for name, own in LEVELS.items()}
    assert (dataset.n_features, dataset.n_planes) == (4, 8)
    values, observed = read(dataset)
    np.testing.assert_array_equal(observed, mask)
    np.testing.assert_array_equal(values, X * mask)
    np.testing.assert_array_equal(dataset.to_dask().compute(), X * mask)
    chunk = dataset.read_chunk(0)
    assert chunk.observed is not None
    assert len(chunk.words) == len(chunk.observed) == 8
    assert not (chunk.words & ~chunk.observed).any()
    dataset.verify()


def test_another_client_reads_levels_as_sums_of_planes(tmp_path: Path) -> None:
    X = draw_levels(100)
    write(tmp_path / "d", X)
    group = zarr.open_group(tmp_path / "d", mode="r")
    bits = np.unpackbits(np.asarray(group["bits"][:]), axis=1, bitorder="little")[:, :100]  # type: ignore[index]
    table = np.asarray(group["features"][:])  # type: ignore[index]
    assert table.tolist() == [[0, 1, 0], [1, 2, 1], [3, 1, 0], [4, 4, 1]]
    for feature, (first, n_planes, _) in enumerate(table):
        np.testing.assert_array_equal(bits[first : first + n_planes].sum(axis=0), X[:, feature])


def test_binary_levels_leave_the_format_as_it_was(tmp_path: Path) -> None:
    X = draw_levels(100) % 2
    for name, levels in {"plain": {}, "stated": {"a": ["0", "1"]}}.items():
        with create_dataset(tmp_path / name, NAMES, feature_levels=levels) as writer:
            writer.add(ArrayBatch(X, None, {}))
    plain, stated = (open_dataset(tmp_path / name) for name in ("plain", "stated"))
    assert plain.manifest == stated.manifest
    assert plain.manifest["format_version"] == 2
    assert "feature_levels" not in plain.manifest


def test_appended_rows_have_the_same_levels(tmp_path: Path) -> None:
    X = draw_levels(300)
    write(tmp_path / "d", X[:140], draw_mask(300)[:140])
    with append_dataset(tmp_path / "d", NAMES) as writer:
        writer.add(ArrayBatch(X[140:], None, {}))
    values, observed = read(open_dataset(tmp_path / "d"))
    np.testing.assert_array_equal(values[140:], X[140:])
    assert observed[140:].all()
    refusal = r"Feature 'mood' has the levels no<yes, but the levels no<perhaps<yes in .*Use the"
    with (
        pytest.raises(DataError, match=refusal),
        append_dataset(tmp_path / "d", NAMES, feature_levels={**LEVELS, "mood": ["no", "yes"]}),
    ):
        pass


def test_features_with_levels_can_be_added(tmp_path: Path) -> None:
    X = draw_levels(200)
    write(tmp_path / "d", X[:150])
    names, levels = [*NAMES, "sleep"], {**LEVELS, "sleep": ["bad", "fair", "good"]}
    with append_dataset(tmp_path / "d", names, "missing", levels) as writer:
        writer.add(ArrayBatch(np.column_stack([X[150:], X[150:, 1]]), None, {}))
    dataset = open_dataset(tmp_path / "d")
    values, observed = read(dataset)
    assert dataset.n_planes == 10
    np.testing.assert_array_equal(observed[:, 4], np.arange(200) >= 150)
    np.testing.assert_array_equal(values[150:, 4], X[150:, 1])
    np.testing.assert_array_equal(values[:, :4], X)
    dataset.verify()


def test_a_view_makes_binary_features_of_planes(tmp_path: Path) -> None:
    X, mask = draw_levels(300), draw_mask(300)
    column = np.arange(300) % 2
    path = tmp_path / "d"
    with create_dataset(path, NAMES, feature_levels=LEVELS, columns=["g"]) as writer:
        writer.add(ArrayBatch(X, mask, {"g": column}))
    dataset = open_dataset(path)
    choice = ["a", "mood>=yes", "pain"], {"pain": LEVELS["pain"]}, [0, 2, 4, 5, 6, 7]
    view = dataset.view_planes(*choice)
    expected = np.column_stack([X[:, 0], X[:, 1] >= 2, X[:, 3]]) * mask[:, [0, 1, 3]]
    for rows in (
        view,
        view.segment_by("g"),
        dataset.segment_by("g").view_planes(*choice),
    ):
        np.testing.assert_array_equal(read(rows)[0], expected)
        np.testing.assert_array_equal(read(rows)[1], mask[:, [0, 1, 3]])
        chunk = rows.make_reader(columns=("g",))(0)
        np.testing.assert_array_equal(chunk.words, rows.read_chunk(0).words)
    narrow = view.view_planes(["pain>=3"], {}, [4])
    np.testing.assert_array_equal(read(narrow)[0][:, 0], (X[:, 3] >= 3) * mask[:, 3])
    digests = {d.describe()["chunks_digest"] for d in (dataset, view, narrow, view.segment_by("g"))}
    assert len(digests) == 4


def test_a_view_reverses_features(tmp_path: Path) -> None:
    """The opposite of plane c of a feature with k levels is plane k − 2 − c of the reversed one."""
    X, mask = draw_levels(300), draw_mask(300)
    with create_dataset(
        tmp_path / "d", NAMES, feature_levels=LEVELS, columns=["g"], words_per_chunk=2
    ) as writer:
        writer.add(ArrayBatch(X, mask, {"g": np.arange(300) % 2}))
    dataset = open_dataset(tmp_path / "d")
    choice = ["pain", "a", "mood"], LEVELS, [~7, ~6, ~5, ~4, 0, ~2, ~1]
    view = dataset.view_planes(*choice)
    expected = np.column_stack([4 - X[:, 3], X[:, 0], 2 - X[:, 1]]) * mask[:, [3, 0, 1]]
    for rows in (view, view.segment_by("g"), dataset.segment_by("g").view_planes(*choice)):
        np.testing.assert_array_equal(read(rows)[0], expected)
        np.testing.assert_array_equal(read(rows)[1], mask[:, [3, 0, 1]])
    np.testing.assert_array_equal(view.ones().sum(axis=0)[4], expected[:, 1].sum())
    again = view.view_planes(["pain", "high"], LEVELS, [~3, ~2, ~1, ~0, ~6])
    np.testing.assert_array_equal(read(again)[0][:, 0], X[:, 3] * mask[:, 3])
    np.testing.assert_array_equal(read(again)[0][:, 1], (X[:, 1] >= 1) * mask[:, 1])


def test_a_view_of_complete_features_has_no_mask(tmp_path: Path) -> None:
    X, mask = draw_levels(300), draw_mask(300)
    mask[:, 3] = 1
    with create_dataset(tmp_path / "d", NAMES, feature_levels=LEVELS) as writer:
        writer.add(ArrayBatch(X, mask, {}))
    view = open_dataset(tmp_path / "d").view_planes(["pain"], LEVELS, [~7, ~6, ~5, ~4])
    assert view.read_chunk(0).observed is None
    np.testing.assert_array_equal(read(view)[0][:, 0], 4 - X[:, 3])


def test_the_table_of_features_is_verified(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", draw_levels(100))
    table: Any = zarr.open_group(tmp_path / "d", mode="r+")["features"]
    table[1, 0] = 5
    with pytest.raises(DataError, match="the table features does not match the manifest"):
        dataset.verify()


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (["no"], "Feature 'mood' has 1 level. Name 2 to 16 levels."),
        ([*map(str, range(17))], "Feature 'mood' has 17 levels. Name 2 to 16 levels."),
        (["no", "yes", "no"], "Feature 'mood' has the level 'no' twice. Name it once."),
    ],
)
def test_impossible_levels_are_refused(tmp_path: Path, levels: list[str], message: str) -> None:
    with (
        pytest.raises(DataError, match=message),
        create_dataset(tmp_path / "d", NAMES, feature_levels={"mood": levels}),
    ):
        pass
    assert not (tmp_path / "d").exists()


def test_a_level_that_the_feature_lacks_is_refused(tmp_path: Path) -> None:
    X = draw_levels(100)
    X[7, 1] = 3
    message = "Row 8 of a batch has level 3 of feature 'mood', which has 3 levels"
    with pytest.raises(DataError, match=message):
        write(tmp_path / "d", X)
    assert not (tmp_path / "d").exists()
