"""Draw the figure of each model page again: `python .docs/make_figures.py [MODEL ...]`.

A figure is one picture of the report of the command that its page shows. The pictures are
committed, so that building the pages fits no model.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
IMAGES = ("--image-shape", "8x8")
NONSTATIONARY = "example:nonstationary:features=6,components=2,segments=12 --components 2"
WIDTH, COLOURS = 1100, 128

FIGURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "autoencoder": ("example:digits --components 16", "weights", IMAGES),
    "bernoulli-mixture": ("example:digits", "probabilities", IMAGES),
    "binary-ica-likelihood": (NONSTATIONARY, "mixing", ()),
    "blica": (NONSTATIONARY, "source-variances-by-segment", ()),
    "bottleneck": ("example:digits --components 2", "rows-in-latent-space", IMAGES),
    "clipped-pca": ("example:digits", "loadings", IMAGES),
    "fastica": (NONSTATIONARY, "mixing", ()),
    "hidden-tree": ("example:digits --components 8", "tree-of-features", IMAGES),
    "kernel-pca": ("example:digits --components 2", "rows-in-latent-space", IMAGES),
    "laplacian-eigenmap": ("example:digits", "rows-in-latent-space", IMAGES),
    "latent-trait": ("example:digits", "images-over-latent-space", IMAGES),
    "linear-ivae": (NONSTATIONARY, "mixing", ()),
    "noisy-or": (
        "example:lines --layers 10,5",
        "pixels-that-units-of-layer-1-turn-on",
        ("--image-shape", "5x5"),
    ),
    "rbm": ("example:digits --components 16", "weights", IMAGES),
    "stack": ("example:digits --layers 32,2", "rows-in-latent-space", IMAGES),
    "tree-mixture": ("example:digits --components 4", "tree-1", IMAGES),
}
"""Data and options of the fit, name of the picture, and options of the report, by model."""


def draw_figure(model: str, folder: Path) -> None:
    """Fit a model and save its figure next to the pages."""
    options, picture, report_options = FIGURES[model]
    runs, pictures = folder / model, folder / f"{model}-pictures"
    fit = ["--dataset", *options.split(), "--model", model, "--output", str(runs), "--no-report"]
    run_command("fit", *fit)
    output = ["--output", str(folder / f"{model}.html"), "--pictures", str(pictures)]
    run_command("report", "--artifact", str(runs), *report_options, *output)
    source = pictures / f"{picture}.png"
    if not source.exists():
        names = ", ".join(sorted(path.stem for path in pictures.glob("*.png")))
        sys.exit(f"{model}: there is no picture {picture!r}; the report has {names}.")
    image = Image.open(source).convert("RGB")
    image.thumbnail((WIDTH, 2 * WIDTH))
    image.quantize(COLOURS).save(HERE / "figures" / f"{model}.png", optimize=True)


def run_command(name: str, *words: str) -> None:
    """Run a command of latentbits, and stop if it fails."""
    subprocess.run([sys.executable, "-m", f"flows.{name}", *words], cwd=HERE.parent, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for chosen in sys.argv[1:] or FIGURES:
            draw_figure(chosen, Path(name))
