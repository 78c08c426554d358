"""Puts the report together and writes it: one file, from which no request leaves."""

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

from flows.data.fitted import Fitted
from flows.report.figures.calibration import draw_calibration
from flows.report.figures.causes import Table, causes_of, unit_table
from flows.report.figures.features import correlation_figures, correlations
from flows.report.figures.labels import choose_labels
from flows.report.figures.latent import draw_latent
from flows.report.figures.marks import Figure
from flows.report.figures.parameters import draw_parameters
from flows.report.figures.rows import Seen, read_rows
from flows.report.findings import findings
from flows.report.layout import arranged
from flows.report.subject import DEFAULTS, Options, Subject, subject_of
from flows.report.svg import SHAPES, draw_plot
from flows.report.tables.facts import (
    array_facts,
    drift_facts,
    provenance_facts,
    spelled,
    stages,
    title_of,
    what_was_fitted,
    without_statistics,
)
from flows.report.tables.fit_statistics import fit_table
from flows.report.tables.items import item_table
from flows.report.tables.words import words_of_facts
from pipeline.executors.base import one_blas_thread
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import Place, write_text


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

    fitted: Fitted
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    correlations: NDArray[np.float64] | None


def draw_report(
    artifact: str | Place, options: Options = DEFAULTS, opened: BinaryDataset | None = None
) -> Report:
    """Draw the figures of an artifact; the parameters are those of `subject_of`.

    Raises
    ------
    DataError, FitError
        If the artifact or the dataset cannot be used.
    """
    return drawn(subject_of(artifact, options, opened))


def drawn(subject: Subject) -> Report:
    """Draw the figures of what was found."""
    fitted, causes = subject.fitted, causes_of(subject.fitted)
    figures = [*draw_parameters(fitted.artifact, subject.layout, causes)]
    found = None
    if subject.dataset is not None:
        with one_blas_thread():
            seen = read_rows(fitted, subject.dataset)
            found = correlations(seen.coded)
            figures += _row_figures(subject, subject.dataset, seen, found)
    tables = (unit_table(causes, fitted.feature_names),) if causes else ()
    return Report(fitted, tuple(figures), tables, subject.notes, found)


def write_report(report: Report, output: Place) -> None:
    """Write a report as a page, which is replaced at once or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # Half of a pair of surrogates, which manifests may hold, cannot be written.
    write_text(output, _rendered(report).encode("utf-8", "replace").decode())


def _row_figures(
    subject: Subject, dataset: BinaryDataset, seen: Seen, found: NDArray[np.float64]
) -> Iterator[Figure]:
    fitted = subject.fitted
    labels = choose_labels(seen.coded, dataset.segment_names, subject.label)
    yield from draw_latent(fitted, seen.coded, labels, subject.layout)
    yield from correlation_figures(fitted.artifact, seen.coded, found, subject.layout)
    if seen.pairs is not None and len(seen.pairs.z):
        yield draw_calibration(seen, seen.pairs, fitted.feature_names)


def _rendered(report: Report) -> str:
    artifact, figures = report.fitted.artifact, report.figures
    manifest = artifact.manifest
    facts = what_was_fitted(manifest)
    plots = {k: draw_plot(f, f"plot{k}") for k, f in enumerate(figures) if f.plot is not None}
    script = _text("script.js")
    page: str = _template().render(
        title=title_of(manifest),
        findings=findings(report.fitted, report.correlations),
        items=item_table(artifact, report.correlations),
        fit=fit_table(manifest),
        facts=facts,
        words=words_of_facts(facts),
        warnings=[*manifest["warnings"], *report.notes],
        drift=drift_facts(manifest),
        groups=arranged(figures),
        plots=plots,
        data={k: plot.data for k, plot in plots.items()},
        shapes=SHAPES,
        tables=report.tables,
        stages=stages(manifest),
        settings=spelled(manifest["hyperparameters"]),
        diagnostics=spelled(without_statistics(manifest["diagnostics"])),
        provenance=provenance_facts(artifact),
        arrays=array_facts(artifact),
        script=script,
        style=_text("style.css"),
        script_hash=_hash(script),
    )
    return page


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("flows.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("template.html")


def _text(name: str) -> str:
    return files("flows.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(script: str) -> str:
    """Give the hash that lets a browser run this script and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
