"""What every source has in common: batches, options, and the one check that values are binary."""

from __future__ import annotations

import csv
import sys
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.advice import shorten_value, suggest_remedy
from storage.sources.value_codes import (
    INVALID,
    MISSING,
    ReadOptions,
    ValueCodes,
    copy_to_row_order,
    find_map,
)

# Large enough to hide the cost of a batch, small enough that a few of them fit any machine.
BATCH_CELLS = 1 << 22
LONG_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""Suffixes of files that may have a line a value."""
_MIN_BATCH_ROWS = 64
_CONTEXT_ROWS = 5000
_READ_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    csv.Error,
)
_LIBRARY_ERRORS = {"pyarrow": "ArrowException", "pyreadstat": "ReadstatError"}


@dataclass(frozen=True)
class SourceBatch:
    """A run of consecutive rows of one source.

    Attributes
    ----------
    X
        Values in {0, 1}, (n_rows, n_features) in C order; 0 where not observed.
    observed
        1 = observed, same shape; None when all are observed.
    columns
        Per-row columns by name, each (n_rows,): integers, floats or str.
    """

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    columns: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """An opened source: names are known, no row has been read.

    Attributes
    ----------
    path
        The path as given.
    options
        How its values become bits.
    feature_names
        Names of the features, in column order.
    n_rows
        Number of rows, when known without reading the data.
    column_names
        Per-row columns that every batch delivers.
    default_segment, default_split
        The per-row columns that the format itself calls segment and split.
    """

    is_streaming: ClassVar[bool] = False
    """Whether the first batch costs no more than itself."""
    can_select_columns: ClassVar[bool] = False
    """Whether columns that the options leave out are not even read."""
    duplicate_remedy: ClassVar[str] = "Sum or remove duplicate entries first."
    """What to do about a cell that is given twice."""

    path: str
    options: ReadOptions
    feature_names: tuple[str, ...]
    n_rows: int | None = None
    column_names: tuple[str, ...] = ()
    default_segment: str | None = None
    default_split: str | None = None

    def __post_init__(self) -> None:
        if not self.feature_names:
            raise DataError(f"{self.path}: Expected at least one feature, got none.")
        check_column_names(self.path, self.feature_names)
        for name in self.options.row_columns:
            if name not in self.column_names:
                raise DataError(self._format_unknown_column(name))

    @abstractmethod
    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read the rows in order, about four million cells at a time.

        Raises
        ------
        DataError
            If the file is damaged or a value is not binary.
        """

    def check_first_rows(self) -> None:
        """Read the first rows, where that is quick: what is wrong with most is told at once.

        Raises
        ------
        DataError
            If one of their values is not binary.
        """
        if self.is_streaming:
            next(iter(self.iter_batches()), None)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files that are read."""
        return (self.path,)

    @property
    def tags(self) -> Mapping[str, str]:
        """What tells the files from the same files with other content, by full path or URL."""
        files = (Path(file) for file in self.files)
        return {str(file.resolve()): compute_file_tag(file) for file in files if file.is_file()}

    @cached_property
    def feature_mask(self) -> NDArray[np.bool_]:
        """Whether each feature is one by the options, (n_features,)."""
        wanted = set(select_feature_names(self.path, self.feature_names, self.options))
        return np.array([name in wanted for name in self.feature_names])

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.feature_names)

    @property
    def batch_rows(self) -> int:
        """Rows of a batch, a multiple of 64."""
        rows = BATCH_CELLS // self.n_features
        return max(_MIN_BATCH_ROWS, rows - rows % _MIN_BATCH_ROWS)

    def iter_row_ranges(self, n_rows: int) -> Iterator[tuple[int, int]]:
        """Cut rows into batches: (first row, number of rows)."""
        for first in range(0, n_rows, self.batch_rows):
            yield first, min(self.batch_rows, n_rows - first)

    def make_batch(
        self,
        codes: ValueCodes,
        first_row: int,
        texts: Callable[[slice, int], Sequence[str]],
        columns: Mapping[str, NDArray[Any]] | None = None,
    ) -> SourceBatch:
        """Turn codes into a batch, or refuse the first bad value.

        Parameters
        ----------
        codes
            Codes of the values, (n_rows, n_features).
        first_row
            Row of the source that `codes` starts at.
        texts
            Gives the original values of (rows of `codes`, feature), as a message shows them.
        columns
            Per-row columns of these rows.
        """
        codes = copy_to_row_order(codes)
        if not (self.can_select_columns or self.feature_mask.all()):
            codes[:, ~self.feature_mask] = 0
        highest = codes.max(initial=0)
        if highest == INVALID:
            row, feature = divmod(int((codes == INVALID).argmax()), self.n_features)
            around = texts(slice(max(0, row - _CONTEXT_ROWS), row + _CONTEXT_ROWS), feature)
            raise self.make_not_binary_error(
                first_row + row, feature, around[min(row, _CONTEXT_ROWS)], around
            )
        if highest < MISSING:
            return SourceBatch(codes, None, columns or {})
        X, observed = (codes == 1).view(np.uint8), (codes != MISSING).view(np.uint8)
        return SourceBatch(X, observed, columns or {})

    def make_not_binary_error(
        self, row: int, feature: int, value: str, column: Sequence[str]
    ) -> DataError:
        """Build the error about one value of a column; `row` counts from 0."""
        name, options = self.feature_names[feature], self.options
        value_map = find_map(options.maps, name)
        expected = "0, 1, true, false" if value_map is None else str(value_map)
        if options.threshold is not None:
            expected = "a number, true, false"
        given = "--threshold" if options.threshold is not None else "--map" if value_map else None
        columns = (*self.column_names, *self.feature_names) if self.can_select_columns else ()
        remedy = suggest_remedy(name, column, given, columns)
        return DataError(
            f"{self.format_place(row, feature)}: Expected {expected} or a missing value, "
            f"got {shorten_value(value)}. {remedy}"
        )

    def format_place(self, row: int, feature: int) -> str:
        """Say where a value stands; `row` counts from 0."""
        return f"{self.format_row_place(row)}, column {self.feature_names[feature]!r}"

    def format_row_place(self, row: int) -> str:
        """Say where a row stands; `row` counts from 0."""
        return f"{self.path}: row {row + 1} (data rows counted from 1)"

    def _format_unknown_column(self, name: str) -> str:
        known = [*self.column_names, *self.feature_names]
        near = get_close_matches(name, [other for other in known if other != name], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return (
            f"{self.path}: Expected a per-row column {name!r}, got none of that name.{hint} "
            "Check --keep, --segment-by and --split-by."
        )


def check_installed(path: str, package: str, extra: str) -> None:
    """Refuse a file whose reader is not installed."""
    if find_spec(package) is None:
        raise DataError(
            f"{path}: Expected the package {package} to read it, got none. "
            f"pip install 'latentbits[{extra}]'."
        )


def make_feature_names(n_features: int) -> tuple[str, ...]:
    """Give the names f0, f1, … to features that have none."""
    return tuple(f"f{feature}" for feature in range(n_features))


def check_column_names(path: str, names: Sequence[str]) -> None:
    """Refuse empty and repeated column names."""
    if "" in names:
        raise DataError(
            f"{path}: Expected a name for every column, got none for column "
            f"{names.index('') + 1}. Name it, or write the file without a row index."
        )
    repeated = [repr(name) for name, count in Counter(names).items() if count > 1]
    if repeated:
        shown = ", ".join(repeated[:5]) + (", …" if len(repeated) > 5 else "")
        raise DataError(f"{path}: Expected distinct names, got repeated {shown}. Rename them.")


def _list_read_errors() -> tuple[type[Exception], ...]:
    """Give what bad files raise; a library's own errors only where somebody has imported it."""
    modules = ((sys.modules.get(module), error) for module, error in _LIBRARY_ERRORS.items())
    return (*_READ_ERRORS, *(getattr(module, error) for module, error in modules if module))


