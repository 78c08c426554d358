"""Markdown texts for pages of a Prefect server; names in them cannot contain markup."""

from __future__ import annotations

from collections.abc import Iterable


def format_facts(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a table of names and values."""
    rows = (f"| {quote_text(name)} | {quote_text(value)} |" for name, value in facts)
    return ["| | |", "|---|---|", *rows, ""]


def quote_text(text: str) -> str:
    """Quote a text so that nothing in it is interpreted as markup."""
    return "`` " + " ".join(text.replace("`", "'").replace("|", "¦").split()) + " ``"
