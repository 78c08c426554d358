"""How results show themselves: lines in a terminal, a table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator

Facts = Iterator[tuple[str, str]]


class Shown:
    """Shows itself by its facts: names and values, which are text and no markup."""

    def _facts(self) -> Facts:
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = list(self._facts())
        width = max(len(name) for name, _ in facts)
        lines = (f"  {name:<{width}}  {value}" for name, value in facts)
        plain = ("".join(c if c.isprintable() else " " for c in line) for line in lines)
        return "\n".join((type(self).__name__, *plain))

    def _repr_html_(self) -> str:
        left = "text-align:left;vertical-align:top"
        rows = "".join(
            f"<tr><th style='{left}'>{html.escape(name)}</th>"
            f"<td style='{left};overflow-wrap:anywhere'>{html.escape(value)}</td></tr>"
            for name, value in self._facts()
        )
        return f"<table><caption style='{left}'>{type(self).__name__}</caption>{rows}</table>"
