"""Says how well fitted models describe rows: `python -m flows.evaluate --dataset PATH ...`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from prefect import flow

from flows.cli.comparison_tables import print_evaluation
from flows.cli.options import (
    HERE,
    DatasetName,
    Json,
    Seed,
    Where,
    command,
    run,
)
from flows.cli.progress import reporting
from flows.cli.splits import named_split, split_to_fit
from flows.cli.summary import print_json
from flows.data.datasets import dataset_path, dataset_rows
from flows.data.fitted import check_features, load_fitted
from flows.running.clusters import check_executor, memory_for_rows, opened_executor
from flows.running.memory import check_memory
from flows.running.server import with_server
from flows.running.stages import Stages
from pipeline.blocks import Rows
from pipeline.errors import FitError
from pipeline.executors.base import Executor, one_blas_thread
from pipeline.fit import check_seed, collect, fit, start
from pipeline.known_segments import segment_indices, unknown_segments
from pipeline.progress import Progress
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.using.calibration import (
    SAMPLE_ROWS,
    Comparison,
    compare_features,
    compare_pairs,
    implied_pairs,
    observed_pairs,
)
from pipeline.using.evaluate import (
    Subject,
    baselines,
    likelihood_summary,
    measure_of,
    reconstruction_summary,
    score_rows,
)
from storage.dataset import BinaryDataset, open_dataset
from storage.kept_chunks import forget_chunks
from storage.locations import place

HELP = """Say how well fitted models describe the rows of a dataset.

Give rows that were not fitted: `--split test`. For each artifact: the log-likelihood of a row,
exact or estimated, or a bound on it, whichever the model offers; how well bits are told from the
codes of their own row; and the shares of ones and of joint ones, in the data and in rows drawn from
the model. All come in one table, the best first, beside two simple models fitted to the split
`train`, or to all rows where there is none.
"""
EXAMPLES = """Examples:

    python -m flows.evaluate --dataset votes.zarr --artifact runs/votes --split test
    python -m flows.evaluate --dataset votes.zarr --artifact runs/a --artifact runs/b --json

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = command("evaluate", HELP, EXAMPLES)

NO_SEGMENTS = np.zeros(0, np.int64)
_LARGEST = 5
_MATRICES = 32  # of n_features² counts and shares that are held at once


@dataclass(frozen=True)
class Named:
    """A fitted model to evaluate, and what to say of it."""

    name: str
    artifact: str | None
    subject: Subject
    n_components: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """What all stages share."""

    dataset: BinaryDataset
    split: str | None
    seed: int
    executor: Executor
    progress: Progress

    def rows(self, split: str | None) -> Rows:
        """Give the rows of a split; they stay in memory, as every model goes over them."""
        return dataset_rows(self.dataset, split, memory_for_rows(self.executor))


def _loaded(path: str, dataset: BinaryDataset) -> Named:
    """Load an artifact for a dataset: features must be its own, segments are found by name."""
    fitted = load_fitted(place(path))
    check_features(fitted, dataset)
    known, names = fitted.segments, dataset.segment_names
    segments = segment_indices(known, names) if known else NO_SEGMENTS
    return Named(
        path,
        str(fitted.artifact.path.resolve()),
        Subject(fitted.model, fitted.params, segments),
        fitted.artifact.manifest["n_components"],
        tuple(unknown_segments(known, names)),
    )


def _baselines(job: Job) -> tuple[list[Named], list[str]]:
    """Fit the simple models; where that cannot be done, say why."""
    rows = job.rows(split_to_fit(job.dataset, None))
    label = FeatureCounts.label
    first = collect(FeatureCounts.of_block, rows, job.executor, label, progress=job.progress)
    fitted, warnings = [], []
    for name, model in baselines(first.n_samples).items():
        try:
            state = start(model, first, job.seed)
            state = fit(model, rows, job.executor, job.seed, state=state, progress=job.progress)
        except FitError as error:
            text = error.notice.render(job.dataset.feature_names, job.dataset.segment_names)
            warnings.append(f"{name}: {text}")
        else:
            subject = Subject(model, state.params, NO_SEGMENTS)
            fitted.append(Named(name, None, subject, state.diagnostics["n_components"]))
    return fitted, warnings


