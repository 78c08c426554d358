"""Says how well fitted models describe rows: `python -m flows.evaluate --dataset PATH ...`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import Json, command, run
from flows.cli.progress import reporting
from flows.cli.splits import split_to_fit, split_to_judge
from flows.cli.summary import print_json
from flows.data.datasets import check_label, dataset_rows, open_named
from flows.evaluating.codes import DrawnRows, Source, draw, judged_codes
from flows.evaluating.comparison_tables import print_evaluation
from flows.evaluating.dif import Groups, groups_of, item_bias
from flows.evaluating.folds import Dealt, Refit, check_folds, fold_steps
from flows.evaluating.named import NO_SEGMENTS, Named, load_named
from flows.evaluating.nested import nested_tests
from flows.evaluating.options import EvaluateOptions
from flows.evaluating.wording import described_shares, lacks, left_out
from flows.fitting.training import Training, whole_training
from flows.running.executors import executor_to_open, memory_for_rows
from flows.running.flow import flow_of, run_flow
from flows.running.memory import check_memory, memory_limit
from flows.running.stages import Stages
from pipeline.data.blocks import Rows
from pipeline.errors import FitError
from pipeline.evaluation.calibration import (
    MOST_JUDGED,
    SAMPLE_ROWS,
    compare_features,
    compare_pairs,
    implied_pairs,
    judged_features,
    observed_pairs,
)
from pipeline.evaluation.evaluate import (
    Subject,
    baselines,
    likelihood_summary,
    measure_of,
    reconstruction_summary,
    score_rows,
)
from pipeline.evaluation.folds import Fold
from pipeline.evaluation.prediction import prediction_summary
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed, fit, start
from pipeline.models.capabilities import Samples
from pipeline.passes.collect import collect
from pipeline.statistics.counts import FeatureCounts, PairCounts
from storage.dataset.dataset import BinaryDataset
from storage.dataset.kept_chunks import forget_chunks

HELP = """Say how well fitted models describe the rows of a dataset.

Give rows that were not fitted: those of the split `test` are taken where there is one, unless
`--split` names others. For each artifact: the log-likelihood of a row, exact or estimated, or a
bound on it, whichever the model offers; how well bits are told from the codes of their own row; how
well labels are predicted, by a model that does; and the shares of ones and of joint ones, in the
data and in rows drawn from the model. All come in one table, the best first, beside two simple
models. These are fitted to the rows that the first artifact was fitted to; where those are not
there any more, to the split `train` of the dataset, or to all its rows. What knows the rows that it
is judged by is called in-sample.

A second table says how well codes keep neighbourhoods, by the 5 nearest of up to 2,000 rows that
are drawn. Trustworthiness is 1 where no row that is a neighbour in the codes is not one in the
bits, and 0.5 by chance; continuity is the same with codes and bits exchanged. `--label` adds how
often a row's label is told by the 5 rows with the nearest codes, of up to 20,000 that were fitted,
and how often by the 5 with the nearest bits, which is the value to beat.

`--dif COLUMN` tests by Mantel and Haenszel which items favour one of the two groups that the column
names, among rows of equal sum scores; it depends on no model. With `--dif-test likelihood-ratio` a
one-trait model in which an item has its own slope and offset in each group is fitted for every
item, and held against the one in which all are shared: some 30 passes an item.

`--likelihood-ratio` tests nested latent-trait fits to the same rows, such as equal slopes against
slopes of their own, or one trait against two, by twice the gain in log-likelihood of the fit, which
is χ² where the smaller model is true.

`--folds 5` cross-validates instead: it deals the rows that `flows.fit` would take to five folds,
refits each model without one fold after the other, with the settings of its artifact, and judges
every row by the fit that it had no part in.
"""
EXAMPLES = """Examples:

    python -m flows.evaluate --dataset votes.zarr --artifact runs/votes
    python -m flows.evaluate --dataset votes.zarr --artifact runs/votes --split all --label party
    python -m flows.evaluate --dataset votes.zarr --artifact runs/a --artifact runs/b --folds 5

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = command("evaluate", HELP, EXAMPLES)

_MATRICES = 32  # of n_features² counts and shares that are held at once


