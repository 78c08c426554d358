"""How values become bits or levels: options, maps, and codes of values."""

from __future__ import annotations

import math
import re
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.words import BITS_BY_WORD, is_missing_word
from storage.dataset.batches import clear_padding, make_full_mask, pack_features, pack_levels
from storage.dataset.chunks import Bytes
from storage.dataset.feature_levels import MAX_LEVELS
from storage.errors import DataError
from storage.quoting import (
    join_levels,
    parse_float,
    quote,
    quote_prefix,
    quote_raw,
    split_features,
    split_quoted,
    unquote,
)
from storage.sources.text import check_encoding_name

AbsentChunks = Literal["refuse", "fill", "missing"]
"""What chunks that are not stored mean: an error, the array's fill value, or missing values."""
ValueCodes = NDArray[np.uint8]

# Value codes other than levels, which count from 0.
MISSING, INVALID = 254, 255
LEVEL_OPTIONS = "{levels}, {ordinal} or {nominal}"
_ALL_FEATURES = "*:"  # prefix of a map for all features, whose values may contain colons
_MAX_DISTINCT = 10
_FEW_NUMBERS = 4  # so many are compared one by one
_MIN_ORDERED = 3
_MAX_PROPOSED = 3  # values whose meanings a map proposes
_MAX_LONG_COLUMNS = 6  # columns of a table that may be a long one
_LONG_ROLES = ("row", "feature", "value")
_MAX_NAMED = 5
_MAX_VALUE_LENGTH = 60
_USE_DECIMAL_POINT = "Write numbers with a decimal point, not a comma."
_LEAVE_OUT_NUMBER = (
    "Use {missing=VALUE}, or leave the feature out of {continuous} or {ordinal=FEATURES:auto}."
)
_DECIMAL_COMMA = re.compile(r"['\"]?[+-]?\d+,\d+['\"]?")
# A column is taken for row names from this many values and this share of distinct ones on.
_MIN_IDENTIFIERS, _IDENTIFIER_SHARE = 20, 0.9
_BIT_SHARE = 0.9
_BIT_WORDS = frozenset({"0", "1"})
_PAIRS = "VALUE=1,VALUE=0"
_YES_WORDS = frozenset({"1", "y", "t", *(word for word, bit in BITS_BY_WORD.items() if bit)})
_NO_WORDS = frozenset({"0", "n", "f", *(word for word, bit in BITS_BY_WORD.items() if not bit)})
# From the lowest to the highest; words of several scales do not occur together.
_GRADES = (
    *("strongly disagree", "disagree", "never", "not at all", "none", "nay", "no", "low", "poor"),
    *("rarely", "seldom", "a little", "fair", "sometimes", "medium", "neutral", "abstain"),
    *("undecided", "perhaps", "maybe", "average", "good", "often", "usually", "high", "a lot"),
    *("yes", "yea", "aye", "agree", "very good", "excellent", "always", "strongly agree"),
)


def parse_number(text: str) -> float | None:
    """Parse a number, true or false; return None for anything else."""
    word = text.strip().lower()
    if word in ("true", "false"):
        return float(word == "true")
    return parse_float(word)


def parse_bit(text: str) -> int | None:
    """Return the bit that a number or a word such as yes or n means; None for anything else."""
    word = text.strip().lower()
    number = parse_number(word)
    if word in _YES_WORDS or number == 1:
        return 1
    return 0 if word in _NO_WORDS or number == 0 else None


