"""A fit for those who look at a Prefect server: its facts, and its figures as pictures.

Keys hold the dataset, the model and the figure, so the history of a key is one quantity over the
fits of one dataset by one model: `votes-clipped-pca`, `votes-clipped-pca-spectrum`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from PIL import Image as Picture

from flows.report.findings import findings
from flows.report.page import Report
from flows.report.tables.facts import Facts, dataset_name, drift_facts, title_of, what_was_fitted
from flows.report.text import slug, slugs
from flows.running.environment import server_configured
from storage.stores.locations import Place


def publish(report: Report, page: Place) -> None:
    """Leave findings, facts, the page's path and all figures on the server, if one is configured.

    An embedded server is gone after the run, so nothing is left there.
    """
    if not server_configured():
        return
    from prefect.artifacts import create_image_artifact, create_markdown_artifact

    from flows.report.print.still import still  # Matplotlib takes its time to be imported

    manifest = report.fitted.artifact.manifest
    key = f"{slug(dataset_name(manifest))}-{slug(manifest['model'])}"
    told = markdown(manifest, findings(report.fitted, report.correlations), page)
    create_markdown_artifact(told, key=key, description=_code(title_of(manifest)))
    names = slugs(figure.title for figure in report.figures)
    for name, figure in zip(names, report.figures, strict=True):
        uri = _small_uri(still(figure))
        create_image_artifact(uri, key=f"{key}-{name}", description=_code(figure.alt))


def markdown(manifest: Mapping[str, Any], found: Sequence[str], page: Place) -> str:
    """Write what was found, warnings, facts and drift; names of a dataset are not markup."""
    told = [f"- {_code(sentence)}" for sentence in found]
    warnings = [f"- {_code(warning)}" for warning in manifest["warnings"]]
    warnings = ["## Warnings", "", *warnings, ""] if warnings else []
    lines = [f"# {_code(title_of(manifest))}", "", *told, "", *warnings]
    lines += _table(what_was_fitted(manifest))
    if drift := drift_facts(manifest):
        lines += ["", "## Since the last fit", "", *_table(drift)]
    return "\n".join([*lines, "", f"Report: {_code(str(page.resolve()))}", ""])


def _table(facts: Facts) -> list[str]:
    rows = (f"| {_code(name)} | {_code(value)} |" for name, value in facts)
    return ["| | |", "|---|---|", *rows, ""]


def _code(text: str) -> str:
    """Quote a text so that nothing in it is markup."""
    return "`` " + " ".join(text.replace("`", "'").replace("|", "¦").split()) + " ``"


def _small_uri(png: bytes) -> str:
    """Give a picture in 256 colours, a third of the bytes, as a data URI: a server keeps it."""
    picture = Picture.open(BytesIO(png)).convert("RGB")
    file = BytesIO()
    picture.quantize(256, dither=Picture.Dither.NONE).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
