"""The experiments of Tipping (1998) on the latent-trait model: its table and its figures.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data", NIPS 1998.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.cli.options import ExecutorOptions
from flows.cli.summary import make_table
from flows.data.datasets import open_dataset_or_example
from flows.experiments.base import (
    EXAMPLE_DATASET,
    Array,
    Bits,
    Experiment,
    ImageExperimentOptions,
    TableRow,
    group_medians,
    join_blocks,
    pack_rows_in_memory,
    print_results,
    run_trials,
    summarize_run,
    write_results,
)
from flows.experiments.drawing import figure_paths, make_panel, write_figure
from flows.report.figures.axes import fit_square_axes
from flows.report.figures.colours import COLOURS
from flows.report.figures.images import ImageLayout, find_image_layout
from flows.report.figures.latent import SHARES, mark_even_odds_lines, plot_image_mosaic
from flows.report.figures.marks import (
    Axis,
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    PointMarks,
    RasterMark,
)
from flows.report.figures.row_plots import ColourLabels, group_rows_by_label, mark_rows
from flows.running.flow import run_task
from pipeline.data.blocks import BinaryBlock, RowSource, iter_blocks, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.latent_trait.integrators import compute_variational_posterior
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.state import FitState
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    draw_nodes,
    drop_light_nodes,
    gauss_hermite,
    node_posterior,
)
from storage.dataset.dataset import BinaryDataset

Estimator = Literal["variational", "sampling", "quadrature"]

ESTIMATORS: tuple[Estimator, ...] = ("variational", "sampling", "quadrature")
N_DRAWS, NODES_PER_AXIS = 500, 41
NEAR_NATS = 0.01
"""Nats per row: a fit is timed until its objective is this close to its final value."""
_N_NODES: Mapping[Estimator, int | None] = {
    "variational": None,
    "sampling": N_DRAWS,
    "quadrature": NODES_PER_AXIS,
}
_TOL, _MAX_ITER = 1e-8, 2000
_STEP, _REACH = 0.05, 6.0
_N_PIECES = 16  # of the grid, so that the densities of one piece fit in memory
_REACH_IN_DEVIATIONS, _POINTS_PER_AXIS = 6.0, 161

_VARIATIONAL, _SAMPLING = "variational", "sampling"
_LABELS = ("latent dimension 1", "latent dimension 2")
_ROOM = 0.06  # around all codes, as a share of the view
_GRID_SIZE = 61
_EXTENT, _IMAGES_PER_AXIS = 2.0, 9  # of the grid of images
_IMAGES_ACROSS, _PIXELS_ACROSS = 14, 1400  # of a plot with images at their codes
_MASS_SHARES = (0.5, 0.9, 0.99)
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


class FinePosterior(NamedTuple):
    """E(x | t) of each row, (n_rows, 2), and log P(t) in nats, (n_rows,)."""

    mean: Array
    log_likelihood: Array


class PlanePosterior(NamedTuple):
    """Posterior of x given one row, on the part of the plane where it is not negligible.

    `density` is p(x | t) on the grid, (n_y, n_x), with integral 1; `mean` and `covariance` have
    shapes (2,) and (2, 2).
    """

    x: Array
    y: Array
    density: Array
    mean: Array
    covariance: Array


def make_fine_nodes() -> Nodes:
    """Make nodes from −6 to 6 along both axes, weighted by the density of N(0, I)."""
    axis = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
    points = _grid_points(axis, axis)
    log_weights = -(points**2).sum(axis=1) / 2
    return Nodes(points, log_weights - scipy.special.logsumexp(log_weights))


def fine_posterior(block: BinaryBlock, weights: Array, offsets: Array) -> FinePosterior:
    """Integrate over the fine grid for each row; w (n_features, 2) and b (n_features,)."""
    X, observed, nodes = block.unpack_values(), block.unpack_mask(), make_fine_nodes()
    pieces = map(Nodes, *(np.array_split(array, _N_PIECES) for array in nodes))
    with limit_blas_threads():
        items = LevelItems.from_binary(weights, offsets)
        posteriors = [node_posterior(X, observed, items, piece) for piece in pieces]
    logs = np.array([posterior.log_likelihood for posterior in posteriors])
    total = scipy.special.logsumexp(logs, axis=0)
    means = np.array([posterior.mean for posterior in posteriors])
    return FinePosterior((np.exp(logs - total)[:, :, None] * means).sum(axis=0), total)


def plane_posterior(
    row: Bits, observed: Bits | None, weights: Array, offsets: Array
) -> PlanePosterior:
    """Compute the posterior of x under P(t_i = 1 | x) = σ(w_i·x + b_i) and x ~ N(0, I).

    Parameters
    ----------
    row, observed
        Values and mask, 1 = observed, (n_features,); None if no value is missing.
    weights, offsets
        w (n_features, 2) and b (n_features,).
    """
    if weights.ndim != 2 or weights.shape[1] != 2:
        raise FitError(
            f"The weights have shape {weights.shape}, not (n_features, 2). Fit two components."
        )
    mask = None if observed is None else observed[None]
    near = posterior_by_quadrature(row[None], mask, TraitItems(weights, offsets))
    reach = _REACH_IN_DEVIATIONS * np.sqrt(np.diagonal(near.covariance[0]))
    x, y = np.linspace(near.mean[0] - reach, near.mean[0] + reach, _POINTS_PER_AXIS).T
    points = _grid_points(x, y)
    mask_row = np.ones(len(row)) if observed is None else observed
    eta = points @ weights.T + offsets
    logs = scipy.special.log_expit((2.0 * row - 1) * eta) @ mask_row - (points**2).sum(axis=1) / 2
    shares = np.exp(logs - scipy.special.logsumexp(logs))
    mean = shares @ points
    covariance = (points - mean).T @ (shares[:, None] * (points - mean))
    density = shares.reshape(_POINTS_PER_AXIS, _POINTS_PER_AXIS).T / ((x[1] - x[0]) * (y[1] - y[0]))
    return PlanePosterior(x, y, density, mean, covariance)


def _grid_points(x: Array, y: Array) -> Array:
    """List all points of a grid, (n_x n_y, 2); x varies slowest."""
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)


class NoisyPrototypes(NamedTuple):
    """Noisy copies of random prototypes, (n_rows, n_features), and the prototype of each row."""

    X: Bits
    prototype: NDArray[np.intp]


class TippingTrial(NamedTuple):
    """One fit; `seed` is for the initial weights and all draws."""

    block: BinaryBlock
    estimator: Estimator
    seed: int


class TippingResult(NamedTuple):
    """Results of a trial.

    Attributes
    ----------
    values
        `objective` in nats per row; `error_shared`, `error_fresh`, `error_quadrature` and
        `error_grid`, the mean negative log-likelihood of a row in nats: on the 500 draws that
        sampling is fitted with, on 500 others, by 41 x 41 Gauss–Hermite nodes and on a fine grid;
        `passes` of the fit; `cpu_seconds` and `wall_seconds` until the objective is within
        `NEAR_NATS` of its end; `converged`; `pinned`, the number of constant features;
        `steepest`, the largest absolute weight.
    params
        Final parameters, rotated to principal axes.
    """

    values: Mapping[str, float | int | bool]
    params: LatentTraitParams


class _TimedPass(NamedTuple):
    """CPU and wall seconds at the end of a pass, and the state at that time."""

    cpu: float
    wall: float
    state: FitState


def draw_noisy_prototypes(
    flip: float, n_copies: int, seed: int, n_prototypes: int = 3, n_features: int = 16
) -> NoisyPrototypes:
    """Draw prototypes of fair bits and noisy copies, with bits flipped at random.

    The same seed gives the same prototypes; a larger `flip` flips the same bits and more.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(2, size=(n_prototypes, n_features), dtype=np.uint8)
    prototype = np.repeat(np.arange(n_prototypes), n_copies)
    flipped = rng.random((len(prototype), n_features)) < flip
    return NoisyPrototypes(prototypes[prototype] ^ flipped.astype(np.uint8), prototype)


