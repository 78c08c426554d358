"""Build the report, lay out its figures, and write it as one HTML file that makes no request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from flows.cli.errors import format_warnings
from flows.data.datasets import LoadedModel
from flows.report.figures.causes import TextTable, find_causes, make_unit_table
from flows.report.figures.latent import plot_calibration, plot_latent_space
from flows.report.figures.marks import Figure
from flows.report.figures.network import (
    find_network,
    make_difference_table,
    make_network_table,
    plot_heat_capacity,
    plot_networks,
)
from flows.report.figures.parameters import (
    correlate_features_with_codes,
    plot_correlations,
    plot_parameters,
)
from flows.report.figures.paths import make_change_table, plot_paths
from flows.report.figures.row_plots import (
    MAX_NAMED_ROWS,
    ColourLabels,
    choose_labels,
    choose_names,
    plot_positions,
)
from flows.report.figures.rows import DatasetSample, read_dataset_sample
from flows.report.figures.states import make_state_table, plot_transitions
from flows.report.figures.tree_planes import plot_tree_planes
from flows.report.figures.trees import find_edges, make_edge_table, plot_trees
from flows.report.findings import summarize_findings
from flows.report.inputs import (
    DEFAULT_FIGURE_OPTIONS,
    FigureOptions,
    ReportInputs,
    load_report_inputs,
)
from flows.report.svg import MARKER_PATHS, render_plot
from flows.report.tables import (
    describe_arrays,
    describe_drift,
    describe_fit,
    describe_stages,
    explain_facts,
    format_title,
    format_values,
    list_provenance,
    make_class_number_table,
    make_class_table,
    make_coefficient_table,
    make_factor_table,
    make_fit_statistics_table,
    make_group_table,
    make_level_table,
    make_parameter_table,
)
from pipeline.evaluation.calibration import ShareComparison
from pipeline.executors.base import limit_blas_threads
from pipeline.inference.orientation import (
    RowPositions,
    check_has_free_signs,
    choose_signs,
    parse_poles,
)
from pipeline.models.base import reverse_components
from pipeline.models.capabilities import IsMixture
from pipeline.params import replace_arrays
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import AnyPath, write_text

NARROW_WIDTH, FULL_WIDTH = 520, 1060
"""Pixels of a figure in one of two columns, and of one that fills the page."""
_TITLE_HEIGHT, _LINE_HEIGHT = 80, 24  # pixels
_LETTERS_PER_LINE = 62
_PARTS = (
    *("overview", "number_tables", "fit", "facts", "explanations", "warnings", "drift", "groups"),
    *("tables", "stages", "settings", "diagnostics", "provenance", "arrays"),
)
"""Parts of a page that may be absent."""
PlacedFigure = tuple[int, Figure]


def orient_components(
    fitted: LoadedModel,
    sample: DatasetSample | None,
    names: ColourLabels | None,
    texts: Sequence[str],
) -> tuple[LoadedModel, DatasetSample | None]:
    """Reverse components so that named rows or features have positions of the given signs.

    Parameters
    ----------
    fitted, sample
        The fitted model and, if available, some rows.
    names
        Names of these rows, if they have any. A name of a row and of a feature means the row. The
        position of a row counts from the mean of all rows, that of a feature is its loading.
    texts
        See `parse_poles`.
    """
    if not texts:
        return fitted, sample
    check_has_free_signs(fitted.model)
    n_components = int(fitted.artifact.manifest["n_components"])
    positions = None
    if sample is not None:
        coded = sample.coded_rows
        row_names = [str(value) for value in names.values] if names else []
        # The first row of a name that several rows have.
        named = dict(zip(reversed(row_names), coded.codes[: len(row_names)][::-1], strict=True))
        positions = RowPositions(named, coded.codes, coded.values)
    signs = choose_signs(
        fitted.model,
        fitted.params,
        n_components,
        fitted.feature_names,
        parse_poles(texts, n_components),
        positions,
    )
    arrays = reverse_components(fitted.model, fitted.params, signs)
    params = replace_arrays(fitted.params, arrays)
    fitted = replace(fitted, params=params, artifact=fitted.artifact.replace_arrays(arrays))
    if sample is not None:
        codes = sample.coded_rows.codes * signs
        sample = replace(sample, coded_rows=replace(sample.coded_rows, codes=codes))
    return fitted, sample


@dataclass(frozen=True)
class Report:
    """The contents of a report; `notes` are warnings about omitted figures.

    `correlations` of features with components, (n_features, n_components), are None if no rows
    were read; `pairs` are the joint frequencies in the figure of the calibration, if there is one.
    """

    fitted: LoadedModel
    figures: tuple[Figure, ...]
    tables: tuple[TextTable, ...]
    notes: tuple[str, ...]
    correlations: NDArray[np.float64] | None
    pairs: ShareComparison | None

    @property
    def topics(self) -> dict[str, list[str]]:
        """The findings, as sentences by topic."""
        return summarize_findings(self.fitted, self.correlations, self.pairs)

    @property
    def findings(self) -> list[str]:
        """The findings, as sentences."""
        return [*chain.from_iterable(self.topics.values())]


def build_report_from_artifact(
    artifact: str | AnyPath,
    options: FigureOptions = DEFAULT_FIGURE_OPTIONS,
    dataset: BinaryDataset | None = None,
) -> Report:
    """Build the report of an artifact; see `load_report_inputs` for parameters and errors."""
    return build_report(load_report_inputs(artifact, options, dataset))


def build_report(inputs: ReportInputs) -> Report:
    """Draw the figures and fill the tables."""
    fitted, options, dataset = inputs.fitted, inputs.options, inputs.dataset
    sample = names = correlations = pairs = None
    if dataset is not None:
        with limit_blas_threads():
            sample = read_dataset_sample(fitted, dataset)
        names = choose_names(sample.coded_rows, options.names, inputs.used_columns)
    fitted, sample = orient_components(fitted, sample, names, options.orient)
    causes = find_causes(fitted)
    figures = [*plot_paths(fitted.artifact)]
    figures += plot_parameters(fitted.artifact, inputs.layout, causes)
    figures += plot_transitions(fitted.artifact)
    edges, tables = find_edges(fitted), []
    if states := make_state_table(fitted.artifact):
        tables.append(states)
    if causes:
        tables.append(make_unit_table(causes, fitted.feature_names))
    if edges:
        figures += plot_trees(edges, fitted.feature_names, inputs.layout)
        tables.append(make_edge_table(edges, fitted.feature_names))
    if network := find_network(fitted):
        figures += plot_networks(fitted, inputs.layout)
        figures += plot_heat_capacity(fitted)
        tables.append(make_network_table(network, fitted.feature_names))
        if differences := make_difference_table(fitted):
            tables[-1] = differences
    if dataset is not None and sample is not None:
        pairs = sample.pairs if sample.pairs is not None and len(sample.pairs.z) else None
        with limit_blas_threads():
            if not any(feature.kind == "nominal" for feature in fitted.dataset_features):
                correlations = correlate_features_with_codes(sample.coded_rows)
            inputs = replace(inputs, fitted=fitted)
            figures += _iter_row_figures(inputs, dataset, sample, names, correlations)
    return Report(fitted, tuple(figures), tuple(tables), inputs.notes, correlations, pairs)


def write_report(report: Report, output: AnyPath) -> None:
    """Write a report as a page. An existing page is replaced at once or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # A manifest may hold half of a surrogate pair, which UTF-8 cannot encode.
    write_text(output, render_page(report).encode("utf-8", "replace").decode())


