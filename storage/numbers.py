"""Numbers in texts."""

from __future__ import annotations


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
