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

from flows.cli.errors import format_error
from flows.cli.options import Json, make_app, run_app
from flows.cli.progress import report_progress
from flows.cli.splits import resolve_evaluation_split, resolve_fit_split
from flows.cli.summary import print_json
from flows.data.datasets import check_label, make_row_source, open_dataset_or_example
from flows.evaluating.codes import (
    EvaluationSample,
    SampleSource,
    draw_evaluation_sample,
    evaluate_codes,
)
from flows.evaluating.comparison_tables import print_evaluation
from flows.evaluating.dif import DifGroups, compute_item_bias, find_dif_groups
from flows.evaluating.folds import CrossValidationRows, ModelToRefit, check_folds, cross_validate
from flows.evaluating.named import NO_SEGMENTS, ComparedModel, load_compared_model
from flows.evaluating.nested import run_likelihood_ratio_tests
from flows.evaluating.options import EvaluateOptions
from flows.evaluating.wording import describe_shares, warn_about_capabilities, warn_about_labels
from flows.fitting.training import TrainingRows, make_training_rows
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.flow import make_flow, run_flow
from flows.running.memory import check_memory, find_memory_limit
from flows.running.stages import StageRunner
from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.evaluation.calibration import (
    MAX_COMPARED_FEATURES,
    N_SAMPLE_ROWS,
    choose_compared_features,
    compare_features,
    compare_pairs,
    count_implied_pairs,
    count_observed_pairs,
)
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    RowFold,
    describe_likelihood,
    describe_reconstruction,
    find_likelihood_measure,
    make_baseline_models,
    score_rows,
)
from pipeline.evaluation.prediction import describe_prediction
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed, fit_model, initialize_fit
from pipeline.models.capabilities import CanSample
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.counts import FeatureCounts, PairCounts
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import BinaryDataset

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
app = make_app("evaluate", HELP, EXAMPLES)

