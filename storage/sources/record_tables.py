"""Tables that libraries read as Arrow record batches: Parquet, SPSS, Stata and Excel."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO, NamedTuple
from xml.etree.ElementTree import iterparse
from xml.parsers.expat import ExpatError, ParserCreate
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet

from storage.dataset.batches import RowBatch
from storage.dataset.feature_levels import MAX_LEVELS
from storage.errors import DataError
from storage.extras import check_installed
from storage.quoting import parse_float, quote_raw
from storage.sources.arrow_columns import (
    can_be_kept,
    find_dictionary_levels,
    is_feature_type,
    make_table_batch,
)
from storage.sources.base import (
    Source,
    divide_columns,
)
from storage.sources.ordered_levels import check_same_order, make_level_map, match_labels
from storage.sources.value_codes import (
    MISSING,
    ReadOptions,
    ValueMap,
    find_map,
    sort_answers,
    suggest_map_of_labels,
)

RecordReader = Callable[[str, Sequence[str], int], Iterator[pa.RecordBatch]]
"""Reads columns of a file by name, a given number of rows at a time."""
# A document type precedes all elements.
_XML_HEAD_BYTES = 1 << 16
_MAX_COLUMNS = 200_000
# Batches of narrow values have more rows, because a column of a batch costs as much as thousands
# of its values: as many bytes per cell, but at most so many times the usual rows.
_BATCH_BYTES, _MAX_TIMES = 16, 4
_MAX_XML_BYTES = 1 << 30
_XML_BLOCK_BYTES = 1 << 14
_BLANK_CELLS = re.compile(rb"(?:<(?:\w+:)?c(?=[\s/])[^<>]*/>\s*)+")
_BLANK_ROWS = re.compile(rb"(?:<(?:\w+:)?row(?=[\s/>])[^<>]*(?:/>|>\s*</(?:\w+:)?row>)\s*)+")
_SAVE_AGAIN = "Open the file in a spreadsheet program and save it."


@dataclass(frozen=True, kw_only=True)
class RecordSource(Source):
    """A table that a library reads as Arrow record batches."""

    is_streaming = True
    can_select_columns = True
    can_be_continuous = True

    read_records: RecordReader
    warnings: tuple[str, ...] = ()

    def list_warnings(self) -> list[str]:
        """List the warnings about the header."""
        return [*self.warnings]

    def _read_batches(self) -> Generator[RowBatch]:
        """Read ranges of rows."""
        names, first_row = [*self.feature_names, *self.column_names], 0
        records: Any = self.read_records(self.path, names, self.batch_rows)
        with closing(records):
            for rows in records:
                yield make_table_batch(self, rows, first_row, self.options)
                first_row += rows.num_rows


def make_record_source(
    path: str, options: ReadOptions, names: Sequence[str], n_rows: int | None, records: RecordReader
) -> RecordSource:
    """Return the source of a table with named columns."""
    feature_names, column_names = divide_columns(path, names, options)
    return RecordSource(
        path=path,
        options=options,
        feature_names=feature_names,
        n_rows=n_rows,
        column_names=column_names,
        read_records=records,
    )


def open_parquet(path: str, options: ReadOptions) -> RecordSource:
    """Open a `.parquet` file; this reads its footer, and a row of ordered dictionaries."""
    with pa.parquet.ParquetFile(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
        source = make_record_source(path, options, schema.names, n_rows, _iter_parquet)
        if (n_columns := len(source.feature_names) + len(source.column_names)) > _MAX_COLUMNS:
            raise DataError(
                f"{path}: {n_columns:,} columns are to be read, but at most {_MAX_COLUMNS:,} "
                "columns of a .parquet file are possible, because each takes 10 kB of memory. "
                "Select some with {features}, or write a .npy, .csv or long table."
            )
        found = find_dictionary_levels(path, file, source.feature_names, options)
    for name in source.feature_names:
        if not is_feature_type(schema.field(name).type):
            kind, own = schema.field(name).type, quote_raw(name)
            remedy = f"Leave it out with {{drop={own}}}"
            if can_be_kept(kind):
                remedy = f"Use {{keep={own}}} to keep it as a per-row column"
            raise DataError(
                f"{path}: column {name!r} holds {kind}, not booleans, numbers or text. {remedy}."
            )
    for name in source.column_names:
        if not can_be_kept(kind := schema.field(name).type):
            raise DataError(
                f"{path}: column {name!r} holds {kind}, which cannot be kept. Leave it out with "
                f"{{drop={quote_raw(name)}}}."
            )
    return replace(source, options=_add_maps(options, found))


def _add_maps(options: ReadOptions, maps: Mapping[str, ValueMap]) -> ReadOptions:
    return replace(options, feature_maps={**options.feature_maps, **maps})


def _iter_parquet(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
        kinds = (file.schema_arrow.field(name).type for name in names)
        n_bytes = sum(map(_estimate_bytes, kinds)) / len(names)
        n_times = min(max(int(_BATCH_BYTES / n_bytes), 1), _MAX_TIMES)
        yield from file.iter_batches(n_times * n_rows, columns=[*names])


def _estimate_bytes(kind: pa.DataType) -> float:
    """Return the bytes per value in Arrow's memory; of texts, an estimate."""
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return _BATCH_BYTES


