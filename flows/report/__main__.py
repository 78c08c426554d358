"""Write the report of a fit: `python -m flows.report --artifact PATH --output report.html`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import OUTPUT
from flows.cli.startup import pause_garbage_collection
from flows.report.figures.marks import PictureFormat
from flows.report.figures.text import make_unique_slugs
from flows.report.inputs import ReportOptions, check_page_path, load_report_inputs
from storage.extras import REPORT_PACKAGES, check_installed
from storage.stores.locations import AnyPath, check_target_file, parse_path

if TYPE_CHECKING:
    from flows.report.figures.marks import Figure
    from flows.report.page import Report

HELP = """Write the report of a fitted model: one HTML file that needs no network.

If the dataset of the fit still exists, or `--dataset` names another one, the report also shows
some of its rows: their latent codes, and how well the model reproduces pairs of features.
"""
EXAMPLES = f"""Examples:

    python -m flows.report --artifact runs/votes --output votes.html
    python -m flows.report --artifact runs/usps --image-shape 16x16 --overwrite
    python -m flows.report --artifact runs/votes --pictures figures --picture-format pdf

`flows.fit` already writes a report into the artifact.

{EXIT_CODES}"""
app = make_app("report", HELP, EXAMPLES)


@app.default
def main(
    *,
    options: ReportOptions,
    pictures: Annotated[
        str | None,
        Parameter(group=OUTPUT, help="Folder for a picture of every figure, and captions.txt."),
    ] = None,
    picture_format: Annotated[
        PictureFormat,
        Parameter(
            group=OUTPUT,
            help="Format of the pictures; svg and pdf are one or two journal columns wide.",
        ),
    ] = "png",
) -> None:
    """Write the report, and the pictures if there is a folder for them."""
    check_installed("A report", *REPORT_PACKAGES)
    page = check_page_path(options.output, options.overwrite)
    inputs = load_report_inputs(parse_path(options.artifact), options.figure_options)
    with pause_garbage_collection():
        from flows.report.page import build_report, write_report  # models are slow to import

    report = build_report(inputs)
    figures = _name_pictures(report, parse_path(pictures), picture_format) if pictures else {}
    for path in (*figures, *([parse_path(pictures or "") / _CAPTIONS_FILE] if figures else [])):
        check_target_file(path, options.overwrite)
    write_report(report, page)
    _write_pictures(figures, picture_format)
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    for note in report.notes:
        console.print(f"warning: {note}", markup=False)
    console.print(f"report: {options.output}", markup=False)
    for path in figures:
        console.print(f"picture: {path}", markup=False)


_CAPTIONS_FILE = "captions.txt"


def _name_pictures(report: Report, folder: AnyPath, suffix: str) -> dict[AnyPath, Figure]:
    """Name a file for each figure after its title."""
    names = make_unique_slugs(figure.title for figure in report.figures)
    return {folder / f"{name}.{suffix}": f for name, f in zip(names, report.figures, strict=True)}


def _write_pictures(figures: Mapping[AnyPath, Figure], kind: PictureFormat) -> None:
    if figures:
        from flows.report.pictures import render_picture  # Matplotlib is slow to import
    for path, figure in figures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(render_picture(figure, kind))
    captions = [
        f"{path.name}: {f'{figure.heading or figure.title}. {figure.note}'.strip()}\n"
        for path, figure in figures.items()
    ]
    for folder in {path.parent for path in figures}:
        (folder / _CAPTIONS_FILE).write_bytes("".join(captions).encode())


if __name__ == "__main__":
    run_app(app)
