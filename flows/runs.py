"""List fits: `python -m flows.runs [FOLDER]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.errors import format_error
from flows.cli.options import DATA, Json, Option, Switch
from flows.cli.progress import log
from flows.cli.summary import make_table, print_json
from pipeline.errors import FitError
from pipeline.learning.convergence import describe_ending
from storage.artifacts.retention import (
    MAX_RUNS_DEPTH,
    RetentionRule,
    delete_removal,
    find_removals,
    parse_retention_rule,
)
from storage.errors import DataError
from storage.format.manifests import read_manifest
from storage.format.schema import ARTIFACT_FORMAT, FORMAT_VERSION
from storage.stores.locations import LATEST_NAME, MANIFEST_NAME, AnyPath, list_children, parse_path

HELP = """List the fits in a folder of runs. The latest fit of each dataset is marked with *.

Damaged fits, and fits by incompatible versions, are listed with the reason.

`--prune keep=30,days=90` lists what `--prune keep=30,days=90 --yes` deletes: fits that are neither
among the newest 30 of their folder nor younger than 90 days, codes of these fits in the same
folder, and unfinished work that nobody wrote to for a day. The latest fit is always kept, and so is
a fit that was replaced by a newer one less than a day ago.
"""
EXAMPLES = f"""Examples:

    python -m flows.runs
    python -m flows.runs runs/votes --json
    python -m flows.runs runs/votes --prune keep=30,days=90

{EXIT_CODES}"""
app = make_app("runs", HELP, EXAMPLES)
_CONSOLE_WIDTH = 1000  # let the terminal break long lines, so that paths can be copied


def iter_fits(folder: AnyPath) -> Iterator[dict[str, Any]]:
    """Iterate over the fits in a folder, ordered by name and so, for each model, by time."""
    yield from _iter_fits_to_depth(folder, MAX_RUNS_DEPTH)


def _iter_fits_to_depth(folder: AnyPath, depth: int) -> Iterator[dict[str, Any]]:
    if (folder / MANIFEST_NAME).is_file():
        yield _describe_fit(folder)
        return
    latest = folder / LATEST_NAME
    latest_name = latest.read_text().strip() if latest.is_file() else None
    for child in sorted(list_children(folder), key=lambda path: path.name) if depth else []:
        if child.is_dir() and not child.name.startswith("."):
            for fit in _iter_fits_to_depth(child, depth - 1):
                yield {**fit, "latest": fit["latest"] or child.name == latest_name}


def _describe_fit(folder: AnyPath) -> dict[str, Any]:
    try:
        manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
    except DataError as error:
        return {"artifact": str(folder), "latest": False, "refused": format_error(error)}
    return {"artifact": str(folder), "latest": False, **_summarize_manifest(manifest)}


def _summarize_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": manifest["model"],
        "components": manifest["n_components"],
        "rows": manifest.get("n_samples"),  # recorded by flows only
        "features": len(manifest["feature_names"]),
        "objective": manifest.get("objective"),
        "converged": manifest["converged"],
        "warnings": len(manifest["warnings"]),
    }


@app.default
def main(
    folder: Annotated[
        str, Option(group=DATA, help="Folder of runs, or of the fits of one dataset.")
    ] = "runs",
    *,
    prune: Annotated[
        str | None,
        Option(group=DATA, metavar="RULE", help="List old fits to delete: keep=30,days=90."),
    ] = None,
    yes: Annotated[bool, Switch, Option(group=DATA, help="Delete what --prune lists.")] = False,
    json: Json = False,
) -> None:
    """Print a table of the fits, or one JSON object."""
    if yes and prune is None:
        raise FitError("--yes deletes what --prune lists. Add --prune, such as keep=30,days=90.")
    rule = None if prune is None else parse_retention_rule(prune, "--prune")
    path = parse_path(folder)
    if not path.is_dir():
        raise DataError(f"{folder}: there is no such folder of runs. Fit a model first.")
    if rule is not None:
        _prune(path, rule, yes, json)
        return
    fits = list(iter_fits(path))
    if json:
        print_json({"fits": fits})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "artifact", "model", "components", "rows", "features", "nats per row", ""):
        table.add_column(column, no_wrap=True)
    for fit in fits:
        table.add_row("*" if fit["latest"] else "", fit["artifact"], *_format_cells(fit))
    _make_console().print(table if fits else f"no fits below {folder}")


def _prune(folder: AnyPath, rule: RetentionRule, is_confirmed: bool, json: bool) -> None:
    """List what the rule does not keep, and delete it if that is confirmed."""
    removals = list(find_removals(folder, rule))
    if json:
        listed = [
            {"path": str(r.folder), "kind": r.kind, "bytes": r.n_bytes, "deleted": False}
            for r in removals
        ]
    else:
        table = make_table("kind", "size", "path", left=("kind", "path"))
        for removal in removals:
            table.add_row(removal.kind, decimal(removal.n_bytes), escape(str(removal.folder)))
        _make_console().print(table if removals else f"nothing to delete below {folder}")
    n_bytes = 0
    for place, removal in enumerate(removals if is_confirmed else ()):
        if is_deleted := delete_removal(removal):
            n_bytes += removal.n_bytes
        else:
            log.warning("warning: %s is in use by now, so it is kept.", removal.folder)
        if json:
            listed[place]["deleted"] = is_deleted
    if json:
        print_json({"removals": listed})
    elif is_confirmed and removals:
        print(f"deleted: {decimal(n_bytes)}")
    elif removals:
        total = decimal(sum(removal.n_bytes for removal in removals))
        print(f"Nothing is deleted yet. Repeat the command with --yes to delete these {total}.")


def _make_console() -> Console:
    return Console(highlight=False, width=_CONSOLE_WIDTH, emoji=False)


def _format_cells(fit: Mapping[str, Any]) -> tuple[str, ...]:
    if "refused" in fit:
        return (fit["refused"],)
    objective = f"{fit['objective']:.4f}" if fit["objective"] else ""  # 0: the model has none
    ending = "" if fit["converged"] else describe_ending(False)
    warnings = f"{fit['warnings']} warning{'s' * (fit['warnings'] != 1)}" if fit["warnings"] else ""
    counts = (fit[name] for name in ("components", "rows", "features"))
    numbers = ("" if count is None else f"{count:,}" for count in counts)
    return fit["model"], *numbers, objective, ", ".join(filter(None, (ending, warnings)))


if __name__ == "__main__":
    run_app(app)
