"""Arrow columns as value codes. Text becomes bits or levels only here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from pipeline.words import MISSING_WORDS
from storage.dataset.batches import RowBatch, make_full_mask, slice_bits
from storage.dataset.chunks import Bytes
from storage.dataset.feature_levels import MAX_LEVELS
from storage.errors import DataError
from storage.format.schema import MISSING_INTEGER
from storage.quoting import parse_float, quote_prefix, quote_raw
from storage.sources.base import Source, check_integers
from storage.sources.ordered_levels import check_same_order, make_level_map, merge_orders
from storage.sources.value_codes import (
    INVALID,
    MISSING,
    PackedValues,
    ReadOptions,
    ValueCodes,
    ValueMap,
    encode_numbers,
    encode_tokens,
    find_map,
    is_bit_word,
    mark_missing,
    merge_bitmaps,
    pack_codes,
    parse_number,
    sort_answers,
    store_numbers,
)


def _list_case_variants(word: str) -> list[str]:
    return ["".join(letters) for letters in product(*({c, c.upper()} for c in word))]


_FEW_VALUES = 16  # so many are compared one by one
_TRUE_WORDS, _FALSE_WORDS = (
    ["1", "1.0", *_list_case_variants("true")],
    ["0", "0.0", *_list_case_variants("false")],
)


def is_feature_type(kind: pa.DataType) -> bool:
    """Return whether `encode_column` accepts columns of this type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        is_text,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_null,
    )
    return any(test(kind) for test in tests)