def _evaluated(job: Job, named: Named, observed: PairCounts) -> dict[str, Any]:
    """Evaluate one model."""
    model, rng = named.subject.model, np.random.default_rng(job.seed)
    with one_blas_thread():
        params = model.prepare(named.subject.params, rng, job.executor.map)
    subject = replace(named.subject, params=params)
    try:
        measure = measure_of(subject)
        sums = score_rows(
            subject, measure.name, job.rows(job.split), job.executor, job.seed, job.progress
        )
    except FitError as error:
        notice = error.notice
        text = f"{named.name}: {notice.text}"
        raise FitError(text, notice.features, notice.segments) from error
    implied = implied_pairs(
        subject, sums.values["segment_rows"], job.dataset.n_features, job.executor, job.seed
    )
    names = job.dataset.feature_names
    return {
        "name": named.name,
        "artifact": named.artifact,
        "model": model.name,
        "n_components": named.n_components,
        **likelihood_summary(measure, sums),
        **reconstruction_summary(sums),
        "marginals": _described(compare_features(observed, implied), names),
        "pairs": _described(compare_pairs(observed, implied), names),
        "warnings": list(named.warnings),
    }


def _described(shares: Comparison, names: Sequence[str]) -> dict[str, Any]:
    """Describe how shares in the data and in the model differ, the largest differences by name."""
    largest = [
        {
            "features": [names[i] for i in shares.features[at]],
            "observed": float(shares.observed[at]),
            "implied": float(shares.implied[at]),
            "z": float(shares.z[at]),
        }
        for at in shares.largest(_LARGEST)
    ]
    return {
        "number": len(shares.observed),
        "rmse": shares.rmse,
        "rmse_by_chance": shares.rmse_by_chance,
        "largest": largest,
        "calibration": shares.binned(),
    }


@flow(name="evaluate", validate_parameters=False)
def evaluate(
    dataset: str,
    artifacts: Sequence[str],
    split: str | None = None,
    with_baselines: bool = True,
    seed: int = 0,
    where: Where = HERE,
) -> dict[str, Any]:
    """Run the stages; `python -m flows.evaluate --help` explains the parameters."""
    begun = time.perf_counter()
    opened, loaded = checked(dataset, artifacts, split, seed)
    split = named_split(opened, split)
    with opened_executor(**where) as ready, reporting() as progress:
        stages = Stages(ready, opened.feature_names, opened.segment_names)
        job = Job(opened, split, seed, ready, progress)
        try:
            observed = stages.run("pair counts", partial(_observed, job))
            simple, warnings = [], []
            if with_baselines:
                simple, warnings = stages.run("baselines", partial(_baselines, job))
            models = [
                stages.run(f"evaluate {named.name}", partial(_evaluated, job, named, observed))
                for named in (*loaded, *simple)
            ]
        finally:
            forget_chunks()
    return {
        "dataset": str(opened.path),
        "split": split,
        "n_samples": observed.n_samples,
        "n_features": opened.n_features,
        "n_drawn": SAMPLE_ROWS,
        "baselines_split": split_to_fit(opened, None),
        "models": models,
        "warnings": warnings,
        "seconds": round(time.perf_counter() - begun, 3),
        "stages": stages.seconds,
    }


def _observed(job: Job) -> PairCounts:
    return observed_pairs(job.rows(job.split), job.executor, job.progress)


def checked(
    dataset: str, artifacts: Sequence[str], split: str | None, seed: int
) -> tuple[BinaryDataset, list[Named]]:
    """Refuse what can be refused at once: other features, no such split, too little memory."""
    check_seed(seed)
    opened = open_dataset(dataset_path(dataset))
    named_split(opened, split)
    loaded = [_loaded(path, opened) for path in artifacts]
    check_memory(8 * _MATRICES * opened.n_features**2, opened.n_features)
    return opened, loaded


@app.default
def main(
    *,
    dataset: DatasetName,
    artifact: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", help="Artifact of a fit, or a folder of runs for the latest; several."
        ),
    ],
    split: Annotated[
        str | None,
        Parameter(
            help="Evaluate the rows whose `split` column has this value, or all rows. "
            "[default: all]"
        ),
    ] = None,
    baselines: Annotated[
        bool, Parameter(help="Compare with simple models, fitted for the purpose.")
    ] = True,
    seed: Seed = 0,
    where: Where = HERE,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    check_executor(**where)
    checked(dataset, artifact, split, seed)
    summary = with_server(lambda: evaluate(dataset, artifact, split, baselines, seed, where))
    if json:
        print_json(summary)
    else:
        print_evaluation(summary)


if __name__ == "__main__":
    run(app)
