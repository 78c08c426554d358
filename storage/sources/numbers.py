"""Words as numbers."""

from __future__ import annotations


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
