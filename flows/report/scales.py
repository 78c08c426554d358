"""The page of several scales: their items and fits, with links to the reports of the scales."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from flows.cli.errors import format_warnings
from flows.exporting.scales import ScaleScores
from flows.report.figures.causes import TextTable
from flows.report.inputs import REPORT_FILE
from flows.report.page import render_template
from flows.report.tables import format_dataset_name, make_parameter_table
from pipeline.learning.convergence import describe_passes
from storage.artifacts.artifacts import Artifact
from storage.stores.locations import write_text

_MAX_WARNINGS = 3  # of a scale; its report has all


def write_scales_page(scores: Mapping[str, ScaleScores], page: Path) -> None:
    """Write the page, whose links start from a folder beside those of the scales."""
    artifacts = {name: own.artifact for name, own in scores.items()}
    manifest = next(iter(artifacts.values())).manifest
    tables = [
        table._replace(title=f"{name}: {table.title.lower()}")
        for name, artifact in artifacts.items()
        if (table := make_parameter_table(artifact, None)) is not None
    ]
    text = render_template(
        title=f"{format_dataset_name(manifest)}: {len(scores)} scales, {manifest['model']}",
        topics={"Scales": _list_findings(artifacts)},
        warnings=_list_warnings(artifacts),
        overview=[_make_scale_table(artifacts), *_correlate_scores(scores)],
        number_tables=tables,
    )
    write_text(page, text)


def _list_findings(artifacts: Mapping[str, Artifact]) -> list[str]:
    n_rows = {artifact.manifest["n_samples"] for artifact in artifacts.values()}
    sentences = [f"Each scale was fitted by itself to {max(n_rows):,} rows."]
    unfinished = [name for name, own in artifacts.items() if not own.manifest["converged"]]
    return sentences + [f"Not converged: {', '.join(unfinished)}."] * bool(unfinished)


def _list_warnings(artifacts: Mapping[str, Artifact]) -> list[str]:
    texts = []
    for name, artifact in artifacts.items():
        own = format_warnings(artifact.manifest["warnings"])
        texts += [f"{name}: {text}" for text in own[:_MAX_WARNINGS]]
        if len(own) > _MAX_WARNINGS:
            texts.append(f"{name}: {len(own) - _MAX_WARNINGS} more, in its report")
    return texts


def _make_scale_table(artifacts: Mapping[str, Artifact]) -> TextTable:
    rows = []
    for name, artifact in artifacts.items():
        manifest, path = artifact.manifest, artifact.path
        statistics = manifest["diagnostics"].get("fit_statistics") or {}
        heading: str = name
        if (path / REPORT_FILE).exists():
            link = f"../{quote(name)}/{path.name}/{REPORT_FILE}"
            heading = Markup('<a href="{}">{}</a>').format(link, name)
        reliability = statistics.get("reliability", [])
        rows.append(
            (
                heading,
                ", ".join(manifest["feature_names"]),
                describe_passes(manifest["iterations"], manifest["converged"]),
                _format(statistics.get("log_likelihood"), ",.1f"),
                ", ".join(_format(value, ".3f") for value in reliability),
            )
        )
    columns = ("scale", "items", "passes", "log-likelihood", "reliability")
    note = "The name of a scale opens its report. Reliability is the share of the variance of the "
    return TextTable("Scales", columns, tuple(rows), f"{note}trait that the scores explain.")


def _format(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}".replace("-", "−")


def _correlate_scores(scores: Mapping[str, ScaleScores]) -> list[TextTable]:
    """Return the correlations of scores, if every scale has one score that varies."""
    means = [own.codes["mean"] for own in scores.values() if "mean" in own.codes]
    columns = [own[:, 0].astype(np.float64) for own in means if own.shape[1] == 1]
    if not 1 < len(columns) == len(scores) or not all(own.std() > 0 for own in columns):
        return []
    rows = tuple(
        (name, *(_format(value, ".2f") for value in own))
        for name, own in zip(scores, np.corrcoef(columns), strict=True)
    )
    note = "Scores have errors, so the traits themselves correlate more strongly."
    return [TextTable("Correlations of scores", ("scale", *scores), rows, note)]
