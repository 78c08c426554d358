"""Results of `latentbits`: a fitted model, its report, the codes of rows and an evaluation."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from latentbits.data import make_dataset, write_dataset
from pipeline.data.datasets import IN_MEMORY, MemoryDataset, StoredArtifact
from pipeline.data.display import DisplayItems, ResultDisplayMixin, shorten
from pipeline.data.features import (
    Feature,
    read_dataset_features,
    read_features,
    read_source_features,
)
from pipeline.data.plane_views import view_as_fitted
from pipeline.errors import FitError, format_suggestion, spell_in_python, spell_parameters
from pipeline.inference.edges import make_edge_columns
from pipeline.inference.from_artifact import LoadedModel, model_from_artifact
from pipeline.models.base import Model
from pipeline.models.settings import get_settings
from pipeline.params import get_named_arrays
from storage.stores.local_path import check_local_path

if TYPE_CHECKING:
    from flows.report.figures.marks import Figure
    from flows.report.page import Report
    from storage.artifacts.artifacts import Artifact
    from storage.dataset.dataset import BinaryDataset
    from storage.stores.locations import AnyPath

_FRAME_HEIGHT = 800  # pixels
_MAX_ITEMS = 38  # lines of a fitted model


@dataclass(frozen=True)
class ReportPage:
    """A report, which notebooks show.

    Attributes
    ----------
    html
        The page, complete with its style and script; it makes no requests.
    findings
        Its first sentences.
    """

    html: str
    findings: tuple[str, ...]

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        check_local_path(Path(path)).write_text(self.html, encoding="utf-8", errors="replace")

    def __repr__(self) -> str:
        return "\n".join(("ReportPage", *(f"  {sentence}" for sentence in self.findings)))

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{_FRAME_HEIGHT}px;border:0"
        return f'<iframe style="{style}" srcdoc="{html.escape(self.html)}"></iframe>'


@dataclass(frozen=True)
class Picture:
    """A figure of the report, which notebooks show.

    Attributes
    ----------
    title, note
        Title and explanation.
    """

    title: str
    note: str
    _figure: Figure

    def save(self, path: str | Path) -> None:
        """Write the figure to a file; its ending is png, svg or pdf.

        Raises
        ------
        ValueError
            If it has another ending.
        """
        kind = Path(path).suffix.removeprefix(".").lower()
        if kind not in ("png", "svg", "pdf"):
            raise FitError(f"The path is {str(path)!r}, but must end in .png, .svg or .pdf.")
        check_local_path(Path(path)).write_bytes(self._render(kind))

    def __repr__(self) -> str:
        return f"{self.title}. {self.note}".strip()

    def _repr_png_(self) -> bytes:
        return self._render("png")

    def _render(self, kind: Any) -> bytes:
        from flows.report.pictures import render_picture  # Matplotlib is slow to import

        return render_picture(self._figure, kind)


class Plots:
    """Figures of a fitted model: `plot.NAME()`, or `plot.NAME(data)` for figures of rows.

    Names are the titles of the report in lower case with underscores, such as `convergence` or
    `features_in_latent_space`. `dir(fitted.plot)` lists those that need no other rows than the
    dataset of the fit, if it is on disk.
    """

    def __init__(self, fitted: LoadedModel[Artifact]) -> None:
        self._fitted = fitted

    def __getattr__(self, name: str) -> Callable[..., Picture]:
        if name.startswith("_"):
            raise AttributeError(name)

        def plot(data: Any = None, **options: Any) -> Picture:
            """Draw the figure; parameters as for `Fitted.report`."""
            figures = _name_figures(build_report(self._fitted, data, **options))
            if name not in figures:
                has_rows = "" if data is not None else " Figures of rows take the data: NAME(data)."
                raise FitError(
                    f"There is no figure {name!r}.{format_suggestion(name, figures)} "
                    f"The figures are: {', '.join(figures)}.{has_rows}"
                )
            title = figures[name].heading or figures[name].title
            return Picture(title, figures[name].note, figures[name])

        plot.__name__ = name
        return plot

    def __dir__(self) -> list[str]:
        return [*_name_figures(build_report(self._fitted))]

    def __repr__(self) -> str:
        try:
            names = _name_figures(build_report(self._fitted))
        except ValueError as error:  # no representation may fail
            return f"Plots\n  {error}"
        width = max(map(len, names), default=0)
        lines = (
            f"  {name + '()':<{width + 2}}  {figure.heading or figure.title}"
            for name, figure in names.items()
        )
        rows = "NAME(data) also draws figures of other rows than those of the fit"
        return "\n".join(("Plots", *lines, f"  {rows}"))


def build_report(fitted: LoadedModel[Artifact], data: Any = None, **options: Any) -> Report:
    """Build the report of a fitted model; parameters as for `Fitted.report`."""
    from storage.extras import REPORT_PACKAGES, check_installed

    check_installed("A report", *REPORT_PACKAGES)
    from flows.data.datasets import check_dataset_features
    from flows.report import page
    from flows.report.inputs import FigureOptions, make_report_inputs

    with _open_rows(fitted, data) as dataset:
        if dataset is not None:
            check_dataset_features(fitted, dataset)
        return page.build_report(make_report_inputs(fitted, FigureOptions(**options), dataset))


def make_report_page(report: Report) -> ReportPage:
    """Render a report."""
    from flows.report.page import render_page

    return ReportPage(render_page(report), tuple(report.findings))


@contextmanager
def _open_rows(fitted: LoadedModel[Artifact], data: Any) -> Iterator[BinaryDataset | None]:
    """Yield the rows as a dataset on disk, if there are any; those in memory are written there."""
    if data is None:
        yield None
        return
    dataset: Any = make_dataset(data, read_source_features(fitted.artifact.manifest))
    dataset = view_as_fitted(dataset, fitted.dataset_features)
    if not isinstance(dataset, MemoryDataset):
        yield dataset
        return
    with TemporaryDirectory(prefix="latentbits-") as folder:
        yield write_dataset(dataset, Path(folder) / "rows.zarr")


def _name_figures(report: Report) -> dict[str, Figure]:
    from flows.report.figures.text import make_unique_slugs

    names = make_unique_slugs(figure.title for figure in report.figures)
    slugs = (name.replace("-", "_") for name in names)
    return dict(zip(slugs, report.figures, strict=True))


@dataclass(frozen=True, repr=False)
class Fitted(ResultDisplayMixin):
    """A fitted model.

    Attributes
    ----------
    model
        Hyperparameters.
    params
        Arrays by name, such as `params.loadings`; the model's documentation lists them.
    manifest
        Everything else that an artifact records: data, seed, versions, diagnostics.
    """

    model: Model
    params: Any
    manifest: Mapping[str, Any]
    _argument_names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_artifact(cls, artifact: StoredArtifact) -> Self:
        """Load a fitted model from its artifact.

        Raises
        ------
        FitError
            If the artifact is not from a fit, or from another version.
        """
        loaded = model_from_artifact(artifact)
        return cls(loaded.model, loaded.params, artifact.manifest)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the fitted data."""
        return tuple(self.manifest["feature_names"])

    @property
    def feature_levels(self) -> Mapping[str, tuple[str, ...]]:
        """Levels of each feature that is not binary, or has level names other than 0 and 1."""
        levels = self.manifest.get("feature_levels", {})
        return {name: tuple(own) for name, own in levels.items()}

    @property
    def nominal_features(self) -> frozenset[str]:
        """Names of the features whose levels are categories without an order."""
        return frozenset(self.manifest.get("nominal_features", ()))

    @property
    def features(self) -> tuple[Feature, ...]:
        """Names and levels of the features in the fitted data."""
        return read_features(self.manifest)

    @property
    def dataset_features(self) -> tuple[Feature, ...]:
        """Names and levels of the features in the data; a model may take planes as features."""
        return read_dataset_features(self.manifest)

    @property
    def source_features(self) -> tuple[Feature, ...]:
        """Names and levels of the features in the data before any of them are reversed."""
        return read_source_features(self.manifest)

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments in the fitted data."""
        return tuple(self.manifest["segment_names"])

    @property
    def history(self) -> tuple[float, ...]:
        """Objective per row after each pass, in nats."""
        return tuple(self.manifest["history"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to read before trusting the fit."""
        names = self._argument_names

        def spell(name: str, value: str | None) -> str:
            return spell_in_python(names.get(name, name), value)

        return tuple(spell_parameters(text, spell) for text in self.manifest["warnings"])

    @property
    def converged(self) -> bool:
        """Whether the last stage of the fit converged."""
        return bool(self.manifest["converged"])

    @property
    def objective_is(self) -> str:
        """Name of the objective, such as `lower bound` or `pseudo-likelihood`."""
        return str(self.manifest["diagnostics"].get("objective_is", "objective"))

    @property
    def objective(self) -> float | None:
        """Objective of the parameters in nats per row; None if the fit has no passes."""
        objective: float | None = self.manifest["objective"]
        return objective

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the categories that the model predicts, if any."""
        return tuple(self.manifest.get("labels", ()))

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Fit statistics by name, such as `log_likelihood`, `bic` and `rmsea`, if any."""
        statistics: Mapping[str, Any] = self.manifest["diagnostics"].get("fit_statistics", {})
        return statistics

    def save(self, path: str | AnyPath) -> None:
        """Write the fitted model as an artifact, for `load`, `Scorer` and the commands.

        Parameters
        ----------
        path
            A new folder, or URL in an object store.

        Raises
        ------
        ValueError
            If the path exists.
        """
        from storage.artifacts.artifacts import NamedArray, write_artifact  # Zarr is slow to import
        from storage.errors import DataError
        from storage.stores.locations import parse_path

        if parse_path(path).exists():
            raise DataError(f"{path} already exists. Choose another path.")
        arrays = {name: NamedArray(*a) for name, a in get_named_arrays(self.params).items()}
        created = datetime.now(UTC).isoformat(timespec="seconds")
        write_artifact(path, arrays, {**self.manifest, "created": created})

    @property
    def plot(self) -> Plots:
        """Figures of the report: `fitted.plot.convergence()`; see `Plots`."""
        return Plots(self._to_loaded_model())

    def get_edges(self) -> Edges:
        """Return the edges of the fitted trees or network, the strongest first.

        Returns
        -------
        Edges
            Columns by name, for a data frame; see `Edges`.

        Raises
        ------
        FitError
            If the model has neither trees nor a network.
        """
        given = self.model, self.params, self.features, self.feature_names
        return Edges(make_edge_columns(*given, "The fit", self.segment_names))

    def report(
        self,
        data: Any = None,
        *,
        label: str | None = None,
        names: str | None = None,
        image_shape: str | None = None,
        features: Sequence[str] = (),
    ) -> ReportPage:
        """Make the report: findings, figures and tables. It needs the extra `report`.

        Parameters
        ----------
        data
            Rows to show, as for `fit`. None takes the dataset of the fit, if it is on disk;
            otherwise the report has no figures of rows.
        label
            Column, or `segment`, that colours the rows.
        names
            Column that names the rows.
        image_shape
            HEIGHTxWIDTH of images; not needed if features are named r0c0, r0c1, ….
        features
            Names or patterns of the features whose curves, or lines of probability ½, are drawn
            over one or two components; by default those that divide the rows most.

        Returns
        -------
        ReportPage
            Notebooks show it; `save(path)` writes the page.

        Raises
        ------
        ValueError
            If the features differ, a column is missing, or the extra is not installed.
        """
        own = (features,) if isinstance(features, str) else tuple(features)
        options = {"label": label, "names": names, "image_shape": image_shape, "features": own}
        return make_report_page(build_report(self._to_loaded_model(), data, **options))

    def _to_loaded_model(self) -> LoadedModel[Artifact]:
        """Return the fitted model with an artifact in memory."""
        from storage.artifacts.artifacts import Artifact, NamedArray
        from storage.format.manifests import seal_manifest

        arrays = {name: NamedArray(*a) for name, a in get_named_arrays(self.params).items()}
        artifact = Artifact(Path(IN_MEMORY), seal_manifest(self.manifest), arrays)
        return LoadedModel(artifact, self.model, self.params)

    def _repr_html_(self) -> str:
        from flows.report.findings import summarize_findings

        topics = summarize_findings(self._to_loaded_model(), None, None)
        sentences = chain.from_iterable(topics.values())
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
        return f"<ul>{items}</ul>{super()._repr_html_()}"

    def _iter_display_items(self) -> DisplayItems:
        items = [(name, shorten(value)) for name, value in self._iter_all_items()]
        n_more = len(items) - _MAX_ITEMS
        yield from items if n_more <= 0 else items[: _MAX_ITEMS - 1]
        if n_more > 0:
            yield "…", f"{n_more + 1:,} more; see params, statistics and warnings"

    def _iter_all_items(self) -> DisplayItems:
        """Yield what equal fits have in common, whether they were loaded or not."""
        kind = type(self.model)
        settings = ", ".join(
            f"{name}={value!r}"
            for name, value in get_settings(self.model).items()
            if name == "n_components" or value != getattr(kind, name, None)
        )
        yield "model", f"{kind.__name__}({settings})"
        yield "features", f"{len(self.feature_names):,}"
        yield "segments", f"{len(self.segment_names):,}"
        if len(self.history) > 1 or not self.converged:  # fits by a single pass do not converge
            yield "converged", "yes" if self.converged else "no"
        if self.objective:
            yield self.objective_is, f"{self.objective:.6g} nats per row"
        for name, value in self.statistics.items():
            yield name, f"{value:,.6g}" if isinstance(value, float) else str(value)
        yield from (("warning", text) for text in self.warnings)
        for name, (dims, values) in get_named_arrays(self.params).items():
            if values.size and values.ndim:
                axes = zip(dims, values.shape, strict=True)
                yield name, " × ".join(f"{dim} {size:,}" for dim, size in axes)


