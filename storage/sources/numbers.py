"""Words as numbers."""

from __future__ import annotations


def number_of(text: str) -> float | None:
    """Read a number, true or false; None if it is none of them."""
    word = text.strip().lower()
    if word in ("true", "false"):
        return float(word == "true")
    return float_of(word)


def float_of(word: str) -> float | None:
    """Read a number; None if it is none."""
    try:
        return float(word)
    except ValueError:
        return None
