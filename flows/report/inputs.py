"""Inputs of a report, loaded and checked before anything is drawn."""

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
    """Options of the figures.

    Attributes
    ----------
    dataset
        Dataset whose rows are shown; None stands for that of the fit, if it is still unchanged.
    image_shape
        `HEIGHTxWIDTH` of features that are pixels; not needed for names such as r0c0.
    label
        Per-row column that colours rows; None chooses one.
    """

    dataset: str | None = None
    image_shape: str | None = None
    label: str | None = None


DEFAULT_FIGURE_OPTIONS = FigureOptions()


@dataclass(frozen=True)
class ReportInputs:
    """A fitted model and, if available, the dataset whose rows are shown.

    Attributes
    ----------
    fitted
        The fitted model.
    layout
        Positions of its features in an image, if they are pixels.
    dataset
        Dataset whose rows are shown.
    label
        Per-row column that colours rows; None chooses one.
    notes
        Warnings about what is omitted.
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
    """Load the inputs of a report.

    Parameters
    ----------
    artifact
        Path of an artifact, or of a folder of runs for the latest one.
    options
        Options of the figures.
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
    """Return the path of a page to write.

    Raises
    ------
    DataError
        If its name does not end in .html, or if it exists and must not be replaced.
    """
    page = parse_path(output)
    if page.suffix != ".html":
        raise DataError(f"--output: the name must end in .html, but is {output!r}.")
    check_target_file(page, overwrite)
    return page


def _find_layout(fitted: LoadedModel, shape: str | None) -> ImageLayout | None:
    try:
        return find_image_layout(fitted.feature_names, shape)
    except FitError:
        if shape is not None:
            raise
        return None
