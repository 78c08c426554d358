"""Writes the report of a fit: `python -m flows.report --artifact PATH --output report.html`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from flows.cli.app import make_app, run_app
from flows.cli.options import OUTPUT
from flows.cli.startup import pause_garbage_collection
from flows.report.options import ReportOptions
from flows.report.slugs import make_unique_slugs
from flows.report.subject import check_page_path, load_report_inputs
from storage.stores.locations import AnyPath, check_target_file, parse_path

if TYPE_CHECKING:
    from flows.report.figures.plots import Figure
    from flows.report.page import Report

HELP = """Write the report of a fitted model: one HTML file that needs no network.

Where the dataset is given, or still lies unchanged where it was fitted, some of its rows are shown
too: their latent codes, and the pairs of features whose joint shares the model misses.
"""
EXAMPLES = """Examples:

    python -m flows.report --artifact runs/votes --output votes.html
    python -m flows.report --artifact runs/usps --image-shape 16x16 --overwrite
    python -m flows.report --artifact runs/votes --pictures figures --picture-format pdf

`flows.fit` writes one into the artifact by itself. Exit codes: 0 done, 2 bad arguments or input, 1
failure, 130 interrupted.
"""
app = make_app("report", HELP, EXAMPLES)
PictureFormat = Literal["png", "svg", "pdf"]


@app.default
def main(
    *,
    options: ReportOptions,
    pictures: Annotated[
        str | None, Parameter(group=OUTPUT, help="Folder to write every figure to as well.")
    ] = None,
    picture_format: Annotated[
        PictureFormat,
        Parameter(
            group=OUTPUT,
            help="png, or svg or pdf at the width of one or two columns of a journal.",
        ),
    ] = "png",
) -> None:
    """Write, and say where."""
    page = check_page_path(options.output, options.overwrite)
    subject = load_report_inputs(parse_path(options.artifact), options.figure_options)
    with pause_garbage_collection():
        from flows.report.page import (  # Bokeh takes its time to be imported
            build_report,
            write_report,
        )

    report = build_report(subject)
    stills = _name_pictures(report, parse_path(pictures), picture_format) if pictures else {}
    for path in stills:
        check_target_file(path, options.overwrite)
    write_report(report, page)
    _write_pictures(stills)
    console = Console(soft_wrap=True, highlight=False)
    for note in report.notes:
        console.print(f"warning: {note}", markup=False)
    console.print(f"report: {options.output}", markup=False)
    for path in stills:
        console.print(f"picture: {path}", markup=False)


def _name_pictures(report: Report, folder: AnyPath, kind: PictureFormat) -> dict[AnyPath, Figure]:
    """Name a file for each figure, after its title."""
    folder.mkdir(parents=True, exist_ok=True)
    names = make_unique_slugs(figure.title for figure in report.figures)
    return {folder / f"{name}.{kind}": f for name, f in zip(names, report.figures, strict=True)}


def _write_pictures(pictures: Mapping[AnyPath, Figure]) -> None:
    if pictures:
        from flows.report.print.still import still  # Matplotlib takes its time to be imported
    for path, figure in pictures.items():
        path.write_bytes(still(figure, path.suffix[1:]))


if __name__ == "__main__":
    run_app(app)
