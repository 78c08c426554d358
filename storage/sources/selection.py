"""Which columns are features, by names and patterns."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from storage.errors import DataError
from storage.sources.value_codes import ReadOptions

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
