"""The report as a flow, for deployments; the command draws it without Prefect."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.report.page import Options, draw_report, new_page, write_report
from flows.report.server import publish
from flows.running.retries import RETRIES
from flows.running.server import check_schedule
from storage.locations import place


@task(name="report", cache_policy=NO_CACHE, **RETRIES)
def report_stage(artifact: str, output: str, options: Options, overwrite: bool) -> dict[str, Any]:
    """Draw the report, and publish it where a Prefect server is configured."""
    page = new_page(output, overwrite)
    drawn = draw_report(place(artifact), options)
    write_report(drawn, page)
    publish(drawn, page)
    fitted = drawn.fitted.artifact.path
    return {"report": str(page), "artifact": str(fitted), "warnings": list(drawn.notes)}


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
    return report_stage(artifact, output, Options(dataset, image_shape, label), overwrite)
