"""Lists fits: `python -m flows.runs [FOLDER]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from flows.cli.options import Json, command, run
from flows.cli.summary import print_json
from pipeline.inference.from_artifact import stored_objective
from storage.errors import DataError
from storage.format.manifests import read_manifest
from storage.format.schema import ARTIFACT_FORMAT, FORMAT_VERSION
from storage.stores.locations import LATEST, MANIFEST, Place, children, place

HELP = """List the fits below a folder of runs, the latest of each dataset marked with *.

Reads manifests only. What is damaged or of another version is listed with the reason.
"""
EXAMPLES = """Examples:

    python -m flows.runs
    python -m flows.runs runs/votes --json
"""
app = command("runs", HELP, EXAMPLES)
_DEPTH = 3
"""Folders below each other that are searched: runs, one a dataset, one a fit."""
_WIDTH = 1000  # a terminal breaks lines at its edge, which leaves paths whole to be copied


def fits_below(folder: Place) -> Iterator[dict[str, Any]]:
    """Describe the fits below a folder in name order, which is that of time for each model."""
    yield from _found(folder, _DEPTH)


def _found(folder: Place, depth: int) -> Iterator[dict[str, Any]]:
    if (folder / MANIFEST).is_file():
        yield _described(folder)
        return
    latest = folder / LATEST
    newest = latest.read_text().strip() if latest.is_file() else None
    for child in sorted(children(folder), key=lambda one: one.name) if depth else []:
        if child.is_dir() and not child.name.startswith("."):
            for fit in _found(child, depth - 1):
                yield {**fit, "latest": fit["latest"] or child.name == newest}


def _described(folder: Place) -> dict[str, Any]:
    try:
        manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
    except DataError as error:
        return {"artifact": str(folder), "latest": False, "refused": str(error)}
    return {"artifact": str(folder), "latest": False, **_facts(manifest)}


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": manifest["model"],
        "components": manifest["n_components"],
        "rows": manifest.get("n_samples"),  # what only a flow records
        "features": len(manifest["feature_names"]),
        "objective": stored_objective(manifest),
        "converged": manifest["converged"],
        "warnings": len(manifest["warnings"]),
    }


@app.default
def main(
    folder: Annotated[str, Parameter(help="Folder of runs, or of one dataset's.")] = "runs",
    *,
    json: Json = False,
) -> None:
    """Print a table of the fits, or one JSON object."""
    path = place(folder)
    if not path.is_dir():
        raise DataError(f"{folder}: Expected a folder of runs, got nothing there. Fit first.")
    fits = list(fits_below(path))
    if json:
        print_json({"fits": fits})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "artifact", "model", "components", "rows", "features", "nats a row", ""):
        table.add_column(column, no_wrap=True)
    for fit in fits:
        table.add_row("*" if fit["latest"] else "", fit["artifact"], *_cells(fit))
    console = Console(highlight=False, width=_WIDTH)
    console.print(table if fits else f"no fits below {folder}")


def _cells(fit: Mapping[str, Any]) -> tuple[str, ...]:
    if "refused" in fit:
        return (fit["refused"],)
    objective = f"{fit['objective']:.4f}" if fit["objective"] else ""  # 0: the model has none
    ended = "" if fit["converged"] else "not converged"
    warned = f"{fit['warnings']} warning{'s' * (fit['warnings'] != 1)}" if fit["warnings"] else ""
    counts = (fit[name] for name in ("components", "rows", "features"))
    numbers = ("" if count is None else f"{count:,}" for count in counts)
    return fit["model"], *numbers, objective, ", ".join(filter(None, (ended, warned)))


if __name__ == "__main__":
    run(app)
