"""Writes the report of a fit: `python -m flows.report --artifact PATH --output report.html`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from flows.options import FittedArtifact, Overwrite, command, local_path, run
from flows.report.page import FILE, Options, write_report

HELP = """Write the report of a fitted model: one HTML file that needs no network.

Where the dataset is given, or still lies unchanged where it was fitted, some of its rows are shown
too: their latent codes, and the pairs of features whose joint shares the model misses.
"""
EXAMPLES = """Examples:

    python -m flows.report --artifact runs/votes --output votes.html
    python -m flows.report --artifact runs/usps --image-shape 16x16 --overwrite

`flows.fit` writes one into the artifact by itself. Exit codes: 0 done, 2 bad arguments or input, 1
failure, 130 interrupted.
"""
app = command("report", HELP, EXAMPLES)


@app.default
def main(
    *,
    artifact: FittedArtifact,
    dataset: Annotated[
        str | None,
        Parameter(help="Dataset whose rows to show. [default: that of the fit, if it is there]"),
    ] = None,
    image_shape: Annotated[
        str | None,
        Parameter(help="HEIGHTxWIDTH; features named r0c0, r0c1, … are placed by name."),
    ] = None,
    label: Annotated[
        str | None,
        Parameter(
            help="Per-row column, or segment, to colour rows by. [default: one of few values]"
        ),
    ] = None,
    output: Annotated[str, Parameter(help="The page to write.")] = FILE,
    overwrite: Overwrite = False,
) -> None:
    """Write, and say where."""
    options = Options(dataset, image_shape, label)
    notes = write_report(local_path(artifact), local_path(output), options, overwrite)
    console = Console(soft_wrap=True, highlight=False)
    for note in notes:
        console.print(f"warning: {note}", markup=False)
    console.print(f"report: {output}", markup=False)


if __name__ == "__main__":
    run(app)
