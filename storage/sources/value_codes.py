"""Values as codes: the one place where numbers become 0, 1, missing or bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError


def parse_number(text: str) -> float | None:
    """Read a number, true or false; None if it is none of them."""
    word = text.strip().lower()
    if word in ("true", "false"):
        return float(word == "true")
    return parse_float(word)


def parse_float(word: str) -> float | None:
    """Read a number; None if it is none."""
    try:
        return float(word)
    except ValueError:
        return None


_ALL_FEATURES = "*:"  # of all features, whatever colons are in their values


@dataclass(frozen=True)
class ValueMap:
    """What the values of some features stand for.

    Attributes
    ----------
    columns
        The features, a name or a pattern with `*` and `?`.
    codes
        0 or 1 of each value, which is compared without regard to case, as a number if it is one.
    """

    columns: str
    codes: tuple[tuple[str, int], ...]

    @property
    def numbers(self) -> dict[float, int]:
        """Codes of the values that are numbers, true or false."""
        found = ((parse_number(value), code) for value, code in self.codes)
        return {number: code for number, code in found if number is not None}

    @property
    def words(self) -> dict[str, int]:
        """Codes by value in lower case."""
        return {value.casefold(): code for value, code in self.codes}

    def find_code(self, word: str) -> int | None:
        """Give the code of a word, None where it has none."""
        plain = word.strip().casefold()
        if (code := self.words.get(plain)) is not None:
            return code
        number = parse_number(plain)
        return None if number is None else self.numbers.get(number)

    def __str__(self) -> str:
        """Name the values."""
        return ", ".join(repr(value) for value, _ in self.codes)


def parse_map(text: str) -> ValueMap:
    """Read `VALUE=1,VALUE=0`, for some features only `FEATURES:VALUE=1,VALUE=0`.

    Raises
    ------
    DataError
        If it is not written so, gives a value two codes, or makes all values alike.
    """
    head, colon, tail = text.partition(":")
    columns, pairs = (head, tail) if colon and "=" not in head else ("*", text)
    codes: dict[str, int] = {}
    meant: dict[str | float, int] = {}
    for pair in pairs.split(","):
        value, _, code = pair.rpartition("=")
        if not value or code.strip() not in ("0", "1"):
            raise DataError(
                f"--map {text}: Expected VALUE=1 or VALUE=0 between commas, got {pair!r}."
            )
        value, number = value.strip(), parse_number(value)
        codes[value.casefold()] = int(code)
        if meant.setdefault(value.casefold() if number is None else number, int(code)) != int(code):
            raise DataError(f"--map {text}: Expected one meaning of {value!r}, got 1 and 0.")
    found = ValueMap(columns, tuple(codes.items()))
    if len(set(codes.values())) < 2:
        missing = 1 - next(iter(codes.values()))
        raise DataError(
            f"--map {text}: Expected values that are 1 and values that are 0, got none for "
            f"{missing}. All values alike tell a model nothing."
        )
    return found


def format_map(ones: Sequence[str], zeros: Sequence[str]) -> tuple[str, ...]:
    """Write what `--yes` and `--no` say as a map; nothing where they say nothing.

    Raises
    ------
    DataError
        If only one of them was given, or a value stands in both.
    """
    if bool(ones) != bool(zeros):
        given, other = ("--yes", "--no") if ones else ("--no", "--yes")
        raise DataError(f"{given}: Expected {other} beside it, got none. Name the other values.")
    yes, no = (
        [value.strip() for text in texts for value in text.split(",")] for texts in (ones, zeros)
    )
    if both := {value.casefold() for value in yes} & {value.casefold() for value in no}:
        raise DataError(f"--yes, --no: Expected a value in one of them, got {min(both)!r} in both.")
    listed = [f"{value}=1" for value in yes] + [f"{value}=0" for value in no]
    return (f"{_ALL_FEATURES}{','.join(listed)}",) if ones else ()


def format_plain_map(text: str) -> str:
    """Write a map as a reader of messages would."""
    return text.removeprefix(_ALL_FEATURES)


def find_map(maps: Sequence[ValueMap], feature: str) -> ValueMap | None:
    """Give the first map that holds for a feature."""
    return next((m for m in maps if feature == m.columns or fnmatchcase(feature, m.columns)), None)


ValueCodes = NDArray[np.uint8]

# A value's code is 0 or 1, or one of these two.
MISSING, INVALID = 2, 3
# Columns copied at once: their source rows and one target line each stay in the first-level cache.
_TILE_COLUMNS = 16


@dataclass(frozen=True)
class ReadOptions:
    """How values become bits.

    Attributes
    ----------
    missing
        Further tokens that mean "not observed"; a numeric one also holds for numeric sources.
    threshold
        Binarise: 1 where value > threshold. NaN stays missing.
    row_columns
        Names of per-row columns wanted; they are not features.
    maps
        Which values are 1 and 0 where they are not written so; of each feature the first that
        fits its name.
    features, drop
        Names and patterns of the columns that alone are features, and of those that are none.
    goes_on
        Whether rows are added, so that what was left out before need not be there again.
    """

    missing: tuple[str, ...] = ()
    threshold: float | None = None
    row_columns: tuple[str, ...] = ()
    maps: tuple[ValueMap, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    is_append: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise DataError(f"--threshold: Expected a finite number, got {self.threshold}.")
        if self.maps and self.threshold is not None:
            raise DataError("--map: Expected no --threshold beside it, got both. Name all values.")
        of = [value_map.columns for value_map in self.maps]
        if twice := next((columns for columns in of if of.count(columns) > 1), None):
            features = "all features" if twice == "*" else twice
            raise DataError(
                f"--map, --yes: Expected one map of {features}, got {of.count(twice)}. "
                "Name all values in one."
            )
        for value_map in self.maps:
            if both := [t for t in self.missing if value_map.find_code(t) is not None]:
                raise DataError(
                    f"--missing {both[0]}: Expected a value that no map makes 0 or 1, got one. "
                    "Leave it out of one of them."
                )

    @property
    def missing_numbers(self) -> list[float]:
        """The numbers among the missing tokens."""
        numbers = [parse_float(token) for token in self.missing]
        return [number for number in numbers if number is not None and not math.isnan(number)]


def encode_numbers(
    values: NDArray[Any], options: ReadOptions, value_map: ValueMap | None = None
) -> ValueCodes:
    """Code an array of booleans, integers or floats: 0, 1, MISSING or BAD, in the same shape."""
    values = np.asarray(values)
    if values.dtype.kind == "b":
        values = values.view(np.uint8)
    if value_map is not None:
        codes = np.full(values.shape, INVALID, np.uint8)
        for number, code in value_map.numbers.items():
            codes[values == number] = code
    elif options.threshold is not None:
        codes = (values > options.threshold).view(np.uint8)
    else:
        ones = values == 1
        binary = ones | (values == 0)
        codes = ones.view(np.uint8)
        if not binary.all():
            codes[~binary] = INVALID
    if values.dtype.kind == "f":
        codes[np.isnan(values)] = MISSING
    for number in options.missing_numbers:
        codes[values == number] = MISSING
    return codes


def encode_features(
    values: NDArray[Any], options: ReadOptions, feature_names: Sequence[str]
) -> ValueCodes:
    """Code numbers whose columns are features, (n_rows, n_features), each by its own map."""
    if not options.maps:
        return encode_numbers(values, options)
    codes = np.empty(values.shape, np.uint8)
    for k, name in enumerate(feature_names):
        codes[:, k] = encode_numbers(values[:, k], options, find_map(options.maps, name))
    return codes


def check_numeric(path: str, dtype: np.dtype[Any]) -> None:
    """Refuse types that `encode_numbers` does not take."""
    if dtype.kind not in "biuf":
        raise DataError(f"{path}: Expected booleans, integers or floats, got {dtype}.")


def check_implicit_zeros(path: str, options: ReadOptions) -> None:
    """Refuse options under which the zeros that a sparse format leaves out are not 0."""
    if options.maps:
        raise DataError(
            f"{path}: Expected no map of values, because entries left out are 0, got one. "
            "Use a dense format."
        )
    if encode_numbers(np.zeros(1), options)[0] != 0:
        raise DataError(
            f"{path}: Expected options that keep 0 as 0, because entries left out are 0, got "
            f"--threshold {options.threshold} --missing {' '.join(options.missing)}. "
            "Use a threshold of 0 or more, or a dense format."
        )


def copy_to_row_order(codes: ValueCodes) -> ValueCodes:
    """Copy to C order in narrow tiles, three times as fast as in one go."""
    if codes.flags.c_contiguous:
        return codes
    ordered = np.empty(codes.shape, codes.dtype)
    for start in range(0, codes.shape[1], _TILE_COLUMNS):
        ordered[:, start : start + _TILE_COLUMNS] = codes[:, start : start + _TILE_COLUMNS]
    return ordered
