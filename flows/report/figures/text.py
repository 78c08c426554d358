"""Formatting of numbers, long names, omissions, and file names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from slugify import slugify


def format_number(value: float, digits: int = 4) -> str:
    """Write a number with so many significant digits."""
    if not np.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    size = int(np.floor(np.log10(abs(value))))
    if not -4 <= size < 9:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    written = f"{round(value, digits - 1 - size):,.{max(0, digits - 1 - size)}f}"
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return written.replace("-", "−")


def shorten_text(text: str, most: int) -> str:
    """Cut a text to at most so many letters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def format_shown_count(noun: str, shown: int, total: int, which: str = "") -> str:
    """Write how many of how many are shown, or nothing if all are."""
    return "" if shown == total else f"{shown:,} of {total:,} {noun} are shown{which}. "


def make_slug(text: str) -> str:
    """Convert a text to lower-case letters, digits and dashes; other scripts are transliterated."""
    return slugify(text) or "unnamed"


def make_unique_slugs(texts: Iterable[str]) -> list[str]:
    """Convert texts to distinct slugs: the second of equal ones ends in `-2`."""
    seen: Counter[str] = Counter()
    found = []
    for short in map(make_slug, texts):
        seen[short] += 1
        found.append(short if seen[short] == 1 else f"{short}-{seen[short]}")
    return found
