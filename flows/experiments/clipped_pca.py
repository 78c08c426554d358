"""The experiment of the paper behind clipped PCA: its command line and its flow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from prefect import flow
from rich.console import Console
from rich.table import Table

from flows.cli.options import Json, Switch
from flows.cli.summary import print_json
from flows.data.datasets import dataset_path
from flows.experiments.base import Where
from flows.experiments.images import images_stage
from flows.experiments.ring import ring_stage
from flows.report.figures import image_layout
from flows.running.clusters import ExecutorName
from flows.running.server import with_server
from storage.dataset import open_dataset

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


@flow(name="experiment-clipped-pca", validate_parameters=False)
def clipped_pca(
    dataset: str = "example:digits",
    rows: int | None = None,
    image_shape: str | None = None,
    output: str = "runs/experiments/clipped-pca",
    quick: bool = False,
    seed: int = 0,
    executor: ExecutorName = "dask",
    workers: int | None = None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """Run both parts; `python -m flows.experiments clipped-pca --help` explains the parameters."""
    begun = time.perf_counter()
    image_layout(open_dataset(dataset_path(dataset)).feature_names, image_shape)
    where = Where(name=executor, workers=workers, cluster=cluster)
    n_features = _QUICK_FEATURES if quick else _FEATURES
    n_rows = (_QUICK_ROWS if quick else _ROWS) if rows is None else rows
    summary = {
        "ring": ring_stage(output, n_rows, n_features, seed, where),
        "images": images_stage(output, dataset, image_shape, quick, seed, where),
    }
    written = (path for name in ("ring", "images") for path in Path(output).glob(f"{name}*.*"))
    files = sorted(map(str, written))
    return {**summary, "files": files, "seconds": round(time.perf_counter() - begun, 3)}


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the ring's leading eigenvalues, the images' errors, and the paths."""
    console = Console(soft_wrap=True, highlight=False)
    ring, images = summary["ring"], summary["images"]
    console.print(_ring_table(ring))
    console.print(_errors_table(images))
    for warning in images["warnings"]:
        console.print(f"warning: {warning}", markup=False)
    for path in summary["files"]:
        console.print(path, markup=False)


def _ring_table(ring: Mapping[str, Any]) -> Table:
    title = f"ring: {ring['n_rows']:,} rows, {ring['n_features']} features"
    table = Table("rank", "spins", "clipped PCA", title=title, title_justify="left")
    for row in ring["leading"]:
        table.add_row(str(row["rank"]), f"{row['spins']:.4g}", f"{row['clipped_pca']:.4g}")
    return table


def _errors_table(images: Mapping[str, Any]) -> Table:
    title = f"{images['dataset']}: {images['n_rows']:,} rows, {images['n_features']} features"
    table = Table("components", "model", "wrong bits", "nats per bit", title=title)
    for row in images["errors"]:
        losses = (f"{row['wrong_bits']:.2%}", f"{row['nll_per_bit']:.4f}")
        table.add_row(str(row["components"]), row["model"], *losses)
    return table


def main(
    *,
    dataset: Annotated[
        str, Parameter(help="Images of bits: a dataset folder or an example.")
    ] = "example:digits",
    rows: Annotated[
        int | None, Parameter(help="Rows of the ring. [default: 100000, quick 5000]")
    ] = None,
    image_shape: Annotated[
        str | None,
        Parameter(help="HEIGHTxWIDTH; features named r0c0, r0c1, … are placed by name."),
    ] = None,
    output: Annotated[
        str, Parameter(help="Folder of tables and figures.")
    ] = "runs/experiments/clipped-pca",
    quick: Annotated[bool, Switch, Parameter(help="Do less: a first look in seconds.")] = False,
    seed: Annotated[int, Parameter(help="Seed of every random draw.")] = 0,
    executor: Annotated[ExecutorName, Parameter(help="Where work runs.")] = "dask",
    workers: Annotated[
        int | None,
        Parameter(help="Dask worker processes, or threads. [default: one process, all cores]"),
    ] = None,
    cluster: Annotated[
        str | None, Parameter(help="Address of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    parameters: dict[str, Any] = {
        "dataset": dataset,
        "rows": rows,
        "image_shape": image_shape,
        "output": output,
        "quick": quick,
        "seed": seed,
        "executor": executor,
        "workers": workers,
        "cluster": cluster,
    }
    summary = with_server(lambda: clipped_pca(**parameters))
    if json:
        print_json(summary)
    else:
        print_summary(summary)
