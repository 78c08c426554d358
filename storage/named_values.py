"""Options made of names and values, such as `--set NAME=VALUE`, in which each name occurs once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from storage.errors import DataError

T = TypeVar("T")


def collect_values(place: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the values by name; `place` is the option, such as `{set}`.

    Raises `DataError` if a name occurs twice, also with the same value.
    """
    values: dict[str, T] = {}
    for name, value in pairs:
        if name in values:
            raise DataError(f"{place}: {name} is given twice. Choose one value.")
        values[name] = value
    return values
