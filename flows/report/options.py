"""What a report is asked for: its command line, and the parameters that Prefect records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flows.cli.options import DATA, OUTPUT, ArtifactPath, Option, Overwrite
from flows.report.inputs import REPORT_FILE, FigureOptions


@Option(name="*")
@dataclass(frozen=True)
class ReportOptions:
    """The options of `python -m flows.report`, pictures aside."""

    artifact: ArtifactPath
    output: Annotated[str, Option(group=OUTPUT, help="The page to write.")] = REPORT_FILE
    dataset: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Dataset whose rows to show. [default: that of the fit, if it is there]",
        ),
    ] = None
    image_shape: Annotated[
        str | None,
        Option(group=DATA, help="HEIGHTxWIDTH; features named r0c0, r0c1, … are placed by name."),
    ] = None
    label: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Per-row column, or segment, to colour rows by. [default: one of few values]",
        ),
    ] = None
    overwrite: Overwrite = False

    @property
    def figure_options(self) -> FigureOptions:
        """What is shown."""
        return FigureOptions(self.dataset, self.image_shape, self.label)