@dataclass(frozen=True)
class Plan:
    """An evaluation that can be done: of which models, on which rows."""

    options: EvaluateOptions
    dataset: BinaryDataset
    split: str | None
    loaded: Sequence[Named]
    training: Training
    tests: Sequence[Mapping[str, Any]]
    groups: Groups | None
    open_executor: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class Job(Plan):
    """An evaluation that is being done: what all stages share."""

    executor: Executor
    progress: Progress

    @property
    def judged(self) -> NDArray[np.intp]:
        """Features whose shares of ones and of joint ones are compared."""
        return judged_features(self.dataset.n_features, self.options.seed)

    def known_to(self, named: Named) -> Training:
        """Give the rows that a model was fitted to, or those of simple models in their place."""
        return named.training or self.training

    def rows(self, columns: tuple[str, ...] = ()) -> Rows:
        """Give the rows to judge by; they stay in memory, as every model goes over them."""
        memory = memory_for_rows(self.executor)
        return dataset_rows(self.dataset, self.split, memory, columns=columns)


def _baselines(job: Job) -> tuple[list[Named], list[str]]:
    """Fit the simple models; where that cannot be done, say why."""
    training, seed = job.training, job.options.seed
    rows, label = training.rows(memory_for_rows(job.executor)), FeatureCounts.label
    first = collect(FeatureCounts.of_block, rows, job.executor, label, progress=job.progress)
    fitted, warnings = [], []
    for name, model in baselines(first.n_samples).items():
        try:
            state = start(model, first, seed)
            state = fit(model, rows, job.executor, seed, state=state, progress=job.progress)
        except FitError as error:
            text = error.notice.render(job.dataset.feature_names, job.dataset.segment_names)
            warnings.append(f"{name}: {text}")
        else:
            subject = Subject(model, state.params, NO_SEGMENTS)
            found = Named(name, None, subject, state.diagnostics["n_components"], training)
            fitted.append(found)
    return fitted, warnings


def _drawn(job: Job) -> DrawnRows:
    """Draw the rows to judge codes by."""
    options = job.options
    source = Source(job.dataset, job.split, options.label, job.executor, options.seed, job.progress)
    return draw(source, job.rows(), [job.training, *map(job.known_to, job.loaded)])


def _evaluated(job: Job, named: Named, observed: PairCounts, drawn: DrawnRows) -> dict[str, Any]:
    """Evaluate one model."""
    subject, model = named.subject, named.subject.model
    try:
        measure = measure_of(subject, job.dataset.n_features)
        rows = job.rows(subject.labels.columns if subject.labels else ())
        sums = score_rows(subject, measure.name, rows, job.executor, job.options.seed, job.progress)
        predicted = prediction_summary(subject.labels, sums.values)
        codes = judged_codes(drawn, subject, named.segments, job.known_to(named))
    except FitError as error:
        notice = error.notice
        text = f"{named.name}: {notice.text}"
        raise FitError(text, notice.features, notice.segments) from error
    return {
        "name": named.name,
        "artifact": named.artifact,
        "model": model.name,
        "n_components": named.n_components,
        "rows_fitted": _rows_fitted(job, named),
        **likelihood_summary(measure, sums),
        **reconstruction_summary(sums),
        **predicted,
        **codes,
        **_calibration(job, subject, sums.values["segment_rows"], observed),
        "warnings": [
            *named.warnings,
            *left_out(predicted),
            *lacks(model),
            *(_doubts(job, named, codes) if named.artifact else ()),
        ],
    }


def _doubts(job: Job, named: Named, codes: Mapping[str, Any]) -> list[str]:
    """Say where codes are not compared, or not with those of the rows that were fitted."""
    if "neighbourhoods" not in codes:
        return ["all codes are the same, or rows are fewer than 11, so neighbours are left out"]
    if named.training is None and job.options.label is not None:
        rows = job.training.dataset.path
        return [f"the rows that were fitted are not there any more, so neighbours are of {rows}"]
    return []


def _rows_fitted(job: Job, named: Named) -> str:
    """Tell how many of the rows were fitted: all, some, none, or unknown."""
    return named.training.among(job.dataset, job.split) if named.training else "unknown"


def _calibration(
    job: Job, subject: Subject, segment_rows: NDArray[np.int64], observed: PairCounts
) -> dict[str, Any]:
    """Compare shares in the data and in rows drawn from the model, if it draws any."""
    if not isinstance(subject.model, Samples):
        return {}
    n_features, seed = job.dataset.n_features, job.options.seed
    implied = implied_pairs(subject, segment_rows, n_features, job.judged, job.executor, seed)
    names = [job.dataset.feature_names[i] for i in job.judged]
    return {
        "marginals": described_shares(compare_features(observed, implied), names),
        "pairs": described_shares(compare_pairs(observed, implied), names),
    }