def load(path: str | AnyPath) -> Fitted:
    """Load a fitted model from an artifact, or the latest one of a folder of runs.

    Raises
    ------
    ValueError
        If there is no complete artifact, or it is from another version.
    """
    from storage import load_artifact  # Zarr is slow to import

    return Fitted.from_artifact(load_artifact(path))


class FittedEstimator(Protocol):
    """A scikit-learn estimator of `latentbits` after its `fit`."""

    fitted_: Fitted


def find_fitted(source: Fitted | FittedEstimator | str | AnyPath) -> Fitted:
    """Return a fitted model given itself, a fitted estimator, or the path of an artifact.

    Raises
    ------
    ValueError
        If there is no fitted model.
    """
    fitted = getattr(source, "fitted_", source)
    if isinstance(fitted, Fitted):
        return fitted
    from storage.stores.locations import AnyPath  # Zarr is slow to import

    if isinstance(fitted, str | AnyPath):
        return load(fitted)
    raise FitError(
        f"This {type(source).__name__} is not a fitted model. Pass the result of `latentbits.fit`, "
        "an estimator after its `fit`, or the path of a fit."
    )


class Edges(ResultDisplayMixin, dict[str, Any]):
    """Results of `Fitted.get_edges`: columns of a table with one line per edge, by name.

    `tree` is the number of the tree, counted from 1, and `weight` the share of rows that it
    describes. `feature` and `parent` are the names of the two features; which of them is the parent
    is arbitrary. `mutual_information` is in nats. `correlation` gives levels the scores 0, 1, 2, …,
    so it is phi for binary features. Both describe the features under the tree. Lines are sorted by
    tree, then by mutual information, the largest first.

    A network has the columns `feature`, `neighbour`, `coupling`, `standard_error` and `stability`
    instead; lines are sorted by the size of the coupling. Networks of groups have `group_a`,
    `group_b`, `coupling_a`, `coupling_b`, their `difference`, its `p`, and `adjusted_p` for the
    number of pairs of features (Benjamini-Hochberg); lines are sorted by the size of the
    difference, for each pair of groups.
    """

    def _iter_display_items(self) -> DisplayItems:
        if "neighbour" in self:
            yield "edges", f"{len(self['feature']):,}"
            if self["feature"]:
                pair = f"{self['feature'][0]}, {self['neighbour'][0]}"
                kind = "difference" if "difference" in self else "coupling"
                title = {"difference": "largest difference", "coupling": "strongest"}[kind]
                yield title, f"{pair}: {self[kind][0]:.3g}"
            return
        trees, strongest = np.unique(self["tree"], return_index=True)
        yield "edges", f"{len(self['tree']):,}"
        for tree, i in zip(trees.tolist(), strongest.tolist(), strict=True):
            pair = f"{self['feature'][i]}, {self['parent'][i]}"
            yield f"strongest of tree {tree}", f"{pair}: {self['mutual_information'][i]:.3g} nats"