def compute_file_tag(file: Path) -> str:
    """Tell a file of this machine from the same with other content: size and time of writing."""
    found = file.stat()
    return f"{found.st_size}-{found.st_mtime_ns}"


@contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Turn what a library raises about a bad file into one line that names the file."""
    try:
        yield
    except DataError:
        raise
    except _list_read_errors() as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(
            f"{path}: Expected a readable file, got an error: {reason or type(error).__name__}. "
            "Check that it is whole and of the kind its name says."
        ) from error


_MAX_NAMED = 5


def select_feature_names(path: str, names: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Leave out what the options drop, and what they do not name where they name some.

    Raises
    ------
    DataError
        If a name or pattern fits no column, or none is left.
    """
    found = match_feature_names(path, names, options)
    if names and not found:
        raise DataError(
            f"{path}: Expected at least one feature, got none: --features and --drop leave nothing."
        )
    return found


def match_feature_names(path: str, names: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Do the same, and leave nothing where that is what the options say."""
    named = _match_columns(path, "--features", options.features, names, options.is_append)
    dropped = _match_columns(path, "--drop", options.drop, names, options.is_append)
    return tuple(n for n in names if (n in named or not options.features) and n not in dropped)


def _match_columns(
    path: str, option: str, patterns: Sequence[str], names: Sequence[str], may_miss: bool
) -> set[str]:
    """Find the columns of that name, or, where there is none, those that fit the pattern."""
    found: set[str] = set()
    known = set(names)
    for pattern in patterns:
        fit = {pattern} & known or {name for name in names if fnmatchcase(name, pattern)}
        if not (fit or may_miss):
            near = get_close_matches(pattern, names, n=1)
            some = ", ".join(names[:_MAX_NAMED]) + ", …" * (len(names) > _MAX_NAMED)
            hint = f"Did you mean {near[0]!r}?" if near else f"Columns: {some}"
            raise DataError(f"{path}: {option}: Expected a column {pattern!r}, got none. {hint}")
        found |= fit
    return found
