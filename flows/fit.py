"""Fit a model to a dataset: `python -m flows.fit --dataset PATH`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from flows.cli.app import ALERT, FIT_EXIT_CODES, make_app, run_app
from flows.cli.hyperparameters import format_settings_help
from flows.cli.options import Json
from flows.cli.summary import print_fit
from flows.fitting.options import FitOptions
from flows.running.flow import make_flow, run_command

HELP = "Fit a latent-variable model, and write it to a folder, called an artifact.\n"
EXAMPLES = f"""Examples:
    python -m flows.fit --dataset example:digits
    python -m flows.fit --dataset votes.zarr --model blica --components auto

{FIT_EXIT_CODES}"""
app = make_app("fit", HELP, format_settings_help(sys.argv) + EXAMPLES)


@make_flow("fit", FitOptions)
def fit(options: FitOptions) -> dict[str, Any]:
    """Fit a model to a dataset, and write an artifact."""
    return _prepare_work(options)()


def _prepare_work(options: FitOptions) -> Callable[[], dict[str, Any]]:
    """Check the options, and return the work; `--help` needs none of these imports."""
    from flows.fitting.drift import check_drift_limit
    from flows.fitting.job import prepare_fit
    from flows.fitting.stages import run_fit

    plan = prepare_fit(options)
    check_drift_limit(options.drift_limit, plan.dataset.n_features)
    return partial(run_fit, plan)


@app.default
def main(*, options: FitOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_command("fit", options, _prepare_work(options), json, print_fit)
    if summary["alert"]:
        sys.exit(ALERT)


if __name__ == "__main__":
    run_app(app)
