"""Convert arrays, data frames and xarray objects to tables of bits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.data.batches import (
    RowBatches,
    decode_bytes,
    is_lazy_frame,
    list_columns,
    open_array,
    open_frame,
    read_column,
    read_columns,
    translate_read_errors,
)
from pipeline.data.features import BINARY_LEVELS, MAX_LEVELS, parse_number
from pipeline.errors import FitError, format_suggestion, quote_name
from pipeline.words import BITS_BY_WORD

if TYPE_CHECKING:
    import narwhals as nw

_SPLIT = "split"
_NUMERIC_KINDS = "biuf"
_OTHER_KINDS = "cmM"
"""Kinds of NumPy types that Python converts to numbers, or compares with them: complex numbers,
durations and dates."""
_NUMBERS = (bool, int, float, np.integer, np.floating, np.bool)
NOT_BINARY_REMEDY = (
    "Use threshold=T, map={VALUE: 1, VALUE: 0}, levels=[LOWEST, …, HIGHEST], nominal=[NAME] or "
    "continuous=[NAME], or name the column in keep if it is not a feature."
)
"""Remedy for values that are not binary."""

LevelsByFeature = Sequence[Any] | Mapping[str, Sequence[Any]] | None
"""Ordered values of all features, or of some by name; the others are binary."""
NominalFeatures = Sequence[str] | Mapping[str, Sequence[Any] | None]
"""Names of features, whose categories are then those that occur, or categories by name."""
_MISSING, _UNKNOWN = -1, -2
_OWN_PACKAGES = ("latentbits", "pipeline", "sklearn")

BinarizationRule = float | NDArray[np.float64] | Mapping[Any, int | None] | None
"""How values become bits: 1 above a threshold, or above one per feature; or by a mapping to 0, 1 or
None (missing)."""


@dataclass(frozen=True)
class BinaryTable:
    """Rows of a new dataset, for `make_memory_dataset` or `storage`'s `DatasetWriter.add`.

    Attributes
    ----------
    X
        Values, (n_rows, n_features): levels counted from 0, so 0 or 1 of a binary feature; 0 where
        not observed.
    observed
        Mask of the same shape, 1 = observed; None if all values are observed.
    feature_names
        Names of the features.
    segments
        Name of each row's segment, (n_rows,); None if there is only one.
    columns
        Per-row columns, (n_rows,) each: int64, float64, or texts; a missing text is empty.
    feature_levels
        Names of the levels of each feature that is not binary, or has level names other than 0
        and 1. A continuous feature has none.
    numbers
        Values of the continuous features, (n_rows, n_continuous), NaN where not observed, while `X`
        and `observed` say nothing about them; None if no feature is continuous.
    nominal_features
        Names of the features whose levels are categories without an order.
    """

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    feature_names: tuple[str, ...]
    segments: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]
    feature_levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: NDArray[np.float32] | None = None
    nominal_features: frozenset[str] = frozenset()

    def take_rows(self, rows: slice) -> BinaryTable:
        """Return some rows."""
        return replace(
            self,
            X=self.X[rows],
            observed=None if self.observed is None else self.observed[rows],
            segments=None if self.segments is None else self.segments[rows],
            columns={name: values[rows] for name, values in self.columns.items()},
            numbers=None if self.numbers is None else self.numbers[rows],
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
    segments: list[Any] = [table.segments for table in tables]
    numbers = [table.numbers for table in tables if table.numbers is not None]
    return replace(
        first,
        X=np.concatenate([table.X for table in tables]),
        observed=observed,
        segments=None if first.segments is None else np.concatenate(segments),
        columns={
            name: np.concatenate([table.columns[name] for table in tables])
            for name in first.columns
        },
        numbers=np.concatenate(numbers) if numbers else None,
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
    levels
        Names of the levels of features, whose values are matched with them; those without levels
        are continuous.
    nominal
        Names of the features whose levels are categories.
    """

    rows: RowBatches
    feature_names: tuple[str, ...]
    segments: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]
    rule: BinarizationRule
    remedy: str
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nominal: frozenset[str] = frozenset()

    @property
    def nominal_features(self) -> frozenset[str]:
        """Names of the features with more than two categories, which have no order."""
        return frozenset(name for name in self.nominal if len(self.levels[name]) > 2)

    @property
    def feature_levels(self) -> dict[str, tuple[str, ...]]:
        """Names of the levels of each feature whose values are not plain 0 and 1."""
        names = [name for name in self.feature_names if name in self.levels] if self.levels else []
        return {name: self.levels[name] for name in names if self.levels[name] != BINARY_LEVELS}

    def __iter__(self) -> Iterator[BinaryTable]:
        first, words = 0, set[str]()
        for batch in self.rows.iter_batches():
            span = slice(first, first + len(batch))
            options = (self.feature_names, self.rule, self.remedy, first, self.levels, words)
            if isinstance(batch, np.ndarray):
                X, observed = convert_values(batch, *options)
            else:
                X, observed = _convert_frame_batch(batch, *options)
            yield BinaryTable(
                X,
                observed,
                self.feature_names,
                None if self.segments is None else self.segments[span],
                {name: values[span] for name, values in self.columns.items()},
                self.feature_levels,
                convert_numbers(batch, self.feature_names, first, self.levels),
                self.nominal_features,
            )
            first = span.stop
        if words:
            ones, zeros = (
                [word for word in sorted(words) if BITS_BY_WORD[word] == bit] for bit in (1, 0)
            )
            texts = [f"{', '.join(own)} as {bit}" for own, bit in ((ones, 1), (zeros, 0)) if own]
            warn(f"words are read as bits: {'; '.join(texts)}", stacklevel=_find_caller_level())


