"""Log-likelihoods of new rows, with settings chosen on validation rows, next to published values.

python -m tests.benchmarks density [SET …]

The sets (J. Van Haaren, J. Davis, AAAI 2012) are those that lie beside the project as
`debd_SET.npz`. Every setting of a model is fitted to the training rows; the one with the best
validation rows is evaluated on the test rows, which choose nothing. Prints nats per row, and the
CPU seconds of all settings of the model. Published values are in
`tests/reference/density_estimation.csv`; HCLT values are means over five runs of the authors' logs
(github.com/UCLA-StarAI/Tractable-PC-Regularization), at the pass with the best validation rows.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.data.blocks import RowSource
from pipeline.evaluation.evaluate import EvaluatedModel, score_models
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.trees.hidden_tree import HiddenTree
from pipeline.models.trees.tree_mixture import TreeMixture
from tests.benchmarks._measure import Table
from tests.support.data import SHARED
from tests.support.strategies import DenseData, make_memory_rows

PUBLISHED = Path(__file__).parents[1] / "reference" / "density_estimation.csv"
SPLITS = ("train", "valid", "test")
CHUNK_ROWS = 4096
MODELS: Mapping[str, Sequence[Model]] = {
    "chow-liu": [TreeMixture(1)],
    "bernoulli-mixture": [BernoulliMixture(k) for k in (20, 100)],
    "tree-mixture": [TreeMixture(k, smoothing=s) for k in (8, 40) for s in (1.0, 4.0)],
    "hidden-tree": [
        HiddenTree(states=states, trees=trees, max_iter=max_iter)
        for states, trees, max_iter in ((16, 5, 12), (16, 5, 40), (32, 2, 40))
    ],
}
"""The settings that are tried."""


def list_sets() -> list[str]:
    """Return the names of the sets that lie beside the project, the narrowest first."""
    sizes = {}
    for path in SHARED.glob("debd_*.npz"):
        with np.load(path) as saved:
            sizes[path.stem.removeprefix("debd_")] = int(saved["shape"][1])
    return sorted(sizes, key=lambda name: sizes[name])


def read_splits(name: str) -> dict[str, RowSource]:
    """Return the rows of each split."""
    with np.load(SHARED / f"debd_{name}.npz") as saved:
        bits = np.unpackbits(saved["X"], axis=1)[:, : saved["shape"][1]]
        parts = saved["split"]
    rows = {}
    for k, split in enumerate(SPLITS):
        own = bits[parts == k]
        cuts = range(CHUNK_ROWS, len(own), CHUNK_ROWS)
        sizes = [len(part) for part in np.split(own, cuts)]
        rows[split] = make_memory_rows(DenseData(own), sizes)
    return rows


def score(model: Model, params: object, rows: RowSource) -> float:
    """Return the mean log-likelihood per row, nats."""
    subject = EvaluatedModel(model, params, np.zeros(0, np.int64))
    scores = score_models({"": (subject, "log_likelihood")}, rows, ThreadsExecutor(2), 0).models[""]
    return float(scores.objective / scores.n_rows)


def describe(chosen: Model, tried: Sequence[Model]) -> str:
    """Name the settings that differ between the models that were tried."""
    names = [
        name for name in vars(chosen) if len({str(getattr(model, name)) for model in tried}) > 1
    ]
    return " ".join(f"{name}={getattr(chosen, name)}" for name in names) or "-"


def read_published() -> dict[str, dict[str, float]]:
    """Return the published values of each set, by model."""
    found: dict[str, dict[str, float]] = {}
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            found.setdefault(line["set"], {})[line["model"]] = float(line["nats"])
    return found


def main() -> None:
    """Print one line per set and model."""
    names, known = sys.argv[1:], list_sets()
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"{unknown[0]} is not a set in {SHARED}; choose from {', '.join(known)}.")
    published, total = read_published(), 0.0
    table = Table("set:<8", "model:<18", "settings:<36", "valid:9.3f", "test:9.3f", "CPU s:6.0f")
    for name in names or known:
        rows = read_splits(name)
        for kind, models in MODELS.items():
            start = time.process_time()
            states = [fit_model(model, rows["train"], ThreadsExecutor(2)) for model in models]
            fits = [(m, state.params) for m, state in zip(models, states, strict=True)]
            valid = [score(*fit, rows["valid"]) for fit in fits]
            best = int(np.argmax(valid))
            seconds = time.process_time() - start
            total += seconds
            test, settings = score(*fits[best], rows["test"]), describe(models[best], models)
            table.add(name, kind, settings, valid[best], test, seconds)
        for source, nats in published.get(name, {}).items():
            table.add(name, f"{source}, published", "-", "-", nats, "-")
    print(f"CPU seconds in all: {total:.0f}")


if __name__ == "__main__":
    main()