def check_rows(block: BinaryBlock) -> None:
    """Raise FitError if a feature is never observed, or there are fewer than three features."""
    model = make_trial_model("variational")
    initialize_fit(model, model.first_statistics.from_block(block), 0)


def run_tipping_trial(trial: TippingTrial) -> TippingResult:
    """Fit two components in memory until convergence; measure errors and time.

    CPU seconds are of this thread, which does all the work. Kernels are already compiled.
    """
    _warm_up()
    return _run_trial(trial)


@cache
def _warm_up() -> None:
    """Compile the kernels of all fits, once per process."""
    block = pack_block(draw_noisy_prototypes(0.1, 20, 0).X)
    for estimator in ESTIMATORS:
        _run_trial(TippingTrial(block, estimator, 0))


def _run_trial(trial: TippingTrial) -> TippingResult:
    block, estimator, seed = trial
    model, rows, executor = make_trial_model(estimator), _pack_block(block), SerialExecutor()
    first = collect_first_statistics(model, rows, executor, seed)
    passes: list[_TimedPass] = []
    state = initialize_fit(model, first, seed)
    cpu, wall = time.thread_time(), time.perf_counter()

    def record(state: FitState) -> None:
        passes.append(_TimedPass(time.thread_time() - cpu, time.perf_counter() - wall, state))

    end = fit_model(model, rows, executor, seed, state=state, checkpoint=record)
    near_end = next(p for p in passes if p.state.history[-1] >= end.history[-1] - NEAR_NATS)
    # The last objective belongs to these parameters. Afterwards the axes are rotated, which would
    # change the fixed draws of x.
    last = passes[-2].state.params if len(passes) > 1 else state.params
    shared = initialize_fit(make_trial_model("sampling"), first, seed).working
    values = {
        "objective": end.history[-1],
        **_integration_errors(block, last, Nodes(shared["points"], shared["log_weights"]), seed),
        "passes": end.iteration,
        "cpu_seconds": near_end.cpu,
        "wall_seconds": near_end.wall,
        "converged": end.converged,
        "pinned": len(state.auxiliary["constant"]),
        "steepest": float(np.abs(end.params.weights).max()),
    }
    return TippingResult(values, end.params)