def _find_caller_level() -> int:
    """Return the `stacklevel` of the first caller outside of this project and scikit-learn."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in _OWN_PACKAGES:
        frame, level = frame.f_back, level + 1
    return level


def iter_numbers(rows: RowBatches) -> Iterator[NDArray[Any]]:
    """Read rows as numbers: NaN if missing, infinity if not a number."""
    for batch in rows.iter_batches():
        if isinstance(batch, np.ndarray):
            yield _convert_to_numbers(batch)
        else:
            columns = map(read_column, batch.iter_columns())
            yield np.column_stack([*map(_convert_to_numbers, columns)])


def convert_array(
    X: ArrayLike,
    feature_names: Sequence[Any] | None = None,
    segment: ArrayLike | None = None,
    keep: Mapping[str, ArrayLike] | None = None,
    rule: BinarizationRule = None,
    remedy: str = NOT_BINARY_REMEDY,
    levels: LevelsByFeature = None,
    continuous: Sequence[Any] = (),
    nominal: NominalFeatures = (),
) -> TableBatches:
    """Check arrays, and prepare to convert them to tables.

    Parameters
    ----------
    X
        0, 1, True, False, words such as yes and no, or missing: NaN, None or masked,
        (n_rows, n_features). An array that NumPy understands, a sparse one of SciPy, or one of
        Dask, Zarr or HDF5.
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
    levels
        Ordered values of all features, or of some by name, from the lowest.
    continuous
        Names of the features whose values are numbers.
    nominal
        Features whose values are categories without an order.

    Raises
    ------
    FitError
        If a name or a length does not fit. A value that is not binary is an error when it is read.
    """
    if not isinstance(keep, Mapping | None):
        raise FitError(
            "keep must be a dictionary of columns, {NAME: VALUES}, but is a "
            f"{type(keep).__name__}."
        )
    options = (rule, remedy, levels, continuous, nominal)
    return make_tables(open_array(X), feature_names, segment, keep or {}, *options)


def make_tables(
    rows: RowBatches,
    feature_names: Sequence[Any] | None,
    segment: ArrayLike | None,
    keep: Mapping[str, ArrayLike],
    rule: BinarizationRule,
    remedy: str = NOT_BINARY_REMEDY,
    levels: LevelsByFeature = None,
    continuous: Sequence[Any] = (),
    nominal: NominalFeatures = (),
) -> TableBatches:
    """Check names and per-row columns; parameters as for `convert_array`."""
    if feature_names is None:
        feature_names = [f"f{i}" for i in range(rows.n_features)]
    names = _check_feature_names(feature_names, rows.n_features)
    columns = {name: _convert_column(values, name, rows.n_rows) for name, values in keep.items()}
    segments = None if segment is None else convert_segments(segment, rows.n_rows)
    if levels is not None and rule is not None:
        raise FitError("levels cannot be combined with map, threshold or binarize. Leave out one.")
    categories = _name_categories(nominal, levels, continuous, names, rows)
    named = _name_levels(levels, names) | _name_continuous(continuous, levels, names) | categories
    if nominal and rule is not None:
        raise FitError("nominal cannot be combined with map, threshold or binarize. Leave out one.")
    if continuous and rule is not None:
        raise FitError(
            "continuous cannot be combined with map, threshold or binarize. Leave out one."
        )
    ordered = {name: named[name] for name in names if name in named}
    kinds = ordered, frozenset(categories)
    return TableBatches(rows, names, segments, columns, rule, remedy, *kinds)


def _name_levels(levels: LevelsByFeature, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Check levels, and return their names by feature, in the order of the features."""
    if levels is None:
        return {}
    if not isinstance(levels, Mapping):
        return dict.fromkeys(names, _check_levels("levels", levels))
    by_name = {str(name): values for name, values in levels.items()}
    for name in by_name:
        if name not in names:
            raise FitError(
                f"levels has {name!r}, which is no feature.{format_suggestion(name, names)}"
            )
    return {n: _check_levels(f"Feature {n!r}", by_name[n]) for n in names if n in by_name}


