"""The interface of all sources: batches of rows, selected columns, and errors about values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch
from storage.dataset.feature_levels import BINARY_LEVELS
from storage.errors import DataError
from storage.format.schema import MISSING_INTEGER
from storage.quoting import split_names
from storage.sources.text import warn_about_encoding
from storage.sources.value_codes import (
    INVALID,
    LEVEL_OPTIONS,
    ReadOptions,
    ValueCodes,
    describe_invalid_value,
    find_patterns,
    has_same_meaning,
    pack_codes,
    suggest_remedy,
)

# Large enough to hide the cost of a batch, small enough that a few of them fit any machine.
BATCH_CELLS = 1 << 22
LONG_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""Suffixes of files that may be long tables."""
NewFeatures = Literal["add", "ignore", "refuse"]
"""What happens to features of appended files that the dataset does not have."""
AbsentFeatures = Literal["missing", "refuse"]
"""What happens if an appended wide table lacks features of the dataset."""
_MIN_BATCH_ROWS = 64
_CONTEXT_ROWS = 5000
_MAX_NAMED = 5
_MAX_COMPARED = 200  # features with values that are not binary
_TEXT_TABLE = re.compile(r"\.(csv|tsv)(\.gz)?$", re.IGNORECASE)
_MAX_FEATURES = 10_000_000
_MAX_INTEGER = 2**63 - 1
_MAX_REASON_LENGTH = 300