_N_MATRICES = 32  # of n_features² counts and shares that are held at once


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation that can be done: of which models, on which rows."""

    options: EvaluateOptions
    dataset: BinaryDataset
    split: str | None
    models: Sequence[ComparedModel]
    training_rows: TrainingRows
    likelihood_ratio_tests: Sequence[Mapping[str, Any]]
    groups: DifGroups | None
    open_executor: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class EvaluationJob(EvaluationPlan):
    """An evaluation that is being done: what all stages share."""

    executor: Executor
    progress: Progress

    @property
    def feature_subset(self) -> NDArray[np.intp]:
        """Features whose shares of ones and of joint ones are compared."""
        return choose_compared_features(self.dataset.n_features, self.options.seed)

    def choose_training_rows(self, named: ComparedModel) -> TrainingRows:
        """Give the rows that a model was fitted to, or those of simple models in their place."""
        return named.training_rows or self.training_rows

    def make_row_source(self, columns: tuple[str, ...] = ()) -> RowSource:
        """Give the rows to judge by; they stay in memory, as every model goes over them."""
        memory = compute_row_memory(self.executor)
        return make_row_source(self.dataset, self.split, memory, columns=columns)


def _fit_baselines(job: EvaluationJob) -> tuple[list[ComparedModel], list[str]]:
    """Fit the simple models; where that cannot be done, say why."""
    training, seed = job.training_rows, job.options.seed
    rows, label = training.make_row_source(compute_row_memory(job.executor)), FeatureCounts.label
    first = collect_statistics(
        FeatureCounts.from_block, rows, job.executor, label, progress=job.progress
    )
    fitted, warnings = [], []
    for name, model in make_baseline_models(first.n_samples).items():
        try:
            state = initialize_fit(model, first, seed)
            state = fit_model(model, rows, job.executor, seed, state=state, progress=job.progress)
        except FitError as error:
            error = error.with_names(job.dataset.feature_names, job.dataset.segment_names)
            warnings.append(format_error(error.with_prefix(name)))
        else:
            subject = EvaluatedModel(model, state.params, NO_SEGMENTS)
            found = ComparedModel(name, None, subject, state.diagnostics["n_components"], training)
            fitted.append(found)
    return fitted, warnings


def _draw_rows(job: EvaluationJob) -> EvaluationSample:
    """Draw the rows to judge codes by."""
    options = job.options
    source = SampleSource(
        job.dataset, job.split, options.label, job.executor, options.seed, job.progress
    )
    return draw_evaluation_sample(
        source,
        job.make_row_source(),
        [job.training_rows, *map(job.choose_training_rows, job.models)],
    )


def _evaluate_model(
    job: EvaluationJob, named: ComparedModel, observed: PairCounts, drawn: EvaluationSample
) -> dict[str, Any]:
    """Evaluate one model."""
    subject, model = named.subject, named.subject.model
    try:
        measure = find_likelihood_measure(subject, job.dataset.n_features)
        rows = job.make_row_source(subject.labels.columns if subject.labels else ())
        sums = score_rows(subject, measure.name, rows, job.executor, job.options.seed, job.progress)
        predicted = describe_prediction(subject.labels, sums.values)
        codes = evaluate_codes(drawn, subject, named.segments, job.choose_training_rows(named))
    except FitError as error:
        raise error.with_prefix(named.name) from error
    return {
        "name": named.name,
        "artifact": named.artifact,
        "model": model.name,
        "n_components": named.n_components,
        "rows_fitted": _find_training_overlap(job, named),
        **describe_likelihood(measure, sums),
        **describe_reconstruction(sums),
        **predicted,
        **codes,
        **_compare_with_samples(job, subject, sums.values["segment_rows"], observed),
        "warnings": [
            *named.warnings,
            *warn_about_labels(predicted),
            *warn_about_capabilities(model),
            *(_warn_about_codes(job, named, codes) if named.artifact else ()),
        ],
    }


def _warn_about_codes(
    job: EvaluationJob, named: ComparedModel, codes: Mapping[str, Any]
) -> list[str]:
    """Say where codes are not compared, or not with those of the rows that were fitted."""
    if "neighbourhoods" not in codes:
        return ["all codes are the same, or rows are fewer than 11, so neighbours are left out"]
    if named.training_rows is None and job.options.label is not None:
        rows = job.training_rows.dataset.path
        return [f"the rows that were fitted are not there any more, so neighbours are of {rows}"]
    return []


def _find_training_overlap(job: EvaluationJob, named: ComparedModel) -> str:
    """Tell how many of the rows were fitted: all, some, none, or unknown."""
    return (
        named.training_rows.find_overlap(job.dataset, job.split)
        if named.training_rows
        else "unknown"
    )


def _compare_with_samples(
    job: EvaluationJob,
    subject: EvaluatedModel,
    segment_rows: NDArray[np.int64],
    observed: PairCounts,
) -> dict[str, Any]:
    """Compare shares in the data and in rows drawn from the model, if it draws any."""
    if not isinstance(subject.model, CanSample):
        return {}
    n_features, seed = job.dataset.n_features, job.options.seed
    implied = count_implied_pairs(
        subject, segment_rows, n_features, job.feature_subset, job.executor, seed
    )
    names = [job.dataset.feature_names[i] for i in job.feature_subset]
    return {
        "marginals": describe_shares(compare_features(observed, implied), names),
        "pairs": describe_shares(compare_pairs(observed, implied), names),
    }


def prepare_evaluation(options: EvaluateOptions) -> EvaluationPlan:
    """Refuse what can be refused at once: other features, no such split, too little memory."""
    open_executor = prepare_executor(**options.where)
    check_seed(options.seed)
    dataset = open_dataset_or_example(options.dataset)
    choose = resolve_evaluation_split if options.folds is None else resolve_fit_split
    split = choose(dataset, options.split)
    check_label(dataset, options.label)
    loaded = [load_compared_model(path, dataset) for path in options.artifacts]
    if options.folds is not None:
        check_folds(options.folds, options.label, [named.subject.model for named in loaded])
    need = 8 * _N_MATRICES * min(dataset.n_features, MAX_COMPARED_FEATURES) ** 2
    check_memory(need, dataset.n_features, find_memory_limit())
    own = make_training_rows(dataset, resolve_fit_split(dataset, None))
    training = next((named.training_rows for named in loaded[:1] if named.training_rows), own)
    for known in (training, *(named.training_rows for named in loaded if named.training_rows)):
        check_label(known.dataset, options.label)
    tests = run_likelihood_ratio_tests(loaded) if options.likelihood_ratio else ()
    groups = find_dif_groups(dataset, options.dif, options.dif_test)
    return EvaluationPlan(options, dataset, split, loaded, training, tests, groups, open_executor)


@make_flow("evaluate", EvaluateOptions)
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Say how well fitted models describe the rows of a dataset."""
    return run_evaluation(prepare_evaluation(options))


