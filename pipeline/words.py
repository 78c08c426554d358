"""Words that are read as bits or as missing; `storage` reads this file too, which imports nothing.

Texts of files and of data frames have the same meaning.
"""

from __future__ import annotations

BITS_BY_WORD = {
    **dict.fromkeys(("yes", "yea", "aye", "true", "ja", "oui", "si", "sí", "correct"), 1),
    **dict.fromkeys(("no", "nay", "false", "nein", "non", "incorrect", "wrong"), 0),
}
"""Words in lower case that are read as bits; single letters may mean something else."""
MISSING_WORDS = frozenset({"", "?", "na", "n/a", "nan", "none", "null"})
"""Words in lower case that mean missing."""


def is_missing_word(text: str) -> bool:
    """Return whether a text means that there is no value, among numbers and words for bits."""
    return text.strip().lower() in MISSING_WORDS