def open_statistics(path: str, options: ReadOptions) -> RecordSource:
    """Open a `.sav` or `.zsav` file of SPSS, or a `.dta` file of Stata; this reads its header.

    Values are the codes, not their labels; SPSS's user-missing values are missing. Labels are the
    levels of SPSS's ordinal columns, and of columns that the options declare to be ordered without
    a range of codes; see `match_labels`.
    """
    check_installed(path, "pyreadstat")
    # With this option, the header has the ranges of SPSS's user-missing values.
    _, header = _get_statistics_reader(path)(path, metadataonly=True, user_missing=True)
    # The number of rows is not always in the header, and may be wrong there.
    source = make_record_source(path, options, header.column_names, None, _iter_statistics)
    maps = ((name, _map_labels(path, name, header, options)) for name in source.feature_names)
    found = {name: value_map for name, value_map in maps if value_map is not None}
    warnings = (_warn_about_labels(path, name, header, options) for name in source.feature_names)
    own = tuple(warning for warning in warnings if warning)
    return replace(source, options=_add_maps(options, found), warnings=own)


def _warn_about_labels(path: str, name: str, header: Any, options: ReadOptions) -> str:
    """Warn about a column of 0 and 1 whose labels mean the opposite; empty if not."""
    labels = header.variable_value_labels.get(name, {})
    zero, one = (str(labels.get(code, "")).strip() for code in (0, 1))
    remedy = suggest_map_of_labels(name, zero, one)
    if not remedy or options.threshold is not None or options.find_map(name) is not None:
        return ""
    return (
        f"{path}: column {name!r} was read by its codes, of which 0 has the label {zero!r} and 1 "
        f"the label {one!r}; {remedy} reads the labels"
    )


def _map_labels(path: str, name: str, header: Any, options: ReadOptions) -> ValueMap | None:
    """Return the map of a column's codes to levels, if its labels name levels; else None."""
    missing = header.missing_ranges.get(name, ())
    labels = {
        f"{code:.15g}": str(label).strip()
        for code, label in sorted(header.variable_value_labels.get(name, {}).items())
        if not isinstance(code, str) and not any(r["lo"] <= code <= r["hi"] for r in missing)
    }
    labels = {c: label for c, label in labels.items() if not options.is_declared_missing(c)}
    option, place = options.find_map(name), f"{path}: column {name!r}"
    if not labels or options.threshold is not None or (option and option.is_continuous):
        return None
    # A missing text may be a label; a number is a code.
    texts = {text for text in options.missing if parse_float(text) is None}
    absent = {code for code, label in labels.items() if label in texts}
    named = {c: label for c, label in labels.items() if c not in absent}
    measure, bits = header.variable_measure.get(name), {"0", "1"}
    is_ordered = measure == "ordinal" and not {*named} <= bits
    # Values of 0 and 1 may have further labels, such as one of a refusal.
    is_nominal = measure == "nominal" and len(named) > 1 and not bits <= {*named}
    if option is not None:
        is_nominal = option.is_nominal
    if option is not None and not option.has_candidates:
        stated = find_map(options.maps, name)
        found = match_labels(named, option, stated, name, place)
        states_order = is_ordered if stated is None else stated.has_candidates
        if states_order and found is not option and not is_nominal:
            check_same_order([*named.values()], option, name, place)
    elif is_nominal and option is None and len(named) > MAX_LEVELS:
        return None
    elif option is not None or is_ordered or is_nominal:
        levels = [*named.values()]
        levels = sort_answers(levels) if is_nominal else levels
        codes = tuple((code, levels.index(label)) for code, label in named.items())
        found = make_level_map(name, levels, place, codes, is_nominal=is_nominal)
    else:
        return None
    return replace(found, codes=(*found.codes, *((code, MISSING) for code in absent)))


