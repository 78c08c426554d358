"""Prints how well codes keep neighbourhoods, and tell a label: one table of all models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Model = Mapping[str, Any]
_NEAR, _LABELS = "neighbourhoods", "neighbour_labels"


def print_codes(models: Sequence[Model], console: Console) -> None:
    """Print what neighbours by codes are worth, the best first; nothing where no codes differ."""
    if not (shown := sorted((m for m in models if _NEAR in m or _LABELS in m), key=_rank)):
        return
    for line in _head(shown):
        console.print(line, markup=False)
    console.print(_compared(shown))
    for line in _foot(shown):
        console.print(line, markup=False)


def _rank(model: Model) -> tuple[float, float]:
    near, found = model.get(_NEAR, {}), model.get(_LABELS, {})
    return -found.get("accuracy", 0.0), -near.get("trustworthiness", 0.0)


def _head(models: Sequence[Model]) -> Iterator[str]:
    """Tell which rows are compared with which."""
    for near in _found(models, _NEAR)[:1]:
        rows = _rows(near["rows"], near["of"])
        yield f"\ncodes: each row's {near['n_neighbors']} nearest, among {rows}"
    told = {
        f"{found['column']} of {_rows(found['rows'], found['of'])}: told by the "
        f"{found['n_neighbors']} nearest of {_rows(found['neighbours'], found['neighbours_of'])} "
        "fitted"
        for found in _found(models, _LABELS)
    }
    yield from sorted(told)


def _compared(models: Sequence[Model]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    labels = _found(models, _LABELS)
    told = [f"{labels[0]['column']} by codes", "by bits"] if labels else []
    for name in ("model", "components", "trustworthiness", "continuity", *told):
        table.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        near, found = model.get(_NEAR), model.get(_LABELS)
        table.add_row(
            model["name"],
            f"{model['n_components']}",
            *(f"{near[name]:.3f}" if near else "" for name in ("trustworthiness", "continuity")),
            *(_share(found, by) for by in ("", "_by_bits") if labels),
        )
    return table


def _share(found: Mapping[str, Any] | None, by: str) -> str:
    if found is None:
        return ""
    return f"{found['accuracy' + by]:.1%} ± {found['standard_error' + by]:.1%}"


def _foot(models: Sequence[Model]) -> Iterator[str]:
    """Tell what chance would give."""
    if _found(models, _NEAR):
        yield "trustworthiness: 1 where neighbours by codes are neighbours by bits, 0.5 by chance"
        yield "continuity: 1 where neighbours by bits are neighbours by codes, 0.5 by chance"
    for found in _found(models, _LABELS)[:1]:
        yield f"{found['column']}: {found['commonest']:.1%} by the commonest alone"
        if found["rows_without"]:
            yield f"{found['column']}: rows without one, left out: {found['rows_without']:,}"


def _found(models: Sequence[Model], name: str) -> list[Mapping[str, Any]]:
    return [model[name] for model in models if name in model]


def _rows(n: int, of: int) -> str:
    return f"{n:,} rows" if n == of else f"{n:,} of {of:,} rows"
