"""Draw the loadings of an artifact as images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from flows.cli.options import WholeNumber
from flows.experiments.base import ImageShape
from flows.experiments.drawing import ImageRow, check_figure_suffix, save_images
from flows.report.figures.colours import SIGNS_TEXT
from flows.report.figures.images import find_image_layout
from pipeline.errors import FitError
from storage.artifacts.artifacts import Artifact, load_artifact
from storage.extras import REPORT_PACKAGES, check_installed

HELP = "Draw the leading loadings of a fitted model as images, with their eigenvalues."
EXAMPLES = """Example:

    python -m flows.ingest usps.npz --dataset usps.zarr
    python -m flows.fit --dataset usps.zarr --components 30
    python -m flows.experiments loadings --artifact runs/usps --image-shape 16x16
"""
_COLUMNS = 5


def draw_loadings(
    artifact: Artifact, image_shape: str | None, output: Path, n_components: int
) -> int:
    """Draw the leading loadings and return their number."""
    from flows.report.figures.parameters import make_captions
    from flows.report.tables import format_title  # imports Arrow, which is slow

    check_figure_suffix(output)
    if "loadings" not in artifact or not artifact["loadings"].shape[1]:
        raise FitError(
            f"{artifact.path}: the model has no loadings. Choose an artifact of clipped PCA."
        )
    if n_components < 1:
        raise FitError(f"{{components}} is {n_components}, but must be at least 1.")
    layout = find_image_layout(artifact.manifest["feature_names"], image_shape)
    images = layout.arrange_images(artifact["loadings"].T[:n_components])
    captions = make_captions(artifact, len(images))
    starts = range(0, len(images), _COLUMNS)
    save_images(
        output,
        rows=[ImageRow("", images[k : k + _COLUMNS], captions[k : k + _COLUMNS]) for k in starts],
        title=f"Loadings: {format_title(artifact.manifest)}",
        note=f"Each image has its own scale: {SIGNS_TEXT}. λ: eigenvalue.",
        signed=True,
    )
    return len(images)


def main(
    *,
    artifact: Annotated[
        str, Parameter(help="Artifact, or a folder of runs to use its latest one.")
    ],
    image_shape: ImageShape = None,
    output: Annotated[str, Parameter(help="Picture: .png, .svg or .pdf.")] = "loadings.png",
    components: Annotated[WholeNumber, Parameter(help="Maximum number of images.")] = 25,
) -> None:
    """Draw the loadings and print the path of the figure."""
    check_installed("A figure", *REPORT_PACKAGES)
    n_drawn = draw_loadings(load_artifact(artifact), image_shape, Path(output), components)
    Console(soft_wrap=True, highlight=False, emoji=False).print(
        f"{n_drawn} loadings: {output}", markup=False
    )