class Evaluation(ResultDisplayMixin, dict[str, Any]):
    """Results of `evaluate`, by name."""

    @property
    def tables(self) -> dict[str, dict[str, list[Any]]]:
        """Tables by name, as columns for a data frame; those not asked for are left out.

        `models` has one line with the scores that are numbers, `dif` a line per item, `outcomes`
        per class and level, `covariates` per covariate and class, `reliability` per group and
        coefficient, `roll-calls` per feature, `roll-call-rows` per row, and `calibration` per bin
        of the shares of ones that the model implies.
        """
        from flows.evaluating.result_tables import make_result_tables  # needed here only

        classes = {name: self.get(name, []) for name in ("outcomes", "regression")}
        outcomes = [{"name": "fit", **classes}]
        models = [{"name": "fit", **self}] if {"kind", "pairs"} & {*self} else []
        calls = [{"name": "fit", **self["roll_calls"]}] if "roll_calls" in self else []
        own = {"models": models, "outcomes": outcomes, "roll_calls": calls}
        return make_result_tables({**self, **own})

    def _iter_display_items(self) -> DisplayItems:
        for name, value in self.items():
            for item in value if isinstance(value, list) else [value]:
                yield name, f"{item:.6g}" if isinstance(item, float) else str(item)


class LatentCodes(ResultDisplayMixin, dict[str, NDArray[Any]]):
    """Results of `transform`: arrays by name, each with one row per row of the data."""

    def _iter_display_items(self) -> DisplayItems:
        for name, values in self.items():
            shape = (f"row {len(values):,}", *(f"{size:,}" for size in values.shape[1:]))
            yield name, f"{' × '.join(shape)}, {values.dtype}"