@dataclass(frozen=True)
class SourceUpdates:
    """Values of rows that a dataset already contains.

    Attributes
    ----------
    X
        Levels, counted from 0, (n_rows, n_features); 0 where not observed.
    observed
        1 = there is a value, same shape; other cells keep their value. None if all have one.
    columns
        Per-row columns by name, (n_rows,) each.
    rows
        Rows of the dataset, in increasing order, (n_rows,).
    missing
        1 = explicitly missing, (n_rows, n_features).
    """

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    columns: Mapping[str, NDArray[Any]]
    rows: NDArray[np.int64]
    missing: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """An opened source, whose names are known, but whose rows have not been read.

    Attributes
    ----------
    path
        The path as given.
    options
        How its values become bits.
    feature_names
        Names of the features, in column order.
    n_rows
        Number of rows, if known without reading the data.
    column_names
        Per-row columns of every batch.
    name_columns
        Those of them that identify the rows; they are always stored.
    default_segment, default_split
        The per-row columns that the format itself calls segment and split.
    """

    is_streaming: ClassVar[bool] = False
    """Whether reading the first batch does not require reading the rest."""
    can_select_columns: ClassVar[bool] = False
    """Whether columns that the options leave out are never read."""
    can_be_continuous: ClassVar[bool] = False
    """Whether features of the format can be continuous."""
    duplicate_remedy: ClassVar[str] = "Sum or remove duplicate entries first."
    """Advice for a cell with two values."""

    path: str
    options: ReadOptions
    feature_names: tuple[str, ...]
    n_rows: int | None = None
    column_names: tuple[str, ...] = ()
    name_columns: tuple[str, ...] = ()
    default_segment: str | None = None
    default_split: str | None = None

    def __post_init__(self) -> None:
        if not self.feature_names:
            raise DataError(f"{self.path}: there are no features.")
        check_column_names(self.path, self.feature_names)
        for name in self.options.row_columns:
            if name not in self.column_names:
                raise DataError(self._format_unknown_column(name))
        if self.options.has_continuous:
            if not self.can_be_continuous:
                raise DataError(
                    f"{self.path}: {{continuous}} needs a table, such as a .csv or .parquet file, "
                    "or a dense array. Write one."
                )
            check_continuous_patterns(self.path, self.feature_names, self.options)
        check_map_patterns(self.path, self.feature_names, self.options)

    def iter_batches(self) -> Iterator[RowBatch]:
        """Yield the rows in order, about four million cells at a time, or up to 16 if narrow.

        Raises `DataError` if the file is damaged or a value is not binary.
        """
        n_rows = 0
        with closing(self._read_batches()) as batches:
            while True:
                with translate_read_errors(self.path, n_rows):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch
                n_rows += len(batch)
        if self.n_rows not in (None, n_rows):
            raise DataError(
                f"{self.path}: there are {n_rows} rows, but the file states {self.n_rows}. "
                "Check that it is complete."
            )

    @abstractmethod
    def _read_batches(self) -> Generator[RowBatch]:
        """Read what `iter_batches` yields; exceptions of any type mean that the file is damaged."""

    def check_first_rows(self) -> None:
        """Read the first rows if that is quick, so that most mistakes are reported immediately."""
        if self.is_streaming:
            next(iter(self.iter_batches()), None)

    def list_warnings(self) -> list[str]:
        """List what the reader assumed, for the summary and the manifest."""
        encoding = self.options.encoding
        if encoding is None:
            return []
        texts = (path for path in self.files if _TEXT_TABLE.search(path) and Path(path).is_file())
        return [warning for path in texts for warning in warn_about_encoding(path, encoding)]

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all local files of the source."""
        return (self.path,)

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags that change with the content of the files, by absolute path or URL."""
        files = (Path(file) for file in self.files)
        return {str(file.resolve()): compute_file_tag(file) for file in files if file.is_file()}

    @cached_property
    def feature_mask(self) -> NDArray[np.bool_]:
        """Whether the options select each column as a feature, (n_features,)."""
        selected = set(select_feature_names(self.path, self.feature_names, self.options))
        return np.array([name in selected for name in self.feature_names])

    @cached_property
    def feature_levels(self) -> Mapping[str, tuple[str, ...]]:
        """Levels, in increasing order, of each feature with other levels than 0 and 1.

        A continuous feature has none.
        """
        maps = ((name, self.options.find_map(name)) for name in self.feature_names)
        return {
            name: value_map.levels
            for name, value_map in maps
            if value_map is not None
            and (value_map.is_continuous or value_map.levels not in ((), BINARY_LEVELS))
        }

    @cached_property
    def nominal_features(self) -> frozenset[str]:
        """Names of the features with more than two categories, which have no order."""
        maps = ((name, self.options.find_map(name)) for name in self.feature_levels)
        return frozenset(n for n, m in maps if m is not None and m.is_nominal and len(m.levels) > 2)

    @cached_property
    def continuous_features(self) -> list[int]:
        """Indices of the continuous features that the options select."""
        if not self.options.has_continuous:
            return []
        is_selected = [True] * self.n_features if self.can_select_columns else self.feature_mask
        return [
            k
            for k, name in enumerate(self.feature_names)
            if is_selected[k] and self.options.is_continuous(name)
        ]

    def stack_numbers(
        self, read: Callable[[int], NDArray[np.float32]]
    ) -> NDArray[np.float32] | None:
        """Return the values of the continuous features, given a function that reads a feature.

        They are (n_rows, n_continuous); None if no feature is continuous.
        """
        numbers = [read(feature) for feature in self.continuous_features]
        return np.column_stack(numbers) if numbers else None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.feature_names)

    @property
    def batch_rows(self) -> int:
        """Rows per batch, a multiple of 64."""
        rows = BATCH_CELLS // self.n_features
        return max(_MIN_BATCH_ROWS, rows - rows % _MIN_BATCH_ROWS)

    def iter_row_ranges(self, n_rows: int) -> Iterator[tuple[int, int]]:
        """Yield the batches of a number of rows: (first row, number of rows)."""
        for first in range(0, n_rows, self.batch_rows):
            yield first, min(self.batch_rows, n_rows - first)

    def make_batch(
        self,
        codes: ValueCodes,
        first_row: int,
        texts: Callable[[slice, int], Sequence[str]],
        columns: Mapping[str, NDArray[Any]] | None = None,
        numbers: NDArray[np.float32] | None = None,
    ) -> RowBatch:
        """Turn value codes into a batch, or refuse the first invalid value.

        Parameters
        ----------
        codes, columns
            Codes of the values, (n_rows, n_features), and per-row columns of the same rows.
        first_row
            Row of the source at which `codes` starts.
        texts
            Returns the values of (rows of `codes`, feature), as messages show them.
        numbers
            Values of the continuous features, whose codes are 0; see `RowBatch`.
        """
        if not (self.can_select_columns or self.feature_mask.all()):
            codes = np.where(self.feature_mask, codes, np.uint8(0))
        packed = pack_codes(codes)
        if packed is None:
            row, feature = divmod(int((codes == INVALID).argmax()), self.n_features)
            near = slice(max(0, row - _CONTEXT_ROWS), row + _CONTEXT_ROWS)
            nearby = texts(near, feature)
            others = np.flatnonzero((codes == INVALID).any(axis=0)).tolist()
            compared = others[:_MAX_COMPARED]  # if they are all alike, so are the rest
            alike = [k for k in compared if has_same_meaning(texts(near, k), nearby)]
            alike = others if alike == compared else alike
            raise self.make_not_binary_error(
                first_row + row, feature, nearby[min(row, _CONTEXT_ROWS)], nearby, alike
            )
        return RowBatch(len(codes), *packed, columns or {}, numbers)

    def make_not_binary_error(
        self, row: int, feature: int, value: str, nearby: Sequence[str], alike: Sequence[int] = ()
    ) -> DataError:
        """Return the error about a value, given nearby values of the column; `row` starts at 0.

        `alike` are the features for which options are proposed; by default, all.
        """
        name, options = self.feature_names[feature], self.options
        value_map = options.find_map(name)
        columns = (*self.column_names, *self.feature_names) if self.can_select_columns else ()
        continuous = name if self.can_be_continuous else None
        others = {self.feature_names[k] for k in alike} or {*self.feature_names}
        patterns = find_patterns(others, self.feature_names)
        remedy = suggest_remedy(name, nearby, options, value_map, columns, continuous, patterns)
        return DataError(
            f"{self.format_place(row, feature)}: "
            f"{describe_invalid_value(value, options, value_map)} {remedy}"
        )

    def format_place(self, row: int, feature: int) -> str:
        """Describe the position of a value; `row` counts from 0."""
        return f"{self.format_row_place(row)}, column {self.feature_names[feature]!r}"

    def format_row_place(self, row: int) -> str:
        """Describe the position of a row; `row` counts from 0."""
        return f"{self.path}: row {row + 1} (data rows counted from 1)"

    def _format_unknown_column(self, name: str) -> str:
        columns = [*self.column_names, *self.feature_names]
        hint = _suggest_column(name, [column for column in columns if column != name])
        checked = "Check {keep}, {segment_by} and {split_by}."
        return f"{self.path}: there is no column {name!r}. {f'{hint} ' if hint else ''}{checked}"


