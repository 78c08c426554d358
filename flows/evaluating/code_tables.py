"""Prints how well codes keep neighbourhoods, and tell a label: one table of all models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

ModelSummary = Mapping[str, Any]
_NEIGHBOURHOODS, _NEIGHBOUR_LABELS = "neighbourhoods", "neighbour_labels"


def print_code_quality(models: Sequence[ModelSummary], console: Console) -> None:
    """Print what neighbours by codes are worth, the best first; nothing where no codes differ."""
    if not (
        shown := sorted(
            (m for m in models if _NEIGHBOURHOODS in m or _NEIGHBOUR_LABELS in m),
            key=_make_sort_key,
        )
    ):
        return
    for line in _iter_header_lines(shown):
        console.print(line, markup=False)
    console.print(_make_comparison_table(shown))
    for line in _iter_footer_lines(shown):
        console.print(line, markup=False)


def _make_sort_key(model: ModelSummary) -> tuple[float, float]:
    near, found = model.get(_NEIGHBOURHOODS, {}), model.get(_NEIGHBOUR_LABELS, {})
    return -found.get("accuracy", 0.0), -near.get("trustworthiness", 0.0)


def _iter_header_lines(models: Sequence[ModelSummary]) -> Iterator[str]:
    """Tell which rows are compared with which."""
    for near in _select_results(models, _NEIGHBOURHOODS)[:1]:
        rows = _format_rows(near["rows"], near["of"])
        yield f"\ncodes: each row's {near['n_neighbors']} nearest, among {rows}"
    told = {
        f"{found['column']} of {_format_rows(found['rows'], found['of'])}: told by the "
        f"{found['n_neighbors']} nearest of {_format_rows(found['neighbours'], found['neighbours_of'])} "
        "fitted"
        for found in _select_results(models, _NEIGHBOUR_LABELS)
    }
    yield from sorted(told)


def _make_comparison_table(models: Sequence[ModelSummary]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    labels = _select_results(models, _NEIGHBOUR_LABELS)
    told = [f"{labels[0]['column']} by codes", "by bits"] if labels else []
    for name in ("model", "components", "trustworthiness", "continuity", *told):
        table.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        near, found = model.get(_NEIGHBOURHOODS), model.get(_NEIGHBOUR_LABELS)
        table.add_row(
            model["name"],
            f"{model['n_components']}",
            *(f"{near[name]:.3f}" if near else "" for name in ("trustworthiness", "continuity")),
            *(_format_accuracy(found, by) for by in ("", "_by_bits") if labels),
        )
    return table


def _format_accuracy(found: Mapping[str, Any] | None, by: str) -> str:
    if found is None:
        return ""
    return f"{found['accuracy' + by]:.1%} ± {found['standard_error' + by]:.1%}"


def _iter_footer_lines(models: Sequence[ModelSummary]) -> Iterator[str]:
    """Tell what chance would give."""
    if _select_results(models, _NEIGHBOURHOODS):
        yield "trustworthiness: 1 where neighbours by codes are neighbours by bits, 0.5 by chance"
        yield "continuity: 1 where neighbours by bits are neighbours by codes, 0.5 by chance"
    for found in _select_results(models, _NEIGHBOUR_LABELS)[:1]:
        yield f"{found['column']}: {found['commonest']:.1%} by the commonest alone"
        if found["rows_without"]:
            yield f"{found['column']}: rows without one, left out: {found['rows_without']:,}"


def _select_results(models: Sequence[ModelSummary], name: str) -> list[Mapping[str, Any]]:
    return [model[name] for model in models if name in model]


def _format_rows(n: int, of: int) -> str:
    return f"{n:,} rows" if n == of else f"{n:,} of {of:,} rows"
