"""Figures of denoising: the images that models give back, and their shares of wrong bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.experiments.denoising.trial import Bits, DenoisingResult
from flows.experiments.drawing import (
    COLOURS,
    MARKERS,
    ImageRow,
    open_figure,
    save_images,
)
from flows.report.figures.image_layout import ImageLayout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLEAN, NOISY, LINEAR = "clean", "noisy", "linear PCA"
_N_SHOWN = 8
_MEASURES = {"from codes": "wrong_bits", "weighed against noisy bits": "wrong_bits_weighed"}


@dataclass(frozen=True)
class DenoisingFigures:
    """Draws into a folder."""

    folder: Path
    name: str
    n_components: int

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"denoising_{name}.png", self.folder / f"denoising_{name}.svg"

    def plot_errors(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Draw the shares of wrong bits of all fits, a panel for each number of images."""
        numbers = list(dict.fromkeys(row["images"] for row in rows))
        names = [name for name in dict.fromkeys(row["model"] for row in rows) if name != NOISY]
        note = (
            "A mark a seed, bars at medians; dotted: the noisy images themselves, median. From "
            "codes: bits that the codes of noisy images are turned back into. Weighed: the "
            "likeliest bits given codes and noisy bits. Linear PCA from codes: cut at the "
            "threshold that is best for training images with noise."
        )
        title = f"Denoising {self.name}, {self.n_components} components"
        size = (10, 1.9 + 0.42 * len(names))
        with open_figure(*self._paths("errors"), size=size, title=title, note=note) as figure:
            panels = figure.subplots(1, len(numbers), squeeze=False, sharex=True, sharey=True)[0]
            for axes, n_images in zip(panels, numbers, strict=True):
                _plot_errors(axes, [row for row in rows if row["images"] == n_images], names)
                axes.set_title(f"fitted to {n_images:,} images")
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))

    def plot_images(
        self,
        layout: ImageLayout,
        n_images: int,
        clean: Bits,
        noisy: Bits,
        cleaned: Mapping[str, DenoisingResult],
    ) -> None:
        """Draw some images: clean, noisy, and as each model gives them back."""
        at = ((np.arange(_N_SHOWN) + 0.5) * len(clean) / _N_SHOWN).astype(np.intp)
        drawn = {CLEAN: clean, NOISY: noisy, **{name: one.bits for name, one in cleaned.items()}}
        shown = []
        for name, bits in drawn.items():
            wrong = (bits[at] != clean[at]).sum(axis=1)
            captions = [""] * len(at) if name == CLEAN else [str(count) for count in wrong]
            shown.append(ImageRow(name, layout.arrange_images(bits[at]), captions))
        note = (
            f"Images of the last third. A random 10 % of the pixels set to 1, another 10 % to 0. "
            f"Models of {self.n_components} components; bits that codes of noisy images are turned "
            "back into. Under each: its wrong bits."
        )
        title = f"Denoising {self.name}, fitted to {n_images:,} clean images"
        paths = self._paths(f"images_{n_images}")
        save_images(*paths, rows=shown, title=title, note=note)


def _plot_errors(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    series = {
        label: [[row[measure] for row in rows if row["model"] == name] for name in names]
        for label, measure in _MEASURES.items()
    }
    _plot_spread(axes, series, names, "share of wrong bits")
    noisy = float(np.median([row["wrong_bits"] for row in rows if row["model"] == NOISY]))
    axes.axvline(noisy, color="black", ls=":", lw=1, label="noisy images")
    axes.set_xlim(left=0)


def _plot_spread(
    axes: Axes, series: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str], label: str
) -> None:
    """Draw what all seeds gave along a line for each model, with a bar at the median."""
    for k, (name, lines) in enumerate(series.items()):
        colour, marker = COLOURS[k], MARKERS[k]
        heights = np.arange(len(lines)) + 0.3 * (k - (len(series) - 1) / 2)
        x, y = np.concatenate(lines), np.repeat(heights, [len(values) for values in lines])
        style: Any = {"color": colour, "markersize": 4, "alpha": 0.55, "markeredgewidth": 0}
        axes.plot(x, y, marker, label=name, **style)
        medians = [float(np.median(values)) for values in lines]
        axes.vlines(medians, heights - 0.14, heights + 0.14, color=colour, linewidth=2)
    axes.set(xlabel=label, yticks=range(len(names)), yticklabels=names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
