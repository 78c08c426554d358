"""Names for files and keys: lower-case letters, digits and dashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from slugify import slugify


def make_slug(text: str) -> str:
    """Spell a text so; other letters than Latin ones are transliterated."""
    return slugify(text) or "unnamed"


def make_unique_slugs(texts: Iterable[str]) -> list[str]:
    """Spell texts so that no two are alike: the second of a kind ends in 2."""
    seen: Counter[str] = Counter()
    found = []
    for short in map(make_slug, texts):
        seen[short] += 1
        found.append(short if seen[short] == 1 else f"{short}-{seen[short]}")
    return found
