"""Formatting of numbers, long names, omissions, and file names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np


def format_number(value: float, digits: int = 4) -> str:
    """Format a number with `digits` significant digits; one that is not known is a dash."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    size = int(np.floor(np.log10(abs(value))))
    if not -4 <= size < 9:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    text = f"{round(value, digits - 1 - size):,.{max(0, digits - 1 - size)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def shorten_text(text: str, max_length: int) -> str:
    """Shorten a text to at most `max_length` letters, with an ellipsis at the end."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def shorten_texts(texts: Sequence[str], max_length: int) -> list[str]:
    """Shorten texts; those that would be equal keep their end instead of their start."""
    short = [shorten_text(text, max_length) for text in texts]
    counts = Counter(short)
    return [
        "…" + text[1 - max_length :] if own != text and counts[own] > 1 else own
        for text, own in zip(texts, short, strict=True)
    ]


def format_shown_count(noun: str, shown: int, total: int, selection: str = "") -> str:
    """Return `3 of 9 features are shown. `, or nothing if all are; `selection` says which."""
    return "" if shown == total else f"{shown:,} of {total:,} {noun} are shown{selection}. "


def make_slug(text: str) -> str:
    """Convert a text to lower-case letters, digits and dashes; other scripts are transliterated."""
    from slugify import slugify  # optional

    return slugify(text) or "unnamed"


def make_unique_slugs(texts: Iterable[str]) -> list[str]:
    """Convert texts to distinct slugs; a repeated slug ends in `-2`, `-3`, …"""
    counts: Counter[str] = Counter()
    slugs = []
    for slug in map(make_slug, texts):
        counts[slug] += 1
        slugs.append(slug if counts[slug] == 1 else f"{slug}-{counts[slug]}")
    return slugs
