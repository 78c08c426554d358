"""The report as a flow, for deployments; the command draws it without Prefect."""

from __future__ import annotations

from functools import partial
from typing import Any

from flows.report.options import ReportOptions
from flows.report.page import draw_report, write_report
from flows.report.server import publish
from flows.report.subject import new_page
from flows.running.flow import flow_of
from flows.running.stages import run_task
from storage.stores.locations import place


@flow_of("report", ReportOptions)
def report(options: ReportOptions) -> dict[str, Any]:
    """Draw the report of a fit."""
    return run_task("report", partial(_report, options))


def _report(options: ReportOptions) -> dict[str, Any]:
    """Draw the report, and publish it where a Prefect server is configured."""
    page = new_page(options.output, options.overwrite)
    drawn = draw_report(place(options.artifact), options.about)
    write_report(drawn, page)
    publish(drawn, page)
    fitted = drawn.fitted.artifact.path
    return {"report": str(page), "artifact": str(fitted), "warnings": list(drawn.notes)}
