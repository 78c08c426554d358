"""Clipped PCA of translation-invariant spins on a ring: figure 3 of the paper.

D. D. Lee, H. Sompolinsky, "Learning a continuous hidden variable model for binary data", NIPS 1998
(1999): two hidden Gaussians lie behind all spins, yet the spins' own spectrum is a continuum.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import ExecutorOptions
from flows.data.datasets import open_dataset_or_example
from flows.experiments.base import draw_rows, fit_one_pass, write_table
from flows.experiments.drawing import (
    open_figure,
    plot_bars,
    plot_curves,
    plot_strips,
    set_log_scales,
)
from flows.experiments.linear_pca import fit_linear_pca
from pipeline.models.clipped_pca import MIN_NOISE, ClippedPCA
from pipeline.numerics.gaussian.arcsine import sign_correlation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_SPINS, _CLIPPED = "spins (linear PCA)", "clipped PCA"
_N_ROWS_SHOWN, _N_BARS = 24, 12
_MIN_PLOTTED_VALUE = 1e-6


def compare_on_ring(
    output: str, n_rows: int, n_features: int, seed: int, where: ExecutorOptions
) -> dict[str, Any]:
    """Fit two components, compare spectra with those in the limit of many rows, draw both."""
    name = f"example:ring:rows={n_rows},features={n_features},seed={seed}"
    dataset = open_dataset_or_example(name)
    model = ClippedPCA(n_components=2, estimator="arcsine")
    found = fit_one_pass(model, dataset, seed, where)
    # Spins are ±1, so their covariance is four times that of the bits.
    spins = 4 * fit_linear_pca(found.statistics, n_features).eigenvalues
    spectra = {
        "spins": spins,
        "clipped_pca": found.params.eigenvalues,
        **_limit_spectra(n_features),
    }
    table = _spectrum_rows(spectra)
    write_table(Path(output, "ring_spectrum"), table)
    rng = np.random.default_rng(seed)
    rows = draw_rows(dataset, _N_ROWS_SHOWN, rng).unpack_values()
    _plot_figure(
        Path(output), rows, model.sample(found.params, _N_ROWS_SHOWN, rng), spectra, n_rows
    )
    return {"dataset": name, "n_rows": n_rows, "n_features": n_features, "leading": table[:4]}


def _limit_spectra(n_features: int) -> dict[str, Array]:
    """Spectra in the limit of many rows: circulant matrices, so Fourier transforms of a row."""
    hidden = np.cos(2 * np.pi * np.arange(n_features) / n_features)
    first_rows = {"spins_limit": sign_correlation(hidden), "clipped_pca_limit": hidden}
    return {name: np.sort(np.fft.fft(row).real)[::-1] for name, row in first_rows.items()}


def _spectrum_rows(spectra: Mapping[str, Array]) -> list[dict[str, Any]]:
    ranks = range(len(spectra["spins"]))
    return [
        {"rank": k + 1, **{name: float(values[k]) for name, values in spectra.items()}}
        for k in ranks
    ]


def _plot_figure(
    output: Path,
    rows: NDArray[np.uint8],
    drawn: NDArray[np.uint8],
    spectra: Mapping[str, Array],
    n_rows: int,
) -> None:
    n_features = rows.shape[1]
    title = f"Spins on a ring: {n_features} features, {n_rows:,} rows"
    note = (
        "Black: spin +1. The edges of drawn rows flicker because clipped PCA in use keeps a noise "
        f"of {MIN_NOISE:g}. Eigenvalues of clipped PCA beyond the second are sampling error. Those "
        "below 10⁻⁶, negative ones with them, are not drawn: half of the spins' are 0, because "
        "opposite spins differ in sign only."
    )
    paths = (output / "ring.png", output / "ring.svg")
    with open_figure(*paths, size=(10, 7.2), title=title, note=note) as figure:
        (data, model), (bars, curves) = figure.subplots(2, 2)
        plot_strips(data, rows, f"{len(rows)} rows of the data")
        plot_strips(model, drawn, f"{len(drawn)} rows drawn from clipped PCA, two components")
        _plot_leading(bars, spectra, n_features)
        _plot_all(curves, spectra)


def _plot_leading(axes: Axes, spectra: Mapping[str, Array], n_features: int) -> None:
    series = {_SPINS: spectra["spins"][:_N_BARS], _CLIPPED: spectra["clipped_pca"][:_N_BARS]}
    plot_bars(axes, series, "eigenvalue", "Leading eigenvalues: clipped PCA has two")
    half = n_features / 2
    axes.axhline(half, color="#555555", linewidth=0.8, linestyle=":")
    axes.text(_N_BARS + 0.5, half, f"{n_features} / 2 = {half:g}", va="bottom", ha="right")
    axes.set_ylim(0, half * 1.15)
    axes.legend(loc="center right")


def _plot_all(axes: Axes, spectra: Mapping[str, Array]) -> None:
    drawn = {name: _rank_series(values) for name, values in spectra.items()}
    series = {_SPINS: drawn["spins"], _CLIPPED: drawn["clipped_pca"]}
    title = "All eigenvalues: those of the spins form a continuum"
    plot_curves(axes, series, ("rank", "eigenvalue"), title, lines=False)
    axes.plot(*drawn["spins_limit"], color="black", linewidth=0.8, label="limit of many rows")
    axes.plot(*drawn["clipped_pca_limit"], color="black", linewidth=0.8)
    set_log_scales(axes, len(spectra["spins"]))
    axes.legend(loc="upper right")


def _rank_series(values: Array) -> tuple[Array, Array]:
    drawn = values[values > _MIN_PLOTTED_VALUE]
    return np.arange(1.0, len(drawn) + 1), drawn
