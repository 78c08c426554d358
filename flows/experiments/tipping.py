"""The experiments of Tipping (1998) on the latent-trait model: its table and its figures.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data", NIPS 1998.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flows.cli.options import ExecutorOptions
from flows.data.datasets import open_dataset_or_example
from flows.experiments.base import (
    EXAMPLE_DATASET,
    Experiment,
    ImageExperimentOptions,
    TableRow,
    group_medians,
    make_printed_table,
    print_results,
    summarize_run,
    track_progress,
    write_results,
)
from flows.experiments.tipping_figures import BinaryImages, SyntheticRows, TippingFigures
from flows.experiments.tipping_trial import (
    ESTIMATORS,
    TippingTrial,
    check_rows,
    draw_noisy_prototypes,
    run_tipping_trial,
)
from flows.report.figures.images import find_image_layout
from flows.running.executors import open_executor
from flows.running.flow import run_task
from pipeline.data.blocks import BinaryBlock, iter_blocks, pack_block
from pipeline.errors import FitError
from pipeline.models.latent_trait.em import LatentTraitParams
from storage.dataset.dataset import BinaryDataset

NAME = "tipping"
_EXAMPLE_SEGMENT = "2"
_FLIPS = (0.05, 0.15)
_COPIES, _SEEDS = 200, 5
_QUICK_COPIES, _QUICK_SEEDS, _QUICK_ROWS = 50, 1, 100
_ERRORS = ("error_shared", "error_fresh", "error_quadrature", "error_grid")
_TIMES = ("cpu_seconds", "wall_seconds", "cpu_ratio")
_PRINTED = {
    "data": "data",
    "estimator": "estimator",
    "error_shared": "shared",
    "error_fresh": "fresh",
    "error_quadrature": "quadrature",
    "error_grid": "grid",
    "cpu_seconds": "CPU s",
    "cpu_ratio": "ratio",
}


class TippingTable(NamedTuple):
    """Rows of the table of all fits, and the parameters of the first seed by data and estimator."""

    rows: list[dict[str, Any]]
    params: dict[tuple[str, str], LatentTraitParams]


def run_tipping(options: ImageExperimentOptions) -> dict[str, Any]:
    """Fit all data with all estimators, and draw the figures."""
    output, seed = options.output, options.seed
    max_rows = _QUICK_ROWS if options.quick else None
    images = open_images(options.dataset, options.split, options.image_shape, max_rows)
    n_copies, n_seeds = (_QUICK_COPIES, _QUICK_SEEDS) if options.quick else (_COPIES, _SEEDS)
    arguments = (images, n_copies, range(seed, seed + n_seeds), options.where)
    fits = run_task("trials", partial(run_tipping_trials, *arguments))
    keys = ("data", "rows", "features", "estimator")
    medians = group_medians(fits.rows, keys, ("objective", *_ERRORS, *_TIMES))
    write_results(output, NAME, fits.rows, medians)
    copies, figures = draw_synthetic_rows(n_copies, seed), TippingFigures(Path(output), fits.params)
    figures.plot_synthetic_codes(copies)
    figures.plot_expected_images(images)
    figures.plot_image_codes(images)
    figures.plot_posteriors([*copies, images])
    return summarize_run(output, NAME, medians)


def draw_synthetic_rows(n_copies: int, seed: int) -> list[SyntheticRows]:
    """Draw the datasets of noisy prototypes; all share the same prototypes."""
    copies = {flip: draw_noisy_prototypes(flip, n_copies, seed) for flip in _FLIPS}
    return [
        SyntheticRows(f"{flip:.0%} flipped", pack_block(rows.X), rows.prototype)
        for flip, rows in copies.items()
    ]


def open_images(
    dataset: str | None, split: str | None, image_shape: str | None, max_rows: int | None
) -> BinaryImages:
    """Read the images, optionally only the first ones; by default the digit 2 of the example."""
    opened, segment = open_dataset_or_example(dataset or EXAMPLE_DATASET), None
    layout = find_image_layout(opened.feature_names, image_shape)
    name = opened.path.name.removesuffix(".zarr")
    if dataset is None:
        name, segment = f"{name} {_EXAMPLE_SEGMENT}", opened.segment_names.index(_EXAMPLE_SEGMENT)
    elif split:
        name = f"{name} {split}"
    block = _read_rows(opened, split, segment)
    if max_rows is not None:
        block = block.take_rows(np.arange(min(max_rows, block.n_samples)))
    try:
        check_rows(block)
    except FitError as error:
        raise error.with_names(opened.feature_names) from error
    return BinaryImages(name, block, layout)


def _read_rows(dataset: BinaryDataset, split: str | None, segment: int | None) -> BinaryBlock:
    """Join the rows of a split and a segment (or all rows) in one block."""
    chunks = (dataset.read_chunk(key, split) for key in range(dataset.n_chunks))
    blocks = [
        block
        for chunk in chunks
        for block in iter_blocks(chunk)
        if block.n_samples and segment in (None, block.segment)
    ]
    if not blocks:
        raise FitError("There are no rows in the split. Choose another {split}.")
    masks = [block.unpack_mask() for block in blocks]
    X = np.concatenate([block.unpack_values() for block in blocks])
    if all(mask is None for mask in masks):
        return pack_block(X)
    full_masks = [
        np.ones((block.n_samples, block.n_features), np.uint8) if mask is None else mask
        for block, mask in zip(blocks, masks, strict=True)
    ]
    return pack_block(X, np.concatenate(full_masks))


def run_tipping_trials(
    images: BinaryImages, n_copies: int, seeds: Sequence[int], where: ExecutorOptions
) -> TippingTable:
    """Fit every dataset with every estimator from every seed, one fit at a time."""
    n_fits = (len(_FLIPS) + 1) * len(ESTIMATORS) * len(seeds)
    rows: list[dict[str, Any]] = []
    params: dict[tuple[str, str], LatentTraitParams] = {}
    with open_executor(**where) as executor:
        trials = _iter_trials(images, n_copies, seeds)
        for name, trial in track_progress(trials, "fits", n_fits):
            (result,) = executor.map(run_tipping_trial, [trial])
            params.setdefault((name, trial.estimator), result.params)
            size = {"rows": trial.block.n_samples, "features": trial.block.n_features}
            keys = {"data": name, **size, "estimator": trial.estimator, "seed": trial.seed}
            rows.append({**keys, **result.values})
    return TippingTable([_add_cpu_ratio(row, rows) for row in rows], params)


def _iter_trials(
    images: BinaryImages, n_copies: int, seeds: Sequence[int]
) -> Iterator[tuple[str, TippingTrial]]:
    for k in range(len(_FLIPS) + 1):
        for estimator in ESTIMATORS:
            for seed in seeds:
                data: list[SyntheticRows | BinaryImages] = [
                    *draw_synthetic_rows(n_copies, seed),
                    images,
                ]
                yield data[k].name, TippingTrial(data[k].block, estimator, seed)


def _add_cpu_ratio(row: TableRow, rows: Sequence[TableRow]) -> dict[str, Any]:
    """Add the CPU time as a multiple of the variational fit's."""
    same = {"data": row["data"], "seed": row["seed"], "estimator": ESTIMATORS[0]}
    (variational,) = (other for other in rows if same.items() <= other.items())
    return {**row, "cpu_ratio": row["cpu_seconds"] / variational["cpu_seconds"]}


