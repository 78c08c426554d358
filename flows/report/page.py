"""Builds the report and writes it as one HTML file that makes no request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from flows.cli.errors import format_warnings
from flows.data.fitted import LoadedModel
from flows.report.figures.causes import TextTable, find_causes, make_unit_table
from flows.report.figures.labels import choose_labels
from flows.report.figures.latent import plot_calibration, plot_latent_space
from flows.report.figures.marks import Figure
from flows.report.figures.parameters import (
    correlate_features_with_codes,
    plot_correlations,
    plot_parameters,
)
from flows.report.figures.rows import DatasetSample, read_dataset_sample
from flows.report.findings import summarize_findings
from flows.report.inputs import (
    DEFAULT_FIGURE_OPTIONS,
    FigureOptions,
    ReportInputs,
    load_report_inputs,
)
from flows.report.layout import arrange_figures
from flows.report.svg import MARKER_PATHS, render_plot
from flows.report.tables.facts import (
    describe_arrays,
    describe_drift,
    describe_fit,
    describe_stages,
    drop_fit_statistics,
    format_title,
    format_values,
    list_provenance,
    make_fit_statistics_table,
)
from flows.report.tables.items import make_parameter_table
from flows.report.tables.words import explain_facts
from pipeline.executors.base import limit_blas_threads
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import AnyPath, write_text


@dataclass(frozen=True)
class Report:
    """The contents of a report.

    Attributes
    ----------
    fitted
        The fitted model.
    figures
        In the order of the page.
    tables
        Tables of text that follow the figures.
    notes
        Warnings about what was left out.
    correlations
        Of features with components, (n_features, n_components); None if no rows were read.
    """

    fitted: LoadedModel
    figures: tuple[Figure, ...]
    tables: tuple[TextTable, ...]
    notes: tuple[str, ...]
    correlations: NDArray[np.float64] | None


def build_report_from_artifact(
    artifact: str | AnyPath,
    options: FigureOptions = DEFAULT_FIGURE_OPTIONS,
    dataset: BinaryDataset | None = None,
) -> Report:
    """Build the report of an artifact; see `load_report_inputs` for the parameters.

    Raises
    ------
    DataError, FitError
        If the artifact or the dataset cannot be used.
    """
    return build_report(load_report_inputs(artifact, options, dataset))


def build_report(inputs: ReportInputs) -> Report:
    """Draw the figures and fill the tables."""
    fitted, causes = inputs.fitted, find_causes(inputs.fitted)
    figures = [*plot_parameters(fitted.artifact, inputs.layout, causes)]
    correlations = None
    if inputs.dataset is not None:
        with limit_blas_threads():
            sample = read_dataset_sample(fitted, inputs.dataset)
            correlations = correlate_features_with_codes(sample.coded_rows)
            figures += _iter_row_figures(inputs, inputs.dataset, sample, correlations)
    tables = (make_unit_table(causes, fitted.feature_names),) if causes else ()
    return Report(fitted, tuple(figures), tables, inputs.notes, correlations)


def write_report(report: Report, output: AnyPath) -> None:
    """Write a report as a page. An existing page is replaced at once or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # A manifest may hold half of a surrogate pair, which UTF-8 cannot encode.
    write_text(output, _render_page(report).encode("utf-8", "replace").decode())


def _iter_row_figures(
    inputs: ReportInputs,
    dataset: BinaryDataset,
    sample: DatasetSample,
    correlations: NDArray[np.float64],
) -> Iterator[Figure]:
    fitted, coded = inputs.fitted, sample.coded_rows
    labels = choose_labels(coded, dataset.segment_names, inputs.label)
    yield from plot_latent_space(fitted, coded, labels, inputs.layout)
    yield from plot_correlations(fitted.artifact, coded, correlations, inputs.layout)
    if sample.pairs is not None and len(sample.pairs.z):
        yield plot_calibration(sample, sample.pairs, fitted.feature_names)


def _render_page(report: Report) -> str:
    artifact, figures = report.fitted.artifact, report.figures
    manifest = artifact.manifest
    facts = describe_fit(manifest)
    plots = {k: render_plot(f, f"plot{k}") for k, f in enumerate(figures) if f.plot is not None}
    script = _read_text("script.js")
    page: str = _load_template().render(
        title=format_title(manifest),
        findings=summarize_findings(report.fitted, report.correlations),
        items=make_parameter_table(artifact, report.correlations),
        fit=make_fit_statistics_table(manifest),
        facts=facts,
        explanations=explain_facts(facts),
        warnings=[*format_warnings(manifest["warnings"]), *report.notes],
        drift=describe_drift(manifest),
        groups=arrange_figures(figures),
        plots=plots,
        plot_data={k: plot.data for k, plot in plots.items()},
        marker_paths=MARKER_PATHS,
        tables=report.tables,
        stages=describe_stages(manifest),
        settings=format_values(manifest["hyperparameters"]),
        diagnostics=format_values(drop_fit_statistics(manifest["diagnostics"])),
        provenance=list_provenance(artifact),
        arrays=describe_arrays(artifact),
        script=script,
        script_hash=_hash_script(script),
        style=_read_text("style.css"),
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
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("template.html")


def _read_text(name: str) -> str:
    return files("flows.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash_script(script: str) -> str:
    """Return the source expression of a content security policy that allows only this script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