def _name_continuous(
    continuous: Sequence[Any], levels: LevelsByFeature, names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Check the names of continuous features, and return that they have no levels."""
    continuous = list_values(continuous, "continuous")
    with translate_read_errors("continuous"):
        continuous = [str(name) for name in continuous]
    by_name = {str(name) for name in levels} if isinstance(levels, Mapping) else set[str]()
    for name in map(str, continuous):
        if name not in names:
            raise FitError(
                f"continuous has {name!r}, which is no feature.{format_suggestion(name, names)}"
            )
        if name in by_name:
            raise FitError(
                f"Feature {name!r} is in both continuous and levels. Leave it out of one."
            )
    return dict.fromkeys(map(str, continuous), ())


def _list_nominal(nominal: NominalFeatures) -> dict[str, Sequence[Any] | None]:
    """Return categories by name; None if they are those that occur."""
    if isinstance(nominal, Mapping):
        return {str(name): values for name, values in nominal.items()}
    return dict.fromkeys(map(str, list_values(nominal, "nominal")))


def _name_categories(
    nominal: NominalFeatures,
    levels: LevelsByFeature,
    continuous: Sequence[Any],
    names: Sequence[str],
    rows: RowBatches,
) -> dict[str, tuple[str, ...]]:
    """Check nominal features, and return their categories by name; rows are read if necessary."""
    stated = _list_nominal(nominal)
    others = {"levels": levels if isinstance(levels, Mapping) else (), "continuous": continuous}
    for name in stated:
        if name not in names:
            raise FitError(
                f"nominal has {name!r}, which is no feature.{format_suggestion(name, names)}"
            )
        for other, values in others.items():
            if name in map(str, values):
                raise FitError(
                    f"Feature {name!r} is in both nominal and {other}. Leave it out of one."
                )
    places = {name: names.index(name) for name, values in stated.items() if values is None}
    found: dict[str, dict[str, None]] = {name: {} for name in places}
    for batch in rows.iter_batches() if places else ():
        for name, index in places.items():
            cells = batch[:, index]
            cells = cells if isinstance(cells, np.ndarray) else read_column(cells)
            present = np.ma.getdata(cells)[~np.ma.getmaskarray(cells)].tolist()
            distinct = (v for v in dict.fromkeys(present) if not is_missing(v))
            found[name] |= dict.fromkeys(map(name_level, distinct))
    own = {**stated, **{name: sorted(values, key=_rank_name) for name, values in found.items()}}
    return {n: _check_levels(f"Feature {n!r}", values or ()) for n, values in own.items()}


def _rank_name(level: str) -> tuple[float, str]:
    """Return what sorts levels: numbers by size, then texts."""
    number = parse_number(level)
    return (np.inf if number is None else number), level


def _check_levels(subject: str, values: Sequence[Any]) -> tuple[str, ...]:
    is_list = isinstance(values, Iterable) and not isinstance(values, str)
    with translate_read_errors(subject):
        values = list(values) if is_list else values
    if not is_list or any(map(is_missing, values)):
        raise FitError(f"{subject} has the levels {values!r}. Pass a list of values.")
    levels = tuple(map(name_level, values))
    if not 2 <= len(levels) <= MAX_LEVELS:
        size = f"{len(levels)} level{'s' * (len(levels) != 1)}"
        raise FitError(
            f"{subject} has {size}. 2 to {MAX_LEVELS} are possible: merge rare ones, or leave the "
            "feature out."
        )
    for level in _iter_repeated_names(levels):
        raise FitError(f"{subject} has the level {level!r} twice. Name it once.")
    return levels


def name_level(value: Any) -> str:
    """Return the name of a value that is a level: 2, 2.0 and "2" are the same level."""
    if isinstance(value, bool | np.bool):
        return str(int(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    with translate_read_errors(f"A {type(value).__name__}"):
        return str(value)


def convert_values(
    values: NDArray[Any],
    names: Sequence[str],
    rule: BinarizationRule,
    remedy: str,
    first: int,
    levels: Mapping[str, tuple[str, ...]],
    words: set[str] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Convert values to levels counted from 0, or to bits, and a mask as `convert_to_bits`.

    Parameters
    ----------
    values
        Values, (n_rows, n_features).
    names
        Names of the features.
    rule, remedy
        As for `convert_array`.
    first
        Number of rows before these, for errors.
    levels
        Names of the levels, by feature. Other features are binary. Those without levels are
        continuous, and get 0 here; see `convert_numbers`.
    """
    if (data := np.ma.getdata(values)).dtype.kind in _OTHER_KINDS and data.size:
        raise FitError(
            f"row {first + 1} (counted from 1), column {names[0]!r}: the value is {data.flat[0]}, "
            f"of type {data.dtype}, not a number or a text. Convert the column, or name it in keep "
            "if it is not a feature."
        )
    if not any(name in levels for name in names):
        bits = apply_binarization_rule(values, names, rule, first)
        return convert_to_bits(bits, names, remedy, first, words)
    X, observed = np.zeros(values.shape, np.uint8), np.ones(values.shape, np.uint8)
    if binary := [index for index, name in enumerate(names) if name not in levels]:
        own_names = [names[index] for index in binary]
        X[:, binary], mask = convert_to_bits(values[:, binary], own_names, remedy, first, words)
        observed[:, binary] = 1 if mask is None else mask
    for index, name in enumerate(names):
        if not levels.get(name):
            continue
        codes = _find_levels(values[:, index], name, levels[name], first)
        X[:, index], observed[:, index] = np.maximum(codes, 0), codes != _MISSING
    return X, None if observed.all() else observed


def convert_numbers(
    batch: NDArray[Any] | nw.DataFrame[Any],
    names: Sequence[str],
    first: int,
    levels: Mapping[str, tuple[str, ...]],
) -> NDArray[np.float32] | None:
    """Return the values of continuous features, (n_rows, n_continuous), NaN where missing.

    The result is None without such features. Parameters are as for `convert_values`; `batch` may be
    a data frame.
    """
    continuous = [index for index, name in enumerate(names) if levels.get(name) == ()]
    if not continuous:
        return None
    converted = []
    for index in continuous:
        values = batch[:, index] if isinstance(batch, np.ndarray) else read_column(batch[:, index])
        data = np.ma.getdata(values)
        with np.errstate(over="ignore"):
            numbers = _convert_to_numbers(data).astype(np.float32)
        numbers[np.ma.getmaskarray(values)] = np.nan
        if (is_wrong := np.isinf(numbers)).any():
            row = int(is_wrong.argmax())
            raise FitError(
                f"row {first + row + 1} (counted from 1), column {names[index]!r}: the value is "
                f"{_format_value(data[row])}, not a finite number of 32 bits or missing."
            )
        converted.append(numbers)
    return np.column_stack(converted)


def _find_levels(
    values: NDArray[Any], name: str, levels: Sequence[str], first: int
) -> NDArray[np.int64]:
    """Return the level of each value of a feature, counted from 0, or `_MISSING`, (n_rows,)."""
    data = np.ma.getdata(values)
    if data.dtype.kind in _NUMERIC_KINDS:
        numbers = np.unique(data)
        distinct, positions = numbers.tolist(), np.searchsorted(numbers, data)
    else:
        places: dict[Any, int] = {}
        items = data.tolist()
        positions = np.array([places.setdefault(item, len(places)) for item in items], np.int64)
        distinct = [*places]
    codes_by_name = {level: code for code, level in enumerate(levels)}
    distinct_codes = [
        _MISSING if is_missing(value) else codes_by_name.get(name_level(value), _UNKNOWN)
        for value in distinct
    ]
    codes = np.array(distinct_codes, np.int64)[positions]
    codes[np.ma.getmaskarray(values)] = _MISSING
    if (is_unknown := codes == _UNKNOWN).any():
        row = int(is_unknown.argmax())
        raise FitError(
            f"row {first + row + 1} (counted from 1), column {name!r}: the value is "
            f"{_format_value(data[row])}, not one of the levels "
            f"{', '.join(map(quote_name, levels))} or missing. "
            "Correct it, or use levels that include it."
        )
    return codes


def make_binarization_rule(
    threshold: float | None, map: Mapping[Any, int | None] | None
) -> BinarizationRule:
    """Return the threshold or the mapping, if one was given; refuse both, or a useless mapping."""
    if threshold is not None and not isinstance(threshold, _NUMBERS):
        raise FitError(f"threshold must be a number, but is a {type(threshold).__name__}.")
    if map is None:
        return threshold
    if not isinstance(map, Mapping):
        raise FitError(f"map must be a dictionary of values, but is a {type(map).__name__}.")
    if threshold is not None:
        raise FitError("map and threshold cannot be combined. Name all values in map.")
    with translate_read_errors("map"):
        codes = {*map.values()} - {None}
    if codes != {0, 1}:
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
        distinct = np.unique(data) if data.dtype.kind in _NUMERIC_KINDS else data.ravel()
        items = distinct.tolist()
        flat = [codes.get(v, np.nan if is_missing(v) else np.inf) for v in items]
        if {0, 1} & {key for key, code in rule.items() if code is None}:
            # Python takes False for 0, but a missing 0 is not False.
            are_bits = {key for key in rule if isinstance(key, bool)}
            for place, value in enumerate(items):
                if isinstance(value, bool) and np.isnan(flat[place]) and value not in are_bits:
                    flat[place] = np.inf
        bits = np.array(flat, np.float64)
        if data.dtype.kind in _NUMERIC_KINDS:
            bits = bits[np.searchsorted(distinct, data)]
        bits = bits.reshape(values.shape)
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
    values: NDArray[Any],
    names: Sequence[str],
    remedy: str = NOT_BINARY_REMEDY,
    first: int = 0,
    words: set[str] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Convert values to bits and a mask of observed values, which is None if all are observed.

    Words of `BITS_BY_WORD` that are read as bits are added to `words`. The error about a value that
    is not binary names its row, after the `first` rows of earlier batches, and its column.
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
        _read_words(np.ma.getdata(values), ones, is_valid, set() if words is None else words)
    if not is_valid.all():
        row, feature = divmod(int(np.argmin(is_valid)), values.shape[1])
        raise FitError(
            f"row {first + row + 1} (counted from 1), column {names[feature]!r}: the value is "
            f"{_format_value(values[row, feature])}, not 0, 1, True, False or missing. {remedy}"
        )
    if missing is None or not missing.any():
        return ones.view(np.uint8), None
    return ones.view(np.uint8), (~missing).view(np.uint8)


def _read_words(
    values: NDArray[Any], ones: NDArray[np.bool_], is_valid: NDArray[np.bool_], words: set[str]
) -> None:
    """Mark the words that are read as bits as valid, and those that mean 1 as ones."""
    if values.dtype.kind not in "OUT":
        return
    unread = ~is_valid
    texts = [v.strip().lower() if isinstance(v, str) else "" for v in values[unread].tolist()]
    bits = [_parse_bit(text) for text in texts]
    ones[unread] = [bit == 1 for bit in bits]
    is_valid[unread] = [bit is not None for bit in bits]
    words.update(BITS_BY_WORD.keys() & {*texts})


def _parse_bit(text: str) -> int | None:
    number = parse_number(text)
    return BITS_BY_WORD.get(text) if number is None or number not in (0, 1) else int(number)


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
    """Return integers, floats, which are NaN where missing, or texts, which are empty there."""
    column = _check_column_length(values, name, n_rows)
    if name == _SPLIT:
        return _convert_to_texts(column)
    if column.dtype.kind == "O":
        numbers = [None if is_missing(value) else value for value in column.tolist()]
        kinds = {*map(type, numbers)} - {type(None)}
        if not kinds or not all(issubclass(kind, _NUMBERS) for kind in kinds):
            return _convert_to_texts(column)
        are_floats = None in numbers or any(issubclass(kind, float | np.floating) for kind in kinds)
        _check_integers(name, numbers, are_floats)
        return np.array(numbers, np.float64 if are_floats else np.int64)
    if column.dtype.kind not in _NUMERIC_KINDS:
        return _convert_to_texts(column)
    if column.dtype.kind in "iu":
        _check_integers(name, [column.max(initial=0), column.min(initial=0)], False)
    return column.astype(np.float64 if column.dtype.kind == "f" else np.int64)


def _check_integers(name: str, values: Sequence[Any], are_floats: bool) -> None:
    """Raise `FitError` if an integer cannot be stored, as a float beside missing values."""
    largest = 2**53 if are_floats else 2**63 - 1
    for value in values:
        if isinstance(value, int | np.integer) and abs(int(value)) > largest:
            reason = "beside missing values or fractions, where" if are_floats else "but"
            raise FitError(
                f"{name} contains {value}, {reason} integers may be at most ±{largest}. "
                "Convert the column to texts."
            )


def _check_column_length(values: ArrayLike, name: str, n_rows: int) -> NDArray[Any]:
    with translate_read_errors(name):
        column = decode_bytes(np.asanyarray(values))
    is_copy = not isinstance(getattr(values, "dtype", None), np.dtype)
    if is_copy and column.dtype.kind == "f" and (np.abs(column) >= 2**53).any():
        column = np.asarray(values, object)  # perhaps integers, which were rounded
    if np.ma.isMaskedArray(column):
        mask, column = np.ma.getmaskarray(column), np.ma.getdata(column).astype(object)
        column[mask] = None
    column = np.asarray(column)
    if column.shape != (n_rows,):
        raise FitError(
            f"{name} has the shape {column.shape}. Pass one value per row: {n_rows:,} values."
        )
    return column


def _convert_to_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Convert values to texts, missing values to empty texts."""
    texts = np.empty(len(values), object)
    texts[:] = ["" if is_missing(value) else str(value) for value in values.tolist()]
    return texts


def _convert_to_numbers(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in _NUMERIC_KINDS:
        return values
    if values.dtype.kind in _OTHER_KINDS:
        return np.full(values.shape, np.inf)
    return np.array([_convert_to_number(value) for value in values.ravel()]).reshape(values.shape)


def _convert_to_number(value: Any) -> float:
    """Return NaN for a missing value, and infinity, which is not binary, for any other value.

    Numbers come first and need no further test, because single rows are converted value by value.
    """
    if isinstance(value, _NUMBERS) and not isinstance(value, np.timedelta64):
        try:
            return float(value)
        except OverflowError:  # a whole number of more than 308 digits
            return np.inf
    return np.nan if is_missing(value) else np.inf


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or the NA or NaT of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _format_value(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:39] + "…"


def list_values(values: Any, parameter: str) -> list[Any]:
    """Return the values of a list, an array or a column, which an argument must be; not a text."""
    if isinstance(values, str | bytes):
        text = _format_value(values)
        raise FitError(f"The value is the text {text}. Pass a list: [{text}].", parameter=parameter)
    if not isinstance(values, Iterable):
        raise FitError(f"The value is a {type(values).__name__}, not a list.", parameter=parameter)
    with translate_read_errors(parameter):
        return list(values)


def list_names(values: Any, parameter: str) -> list[str]:
    """Return the texts of a list, which an argument must be."""
    names = list_values(values, parameter)
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise FitError(f"A {kind} is in the list, not a text.", parameter=parameter)
    return names


def _check_feature_names(values: Any, n_features: int) -> tuple[str, ...]:
    names = list_values(values, "feature_names")
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
    levels: LevelsByFeature = None,
    continuous: Sequence[str] = (),
    nominal: NominalFeatures = (),
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
    levels
        As for `convert_array`. Without a rule, ordered categories of columns are levels too.
    continuous
        Names of the columns whose values are numbers.
    nominal
        As for `convert_array`. Without a rule, categoricals without an order are nominal too.

    Raises
    ------
    FitError
        If `df` has another type, lacks a column, or holds a value that is not binary.
    """
    keep = list_values(keep, "keep")
    features = features if features is None else list_values(features, "features")
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(df, xarray.DataArray | xarray.Dataset):
        if features is not None:
            raise FitError(
                "Only data frames take this argument. Select features of xarray objects by .sel().",
                parameter="features",
            )
        return _convert_xarray(df, segment, keep, rule, levels, continuous, nominal)
    frame = df if is_lazy_frame(df) else wrap_frame(df, "Pass an array to from_numpy.")
    available = list_columns(frame)
    names = _check_columns(segment, keep, available)
    chosen = available if features is None else _check_columns(None, features, available)
    own_names = [name for name in chosen if name not in names]
    rows = open_frame(frame, own_names)
    if rule is None and (levels is None or isinstance(levels, Mapping)):
        stated = _list_nominal(nominal)
        ordered, unordered = list_categories(frame, own_names)
        own = {n: values or ordered.get(n) or unordered.get(n) for n, values in stated.items()}
        named = {*(levels or ()), *map(str, continuous)}
        nominal = {n: values for n, values in unordered.items() if n not in named} | own
        levels = {n: values for n, values in ordered.items() if n not in own} | dict(levels or {})
        levels = levels or None
    per_row = read_columns(frame, names)
    columns = {name: per_row[name] for name in keep}
    segments = None if segment is None else per_row[segment]
    options = (rule, remedy, levels, continuous, nominal)
    return make_tables(rows, rows.feature_names, segments, columns, *options)


def list_categories(
    frame: Any, columns: Sequence[str]
) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[Any]]]:
    """Return the categories of the ordered categoricals of a frame, and of those without an order.

    `frame` is a data frame of Narwhals or a lazy one of Polars. Columns with a single category are
    not listed, and neither are those without an order that have words for bits only.
    """
    import narwhals as nw  # only data frames need it

    wrapped: Any = nw.from_native(frame, pass_through=True)
    schema = wrapped.collect_schema()
    ordered, unordered = dict[str, Sequence[Any]](), dict[str, Sequence[Any]]()
    for name in columns:
        categories: Sequence[Any] = ()
        if isinstance(schema[name], nw.Enum):
            categories = schema[name].categories
        elif schema[name] == nw.Categorical and wrapped.implementation.is_pyarrow():
            categories = _read_ordered_dictionary(name, wrapped.to_native()[name])
        if len(categories) > 1:
            ordered[str(name)] = categories
        elif schema[name] == nw.Categorical:
            own = _list_unordered_categories(wrapped, name)
            words = {name_level(category).strip().lower() for category in own}
            if len(own) > 1 and not words <= {*BINARY_LEVELS, *BITS_BY_WORD}:
                unordered[str(name)] = own
    return ordered, unordered


