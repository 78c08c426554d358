"""Convert arrays, data frames and xarray objects to tables of bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.data.batches import (
    RowBatches,
    is_lazy_frame,
    list_columns,
    open_array,
    open_frame,
    read_columns,
)
from pipeline.errors import FitError, format_suggestion

if TYPE_CHECKING:
    import narwhals as nw

_SPLIT = "split"
_NUMBERS = (bool, int, float, np.number, np.bool)
NOT_BINARY_REMEDY = (
    "Use threshold=T or map={VALUE: 1, VALUE: 0}, or name the column in keep if it is not a "
    "feature."
)
"""Remedy for values that are not binary."""

BinarizationRule = float | NDArray[np.float64] | Mapping[Any, int | None] | None
"""How values become bits: 1 above a threshold, or above one per feature; or by a mapping to 0, 1 or
None (missing)."""


@dataclass(frozen=True)
class BinaryTable:
    """Rows of a new dataset, for `make_memory_dataset` or `storage`'s `DatasetWriter.add`.

    Attributes
    ----------
    X
        Values in {0, 1}, (n_rows, n_features); 0 where not observed.
    observed
        Mask of the same shape, 1 = observed; None if all values are observed.
    feature_names
        Names of the features.
    segments
        Name of each row's segment, (n_rows,); None if there is only one.
    columns
        Per-row columns, (n_rows,) each: int64, float64, or texts; a missing text is empty.
    """

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    feature_names: tuple[str, ...]
    segments: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]

    def take_rows(self, rows: slice) -> BinaryTable:
        """Return some rows."""
        return BinaryTable(
            self.X[rows],
            None if self.observed is None else self.observed[rows],
            self.feature_names,
            None if self.segments is None else self.segments[rows],
            {name: values[rows] for name, values in self.columns.items()},
        )


def join_tables(tables: Sequence[BinaryTable]) -> BinaryTable:
    """Return all rows of tables with the same features and per-row columns."""
    first = tables[0]
    if len(tables) == 1:
        return first
    observed = None
    if any(table.observed is not None for table in tables):
        observed = np.concatenate(
            [np.ones_like(t.X) if t.observed is None else t.observed for t in tables]
        )
    return BinaryTable(
        np.concatenate([table.X for table in tables]),
        observed,
        first.feature_names,
        None if first.segments is None else np.concatenate([table.segments for table in tables]),
        {name: np.concatenate([table.columns[name] for table in tables]) for name in first.columns},
    )


@dataclass(frozen=True)
class TableBatches:
    """Rows of a new dataset, which become tables batch by batch when they are iterated over.

    Attributes
    ----------
    rows
        The values.
    feature_names, segments, columns
        As in a `BinaryTable`, for all rows.
    rule, remedy
        As for `convert_array`.
    """

    rows: RowBatches
    feature_names: tuple[str, ...]
    segments: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]
    rule: BinarizationRule
    remedy: str

    def __iter__(self) -> Iterator[BinaryTable]:
        first = 0
        for batch in self.rows.iter_batches():
            span = slice(first, first + len(batch))
            options = (self.feature_names, self.rule, self.remedy, first)
            if isinstance(batch, np.ndarray):
                X, observed = _convert_batch(batch, *options)
            else:
                X, observed = _convert_frame_batch(batch, *options)
            yield BinaryTable(
                X,
                observed,
                self.feature_names,
                None if self.segments is None else self.segments[span],
                {name: values[span] for name, values in self.columns.items()},
            )
            first = span.stop


def iter_numbers(rows: RowBatches) -> Iterator[NDArray[Any]]:
    """Read rows as numbers: NaN if missing, infinity if not a number."""
    for batch in rows.iter_batches():
        if isinstance(batch, np.ndarray):
            yield _convert_to_numbers(batch)
        else:
            columns = (column.to_numpy() for column in batch.iter_columns())
            yield np.column_stack([*map(_convert_to_numbers, columns)])


def convert_array(
    X: ArrayLike,
    feature_names: Sequence[Any] | None = None,
    segment: ArrayLike | None = None,
    keep: Mapping[str, ArrayLike] | None = None,
    rule: BinarizationRule = None,
    remedy: str = NOT_BINARY_REMEDY,
) -> TableBatches:
    """Check arrays, and prepare to convert them to tables.

    Parameters
    ----------
    X
        0, 1, True, False, or missing: NaN, None or masked, (n_rows, n_features). An array that
        NumPy understands, a sparse one of SciPy, or one of Dask, Zarr or HDF5.
    feature_names
        Names of the features, (n_features,); None stands for f0, f1, ….
    segment
        Name of each row's segment, (n_rows,).
    keep
        Per-row columns by name, (n_rows,) each; the column `split` defines the splits.
    rule
        Rule for values other than 0, 1, True and False.
    remedy
        Last sentence of the error about a value that is not binary.

    Raises
    ------
    FitError
        If a name or a length does not fit. A value that is not binary is an error when it is read.
    """
    return make_tables(open_array(X), feature_names, segment, keep or {}, rule, remedy)


def make_tables(
    rows: RowBatches,
    feature_names: Sequence[Any] | None,
    segment: ArrayLike | None,
    keep: Mapping[str, ArrayLike],
    rule: BinarizationRule,
    remedy: str = NOT_BINARY_REMEDY,
) -> TableBatches:
    """Check names and per-row columns; parameters as for `convert_array`."""
    if feature_names is None:
        feature_names = [f"f{i}" for i in range(rows.n_features)]
    names = _check_feature_names(feature_names, rows.n_features)
    columns = {name: _convert_column(values, name, rows.n_rows) for name, values in keep.items()}
    segments = None if segment is None else convert_segments(segment, rows.n_rows)
    return TableBatches(rows, names, segments, columns, rule, remedy)


def _convert_batch(
    values: NDArray[Any], names: Sequence[str], rule: BinarizationRule, remedy: str, first: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    return convert_to_bits(
        apply_binarization_rule(values, names, rule, first), names, remedy, first
    )


def make_binarization_rule(
    threshold: float | None, map: Mapping[Any, int | None] | None
) -> BinarizationRule:
    """Return the threshold or the mapping, if one was given; refuse both, or a useless mapping."""
    if map is None:
        return threshold
    if threshold is not None:
        raise FitError("map and threshold cannot be combined. Name all values in map.")
    if {*map.values()} - {None} != {0, 1}:
        raise FitError(
            f"map is {dict(map)}. It must map some values to 1, some to 0 and missing ones to None."
        )
    return map


def apply_binarization_rule(
    values: NDArray[Any], names: Sequence[str], rule: BinarizationRule, first: int = 0
) -> NDArray[Any]:
    """Replace values by 0, 1 and NaN according to a rule; None leaves them as they are.

    `first` is the number of rows before these, for errors.
    """
    if rule is None:
        return values
    data = np.ma.getdata(values)
    if isinstance(rule, Mapping):
        codes = {key: np.nan if code is None else code for key, code in rule.items()}
        flat = [codes.get(v, np.nan if _is_missing(v) else np.inf) for v in data.ravel().tolist()]
        bits = np.array(flat, np.float64).reshape(values.shape)
        expected = ", ".join(map(repr, rule))
    else:
        numbers = _convert_to_numbers(data)
        bits = np.where(numbers > rule, 1.0, 0.0)
        bits = np.where(np.isnan(numbers) | np.isinf(numbers), numbers, bits)
        expected = "a number"
    bits[np.ma.getmaskarray(values)] = np.nan
    if np.isinf(bits).any():
        row, feature = divmod(int(np.isinf(bits).argmax()), values.shape[1])
        raise FitError(
            f"row {first + row + 1} (counted from 1), column {names[feature]!r}: the value is "
            f"{_format_value(data[row, feature])}, not {expected} or missing."
        )
    return bits


def convert_to_bits(
    values: NDArray[Any], names: Sequence[str], remedy: str = NOT_BINARY_REMEDY, first: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Convert values to bits and a mask of observed values, which is None if all are observed.

    The error about a value that is not binary names its row, after the `first` rows of earlier
    batches, and its column.
    """
    numbers = _convert_to_numbers(np.ma.getdata(values))
    missing = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
    if numbers.dtype.kind == "f":
        missing = np.isnan(numbers) if missing is None else missing | np.isnan(numbers)
    ones = numbers == 1
    is_valid = ones | (numbers == 0)
    if missing is not None:
        is_valid |= missing
        ones &= ~missing
    if not is_valid.all():
        row, feature = divmod(int(np.argmin(is_valid)), values.shape[1])
        raise FitError(
            f"row {first + row + 1} (counted from 1), column {names[feature]!r}: the value is "
            f"{_format_value(values[row, feature])}, not 0, 1, True, False or missing. {remedy}"
        )
    if missing is None or not missing.any():
        return ones.view(np.uint8), None
    return ones.view(np.uint8), (~missing).view(np.uint8)


