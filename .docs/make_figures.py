"""Draw the figures of the model pages and of the first page again.

`python .docs/make_figures.py [NAME ...]` draws some of them. A figure is one picture of the report
of the command that its page shows. The pictures are committed, so that building the pages fits no
model. The first page and ising show data of the tutorials; see
`extensions/tutorial_data.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]

from tutorial_data import load_data  # noqa: E402

import latentbits as lb  # noqa: E402

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
    "hidden-markov": (
        NONSTATIONARY.replace("--components 2", "--components 4"),
        "transitions-between-states",
        (),
    ),
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


REACTIONS = {
    f"S2{mode}{word.title()}": f"{text} {word}"
    for mode, text in (("Want", "want to"), ("Do", "would"))
    for word in ("curse", "scold", "shout")
}
"""Items about missing a train, and their names in the figure."""
COUNTRIES = [
    *("US", "GB", "FR", "CA", "PL", "SE", "NZ", "UA", "TR", "AR"),
    *("RU", "BR", "MX", "IN", "PK", "ID", "SA", "CU", "EG", "IR"),
]
N_PRODUCTS = 20  # the most frequent ones


def write_reactions(path: Path) -> None:
    """Write the answers to some items of the questionnaire about anger."""
    data = load_data("verbal_aggression")
    columns = [data["names"].index(item) for item in REACTIONS]
    lb.from_numpy(data["X"][:, columns], [*REACTIONS.values()], path=path)


def write_answers(path: Path) -> None:
    """Write the answers to all items of the questionnaire about anger."""
    data = load_data("verbal_aggression")
    lb.from_numpy(data["X"], data["names"], path=path)


def write_votes(path: Path) -> None:
    """Write the votes of some countries since 1991, without those on which they agree."""
    data = load_data("unvotes_core")
    rows = [data["names"].index(country) for country in COUNTRIES]
    X = data["X"][np.array(data["segment"], int) >= 1991].T[rows]
    differs = (X == 1).any(axis=0) & (X == 0).any(axis=0)
    lb.from_numpy(X[:, differs], keep={"country": COUNTRIES}, path=path)


def write_baskets(path: Path) -> None:
    """Write which baskets hold the most frequent products."""
    data = load_data("groceries")
    columns = np.argsort(-data["X"].mean(axis=0))[:N_PRODUCTS]
    names = [data["names"][column] for column in columns]
    lb.from_numpy(data["X"][:, columns], names, path=path)


ONE_TRAIT = "--model latent-trait --components 1"
FRONT_FIGURES: dict[str, tuple[Callable[[Path], None], str, str, tuple[str, ...]]] = {
    "questionnaire": (write_reactions, ONE_TRAIT, "features-over-the-component", ()),
    "votes": (
        write_votes,
        f"{ONE_TRAIT} --set prior_precision=1",
        "positions-on-component-1",
        ("--names", "country", "--orient", "US=+1"),
    ),
    "baskets": (write_baskets, "--model chow-liu", "tree-of-features", ()),
    "ising": (write_answers, "--model ising", "network-of-features", ()),
}
"""Function that writes the data, options of the fit, name of the picture, options of the report."""


def draw_figure(name: str, folder: Path) -> None:
    """Fit a model and save its figure next to the pages."""
    if name in FRONT_FIGURES:
        write_data, options, picture, report_options = FRONT_FIGURES[name]
        dataset = folder / f"{name}.zarr"
        write_data(dataset)
        options = f"{dataset} {options}"
    else:
        options, picture, report_options = FIGURES[name]
        options = f"{options} --model {name}"
    runs, pictures = folder / name, folder / f"{name}-pictures"
    run_command("fit", "--dataset", *options.split(), "--output", str(runs), "--no-report")
    output = ["--output", str(folder / f"{name}.html"), "--pictures", str(pictures)]
    run_command("report", "--artifact", str(runs), *report_options, *output)
    source = pictures / f"{picture}.png"
    if not source.exists():
        found = ", ".join(sorted(path.stem for path in pictures.glob("*.png")))
        sys.exit(f"{name}: there is no picture {picture!r}; the report has {found}.")
    image = Image.open(source).convert("RGB")
    image.thumbnail((WIDTH, 2 * WIDTH))
    image.quantize(COLOURS).save(HERE / "figures" / f"{name}.png", optimize=True)


def run_command(name: str, *words: str) -> None:
    """Run a command of latentbits, and stop if it fails."""
    subprocess.run([sys.executable, "-m", f"flows.{name}", *words], cwd=HERE.parent, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for chosen in sys.argv[1:] or [*FIGURES, *FRONT_FIGURES]:
            draw_figure(chosen, Path(temporary))
