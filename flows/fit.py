"""Fits a model to a dataset and leaves an artifact: `python -m flows.fit --dataset PATH`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

from cyclopts import Parameter
from prefect import flow

from flows.cli.hyperparameters import build_model, settings_help
from flows.cli.options import HERE, DatasetName, Json, Resume, Seed, Switch, Where, command, run
from flows.cli.progress import reporting
from flows.cli.splits import split_to_fit
from flows.cli.summary import print_json, print_table
from flows.data.datasets import dataset_path, true_mixing
from flows.fitting.job import Job
from flows.fitting.provenance import fingerprint, provenance
from flows.fitting.stages import run_stages
from flows.fitting.warm_start import warm_start as find_start
from flows.running.clusters import check_executor, opened_executor
from flows.running.server import check_schedule, with_server
from flows.running.stages import Stages
from pipeline.errors import FitError
from pipeline.fit import check_seed
from pipeline.models.base import Model
from pipeline.numerics.metrics import mean_cosine_similarity
from storage.artifacts import load_artifact
from storage.dataset import BinaryDataset, open_dataset
from storage.kept_chunks import forget_chunks
from storage.locations import Place, place
from storage.runs import RunFolder

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
app = command("fit", HELP, settings_help() + EXAMPLES)


@flow(name="fit", validate_parameters=False)
def fit(
    dataset: str,
    model: str = "clipped-pca",
    components: str | None = None,
    settings: Sequence[str] = (),
    split: str | None = None,
    output: str | None = None,
    seed: int = 0,
    where: Where = HERE,
    resume: bool = False,
    truth: bool = False,
    report: bool = True,
    warm_start: bool = False,
    skip_corrupt: bool = False,
) -> dict[str, Any]:
    """Run the stages; `python -m flows.fit --help` explains the parameters."""
    check_schedule()
    begun = time.perf_counter()
    built, opened = prepare(dataset, model, components, settings, split, seed, truth)
    runs, before = _runs(opened, output), None
    if warm_start:
        built, before = find_start(built, components, opened, runs)
    split = split_to_fit(opened, split)
    described = provenance(built, opened, split, seed, before) | {"skip_corrupt": skip_corrupt}
    folder = RunFolder(runs, built.name, fingerprint(described))
    with (
        opened_executor(**where) as ready,
        folder.working(resume),
        reporting() as progress,
    ):
        job = Job(built, opened, split, seed, before, folder, ready, progress, skip_corrupt)
        stages = Stages(ready, opened.feature_names, opened.segment_names)
        try:
            summary = run_stages(job, stages, report)
        except FitError:
            if not resume and not folder.has_states():
                folder.close_work()  # refused before the first pass was done: nothing is lost
            raise
        finally:
            forget_chunks()
        folder.close_work()
    if truth:
        fitted = load_artifact(summary["artifact"])
        summary["mcs"] = mean_cosine_similarity(fitted["mixing"], true_mixing(opened))
    return {**summary, "seconds": round(time.perf_counter() - begun, 3), "stages": stages.seconds}


def prepare(
    dataset: str,
    model: str,
    components: str | None,
    settings: Sequence[str],
    split: str | None,
    seed: int,
    truth: bool,
) -> tuple[Model, BinaryDataset]:
    """Refuse what can be refused at once: options, the dataset's manifest, its split and truth."""
    built = build_model(model, components, settings)
    check_seed(seed)
    opened = open_dataset(dataset_path(dataset))
    split_to_fit(opened, split)
    if truth:
        true_mixing(opened)
        if all(param.name != "mixing" for param in fields(built.params)):
            raise FitError(
                f"--truth: Expected a model with a mixing matrix, got {model}. Leave out --truth."
            )
    return built, opened


def _runs(dataset: BinaryDataset, output: str | None) -> Place:
    return place(output) if output else place("runs") / dataset.path.resolve().stem


@app.default
def main(
    *,
    dataset: DatasetName,
    model: Annotated[str, Parameter(help="Name of the model.")] = "clipped-pca",
    components: Annotated[
        str | None, Parameter(help="Number of latent components, or auto. [default: the model's]")
    ] = None,
    setting: Annotated[
        tuple[str, ...],
        Parameter(
            name="--set",
            negative="",
            show_default=False,
            help="NAME=VALUE, as listed below.",
        ),
    ] = (),
    split: Annotated[
        str | None,
        Parameter(
            help="Fit the rows whose `split` column has this value, or all rows. "
            "[default: train where there is one, else all]"
        ),
    ] = None,
    output: Annotated[str | None, Parameter(help="Folder of runs. [default: runs/DATASET]")] = None,
    seed: Seed = 0,
    where: Where = HERE,
    resume: Resume = False,
    truth: Annotated[
        bool,
        Switch,
        Parameter(help="Compare the mixing with the one that the dataset was made with."),
    ] = False,
    report: Annotated[
        bool, Parameter(negative="--no-report", help="Draw a report into the artifact.")
    ] = True,
    warm_start: Annotated[
        bool,
        Switch,
        Parameter(help="Begin at the latest fit in the folder of runs; for models that iterate."),
    ] = False,
    skip_corrupt: Annotated[
        bool,
        Switch,
        Parameter(help="Leave out damaged chunks, with a warning; reads all of them first."),
    ] = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    parameters = {
        "dataset": dataset,
        "model": model,
        "components": components,
        "settings": setting,
        "split": split,
        "output": output,
        "seed": seed,
        "where": where,
        "resume": resume,
        "truth": truth,
        "report": report,
        "warm_start": warm_start,
        "skip_corrupt": skip_corrupt,
    }
    check_executor(**where)
    built, opened = prepare(dataset, model, components, setting, split, seed, truth)
    if warm_start:
        find_start(built, components, opened, _runs(opened, output))
    summary = with_server(lambda: fit(**parameters))
    if json:
        print_json(summary)
    else:
        print_table(summary)


if __name__ == "__main__":
    run(app)
