"""Advice on values that are not binary, derived from the other values of the column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from storage.sources.value_codes import parse_number

_MAX_DISTINCT = 10
_MAX_PROPOSED = 3  # values whose meanings a map proposes
_MAX_LONG_COLUMNS = 6  # columns of a table that may be a long one
_LONG_ROLES = ("row", "feature", "value")
_MAX_NAMED = 5
_MAX_VALUE_LENGTH = 60
_DECIMAL_COMMA = re.compile(r"['\"]?[+-]?\d+,\d+['\"]?")
_MISSING_WORDS = ("None", "nan")
_MIN_IDENTIFIERS, _IDENTIFIER_SHARE = (
    20,
    0.9,
)  # values, and the share of distinct ones if they name rows
_BIT_SHARE = 0.9
_BIT_WORDS = frozenset({"0", "1"})
_YES_WORDS = frozenset(
    {"1", "yes", "y", "yea", "aye", "true", "t", "ja", "oui", "si", "sí", "correct"}
)
_NO_WORDS = frozenset({"0", "no", "n", "nay", "false", "f", "nein", "non", "incorrect", "wrong"})


def shorten_value(value: str) -> str:
    """Shorten a long value for a message."""
    return value[:_MAX_VALUE_LENGTH]


def suggest_remedy(
    name: str, values: Sequence[str], rule: str | None, columns: Sequence[str] = ()
) -> str:
    """Suggest what to do about a column.

    A threshold is suggested only for measurements, where it makes sense.

    Parameters
    ----------
    name
        The column.
    values
        Some of its values, as messages show them.
    rule
        "threshold" or "map" if the options already say how values become bits.
    columns
        All columns of a table; empty for arrays.
    """
    if any(_DECIMAL_COMMA.fullmatch(value) for value in values):
        return "Write numbers with a decimal point, not a comma."
    if rule == "threshold":
        return "Use {missing=TOKEN}."
    counts = Counter(value for value in values if value not in _MISSING_WORDS)
    if rule:
        remedy = "Add its meaning to {map}, {yes} or {no}, or use {missing=VALUE}."
        return f"{_format_counts(counts, _MAX_DISTINCT)}. {remedy}"
    advice = _explain_values(name, counts, len(values), bool(columns))
    return f"{advice}.{_suggest_long(columns, counts)}"


def _explain_values(name: str, counts: Counter[str], n_values: int, in_table: bool) -> str:
    """Suggest an interpretation of the values and the option for it."""
    keep_or_drop = f"{{keep={name}}} to keep them as a per-row column, or {{drop={name}}}"
    if n_values >= _MIN_IDENTIFIERS and len(counts) > _IDENTIFIER_SHARE * n_values:
        return f"Nearly all values around it differ: if they name the rows, use {keep_or_drop}"
    not_a_feature = (
        f"; if they are not a feature, {{keep={name}}} or {{drop={name}}}" if in_table else ""
    )
    n_numbers = sum(parse_number(value.strip("'\"")) is not None for value in counts)
    if n_numbers > _MAX_DISTINCT:
        return f"Use {{threshold=T}} to binarise, or {{missing=TOKEN}}{not_a_feature}"
    if len(counts) > _MAX_DISTINCT:
        return (
            f"{_format_counts(counts, _MAX_NAMED)}. If they are not a feature, use {keep_or_drop}"
        )
    return f"{_format_counts(counts, _MAX_DISTINCT)}. {_suggest_map(counts, not_a_feature)}"


def _format_counts(counts: Counter[str], n_shown: int) -> str:
    named = [f"{shorten_value(value)} ({n:,})" for value, n in counts.most_common(n_shown)]
    if len(counts) > _MAX_DISTINCT:
        named.append(f"{len(counts) - len(named):,} others")
    return f"Values around it: {', '.join(named)}"


def _suggest_map(counts: Counter[str], alternative: str) -> str:
    """Suggest a map: the usual meaning of words such as yes, or both meanings of two values."""
    plain = {value.strip("'\""): n for value, n in counts.most_common()}
    ones, zeros = ([v for v in plain if v.lower() in words] for words in (_YES_WORDS, _NO_WORDS))
    others = [value for value in plain if value not in (*ones, *zeros)]
    if ones and zeros and not {*ones, *zeros} <= _BIT_WORDS:
        pairs = [f"{value}=1" for value in ones] + [f"{value}=0" for value in zeros]
        return f"Use {{map={','.join(pairs)}}}{_format_missing_options(others)}"
    n_bits = sum(n for value, n in plain.items() if value in _BIT_WORDS)
    if n_bits > _BIT_SHARE * counts.total():
        return f"Correct it, or read it as missing:{_format_missing_options(others)}"
    if not 2 <= len(plain) <= _MAX_PROPOSED:
        grades = ", or, if greater means more of it, {threshold=T}"
        numbers = all(parse_number(value) is not None for value in plain)
        return (
            "Say what they mean: {map=VALUE=1,VALUE=0} with all that are 1 or 0 and "
            f"{{missing=VALUE}} for the rest{grades if numbers else ''}{alternative}"
        )
    one, zero, *others = sorted(plain, key=lambda value: value != "1")  # 1 first
    return (
        f"Say what they mean: {{map={one}=1,{zero}=0}}{_format_missing_options(others)}, or "
        f"{{map={one}=0,{zero}=1}}{_format_missing_options(others)}, or another{alternative}"
    )


def _suggest_long(columns: Sequence[str], counts: Counter[str]) -> str:
    """Suggest reading a table of few columns as a long one, with one value per line."""
    plain = {value.strip("'\"").lower() for value in counts}
    few_numbers = 1 < len(plain) <= _MAX_DISTINCT and None not in map(parse_number, plain)
    are_values = few_numbers or "0" in plain or plain <= _YES_WORDS | _NO_WORDS  # and no names
    if are_values or not 2 <= len(columns) <= _MAX_LONG_COLUMNS:
        return ""
    named = columns if len(columns) <= len(_LONG_ROLES) else ("COLUMN",) * len(_LONG_ROLES)
    pairs = (f"{part}={column}" for part, column in zip(_LONG_ROLES, named, strict=False))
    return f" If a line is one value of a row and a feature, use {{long={','.join(pairs)}}}."


def _format_missing_options(values: Sequence[str]) -> str:
    return "".join(f" {{missing={value}}}" for value in values)
