"""The report as a Prefect flow, for deployments; the command writes it without Prefect."""

from __future__ import annotations

from functools import partial
from typing import Any

from flows.report.inputs import check_page_path
from flows.report.options import ReportOptions
from flows.report.page import build_report_from_artifact, write_report
from flows.report.server import publish_report
from flows.running.flow import make_flow, run_task
from storage.stores.locations import parse_path


@make_flow("report", ReportOptions)
def report(options: ReportOptions) -> dict[str, Any]:
    """Write the report of a fit."""
    return run_task("report", partial(_write_and_publish, options))


def _write_and_publish(options: ReportOptions) -> dict[str, Any]:
    """Write the report, and publish it if a Prefect server is configured."""
    page = check_page_path(options.output, options.overwrite)
    built = build_report_from_artifact(parse_path(options.artifact), options.figure_options)
    write_report(built, page)
    publish_report(built, page)
    fitted = built.fitted.artifact.path
    return {"report": str(page), "artifact": str(fitted), "warnings": list(built.notes)}
