"""The experiment of the paper behind clipped PCA: its command line and its flow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from flows.cli.options import Json, Option, WholeNumber
from flows.data.datasets import open_dataset_or_example
from flows.experiments import base
from flows.experiments.base import run_experiment
from flows.experiments.clipped_pca.images import compare_on_images
from flows.experiments.clipped_pca.ring import compare_on_ring
from flows.report.figures.image_layout import find_image_layout
from flows.running.flow import make_lazy_flow, run_task

HELP = """Set clipped PCA beside linear PCA, as Lee and Sompolinsky (1999) do.

First on translation-invariant spins of a ring (the paper's figure 3), where two hidden Gaussians
lie behind all spins; then on images of digits: spectra, components, samples, reconstructions and
their errors. Leaves tables (CSV and JSON) and figures (PNG and SVG). A million rows of the ring
work as well: `--rows 1000000`.
"""
EXAMPLES = """Examples:

    python -m flows.experiments clipped-pca
    python -m flows.experiments clipped-pca --dataset usps.zarr --image-shape 16x16
"""
_ROWS, _FEATURES = 100_000, 256
_QUICK_ROWS, _QUICK_FEATURES = 5_000, 64


@Option(name="*")
@dataclass(frozen=True)
class ClippedPCAOptions(base.ExperimentOptions):
    """What both parts take beside."""

    output: base.Output = "runs/experiments/clipped-pca"
    dataset: Annotated[str, Option(help="Images of bits: a dataset folder or an example.")] = (
        "example:digits"
    )
    rows: Annotated[
        WholeNumber | None, Option(help="Rows of the ring. [default: 100000, quick 5000]")
    ] = None
    image_shape: base.ImageShape = None

    def check(self) -> None:
        """Refuse also images that are not there or of another shape.

        Raises
        ------
        DataError, FitError
            If an option cannot be used, or contradicts another.
        """
        super().check()
        find_image_layout(open_dataset_or_example(self.dataset).feature_names, self.image_shape)


@make_lazy_flow("experiment-clipped-pca", ClippedPCAOptions)
def clipped_pca(options: ClippedPCAOptions) -> dict[str, Any]:
    """Run both parts; `python -m flows.experiments clipped-pca --help` explains the parameters."""
    begun, output, quick = time.perf_counter(), options.output, options.quick
    n_features = _QUICK_FEATURES if quick else _FEATURES
    n_rows = (_QUICK_ROWS if quick else _ROWS) if options.rows is None else options.rows
    ring = (output, n_rows, n_features, options.seed, options.where)
    images = (output, options.dataset, options.image_shape, quick, options.seed, options.where)
    summary = {
        "ring": run_task("ring", partial(compare_on_ring, *ring)),
        "images": run_task("images", partial(compare_on_images, *images)),
    }
    written = (path for name in ("ring", "images") for path in Path(output).glob(f"{name}*.*"))
    files = sorted(map(str, written))
    return {**summary, "files": files, "seconds": round(time.perf_counter() - begun, 3)}


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the ring's leading eigenvalues, the images' errors, and the paths."""
    console = Console(soft_wrap=True, highlight=False)
    ring, images = summary["ring"], summary["images"]
    console.print(_format_ring_table(ring))
    console.print(_format_errors_table(images))
    for warning in images["warnings"]:
        console.print(f"warning: {warning}", markup=False)
    for path in summary["files"]:
        console.print(path, markup=False)


def _format_ring_table(ring: Mapping[str, Any]) -> Table:
    title = f"ring: {ring['n_rows']:,} rows, {ring['n_features']} features"
    table = Table("rank", "spins", "clipped PCA", title=title, title_justify="left")
    for row in ring["leading"]:
        table.add_row(str(row["rank"]), f"{row['spins']:.4g}", f"{row['clipped_pca']:.4g}")
    return table


def _format_errors_table(images: Mapping[str, Any]) -> Table:
    title = f"{images['dataset']}: {images['n_rows']:,} rows, {images['n_features']} features"
    table = Table("components", "model", "wrong bits", "nats per bit", title=title)
    for row in images["errors"]:
        losses = (f"{row['wrong_bits']:.2%}", f"{row['nll_per_bit']:.4f}")
        table.add_row(str(row["components"]), row["model"], *losses)
    return table


def main(*, options: ClippedPCAOptions = ClippedPCAOptions(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    run_experiment(clipped_pca, options, json, print_summary)
