"""Options and inputs of a report, checked before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from flows.cli.options import (
    DATA,
    OUTPUT,
    ArtifactPath,
    ExampleValue,
    Option,
    Overwrite,
    Repeatable,
)
from flows.data.datasets import LoadedModel, adapt_to_fit, check_label, load_fitted_model
from flows.report.figures.images import ImageLayout, find_image_layout
from flows.report.figures.rows import open_fitted_dataset
from pipeline.data.row_columns import RowColumns
from pipeline.errors import FitError
from pipeline.inference.orientation import parse_poles
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.sources.base import choose_features
from storage.sources.value_codes import ReadOptions
from storage.stores.locations import AnyPath, check_target_file, parse_path

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class FigureOptions:
    """Options of the figures; the fields of `ReportOptions` explain them."""

    dataset: str | None = None
    image_shape: str | None = None
    label: str | None = None
    names: str | None = None
    orient: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


DEFAULT_FIGURE_OPTIONS = FigureOptions()


@Option(name="*")
@dataclass(frozen=True)
class ReportOptions:
    """Options of `python -m flows.report`, except the options of pictures."""

    artifact: ArtifactPath
    output: Annotated[
        str, Option(group=OUTPUT, help="HTML file to write."), ExampleValue("reports/votes.html")
    ] = REPORT_FILE
    dataset: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Dataset whose rows are shown. [default: the dataset of the fit, if unchanged]",
        ),
        ExampleValue("data/votes.zarr"),
    ] = None
    image_shape: Annotated[
        str | None,
        Option(
            group=DATA,
            help="HEIGHTxWIDTH of images; not needed if features are named r0c0, r0c1, …",
        ),
        ExampleValue("28x28"),
    ] = None
    label: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Column, or segment, that colours the rows. [default: a column with few values]",
        ),
        ExampleValue("party"),
    ] = None
    names: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Column that names the rows. [default: a column of texts that all differ]",
        ),
        ExampleValue("member"),
    ] = None
    orient: Annotated[
        Repeatable,
        Option(
            group=DATA,
            metavar="NAME=+1",
            help="Reverse components so that this row (by --names) or else feature has a positive "
            "position on component 1, or with NAME=-2 a negative one on component 2. Repeatable.",
        ),
        ExampleValue(["US=+1"]),
    ] = ()
    features: Annotated[
        Repeatable,
        Option(
            group=DATA,
            show_default=False,
            metavar="NAME",
            help="Features, or patterns such as 'vote*', whose curves or lines are drawn over one "
            "or two components. Repeatable. [default: those that divide the rows most]",
        ),
        ExampleValue(["vote_*"]),
    ] = ()
    overwrite: Overwrite = False

    @property
    def figure_options(self) -> FigureOptions:
        """Options of the figures."""
        own = (self.dataset, self.image_shape, self.label, self.names, self.orient)
        return FigureOptions(*own, self.features)


@dataclass(frozen=True)
class ReportInputs:
    """A fitted model and, if available, the dataset whose rows are shown.

    `layout` has the positions of features that are pixels; `options` are the options of figures;
    `notes` are warnings about omitted figures.
    """

    fitted: LoadedModel
    layout: ImageLayout | None
    dataset: BinaryDataset | None
    options: FigureOptions
    notes: tuple[str, ...]

    @property
    def weight_columns(self) -> tuple[str, ...]:
        """Per-row columns that the fit used as weights or sampling units."""
        weights = self.fitted.artifact.manifest.get("row_weights") or {}
        names = (weights.get("column"), weights.get("psu"))
        return tuple(name for name in names if name is not None)

    @property
    def used_columns(self) -> tuple[str, ...]:
        """Per-row columns that the fit used as weights, sampling units, groups, times or otherwise.

        A time tells rows apart, but it is no name of a row.
        """
        manifest = self.fitted.artifact.manifest
        names = manifest.get("group"), manifest["hyperparameters"].get("time")
        return (*self.weight_columns, *filter(None, names), *RowColumns.read(manifest).roles)


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
    """
    return make_report_inputs(load_fitted_model(artifact), options, dataset)


def make_report_inputs(
    fitted: LoadedModel,
    options: FigureOptions = DEFAULT_FIGURE_OPTIONS,
    dataset: BinaryDataset | None = None,
) -> ReportInputs:
    """Check the options for a fitted model; parameters as for `load_report_inputs`."""
    layout = _find_layout(fitted, options.image_shape)
    note = ""
    if dataset is None:
        dataset, note = open_fitted_dataset(fitted, options.dataset)
    if dataset is not None:
        artifact = fitted.artifact
        dataset = adapt_to_fit(dataset, artifact.manifest, str(artifact.path))
        check_label(dataset, options.label)
        if options.names is not None:
            dataset.check_columns([options.names])
    parse_poles(options.orient, fitted.artifact.manifest["n_components"])
    if options.orient and "anchors" in fitted.artifact.manifest:
        raise FitError("The anchors of the fit choose the signs. Leave out {orient}.")
    if options.features:
        wishes = ReadOptions(features=tuple(options.features))
        chosen, _ = choose_features("the fit", fitted.feature_names, wishes, ())
        options = replace(options, features=chosen)
    return ReportInputs(fitted, layout, dataset, options, (note,) if note else ())


def check_page_path(output: str, overwrite: bool) -> AnyPath:
    """Return the path of the page; raise DataError if it is not .html or must not be replaced."""
    page = parse_path(output)
    if page.suffix != ".html":
        raise DataError(f"{{output}} is {output!r}, but must end in .html.")
    check_target_file(page, overwrite)
    return page


def _find_layout(fitted: LoadedModel, shape: str | None) -> ImageLayout | None:
    try:
        return find_image_layout(fitted.feature_names, shape)
    except FitError:
        if shape is not None:
            raise
        return None
