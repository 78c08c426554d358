"""Compile the functions of all models for this machine: `python -m flows.warm`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple, get_args, get_origin, get_type_hints

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import MODEL, ExecutorOptions, Option, Repeatable
from flows.cli.progress import log

HELP = """Compile the functions of all models for this machine and store them, so that later
commands need not.

This takes about five minutes for all models. Functions for unusual data, such as hundreds of
features, are still compiled when they are first needed. The environment variable NUMBA_CACHE_DIR
sets the folder.
"""
EXAMPLES = f"""Examples:

    python -m flows.warm
    python -m flows.warm --model clipped-pca --model blica

{EXIT_CODES}"""
app = make_app("warm", HELP, EXAMPLES)

_N_ROWS, _N_FEATURES, _N_SEGMENTS, _WEIGHT = 192, 8, 4, "weight"
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
        for number, fit in enumerate(_list_fits(models, datasets)):
            with_weights = ["with weights"] if fit.weight else []
            print(" ".join([fit.model, *fit.settings, *with_weights]), flush=True)
            _use_model(fit, Path(folder) / str(number))
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
    names = [f"f{i}" for i in range(_N_FEATURES)]
    with create_dataset(path, names, columns=[_WEIGHT]) as writer:
        writer.add(SourceBatch(X, observed, {_WEIGHT: rng.integers(1, 4, _N_ROWS)}), segments)
    return str(path)


class _Fit(NamedTuple):
    """A fit that compiles functions; rows have the weights of a column, if there is one."""

    dataset: str
    model: str
    settings: list[str]
    weight: str | None = None


def _list_fits(models: tuple[str, ...], datasets: list[str]) -> Iterator[_Fit]:
    """Yield fits: each model's defaults, without and with weights, then each other choice."""
    from pipeline.models.registry import find_model_class, list_model_names

    for name in models or list_model_names():
        model = find_model_class(name)
        hints, settings = get_type_hints(model), signature(model).parameters
        short = ["max_iter=3"] if "max_iter" in settings else []
        for dataset in datasets:
            yield _Fit(dataset, name, short)
            if model.weight_kinds:
                yield _Fit(dataset, name, short, _WEIGHT)
        for setting, parameter in settings.items():
            choices = get_args(hints[setting]) if get_origin(hints[setting]) is Literal else ()
            for choice in choices:
                if choice != parameter.default:
                    yield _Fit(datasets[0], name, [*short, f"{setting}={choice}"])


def _use_model(fit: _Fit, folder: Path) -> None:
    """Fit a model, draw its report, compute codes and evaluate it; skip what it does not allow."""
    from flows.evaluate import run_evaluation
    from flows.evaluating.stages import EvaluateOptions, prepare_evaluation
    from flows.fitting.job import prepare_fit
    from flows.fitting.options import FitOptions
    from flows.fitting.stages import run_fit
    from flows.transform import TransformOptions, prepare_transform, run_transform
    from pipeline.errors import FitError

    dataset, output = fit.dataset, str(folder / "fit")
    settings = tuple(fit.settings)
    options = FitOptions(
        dataset, fit.model, settings=settings, weight=fit.weight, output=output, where=_SERIAL
    )
    with suppress(FitError):  # a choice that needs other data or settings
        artifact: str = run_fit(prepare_fit(options))["artifact"]
        evaluate = EvaluateOptions(dataset, (artifact,), with_baselines=False, where=_SERIAL)
        run_evaluation(prepare_evaluation(evaluate))
        transform = TransformOptions(dataset, str(folder / "codes"), artifact, where=_SERIAL)
        run_transform(prepare_transform(transform))


def _find_neighbours(datasets: list[str], folder: Path) -> None:
    from flows.neighbours import NeighboursOptions, prepare_neighbours, run_neighbours

    for number, dataset in enumerate(datasets):
        output = str(folder / f"neighbours-{number}")
        run_neighbours(prepare_neighbours(NeighboursOptions(dataset, output, where=_SERIAL)))


if __name__ == "__main__":
    run_app(app)