@dataclass(frozen=True)
class ValueMap:
    """The meaning of the values of some features.

    Attributes
    ----------
    columns
        The features: a name, or a pattern with `*` and `?`.
    codes
        Pairs of value and code: 0 or 1, or a level. Values are compared as numbers if they are
        numbers, else without regard to case.
    levels
        Names of the levels in increasing order; empty for a map to 0 and 1. If there are more than
        `MAX_LEVELS`, these are candidates, and those that occur are still to be found.
    is_continuous
        Whether the values are numbers, which have no codes.
    is_auto
        Whether the values are numbers and levels are still to be found: those that occur if they
        are at most `MAX_LEVELS`, else the feature is continuous. Until then, `is_continuous` holds.
    is_range
        Whether the levels are a range of integers, which are codes even if these have labels.
    labels
        Pairs of value and label, if the levels are labels.
    is_nominal
        Whether the levels are categories, whose order means nothing.
    """

    columns: str
    codes: tuple[tuple[str, int], ...]
    levels: tuple[str, ...] = ()
    is_continuous: bool = False
    is_auto: bool = False
    is_range: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    is_nominal: bool = False

    @property
    def has_candidates(self) -> bool:
        """Whether the levels that occur are still to be found."""
        return len(self.levels) > MAX_LEVELS

    @cached_property
    def numbers(self) -> dict[float, int]:
        """Codes of the values that are numbers, true or false; see `are_singles`."""
        numbers = ((parse_number(value), code) for value, code in self.codes)
        found = {n: code for n, code in numbers if n is not None and not math.isnan(n)}
        if not self.are_singles:
            return found
        return {float(np.float32(number)): code for number, code in found.items()}

    @cached_property
    def are_singles(self) -> bool:
        """Whether values are compared in 32 bits: levels with fractions, such as 0.1 and 1/3.

        Sources may have them in 32 bits, and `auto` finds them so.
        """
        numbers = map(parse_number, self.levels)
        return any(n is not None and math.isfinite(n) and not n.is_integer() for n in numbers)

    @cached_property
    def words(self) -> dict[str, int]:
        """Codes by value in lower case."""
        return {value.casefold(): code for value, code in self.codes}

    def find_code(self, word: str) -> int | None:
        """Return the code of a word, or None."""
        plain = word.strip().casefold()
        if (code := self.words.get(plain)) is not None:
            return code
        number = parse_number(plain)
        if number is not None and self.are_singles:
            with np.errstate(over="ignore"):
                number = float(np.float32(number))
        return None if number is None else self.numbers.get(number)

    def has_value(self, word: str) -> bool:
        """Return whether the map names a word, or a number equal to it; 0 is not `false`."""
        if word.strip().casefold() in self.words:
            return True
        number = parse_float(word)
        return number is not None and number in (parse_float(value) for value, _ in self.codes)

    def __str__(self) -> str:
        """List the values."""
        if self.has_candidates:
            return f"a whole number from {self.levels[0]} to {self.levels[-1]}"
        return ", ".join(repr(value) for value, code in self.codes if code != MISSING)


def parse_continuous(text: str) -> list[ValueMap]:
    """Parse names and patterns of continuous features, separated by commas.

    Raises `DataError` if one is empty.
    """
    patterns = [*map(unquote, split_quoted(text, ","))]
    if "" in patterns:
        raise DataError(f"{{continuous={text}}}: a name is missing beside a comma.")
    return [ValueMap(pattern, (), is_continuous=True) for pattern in patterns]


def parse_map(text: str) -> ValueMap:
    """Parse `VALUE=1,VALUE=0`, or `FEATURES:VALUE=1,VALUE=0` for some features only.

    Raises `DataError` if the text has another form, gives a value two codes, or gives all values
    the same code.
    """
    columns, pairs = split_features(text, "=")
    codes: dict[str, int] = {}
    meanings: dict[str | float, int] = {}
    for pair in split_quoted(pairs, ","):
        *values, code = split_quoted(pair, "=")
        value = unquote("=".join(values))
        if not values or not values[0] or code.strip() not in ("0", "1"):
            raise DataError(
                f"{{map={text}}}: {pair!r} is not VALUE=1 or VALUE=0. Separate values by commas."
            )
        number = parse_number(value)
        codes[value.casefold()] = int(code)
        if meanings.setdefault(value.casefold() if number is None else number, int(code)) != int(
            code
        ):
            raise DataError(f"{{map={text}}}: {value!r} is both 1 and 0.")
    value_map = ValueMap(columns, tuple(codes.items()))
    if len(set(codes.values())) < 2:
        missing = 1 - next(iter(codes.values()))
        raise DataError(
            f"{{map={text}}}: no value means {missing}, but a model cannot learn from values "
            "that are all equal. Map both values."
        )
    return value_map


def format_map(ones: Sequence[str], zeros: Sequence[str]) -> tuple[str, ...]:
    """Write lists of ones and zeros as the text of a map, in a tuple; empty without lists.

    Raises `DataError` if only one list has values, or a value is in both.
    """
    if bool(ones) != bool(zeros):
        missing = "{no}" if ones else "{yes}"
        raise DataError(
            f"{{yes}} and {{no}} belong together. Name the other values with {missing}."
        )
    yes, no = (
        [unquote(value) for text in texts for value in split_quoted(text, ",")]
        for texts in (ones, zeros)
    )
    if repeated := {value.casefold() for value in yes} & {value.casefold() for value in no}:
        raise DataError(
            f"{{yes}} and {{no}} both contain {min(repeated)!r}. Remove it from one of them."
        )
    listed = [f"{quote(value)}=1" for value in yes] + [f"{quote(value)}=0" for value in no]
    return (f"{_ALL_FEATURES}{','.join(listed)}",) if ones else ()


def format_plain_map(text: str) -> str:
    """Return the text of a map as messages show it."""
    return text.removeprefix(_ALL_FEATURES)


def find_map(maps: Sequence[ValueMap], feature: str) -> ValueMap | None:
    """Return the map that applies to a feature, or None.

    A map for the feature's name precedes patterns, and patterns with more letters precede others,
    such as `*`. Of equals, the first applies.
    """

    def count_letters(value_map: ValueMap) -> float:
        if value_map.columns == feature:
            return math.inf
        return len(value_map.columns) - value_map.columns.count("*") - value_map.columns.count("?")

    matching = (m for m in maps if feature == m.columns or fnmatchcase(feature, m.columns))
    return max(matching, key=count_letters, default=None)


