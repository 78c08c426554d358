"""What a run prints when it is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from flows.cli.errors import format_warnings
from flows.cli.splits import format_row_count
from pipeline.learning.convergence import describe_ending

_MAX_SHOWN = 8


def summarize_fit(manifest: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """Give what a fit prints of its manifest and parameters."""
    names = ("model", "split", "n_samples", "n_components", "iterations", "converged")
    return {
        **{name: manifest[name] for name in names},
        "warnings": format_warnings(manifest["warnings"]),
        "n_features": len(manifest["feature_names"]),
        "n_segments": len(manifest["segment_names"]),
        "objective": manifest.get("objective"),
        "diagnostics": manifest["diagnostics"],
        "warm_start": manifest["warm_start"],
        "drift": manifest["drift"],
        "spectrum": np.asarray(getattr(params, "eigenvalues", ()))[:_MAX_SHOWN].tolist(),
    }


def print_json(summary: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output."""
    print(json.dumps(summary))


def print_fit(summary: Mapping[str, Any]) -> None:
    """Print a short table, the warnings and the artifact's path."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _make_summary_rows(summary):
        table.add_row(name, value)
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", markup=False)
    if summary["report"]:
        console.print(f"report: {summary['report']}", markup=False)
    console.print(f"artifact: {summary['artifact']}", markup=False)


def print_ingest(summary: Mapping[str, Any]) -> None:
    """Print what was written, and the warnings."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name in ("n_rows", "n_features", "n_segments", "n_chunks"):
        table.add_row(name.removeprefix("n_"), f"{summary[name]:,}")
    table.add_row("columns", ", ".join(summary["columns"]) or "none")
    if summary["left_out"]:
        table.add_row("left out", _format_names(summary["left_out"]))
    table.add_row("seconds", f"{summary['seconds']:.2f}")
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", markup=False)
    console.print(f"dataset: {summary['dataset']}", markup=False)


def _format_names(names: Sequence[str]) -> str:
    """Name the first of many."""
    more = f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more


def format_drift(drift: Mapping[str, Any]) -> str:
    """Write what changed in one line."""
    told = []
    if "similarity" in drift["parameters"]:
        told.append(f"similarity {drift['parameters']['similarity']:.3f}")
    if "rms" in (moved := drift.get("correlations", {})):
        told.append(
            f"correlations moved {moved['rms']:.3f} ({moved['rms_by_chance']:.3f} by chance)"
        )
    if "now" in (scored := drift.get("likelihood", {})):
        before, now = (f"{scored[key]:.4g}".replace("-", "−") for key in ("before", "now"))
        told.append(f"new rows {before} → {now} {scored['unit']}")
    if drift["new_segments"]:
        told.append(f"new segments {len(drift['new_segments'])}")
    return ", ".join(told) or "nothing to compare"


def _make_summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    from pipeline.models.registry import find_model_class  # takes its time to be imported

    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in summary["stages"].items())
    n = summary["n_components"]
    rows = [
        ("model", f"{summary['model']}, {n} component{'s' * (n != 1)}"),
        ("rows", format_row_count(summary["n_samples"], summary["split"])),
        ("features", f"{summary['n_features']:,}"),
        ("segments", f"{summary['n_segments']:,}"),
        ("passes", f"{summary['iterations']}, {describe_ending(summary['converged'])}"),
        ("seconds", f"{summary['seconds']:.2f} ({stages})"),
    ]
    if summary["warm_start"]:
        name = Path(summary["warm_start"]["path"]).name
        rows.append(("started", f"from {name}, with as many components"))
    if summary["objective"]:
        named = summary["diagnostics"].get("objective_is", "objective")
        rows.append((named, f"{summary['objective']:.6f} nats a row"))
    for name in find_model_class(summary["model"]).summary_diagnostics:
        if name in summary["diagnostics"]:
            rows.append((name.replace("_", " "), f"{summary['diagnostics'][name]:,.5g}"))
    if summary["spectrum"]:
        rows.append(("spectrum", _format_spectrum(summary["spectrum"], summary["n_features"])))
    if summary["drift"]:
        rows.append(("drift", format_drift(summary["drift"])))
    if "mcs" in summary:
        rows.append(("truth", f"mean cosine similarity {summary['mcs']:.4f}"))
    return rows


def _format_spectrum(values: Sequence[float], n_features: int) -> str:
    more = " …" if len(values) == _MAX_SHOWN < n_features else ""
    return "  ".join(f"{value:.4g}" for value in values) + more
