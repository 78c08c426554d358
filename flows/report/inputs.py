"""What a report is of, found and checked before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from flows.data.datasets import check_label
from flows.data.fitted import LoadedModel, load_fitted_model
from flows.report.figures.image_layout import ImageLayout, find_image_layout
from flows.report.figures.rows import open_fitted_dataset
from pipeline.errors import FitError
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.stores.locations import AnyPath, check_target_file, parse_path

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class FigureOptions:
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


DEFAULT_FIGURE_OPTIONS = FigureOptions()


@dataclass(frozen=True)
class ReportInputs:
    """A fitted model and, where they are at hand, the rows that it was fitted to.

    Attributes
    ----------
    fitted
        The fitted model.
    layout
        Where its features lie in an image.
    dataset
        Whose rows to show.
    label
        The per-row column that colours rows; None chooses one.
    notes
        What is left out and why.
    """

    fitted: LoadedModel
    layout: ImageLayout | None
    dataset: BinaryDataset | None
    label: str | None
    notes: tuple[str, ...]


def load_report_inputs(
    artifact: str | AnyPath,
    options: FigureOptions = DEFAULT_FIGURE_OPTIONS,
    dataset: BinaryDataset | None = None,
) -> ReportInputs:
    """Find what to draw.

    Parameters
    ----------
    artifact
        Of a fit, or a folder of runs for the latest.
    options
        What to draw.
    dataset
        The dataset of the fit, if it is already open.

    Raises
    ------
    DataError, FitError
        If the artifact or the dataset cannot be used.
    """
    fitted = load_fitted_model(artifact)
    layout = _find_layout(fitted, options.image_shape)
    note = ""
    if dataset is None:
        dataset, note = open_fitted_dataset(fitted, options.dataset)
    if dataset is not None:
        check_label(dataset, options.label)
    return ReportInputs(fitted, layout, dataset, options.label, (note,) if note else ())


def check_page_path(output: str, overwrite: bool) -> AnyPath:
    """Give the parse_path of a page to write.

    Raises
    ------
    DataError
        If it is named other than a page, or is there and not to be replaced.
    """
    page = parse_path(output)
    if page.suffix != ".html":
        raise DataError(f"--output: Expected a name that ends in .html, got {output!r}.")
    check_target_file(page, overwrite)
    return page


def _find_layout(fitted: LoadedModel, shape: str | None) -> ImageLayout | None:
    try:
        return find_image_layout(fitted.feature_names, shape)
    except FitError:
        if shape is not None:
            raise
        return None
