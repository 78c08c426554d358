"""Options of a report, for the command line and for Prefect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flows.cli.options import DATA, OUTPUT, ArtifactPath, Option, Overwrite
from flows.report.inputs import REPORT_FILE, FigureOptions


@Option(name="*")
@dataclass(frozen=True)
class ReportOptions:
    """Options of `python -m flows.report`, except those of pictures."""

    artifact: ArtifactPath
    output: Annotated[str, Option(group=OUTPUT, help="HTML file to write.")] = REPORT_FILE
    dataset: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Dataset whose rows are shown. [default: that of the fit, if it still exists]",
        ),
    ] = None
    image_shape: Annotated[
        str | None,
        Option(
            group=DATA,
            help="HEIGHTxWIDTH of images; not needed if features are named r0c0, r0c1, …",
        ),
    ] = None
    label: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Per-row column, or segment, that colours rows. [default: one with few values]",
        ),
    ] = None
    overwrite: Overwrite = False

    @property
    def figure_options(self) -> FigureOptions:
        """Options of the figures."""
        return FigureOptions(self.dataset, self.image_shape, self.label)
