"""Puts the report together and writes it: one file, from which no request leaves."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from flows.cli.errors import format_warnings
from flows.data.fitted import LoadedModel
from flows.report.figures.calibration import plot_calibration
from flows.report.figures.causes import TextTable, find_causes, make_unit_table
from flows.report.figures.features import correlate_features_with_codes, plot_correlations
from flows.report.figures.labels import choose_labels
from flows.report.figures.latent import plot_latent_space
from flows.report.figures.parameters import plot_parameters
from flows.report.figures.plots import Figure
from flows.report.figures.rows import DatasetSample, read_dataset_sample
from flows.report.findings import summarize_findings
from flows.report.layout import arrange_figures
from flows.report.subject import (
    DEFAULT_FIGURE_OPTIONS,
    FigureOptions,
    ReportInputs,
    load_report_inputs,
)
from flows.report.tables.facts import (
    describe_arrays,
    describe_drift,
    describe_fit,
    describe_stages,
    drop_fit_statistics,
    format_title,
    format_values,
    list_provenance,
)
from flows.report.tables.fit_statistics import make_fit_statistics_table
from flows.report.tables.items import make_parameter_table
from flows.report.tables.words import explain_facts
from pipeline.executors.base import limit_blas_threads
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import AnyPath, write_text


@dataclass(frozen=True)
class Report:
    """What was drawn.

    Attributes
    ----------
    fitted
        The fitted model.
    figures
        Of it, in their order.
    tables
        What is told in words beside them.
    notes
        What was left out and why.
    correlations
        Of features with components, (n_features, n_components); None where no rows were read.
    """

    fitted: LoadedModel
    figures: tuple[Figure, ...]
    tables: tuple[TextTable, ...]
    notes: tuple[str, ...]
    correlations: NDArray[np.float64] | None


def build_report_from_artifact(
    artifact: str | AnyPath,
    options: FigureOptions = DEFAULT_FIGURE_OPTIONS,
    opened: BinaryDataset | None = None,
) -> Report:
    """Draw the figures of an artifact; the parameters are those of `load_report_inputs`.

    Raises
    ------
    DataError, FitError
        If the artifact or the dataset cannot be used.
    """
    return build_report(load_report_inputs(artifact, options, opened))


def build_report(subject: ReportInputs) -> Report:
    """Draw the figures of what was found."""
    fitted, causes = subject.fitted, find_causes(subject.fitted)
    figures = [*plot_parameters(fitted.artifact, subject.layout, causes)]
    found = None
    if subject.dataset is not None:
        with limit_blas_threads():
            seen = read_dataset_sample(fitted, subject.dataset)
            found = correlate_features_with_codes(seen.coded_rows)
            figures += _iter_row_figures(subject, subject.dataset, seen, found)
    tables = (make_unit_table(causes, fitted.feature_names),) if causes else ()
    return Report(fitted, tuple(figures), tables, subject.notes, found)


def write_report(report: Report, output: AnyPath) -> None:
    """Write a report as a page, which is replaced at once or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # Half of a pair of surrogates, which manifests may hold, cannot be written.
    write_text(output, _render_page(report).encode("utf-8", "replace").decode())


def _iter_row_figures(
    subject: ReportInputs, dataset: BinaryDataset, seen: DatasetSample, found: NDArray[np.float64]
) -> Iterator[Figure]:
    fitted = subject.fitted
    labels = choose_labels(seen.coded_rows, dataset.segment_names, subject.label)
    yield from plot_latent_space(fitted, seen.coded_rows, labels, subject.layout)
    yield from plot_correlations(fitted.artifact, seen.coded_rows, found, subject.layout)
    if seen.pairs is not None and len(seen.pairs.z):
        yield plot_calibration(seen, seen.pairs, fitted.feature_names)


def _render_page(report: Report) -> str:
    artifact, figures = report.fitted.artifact, report.figures
    manifest = artifact.manifest
    facts = describe_fit(manifest)
    plots = [
        json_item(figure.plot, f"plot{k}")  # type: ignore[arg-type]
        for k, figure in enumerate(figures)
        if figure.plot is not None
    ]
    bokeh, script = "\n".join(_load_bokeh()), _read_text("script.js")
    page: str = _load_template().render(
        title=format_title(manifest),
        findings=summarize_findings(report.fitted, report.correlations),
        items=make_parameter_table(artifact, report.correlations),
        fit=make_fit_statistics_table(manifest),
        facts=facts,
        words=explain_facts(facts),
        warnings=[*format_warnings(manifest["warnings"]), *report.notes],
        drift=describe_drift(manifest),
        groups=arrange_figures(figures),
        plots=plots,
        tables=report.tables,
        stages=describe_stages(manifest),
        settings=format_values(manifest["hyperparameters"]),
        diagnostics=format_values(drop_fit_statistics(manifest["diagnostics"])),
        provenance=list_provenance(artifact),
        arrays=describe_arrays(artifact),
        bokeh=bokeh,
        script=script,
        style=_read_text("style.css"),
        script_hashes=[_hash_script(bokeh), _hash_script(script)],
    )
    return page


def _load_template() -> Any:
    environment = Environment(
        loader=PackageLoader("flows.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Bokeh reads what it writes in order.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return environment.get_template("template.html")


def _load_bokeh() -> list[str]:
    resources = Resources(mode="inline", components=["bokeh"], log_level="error")
    return [text.strip() for text in resources.js_raw]


def _read_text(name: str) -> str:
    return files("flows.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash_script(script: str) -> str:
    """Give the hash that lets a browser run this script and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
