"""Puts the report together and writes it: one file, from which no request leaves."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined

from flows.data.fitted import Fitted, load_fitted
from flows.report.calibration import calibration_figure
from flows.report.facts import (
    array_facts,
    drift_facts,
    provenance_facts,
    spelled,
    stages,
    title_of,
    what_was_fitted,
)
from flows.report.figures import ImageLayout, image_layout
from flows.report.labels import check_label, choose_labels
from flows.report.latent import latent_figures
from flows.report.parameters import parameter_figures
from flows.report.plots import Figure
from flows.report.rows import fitted_dataset, read_rows
from pipeline.errors import FitError
from pipeline.executors.base import one_blas_thread
from storage.dataset import BinaryDataset
from storage.errors import DataError
from storage.locations import Place, place, write_text

FILE = "report.html"


@dataclass(frozen=True)
class Options:
    """What to draw.

    Attributes
    ----------
    dataset
        Whose rows to show; None takes those of the fit, if they are there and unchanged.
    image_shape
        `HEIGHTxWIDTH` of features that are pixels; names such as r0c0 say it by themselves.
    label
        The per-row column that colours rows; None chooses one.
    """

    dataset: str | None = None
    image_shape: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Report:
    """What was drawn.

    Attributes
    ----------
    fitted
        The fitted model.
    figures
        Of it, in their order.
    notes
        What was left out and why.
    """

    fitted: Fitted
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]


def draw_report(artifact: str | Place, options: Options = Options()) -> Report:
    """Draw the figures of an artifact.

    Parameters
    ----------
    artifact
        Of a fit, or a folder of runs for the latest.
    options
        What to draw.

    Raises
    ------
    DataError, FitError
        If the artifact or the dataset cannot be used.
    """
    fitted = load_fitted(artifact)
    layout = _layout(fitted, options.image_shape)
    dataset, note = fitted_dataset(fitted, options.dataset)
    if dataset is not None:
        check_label(options.label, dataset.column_names)
    figures = [*parameter_figures(fitted.artifact, layout)]
    if dataset is not None:
        with one_blas_thread():
            figures += _row_figures(fitted, dataset, options.label, layout)
    return Report(fitted, tuple(figures), (note,) if note else ())


def write_report(report: Report, output: Place) -> None:
    """Write a report as a page, which is replaced at once or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, _rendered(report))


def new_page(output: str, overwrite: bool) -> Place:
    """Give the place of a page to write.

    Raises
    ------
    DataError
        If it is named other than a page, or is there and not to be replaced.
    """
    page = place(output)
    if page.suffix != ".html":
        raise DataError(f"--output: Expected a name that ends in .html, got {output!r}.")
    check_output(page, overwrite)
    return page


def check_output(output: Place, overwrite: bool) -> None:
    """Refuse a file that is there and not to be replaced, or is no file.

    Raises
    ------
    DataError
        If it is either.
    """
    if output.is_dir():
        raise DataError(f"{output}: Expected a file, got a folder.")
    if output.exists() and not overwrite:
        raise DataError(
            f"{output}: Expected a new path, got one that exists. Use --overwrite to replace it."
        )


def _layout(fitted: Fitted, shape: str | None) -> ImageLayout | None:
    try:
        return image_layout(fitted.feature_names, shape)
    except FitError:
        if shape is not None:
            raise
        return None


def _row_figures(
    fitted: Fitted, dataset: BinaryDataset, label: str | None, layout: ImageLayout | None
) -> Iterator[Figure]:
    seen = read_rows(fitted, dataset)
    labels = choose_labels(seen.coded, dataset.segment_names, label)
    yield from latent_figures(fitted, seen.coded, labels, layout)
    if len(seen.pairs.z):
        yield calibration_figure(seen, fitted.feature_names)


def _rendered(report: Report) -> str:
    artifact, figures = report.fitted.artifact, report.figures
    manifest = artifact.manifest
    plots = [
        json_item(figure.plot, f"plot{k}")  # type: ignore[arg-type]
        for k, figure in enumerate(figures)
        if figure.plot is not None
    ]
    bokeh, script = "\n".join(_bokeh()), _text("script.js")
    page: str = _template().render(
        title=title_of(manifest),
        facts=what_was_fitted(manifest),
        warnings=[*manifest["warnings"], *report.notes],
        drift=drift_facts(manifest),
        figures=figures,
        plots=plots,
        stages=stages(manifest),
        settings=spelled(manifest["hyperparameters"]),
        diagnostics=spelled(manifest["diagnostics"]),
        provenance=provenance_facts(artifact),
        arrays=array_facts(artifact),
        bokeh=bokeh,
        script=script,
        style=_text("style.css"),
        script_hashes=[_hash(bokeh), _hash(script)],
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
    # Bokeh reads what it writes in order.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return environment.get_template("template.html")


def _bokeh() -> list[str]:
    resources = Resources(mode="inline", components=["bokeh"], log_level="error")
    return [text.strip() for text in resources.js_raw]


def _text(name: str) -> str:
    return files("flows.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(script: str) -> str:
    """Give the hash that lets a browser run this script and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