def convert_segments(values: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Check that every row has a segment, and return its name, (n_rows,)."""
    texts = _convert_to_texts(_check_column_length(values, "segment", n_rows))
    for row, text in enumerate(texts):
        if not text:
            raise FitError(
                f"Row {row + 1} (counted from 1) has no segment. Name one, or leave the row out.",
                parameter="segment",
            )
    return texts


def _convert_column(values: ArrayLike, name: str, n_rows: int) -> NDArray[Any]:
    column = _check_column_length(values, name, n_rows)
    if name == _SPLIT or column.dtype.kind not in "biuf":
        return _convert_to_texts(column)
    return column.astype(np.float64 if column.dtype.kind == "f" else np.int64)


def _check_column_length(values: ArrayLike, name: str, n_rows: int) -> NDArray[Any]:
    column = np.asarray(values)
    if column.shape != (n_rows,):
        raise FitError(
            f"{name} has the shape {column.shape}. Pass one value per row: {n_rows:,} values."
        )
    return column


def _convert_to_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Convert values to texts, missing values to empty texts."""
    texts = np.empty(len(values), object)
    texts[:] = ["" if _is_missing(value) else str(value) for value in values.tolist()]
    return texts


def _convert_to_numbers(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "biuf":
        return values
    return np.array([_convert_to_number(value) for value in values.ravel()]).reshape(values.shape)


def _convert_to_number(value: Any) -> float:
    """Return NaN for a missing value, and infinity, which is not binary, for any other value.

    Numbers come first and need no further test, because single rows are converted value by value.
    """
    if isinstance(value, _NUMBERS):
        try:
            return float(value)
        except OverflowError:  # a whole number of more than 308 digits
            return np.inf
    return np.nan if _is_missing(value) else np.inf


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or the NA or NaT of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _format_value(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:39] + "…"


def _check_feature_names(names: Sequence[Any], n_features: int) -> tuple[str, ...]:
    if len(names) != n_features:
        raise FitError(
            f"{len(names):,} names for {n_features:,} features.", parameter="feature_names"
        )
    texts = tuple(map(str, names))
    for name in _iter_repeated_names(texts):
        raise FitError(f"Two features have the name {name!r}. Rename one.")
    return texts


def _iter_repeated_names(names: Sequence[str]) -> Iterator[str]:
    earlier_names: set[str] = set()
    for name in names:
        if name in earlier_names:
            yield name
        earlier_names.add(name)


def convert_frame(
    df: Any,
    segment: str | None,
    keep: Sequence[str],
    features: Sequence[str] | None = None,
    rule: BinarizationRule = None,
    remedy: str = NOT_BINARY_REMEDY,
) -> TableBatches:
    """Prepare to convert a data frame or an xarray object to tables.

    Parameters
    ----------
    df
        A data frame of pandas, Polars or another library that Narwhals supports; a lazy frame of
        Polars, which is read in batches; an xarray DataArray (row, feature); or an xarray Dataset
        with `values` and optionally `observed`, as returned by `to_xarray`.
    segment, keep
        Names of the columns (variables in xarray) with the segment of each row, and of the per-row
        columns to keep.
    features
        Names of the feature columns; None takes all columns except `segment` and `keep`.
    rule
        Rule for values other than 0, 1, True and False.
    remedy
        Last sentence of the error about a value of a data frame that is not binary.

    Raises
    ------
    FitError
        If `df` has another type, lacks a column, or holds a value that is not binary.
    """
    for name, names in (("keep", keep), ("features", features)):
        if isinstance(names, str):
            raise FitError(
                f"The value is the text {names!r}. Pass a list: [{names!r}].", parameter=name
            )
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(df, xarray.DataArray | xarray.Dataset):
        if features is not None:
            raise FitError(
                "Only data frames take this argument. Select features of xarray objects by .sel().",
                parameter="features",
            )
        return _convert_xarray(df, segment, keep, rule)
    frame = df if is_lazy_frame(df) else wrap_frame(df, "Pass an array to from_numpy.")
    available = list_columns(frame)
    names = _check_columns(segment, keep, available)
    chosen = available if features is None else _check_columns(None, features, available)
    rows = open_frame(frame, [name for name in chosen if name not in names])
    per_row = read_columns(frame, names)
    columns = {name: per_row[name] for name in keep}
    segments = None if segment is None else per_row[segment]
    return make_tables(rows, rows.feature_names, segments, columns, rule, remedy)


def wrap_frame(df: Any, remedy: str) -> nw.DataFrame[Any]:
    """Wrap a data frame of any library that Narwhals supports; the error ends with the remedy."""
    import narwhals as nw  # only data frames need it

    try:
        return nw.from_native(df, eager_only=True)
    except TypeError:
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise FitError(
            f"A {kind} is not a data frame of pandas, Polars or a similar library. {remedy}"
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise FitError(" ".join(str(error).split()) + ". Rename one.") from None


def _convert_frame_batch(
    frame: nw.DataFrame[Any],
    names: Sequence[str],
    rule: BinarizationRule,
    remedy: str,
    first: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Convert column by column, as columns may differ in type; parameters as for arrays."""
    X = np.zeros((len(frame), len(names)), np.uint8)
    mask = np.ones_like(X)
    for index, (name, column) in enumerate(zip(names, frame.iter_columns(), strict=True)):
        own_rule = rule[index] if isinstance(rule, np.ndarray) else rule
        values = column.to_numpy()[:, None]
        bits, observed = _convert_batch(values, (name,), own_rule, remedy, first)
        X[:, index] = bits[:, 0]
        if observed is not None:
            mask[:, index] = observed[:, 0]
    return X, None if mask.all() else mask


def _convert_xarray(
    data: Any, segment: str | None, keep: Sequence[str], rule: BinarizationRule
) -> TableBatches:
    variables = [*data.coords, *getattr(data, "data_vars", ())]
    names = _check_columns(segment, keep, variables)
    values = data["values"] if "values" in variables else data
    if getattr(values, "ndim", None) != 2:
        raise FitError(
            f"The {type(data).__name__} has the dimensions {', '.join(map(str, data.dims))}. Pass "
            "a DataArray (row, feature), or a Dataset with `values` of that shape."
        )
    X, feature = values.values, values.dims[1]
    if "observed" in variables:
        X = np.ma.masked_array(X, data["observed"].values == 0)
    features = [*values[feature].values] if feature in values.coords else None
    per_row = {name: data[name].values for name in names}
    columns = {name: per_row[name] for name in keep}
    segments = None if segment is None else per_row[segment]
    return make_tables(open_array(X), features, segments, columns, rule)


def _check_columns(segment: str | None, keep: Sequence[str], columns: Sequence[str]) -> list[str]:
    names = [*keep, *([] if segment is None else [segment])]
    for name in names:
        if name not in columns:
            suggestion = format_suggestion(name, map(str, columns))
            raise FitError(f"There is no column {name!r}.{suggestion}")
    return names
