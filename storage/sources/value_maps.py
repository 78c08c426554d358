"""Which texts and numbers of a source are 1 and which are 0, where they are not written so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from storage.errors import DataError
from storage.sources.numbers import parse_number

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
