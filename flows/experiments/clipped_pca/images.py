"""Clipped PCA beside linear PCA on images of bits, such as handwritten digits.

D. D. Lee, H. Sompolinsky, "Learning a continuous hidden variable model for binary data", NIPS 1998
(1999).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import Where
from flows.data.datasets import open_named
from flows.experiments.base import fitted, sampled_rows, write_table
from flows.experiments.drawing import (
    ImageRow,
    draw_bars,
    draw_curves,
    drawing,
    save_images,
    scale_by_ratio,
)
from flows.experiments.linear_pca import LinearPCA, linear_pca
from flows.report.figures.image_layout import ImageLayout, find_image_layout
from pipeline.data.blocks import BinaryBlock
from pipeline.models.clipped_pca import ClippedPCA, ClippedPCAParams
from pipeline.numerics.metrics import reconstruction_losses
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Reconstructions = Mapping[int, Mapping[str, Array]]

LINEAR, CLIPPED, MARGINS = "linear PCA", "clipped PCA", "margins alone"
_BOTH = (LINEAR, CLIPPED)
_COMPONENTS, _QUICK_COMPONENTS = (5, 10, 20, 50), (5, 20)
_ROWS, _QUICK_ROWS = 500, 100
_SAMPLED_COMPONENTS, _SHOWN, _BARS = 20, 10, 12
# A certain answer that is wrong would cost infinitely much.
_LEAST_DRAWN = 1e-4


@dataclass(frozen=True)
class Models:
    """Both models of one dataset, fitted from the same pair counts."""

    linear: LinearPCA
    clipped: ClippedPCA
    params: ClippedPCAParams

    def shares(self) -> dict[str, Array]:
        """Eigenvalues as shares of the total variance: of the bits, of the hidden Gaussians."""
        return {
            LINEAR: self.linear.eigenvalues / self.linear.variance.sum(),
            CLIPPED: self.params.eigenvalues / len(self.params.thresholds),
        }

    def leading(self, n_components: int) -> ClippedPCAParams:
        """Clipped PCA with fewer components; what they leave is noise again."""
        return replace(self.params, loadings=self.params.loadings[:, :n_components])

    def reconstruct(self, block: BinaryBlock, n_components: int) -> dict[str, Array]:
        """P(s = 1) of rows given their own components, (n_samples, n_features) of each model."""
        params = self.leading(n_components)
        codes = self.clipped.transform(params, block, RowRandom(0))["mean"]
        X, observed = block.dense(), block.observed()
        return {
            LINEAR: self.linear.reconstruct(X, observed, n_components),
            CLIPPED: self.clipped.reconstruct(params, codes),
        }

    def sample(self, n_components: int, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """Rows drawn from each model, (n, n_features)."""
        return {
            LINEAR: self.linear.sample(n_components, n, rng),
            CLIPPED: self.clipped.sample(self.leading(n_components), n, rng),
        }


def images_stage(
    output: str, dataset: str, image_shape: str | None, quick: bool, seed: int, where: Where
) -> dict[str, Any]:
    """Fit both models; compare spectra, components, samples and reconstructions."""
    opened = open_named(dataset)
    layout = find_image_layout(opened.feature_names, image_shape)
    wanted = _QUICK_COMPONENTS if quick else _COMPONENTS
    numbers = sorted({min(p, opened.n_features) for p in wanted})
    clipped = ClippedPCA(numbers[-1], empty_cells="half", constant_features="keep")
    found = fitted(clipped, opened, seed, where)
    models = Models(linear_pca(found.statistics, numbers[-1]), clipped, found.params)
    rng = np.random.default_rng(seed)
    rows = sampled_rows(opened, _QUICK_ROWS if quick else _ROWS, rng)
    codes = {p: models.reconstruct(rows, p) for p in numbers}
    errors = _errors(rows, models.linear.mean, codes)
    folder, name = Path(output), opened.path.name.removesuffix(".zarr")
    write_table(folder / "images_spectrum", _spectrum(models))
    write_table(folder / "images_errors", errors)
    pictures = Pictures(folder, name, layout)
    pictures.spectra(models)
    pictures.components(models)
    pictures.samples(models, rows, rng)
    pictures.reconstructions(rows, codes)
    pictures.errors(errors, rows.n_samples)
    return {
        "dataset": dataset,
        "n_rows": opened.n_rows,
        "n_features": opened.n_features,
        "n_reconstructed": rows.n_samples,
        "errors": errors,
        "warnings": list(found.warnings),
    }


def _spectrum(models: Models) -> list[dict[str, Any]]:
    shares = models.shares()
    columns = {
        "linear_pca": models.linear.eigenvalues,
        "clipped_pca": models.params.eigenvalues,
        "linear_pca_share": shares[LINEAR],
        "clipped_pca_share": shares[CLIPPED],
    }
    ranked = enumerate(zip(*columns.values(), strict=True), start=1)
    return [
        {"rank": rank, **dict(zip(columns, map(float, values), strict=True))}
        for rank, values in ranked
    ]


def _errors(rows: BinaryBlock, mean: Array, found: Reconstructions) -> list[dict[str, Any]]:
    X, observed = _values(rows)
    answers = [(0, MARGINS, np.broadcast_to(mean, X.shape))]
    answers += _each(found)
    return [
        {"components": p, "model": name, **reconstruction_losses(X, observed, probabilities)}
        for p, name, probabilities in answers
    ]


def _each(found: Reconstructions) -> list[tuple[int, str, Array]]:
    return [(p, name, both[name]) for p, both in found.items() for name in _BOTH]


def _values(rows: BinaryBlock) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    X, observed = rows.dense(), rows.observed()
    return X, np.ones(X.shape, bool) if observed is None else observed == 1


@dataclass(frozen=True)
class Pictures:
    """Draws the figures of one dataset into a folder."""

    folder: Path
    name: str
    layout: ImageLayout

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"images_{name}.png", self.folder / f"images_{name}.svg"

    def spectra(self, models: Models) -> None:
        """Draw both spectra: leading eigenvalues, then all on a logarithmic scale."""
        shares = models.shares()
        note = (
            "Linear PCA: covariance of the bits. Clipped PCA: tetrachoric correlations."
            f"{_negative(shares[CLIPPED])} Shares below {_LEAST_DRAWN:g} are not drawn."
        )
        title = f"Spectra of {self.name}"
        paths = self._paths("spectra")
        with drawing(*paths, size=(10, 4), title=title, note=note) as figure:
            bars, curves = figure.subplots(1, 2)
            label = "eigenvalue / total variance"
            leading = {name: values[:_BARS] for name, values in shares.items()}
            draw_bars(bars, leading, label, "Leading eigenvalues")
            drawn = {name: values[values > _LEAST_DRAWN] for name, values in shares.items()}
            series = {name: (np.arange(1, len(v) + 1), v) for name, v in drawn.items()}
            draw_curves(curves, series, ("rank", label), "All eigenvalues")
            scale_by_ratio(curves, len(shares[LINEAR]))

    def components(self, models: Models) -> None:
        """Draw the leading eigenvectors and loadings."""
        shares = models.shares()
        columns = {LINEAR: models.linear.vectors, CLIPPED: models.params.loadings}
        rows = [
            ImageRow(
                f"{name}\n{first + 1} to {min(first + _SHOWN, values.shape[1])}",
                self.layout.images(values.T[first : first + _SHOWN]),
                [f"{share:.1%}" for share in shares[name][first : first + _SHOWN]],
            )
            for name, values in columns.items()
            for first in (0, _SHOWN)
            if first < values.shape[1]
        ]
        note = (
            "Eigenvectors of linear PCA, loadings of clipped PCA, each to its own scale: red "
            "positive, white 0, blue negative. Under each: its share of the variance."
        )
        title = f"Leading components of {self.name}"
        paths = self._paths("components")
        save_images(*paths, rows=rows, title=title, note=note, signed=True)

    def samples(self, models: Models, rows: BinaryBlock, rng: np.random.Generator) -> None:
        """Draw rows of the data and of both models."""
        p = min(_SAMPLED_COMPONENTS, models.params.loadings.shape[1])
        shown = [ImageRow("data", self.layout.images(rows.dense()[_spread(rows)]))]
        for name, X in models.sample(p, 2 * _SHOWN, rng).items():
            images = self.layout.images(X)
            shown += [ImageRow(name, images[:_SHOWN]), ImageRow("", images[_SHOWN:])]
        note = (
            f"{p} components. Linear PCA: a Gaussian with the bits' means and variances, "
            "thresholded at ½. Clipped PCA: Gaussians, each thresholded to give its pixel's mean."
        )
        title = f"Images drawn from models of {self.name}"
        save_images(*self._paths("samples"), rows=shown, title=title, note=note)

    def reconstructions(self, rows: BinaryBlock, found: Reconstructions) -> None:
        """Draw rows as each model gives them back, and count their wrong bits."""
        at = _spread(rows)
        X, observed = (values[at] for values in _values(rows))
        shown = [ImageRow("data", self.layout.images(np.where(observed, X, np.nan)))]
        for p, name, answers in _each(found):
            bits = answers[at] > 0.5
            wrong = ((bits != (X == 1)) & observed).sum(axis=1)
            images = self.layout.images(bits)
            shown.append(ImageRow(f"{name}\n{p} components", images, list(map(str, wrong))))
        note = "Black: P(bit = 1 | components) > ½. Under each: its wrong bits."
        title = f"Reconstructions of {self.name}"
        save_images(*self._paths("reconstructions"), rows=shown, title=title, note=note)

    def errors(self, errors: Sequence[Mapping[str, Any]], n_rows: int) -> None:
        """Draw both measures over the number of components."""
        note = (
            f"{n_rows} rows, among those fitted. Linear PCA: P(bit = 1) = Φ((projection − ½) / σ), "
            "σ² the variance that the components leave. Margins alone: every bit by its mean."
        )
        title, paths = f"Reconstruction errors of {self.name}", self._paths("errors")
        measures = {"wrong_bits": "share of wrong bits", "nll_per_bit": "−log P per bit (nats)"}
        with drawing(*paths, size=(9, 3.8), title=title, note=note) as figure:
            for axes, measure in zip(figure.subplots(1, 2), measures, strict=True):
                series = {name: _over_components(errors, name, measure) for name in _BOTH}
                axes.axhline(errors[0][measure], color="black", ls=":", lw=0.8, label=MARGINS)
                draw_curves(axes, series, ("components", measures[measure]), "")
                axes.set(ylim=(0, None), xticks=series[LINEAR][0])


def _negative(shares: Array) -> str:
    below = shares[shares < 0]
    if not below.size:
        return ""
    return (
        f" Estimated pair by pair, they give {len(below)} negative shares, in sum "
        f"−{abs(below.sum()):.2f}; the others exceed 1 by as much."
    )


def _spread(rows: BinaryBlock) -> NDArray[np.intp]:
    """Rows to show: evenly over the rows, which lie by segment, so that all kinds come up."""
    n = min(_SHOWN, rows.n_samples)
    return ((np.arange(n) + 0.5) * rows.n_samples / n).astype(np.intp)


def _over_components(
    errors: Sequence[Mapping[str, Any]], model: str, measure: str
) -> tuple[list[int], list[float]]:
    chosen = [row for row in errors if row["model"] == model]
    return [row["components"] for row in chosen], [row[measure] for row in chosen]
