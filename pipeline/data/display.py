"""Representation of results: lines of text in a terminal, a table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator

DisplayItems = Iterator[tuple[str, str]]
_MAX_CHARACTERS = 400  # of a value


def shorten(value: str) -> str:
    """Return a text, without its end if it is long."""
    return value if len(value) <= _MAX_CHARACTERS else f"{value[: _MAX_CHARACTERS - 2]} …"


class ResultDisplayMixin:
    """Shows pairs of a name and a value, both plain text, from `_iter_display_items`."""

    def _iter_display_items(self) -> DisplayItems:
        raise NotImplementedError

    def __repr__(self) -> str:
        items = list(self._iter_display_items())
        width = max(len(name) for name, _ in items)
        lines = (f"  {name:<{width}}  {value}" for name, value in items)
        printable = ("".join(c if c.isprintable() else " " for c in line) for line in lines)
        return "\n".join((type(self).__name__, *printable))

    def _repr_html_(self) -> str:
        style = "text-align:left;vertical-align:top"
        rows = "".join(
            f"<tr><th style='{style}'>{html.escape(name)}</th>"
            f"<td style='{style};overflow-wrap:anywhere'>{html.escape(value)}</td></tr>"
            for name, value in self._iter_display_items()
        )
        return f"<table><caption style='{style}'>{type(self).__name__}</caption>{rows}</table>"
