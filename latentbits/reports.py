"""Reports and figures of fitted models in Python, such as in a notebook."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from latentbits.data import make_dataset, write_dataset
from pipeline.data.datasets import MemoryDataset
from pipeline.data.features import Feature
from pipeline.data.plane_views import view_as_fitted
from pipeline.errors import FitError, format_suggestion
from pipeline.inference.from_artifact import LoadedModel
from storage.stores.local_path import check_local_path

if TYPE_CHECKING:
    from flows.report.figures.marks import Figure
    from flows.report.page import Report
    from storage import Artifact, BinaryDataset

_FRAME_HEIGHT = 800  # pixels


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
            return Picture(figures[name].title, figures[name].note, figures[name])

        plot.__name__ = name
        return plot

    def __dir__(self) -> list[str]:
        return [*_name_figures(build_report(self._fitted))]


def build_report(fitted: LoadedModel[Artifact], data: Any = None, **options: Any) -> Report:
    """Build the report of a fitted model; parameters as for `Fitted.report`."""
    from storage.extras import REPORT_PACKAGES, check_installed

    check_installed("A report", *REPORT_PACKAGES)
    from flows.data.datasets import check_dataset_features
    from flows.report import page
    from flows.report.inputs import FigureOptions, make_report_inputs

    with _open_rows(fitted.dataset_features, data) as dataset:
        if dataset is not None:
            check_dataset_features(fitted, dataset)
        return page.build_report(make_report_inputs(fitted, FigureOptions(**options), dataset))


def make_report_page(report: Report) -> ReportPage:
    """Render a report."""
    from flows.report.page import render_page

    return ReportPage(render_page(report), tuple(report.findings))


@contextmanager
def _open_rows(features: Sequence[Feature], data: Any) -> Iterator[BinaryDataset | None]:
    """Yield the rows as a dataset on disk, if there are any; those in memory are written there."""
    if data is None:
        yield None
        return
    dataset: Any = view_as_fitted(make_dataset(data, features), features)
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
