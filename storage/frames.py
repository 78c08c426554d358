"""Datasets made of what lies in memory: matrices and data frames."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from storage.dataset import BinaryDataset, open_dataset
from storage.errors import DataError
from storage.sources.base import Batch, Source, check_names
from storage.sources.codes import ReadOptions
from storage.sources.columns import is_feature_type
from storage.sources.selection import chosen
from storage.sources.tables import table_batch
from storage.sources.value_maps import parse_map
from storage.writer import create_dataset

_OPTION = re.compile(r"--([a-z][a-z-]*) ('[^']*'|(?!(?:and|or|beside)\b)\w+)")
_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Of datasets without a path, which last as long as the process."""


def from_numpy(
    values: ArrayLike,
    *,
    feature_names: Sequence[str] | None = None,
    segments: ArrayLike | None = None,
    path: str | None = None,
    overwrite: bool = False,
) -> BinaryDataset:
    """Make a dataset of a matrix.

    Parameters
    ----------
    values
        0, 1, True, False, or NaN where missing, (n_rows, n_features).
    feature_names
        Names of the features; by default f0, f1, ….
    segments
        Name of each row's segment, (n_rows,).
    path
        Folder of the dataset; by default one that is deleted when the process ends.
    overwrite
        Replace a dataset that is there.

    Raises
    ------
    DataError
        If a value is not binary, shapes disagree, or the path is taken.
    """
    matrix = np.asarray(values)
    if matrix.ndim != 2:
        raise DataError(f"values: Expected a matrix (2 dimensions), got {matrix.ndim}.")
    n_rows, n_features = matrix.shape
    names = [f"f{k}" for k in range(n_features)] if feature_names is None else [*feature_names]
    if len(names) != n_features:
        raise DataError(f"feature_names: Expected {n_features}, got {len(names)}.")
    check_names("feature_names", names)
    labels = None if segments is None else np.asarray(segments).astype(str)
    if labels is not None and labels.shape != (n_rows,):
        raise DataError(f"segments: Expected {n_rows}, one a row, got shape {labels.shape}.")
    table = pa.table({name: _column(matrix[:, k]) for k, name in enumerate(names)})
    with _speaking_python():
        source = _FrameSource.of("values", table, ReadOptions())
        return _written(source, labels, {}, path, overwrite)


def from_dataframe(
    frame: Any,
    *,
    segment_by: str | None = None,
    split_by: str | None = None,
    keep: Sequence[str] = (),
    map: Sequence[str] = (),
    missing: Sequence[str] = (),
    threshold: float | None = None,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    path: str | None = None,
    overwrite: bool = False,
) -> BinaryDataset:
    """Make a dataset of a data frame of pandas, polars or Arrow, a column a feature.

    Parameters
    ----------
    frame
        The frame. None and NaN are missing.
    segment_by, split_by, keep
        Columns that are no features: what names each row's segment and split, and what to keep.
    map, missing, threshold, features, drop
        As the options of `latentbits ingest`: `map=["yea=1,nay=0"]`, `missing=["present"]`.
    path
        Folder of the dataset; by default one that is deleted when the process ends.
    overwrite
        Replace a dataset that is there.

    Raises
    ------
    DataError
        If a value is not binary, a column is not there, or the path is taken.
    TypeError
        If it is no data frame.
    """
    table: pa.Table = nw.from_native(frame, eager_only=True).to_arrow()
    stored = dict.fromkeys(keep) | ({split_by: None} if split_by else {})
    columns = tuple(dict.fromkeys([*([segment_by] if segment_by else []), *stored]))
    with _speaking_python():
        maps = tuple(parse_map(text) for text in map)
        options = ReadOptions(
            tuple(missing), threshold, columns, maps, tuple(features), tuple(drop)
        )
        source = _FrameSource.of("frame", table, options)
        names = {("split" if name == split_by else name): name for name in stored}
        labels = None if segment_by is None else _texts(table, segment_by)
        return _written(source, labels, names, path, overwrite)


@dataclass(frozen=True, kw_only=True)
class _FrameSource(Source):
    """A table in memory."""

    chooses = True

    table: pa.Table

    @classmethod
    def of(cls, name: str, table: pa.Table, options: ReadOptions) -> _FrameSource:
        """Find its features, and refuse columns that cannot be any."""
        check_names(name, table.column_names)
        others = [column for column in table.column_names if column not in options.row_columns]
        features = chosen(name, others, options)
        for column in features:
            if not is_feature_type(table.schema.field(column).type):
                raise DataError(
                    f"{name}: Expected booleans, numbers or text in column {column!r}, got "
                    f"{table.schema.field(column).type}. Use --keep {column} to keep it."
                )
        return cls(
            path=name,
            options=options,
            feature_names=features,
            n_rows=table.num_rows,
            column_names=tuple(c for c in options.row_columns if c in table.column_names),
            table=table,
        )

    def batches(self) -> Iterator[Batch]:
        """Take runs of rows."""
        first = 0
        for rows in self.table.combine_chunks().to_batches(max_chunksize=self.batch_rows):
            yield table_batch(self, rows, first, self.options)
            first += rows.num_rows


def _written(
    source: _FrameSource,
    labels: np.ndarray[Any, Any] | None,
    columns: dict[str, str],
    path: str | None,
    overwrite: bool,
) -> BinaryDataset:
    """Write all rows, with columns by the names that they are stored by."""
    target = path if path is not None else _own_folder()
    with create_dataset(
        target,
        source.feature_names,
        columns=[*columns],
        expected_rows=source.n_rows,
        overwrite=overwrite,
    ) as writer:
        first = 0
        for batch in source.batches():
            rows = slice(first, first + len(batch.X))
            first = rows.stop
            stored = {name: batch.columns[of] for name, of in columns.items()}
            here = None if labels is None else labels[rows]
            writer.add(Batch(batch.X, batch.observed, stored), here)
    return open_dataset(target)


def _own_folder() -> Path:
    _folders.append(tempfile.TemporaryDirectory(prefix="latentbits-", ignore_cleanup_errors=True))
    return Path(_folders[-1].name) / "data.zarr"


def _column(values: np.ndarray[Any, Any]) -> pa.Array:
    if values.dtype.kind == "O":
        return pa.array([None if value is None or value != value else value for value in values])
    return pa.array(np.ascontiguousarray(values))


def _texts(table: pa.Table, name: str) -> np.ndarray[Any, Any]:
    column = table.column(name)
    if column.null_count:
        row = int(column.is_null().to_numpy().argmax()) + 1
        raise DataError(
            f"frame: row {row} (rows counted from 1), column {name!r}: Expected a value in every "
            "row for segment_by, got none."
        )
    return np.array([str(value) for value in column.to_pylist()])


@contextmanager
def _speaking_python() -> Iterator[None]:
    """Let errors name arguments instead of options."""
    try:
        yield
    except DataError as error:
        text = _OPTION.sub(_argument, str(error))
        raise DataError(re.sub(r"--([a-z][a-z-]*)", _bare, text)) from None


def _argument(found: re.Match[str]) -> str:
    value = found[2] if found[2].startswith("'") else repr(found[2])
    return f"{found[1].replace('-', '_')}={value}"


def _bare(found: re.Match[str]) -> str:
    return found[1].replace("-", "_")
