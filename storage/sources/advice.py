"""What to do about values that are not binary, by what the column holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from storage.sources.codes import number_of

_MOST_CODES = 10
_MOST_NAMED = 5
_LONGEST_SHOWN = 60
_ABSENT = ("None", "nan")


def shown(value: str) -> str:
    """Shorten a long value."""
    return value[:_LONGEST_SHOWN]


def advice(name: str, values: Sequence[str], threshold_given: bool) -> str:
    """Say what to do about a column; only what was measured has a threshold that makes sense.

    Parameters
    ----------
    name
        The column.
    values
        Values of it, as messages show them.
    threshold_given
        Whether numbers are binarised already.
    """
    if threshold_given:
        return "Use --missing TOKEN."
    counts = Counter(value for value in values if value not in _ABSENT)
    n_numbers = sum(number_of(value.strip("'\"")) is not None for value in counts)
    if n_numbers > _MOST_CODES:
        return "Use --threshold T to binarise, or --missing TOKEN."
    named = [f"{shown(value)} ({n:,})" for value, n in counts.most_common(_MOST_CODES)]
    if len(counts) > _MOST_CODES:
        named[_MOST_NAMED:] = [f"{len(counts) - _MOST_NAMED:,} others"]
        remedy = f"Use --keep {name} to keep the column beside the features."
    else:
        remedy = "Recode them as 0 and 1; --missing TOKEN takes one as missing."
    return f"Values around it: {', '.join(named)}. {remedy}"
