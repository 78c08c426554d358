"""Convert arrays, data frames and xarray objects to tables of bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

BinarizationRule = float | Mapping[Any, int | None] | None
"""How values become bits: 1 above a threshold, or by a mapping to 0, 1 or None (missing)."""


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


def make_binary_table(
    X: ArrayLike,
    feature_names: Sequence[Any] | None = None,
    segment: ArrayLike | None = None,
    keep: Mapping[str, ArrayLike] | None = None,
    rule: BinarizationRule = None,
    remedy: str = NOT_BINARY_REMEDY,
) -> BinaryTable:
    """Check arrays and convert them to a table.

    Parameters
    ----------
    X
        0, 1, True, False, or missing: NaN, None or masked, (n_rows, n_features).
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
        If a value is not binary, or a name or a length does not fit.
    """
    values = _convert_to_array(X)
    if values.ndim != 2:
        raise FitError(
            f"X has {values.ndim} dimensions instead of two: rows and features. "
            "Pass a matrix with one row per observation."
        )
    n_rows, n_features = values.shape
    if feature_names is None:
        feature_names = [f"f{i}" for i in range(n_features)]
    names = _check_feature_names(feature_names, n_features)
    bits, observed = convert_to_bits(apply_binarization_rule(values, names, rule), names, remedy)
    columns = {name: _convert_column(column, name, n_rows) for name, column in (keep or {}).items()}
    segments = None if segment is None else convert_segments(segment, n_rows)
    return BinaryTable(bits, observed, names, segments, columns)


def _convert_to_array(X: ArrayLike) -> NDArray[Any]:
    try:
        return np.asanyarray(X)
    except ValueError as error:
        raise FitError(f"The rows of X have different lengths ({error}).") from None


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
    values: NDArray[Any], names: Sequence[str], rule: BinarizationRule
) -> NDArray[Any]:
    """Replace values by 0, 1 and NaN according to a rule; None leaves them as they are."""
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
            f"row {row + 1} (counted from 1), column {names[feature]!r}: the value is "
            f"{_format_value(data[row, feature])}, not {expected} or missing."
        )
    return bits


def convert_to_bits(
    values: NDArray[Any], names: Sequence[str], remedy: str = NOT_BINARY_REMEDY
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Convert values to bits and a mask of observed values, which is None if all are observed.

    The error about a value that is not binary names its row and column.
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
            f"row {row + 1} (counted from 1), column {names[feature]!r}: the value is "
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


def make_table_from_frame(
    df: Any,
    segment: str | None,
    keep: Sequence[str],
    features: Sequence[str] | None = None,
    rule: BinarizationRule = None,
    remedy: str = NOT_BINARY_REMEDY,
) -> BinaryTable:
    """Convert a data frame or an xarray object to a table of bits.

    Parameters
    ----------
    df
        A data frame of pandas, Polars or another library that Narwhals supports; or an xarray
        DataArray (row, feature); or an xarray Dataset with `values` and optionally `observed`, as
        returned by `to_xarray`.
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
    frame = wrap_frame(df, "Collect a lazy frame first; pass an array to from_numpy.")
    return _convert_data_frame(frame, segment, keep, features, rule, remedy)


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


def _convert_data_frame(
    frame: nw.DataFrame[Any],
    segment: str | None,
    keep: Sequence[str],
    features: Sequence[str] | None,
    rule: BinarizationRule,
    remedy: str,
) -> BinaryTable:
    names = _check_columns(segment, keep, frame.columns)
    columns = frame.columns if features is None else _check_columns(None, features, frame.columns)
    feature_names = [name for name in columns if name not in names]
    X = np.ma.zeros((len(frame), len(feature_names)), np.uint8)
    for index, name in enumerate(feature_names):
        values = apply_binarization_rule(frame[name].to_numpy()[:, None], (name,), rule)
        bits, observed = convert_to_bits(values, (name,), remedy)
        X[:, index] = bits[:, 0]
        if observed is not None:
            X[observed[:, 0] == 0, index] = np.ma.masked
    per_row = {name: frame[name].to_numpy() for name in names}
    return _make_table(X, feature_names, per_row, segment, keep)


def _convert_xarray(
    data: Any, segment: str | None, keep: Sequence[str], rule: BinarizationRule
) -> BinaryTable:
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
    return _make_table(X, features, per_row, segment, keep, rule)


def _check_columns(segment: str | None, keep: Sequence[str], columns: Sequence[str]) -> list[str]:
    names = [*keep, *([] if segment is None else [segment])]
    for name in names:
        if name not in columns:
            suggestion = format_suggestion(name, map(str, columns))
            raise FitError(f"There is no column {name!r}.{suggestion}")
    return names


def _make_table(
    X: NDArray[Any],
    features: Sequence[str] | None,
    per_row: Mapping[str, NDArray[Any]],
    segment: str | None,
    keep: Sequence[str],
    rule: BinarizationRule = None,
) -> BinaryTable:
    segments = None if segment is None else per_row[segment]
    columns = {name: per_row[name] for name in keep}
    return make_binary_table(X, features, segments, columns, rule)