def make_trial_model(estimator: Estimator) -> LatentTrait:
    """Make the model of a trial."""
    return LatentTrait(
        n_components=2,
        estimator=estimator,
        nodes=_N_NODES[estimator],
        constant_features="keep",
        max_iter=_MAX_ITER,
        tol=_TOL,
    )


def _pack_block(block: BinaryBlock) -> RowSource:
    rows = pack_rows_in_memory(block.unpack_values(), 1)
    if block.observed_words is None:
        return rows
    chunk: Any = rows.read(0)
    masked = chunk._replace(observed=block.observed_words)
    return replace(rows, read=(masked,).__getitem__)


def _integration_errors(
    block: BinaryBlock, params: LatentTraitParams, shared: Nodes, seed: int
) -> dict[str, float]:
    nodes = {
        "error_shared": shared,
        "error_fresh": draw_nodes(N_DRAWS, 2, np.random.default_rng([seed, 1])),
        "error_quadrature": drop_light_nodes(gauss_hermite(NODES_PER_AXIS, 2)),
    }
    model = (params.weights, params.offsets)
    X, observed = block.unpack_values(), block.unpack_mask()
    items = LevelItems.from_binary(*model)
    with limit_blas_threads():
        likelihoods = {
            name: node_posterior(X, observed, items, points).log_likelihood
            for name, points in nodes.items()
        }
    likelihoods["error_grid"] = fine_posterior(block, *model).log_likelihood
    return {name: -float(values.mean()) for name, values in likelihoods.items()}


