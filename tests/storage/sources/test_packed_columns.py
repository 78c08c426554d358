"""Columns of Arrow and arrays of bits, packed without a byte per value, against their codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.sources import ReadOptions, base, open_source, parse_map
from storage.sources.arrow_columns import encode_table, pack_table
from storage.sources.ordered_levels import make_level_map
from storage.sources.value_codes import INVALID, MISSING

SEEDS = st.integers(0, 2**32 - 1)
OPTIONS = [
    ReadOptions(),
    ReadOptions(missing=("9", "0.0")),
    ReadOptions(missing=("true",)),
    ReadOptions(threshold=0.5),
    ReadOptions(maps=(parse_map("*:1=0,0=1,yes=1,no=0"),)),
    ReadOptions(maps=(make_level_map("*", ["no", "0", "1", "yes", "2"], "levels"),)),
]


def list_observed(batch: RowBatch) -> np.ndarray:
    return np.ones_like(batch.X) if batch.observed is None else batch.observed


def draw_column(rng: np.random.Generator, n: int) -> pa.Array:
    """Draw a column of a random type, whose null values hide any bits."""
    bits = rng.random(n) < rng.choice([0, 0.1, 0.5, 1])
    mask = rng.random(n) < rng.choice([0, 0.3, 1])
    mask = None if rng.random() < 0.4 else mask
    words = ["0", "1", "NA", "no", "yes", "", "2"]
    indices = rng.integers(0, len(words), n).astype(rng.choice(["i1", "u2", "i4", "i8"]))
    many = [word + " " * k for k in range(5) for word in words]
    makers = [
        lambda: pa.array(bits, mask=mask),
        lambda: pa.array(bits.astype(rng.choice(["u1", "i1", "u2", "i8", "f4"])), mask=mask),
        lambda: pa.array(np.where(bits, 1.0, np.nan), mask=mask),
        lambda: pa.array(np.array(words, object)[indices], pa.string(), mask=mask),
        lambda: pa.DictionaryArray.from_arrays(pa.array(indices, mask=mask), words),
        lambda: pa.DictionaryArray.from_arrays(pa.array(indices % 3, mask=mask), [1, None, 0]),
        lambda: pa.DictionaryArray.from_arrays(pa.array(indices, mask=mask), many),
        lambda: pa.nulls(n),
    ]
    return makers[rng.integers(len(makers))]()


@given(n=st.integers(0, 200), start=st.integers(0, 70), seed=SEEDS)
def test_packed_columns_have_the_codes_of_the_columns(n: int, start: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = [(f"f{k}", draw_column(rng, n + start + 3).slice(start, n)) for k in range(4)]
    options = OPTIONS[rng.integers(len(OPTIONS))]
    codes = encode_table(dict(columns), n, options)
    packed = pack_table(columns, n, options)
    if (codes == INVALID).any():
        assert packed is None
        return
    assert packed is not None
    observed = codes != MISSING
    batch = RowBatch(n, packed.levels, packed.mask)
    np.testing.assert_array_equal(batch.X, codes * observed)
    np.testing.assert_array_equal(list_observed(batch), observed)
    padding = np.unpackbits(packed.levels, axis=2, bitorder="little")[:, :, n:]
    assert not padding.any()


@pytest.mark.parametrize("row_group_size", [1, 7, 64, 100, 1000])
@pytest.mark.parametrize("kind", ["?", "u1"])
def test_row_groups_of_any_size_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group_size: int, kind: str
) -> None:
    monkeypatch.setattr(base, "BATCH_CELLS", 3 * 64)
    rng = np.random.default_rng(row_group_size)
    X, mask = rng.random((333, 3)) < 0.4, rng.random((333, 3)) < 0.2
    table = pa.table(
        {f"f{j}": pa.array(X[:, j].astype(kind), mask=mask[:, j] & (j > 0)) for j in range(3)}
    )
    path = str(tmp_path / "a.parquet")
    pa.parquet.write_table(table, path, row_group_size=row_group_size)
    batches = [*open_source(path).iter_batches()]
    observed = ~(mask & (np.arange(3) > 0))
    np.testing.assert_array_equal(np.concatenate([b.X for b in batches]), X & observed)
    np.testing.assert_array_equal(np.concatenate([*map(list_observed, batches)]), observed)


@pytest.mark.parametrize("options", OPTIONS[:5])
def test_packed_and_boolean_arrays_follow_the_options(tmp_path: Path, options: ReadOptions) -> None:
    rng = np.random.default_rng(0)
    X, mask = rng.random((77, 11)) < 0.5, rng.random((77, 11)) < 0.8
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    np.savez(tmp_path / "a.npz", X=np.packbits(X, axis=1), shape=X.shape)
    np.savez(
        tmp_path / "m.npz",
        X=np.packbits(X, axis=1),
        shape=X.shape,
        M=np.packbits(mask, axis=1),
    )
    names = {"a.npy": X, "f.npy": X, "a.npz": X.astype(np.uint8), "m.npz": X.astype(np.uint8)}
    for name, values in names.items():
        batch = next(iter(open_source(str(tmp_path / name), options).iter_batches()))
        columns = {f"f{j}": pa.array(column) for j, column in enumerate(values.T)}
        expected = encode_table(columns, len(X), options)
        observed = expected != MISSING
        if name == "m.npz":
            observed &= mask
        np.testing.assert_array_equal(batch.X, expected * observed)
        np.testing.assert_array_equal(list_observed(batch), observed)


def test_an_invalid_value_is_found_in_the_first_row_that_has_one(tmp_path: Path) -> None:
    X = np.zeros((300, 3), np.uint8)
    X[200, 0] = X[100, 2] = X[100, 1] = 5
    path = str(tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({f"f{j}": X[:, j] for j in range(3)}), path, row_group_size=90)
    with pytest.raises(DataError, match=r"row 101 .*column 'f1': the value 5"):
        list(open_source(path).iter_batches())
