"""The report as a flow, for deployments; the command draws it without Prefect."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from flows.report.page import draw_report, write_report
from flows.report.server import publish
from flows.report.subject import Options, new_page
from flows.running.server import check_schedule
from flows.running.stages import run_task
from storage.locations import place


@flow(name="report", validate_parameters=False)
def report(
    artifact: str,
    output: str,
    dataset: str | None = None,
    image_shape: str | None = None,
    label: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Run the stage; `python -m flows.report --help` explains the parameters."""
    check_schedule()
    options = Options(dataset, image_shape, label)
    return run_task("report", partial(_report, artifact, output, options, overwrite))


def _report(artifact: str, output: str, options: Options, overwrite: bool) -> dict[str, Any]:
    """Draw the report, and publish it where a Prefect server is configured."""
    page = new_page(output, overwrite)
    drawn = draw_report(place(artifact), options)
    write_report(drawn, page)
    publish(drawn, page)
    fitted = drawn.fitted.artifact.path
    return {"report": str(page), "artifact": str(fitted), "warnings": list(drawn.notes)}