def _iter_row_figures(
    inputs: ReportInputs,
    dataset: BinaryDataset,
    sample: DatasetSample,
    names: ColourLabels | None,
    correlations: NDArray[np.float64] | None,
) -> Iterator[Figure]:
    fitted, coded = inputs.fitted, sample.coded_rows
    used = (inputs.used_columns, inputs.weight_columns)
    labels = choose_labels(coded, dataset.segment_names, inputs.options.label, *used)
    if not isinstance(fitted.model, IsMixture) or coded.codes.shape[1] > 1:  # else, codes are 1
        chosen = inputs.options.features
        yield from plot_latent_space(fitted, coded, labels, inputs.layout, chosen)
        yield from plot_tree_planes(fitted, coded, labels)
        if names is not None and len(coded.codes) <= MAX_NAMED_ROWS:
            has_scale = "trait_mean" in fitted.artifact  # else, anchors had no effect
            anchors = fitted.artifact.manifest.get("anchors", {}) if has_scale else {}
            yield from plot_positions(coded, names, labels, anchors)
        if correlations is not None:
            yield from plot_correlations(fitted.artifact, coded, correlations, inputs.layout)
    if sample.pairs is not None and len(sample.pairs.z):
        yield plot_calibration(sample, sample.pairs)


def render_page(report: Report) -> str:
    """Render a report as one HTML page."""
    artifact, figures = report.fitted.artifact, report.figures
    manifest = artifact.manifest
    facts = describe_fit(manifest)
    plots = {k: render_plot(f, f"plot{k}") for k, f in enumerate(figures) if f.plot is not None}
    return render_template(
        title=format_title(manifest),
        topics=report.topics,
        overview=[
            table
            for table in (make_class_number_table(manifest), make_change_table(artifact))
            if table is not None
        ],
        number_tables=[
            table
            for table in (
                make_class_table(artifact),
                make_level_table(artifact),
                make_parameter_table(artifact, report.correlations),
                make_factor_table(artifact),
                make_coefficient_table(artifact),
                make_group_table(artifact),
            )
            if table is not None
        ],
        fit=make_fit_statistics_table(manifest),
        facts=facts,
        explanations=explain_facts(facts),
        warnings=[*format_warnings(manifest["warnings"]), *report.notes],
        drift=describe_drift(manifest),
        groups=arrange_figures(figures),
        plots=plots,
        plot_data={k: plot.data for k, plot in plots.items()},
        tables=report.tables,
        stages=describe_stages(manifest),
        settings=format_values(manifest["hyperparameters"]),
        diagnostics=format_values(manifest["diagnostics"]),
        provenance=list_provenance(artifact),
        arrays=describe_arrays(artifact),
    )


