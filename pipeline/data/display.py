"""How results show themselves: lines in a terminal, a table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator

DisplayItems = Iterator[tuple[str, str]]


class ResultDisplayMixin:
    """Shows itself by its facts: names and values, which are text and no markup."""

    def _iter_display_items(self) -> DisplayItems:
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = list(self._iter_display_items())
        width = max(len(name) for name, _ in facts)
        lines = (f"  {name:<{width}}  {value}" for name, value in facts)
        plain = ("".join(c if c.isprintable() else " " for c in line) for line in lines)
        return "\n".join((type(self).__name__, *plain))

    def _repr_html_(self) -> str:
        left = "text-align:left;vertical-align:top"
        rows = "".join(
            f"<tr><th style='{left}'>{html.escape(name)}</th>"
            f"<td style='{left};overflow-wrap:anywhere'>{html.escape(value)}</td></tr>"
            for name, value in self._iter_display_items()
        )
        return f"<table><caption style='{left}'>{type(self).__name__}</caption>{rows}</table>"