def can_be_kept(kind: pa.DataType) -> bool:
    """Return whether columns of this type can be stored as numbers or texts."""
    try:
        pa.array([], kind.value_type if pa.types.is_dictionary(kind) else kind).cast(pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def find_dictionary_levels(
    path: str,
    file: pa.parquet.ParquetFile,
    names: Sequence[str],
    options: ReadOptions,
    columns: str | None = None,
) -> dict[str, ValueMap]:
    """Return the levels of columns that are dictionaries, as categoricals are.

    Those without an order are nominal, and left out if they have too few categories. Columns of 0
    and 1 are left out too, and so are columns with a meaning from the options. This
    reads a row of each row group, because each has a dictionary of its own.

    Parameters
    ----------
    path, file
        Where the columns are.
    names
        The columns that may be features.
    options
        Their meanings, and the levels that earlier sources have.
    columns
        Pattern of the features, if they are not called like the columns; without order, those have
        no levels.

    Raises
    ------
    DataError
        If there are not 2 to 16 levels, or the file does not state the order of ordered ones, or
        states another one than earlier sources.
    """
    kinds = {field.name: field.type for field in file.schema_arrow}
    listed = [
        name
        for name in names
        if pa.types.is_dictionary(kinds[name])
        and (kinds[name].ordered or (columns is None and is_text(kinds[name].value_type)))
        and options.threshold is None
        and find_map(options.maps, name) is None
    ]
    orders: dict[str, dict[tuple[str, ...], None]] = {name: {} for name in listed}
    for group in range(file.metadata.num_row_groups if listed else 0):
        without = _list_columns_without_dictionary(file.metadata.row_group(group))
        for row in islice(file.iter_batches(1, row_groups=[group], columns=listed), 1):
            for name in listed:
                place = f"{path}: column {name!r}"
                if name in without and not kinds[name].ordered:
                    orders[name][()] = None
                elif name in without:
                    raise DataError(
                        f"{place} is an ordered categorical, but the file does not state the order "
                        "of its categories. Name them: "
                        f"{{levels={quote_prefix(columns or name)}LOW<MIDDLE<HIGH}}."
                    )
                else:
                    orders[name][tuple(row.column(name).dictionary.to_pylist())] = None
    found = {}
    for name in listed:
        place, is_nominal = f"{path}: column {name!r}", not kinds[name].ordered
        tokens: Sequence[str] = [*dict.fromkeys(chain.from_iterable(orders[name]))]
        if not is_nominal:
            tokens = merge_orders([*orders[name]], columns or name, place)
        levels = [token for token in tokens if not options.is_declared_missing(token)]
        if is_nominal:  # an empty text is missing, whatever declares it
            levels = [level for level in levels if level.strip()]
        is_new = name not in options.feature_maps
        if is_nominal and is_new and len(levels) > MAX_LEVELS and None in map(parse_number, levels):
            own = quote_raw(name)
            raise DataError(
                f"{place} has {len(levels):,} categories, but a feature has at most {MAX_LEVELS}. "
                f"Merge rare ones in the file, keep them as a per-row column with {{keep={own}}}, "
                f"or leave them out with {{drop={own}}}."
            )
        if is_nominal and (not 2 <= len(levels) <= MAX_LEVELS or () in orders[name]):
            continue
        if (known := options.feature_maps.get(name)) is not None:
            if not (is_nominal or known.is_nominal):
                check_same_order(levels, known, columns or name, place)
        elif is_nominal and all(map(is_bit_word, levels)):
            continue
        elif [*map(parse_number, levels)] not in ([], [0], [1], [0, 1]):
            levels = sort_answers(levels) if is_nominal else levels
            found[name] = make_level_map(columns or name, levels, place, is_nominal=is_nominal)
    return found


def _list_columns_without_dictionary(group: Any) -> set[str]:
    """Return the columns of a Parquet row group that have values, but no dictionary of them."""
    columns = (group.column(k) for k in range(group.num_columns))
    return {
        column.path_in_schema
        for column in columns
        if not column.has_dictionary_page
        and not (column.statistics and column.statistics.null_count == group.num_rows)
    }


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a text type."""
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def pack_table(
    columns: Sequence[tuple[str, pa.Array]], n_rows: int, options: ReadOptions
) -> PackedValues | None:
    """Pack named columns of a table, each with the map for its name; None if a value is INVALID."""
    shape = len(columns), -(-n_rows // 8)
    levels, mask = np.zeros((1, *shape), np.uint8), None
    for k, (name, column) in enumerate(columns):
        value_map = options.find_map(name)
        if value_map is not None and value_map.is_continuous:
            continue
        packed = _pack_column(column, options, value_map)
        if packed is None:
            return None
        if (n_new := len(packed.levels) - len(levels)) > 0:
            levels = np.pad(levels, ((0, n_new), (0, 0), (0, 0)))
        levels[: len(packed.levels), k] = packed.levels
        if packed.mask is not None:
            mask = make_full_mask(shape[:1], n_rows) if mask is None else mask
            mask[k] = packed.mask
    return PackedValues(levels, mask)


def _pack_column(
    column: pa.Array, options: ReadOptions, value_map: ValueMap | None
) -> PackedValues | None:
    """Pack one column; booleans and few distinct values never become a byte per value."""
    n_rows = len(column)
    if pa.types.is_boolean(column.type):
        ones = _read_bitmap(column, 1)
        codes = encode_numbers(np.array([False, True]), options, value_map)
        return merge_bitmaps(
            codes, lambda value: ones if value else ~ones, (), n_rows, _read_validity(column)
        )
    if is_text(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type) and len(column.dictionary) <= _FEW_VALUES:
        codes = _encode_distinct(column, options, value_map)
        places = _read_values(column.indices).astype(np.uint8)
        return merge_bitmaps(
            codes,
            lambda place: np.packbits(places == place, bitorder="little"),
            (),
            n_rows,
            _read_validity(column),
        )
    return pack_codes(encode_column(column, options, value_map))


def _read_bitmap(column: pa.Array, buffer: int) -> Bytes:
    """Return the bits of a buffer of an array: 0 is the validity, and 1 the values of booleans."""
    bits = np.frombuffer(column.buffers()[buffer], np.uint8)
    return slice_bits(bits, column.offset, column.offset + len(column))


def _read_validity(column: pa.Array) -> Bytes | None:
    """Return which values are not null, (n_bytes,); None if all are."""
    return _read_bitmap(column, 0) if column.null_count else None


def _read_values(column: pa.Array) -> NDArray[Any]:
    """Return the numbers of an array, (n_rows,); null may be any number."""
    values = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
    return values[column.offset : column.offset + len(column)]


def encode_table(columns: Mapping[str, pa.Array], n_rows: int, options: ReadOptions) -> ValueCodes:
    """Encode the columns of a table, (n_rows, n_columns), each with the map for its name."""
    by_column = np.zeros((len(columns), n_rows), np.uint8)
    for codes, (name, column) in zip(by_column, columns.items(), strict=True):
        value_map = options.find_map(name)
        if value_map is None or not value_map.is_continuous:
            codes[:] = encode_column(column, options, value_map)
    return by_column.T


def read_numbers(
    column: pa.Array, options: ReadOptions, format_place: Callable[[int], str]
) -> NDArray[np.float32]:
    """Return the values of a continuous feature, (n_rows,), NaN where missing.

    `format_place` describes the place of a row. Raises `DataError` if a value is not a finite
    number.
    """
    values = _parse_numbers(column, options)
    numbers = store_numbers(values, options, lambda row: str(column[row].as_py()), format_place)
    if column.null_count:
        numbers[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return numbers


def _parse_numbers(column: pa.Array, options: ReadOptions) -> NDArray[Any]:
    """Return numbers or booleans, infinity if a text is no number; null may be any number."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        plain = pc.utf8_trim_whitespace(column.cast(pa.string()))
        words = pa.array(sorted(MISSING_WORDS)), pa.array(options.missing, pa.string())
        absent = pc.or_(pc.is_in(pc.utf8_lower(plain), words[0]), pc.is_in(plain, words[1]))
        plain = pc.if_else(absent, pa.scalar(None, pa.string()), plain)
        try:
            column = plain.cast(pa.float64())
        except pa.ArrowInvalid:
            texts = ("nan" if text is None else text for text in plain.to_pylist())
            numbers = (parse_float(text) for text in texts)
            return np.array([np.inf if number is None else number for number in numbers])
    if pa.types.is_boolean(column.type):
        booleans: NDArray[np.bool_] = column.fill_null(False).to_numpy(zero_copy_only=False)
        return booleans
    if not pa.types.is_float32(column.type):  # which missing numbers are compared with as such
        column = column.cast(pa.float64())
    values: NDArray[Any] = column.fill_null(np.nan).to_numpy()
    return values


def encode_column(
    column: pa.Array, options: ReadOptions, value_map: ValueMap | None = None
) -> ValueCodes:
    """Encode one column, (n_rows,); null means missing. Each distinct text is parsed once."""
    if is_text(column.type):
        column = column.dictionary_encode()
    if not pa.types.is_dictionary(column.type):
        return _encode_number_column(column, options, value_map)
    codes = _encode_distinct(column, options, value_map)
    last = pa.scalar(len(codes), pa.int64())
    places: NDArray[np.int64] = column.indices.cast(pa.int64()).fill_null(last).to_numpy()
    return np.append(codes, np.uint8(MISSING))[places]


def _encode_distinct(
    column: pa.DictionaryArray, options: ReadOptions, value_map: ValueMap | None
) -> ValueCodes:
    """Encode the distinct values of a dictionary column, (n_distinct,)."""
    if not is_text(column.dictionary.type):
        return _encode_number_column(column.dictionary, options, value_map)
    tokens = column.dictionary.to_pylist()
    codes = encode_tokens(tokens, options, value_map)
    if column.type.ordered:  # these are levels, even if they are called NA
        is_level = [not (t is None or options.is_declared_missing(t)) for t in tokens]
        codes[(codes == MISSING) & is_level] = INVALID
    return codes


def _encode_number_column(
    column: pa.Array, options: ReadOptions, value_map: ValueMap | None
) -> ValueCodes:
    if pa.types.is_null(column.type):
        return np.full(len(column), MISSING, np.uint8)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    absent = None
    if column.null_count:
        absent = column.is_null().to_numpy(zero_copy_only=False)
        column = column.fill_null(pa.scalar(False).cast(column.type))
    codes = encode_numbers(column.to_numpy(zero_copy_only=False), options, value_map)
    return codes if absent is None else mark_missing(codes, absent)


def make_csv_word_options(options: ReadOptions, value_map: ValueMap | None) -> dict[str, list[str]]:
    """Return options for Arrow's CSV reader: the words to read as bits and as missing."""
    bits = (_TRUE_WORDS, _FALSE_WORDS)
    if value_map is not None:
        bits = _list_words(value_map, 1), _list_words(value_map, 0)
    true, false = ([w for w in words if not options.is_declared_missing(w)] for words in bits)
    missing = _list_missing_words(options, value_map)
    return {"null_values": missing, "true_values": true, "false_values": false}


def _list_missing_words(options: ReadOptions, value_map: ValueMap | None) -> list[str]:
    """List the spellings of missing values that Arrow may recognise."""
    usual = [word for token in MISSING_WORDS for word in _list_spellings(token)]
    mapped = [
        word for value in (value_map.words if value_map else ()) for word in _list_spellings(value)
    ]
    return sorted(({*usual} - {*mapped}) | {*options.missing})


def _list_words(value_map: ValueMap, code: int) -> list[str]:
    """List the spellings of the mapped values with this code."""
    return [w for value, c in value_map.words.items() if c == code for w in _list_spellings(value)]


def _list_spellings(token: str) -> tuple[str, ...]:
    return token, token.upper(), token.title(), *(["NaN"] if token == "nan" else [])


def convert_row_column(source: Source, name: str, column: pa.Array, first_row: int) -> NDArray[Any]:
    """Convert a per-row column to integers, floats or, for every other type, text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())

    def format_place(row: int) -> str:
        return source.format_row_place(first_row + row)

    numbers: NDArray[Any]
    if pa.types.is_integer(column.type):
        numbers = column.fill_null(pa.scalar(0, column.type)).to_numpy(zero_copy_only=False)
        numbers = check_integers(numbers, name, format_place)
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            numbers = np.where(missing, MISSING_INTEGER, numbers)
        return numbers
    if pa.types.is_floating(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        return numbers
    column = column.cast(pa.string()).fill_null("")
    check_texts(column, name, format_place)
    column = blank_missing_texts(column, name, source.options)
    texts: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return texts


def blank_missing_texts(texts: pa.Array, name: str, options: ReadOptions) -> pa.Array:
    """Return texts of a per-row column, empty where the options name the text as missing.

    Numbers that they name concern features only: a row may be called 9. Other words that mean
    missing in features may be names here; see `Levels.parse_numbers`.
    """
    if not options.missing_words:
        return texts
    plain = pc.utf8_trim_whitespace(texts)
    is_missing = pc.is_in(plain, pa.array(options.missing_words))
    found = pc.unique(plain.filter(is_missing)).to_pylist()
    options.missing_texts.update((name, text) for text in found)
    return pc.if_else(is_missing, "", texts)


def check_texts(texts: pa.Array, name: str, format_place: Callable[[int], str]) -> None:
    """Check that no text contains a NUL character.

    NumPy drops NUL characters at the end of a text, which could make two texts equal.
    `format_place` describes the place of a row. Raises `DataError`.
    """
    is_dictionary = pa.types.is_dictionary(texts.type)
    distinct = texts.dictionary if is_dictionary else texts
    if not pc.any(pc.match_substring(distinct, "\0")).as_py():
        return
    texts = texts.dictionary_decode() if is_dictionary else texts
    row = pc.index(pc.match_substring(texts, "\0"), True).as_py()
    raise DataError(
        f"{format_place(row)}, column {name!r}: {texts[row].as_py()!r} contains a NUL character. "
        "Remove it."
    )


def make_table_batch(
    source: Source, rows: pa.RecordBatch, first_row: int, options: ReadOptions
) -> RowBatch:
    """Make a batch from rows of a table, the first of which is row `first_row` of the source."""
    features = {name: rows.column(name) for name in source.feature_names}
    packed = pack_table([*features.items()], rows.num_rows, options)

    def texts(part: slice, feature: int) -> list[str]:
        column = features[source.feature_names[feature]]
        return [repr(value) for value in column[part].to_pylist()]

    columns = {
        name: convert_row_column(source, name, rows.column(name), first_row)
        for name in source.column_names
    }

    def read(feature: int) -> NDArray[np.float32]:
        column = features[source.feature_names[feature]]
        return read_numbers(column, options, lambda k: source.format_place(first_row + k, feature))

    numbers = source.stack_numbers(read)
    if packed is None:  # the first invalid value is refused
        codes = encode_table(features, rows.num_rows, options)
        return source.make_batch(codes, first_row, texts, columns, numbers)
    return RowBatch(rows.num_rows, *packed, columns, numbers)