def render_template(**contents: Any) -> str:
    """Render the parts of a page; those that are not given are left out."""
    script = _read_text("script.js")
    page: str = _load_template().render(
        **{**dict.fromkeys(_PARTS, ()), "plots": {}, "plot_data": {}, **contents},
        marker_paths=MARKER_PATHS,
        script=script,
        script_hash=_hash_script(script),
        style=_read_text("style.css"),
    )
    return page


@cache
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


class FigureGroup(NamedTuple):
    """Columns of figures that are laid out together, each with its index in the report.

    `kind` is "pair" for two columns of narrow figures, "wide" for a figure that fills the page, or
    "alone" for a square figure with its text on the right.
    """

    kind: str
    columns: tuple[tuple[PlacedFigure, ...], ...]


def arrange_figures(figures: Sequence[Figure]) -> Iterator[FigureGroup]:
    """Group consecutive figures of the same width; a single narrow one is widened."""
    for is_narrow, placed_figures in groupby(enumerate(figures), _is_narrow):
        group = tuple(placed_figures)
        if is_narrow and len(group) > 1:
            yield FigureGroup("pair", _split_into_columns(group))
            continue
        for place, figure in group:
            kind = "alone" if _is_square(figure) else "wide"
            yield FigureGroup(kind, (((place, replace(figure, width=FULL_WIDTH)),),))


def _is_narrow(placed: PlacedFigure) -> bool:
    return placed[1].width <= NARROW_WIDTH


def _is_square(figure: Figure) -> bool:
    return figure.plot is not None and figure.plot.height is None


def _split_into_columns(group: Sequence[PlacedFigure]) -> tuple[tuple[PlacedFigure, ...], ...]:
    """Put each figure into the shorter of two columns, so that none is above an earlier one."""
    columns, heights = (list[PlacedFigure](), list[PlacedFigure]()), [0, 0]
    for placed in group:
        shorter = int(heights[1] < heights[0])
        columns[shorter].append(placed)
        heights[shorter] += _estimate_height(placed[1])
    return tuple(map(tuple, columns))


def _estimate_height(figure: Figure) -> int:
    """Estimate the height of a figure with its text, in pixels."""
    lines = 1 + len(figure.note + figure.hint) // _LETTERS_PER_LINE
    n_legends = sum(map(bool, (figure.keys, figure.ramp, figure.choices)))
    height = (figure.plot and figure.plot.height) or figure.width
    return height + _TITLE_HEIGHT + _LINE_HEIGHT * (lines + n_legends)