def check_integers(
    values: NDArray[Any], name: str, format_place: Callable[[int], str]
) -> NDArray[np.int64]:
    """Convert integers, (n_rows,), to 64 bits; raise `DataError` if one cannot be stored.

    `format_place` describes the place of a row.
    """
    is_outside = (values > _MAX_INTEGER) | (values == MISSING_INTEGER)
    if is_outside.any():
        row = int(is_outside.argmax())
        raise DataError(
            f"{format_place(row)}, column {name!r}: the integer {values[row]} is "
            f"outside ±{_MAX_INTEGER}. Store the column as text."
        )
    return values.astype(np.int64, copy=False)


def copy_fields(source: Source) -> dict[str, Any]:
    """Return the fields of `Source`, to construct a source that is derived from another."""
    return {own.name: getattr(source, own.name) for own in fields(Source)}


def make_feature_names(n_features: int) -> tuple[str, ...]:
    """Return the names f0, f1, … for features without names.

    Raises `ValueError` for so many, as a damaged file may state, that the names would fill memory.
    """
    if n_features > _MAX_FEATURES:
        raise ValueError(
            f"there are {n_features:,} features; at most {_MAX_FEATURES:,} are possible"
        )
    return tuple(f"f{feature}" for feature in range(n_features))


def check_column_names(path: str, names: Sequence[str]) -> None:
    """Raise `DataError` if a column name is empty or repeated."""
    if "" in names:
        raise DataError(
            f"{path}: column {names.index('') + 1} has no name. "
            "Name it, or write the file without a row index."
        )
    repeated = [repr(name) for name, count in Counter(names).items() if count > 1]
    if repeated:
        shown = ", ".join(repeated[:5]) + (", …" if len(repeated) > 5 else "")
        raise DataError(f"{path}: several columns have the same name: {shown}. Rename them.")


def compute_file_tag(file: Path) -> str:
    """Return a tag of a local file that changes with its content: size and time of writing."""
    status = file.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


@contextmanager
def translate_read_errors(path: str, n_rows: int = 0) -> Iterator[None]:
    """Turn any exception while a file is read into a one-line `DataError` that names the file.

    Libraries raise exceptions of all types about damaged files, also about the memory that absurd
    sizes would need. `n_rows` is the number of rows read before.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        place = f" after row {n_rows}" if n_rows else ""
        raise DataError(
            f"{path}: the file cannot be read{place}: {_explain_read_error(error)}. "
            "Check that it is complete and that its suffix is right."
        ) from error


def _explain_read_error(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error}"
    texts = [getattr(error, "strerror", None) or str(error), *getattr(error, "__notes__", ())]
    reason = " ".join(" ".join(texts).split()).rstrip(".")
    return reason[:_MAX_REASON_LENGTH] or type(error).__name__


def divide_columns(
    path: str, names: Sequence[str], options: ReadOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Divide the columns of a table into selected features and per-row columns."""
    check_column_names(path, names)
    row_columns = dict.fromkeys(options.row_columns)
    others = [name for name in names if name not in row_columns]
    features = select_feature_names(path, others, options)
    return features, tuple(name for name in row_columns if name in names)