def run_evaluation(plan: EvaluationPlan) -> dict[str, Any]:
    """Run the stages of an evaluation that was checked."""
    begun, dataset = time.perf_counter(), plan.dataset
    with plan.open_executor() as ready, report_progress() as progress:
        stages = StageRunner(ready, dataset.feature_names, dataset.segment_names)
        job = EvaluationJob(**vars(plan), executor=ready, progress=progress)
        steps = _run_stages if plan.options.folds is None else _run_fold_stages
        try:
            found = steps(job, stages)
            bias = stages.run("item bias", partial(_run_item_bias, job))
        finally:
            clear_chunk_cache()
    return {
        "dataset": str(dataset.path),
        "split": plan.split,
        "folds": plan.options.folds,
        "n_features": dataset.n_features,
        **found,
        "likelihood_ratio_tests": list(plan.likelihood_ratio_tests),
        "item_bias": bias,
        "seconds": round(time.perf_counter() - begun, 3),
        "stages": stages.seconds,
    }


def _run_item_bias(job: EvaluationJob) -> dict[str, Any] | None:
    """Test which items favour a group, where one was asked for."""
    if (groups := job.groups) is None:
        return None
    rows, names = job.make_row_source((groups.column,)), job.dataset.feature_names
    return compute_item_bias(groups, rows, names, job.executor, job.progress)


def _run_stages(job: EvaluationJob, stages: StageRunner) -> dict[str, Any]:
    """Evaluate the models as they were fitted."""
    drawn = stages.run("draw rows", partial(_draw_rows, job))
    observed = stages.run("pair counts", partial(_count_observed_pairs, job))
    simple, warnings = [], []
    if job.options.with_baselines:
        simple, warnings = stages.run("baselines", partial(_fit_baselines, job))
    models = [
        stages.run(f"evaluate {named.name}", partial(_evaluate_model, job, named, observed, drawn))
        for named in (*job.models, *simple)
    ]
    return {
        "n_samples": observed.n_samples,
        "n_drawn": N_SAMPLE_ROWS,
        "n_features_judged": len(job.feature_subset),
        "baselines": _describe_baselines(job),
        "models": models,
        "warnings": warnings,
    }


def _run_fold_stages(job: EvaluationJob, stages: StageRunner) -> dict[str, Any]:
    """Evaluate their settings, by fits to other rows than those that are judged."""
    n_folds, seed = job.options.folds or 0, job.options.seed
    folds = [RowFold(index, n_folds, seed) for index in range(n_folds)]
    dealt = CrossValidationRows(
        job.dataset, job.make_row_source(), folds, job.executor, seed, job.progress
    )
    refits = [ModelToRefit(n.name, n.subject.model, n.seed, n.artifact) for n in job.models]
    return cross_validate(refits, dealt, job.options.with_baselines, stages)


def _describe_baselines(plan: EvaluationPlan) -> dict[str, Any]:
    """Describe the rows that the simple models were fitted to."""
    training = plan.training_rows
    return {
        "dataset": str(training.dataset.path),
        "split": training.split,
        "leading_chunks": training.leading_chunks,
        "as_artifact": any(named.training_rows is training for named in plan.models),
    }


def _count_observed_pairs(job: EvaluationJob) -> PairCounts:
    return count_observed_pairs(
        job.make_row_source(), job.feature_subset, job.executor, job.progress
    )


@app.default
def main(*, options: EvaluateOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("evaluate", options, partial(run_evaluation, prepare_evaluation(options)))
    if json:
        print_json(summary)
    else:
        print_evaluation(summary)


if __name__ == "__main__":
    run_app(app)
