"""Names, values and numbers in options: quoted if they contain a mark of the options' syntax."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

RAW_OPTIONS = frozenset({"drop", "keep", "missing"})
"""Options whose values are taken as they are."""
_MARKS = ",:<="
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_PIECE = re.compile(rf"\s*{_QUOTED.pattern}\s*(?=[{_MARKS}]|$)|[^{_MARKS}]*")
"""A quoted name or value, or text up to the next mark; other quotes are part of the text."""
_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")


def quote(text: str) -> str:
    """Quote a name or value for an option, if necessary; quotes inside are doubled."""
    is_plain = text == text.strip() != "" and not text.startswith('"')
    if is_plain and not {*text} & {*_MARKS, "{", "}"}:  # braces have a meaning in messages
        return text
    return '"' + text.replace('"', '""') + '"'


def quote_raw(text: str) -> str:
    """Quote a value of one of `RAW_OPTIONS` for a message, if it has braces or quotes.

    Options show it without these quotes.
    """
    return quote(text) if {*text} & {"{", "}"} or _QUOTED.fullmatch(text) else text


def unquote(text: str) -> str:
    """Return a name or value without quotes, if it has any, and without spaces around it."""
    text = text.strip()
    return text[1:-1].replace('""', '"') if _QUOTED.fullmatch(text) else text


def split_quoted(text: str, mark: str) -> list[str]:
    """Split at a mark outside of quotes; the parts keep their quotes."""
    parts, place = [""], 0
    while place < len(text):
        piece = _PIECE.match(text, place)
        assert piece is not None  # it may be empty
        parts[-1] += piece[0]
        place = piece.end()
        if text[place : place + 1] == mark:
            parts.append("")
        else:
            parts[-1] += text[place : place + 1]
        place += 1
    return parts


def split_names(texts: Sequence[str], names: Collection[str]) -> list[str]:
    """Split texts at commas outside of quotes, except those that are a name."""
    parts = ([text] if text in names else map(unquote, split_quoted(text, ",")) for text in texts)
    return [name for own in parts for name in own]


def split_features(text: str, mark: str) -> tuple[str, str]:
    """Split `FEATURES:VALUES`; without such a prefix, the values are those of all features.

    `mark` separates values, so that a colon after it is not that of a prefix.
    """
    head, *values = split_quoted(text, ":")
    if not values or len(split_quoted(head, mark)) > 1:
        return "*", text
    return unquote(head), ":".join(values)


def join_levels(levels: Sequence[str]) -> str:
    """Write levels as in an option: LOW<MIDDLE<HIGH."""
    return "<".join(map(quote, levels))


def quote_prefix(features: str) -> str:
    """Return the prefix `FEATURES:` of an option; empty for all features."""
    return "" if features == "*" else f"{quote(features)}:"


def parse_float(text: str) -> float | None:
    """Parse a number; return None for anything else.

    Python also reads 1_000, digits of other alphabets, and infinity as numbers; no file means them.
    """
    word = text.strip()
    if "_" in word or not word.isascii() or word.lower().endswith("infinity"):
        return None
    try:
        return float(word)
    except ValueError:
        return None


def parse_integer(text: str) -> int | None:
    """Parse an integer of 64 bits as Python writes it; return None for anything else."""
    if not _INTEGER.fullmatch(text) or not -(2**63) < int(text) < 2**63:
        return None
    return int(text)
