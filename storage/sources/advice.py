"""What to do about values that are not binary, by what the column holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from storage.sources.numbers import number_of

_MOST_CODES = 10
_MOST_PROPOSED = 3  # values of which a proposal may say what each means
_MOST_LONG = 6  # columns of a table that may have a line a value
_LONG_PARTS = ("row", "feature", "value")
_MOST_NAMED = 5
_LONGEST_SHOWN = 60
_DECIMAL_COMMA = re.compile(r"['\"]?[+-]?\d+,\d+['\"]?")
_ABSENT = ("None", "nan")
_FEW, _DISTINCT = 20, 0.9  # values, and the share of them that differ where they name rows
_MOSTLY = 0.9
_BITS = frozenset({"0", "1"})
_YES = frozenset({"1", "yes", "y", "yea", "aye", "true", "t", "ja", "oui", "si", "sí", "correct"})
_NO = frozenset({"0", "no", "n", "nay", "false", "f", "nein", "non", "incorrect", "wrong"})


def shown(value: str) -> str:
    """Shorten a long value."""
    return value[:_LONGEST_SHOWN]


def advice(name: str, values: Sequence[str], given: str | None, columns: Sequence[str] = ()) -> str:
    """Say what to do about a column; only what was measured has a threshold that makes sense.

    Parameters
    ----------
    name
        The column.
    values
        Values of it, as messages show them.
    given
        `--threshold` or `--map` where one says already what values are.
    columns
        All columns of a table; none of arrays.
    """
    if any(_DECIMAL_COMMA.fullmatch(value) for value in values):
        return "Write numbers with a decimal point, not a comma."
    if given == "--threshold":
        return "Use --missing TOKEN."
    counts = Counter(value for value in values if value not in _ABSENT)
    if given:
        remedy = "Say what it means in --map, --yes or --no too, or use --missing VALUE."
        return f"{_named(counts, _MOST_CODES)}. {remedy}"
    told = _reading(name, counts, len(values), bool(columns))
    return f"{told}.{_long(columns, counts)}"


def _reading(name: str, counts: Counter[str], n_values: int, in_table: bool) -> str:
    """Say what the values may be, and the option for it."""
    apart = f"--keep {name} to keep them beside the features, or --drop {name}"
    if n_values >= _FEW and len(counts) > _DISTINCT * n_values:
        return f"Nearly all values around it differ: if they name the rows, use {apart}"
    no_feature = f"; if they are no feature, --keep {name} or --drop {name}" if in_table else ""
    n_numbers = sum(number_of(value.strip("'\"")) is not None for value in counts)
    if n_numbers > _MOST_CODES:
        return f"Use --threshold T to binarise, or --missing TOKEN{no_feature}"
    if len(counts) > _MOST_CODES:
        return f"{_named(counts, _MOST_NAMED)}. If they are no feature, use {apart}"
    return f"{_named(counts, _MOST_CODES)}. {_meaning(counts, no_feature)}"


def _named(counts: Counter[str], most: int) -> str:
    named = [f"{shown(value)} ({n:,})" for value, n in counts.most_common(most)]
    if len(counts) > _MOST_CODES:
        named.append(f"{len(counts) - len(named):,} others")
    return f"Values around it: {', '.join(named)}"


def _meaning(counts: Counter[str], else_: str) -> str:
    """Propose what values mean: as words say it, or both that two values can."""
    plain = {value.strip("'\""): n for value, n in counts.most_common()}
    ones, zeros = ([v for v in plain if v.lower() in words] for words in (_YES, _NO))
    others = [value for value in plain if value not in (*ones, *zeros)]
    if ones and zeros and not {*ones, *zeros} <= _BITS:
        pairs = [f"{value}=1" for value in ones] + [f"{value}=0" for value in zeros]
        return f"Use --map '{','.join(pairs)}'{_missing(others)}"
    n_bits = sum(n for value, n in plain.items() if value in _BITS)
    if n_bits > _MOSTLY * counts.total():
        return f"Correct it, or take it as missing:{_missing(others)}"
    if not 2 <= len(plain) <= _MOST_PROPOSED:
        grades = ", or, where greater means more of it, --threshold T"
        numbers = all(number_of(value) is not None for value in plain)
        return (
            "Say what they mean: --map 'VALUE=1,VALUE=0' with all that are 1 or 0 and --missing "
            f"VALUE for the rest{grades if numbers else ''}{else_}"
        )
    one, zero, *others = sorted(plain, key=lambda value: value != "1")  # 1 where it is there
    return (
        f"Say what they mean: --map '{one}=1,{zero}=0'{_missing(others)}, or "
        f"--map '{one}=0,{zero}=1'{_missing(others)}, or another{else_}"
    )


def _long(columns: Sequence[str], counts: Counter[str]) -> str:
    """Propose the other reading of a table of few columns: its lines may be values of rows."""
    plain = {value.strip("'\"").lower() for value in counts}
    few_numbers = 1 < len(plain) <= _MOST_CODES and None not in map(number_of, plain)
    are_values = few_numbers or "0" in plain or plain <= _YES | _NO  # and no names
    if are_values or not 2 <= len(columns) <= _MOST_LONG:
        return ""
    named = columns if len(columns) <= len(_LONG_PARTS) else ("COLUMN",) * len(_LONG_PARTS)
    pairs = (f"{part}={column}" for part, column in zip(_LONG_PARTS, named, strict=False))
    return f" If a line is one value of a row and a feature, use --long {','.join(pairs)}."


def _missing(values: Sequence[str]) -> str:
    return "".join(f" --missing {value!r}" for value in values)
