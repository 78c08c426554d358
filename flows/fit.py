"""Fit a model to a dataset: `python -m flows.fit --dataset PATH`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.app import ALERT, FIT_EXIT_CODES, make_app, run_app
from flows.cli.errors import format_warnings
from flows.cli.hyperparameters import format_settings_help
from flows.cli.options import Json
from flows.cli.summary import print_fit, print_scales
from flows.fitting.options import FitOptions
from flows.running.flow import make_flow, run_command

if TYPE_CHECKING:
    from flows.data.parameter_tables import Scale
    from flows.exporting.scales import ScaleScores
    from flows.fitting.scales import ScalePlan

HELP = "Fit a latent-variable model, and write it to a folder, called an artifact.\n"
app = make_app("fit", HELP, format_settings_help(sys.argv) + FIT_EXIT_CODES)


@make_flow("fit", FitOptions)
def fit(options: FitOptions) -> dict[str, Any]:
    """Fit a model to a dataset, and write an artifact."""
    return _prepare_work(options)()


def _prepare_work(options: FitOptions) -> Callable[[], dict[str, Any]]:
    """Check the options, and return the work; `--help` needs none of these imports."""
    if options.scales is not None:
        from flows.fitting.scales import prepare_scales

        return partial(_run_scales, options, *prepare_scales(options))
    from flows.fitting.drift import check_drift_limit
    from flows.fitting.job import prepare_fit
    from flows.fitting.stages import run_fit

    plan = prepare_fit(options)
    check_drift_limit(options.drift_limit, plan.dataset.n_features)
    return partial(run_fit, plan)


def _run_scales(options: FitOptions, output: Path, plans: Sequence[ScalePlan]) -> dict[str, Any]:
    """Fit each scale, and write the tables and the page of all."""
    from flows.exporting.scales import ScaleScores
    from flows.fitting.scales import find_finished_fit, name_scale
    from flows.fitting.stages import run_fit
    from flows.transform import TransformOptions, prepare_transform, run_transform
    from storage.artifacts.artifacts import load_artifact
    from storage.codes.codes import open_codes

    start, alerts, scores = time.perf_counter(), [], {}
    for scale, plan in plans:
        with name_scale(scale.name):
            artifact = find_finished_fit(plan) if options.resume else None
            if artifact is None:
                summary = run_fit(plan)
                artifact = summary["artifact"]
                alerts += [f"{scale.name}: {summary['alert']}"] * bool(summary["alert"])
            transform_options = TransformOptions(
                dataset=options.dataset,
                output=str(output / scale.name / "codes"),
                artifact=artifact,
                seed=options.seed,
                where=options.where,
                overwrite=True,
            )
            job = prepare_transform(transform_options)
            run_transform(job)
        codes = open_codes(job.output)
        scores[scale.name] = ScaleScores(load_artifact(artifact), codes, job.dataset)
    return {
        "scales": {scale.name: _summarize_scale(scale, scores[scale.name]) for scale, _ in plans},
        "alert": "; ".join(alerts) or None,
        **_write_combined(output, scores, options.report),
        "seconds": round(time.perf_counter() - start, 3),
    }


def _summarize_scale(scale: Scale, scores: ScaleScores) -> dict[str, Any]:
    manifest = scores.artifact.manifest
    return {
        "artifact": str(scores.artifact.path),
        "items": list(scale.items),
        "reversed": list(scale.reversed_items),
        **{name: manifest[name] for name in ("n_samples", "iterations", "converged")},
        "warnings": format_warnings(manifest["warnings"]),
    }


def _write_combined(
    output: Path, scores: Mapping[str, ScaleScores], has_report: bool
) -> dict[str, str | None]:
    """Write the tables and the page to a new folder, and move that to its place."""
    from flows.data.datasets import COMBINED
    from flows.exporting.files import write_table
    from flows.exporting.scales import make_scale_item_table, make_score_table
    from storage.stores.locations import delete_tree, replace_folder

    target, new = output / COMBINED, output / f".{COMBINED}.{os.getpid()}"
    delete_tree(new)
    try:
        write_table(make_score_table(scores), new / "scores.csv", overwrite=False)
        write_table(make_scale_item_table(scores), new / "items.csv", overwrite=False)
        if has_report:
            from flows.report.scales import write_scales_page

            write_scales_page(scores, new / "report.html")
        replace_folder(new, target)
    finally:
        delete_tree(new)
    names = {"scores": "scores.csv", "items": "items.csv", "report": "report.html"}
    return {name: str(target / file) for name, file in names.items() if (target / file).exists()}


@app.default
def main(*, options: FitOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    show = print_fit if options.scales is None else print_scales
    summary = run_command("fit", options, _prepare_work(options), json, show)
    if summary["alert"]:
        sys.exit(ALERT)


if __name__ == "__main__":
    run_app(app)
