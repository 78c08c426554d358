"""Compile the functions of all models for this machine: `python -m flows.warm`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (
    TYPE_CHECKING,
    Annotated,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import MODEL, ExecutorOptions, Option, Repeatable
from flows.cli.progress import log

if TYPE_CHECKING:
    from pipeline.data.features import FeatureKind
    from pipeline.models.base import Model

HELP = """Compile the functions of all models for this machine and store them, so that later
commands need not.

This takes about six minutes for all models. Functions for unusual data, such as hundreds of
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
_FEATURE_KINDS: tuple[tuple[FeatureKind, ...], ...] = (
    ("binary",),
    ("binary", "ordinal"),
    ("binary", "ordinal", "continuous"),
)
"""Kinds of the features of the datasets."""
_LEVELS = {"binary": ("0", "1"), "ordinal": ("0", "1", "2"), "continuous": ()}


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
            _write_dataset(Path(folder), kinds, is_complete)
            for kinds in _FEATURE_KINDS
            for is_complete in (True, False)
        ]
        for number, fit in enumerate(_list_fits(models, datasets)):
            rows = f"{' and '.join(fit.dataset.kinds)} features"
            with_weights = ["with weights"] if fit.weight else []
            print(" ".join([fit.model, *fit.settings, "of", rows, *with_weights]), flush=True)
            _use_model(fit, Path(folder) / str(number))
        _find_neighbours(datasets[:2], Path(folder))
    print(f"stored in {numba.config.CACHE_DIR}")  # type: ignore[attr-defined]


class _Dataset(NamedTuple):
    """A dataset with features of some kinds, and whether all values are observed."""

    path: str
    kinds: tuple[FeatureKind, ...]
    is_complete: bool


def _write_dataset(folder: Path, kinds: tuple[FeatureKind, ...], is_complete: bool) -> _Dataset:
    """Write random rows of a model with two components; features have all kinds in turn."""
    import numpy as np

    from storage.dataset.batches import pack_batch
    from storage.dataset.writer import create_dataset

    rng = np.random.default_rng(0)
    Z = rng.normal(size=(_N_ROWS, 2))
    y = Z @ rng.normal(size=(2, _N_FEATURES)) + rng.normal(size=(_N_ROWS, _N_FEATURES))
    observed = None if is_complete else (rng.random(y.shape) < 0.9).astype(np.uint8)
    names = [f"f{i}" for i in range(_N_FEATURES)]
    levels = dict(zip(names, cycle(_LEVELS[kind] for kind in kinds), strict=False))
    n_levels = np.array([len(own) for own in levels.values()])
    X = np.minimum((y > 0) + (y > 1), np.maximum(n_levels - 1, 0)).astype(np.uint8)
    numbers = y[:, n_levels == 0].astype(np.float32)
    if observed is not None:
        X *= observed
        numbers[observed[:, n_levels == 0] == 0] = np.nan
    batch = pack_batch(X, observed, {_WEIGHT: rng.integers(1, 4, _N_ROWS)}, numbers=numbers)
    segments = np.resize([f"s{u}" for u in range(_N_SEGMENTS)], _N_ROWS)
    path = folder / f"{'-'.join(kinds)}-{is_complete}.zarr"
    with create_dataset(path, names, feature_levels=levels, columns=[_WEIGHT]) as writer:
        writer.add(batch, segments)
    return _Dataset(str(path), kinds, is_complete)


class _Fit(NamedTuple):
    """A fit that compiles functions; rows have the weights of a column, if there is one."""

    dataset: _Dataset
    model: str
    settings: list[str]
    weight: str | None = None


def _list_fits(models: tuple[str, ...], datasets: Sequence[_Dataset]) -> Iterator[_Fit]:
    """Yield fits: each model's defaults, without and with weights, then each other choice."""
    from pipeline.models.registry import find_model_class, list_model_names
    from pipeline.models.settings import list_settings

    for name in models or list_model_names():
        model = find_model_class(name)
        hints = get_type_hints(model)
        settings = {own.name: own.default for own in list_settings(model) if own.init}
        short = ["max_iter=3"] if "max_iter" in settings else []
        own = [dataset for dataset in datasets if _has_own_functions(model, dataset.kinds)]
        for dataset in own:
            yield _Fit(dataset, name, short)
            if model.support.parts:
                yield _Fit(dataset, name, short, _WEIGHT)
        for setting, default in settings.items():
            choices = get_args(hints[setting]) if get_origin(hints[setting]) is Literal else ()
            others = [choice for choice in choices if choice != default]
            # The last kinds of features include all others; each has a complete dataset first.
            for choice, dataset in product(others, dict.fromkeys((own[0], own[-2]))):
                yield _Fit(dataset, name, [*short, f"{setting}={choice}"])


def _has_own_functions(model: type[Model], kinds: Sequence[FeatureKind]) -> bool:
    """Return whether a model takes all these kinds of features, and not as binary ones."""
    is_split = model.support.splits_levels and "ordinal" in kinds
    return {*kinds} <= {*model.support.features} and not is_split


def _use_model(fit: _Fit, folder: Path) -> None:
    """Fit a model, draw its report, compute codes and evaluate it; skip what it does not allow."""
    from flows.evaluate import run_evaluation
    from flows.evaluating.stages import EvaluateOptions, prepare_evaluation
    from flows.fitting.job import prepare_fit
    from flows.fitting.options import FitOptions
    from flows.fitting.stages import run_fit
    from flows.transform import TransformOptions, prepare_transform, run_transform
    from pipeline.errors import FitError

    dataset, output = fit.dataset.path, str(folder / "fit")
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


def _find_neighbours(datasets: Sequence[_Dataset], folder: Path) -> None:
    from flows.neighbours import NeighboursOptions, prepare_neighbours, run_neighbours

    for number, dataset in enumerate(datasets):
        output = str(folder / f"neighbours-{number}")
        run_neighbours(prepare_neighbours(NeighboursOptions(dataset.path, output, where=_SERIAL)))


if __name__ == "__main__":
    run_app(app)
