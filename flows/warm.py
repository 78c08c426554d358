"""Compile the functions of all models for this machine: `python -m flows.warm`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import MODEL, ExecutorOptions, Option, Repeatable
from flows.cli.progress import log

HELP = """Compile the functions of all models for this machine and store them, so that later
commands need not.

This takes about four minutes for all models. Functions for unusual data, such as hundreds of
features, are still compiled when they are first needed. The environment variable NUMBA_CACHE_DIR
sets the folder.
"""
EXAMPLES = f"""Examples:

    python -m flows.warm
    python -m flows.warm --model clipped-pca --model blica

{EXIT_CODES}"""
app = make_app("warm", HELP, EXAMPLES)

_N_ROWS, _N_FEATURES, _N_SEGMENTS = 192, 8, 4
_SERIAL = ExecutorOptions(name="serial")


@app.default
def main(
    *,
    models: Annotated[
        Repeatable,
        Option(
            name="--model",
            group=MODEL,
            metavar="NAME",
            help="Name of a model to compile for. Repeatable. [default: all]",
        ),
    ] = (),
) -> None:
    """Compile by using models on small random data, and print where the functions are."""
    import numba

    log.setLevel(logging.WARNING)
    with TemporaryDirectory() as folder:
        datasets = [
            _write_dataset(Path(folder) / "complete.zarr", is_complete=True),
            _write_dataset(Path(folder) / "missing.zarr", is_complete=False),
        ]
        for number, (dataset, model, settings) in enumerate(_list_fits(models, datasets)):
            print(" ".join([model, *settings]), flush=True)
            _use_model(dataset, model, settings, Path(folder) / str(number))
        _find_neighbours(datasets, Path(folder))
    print(f"stored in {numba.config.CACHE_DIR}")  # type: ignore[attr-defined]


def _write_dataset(path: Path, *, is_complete: bool) -> str:
    """Write random rows of a model with two components."""
    import numpy as np

    from storage.dataset.writer import create_dataset
    from storage.sources.base import SourceBatch

    rng = np.random.default_rng(0)
    Z = rng.normal(size=(_N_ROWS, 2))
    noise = rng.normal(size=(_N_ROWS, _N_FEATURES))
    X = (Z @ rng.normal(size=(2, _N_FEATURES)) + noise > 0).astype(np.uint8)
    observed = None if is_complete else (rng.random(X.shape) < 0.9).astype(np.uint8)
    X = X if observed is None else X & observed
    segments = np.resize([f"s{u}" for u in range(_N_SEGMENTS)], _N_ROWS)
    with create_dataset(path, [f"f{i}" for i in range(_N_FEATURES)]) as writer:
        writer.add(SourceBatch(X, observed, {}), segments)
    return str(path)


def _list_fits(
    models: tuple[str, ...], datasets: list[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield datasets, models and settings: each model's defaults, then each other choice."""
    from pipeline.models.registry import find_model_class, list_model_names

    for name in models or list_model_names():
        model = find_model_class(name)
        hints, settings = get_type_hints(model), signature(model).parameters
        short = ["max_iter=3"] if "max_iter" in settings else []
        for dataset in datasets:
            yield dataset, name, short
        for setting, parameter in settings.items():
            choices = get_args(hints[setting]) if get_origin(hints[setting]) is Literal else ()
            for choice in choices:
                if choice != parameter.default:
                    yield datasets[0], name, [*short, f"{setting}={choice}"]


def _use_model(dataset: str, model: str, settings: list[str], folder: Path) -> None:
    """Fit a model, draw its report, compute codes and evaluate it; skip what it does not allow."""
    from flows.evaluate import run_evaluation
    from flows.evaluating.stages import EvaluateOptions, prepare_evaluation
    from flows.fitting.job import prepare_fit
    from flows.fitting.options import FitOptions
    from flows.fitting.stages import run_fit
    from flows.transform import TransformOptions, prepare_transform, run_transform
    from pipeline.errors import FitError

    output = str(folder / "fit")
    options = FitOptions(dataset, model, settings=tuple(settings), output=output, where=_SERIAL)
    with suppress(FitError):  # a choice that needs other data or settings
        artifact: str = run_fit(prepare_fit(options))["artifact"]
        evaluate = EvaluateOptions(dataset, (artifact,), with_baselines=False, where=_SERIAL)
        run_evaluation(prepare_evaluation(evaluate))
        transform = TransformOptions(dataset, artifact, str(folder / "codes"), where=_SERIAL)
        run_transform(prepare_transform(transform))


def _find_neighbours(datasets: list[str], folder: Path) -> None:
    from flows.neighbours import NeighboursOptions, prepare_neighbours, run_neighbours

    for number, dataset in enumerate(datasets):
        output = str(folder / f"neighbours-{number}")
        run_neighbours(prepare_neighbours(NeighboursOptions(dataset, output, where=_SERIAL)))


if __name__ == "__main__":
    run_app(app)
