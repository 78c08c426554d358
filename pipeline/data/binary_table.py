"""Arrays in memory as a table of bits: 0, 1, True, False and missing values, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError

_SPLIT = "split"
NOT_BINARY_REMEDY = (
    "Say threshold=T or map={VALUE: 1, VALUE: 0}, or, if the column is no feature, name it in keep."
)
"""What to do about values that are no bits."""


BinarizationRule = float | Mapping[Any, int | None] | None
"""What values mean: 1 where above a threshold, or 0, 1 or None, missing, by a mapping of them."""


@dataclass(frozen=True)
class BinaryTable:
    """Rows to make a dataset of; `storage.dataset.chunk_writer.DatasetWriter.add` takes one.

    Attributes
    ----------
    X
        Values in {0, 1}, (n_rows, n_features); 0 where not observed.
    observed
        1 = observed, same shape; None when all are observed.
    feature_names
        Names of the features.
    segments
        Name of each row's segment, (n_rows,); None puts all in one.
    columns
        Per-row columns, (n_rows,) each: int64, float64, or texts as objects, empty where missing.
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
    meaning: BinarizationRule = None,
    remedy: str = NOT_BINARY_REMEDY,
) -> BinaryTable:
    """Check arrays and make a table of them.

    Parameters
    ----------
    X
        0, 1, True, False, or missing: NaN, None or masked, (n_rows, n_features).
    feature_names
        (n_features,); None calls them f0, f1, ….
    segment
        What each row's segment is called, (n_rows,).
    keep
        Per-row columns by name, (n_rows,) each; one named `split` gives the splits.
    meaning
        What values mean that are written otherwise.
    remedy
        What to do about others.

    Raises
    ------
    FitError
        If a value is none of these, or a name or a length does not fit.
    """
    values = _convert_to_array(X)
    if values.ndim != 2:
        raise FitError(
            f"X: Expected two dimensions, rows and features, got {values.ndim}. "
            "Give a matrix with a row an observation."
        )
    n_rows, n_features = values.shape
    given = [f"f{i}" for i in range(n_features)] if feature_names is None else feature_names
    names = _check_feature_names(given, n_features)
    bits, observed = convert_to_bits(apply_binarization_rule(values, names, meaning), names, remedy)
    columns = {name: _convert_column(column, name, n_rows) for name, column in (keep or {}).items()}
    segments = None if segment is None else convert_segments(segment, n_rows)
    return BinaryTable(bits, observed, names, segments, columns)


def _convert_to_array(X: ArrayLike) -> NDArray[Any]:
    try:
        return np.asanyarray(X)
    except ValueError as error:
        raise FitError(f"X: Expected rows of equal length, got others ({error}).") from None


def make_binarization_rule(
    threshold: float | None, map: Mapping[Any, int | None] | None
) -> BinarizationRule:
    """Take the one that is given.

    Raises
    ------
    FitError
        If both are, or a mapping does not make some values 1 and some 0.
    """
    if map is None:
        return threshold
    if threshold is not None:
        raise FitError("map: Expected no threshold beside it, got both. Name all values.")
    if {*map.values()} - {None} != {0, 1}:
        raise FitError(
            "map: Expected values that are 1 and values that are 0, and None for missing ones, got "
            f"{dict(map)}."
        )
    return map


def apply_binarization_rule(
    values: NDArray[Any], names: Sequence[str], meaning: BinarizationRule
) -> NDArray[Any]:
    """Replace values by 0, 1 and NaN, where it is said what they mean.

    Raises
    ------
    FitError
        Naming the row and the column of the first value of which it is not.
    """
    if meaning is None:
        return values
    absent = np.ma.getmaskarray(values)
    given = np.ma.getdata(values)
    if isinstance(meaning, Mapping):
        code_of = {key: np.nan if code is None else code for key, code in meaning.items()}
        flat = [
            code_of.get(v, np.nan if _is_missing(v) else np.inf) for v in given.ravel().tolist()
        ]
        codes = np.array(flat, np.float64).reshape(values.shape)
        expected = ", ".join(map(repr, meaning))
    else:
        numbers = _convert_to_numbers(given)
        bits = np.where(numbers > meaning, 1.0, 0.0)
        codes = np.where(np.isnan(numbers) | np.isinf(numbers), numbers, bits)
        expected = "a number"
    codes[absent] = np.nan
    if np.isinf(codes).any():
        row, feature = divmod(int(np.isinf(codes).argmax()), values.shape[1])
        raise FitError(
            f"row {row + 1} (counted from 1), column {names[feature]!r}: Expected {expected} or a "
            f"missing value, got {_format_value(given[row, feature])}."
        )
    return codes


def convert_to_bits(
    values: NDArray[Any], names: Sequence[str], remedy: str = NOT_BINARY_REMEDY
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Take values as bits, with a mask of those observed where any is not.

    Raises
    ------
    FitError
        Naming the row and the column of the first value that is no bit.
    """
    numbers = _convert_to_numbers(np.ma.getdata(values))
    missing = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
    if numbers.dtype.kind == "f":
        missing = np.isnan(numbers) if missing is None else missing | np.isnan(numbers)
    ones = numbers == 1
    known = ones | (numbers == 0)
    if missing is not None:
        known |= missing
        ones &= ~missing
    if not known.all():
        row, feature = divmod(int(np.argmin(known)), values.shape[1])
        raise FitError(
            f"row {row + 1} (counted from 1), column {names[feature]!r}: Expected 0, 1, True, "
            f"False or a missing value, got {_format_value(values[row, feature])}. {remedy}"
        )
    is_whole = missing is None or not missing.any()
    return ones.view(np.uint8), None if is_whole or missing is None else (~missing).view(np.uint8)


def convert_segments(values: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Name the segment of each row.

    Raises
    ------
    FitError
        If there is not one for each row.
    """
    texts = _convert_to_texts(_check_column_length(values, "segment", n_rows))
    for row, text in enumerate(texts):
        if not text:
            raise FitError(
                f"segment: Expected a segment in every row, got none in row {row + 1} (counted "
                "from 1). Name one, or leave the row out."
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
            f"{name}: Expected {n_rows:,} values, one a row, got an array of shape {column.shape}."
        )
    return column


def _convert_to_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Write values out, missing ones as empty texts."""
    texts = np.empty(len(values), object)
    texts[:] = ["" if _is_missing(value) else str(value) for value in values.tolist()]
    return texts


def _convert_to_numbers(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "biuf":
        return values
    return np.array([_convert_to_number(value) for value in values.ravel()]).reshape(values.shape)


def _convert_to_number(value: Any) -> float:
    """Give NaN for what is missing, and infinity, which is no bit, for what is no number."""
    if _is_missing(value):
        return np.nan
    return float(value) if isinstance(value, bool | int | float | np.number | np.bool) else np.inf


def _is_missing(value: Any) -> bool:
    """Tell whether a value is None, NaN, or what data frames have in their place."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _format_value(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:39] + "…"


def _check_feature_names(names: Sequence[Any], n_features: int) -> tuple[str, ...]:
    if len(names) != n_features:
        raise FitError(f"feature_names: Expected {n_features:,} names, got {len(names):,}.")
    texts = tuple(map(str, names))
    for name in _iter_repeated_names(texts):
        raise FitError(f"Expected different feature names, got {name!r} twice. Rename one.")
    return texts


def _iter_repeated_names(names: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)