def _list_unordered_categories(frame: Any, name: str) -> list[Any]:
    """Return the categories of a column that states no order: of pandas all, of others the used."""
    column = frame.select(name)
    if hasattr(column, "collect"):
        column = column.unique().collect()
    if frame.implementation.is_pandas_like():
        categories: list[Any] = column[name].to_native().cat.categories.tolist()
        return categories
    values = column[name].drop_nulls().unique().to_list()
    return sorted(value for value in values if value is not None)


def _read_ordered_dictionary(name: str, column: Any) -> list[Any]:
    """Return the longest dictionary of a column of Arrow; empty if it has no order.

    Raises `FitError` if the dictionary of another chunk is not a part of it, in the same order.
    """
    orders = [chunk.dictionary.to_pylist() for chunk in column.chunks if column.type.ordered]
    longest: list[Any] = max(orders, key=len, default=[])
    for order in orders:
        if [category for category in longest if category in order] != order:
            raise FitError(
                f"Column {name!r} has the categories {longest} and, in other chunks, {order}. Pass "
                f"levels={{{name!r}: [LOWEST, …, HIGHEST]}}."
            )
    return longest


def wrap_frame(df: Any, remedy: str) -> nw.DataFrame[Any]:
    """Wrap a data frame of any library that Narwhals supports; the error ends with the remedy."""
    import narwhals as nw  # only data frames need it

    try:
        frame: nw.DataFrame[Any] = nw.from_native(df, eager_only=True)
    except TypeError:
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise FitError(
            f"A {kind} is not a data frame of pandas, Polars or a similar library. {remedy}"
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise FitError(" ".join(str(error).split()) + ". Rename one.") from None
    if any(isinstance(name, tuple) for name in frame.columns):
        raise FitError(
            "Names of columns are tuples, such as those of a MultiIndex. Join them: "
            "df.columns = ['_'.join(map(str, name)) for name in df.columns]."
        )
    return frame


def _convert_frame_batch(
    frame: nw.DataFrame[Any],
    names: Sequence[str],
    rule: BinarizationRule,
    remedy: str,
    first: int,
    levels: Mapping[str, tuple[str, ...]],
    words: set[str] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Convert column by column, as columns may differ in type; parameters as for arrays."""
    import narwhals as nw

    X = np.zeros((len(frame), len(names)), np.uint8)
    mask = np.ones_like(X)
    for index, (name, column) in enumerate(zip(names, frame.iter_columns(), strict=True)):
        own_rule = rule[index] if isinstance(rule, np.ndarray) else rule
        # Narwhals reads missing values of Arrow dictionaries as a category.
        is_dictionary = column.dtype == nw.Categorical and column.implementation.is_pyarrow()
        cells = np.array(column.to_list(), object) if is_dictionary else read_column(column)
        converted, observed = convert_values(
            cells[:, None], (name,), own_rule, remedy, first, levels, words
        )
        X[:, index] = converted[:, 0]
        if observed is not None:
            mask[:, index] = observed[:, 0]
    return X, None if mask.all() else mask


def _convert_xarray(
    data: Any,
    segment: str | None,
    keep: Sequence[str],
    rule: BinarizationRule,
    levels: LevelsByFeature,
    continuous: Sequence[str],
    nominal: NominalFeatures,
) -> TableBatches:
    variables = [*data.coords, *getattr(data, "data_vars", ())]
    names = _check_columns(segment, keep, variables)
    values = data["values"] if "values" in variables else data
    if getattr(values, "ndim", None) != 2:
        raise FitError(
            f"The {type(data).__name__} has the dimensions {', '.join(map(str, data.dims))}. Pass "
            "a DataArray (row, feature), or a Dataset with `values` of that shape."
        )
    feature = values.dims[1]
    with translate_read_errors(f"The {type(data).__name__}"):
        X = values.values
        if "observed" in variables:
            X = np.ma.masked_array(X, data["observed"].values == 0)
        features = [*values[feature].values] if feature in values.coords else None
        per_row = {name: data[name].values for name in names}
        stored = json.loads(data.attrs.get("feature_levels", "{}"))
        if not isinstance(stored, Mapping):
            raise TypeError(f"its attribute feature_levels is {stored!r}, not names by feature")
        unordered = json.loads(data.attrs.get("nominal_features", "[]"))
    columns = {name: per_row[name] for name in keep}
    segments = None if segment is None else per_row[segment]
    options: dict[str, Any] = {"levels": levels, "continuous": continuous, "nominal": nominal}
    is_plain = levels is None and rule is None and not continuous and not nominal
    if stored and features is not None and is_plain:
        X = _name_stored_levels(X, features, stored)
        own = {name: stored[name] for name in map(str, features) if name in stored}
        options["nominal"] = {name: own[name] for name in unordered if name in own}
        is_ordered = {name: names and name not in options["nominal"] for name, names in own.items()}
        options["levels"] = {name: names for name, names in own.items() if is_ordered[name]}
        options["continuous"] = [name for name, names in own.items() if not names]
    return make_tables(open_array(X), features, segments, columns, rule, **options)


def _name_stored_levels(
    X: NDArray[Any], features: Sequence[Any], levels: Mapping[str, Sequence[str]]
) -> NDArray[Any]:
    """Return the names of levels that `to_xarray` of a dataset counts from 0."""
    named = X.astype(object)
    for index, name in enumerate(map(str, features)):
        if names := levels.get(name):
            own = np.ma.masked_array(np.ma.getdata(X)[:, index], np.ma.getmaskarray(X)[:, index])
            with translate_read_errors(f"Feature {name!r}, whose levels are {names!r},"):
                named[:, index] = np.array(names, object)[own.filled(0).astype(np.int64)]
    if np.ma.isMaskedArray(X):
        named = np.ma.masked_array(np.ma.getdata(named), np.ma.getmaskarray(X))
    return named


def _check_columns(segment: str | None, keep: Sequence[str], columns: Sequence[str]) -> list[str]:
    names = [*keep, *([] if segment is None else [segment])]
    for name in names:
        if getattr(name, "__hash__", None) is None:  # a row of an array, say
            raise FitError(f"A {type(name).__name__} is no name of a column.")
        if name not in columns:
            suggestion = format_suggestion(str(name), map(str, columns))
            raise FitError(f"There is no column {name!r}.{suggestion}")
    return names
