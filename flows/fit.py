"""Fits a model to a dataset and leaves an artifact: `python -m flows.fit --dataset PATH`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from flows.cli.app import make_app, run_app
from flows.cli.hyperparameters import format_settings_help
from flows.cli.options import Json
from flows.cli.summary import print_fit, print_json
from flows.fitting.options import FitOptions
from flows.running.flow import make_flow, run_flow

HELP = """Fit a latent-variable model to a binary dataset.

Reads the dataset, counts on a Dask cluster of its own or on one given, fits, and writes an
artifact: parameters, diagnostics and provenance. Where the dataset has a split `train`, its rows
alone are fitted; `--split all` takes all. The same dataset, options, versions and kind of
processor give the same parameters, to the last bit, wherever the work ran.
"""
EXAMPLES = """Examples:

    python -m flows.fit --dataset example:digits
    python -m flows.fit --dataset clicks.zarr --components 10 --workers 4
    python -m flows.fit --dataset votes.zarr --set estimator=arcsine --json
    python -m flows.fit --dataset votes.zarr --model blica --components auto
    python -m flows.fit --dataset clicks.zarr --cluster production --resume
    python -m flows.fit --dataset clicks.zarr --model latent-trait --warm-start

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = make_app("fit", HELP, format_settings_help(sys.argv) + EXAMPLES)


@make_flow("fit", FitOptions)
def fit(options: FitOptions) -> dict[str, Any]:
    """Fit a model to a dataset and leave an artifact."""
    return _prepare_work(options)()


def _prepare_work(options: FitOptions) -> Callable[[], dict[str, Any]]:
    """Check the options, and give the work; `--help` needs nothing of what both are made of."""
    from flows.fitting.job import prepare_fit
    from flows.fitting.stages import run_fit

    return partial(run_fit, prepare_fit(options))


@app.default
def main(*, options: FitOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("fit", options, _prepare_work(options))
    if json:
        print_json(summary)
    else:
        print_fit(summary)


if __name__ == "__main__":
    run_app(app)
