"""The report in Prefect: a flow for deployments, and the artifacts that a server shows.

The command itself writes the report without Prefect. Keys of artifacts consist of dataset, model
and figure, such as `votes-clipped-pca-spectrum`, so the history of a key shows one figure over all
fits of a model to a dataset.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

from flows.cli.errors import format_warnings
from flows.report.figures.text import make_slug, make_unique_slugs
from flows.report.inputs import ReportOptions, check_page_path
from flows.report.markdown import format_facts, quote_text
from flows.report.page import Report, build_report_from_artifact, write_report
from flows.report.tables import (
    describe_drift,
    describe_fit,
    format_dataset_name,
    format_title,
)
from flows.running.environment import is_server_configured
from flows.running.flow import make_flow, run_task
from storage.stores.locations import AnyPath, parse_path


@make_flow("report", ReportOptions)
def report(options: ReportOptions) -> dict[str, Any]:
    """Write the report of a fit."""
    return run_task("report", partial(_write_and_publish, options))


def _write_and_publish(options: ReportOptions) -> dict[str, Any]:
    """Write the report, and publish it if a Prefect server is configured."""
    page = check_page_path(options.output, options.overwrite)
    contents = build_report_from_artifact(parse_path(options.artifact), options.figure_options)
    write_report(contents, page)
    publish_report(contents, page)
    artifact = contents.fitted.artifact.path
    return {"report": str(page), "artifact": str(artifact), "warnings": list(contents.notes)}


def publish_report(report: Report, page: AnyPath) -> None:
    """Publish findings, facts, the page's path and all figures, if a server is configured.

    An embedded server ends with the run, so nothing is published there.
    """
    if not is_server_configured():
        return
    from prefect.artifacts import create_image_artifact, create_markdown_artifact

    from flows.report.pictures import render_picture  # Matplotlib is slow to import

    manifest = report.fitted.artifact.manifest
    key = f"{make_slug(format_dataset_name(manifest))}-{make_slug(manifest['model'])}"
    text = format_markdown(manifest, report.findings, page)
    create_markdown_artifact(text, key=key, description=quote_text(format_title(manifest)))
    names = make_unique_slugs(figure.title for figure in report.figures)
    for name, figure in zip(names, report.figures, strict=True):
        uri = _encode_small_image(render_picture(figure))
        create_image_artifact(uri, key=f"{key}-{name}", description=quote_text(figure.alt))


def format_markdown(manifest: Mapping[str, Any], findings: Sequence[str], page: AnyPath) -> str:
    """Format findings, warnings, facts and drift as Markdown; names cannot contain markup."""
    items = [f"- {quote_text(sentence)}" for sentence in findings]
    warnings = [f"- {quote_text(warning)}" for warning in format_warnings(manifest["warnings"])]
    warnings = ["## Warnings", "", *warnings, ""] if warnings else []
    lines = [f"# {quote_text(format_title(manifest))}", "", *items, "", *warnings]
    lines += format_facts(describe_fit(manifest))
    if drift := describe_drift(manifest):
        lines += ["", "## Since the last fit", "", *format_facts(drift)]
    return "\n".join([*lines, "", f"Report: {quote_text(str(page.resolve()))}", ""])


def _encode_small_image(png: bytes) -> str:
    """Return a picture in 256 colours, which saves two thirds of its size, as a data URI."""
    from PIL import Image  # optional

    picture = Image.open(BytesIO(png)).convert("RGB")
    file = BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