def select_feature_names(
    path: str, names: Sequence[str], options: ReadOptions, noun: str = "column"
) -> tuple[str, ...]:
    """Return the features that the options select; messages call the names by a noun.

    Raises `DataError` if a name or pattern matches no column, or no feature is left.
    """
    selected = match_feature_names(path, names, options, noun)
    if names and not selected:
        raise DataError(f"{path}: {{features}} and {{drop}} leave no feature. Select two or more.")
    return selected


def match_feature_names(
    path: str, names: Sequence[str], options: ReadOptions, noun: str = "column"
) -> tuple[str, ...]:
    """Return the features that the options select, which may be none."""
    options = _split_options(options, names)
    included = _match_columns(path, "{features}", options.features, names, options.is_append, noun)
    dropped = _match_columns(path, "{drop}", options.drop, names, options.is_append, noun)
    return tuple(n for n in names if (n in included or not options.features) and n not in dropped)


def choose_features(
    path: str, names: Sequence[str], options: ReadOptions, reverse: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the features of a dataset that the options select, and those of them to reverse.

    Texts in the options and in `reverse` are names or patterns, or several with commas between
    them. Raises `DataError` if one matches no feature, or no feature is left.
    """
    selected = select_feature_names(path, names, options, "feature")
    reversed_names = split_names(reverse, {*names})
    matches = _match_columns(path, "{reverse}", reversed_names, selected, False, "feature")
    return selected, tuple(name for name in selected if name in matches)


def _split_options(options: ReadOptions, names: Sequence[str]) -> ReadOptions:
    """Return options with one name or pattern per text; a pattern that matches may have commas."""
    patterns = [text for text in (*options.features, *options.drop) if has_magic(text)]
    whole = {*names, *(p for p in patterns if any(fnmatchcase(name, p) for name in names))}
    features, drop = (tuple(split_names(t, whole)) for t in (options.features, options.drop))
    return replace(options, features=features, drop=drop)


def check_map_patterns(path: str, names: Sequence[str], options: ReadOptions) -> None:
    """Raise `DataError` if levels or maps are defined for features that do not exist."""
    for is_level, option in ((True, LEVEL_OPTIONS), (False, "{map}")):
        own = (m for m in options.maps if m.is_auto or not m.is_continuous)
        maps = [m for m in own if (m.is_auto or bool(m.levels)) == is_level]
        columns = [m.columns for m in maps if m.columns != "*"]
        if present := _list_present(columns, _split_options(options, names)):
            _match_columns(path, option, present, names, options.is_append)


def _list_present(patterns: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the patterns that match no dropped feature, so that they must match another one."""
    return [p for p in patterns if not any(fnmatchcase(name, p) for name in options.drop)]


def check_continuous_patterns(path: str, names: Sequence[str], options: ReadOptions) -> None:
    """Raise `DataError` if continuous features do not exist, or their values have codes too."""
    columns = [m.columns for m in options.maps if m.is_continuous and not m.is_auto]
    present = _list_present(columns, _split_options(options, names))
    continuous = _match_columns(path, "{continuous}", present, names, options.is_append)
    continuous |= {name for name in names for pattern in columns if fnmatchcase(name, pattern)}
    for value_map in options.maps:
        if value_map.is_continuous or value_map.columns == "*":
            continue
        option = LEVEL_OPTIONS if value_map.levels else "{map}"
        for name in names:
            if name in continuous and fnmatchcase(name, value_map.columns):
                raise DataError(
                    f"{path}: column {name!r} is in both {{continuous}} and {option}. Name it in "
                    "one of them."
                )


def _suggest_column(name: str, columns: Sequence[str]) -> str:
    """Return a hint about a column that does not exist; empty if there is none."""
    parts = name.split(",")
    if len(parts) > 1 and all(any(fnmatchcase(c, part) for c in columns) for part in parts):
        return "Repeat the option for each column."
    near = get_close_matches(name, columns, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _match_columns(
    path: str,
    option: str,
    patterns: Sequence[str],
    names: Sequence[str],
    may_miss: bool,
    noun: str = "column",
) -> set[str]:
    """Return the columns with these names; a name without a column is a pattern."""
    matches: set[str] = set()
    all_names = set(names)
    for pattern in patterns:
        hits = {pattern} & all_names
        if not hits and has_magic(pattern):
            hits = {name for name in names if fnmatchcase(name, pattern)}
        if not (hits or may_miss):
            first = ", ".join(names[:_MAX_NAMED]) + ", …" * (len(names) > _MAX_NAMED)
            hint = _suggest_column(pattern, names) or f"{noun.capitalize()}s: {first}"
            raise DataError(f"{path}: {option}: there is no {noun} {pattern!r}. {hint}")
        matches |= hits
    return matches