class SyntheticRows(NamedTuple):
    """Noisy copies of prototypes, and the prototype of each row."""

    name: str
    block: BinaryBlock
    prototype: NDArray[np.intp]


class BinaryImages(NamedTuple):
    """Rows that are images, and their layout."""

    name: str
    block: BinaryBlock
    layout: ImageLayout


@dataclass(frozen=True)
class TippingFigures:
    """The figures of the experiment, in a folder; parameters are keyed by data and estimator."""

    folder: Path
    params: Mapping[tuple[str, str], LatentTraitParams]

    def _write(
        self, name: str, panels: Sequence[Sequence[Figure]], title: str, note: str, width: int
    ) -> None:
        paths = figure_paths(self.folder, f"tipping_{name}")
        write_figure(*paths, panels=panels, title=title, note=note, width=width)

    def plot_synthetic_codes(self, data: Sequence[SyntheticRows]) -> None:
        """Plot figure 1: codes of the synthetic data by the variational fit and by sampling."""
        note = (
            "Posterior means of all rows; areas are numbers of rows. Lines: where a bit is 1 with "
            "probability ½; the number of the bit is on the side of 1. Variational: means of the "
            "Gaussian approximations. Sampling: exact means, with axes rotated to match."
        )
        title = "Noisy copies of three prototypes in the latent plane"
        panels = [self._plot_synthetic_panels(rows) for rows in data]
        self._write("synthetic", panels, title, note, 1060)

    def _plot_synthetic_panels(self, data: SyntheticRows) -> list[Figure]:
        variational = self.params[data.name, _VARIATIONAL]
        sampling = self.params[data.name, _SAMPLING]
        rotation, _ = scipy.linalg.orthogonal_procrustes(sampling.weights, variational.weights)
        exact = fine_posterior(data.block, sampling.weights, sampling.offsets)
        gaussian = compute_variational_posterior(variational, data.block)
        fits = {
            _VARIATIONAL: (gaussian.mean, variational.weights, variational.offsets),
            _SAMPLING: (exact.mean @ rotation, sampling.weights @ rotation, sampling.offsets),
        }
        prototypes = ColourLabels("prototype", data.prototype + 1)
        names = [str(i + 1) for i in range(data.block.n_features)]
        return [
            plot_codes(codes, f"{data.name}, {name}", prototypes, (weights, offsets, names))
            for name, (codes, weights, offsets) in fits.items()
        ]

    def plot_expected_images(self, images: BinaryImages) -> None:
        """Plot figure 2: P(t = 1 | x) over the plane."""
        axis = np.linspace(-_EXTENT, _EXTENT, _IMAGES_PER_AXIS)
        points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        model, params = make_trial_model("variational"), self.params[images.name, _VARIATIONAL]
        expected = images.layout.arrange_images(model.reconstruct(params, points))
        note = (
            "Probability that a pixel is 1 at points of the plane; variational fit. Latent "
            "dimensions have mean 0 and variance 1."
        )
        title = f"Images that the model of {images.name} expects over the latent plane"
        plot = plot_image_mosaic(expected, axis, axis, _LABELS)
        self._write("expected", [[Figure("", "", plot, ramp=SHARES.make_ramp())]], title, note, 640)

    def plot_image_codes(self, images: BinaryImages) -> None:
        """Plot figure 3: the codes of images, and some of the images at their codes."""
        params, block = self.params[images.name, _VARIATIONAL], images.block
        codes = compute_variational_posterior(params, block).mean
        pictures = images.layout.arrange_images(_values_with_gaps(block))
        note = (
            f"Left: posterior means of {block.n_samples:,} images, variational fit. Right: some of "
            "the images, centred on their means; the first ones that fit without overlap."
        )
        title = f"Images of {images.name} in the latent plane"
        panels = [plot_codes(codes, "all images"), plot_images_at(pictures, codes)]
        self._write("codes", [panels], title, note, 1060)

    def plot_posteriors(self, data: Sequence[SyntheticRows | BinaryImages]) -> None:
        """Plot figure 4: exact posteriors of single rows and their variational Gaussians."""
        note = (
            "Outlines hold 50, 90 and 99 % of the posterior of one row, under the weights of the "
            "variational fit; marks are means. Exact: prior times likelihood on a grid. Gap: log "
            "P(t) minus its bound, in nats. Above: the row with the median gap; below: the row "
            "with the largest gap."
        )
        title = "Posteriors in the latent plane, exact and variational"
        columns = [self._plot_posterior_panels(rows) for rows in data]
        self._write("posteriors", [*zip(*columns, strict=True)], title, note, 340 * len(data))

    def _plot_posterior_panels(self, data: SyntheticRows | BinaryImages) -> list[Figure]:
        params, block = self.params[data.name, _VARIATIONAL], data.block
        bound = compute_variational_posterior(params, block)
        exact = fine_posterior(block, params.weights, params.offsets)
        gaps = exact.log_likelihood - bound.bound
        order = np.argsort(gaps, kind="stable")
        X, observed = block.unpack_values(), block.unpack_mask()
        panels = []
        for row in (order[len(order) // 2], order[-1]):
            mask = None if observed is None else observed[row]
            posterior = plane_posterior(X[row], mask, params.weights, params.offsets)
            title = f"{data.name}, row {row + 1}: gap {gaps[row]:.2g}"
            grid = (posterior.x, posterior.y, posterior.density)
            panels.append(plot_posteriors(*grid, bound.mean[row], bound.covariance[row], title))
        return panels


def plot_codes(
    codes: Array,
    title: str,
    labels: ColourLabels | None = None,
    items: tuple[Array, Array, Sequence[str]] | None = None,
) -> Figure:
    """Plot latent codes, (n_rows, 2), one mark per distinct code and label, as the report does.

    `items` are weights, (n_features, 2), offsets and names of items with P(1 | x) = σ(w·x + b).
    Their lines with probability ½ are drawn too.
    """
    groups, _ = group_rows_by_label(labels, len(codes))
    x, y = fit_square_axes(codes, _LABELS, _ROOM)
    marks = [mark_rows(codes[group.rows], (), group.key)[0] for group in groups]
    keys = () if labels is None else [group.key for group in groups]
    if labels is not None:
        keys = [
            key._replace(name=f"{labels.name} {key.name} (n = {len(group.rows):,})")
            for key, group in zip(keys, groups, strict=True)
        ]
    if items is not None:
        weights, offsets, names = items
        across, up = (np.linspace(axis.low, axis.high, _GRID_SIZE) for axis in (x, y))
        points = np.stack(np.meshgrid(across, up), axis=-1)
        probabilities = scipy.special.expit(np.moveaxis(points @ weights.T + offsets, -1, 0))
        marks += mark_even_odds_lines(across, up, probabilities, names)[0]
    return make_panel(title, x, y, marks, keys, height=None)


def plot_images_at(images: Array, codes: Array) -> Figure:
    """Plot images, (n_rows, height, width), at their codes, (n_rows, 2), the first ones first.

    Images that would overlap earlier ones are left out.
    """
    x, y = fit_square_axes(codes, _LABELS, _ROOM)
    _, height, width = images.shape
    size = _PIXELS_ACROSS // _IMAGES_ACROSS * np.array([height, width]) // max(height, width)
    rows, columns = (np.arange(n) * m // n for n, m in zip(size, (height, width), strict=True))
    share = (codes - [x.low, y.low]) / (x.high - x.low)
    corners = np.rint(_PIXELS_ACROSS * np.column_stack([1 - share[:, 1], share[:, 0]]) - size / 2)
    corners = np.clip(corners.astype(np.intp), 0, _PIXELS_ACROSS - size)
    chosen = _choose_separate_rows(corners, 1.05 * size)
    area = np.zeros((_PIXELS_ACROSS, _PIXELS_ACROSS))
    for row in chosen:
        (top, left), (down, across) = corners[row], size
        area[top : top + down, left : left + across] = images[row][np.ix_(rows, columns)]
    return make_panel(
        f"{len(chosen)} of them", x, y, [RasterMark(np.nan_to_num(area), SHARES)], height=None
    )


def _choose_separate_rows(points: NDArray[Any], distance: Array) -> list[int]:
    """Choose rows in order, each `distance` from all earlier ones along at least one axis."""
    chosen: list[int] = []
    for row, point in enumerate(points):
        if (np.abs(points[chosen] - point) >= distance).any(axis=1).all():
            chosen.append(row)
    return chosen


def plot_posteriors(
    x: Array, y: Array, density: Array, mean: Array, covariance: Array, title: str = ""
) -> Figure:
    """Plot the 50, 90 and 99 % regions of a row's posterior and of its Gaussian approximation.

    Parameters
    ----------
    x, y, density
        Coordinates of a grid with equal steps, (n_x,) and (n_y,), and the exact density there,
        (n_y, n_x), up to a factor; the mass outside the grid must be negligible.
    mean, covariance
        Mean and covariance of the Gaussian, (2,) and (2, 2).
    """
    from contourpy import contour_generator  # of the extra `report`

    exact, gaussian = COLOURS[:2]
    generator: Any = contour_generator(x, y, density)
    outlines = [line for level in _compute_levels(density) for line in generator.lines(level)]
    ellipses = [_compute_ellipse(mean, covariance, share) for share in _MASS_SHARES]
    shares = density / density.sum()
    means = np.array([[shares.sum(axis=0) @ x, shares.sum(axis=1) @ y], mean])
    marks: list[Mark] = [
        LineMarks(outlines, [exact] * len(outlines)),
        LineMarks(ellipses, [gaussian] * len(ellipses), dash=(5, 3)),
        PointMarks(means[:1, 0], means[:1, 1], exact, size=6.0),
        PointMarks(means[1:, 0], means[1:, 1], gaussian, "plus", size=6.0),
    ]
    axes: tuple[Axis, Axis] = fit_square_axes(np.vstack([*outlines, *ellipses]), _LABELS, _ROOM)
    keys = [LegendKey("exact", exact), LegendKey("variational", gaussian, "plus")]
    return make_panel(title, *axes, marks, keys, height=None)


def _compute_levels(density: Array) -> list[float]:
    """Compute the densities above which the given shares of the mass lie, ascending."""
    falling = np.sort(density.ravel())[::-1]
    sums = np.cumsum(falling) / falling.sum()
    indices = np.searchsorted(sums, _MASS_SHARES[::-1])
    # A posterior that the grid hardly resolves has fewer levels.
    return sorted(set(falling[np.minimum(indices, falling.size - 1)].tolist()))


def _compute_ellipse(mean: Array, covariance: Array, share: float) -> Array:
    """Compute the ellipse that contains a share of a Gaussian's mass, (n, 2)."""
    angles = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(-2 * np.log(1 - share)) * np.column_stack([np.cos(angles), np.sin(angles)])
    outline: Array = mean + circle @ np.linalg.cholesky(covariance).T
    return outline


def _values_with_gaps(block: BinaryBlock) -> Array:
    """Convert bits to numbers; missing values become NaN."""
    X, observed = block.unpack_values().astype(np.float64), block.unpack_mask()
    return X if observed is None else np.where(observed == 1, X, np.nan)


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
    return join_blocks(blocks)


def run_tipping_trials(
    images: BinaryImages, n_copies: int, seeds: Sequence[int], where: ExecutorOptions
) -> TippingTable:
    """Fit every dataset with every estimator from every seed, one fit at a time."""
    rows: list[dict[str, Any]] = []
    params: dict[tuple[str, str], LatentTraitParams] = {}
    names, trials = zip(*_iter_trials(images, n_copies, seeds), strict=True)
    results = run_trials(run_tipping_trial, trials, len(trials), "fits", where, True)
    for name, trial, result in zip(names, trials, results, strict=True):
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
    table = make_table(*_PRINTED.values(), title=title)
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
