"""Text tables: CSV and TSV files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from numpy.typing import NDArray

from pipeline.words import BITS_BY_WORD
from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.sources.arrow_columns import (
    convert_row_column,
    make_csv_word_options,
    make_table_batch,
    read_numbers,
)
from storage.sources.base import (
    Source,
    divide_columns,
    make_feature_names,
)
from storage.sources.text import (
    TABLE_BLOCK_BYTES,
    check_block_encoding,
    iter_line_blocks,
    open_text,
)
from storage.sources.value_codes import (
    INVALID,
    ReadOptions,
    ValueMap,
    encode_tokens,
    find_map,
    parse_number,
)

_MANY_COLUMNS = 2000
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, kw_only=True)
class CsvSource(Source):
    """A `.csv` or `.tsv` file. Per-row columns stay text, as written.

    Attributes
    ----------
    delimiter
        Comma, semicolon, tab or vertical bar.
    header
        Names of all columns in file order.
    has_header
        Whether the first line contains the names.
    """

    is_streaming = True
    can_select_columns = True
    can_be_continuous = True

    delimiter: str
    header: tuple[str, ...]
    has_header: bool

    def _read_batches(self) -> Generator[RowBatch]:
        """Parse blocks of lines: as bits or numbers if possible, else as text."""
        first_row = 0
        with open_text(self.path, self.options.encoding) as stream:
            if self.has_header:
                stream.readline()
            for block in iter_line_blocks(stream, TABLE_BLOCK_BYTES):
                if (batch := self._read_cells(block, first_row)) is not None:
                    yield batch
                    first_row += len(batch)
                    continue
                table, options = self._parse(block, first_row)
                self._refuse_line_breaks(table, first_row)
                for rows in table.to_batches():
                    yield make_table_batch(self, rows, first_row, options)
                    first_row += rows.num_rows

    def _read_cells(self, block: bytes, first_row: int) -> RowBatch | None:
        """Parse the rows of a wide table as one column of cells, as a column costs 100 µs.

        Returns None for tables of few columns, and if there are quotes or rows of other lengths.
        """
        n_columns, delimiter = len(self.header), self.delimiter.encode()
        if n_columns < _MANY_COLUMNS or b'"' in block:
            return None
        characters = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero((characters == delimiter[0]) | (characters == 10))
        if len(ends) % n_columns:
            return None
        are_line_ends = (characters[ends] == 10).reshape(-1, n_columns)
        n_rows = len(are_line_ends)
        if not are_line_ends[:, -1].all() or np.count_nonzero(are_line_ends) != n_rows:
            return None
        with suppress(pa.ArrowInvalid):
            table = pa.csv.read_csv(
                pa.BufferReader(block.replace(delimiter, b"\n")),
                pa.csv.ReadOptions(column_names=["cell"], block_size=len(block) + 1),
                pa.csv.ParseOptions(delimiter="\x1f", quote_char=False, ignore_empty_lines=False),
                pa.csv.ConvertOptions(column_types={"cell": pa.string()}),
            )
            if len(table) == n_rows * n_columns:
                cells = table.column(0).combine_chunks()
                return self._encode_cells(cells, n_rows, first_row)
        return None

    def _encode_cells(self, cells: pa.Array, n_rows: int, first_row: int) -> RowBatch:
        """Make a batch of the texts of all cells, row by row."""
        places = np.arange(len(cells)).reshape(n_rows, -1)
        coded = cells.dictionary_encode()
        words, indices = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        codes = np.zeros((n_rows, self.n_features), np.uint8)
        for value_map, features in self._features_by_map.items():
            if value_map is None or not value_map.is_continuous:
                own = places[:, self._feature_places[features]]
                codes[:, features] = encode_tokens(words, self.options, value_map)[indices[own]]
        columns = {
            name: convert_row_column(
                self, name, cells.take(pa.array(places[:, self.header.index(name)])), first_row
            )
            for name in self.column_names
        }

        def texts(part: slice, feature: int) -> list[str]:
            own = places[part, self._feature_places[feature]]
            return [repr(text) for text in cells.take(pa.array(own)).to_pylist()]

        continuous, numbers = self.continuous_features, None
        if continuous:
            measured = cells.take(pa.array(places[:, self._feature_places[continuous]].ravel()))

            def format_place(number: int) -> str:
                row, k = divmod(number, len(continuous))
                return self.format_place(first_row + row, continuous[k])

            numbers = read_numbers(measured, self.options, format_place).reshape(n_rows, -1)
        return self.make_batch(codes, first_row, texts, columns, numbers)

    @cached_property
    def _feature_places(self) -> NDArray[np.int64]:
        """The column of each feature."""
        places = {name: place for place, name in enumerate(self.header)}
        return np.array([places[name] for name in self.feature_names])

    @cached_property
    def _features_by_map(self) -> dict[ValueMap | None, list[int]]:
        """The features of each map."""
        is_common, value_map = self.options.find_common_map(self.feature_names)
        if is_common:
            return {value_map: [*range(self.n_features)]}
        found: dict[ValueMap | None, list[int]] = {}
        for feature, name in enumerate(self.feature_names):
            found.setdefault(self.options.find_map(name), []).append(feature)
        return found

    def _parse(self, block: bytes, first_row: int) -> tuple[pa.Table, ReadOptions]:
        """Return the values and the options still to apply: Arrow may have applied the map."""
        types = self._fast_types
        if types is not None and not _has_odd_numbers(block, types.values()):
            with suppress(pa.ArrowInvalid):
                are_bits = {*types.values()} == {pa.bool_()}
                return self._read(types, block), ReadOptions() if are_bits else self.options
        try:
            return self._read(dict.fromkeys(self.feature_names, pa.string()), block), self.options
        except pa.ArrowInvalid as error:
            check_block_encoding(self.path, self.options.encoding, block)
            self._refuse_ragged(block, first_row)
            place, reason = self.format_row_place(first_row), " ".join(str(error).split())
            raise DataError(
                f"{place} or after: the text cannot be parsed: {reason}. Correct the file."
            ) from error

    @cached_property
    def _common_map(self) -> ValueMap | None:
        """The map that all features share, if any."""
        return self.options.find_common_map(self.feature_names)[1]

    @cached_property
    def _fast_types(self) -> dict[str, pa.DataType] | None:
        """Types of the features that Arrow can parse by itself; None if it has to read text.

        If all are bits, Arrow also applies the map and finds missing values.
        """
        is_common, value_map = self.options.find_common_map(self.feature_names)
        if is_common and (value_map is None or {*value_map.words.values()} == {0, 1}):
            kind = pa.bool_() if self.options.threshold is None else pa.float64()
            return dict.fromkeys(self.feature_names, kind)
        types = {name: _find_type(self.options.find_map(name)) for name in self.feature_names}
        # A column of bits would no longer tell which of its words was the missing one.
        are_bits_missing = any(word.lower() in ("true", "false") for word in self.options.missing)
        return None if None in types.values() or are_bits_missing else types

    def _read(
        self,
        features: Mapping[str, pa.DataType],
        block: bytes,
        record_ragged: Callable[[pa.csv.InvalidRow], str] | None = None,
    ) -> pa.Table:
        """Parse lines with features of these types; on one thread if ragged rows are recorded."""
        types = {**features} | dict.fromkeys(self.column_names, pa.string())
        words = make_csv_word_options(self.options, self._common_map)
        layout = (self.header, self.delimiter)
        return parse_csv_block(block, *layout, types, words, record_ragged is None, record_ragged)

    def _refuse_ragged(self, block: bytes, first_row: int) -> None:
        """Parse again on one thread, because only then Arrow numbers the rows it refuses."""
        ragged: list[pa.csv.InvalidRow] = []

        def record(row: pa.csv.InvalidRow) -> str:
            ragged.append(row)
            return "skip"

        with suppress(pa.ArrowInvalid):
            self._read(dict.fromkeys(self.feature_names, pa.string()), block, record)
        for row in ragged[:1]:
            place = self.format_row_place(first_row + row.number - 1)
            raise DataError(
                f"{place}: the row has {row.actual_columns} columns, but the table has "
                f"{row.expected_columns}. Correct the row."
            )

    def _refuse_line_breaks(self, table: pa.Table, first_row: int) -> None:
        """Refuse line breaks in texts: an unclosed quote would swallow the following rows."""
        for name in self.column_names:
            broken = pa.compute.match_substring(table.column(name), "\n").to_numpy()
            if broken.any():
                row = first_row + int(broken.argmax())
                raise DataError(
                    f"{self.format_row_place(row)}, column {name!r}: there is a line break inside "
                    "quotes. Close the quote, or remove the break."
                )


def _has_odd_numbers(block: bytes, types: Collection[pa.DataType]) -> bool:
    """Return whether Arrow may read texts as numbers that `parse_float` does not take for any."""
    odd = {pa.int16(): (b"0x", b"0X"), pa.float64(): (b"nfinity", b"NFINITY")}
    return any(word in block for kind, words in odd.items() if kind in types for word in words)


def _find_type(value_map: ValueMap | None) -> pa.DataType | None:
    """Return the type of values that are all bits, all integers or continuous, else None."""
    if value_map is None:
        return pa.bool_()
    if value_map.is_continuous:
        return pa.float64()
    are_integers = all(value.lstrip("-").isdecimal() for value in value_map.words)
    return pa.int16() if value_map.levels and are_integers else None


def parse_csv_block(
    block: bytes,
    header: Sequence[str],
    delimiter: str,
    types: Mapping[str, pa.DataType],
    words: Mapping[str, list[str]],
    use_threads: bool,
    invalid_row_handler: Callable[[pa.csv.InvalidRow], str] | None = None,
) -> pa.Table:
    """Parse whole lines of text; `types` are the types of the columns to read."""
    return pa.csv.read_csv(
        pa.BufferReader(block),
        pa.csv.ReadOptions(column_names=header, use_threads=use_threads, block_size=len(block) + 1),
        pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=invalid_row_handler),
        pa.csv.ConvertOptions(column_types=types, include_columns=[*types], **words),
    )


def open_csv(path: str, options: ReadOptions) -> CsvSource:
    """Open a `.csv` or `.tsv` file; this reads its first line.

    A first line of nothing but values and missing tokens counts as a row, not as a header.
    """
    delimiter, words = read_csv_header(path, options.encoding)
    plain = ReadOptions(options.missing)
    has_header = not all(_is_value(word, plain) for word in dict.fromkeys(words))
    if has_header and _is_row(words, options):
        raise DataError(
            f"{path}: the first line contains values, not names. "
            "Add a line with the names of the columns."
        )
    header = tuple(words) if has_header else make_feature_names(len(words))
    feature_names, column_names = divide_columns(path, header, options)
    return CsvSource(
        path=path,
        options=options,
        feature_names=feature_names,
        column_names=column_names,
        delimiter=delimiter,
        header=header,
        has_header=has_header,
    )


def read_csv_header(path: str, encoding: str | None) -> tuple[str, list[str]]:
    """Read the first line and return the delimiter and the words.

    Raises `DataError` if there is no first line, or its delimiter is ambiguous or unexpected.
    """
    with open_text(path, encoding) as stream:
        start = stream.readline(), stream.readline()
    check_block_encoding(path, encoding, b"".join(start))
    lines = [line.decode() for line in start]
    if "\0" in lines[0]:
        raise DataError(
            f"{path}: the first line contains NUL characters, as UTF-16 does. Name the encoding, "
            "such as {encoding=utf-16-le}, or save the file as UTF-8."
        )
    delimiter = _find_delimiter(path, lines)
    words = [word.strip() for word in _split_line(lines[0], delimiter)]
    if not words:
        raise DataError(f"{path}: the first line is empty.")
    _refuse_other_marks(path, words, delimiter)
    return delimiter, words


def _find_delimiter(path: str, lines: Sequence[str]) -> str:
    """Find the delimiter: a tab in a `.tsv`, else one that splits both lines into as many words."""
    if path.lower().removesuffix(".gz").endswith(".tsv"):
        return "\t"
    counts = {
        mark: {_count_words(line, mark) for line in lines if line.strip()} for mark in _DELIMITERS
    }
    fit = [mark for mark, n in counts.items() if len(n) == 1 and n != {1}]
    if len(fit) > 1:
        columns = " and ".join(
            f"{min(counts[mark])} columns by {_DELIMITERS[mark]}" for mark in fit
        )
        raise DataError(
            f"{path}: the delimiter is ambiguous: {columns}. "
            "Write the file with one delimiter, or quote the names that contain the other."
        )
    return fit[0] if fit else ","


def _refuse_other_marks(path: str, words: Sequence[str], delimiter: str) -> None:
    """Refuse a first line of one word that seems to contain another delimiter."""
    marks = {**_DELIMITERS, " ": "spaces"}
    other = next((mark for mark in marks if len(words) == 1 and mark in words[0]), None)
    if other is not None:
        raise DataError(
            f"{path}: there is one column, which seems to be several separated by {marks[other]} "
            f"instead of {marks[delimiter]}. Write commas to a .csv or tabs to a .tsv file."
        )


def _count_words(line: str, delimiter: str) -> int:
    """Return the number of words; a line without the delimiter may be too long for a word."""
    return len(_split_line(line, delimiter)) if delimiter in line else 1


def _split_line(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def _is_row(words: Sequence[str], options: ReadOptions) -> bool:
    return all(_is_value(word, options, find_map(options.maps, word)) for word in words)


def _is_value(word: str, options: ReadOptions, value_map: ValueMap | None = None) -> bool:
    """Return whether a word of the first line is a value; `correct` is rather a name."""
    may_be_name = value_map is None and parse_number(word) is None
    if may_be_name and word.strip().lower() in BITS_BY_WORD:
        return False
    return bool(encode_tokens([word], options, value_map) != INVALID)