def _get_statistics_reader(path: str) -> Any:
    import pyreadstat

    return pyreadstat.read_dta if path.lower().endswith(".dta") else pyreadstat.read_sav


def _iter_statistics(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    import pyreadstat

    batches = pyreadstat.read_file_in_chunks(
        _get_statistics_reader(path), path, chunksize=n_rows, usecols=[*names], output_format="dict"
    )
    for values, _ in batches:
        columns = (pa.array(values[name], from_pandas=True) for name in names)
        # All numbers are floats here; as text, whole numbers become integers again.
        yield pa.record_batch([column.cast(pa.string()) for column in columns], names=[*names])


def open_excel(path: str, options: ReadOptions) -> RecordSource:
    """Open the only non-empty sheet of an `.xlsx` file; this reads its first row."""
    check_installed(path, "openpyxl")
    with closing(_iter_excel_rows(path)) as rows:
        header = _read_excel_header(path, rows)
    if not header:
        raise DataError(f"{path}: the first row contains no names.")
    names = [header.get(column, "") for column in range(1, max(header) + 1)]
    return make_record_source(path, options, names, None, _iter_excel)


def _iter_excel(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    with closing(_iter_excel_rows(path)) as rows:
        header = _read_excel_header(path, rows)
        columns = {name: column for column, name in header.items()}
        while run := list(islice(rows, n_rows)):
            for row in run:
                _refuse_nameless_cells(path, row, header)
            arrays = (
                pa.array([_format_cell(path, row, columns[name]) for row in run], pa.string())
                for name in names
            )
            yield pa.record_batch([*arrays], names=[*names])


class _ExcelRow(NamedTuple):
    """The number of a row in its sheet, and its non-empty cells by column, which count from 1."""

    number: int
    cells: Mapping[int, Any]


_NO_RESULT = object()
"""Stands for a cell with a formula whose result is not in the file."""


def _iter_excel_rows(path: str) -> Any:
    """Yield the non-empty rows of the only sheet that has any."""
    import openpyxl

    _refuse_hostile_xml(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheets = [sheet for sheet in book.worksheets if any(_iter_sheet_rows(path, sheet))]
        if len(sheets) > 1:
            titles = ", ".join(repr(sheet.title) for sheet in sheets)
            raise DataError(
                f"{path}: several sheets have values: {titles}. Save the one to read as a separate "
                "file."
            )
        for sheet in sheets:
            yield from _iter_sheet_rows(path, sheet)
    finally:
        book.close()


def _refuse_hostile_xml(path: str) -> None:
    """Refuse XML with a document type, whose entities could expand to any text, or too much XML."""
    with ZipFile(path) as archive:
        if (n_bytes := sum(member.file_size for member in archive.infolist())) > _MAX_XML_BYTES:
            raise DataError(
                f"{path}: the workbook has {n_bytes / 1e9:,.1f} GB of XML, more than "
                f"{_MAX_XML_BYTES / 1e9:.1f}. Delete the blank rows and columns, which may have "
                "a format, or save the sheet as a .csv file."
            )
        for member in archive.namelist():
            declarations: list[str] = []
            parser = ParserCreate()
            parser.StartDoctypeDeclHandler = lambda *names, found=declarations: found.extend(names)
            # openpyxl reports malformed XML if it needs the member.
            with archive.open(member) as stream, suppress(ExpatError):
                parser.Parse(stream.read(_XML_HEAD_BYTES))
            if declarations:
                raise DataError(
                    f"{path}: {member} declares an XML document type, which no spreadsheet "
                    "program writes. Do not trust the file."
                )


def _iter_sheet_rows(path: str, sheet: Any) -> Iterator[_ExcelRow]:
    """Yield the non-empty rows of a sheet.

    The parser is the one behind `sheet.iter_rows`, which would stop at the size that the file
    states, drop rows that are not in order, and take formulas without a result for empty cells.
    """
    from openpyxl.worksheet import _reader

    book, previous = sheet.parent, 0
    with sheet._get_source() as stream:
        parser = _reader.WorkSheetParser(
            stream,
            sheet._shared_strings,
            data_only=True,
            epoch=book.epoch,
            date_formats=book._date_formats,
            timedelta_formats=book._timedelta_formats,
        )
        for _, element in iterparse(_BlankFilter(stream)):
            if element.tag != _reader.ROW_TAG:
                continue
            if "r" in element.attrib and not any(map(len, element)):  # only blank cells
                element.clear()
                continue
            number, cells = parser.parse_row(element)
            values = {cell["column"]: cell["value"] for cell in cells}
            is_repeated = number <= previous or len(values) < len(cells)
            if is_repeated or any(cell["row"] != number for cell in cells):
                raise DataError(
                    f"{path}: the cells of row {number} are not in order, or one is there twice. "
                    f"{_SAVE_AGAIN}"
                )
            for cell, source in zip(cells, element, strict=True):
                formula, result = source.find(_reader.FORMULA_TAG), source.find(_reader.VALUE_TAG)
                is_empty_text = source.get("t") == "str" and result is not None
                if formula is not None and cell["value"] is None and not is_empty_text:
                    values[cell["column"]] = _NO_RESULT
            element.clear()
            previous = number
            if values := {c: value for c, value in values.items() if value is not None}:
                yield _ExcelRow(number, values)


class _BlankFilter:
    """XML of a sheet without its blank cells and rows, which take most time if there are many."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._rest = stream, b""

    def read(self, size: int = -1) -> bytes:
        """Return some of the XML, of any length; empty at the end."""
        while data := self._stream.read(_XML_BLOCK_BYTES):
            data = self._rest + data
            end = data.rfind(b">") + 1 or len(data)
            part, self._rest = data[:end], data[end:]
            if part.count(b"/>") > part.count(b"</"):  # most cells are blank
                part = _BLANK_ROWS.sub(b"", _BLANK_CELLS.sub(b"", part))
            if part and not part.isspace():
                return part
        part, self._rest = self._rest, b""
        return part


def _read_excel_header(path: str, rows: Iterator[_ExcelRow]) -> dict[int, str]:
    """Return the names in the first row, by column."""
    row = next(rows, _ExcelRow(0, {}))
    names = {column: (_format_cell(path, row, column) or "").strip() for column in row.cells}
    return {column: name for column, name in names.items() if name}


def _refuse_nameless_cells(path: str, row: _ExcelRow, header: Mapping[int, str]) -> None:
    if nameless := row.cells.keys() - header.keys():
        raise DataError(
            f"{path}: cell {_format_cell_name(row, min(nameless))} has a value, but its column has "
            "no name. Name the column in the first row, or empty the cell."
        )


def _format_cell(path: str, row: _ExcelRow, column: int) -> str | None:
    """Return a cell as a CSV file would have it."""
    value = row.cells.get(column)
    if value is _NO_RESULT:
        raise DataError(
            f"{path}: cell {_format_cell_name(row, column)} has a formula, but the file does not "
            f"contain its result. {_SAVE_AGAIN}"
        )
    return None if value is None else str(value)


def _format_cell_name(row: _ExcelRow, column: int) -> str:
    from openpyxl.utils import get_column_letter

    return f"{get_column_letter(column)}{row.number}"
