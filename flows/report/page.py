"""Puts the report together and writes it: one file, from which no request leaves."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined

from flows.figures import ImageLayout, image_layout
from flows.fitted import Fitted, load_fitted
from flows.report.calibration import calibration_figure
from flows.report.facts import (
    array_facts,
    provenance_facts,
    spelled,
    stages,
    title_of,
    what_was_fitted,
)
from flows.report.labels import check_label, choose_labels
from flows.report.latent import latent_figures
from flows.report.parameters import parameter_figures
from flows.report.plots import Figure
from flows.report.rows import fitted_dataset, read_rows
from pipeline.errors import FitError
from pipeline.executors.base import one_blas_thread
from storage.dataset import BinaryDataset
from storage.errors import DataError
from storage.locations import write_text

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


def write_report(
    artifact: str | Path,
    output: Path,
    options: Options = Options(),
    overwrite: bool = False,
) -> list[str]:
    """Write the report of an artifact.

    Parameters
    ----------
    artifact
        Of a fit, or a folder of runs for the latest.
    output
        The HTML file; it is replaced at once or not at all.
    options
        What to draw.
    overwrite
        Replace a file that is there.

    Returns
    -------
    list of str
        What was left out and why.

    Raises
    ------
    DataError, FitError
        If the artifact, the dataset or the output cannot be used.
    """
    check_output(output, overwrite)
    fitted = load_fitted(artifact)
    layout = _layout(fitted, options.image_shape)
    dataset, note = fitted_dataset(fitted, options.dataset)
    if dataset is not None:
        check_label(options.label, dataset.column_names)
    figures = [*parameter_figures(fitted.artifact, layout)]
    if dataset is not None:
        with one_blas_thread():
            figures += _row_figures(fitted, dataset, options.label, layout)
    notes = [note] if note else []
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, _rendered(fitted, figures, notes))
    return notes


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse a file that is no page, or is there and not to be replaced.

    Raises
    ------
    DataError
        If it is either.
    """
    if output.suffix != ".html":
        raise DataError(f"--output: Expected a name that ends in .html, got {str(output)!r}.")
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


def _rendered(fitted: Fitted, figures: list[Figure], notes: list[str]) -> str:
    manifest = fitted.artifact.manifest
    plots = [
        json_item(figure.plot, f"plot{k}")  # type: ignore[arg-type]
        for k, figure in enumerate(figures)
        if figure.plot is not None
    ]
    bokeh, script = "\n".join(_bokeh()), _text("script.js")
    page: str = _template().render(
        title=title_of(manifest),
        facts=what_was_fitted(manifest),
        warnings=[*manifest["warnings"], *notes],
        figures=figures,
        plots=plots,
        stages=stages(manifest),
        settings=spelled(manifest["hyperparameters"]),
        diagnostics=spelled(manifest["diagnostics"]),
        provenance=provenance_facts(fitted.artifact),
        arrays=array_facts(fitted.artifact),
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
