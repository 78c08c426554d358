"""What to do about values that are not binary, by what the column holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from storage.sources.numbers import number_of

_MOST_CODES = 10
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


def advice(name: str, values: Sequence[str], given: str | None) -> str:
    """Say what to do about a column; only what was measured has a threshold that makes sense.

    Parameters
    ----------
    name
        The column.
    values
        Values of it, as messages show them.
    given
        `--threshold` or `--map` where one says already what values are.
    """
    if any(_DECIMAL_COMMA.fullmatch(value) for value in values):
        return "Write numbers with a decimal point, not a comma."
    if given == "--threshold":
        return "Use --missing TOKEN."
    counts = Counter(value for value in values if value not in _ABSENT)
    n_numbers = sum(number_of(value.strip("'\"")) is not None for value in counts)
    if len(values) >= _FEW and len(counts) > _DISTINCT * len(values) and not given:
        return (
            f"Nearly all values around it differ: if they name the rows, use --keep {name} to keep "
            f"them beside the features, or --drop {name}."
        )
    if n_numbers > _MOST_CODES and not given:
        return "Use --threshold T to binarise, or --missing TOKEN."
    named = [f"{shown(value)} ({n:,})" for value, n in counts.most_common(_MOST_CODES)]
    remedy = _meaning(counts)
    if given:
        remedy = "Name the value in --map too, or use --missing VALUE."
    elif len(counts) > _MOST_CODES:
        named[_MOST_NAMED:] = [f"{len(counts) - _MOST_NAMED:,} others"]
        remedy = (
            f"Use --keep {name} to keep the column beside the features, or --drop {name} to leave "
            "it out."
        )
    return f"Values around it: {', '.join(named)}. {remedy}"


def _meaning(counts: Counter[str]) -> str:
    """Propose what values mean: as words say it, or both that two values can."""
    plain = {value.strip("'\""): n for value, n in counts.most_common()}
    ones, zeros = ([v for v in plain if v.lower() in words] for words in (_YES, _NO))
    others = [value for value in plain if value not in (*ones, *zeros)]
    if ones and zeros and not {*ones, *zeros} <= _BITS:
        pairs = [f"{value}=1" for value in ones] + [f"{value}=0" for value in zeros]
        return f"Use --map '{','.join(pairs)}'{_missing(others)}."
    n_bits = sum(n for value, n in plain.items() if value in _BITS)
    if n_bits > _MOSTLY * counts.total():
        return f"Correct it, or take it as missing:{_missing(others)}."
    if len(plain) < 2:
        return "Use --map 'VALUE=1,VALUE=0' to say what values mean."
    one, zero, *others = sorted(plain, key=lambda value: value != "1")  # 1 where it is there
    return (
        f"Say what they mean: --map '{one}=1,{zero}=0'{_missing(others)}, or "
        f"--map '{one}=0,{zero}=1'{_missing(others)}, or another."
    )


def _missing(values: Sequence[str]) -> str:
    return "".join(f" --missing {value!r}" for value in values)