@dataclass(frozen=True)
class ReadOptions:
    """How values become bits, and which columns are features.

    Attributes
    ----------
    missing
        Additional texts that mean "not observed", before any map applies. A number stands for all
        equal numbers, also in numeric sources, but 0 and 1 do not stand for false and true.
    threshold
        Binarise: 1 where value > threshold. NaN stays missing.
    row_columns
        Names of the per-row columns, which are not features.
    maps
        Which values are 1 and 0, or which level; see `find_map`.
    features, drop
        Names and patterns of the only columns that are features, and of columns that are not.
    is_append
        Whether rows are appended, so that names in `features` and `drop` may be absent.
    feature_maps
        Maps of single features by name, which precede `maps`.
    encoding
        The encoding of text files without a byte-order mark, by default UTF-8.
    absent_chunks
        The meaning of chunks that a Zarr array does not store; by default, they are read as the
        fill value, with a warning.
    words_read
        The words of `BITS_BY_WORD` that were read as bits so far, other than true and false, by
        these options and all that `replace` makes of them.
    missing_texts
        The per-row columns and those of their texts that `missing` names, as far as they were read.
    """

    missing: tuple[str, ...] = ()
    threshold: float | None = None
    row_columns: tuple[str, ...] = ()
    maps: tuple[ValueMap, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    is_append: bool = False
    feature_maps: Mapping[str, ValueMap] = field(default_factory=dict)
    encoding: str | None = None
    absent_chunks: AbsentChunks | None = None
    words_read: set[str] = field(default_factory=set, compare=False, repr=False)
    missing_texts: set[tuple[str, str]] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_encoding_name(self.encoding)
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise DataError(f"{{threshold}} is {self.threshold}, but must be a finite number.")
        if self.maps and self.threshold is not None:
            raise DataError("{map} and {threshold} cannot be combined. Name all values in the map.")
        columns = [value_map.columns for value_map in self.maps]
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            features = "all features" if twice == "*" else twice
            own = [m for m in self.maps if m.columns == twice]
            options = ["{map} or {yes}"] * any(not m.levels and not m.is_continuous for m in own)
            options += [LEVEL_OPTIONS] * any(m.levels or m.is_auto for m in own)
            if any(m.is_continuous and not m.is_auto for m in own):
                options.append("{continuous}")
                raise DataError(f"{' and '.join(options)} name {features} twice. Name it once.")
            raise DataError(
                f"{' and '.join(options)}: the values of {features} have more than one meaning. "
                "Name all values in one option."
            )
        for value_map in self.maps:
            if value_map.has_candidates:  # levels are found without missing values
                continue
            if mapped := [t for t in self.missing if value_map.has_value(t)]:
                meaning = "as a level" if value_map.levels else "as 0 or 1"
                raise DataError(
                    f"{{missing={quote_raw(mapped[0])}}}: a map reads this value {meaning}. "
                    "Remove it from one of them."
                )

    @cached_property
    def missing_numbers(self) -> list[float]:
        """The numbers among the missing texts."""
        numbers = [parse_float(token) for token in self.missing]
        return [number for number in numbers if number is not None and not math.isnan(number)]

    @cached_property
    def missing_words(self) -> list[str]:
        """The missing texts that are not numbers."""
        return [token.strip() for token in self.missing if parse_float(token) is None]

    def is_declared_missing(self, word: str) -> bool:
        """Return whether the options name a word as missing, or a number equal to it."""
        if not self.missing:
            return False
        is_named = word.strip() in map(str.strip, self.missing)
        return is_named or parse_float(word) in self.missing_numbers

    @cached_property
    def _found_maps(self) -> dict[str, ValueMap | None]:
        return {}

    def find_map(self, feature: str) -> ValueMap | None:
        """Return the map that applies to a feature, or None; repeated calls are fast."""
        if not (self.maps or self.feature_maps):
            return None
        if feature not in self._found_maps:
            own = self.feature_maps.get(feature)
            self._found_maps[feature] = own or find_map(self.maps, feature)
        return self._found_maps[feature]

    @cached_property
    def has_continuous(self) -> bool:
        """Whether some features are continuous."""
        return any(m.is_continuous for m in (*self.maps, *self.feature_maps.values()))

    def is_continuous(self, feature: str) -> bool:
        """Return whether a feature is continuous."""
        value_map = self.find_map(feature)
        return value_map is not None and value_map.is_continuous

    def find_common_map(self, features: Iterable[str]) -> tuple[bool, ValueMap | None]:
        """Return whether the same map applies to all features, and that map or None."""
        if not self.feature_maps and all(value_map.columns == "*" for value_map in self.maps):
            return True, self.maps[0] if self.maps else None
        maps = {self.find_map(feature) for feature in features}
        return len(maps) == 1, maps.pop() if len(maps) == 1 else None


def encode_numbers(
    values: NDArray[Any], options: ReadOptions, value_map: ValueMap | None = None
) -> ValueCodes:
    """Encode booleans, integers or floats as levels, MISSING or INVALID, in the same shape.

    Continuous features have code 0. The codes may share memory with the values.
    """
    values = np.asarray(values)
    if value_map is not None and value_map.is_continuous:
        return np.zeros(values.shape, np.uint8)
    if values.dtype.kind == "b":
        if value_map is None and options.threshold is None and not options.missing:
            return _encode_observed(values, options, None)
        false, true = encode_tokens(("false", "true"), options, value_map)
        codes: ValueCodes = np.where(values, true, false)
        return codes
    codes = _encode_observed(values, options, value_map)
    if values.dtype.kind == "f" or options.missing_numbers:
        codes = mark_missing(codes, find_missing(values, options))
    return codes


def mark_missing(codes: ValueCodes, is_missing: NDArray[np.bool_]) -> ValueCodes:
    """Return codes that are MISSING where told."""
    return np.where(is_missing, np.uint8(MISSING), codes) if is_missing.any() else codes


def find_missing(values: NDArray[Any], options: ReadOptions) -> NDArray[np.bool_]:
    """Return which booleans, integers or floats mean missing, in the same shape."""
    if values.dtype.kind == "b":
        is_missing = [options.is_declared_missing(word) for word in ("false", "true")]
        return np.array(is_missing)[values.view(np.uint8)]
    found = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    for number in options.missing_numbers:
        found |= values == number
    return found


def _encode_observed(
    values: NDArray[Any], options: ReadOptions, value_map: ValueMap | None
) -> ValueCodes:
    """Encode integers or floats as levels or INVALID."""
    if value_map is not None:
        if value_map.are_singles and values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        codes = _encode_mapped_numbers(values, value_map.numbers)
    elif options.threshold is not None:
        codes = (values > options.threshold).view(np.uint8)
    elif values.dtype.itemsize == 1 and (plain := values.view(np.uint8)).max(initial=0) <= 1:
        codes = plain
    else:
        ones = values == 1
        binary = ones | (values == 0)
        codes = ones.view(np.uint8)
        if not binary.all():
            codes[~binary] = INVALID
    return codes


def _encode_mapped_numbers(values: NDArray[Any], codes_by_number: dict[float, int]) -> ValueCodes:
    codes = np.full(values.shape, INVALID, np.uint8)
    if len(codes_by_number) <= _FEW_NUMBERS:
        for number, code in codes_by_number.items():
            codes[values == number] = code
        return codes
    numbers = np.array(sorted(codes_by_number))
    places = np.searchsorted(numbers[:-1], values)
    found = np.array([codes_by_number[number] for number in numbers.tolist()], np.uint8)
    np.copyto(codes, found[places], where=numbers[places] == values)
    return codes


def encode_tokens(
    tokens: Sequence[str | None], options: ReadOptions, value_map: ValueMap | None = None
) -> ValueCodes:
    """Encode words: missing ones, numbers, true and false; anything else is INVALID."""
    if value_map is not None:
        return np.array([_encode_by_map(token, options, value_map) for token in tokens], np.uint8)
    numbers = [None if token is None else _parse_value(token, options) for token in tokens]
    values = np.array([n or 0.0 for n in numbers])
    codes = _encode_observed(values, options, None)
    codes[[number is None for number in numbers]] = INVALID
    codes[np.isnan(values)] = MISSING
    codes[[is_missing(token, options) for token in tokens]] = MISSING
    return codes


def _parse_value(text: str, options: ReadOptions) -> float | None:
    """Parse a number, or a word that is read as a bit."""
    if (number := parse_number(text)) is not None or options.threshold is not None:
        return number
    bit = BITS_BY_WORD.get(word := text.strip().lower())
    if bit is not None and not options.is_declared_missing(text):
        options.words_read.add(word)
    return bit


def _encode_by_map(token: str | None, options: ReadOptions, value_map: ValueMap) -> int:
    """Encode a word; a map precedes the usual missing texts, but not those of the options."""
    if token is None or options.is_declared_missing(token):
        return MISSING
    code = value_map.find_code(token)
    if code is not None:
        return code
    return MISSING if is_missing(token, options) else INVALID


def is_missing(token: str | None, options: ReadOptions) -> bool:
    """Return whether a word means that there is no value."""
    if token is None or is_missing_word(token):
        return True
    return options.is_declared_missing(token)


def encode_features(
    values: NDArray[Any], options: ReadOptions, feature_names: Sequence[str]
) -> ValueCodes:
    """Encode numbers, (n_rows, n_features), each column with the map for its feature."""
    is_common, value_map = options.find_common_map(feature_names)
    if is_common:
        return encode_numbers(values, options, value_map)
    codes = np.empty(values.shape, np.uint8)
    for k, name in enumerate(feature_names):
        codes[:, k] = encode_numbers(values[:, k], options, options.find_map(name))
    return codes


class PackedValues(NamedTuple):
    """Values packed feature by feature, as in `storage.dataset.batches.RowBatch`.

    `levels` are the bits of the levels, (n_bits, …, n_bytes), and `mask` is 1 = observed,
    (…, n_bytes), or None if all values are observed.
    """

    levels: Bytes
    mask: Bytes | None


def pack_codes(codes: ValueCodes) -> PackedValues | None:
    """Pack codes, (n_rows, n_features) or (n_rows,), by feature; None if one is INVALID."""
    highest = int(codes.max(initial=0))
    if highest < MISSING:
        return PackedValues(pack_levels(codes, highest), None)
    if highest == INVALID:
        return None
    observed = codes != MISSING
    return PackedValues(pack_levels(codes * observed), pack_features(observed))


def merge_bitmaps(
    codes: ValueCodes,
    find_cells: Callable[[int], Bytes],
    shape: tuple[int, ...],
    n_rows: int,
    mask: Bytes | None = None,
) -> PackedValues | None:
    """Pack values of which few are distinct, given the cells with each of them.

    Parameters
    ----------
    codes
        Codes of the distinct values.
    find_cells
        Returns which cells have a value, given its place in `codes`, (*shape, n_bytes); bits after
        the last row do not matter.
    shape, n_rows
        Axes of the cells before the last one, which has this number of rows.
    mask
        Which cells have one of the values; None if all do.

    Returns
    -------
    PackedValues | None
        The levels; None if an INVALID value occurs.
    """
    n_bits = max(1, int(codes[codes < MISSING].max(initial=0)).bit_length())
    levels = np.zeros((n_bits, *shape, -(-n_rows // 8)), np.uint8)
    for place in np.flatnonzero(codes).tolist():
        code, cells = int(codes[place]), clear_padding(find_cells(place), n_rows)
        if code < MISSING:
            for k in range(n_bits):
                if code >> k & 1:
                    levels[k] |= cells
        elif (cells if mask is None else cells & mask).any():
            if code == INVALID:
                return None
            mask = (make_full_mask(shape, n_rows) if mask is None else mask) & ~cells
    return PackedValues(levels if mask is None else levels & mask, mask)


def store_numbers(
    values: NDArray[Any],
    options: ReadOptions,
    get_text: Callable[[int], str],
    format_place: Callable[[int], str],
) -> NDArray[np.float32]:
    """Return the values of a continuous feature as they are stored, (n_rows,), NaN where missing.

    Parameters
    ----------
    values
        Numbers, or booleans; NaN if missing, and infinite if a text is no number.
    options
        The values that mean missing.
    get_text, format_place
        Return the value of a row as it was read, and describe its position, for messages.

    Raises
    ------
    DataError
        If a value is not a finite number.
    """
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    numbers[find_missing(values, options)] = np.nan
    if (is_wrong := np.isinf(numbers)).any():
        row = int(is_wrong.argmax())
        text = get_text(row)
        is_number = parse_float(text) is not None
        problem = "infinite, or too large for 32 bits" if is_number else "not a number"
        raise DataError(
            f"{format_place(row)}: the value {text!r:.62} is {problem}. "
            f"{_USE_DECIMAL_POINT if _DECIMAL_COMMA.fullmatch(text) else _LEAVE_OUT_NUMBER}"
        )
    return numbers


def check_numeric(path: str, dtype: np.dtype[Any]) -> None:
    """Raise `DataError` for dtypes that `encode_numbers` does not accept."""
    if dtype.kind not in "biuf":
        raise DataError(f"{path}: the values are {dtype}, not booleans, integers or floats.")


def check_implicit_zeros(path: str, options: ReadOptions) -> None:
    """Raise `DataError` if the options would not read a sparse format's implicit zeros as 0."""
    if options.maps or options.feature_maps:
        option = "{levels}" if any(m.levels for m in options.maps) else "{map}"
        option = "{continuous}" if options.has_continuous else option
        raise DataError(
            f"{path}: {option} needs a dense format, because a sparse file leaves out its zeros."
        )
    if encode_numbers(np.zeros(1), options)[0] != 0:
        raise DataError(
            f"{path}: a sparse file leaves out its zeros, but {{threshold}} or {{missing}} gives 0 "
            "another meaning. Use a threshold of 0 or more, or a dense format."
        )


def suggest_map_of_labels(name: str, zero: str, one: str) -> str:
    """Return the map of the labels of 0 and 1 if these mean the opposite, such as yes and no."""
    words = [label.strip().casefold() for label in (zero, one)]
    if words[0] not in _YES_WORDS - _BIT_WORDS or words[1] not in _NO_WORDS - _BIT_WORDS:
        return ""
    return f"{{map={quote_prefix(name)}{quote(zero)}=1,{quote(one)}=0}}"


def remove_quotes(value: str) -> str:
    """Return a value without the quotes with which messages show a text."""
    if not value.startswith(("'", '"')):
        return value
    try:
        return str(literal_eval(value))
    except (SyntaxError, ValueError):  # it was cut
        return value.strip("'\"")


def is_bit_word(word: str) -> bool:
    """Return whether a word is read as a bit without an option."""
    return parse_number(word) in (0, 1) or word.strip().lower() in BITS_BY_WORD


def sort_answers(categories: Sequence[str]) -> list[str]:
    """Return categories without an order; of two, a word such as yes comes last, and means 1."""
    words = [category.strip().casefold() for category in categories]
    is_reversed = len(words) == 2 and words[0] in _YES_WORDS and words[1] not in _YES_WORDS
    return [*reversed(categories)] if is_reversed else [*categories]


def describe_invalid_value(value: str, options: ReadOptions, value_map: ValueMap | None) -> str:
    """Describe a value that is not a bit under these options, for an error message."""
    valid = "0, 1, true, false" if value_map is None else str(value_map)
    if options.threshold is not None:
        valid = "a number, true, false"
    word = remove_quotes(value)
    hint = f" If this category means missing, use {{missing={quote_raw(word)}}}."
    is_category = is_missing_word(word)  # in texts, such words are missing
    return f"the value {value[:_MAX_VALUE_LENGTH]} is not {valid} or missing.{hint * is_category}"


def suggest_remedy(
    name: str,
    values: Sequence[str],
    options: ReadOptions,
    value_map: ValueMap | None,
    columns: Sequence[str] = (),
    continuous: str | None = None,
    patterns: Sequence[str] = ("*",),
) -> str:
    """Suggest what to do about a column.

    A threshold is suggested only for measurements, where it makes sense. `values` are some of the
    column's values, as messages show them; `value_map` is the map that applies to them; `columns`
    are all columns of a table, or empty for arrays; `continuous` is the feature that the values
    belong to, if it could be continuous; `patterns` match the features with such values.
    """
    if any(_DECIMAL_COMMA.fullmatch(value) for value in values):
        return _USE_DECIMAL_POINT
    if options.threshold is not None and value_map is None:
        return "Use {missing=TOKEN}."
    counts = Counter(value for value in values if not is_missing_word(remove_quotes(value)))
    if value_map is not None:
        remedy = "Add its meaning to {map}, {yes} or {no}, or use"
        if value_map.levels and options.is_append:
            remedy = "Ingest all rows again with {overwrite}, or use"
        elif value_map.levels:
            option = _suggest_levels(name if columns else value_map.columns, counts, value_map)
            remedy = f"Use {option}, or"
            plain = [remove_quotes(value) for value in counts]
            unknown = [value for value in plain if value_map.find_code(value) is None]
            are_codes = all(value.lstrip("-").isdecimal() for value in unknown)
            if are_codes and (
                value_map.has_candidates or _are_far_away(unknown, value_map.levels, option)
            ):
                missing = _format_missing_options(unknown[:_MAX_PROPOSED])
                return f"{_format_counts(counts, _MAX_DISTINCT)}. Use{missing}, or {option}."
        return f"{_format_counts(counts, _MAX_DISTINCT)}. {remedy} {{missing=VALUE}}."
    advice = _explain_values(name, counts, len(values), bool(columns), continuous, patterns)
    return f"{advice}.{_suggest_long(columns, counts)}"


def _are_far_away(values: Sequence[str], levels: Sequence[str], option: str) -> bool:
    """Return whether whole numbers lie outside a range of levels, too far to widen the range."""
    if option.startswith("{ordinal=") or not all(level.isdecimal() for level in levels):
        return False
    low, high = min(map(int, levels)), max(map(int, levels))
    return not any(low <= int(value) <= high for value in values)


def _suggest_levels(name: str, counts: Counter[str], value_map: ValueMap) -> str:
    """Suggest an option whose levels include all values.

    If no value is a level, the option is for the feature only, which may have a scale of its own.
    """
    plain = [remove_quotes(value) for value in counts]
    unknown = [value for value in plain if value_map.find_code(value) is None]
    is_own_scale, labels = len(unknown) == len(plain), dict(value_map.labels)
    plain, unknown = ([labels.get(value, value) for value in own] for own in (plain, unknown))
    values = [*{value.casefold(): value for value in plain}.values()]
    if not (is_own_scale or value_map.has_candidates):
        has_names = all(value_map.find_code(level) is not None for level in value_map.levels)
        # Columns of SPSS and Stata have codes, and their levels are the labels of the codes.
        codes = [value for value, code in value_map.codes if code != MISSING]
        known = value_map.levels if has_names else codes
        values = [*known, *{value.casefold(): value for value in unknown}.values()]
    columns = name if is_own_scale else value_map.columns
    prefix = quote_prefix(columns)
    if is_own_scale and len(values) == 2 and {v.lower() for v in values} <= _YES_WORDS | _NO_WORDS:
        one, zero = sorted(values, key=lambda value: value.lower() in _NO_WORDS)
        return f"{{map={prefix}{quote(one)}=1,{quote(zero)}=0}}"
    if len(values) < 2:
        return f"{LEVEL_OPTIONS} with all values of the column"
    numbers = [number for number in map(parse_number, values) if number is not None]
    if len(numbers) == len(values):
        if all(number.is_integer() for number in numbers):
            low, high = int(min(numbers)), int(max(numbers))
            if high - low < MAX_LEVELS and not value_map.is_nominal:
                return f"{{ordinal={prefix or '*:'}{low}-{high}}}"
        values = sorted(values, key=lambda value: parse_number(value) or 0)
    if len(values) > MAX_LEVELS:
        is_number = len(numbers) == len(values)
        own = quote_raw(name)
        option = f"{{keep={own}}} or {{drop={own}}}"
        if is_number:
            option = f"{{continuous={quote(name)}}}"
        return f"{option}, because a feature has at most {MAX_LEVELS} levels"
    if value_map.is_nominal:
        return format_nominal(name if columns == "*" else columns, values)
    return f"{{levels={prefix}{join_levels(_sort_grades(values))}}} (check the order)"


def format_nominal(columns: str, categories: Sequence[str]) -> str:
    """Return the option that names the categories of features."""
    return f"{{nominal={quote(columns)}:{','.join(map(quote, categories))}}}"


def _explain_values(
    name: str,
    counts: Counter[str],
    n_values: int,
    in_table: bool,
    continuous: str | None,
    patterns: Sequence[str],
) -> str:
    """Suggest an interpretation of the values and the option for it."""
    own = quote_raw(name)
    keep_or_drop = f"{{keep={own}}} to keep them as a per-row column, or {{drop={own}}}"
    plain = map(remove_quotes, counts)
    numbers = [number for number in map(parse_number, plain) if number is not None]
    have_fractions = not all(number.is_integer() for number in numbers)
    are_distinct = n_values >= _MIN_IDENTIFIERS and len(counts) > _IDENTIFIER_SHARE * n_values
    if are_distinct and not have_fractions:
        return f"Nearly all nearby values differ: if they name the rows, use {keep_or_drop}"
    not_a_feature = (
        f"; if they are not a feature, {{keep={quote_raw(name)}}} or {{drop={quote_raw(name)}}}"
        if in_table
        else ""
    )
    if len(numbers) > _MAX_DISTINCT:
        to_keep = ""
        if continuous is not None:
            to_keep = f"{{continuous={quote(continuous)}}} to keep the numbers, "
        return f"Use {to_keep}{{threshold=T}} to binarise, or {{missing=TOKEN}}{not_a_feature}"
    if len(counts) > MAX_LEVELS:
        return (
            f"{_format_counts(counts, _MAX_NAMED)}. A feature has at most {MAX_LEVELS} categories: "
            f"merge rare ones in the file, or use {keep_or_drop}"
        )
    remedy = _suggest_map(counts, not_a_feature, patterns)
    return f"{_format_counts(counts, _MAX_DISTINCT)}. {remedy}"


def _format_counts(counts: Counter[str], n_shown: int) -> str:
    listed = [f"{value[:_MAX_VALUE_LENGTH]} ({n:,})" for value, n in counts.most_common(n_shown)]
    if len(counts) > _MAX_DISTINCT:
        listed.append(f"{len(counts) - len(listed):,} others")
    return f"Nearby values: {', '.join(listed)}"


def has_same_meaning(values: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether an option for values suits other ones too, as messages show them.

    These are whole numbers, or few words that all occur among the values.
    """
    own, known = (
        {w.lower() for value in {*listed} if not is_missing_word(w := remove_quotes(value))}
        for listed in (values, others)
    )
    numbers = [parse_number(word) for word in own | known]
    are_whole = all(number is not None and number.is_integer() for number in numbers)
    return own <= known or (are_whole and len(known) > _MAX_PROPOSED)


def find_patterns(names: Set[str], all_names: Sequence[str]) -> list[str]:
    """Return names or a pattern that match these of all names, and no other ones."""
    own = [name for name in all_names if name in names]
    first, last = min(own), max(own)
    pairs = enumerate(zip(first, last, strict=False))
    prefix = first[: next((k for k, (one, other) in pairs if one != other), None)]
    for pattern in ["*"] + [f"{prefix}*"] * (len(own) > 1):
        if [name for name in all_names if fnmatchcase(name, pattern)] == own:
            return [pattern]
    return own


def _format_options(option: str, patterns: Sequence[str], values: str = "") -> str:
    """Return an option for each of the patterns, or for the first ones, and the number of others.

    A prefix for all features is left out where that is possible.
    """
    prefixes = [f"{quote(pattern)}{':' * bool(values)}" for pattern in patterns[:_MAX_NAMED]]
    if option in ("map", "levels") and [*patterns] == ["*"]:
        prefixes = [""]
    n_others = len(patterns) - len(prefixes)
    note = f", and so on for {n_others:,} other columns" if n_others else ""
    return " ".join(f"{{{option}={prefix}{values}}}" for prefix in prefixes) + note


def _suggest_map(counts: Counter[str], alternative: str, patterns: Sequence[str]) -> str:
    """Suggest a map: the usual meaning of words such as yes, or both meanings of two values."""
    plain = {remove_quotes(value): n for value, n in counts.most_common()}
    order = _suggest_order([*plain], patterns)
    ones, zeros = ([v for v in plain if v.lower() in words] for words in (_YES_WORDS, _NO_WORDS))
    unmapped = [value for value in plain if value not in (*ones, *zeros)]
    if ones and zeros and not {*ones, *zeros} <= _BIT_WORDS:
        pairs = [f"{quote(v)}=1" for v in ones] + [f"{quote(v)}=0" for v in zeros]
        option = _format_options("map", patterns, ",".join(pairs))
        return f"Use {option}{_format_missing_options(unmapped)}{order}"
    n_bits = sum(n for value, n in plain.items() if value in _BIT_WORDS)
    if n_bits > _BIT_SHARE * counts.total():
        return f"Correct it, or read it as missing:{_format_missing_options(unmapped)}"
    if not 2 <= len(plain) <= _MAX_PROPOSED:
        return (
            "Define the meaning of every value: "
            f"{_format_options('map', patterns[:1], _PAIRS)}, and {{missing=VALUE}} for the rest"
            f"{order}{alternative}"
        )
    one, zero, *unmapped = sorted(plain, key=lambda value: value != "1")  # 1 first
    missing, one, zero = _format_missing_options(unmapped), quote(one), quote(zero)
    either, other = (
        _format_options("map", patterns, f"{one}={bit},{zero}={1 - bit}") for bit in (1, 0)
    )
    return f"Define their meaning: {either}{missing}, or {other}{missing}{order}{alternative}"


def _suggest_order(values: Sequence[str], patterns: Sequence[str]) -> str:
    """Suggest how to keep three or more values as levels; a usual order is recognised."""
    values = [*{value.casefold(): value for value in values}.values()]
    if len(values) < _MIN_ORDERED:
        return ""
    numbers = [number for number in map(parse_number, values) if number is not None]
    if len(numbers) == len(values):
        is_whole = all(number.is_integer() for number in numbers)
        options = [_format_options("ordinal", patterns)] * is_whole
        options += ["{threshold=T}"] * (len(values) > _MAX_PROPOSED)
        ordered = f", or, if the values are ordered, {' or '.join(options)}" if options else ""
        nominal = f", or, if they are categories, {_format_options('nominal', patterns)}"
        return ordered + nominal * is_whole
    values = sorted(values)
    levels = _format_options("levels", patterns, join_levels(_sort_grades(values)))
    nominal = _format_options("nominal", patterns, ",".join(map(quote, values)))
    return (
        f", or, if the values are ordered, {levels} (check the order), or, if they are "
        f"categories, {nominal}"
    )


def _sort_grades(values: Sequence[str]) -> list[str]:
    """Sort values from the lowest to the highest; unknown words keep their order in the middle."""
    places = {word: place for place, word in enumerate(_GRADES)}
    return sorted(values, key=lambda value: places.get(value.lower(), len(_GRADES) / 2))


def _suggest_long(columns: Sequence[str], counts: Counter[str]) -> str:
    """Suggest reading a table of few columns as a long one, with one value per line."""
    plain = {remove_quotes(value).lower() for value in counts}
    few_numbers = 1 < len(plain) <= _MAX_DISTINCT and None not in map(parse_number, plain)
    # Such values are not the names of rows or features.
    are_values = few_numbers or "0" in plain or plain <= _YES_WORDS | _NO_WORDS
    if are_values or not 2 <= len(columns) <= _MAX_LONG_COLUMNS:
        return ""
    names = columns if len(columns) <= len(_LONG_ROLES) else ("COLUMN",) * len(_LONG_ROLES)
    pairs = (f"{role}={quote(name)}" for role, name in zip(_LONG_ROLES, names, strict=False))
    return f" If each line is one value of a long table, use {{long={','.join(pairs)}}}."


def _format_missing_options(values: Sequence[str]) -> str:
    return "".join(f" {{missing={quote_raw(value)}}}" for value in values)