def check(options: EvaluateOptions) -> Plan:
    """Refuse what can be refused at once: other features, no such split, too little memory."""
    open_executor = executor_to_open(**options.where)
    check_seed(options.seed)
    dataset = open_named(options.dataset)
    choose = split_to_judge if options.folds is None else split_to_fit
    split = choose(dataset, options.split)
    check_label(dataset, options.label)
    loaded = [load_named(path, dataset) for path in options.artifacts]
    if options.folds is not None:
        check_folds(options.folds, options.label, [named.subject.model for named in loaded])
    need = 8 * _MATRICES * min(dataset.n_features, MOST_JUDGED) ** 2
    check_memory(need, dataset.n_features, memory_limit())
    own = whole_training(dataset, split_to_fit(dataset, None))
    training = next((named.training for named in loaded[:1] if named.training), own)
    for known in (training, *(named.training for named in loaded if named.training)):
        check_label(known.dataset, options.label)
    tests = nested_tests(loaded) if options.likelihood_ratio else ()
    groups = groups_of(dataset, options.dif, options.dif_test)
    return Plan(options, dataset, split, loaded, training, tests, groups, open_executor)


@flow_of("evaluate", EvaluateOptions)
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Say how well fitted models describe the rows of a dataset."""
    return run_evaluate(check(options))


def run_evaluate(plan: Plan) -> dict[str, Any]:
    """Run the stages of an evaluation that was checked."""
    begun, dataset = time.perf_counter(), plan.dataset
    with plan.open_executor() as ready, reporting() as progress:
        stages = Stages(ready, dataset.feature_names, dataset.segment_names)
        job = Job(**vars(plan), executor=ready, progress=progress)
        steps = _steps if plan.options.folds is None else _steps_of_folds
        try:
            found = steps(job, stages)
            bias = stages.run("item bias", partial(_item_bias, job))
        finally:
            forget_chunks()
    return {
        "dataset": str(dataset.path),
        "split": plan.split,
        "folds": plan.options.folds,
        "n_features": dataset.n_features,
        **found,
        "likelihood_ratio_tests": list(plan.tests),
        "item_bias": bias,
        "seconds": round(time.perf_counter() - begun, 3),
        "stages": stages.seconds,
    }


def _item_bias(job: Job) -> dict[str, Any] | None:
    """Test which items favour a group, where one was asked for."""
    if (groups := job.groups) is None:
        return None
    rows, names = job.rows((groups.column,)), job.dataset.feature_names
    return item_bias(groups, rows, names, job.executor, job.progress)


def _steps(job: Job, stages: Stages) -> dict[str, Any]:
    """Evaluate the models as they were fitted."""
    drawn = stages.run("draw rows", partial(_drawn, job))
    observed = stages.run("pair counts", partial(_observed, job))
    simple, warnings = [], []
    if job.options.with_baselines:
        simple, warnings = stages.run("baselines", partial(_baselines, job))
    models = [
        stages.run(f"evaluate {named.name}", partial(_evaluated, job, named, observed, drawn))
        for named in (*job.loaded, *simple)
    ]
    return {
        "n_samples": observed.n_samples,
        "n_drawn": SAMPLE_ROWS,
        "n_features_judged": len(job.judged),
        "baselines": _described_baselines(job),
        "models": models,
        "warnings": warnings,
    }


def _steps_of_folds(job: Job, stages: Stages) -> dict[str, Any]:
    """Evaluate their settings, by fits to other rows than those that are judged."""
    n_folds, seed = job.options.folds or 0, job.options.seed
    folds = [Fold(index, n_folds, seed) for index in range(n_folds)]
    dealt = Dealt(job.dataset, job.rows(), folds, job.executor, seed, job.progress)
    refits = [Refit(n.name, n.subject.model, n.seed, n.artifact) for n in job.loaded]
    return fold_steps(refits, dealt, job.options.with_baselines, stages)


def _described_baselines(plan: Plan) -> dict[str, Any]:
    """Describe the rows that the simple models were fitted to."""
    training = plan.training
    return {
        "dataset": str(training.dataset.path),
        "split": training.split,
        "leading_chunks": training.leading_chunks,
        "as_artifact": any(named.training is training for named in plan.loaded),
    }


def _observed(job: Job) -> PairCounts:
    return observed_pairs(job.rows(), job.judged, job.executor, job.progress)


@app.default
def main(*, options: EvaluateOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("evaluate", options, partial(run_evaluate, check(options)))
    if json:
        print_json(summary)
    else:
        print_evaluation(summary)


if __name__ == "__main__":
    run(app)