def print_summary(summary: dict[str, Any]) -> None:
    """Print the medians over seeds and the paths."""
    title = "medians: errors in nats per row, and time"
    table = make_printed_table(*_PRINTED.values(), title=title)
    for row in summary["medians"]:
        table.add_row(*(_format_value(row[name]) for name in _PRINTED))
    print_results(summary, table)


def _format_value(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.3f}" if value >= 1 else f"{value:.3g}"


EXPERIMENT = Experiment(
    """Compare the variational latent-trait model with sampling and quadrature (Tipping 1998).

Fits two components to noisy copies of three random 16-bit prototypes, whose bits are flipped with a
probability of 0.05 or 0.15, and to binary images: the digit 2 of `example:digits`, or the rows of
`--dataset`. Writes tables of all fits and of medians over seeds (CSV and JSON) and figures (PNG and
SVG): the noisy copies in the latent plane, the images that the model expects over the plane, the
observed images in it, and posteriors of single rows.

Errors are negative log-likelihoods in nats per row, integrated in four ways: on the 500 draws that
sampling is fitted with (shared), on 500 others (fresh), on the 41 x 41 Gauss–Hermite nodes of the
quadrature fit, and on a grid fine enough to be exact. Times run until the objective is within 0.01
nats per row of its final value, also relative to the variational fit; fits run one at a time.
""",
    """Examples:

    python -m flows.experiments tipping --quick
    python -m flows.ingest usps.npz --dataset usps.zarr --split-by y
    python -m flows.experiments tipping --dataset usps.zarr --split 2 --image-shape 16x16
""",
    ImageExperimentOptions,
    run_tipping,
    print_summary,
)
