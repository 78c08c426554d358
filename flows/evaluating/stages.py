"""The stages of an evaluation: options checked, models compared one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.errors import format_error
from flows.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    RUN,
    DatasetName,
    ExampleValue,
    ExecutorOptions,
    Option,
    Repeatable,
    Seed,
    Switch,
    Where,
    WholeNumber,
)
from flows.data.datasets import TEST, TRAIN, check_label, open_dataset_or_example, resolve_split
from flows.evaluating.compared_models import (
    ComparedModel,
    load_compared_models,
    run_likelihood_ratio_tests,
)
from flows.evaluating.dif import (
    DifGroups,
    DifPurify,
    DifTest,
    check_has_no_asymptotes,
    check_has_no_weights,
    compute_item_bias,
    find_dif_groups,
    find_slopes,
)
from flows.evaluating.folds import CrossValidationRows, ModelToRefit, check_folds, cross_validate
from flows.evaluating.outcomes import (
    ClassCovariates,
    OutcomeColumns,
    OutcomeCorrection,
    OutcomePlan,
    ReferenceClass,
    compare_outcomes,
    plan_outcomes,
)
from flows.evaluating.result_tables import Columns, make_result_tables
from flows.fitting.provenance import TrainingRows
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.flow import StageRunner
from flows.running.resources import check_memory, find_memory_limit
from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.data.column_measures import check_row_columns
from pipeline.data.datasets import get_row_columns, make_memory_dataset, make_row_source
from pipeline.data.features import (
    Feature,
    find_continuous,
    list_features,
    list_features_to_reconstruct,
    list_plane_names,
    select_with_levels,
)
from pipeline.data.tables import BinaryTable
from pipeline.errors import FitError
from pipeline.evaluation.calibration import (
    MAX_COMPARED_FEATURES,
    N_SAMPLE_ROWS,
    choose_compared_planes,
    count_observed_pairs,
    describe_calibration,
)
from pipeline.evaluation.class_outcomes import measure_recorded_weights
from pipeline.evaluation.evaluate import (
    LikelihoodMeasure,
    ModelScores,
    RowFold,
    check_has_levels,
    check_has_order,
    describe_differences,
    describe_scores,
    find_likelihood_measure,
    make_baseline_models,
    match_segments,
    score_models,
)
from pipeline.evaluation.held_out_values import describe_held_out_values
from pipeline.evaluation.neighbourhoods import (
    MAX_QUERY_ROWS,
    MAX_REFERENCE_ROWS,
    NeighbourVote,
    SampledRows,
    describe_code_quality,
    draw_dataset_rows,
    draw_labelled_rows,
)
from pipeline.evaluation.reliability import (
    check_has_scores,
    describe_reliability,
)
from pipeline.evaluation.roll_calls import describe_roll_calls
from pipeline.executors.base import Executor, SerialExecutor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed, fit_model, initialize_fit
from pipeline.fitting.prepare import adapt_fitted_model
from pipeline.inference.sequences import find_sequence_columns
from pipeline.models.base import Model
from pipeline.models.capabilities import CanReconstruct, CanSample
from pipeline.models.state import FitState
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.labels import list_columns_to_read
from pipeline.statistics.measurements import MeasuredCounts
from pipeline.statistics.sums import Sums
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.stores.local_path import check_local_path

if TYPE_CHECKING:
    from pipeline.models.bernoulli_mixture.model import BernoulliMixture

# Of the sample from which baselines start, if there are twice as many rows.
_MAX_START_ROWS, _MAX_START_VALUES = 10_000, 2**26
_N_MATRICES = 32  # matrices of n_features² counts and shares that are in memory at once


@Option(name="*")
@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `python -m flows.evaluate`."""

    dataset: DatasetName
    artifacts: Annotated[
        Repeatable,
        Option(
            name="--artifact",
            group=MODEL,
            help="Folder of a fitted model, of runs (the latest is used), or of scales. "
            "Repeatable.",
        ),
        ExampleValue(["runs/votes"]),
    ]
    split: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Evaluate the rows whose `split` column has this value, or all. "
            "[default: test, if it exists; with --folds: train, if it exists]",
        ),
        ExampleValue("test"),
    ] = None
    folds: Annotated[
        WholeNumber | None,
        Option(group=RUN, help="Number of cross-validation folds."),
        ExampleValue(5),
    ] = None
    label: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Column, or segment, to predict from each row's nearest neighbours in code space.",
        ),
        ExampleValue("party"),
    ] = None
    dif: Annotated[
        str | None,
        Option(group=DATA, help="Column with groups: test which items favour a group."),
        ExampleValue("gender"),
    ] = None
    dif_test: DifTest = "mantel-haenszel"
    dif_purify: DifPurify = False
    likelihood_ratio: Annotated[
        bool,
        Switch,
        Option(
            group=MODEL,
            help="Compare nested fits to the same rows by likelihood-ratio tests.",
        ),
    ] = False
    reliability: Annotated[
        bool,
        Switch,
        Option(
            group=MODEL,
            help="Print alpha and omega of the features of a fit.",
        ),
    ] = False
    roll_calls: Annotated[
        bool,
        Switch,
        Option(
            group=MODEL,
            help="Print how many votes are classified correctly, APRE and GMP.",
        ),
    ] = False
    outcomes: OutcomeColumns = None
    correction: OutcomeCorrection = None
    covariates: ClassCovariates = None
    reference: ReferenceClass = None
    with_baselines: Annotated[
        bool,
        Option(
            name="--baselines",
            group=MODEL,
            negative="--no-baselines",
            help="Fit two simple models for comparison.",
        ),
    ] = True
    with_comparison: Annotated[
        bool,
        Switch,
        Option(
            name="--all",
            group=OUTPUT,
            help="Compare the models too, with options that ask for something else.",
        ),
    ] = False
    tables: Annotated[
        str | None,
        Option(group=OUTPUT, help="New folder for all tables, as .csv files."),
        ExampleValue("tables"),
    ] = None
    seed: Seed = 0
    where: Where = field(default_factory=ExecutorOptions)

    @property
    def compares_models(self) -> bool:
        """Whether to compare the models, which is not done if something else was asked for."""
        tests = (self.dif, self.outcomes, self.covariates)
        has_other = any(test is not None for test in tests)
        has_other |= self.likelihood_ratio or self.reliability or self.roll_calls
        is_needed = self.label is not None or self.folds is not None
        return self.with_comparison or is_needed or not has_other


@dataclass(frozen=True)
class EvaluationPlan:
    """A checked evaluation: the rows and the fitted models.

    `training_rows` are the rows to fit the baselines to; `groups` are those of `--dif`.
    """

    options: EvaluateOptions
    dataset: BinaryDataset
    split: str | None
    models: Sequence[ComparedModel]
    training_rows: TrainingRows
    likelihood_ratio_tests: Sequence[Mapping[str, Any]]
    groups: DifGroups | None
    outcome_plan: OutcomePlan | None
    open_executor: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class EvaluationJob(EvaluationPlan):
    """A running evaluation."""

    executor: Executor
    progress: Progress

    @property
    def plane_names(self) -> tuple[str, ...]:
        """Names of the rows of bits of a block; those of the features if all are binary."""
        return list_plane_names(self.dataset)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features that are compared: all but the continuous ones."""
        return select_with_levels(list_features(self.dataset))

    @cached_property
    def planes_and_features(self) -> tuple[NDArray[np.intp], tuple[Feature, ...]]:
        """The planes whose marginals and pairs are compared, and their features with levels."""
        return choose_compared_planes(self.features, self.options.seed)

    def choose_training_rows(self, model: ComparedModel) -> TrainingRows:
        """Return the rows that a model was fitted to, or else the rows of the baselines."""
        return model.training_rows or self.training_rows

    def make_row_source(
        self, columns: tuple[str, ...] = (), numbers: tuple[str, ...] = ()
    ) -> RowSource:
        """Return the rows to evaluate on; they stay in memory, as every model reads them."""
        rows = self.dataset, self.split, compute_row_memory(self.executor)
        return make_row_source(*rows, columns=columns, number_columns=numbers)


@dataclass(frozen=True)
class EvaluationSample:
    """Rows drawn once for all models, to evaluate their codes on.

    `votes` has labelled rows for `--label`, keyed by `TrainingRows.key` of the rows that vote.
    """

    rows: SampledRows
    votes: Mapping[str, NeighbourVote]


def prepare_evaluation(options: EvaluateOptions) -> EvaluationPlan:
    """Check everything that can be checked before the work starts."""
    open_executor = prepare_executor(**options.where)
    check_seed(options.seed)
    check_tables_folder(options.tables)
    dataset = open_dataset_or_example(options.dataset)
    split = resolve_split(dataset, options.split, TEST if options.folds is None else TRAIN)
    check_label(dataset, options.label)
    models, dataset = load_compared_models(options.artifacts, dataset)
    row_columns = get_row_columns(dataset)
    if options.label in row_columns.list_columns()[1] and options.label in dataset.levels:
        raise FitError(
            f"{{label}}: {options.label} holds {row_columns.roles[options.label]} of the fit, "
            "which are read as numbers. Choose another column."
        )
    for option in ("label", "dif", "roll_calls"):
        if getattr(options, option):
            check_has_levels(dataset, f"{{{option}}}")
    for option in ("dif", "reliability"):
        if getattr(options, option):
            check_has_order(dataset, f"{{{option}}}")
    check_row_columns(dataset, split, *(model.subject.params for model in models))
    if options.folds is not None:
        own_models = [model.subject.model for model in models]
        check_folds(options.folds, options.label, own_models, dataset.n_rows)
    need = 8 * _N_MATRICES * min(dataset.n_planes, MAX_COMPARED_FEATURES) ** 2
    check_memory(need, dataset.n_features, find_memory_limit())
    own_rows = TrainingRows(dataset, resolve_split(dataset, None, TRAIN), dataset.n_chunks)
    training = next((model.training_rows for model in models[:1] if model.training_rows), own_rows)
    for rows in (training, *(model.training_rows for model in models if model.training_rows)):
        check_label(rows.dataset, options.label)
    tests = run_likelihood_ratio_tests(models) if options.likelihood_ratio else ()
    if options.dif is not None:
        check_has_no_weights({model.name: model.manifest for model in models})
    if options.dif_test == "likelihood-ratio":
        check_has_no_asymptotes({model.name: model.manifest for model in models})
    groups = find_dif_groups(dataset, split, options.dif, options.dif_test, options.dif_purify)
    if options.reliability:
        check_has_scores(list_features(dataset))
    for name in ("outcomes", "covariates"):
        if getattr(options, name) is not None and options.folds is not None:
            raise FitError(f"{{{name}}} cannot be combined with {{folds}}. Leave out one of them.")
    related = (options.outcomes, options.correction, options.covariates, options.reference)
    outcomes = plan_outcomes(dataset, split, *related, models)
    return EvaluationPlan(
        options, dataset, split, models, training, tests, groups, outcomes, open_executor
    )


def check_tables_folder(tables: str | None) -> None:
    """Check that the folder of tables does not exist yet."""
    if tables is not None and check_local_path(Path(tables)).exists():
        raise DataError(f"{{tables}}: {tables} already exists. Choose another folder.")


def run_evaluation_stages(
    plan: EvaluationPlan, stages: StageRunner, progress: Progress
) -> dict[str, Any]:
    """Run the stages of a checked evaluation, and return its summary."""
    job = EvaluationJob(**vars(plan), executor=stages.executor, progress=progress)
    item_bias, reliability, outcomes = None, list[dict[str, Any]](), list[dict[str, Any]]()
    roll_calls = list[dict[str, Any]]()
    if plan.options.reliability:
        reliability = stages.run("reliability", partial(_describe_reliability, job))
    if plan.options.roll_calls:
        roll_calls = stages.run("roll calls", partial(_describe_roll_calls, job))
    if plan.groups is not None:
        item_bias = stages.run("item bias", partial(_test_item_bias, job, plan.groups))
    if plan.outcome_plan is not None:
        rows = (job.dataset, job.split, job.models, job.executor, progress)
        outcomes = stages.run("outcomes", partial(compare_outcomes, plan.outcome_plan, *rows))
    summary = {
        "dataset": str(plan.dataset.path),
        "split": plan.split,
        "folds": plan.options.folds,
        "n_features": plan.dataset.n_features,
        "continuous_features": list(plan.dataset.continuous_features),
        **_run_comparison(job, stages),
        "likelihood_ratio_tests": list(plan.likelihood_ratio_tests),
        "item_bias": item_bias,
        "reliability": reliability,
        "roll_calls": roll_calls,
        "outcomes": outcomes,
    }
    if plan.options.tables is not None:
        write_tables(make_result_tables(summary), Path(plan.options.tables))
    return summary


def write_tables(tables: Mapping[str, Columns], folder: Path) -> None:
    """Write each table to a file of its name in a new folder."""
    from flows.exporting.files import collect_columns, write_table  # slow to import

    folder.mkdir(parents=True)
    for name, columns in tables.items():
        write_table(collect_columns(columns), folder / f"{name}.csv", overwrite=False)


def _run_comparison(job: EvaluationJob, stages: StageRunner) -> dict[str, Any]:
    """Compare the models if that was asked for, or nothing else was."""
    if not job.options.compares_models:
        n_rows = sum(len(rows) for rows, _ in job.dataset.iter_segments(job.split))
        return {"n_samples": n_rows, "models": [], "differences": [], "warnings": []}
    if job.options.folds is not None:
        return _cross_validate_models(job, stages)
    return _compare_models(job, stages)


def _compare_models(job: EvaluationJob, stages: StageRunner) -> dict[str, Any]:
    """Evaluate the models as they were fitted."""
    sample = stages.run("draw rows", partial(_draw_sample, job))
    observed = stages.run("pair counts", partial(_count_observed_pairs, job))
    baselines: list[ComparedModel] = []
    warnings: list[str] = []
    if job.options.with_baselines:
        baselines, warnings = stages.run("baselines", partial(_fit_baselines, job))
    compared = (*job.models, *baselines)
    needed = ["baselines"] if job.options.with_baselines else []
    measures, scores = stages.run("score", partial(_score_models, job, compared), needed)
    models = []
    for model in compared:
        score = measures[model.name], scores.models[model.name]
        work = partial(_evaluate_model, job, model, *score, observed, sample)
        needed = ["draw rows", "pair counts", "score"]
        models.append(stages.run(f"evaluate {model.name}", work, needed))
    return {
        "n_samples": observed.n_rows,
        "n_drawn": N_SAMPLE_ROWS,
        "n_features_judged": len(job.planes_and_features[1] or job.planes_and_features[0]),
        "baselines": _describe_baseline_rows(job),
        "models": models,
        "differences": describe_differences(models, scores),
        "warnings": warnings,
    }


def _score_models(
    job: EvaluationJob, models: Sequence[ComparedModel]
) -> tuple[dict[str, LikelihoodMeasure], ModelScores]:
    """Score all models in one pass, so that they can be compared row by row."""
    n_features = job.dataset.n_planes
    measures = {m.name: find_likelihood_measure(m.subject, n_features) for m in models}
    subjects = {model.name: (model.subject, measures[model.name].name) for model in models}
    columns = [model.subject.labels.columns for model in models if model.subject.labels]
    columns += [find_sequence_columns(model.subject.model) for model in models]
    numbers = [model.subject.model.list_number_columns() for model in models]
    rows = job.make_row_source(
        *(tuple(dict.fromkeys(chain.from_iterable(own))) for own in (columns, numbers))
    )
    return measures, score_models(subjects, rows, job.executor, job.options.seed, job.progress)


def _cross_validate_models(job: EvaluationJob, stages: StageRunner) -> dict[str, Any]:
    """Refit the models without each fold in turn, and evaluate them on that fold."""
    n_folds, seed = job.options.folds or 0, job.options.seed
    folds = [RowFold(index, n_folds, seed) for index in range(n_folds)]
    rows = CrossValidationRows(
        job.dataset, job.make_row_source(), folds, job.executor, seed, job.progress
    )
    refits = []
    for own in job.models:
        fit = (own.subject.model, own.subject.params, own.manifest)
        model = adapt_fitted_model(*fit, job.dataset, job.split)
        refits.append(ModelToRefit(own.name, model, own.seed, own.artifact))
    return cross_validate(refits, rows, job.options.with_baselines, stages)


def _count_observed_pairs(job: EvaluationJob) -> PairCounts:
    return count_observed_pairs(
        job.make_row_source(), job.planes_and_features[0], job.executor, job.progress
    )


def _describe_reliability(job: EvaluationJob) -> list[dict[str, Any]]:
    """Describe the sum of the features, with the weights of the first fit."""
    weights = measure_recorded_weights(job.models[0].manifest, job.dataset, job.split)
    memory, names = compute_row_memory(job.executor), job.dataset.segment_names
    rows = make_row_source(job.dataset, job.split, memory, weights=weights)
    subjects = {model.name: model.subject for model in job.models}
    arguments = (list_features(job.dataset), names, subjects, job.executor, job.progress)
    return describe_reliability(rows, *arguments)


def _describe_roll_calls(job: EvaluationJob) -> list[dict[str, Any]]:
    rows, features = job.make_row_source(), list_features(job.dataset)
    own = (job.dataset, features, rows, job.split, job.executor, job.options.seed, job.progress)
    return [{"name": m.name, **describe_roll_calls(m.subject, *own)} for m in job.models]


def _test_item_bias(job: EvaluationJob, groups: DifGroups) -> dict[str, Any]:
    rows = job.make_row_source((groups.column,))
    arguments = (groups, rows, job.features, job.options.seed, job.executor, job.progress)
    features = list_features(job.dataset)
    slopes = (find_slopes(own.subject.model, own.subject.params, features) for own in job.models)
    return compute_item_bias(*arguments, next((own for own in slopes if own is not None), None))


def _fit_baselines(job: EvaluationJob) -> tuple[list[ComparedModel], list[str]]:
    """Fit the baselines; return them, and warnings about those that could not be fitted."""
    training = job.training_rows
    rows = training.make_row_source(compute_row_memory(job.executor))
    features = list_features(job.dataset)
    measure = MeasuredCounts if find_continuous(features) else FeatureCounts
    first = collect_statistics(
        measure.from_block, rows, job.executor, measure.label, progress=job.progress
    )
    baselines: list[ComparedModel] = []
    warnings: list[str] = []
    for name, model in make_baseline_models(first.n_rows, features).items():
        try:
            state = _fit_baseline(job, model, rows, first)
        except FitError as error:
            error = error.with_names(job.plane_names, job.dataset.segment_names)
            warnings.append(format_error(error.with_prefix(name)))
        else:
            own = list_features_to_reconstruct(job.dataset)
            subject = match_segments(model, state.params, {}, (), features=own)
            n_components = state.diagnostics["n_components"]
            baselines.append(ComparedModel(name, None, subject, n_components, training))
    return baselines, warnings


def _fit_baseline(
    job: EvaluationJob, model: BernoulliMixture, rows: RowSource, first: FeatureCounts
) -> FitState:
    """Fit a baseline to all rows; if they are many, start from a fit to a sample in memory."""
    executor, seed, progress = job.executor, job.options.seed, job.progress
    state = initialize_fit(model, first, seed)
    n_start = min(_MAX_START_ROWS, _MAX_START_VALUES // len(job.dataset.feature_names))
    if first.n_rows >= 2 * n_start and model.n_components != 1:
        block = draw_dataset_rows(rows, n_start, executor, seed, progress).block
        table = _make_table(block, job.plane_names, job.dataset.continuous_features)
        sample = make_memory_dataset([table])
        sample_rows = RowSource(
            sample.make_reader(), sample.rows_per_chunk, rows.n_features, n_segments=1
        )
        start = fit_model(model, sample_rows, SerialExecutor(), seed, progress=progress)
        state = model.warm_start(state, start.params)
    return fit_model(model, rows, executor, seed, state=state, progress=progress)


def _make_table(
    block: BinaryBlock, planes: tuple[str, ...], continuous: tuple[str, ...]
) -> BinaryTable:
    """Return the rows of a block with a feature per plane, followed by the continuous ones."""
    padding, levels = ((0, 0), (0, len(continuous))), dict.fromkeys(continuous, ())
    X, observed = np.pad(block.unpack_values(), padding), block.unpack_mask()
    if observed is not None:
        observed = np.pad(observed, padding, constant_values=1)
    numbers = None if block.numbers is None else block.numbers.T
    return BinaryTable(X, observed, (*planes, *continuous), None, {}, levels, numbers)


def _describe_baseline_rows(job: EvaluationJob) -> dict[str, Any]:
    training = job.training_rows
    return {
        "dataset": str(training.dataset.path),
        "split": training.split,
        "leading_chunks": training.leading_chunks,
        "as_artifact": any(model.training_rows is training for model in job.models),
    }


def _draw_sample(job: EvaluationJob) -> EvaluationSample:
    """Draw the rows to evaluate codes on, and with `--label` the rows that vote."""
    rows = draw_dataset_rows(
        job.make_row_source(), MAX_QUERY_ROWS, job.executor, job.options.seed, job.progress
    )
    return EvaluationSample(rows, _draw_votes(job, job.options.label) if job.options.label else {})


def _draw_votes(job: EvaluationJob, label: str) -> dict[str, NeighbourVote]:
    """Draw labelled rows to evaluate on, and labelled rows that each model was fitted to."""
    draw_arguments = (job.executor, job.options.seed, job.progress)
    columns = list_columns_to_read(label)
    rows = make_row_source(job.dataset, job.split, columns=columns)
    queries = draw_labelled_rows(rows, MAX_QUERY_ROWS, label, job.dataset, *draw_arguments)
    trainings = [job.training_rows, *map(job.choose_training_rows, job.models)]
    votes, features = {}, list_features(job.dataset)
    for key, training in {training.key: training for training in trainings}.items():
        rows = training.make_row_source(0, columns)
        references = draw_labelled_rows(
            rows, MAX_REFERENCE_ROWS, label, training.dataset, *draw_arguments
        )
        is_other_data = training.find_overlap(job.dataset, job.split) == "none"
        votes[key] = NeighbourVote(label, queries, references, is_other_data, features)
    return votes


def _evaluate_model(
    job: EvaluationJob,
    model: ComparedModel,
    measure: LikelihoodMeasure,
    sums: Sums,
    observed: PairCounts,
    sample: EvaluationSample,
) -> dict[str, Any]:
    subject = model.subject
    try:
        description = describe_scores(subject, measure, sums)
        codes = _evaluate_codes(job, model, sample)
    except FitError as error:
        raise error.with_prefix(model.name) from error
    return {
        "name": model.name,
        "artifact": model.artifact,
        "model": subject.model.name,
        "n_components": model.n_components,
        "rows_fitted": _find_training_overlap(job, model),
        **description,
        **codes,
        **_compare_with_samples(job, model, sums.values["segment_rows"], observed),
        "warnings": [
            *model.warnings,
            *_warn_about_labels(description.get("prediction", {})),
            *_warn_about_capabilities(subject.model),
            *(_warn_about_codes(job, model, codes) if model.artifact else ()),
        ],
    }


def _evaluate_codes(
    job: EvaluationJob, model: ComparedModel, sample: EvaluationSample
) -> dict[str, Any]:
    """Describe how well codes keep neighbourhoods, and predict the label and held-out values."""
    training, subject = job.choose_training_rows(model), model.subject
    vote = sample.votes[training.key] if job.options.label else None
    fitted = match_segments(
        subject.model, subject.params, model.segments, training.dataset.segment_names
    )
    run = (job.executor, job.options.seed, job.progress)
    return {
        **describe_code_quality(subject, fitted, sample.rows, vote, *run),
        **describe_held_out_values(subject, sample.rows, *run),
    }


def _find_training_overlap(job: EvaluationJob, model: ComparedModel) -> str:
    """Return how many of the evaluated rows were fitted: all, some, none, or unknown."""
    if model.training_rows is None:
        return "unknown"
    return model.training_rows.find_overlap(job.dataset, job.split)


def _compare_with_samples(
    job: EvaluationJob, model: ComparedModel, segment_rows: NDArray[np.int64], observed: PairCounts
) -> dict[str, Any]:
    """Compare marginals and pairs in the data and in rows drawn from the model, if it can."""
    subject = model.subject
    if not isinstance(subject.model, CanSample) or not job.features:
        return {}
    return describe_calibration(
        subject,
        segment_rows,
        observed,
        *job.planes_and_features,
        job.plane_names,
        job.executor,
        job.options.seed,
    )


def _warn_about_labels(prediction: Mapping[str, Any]) -> list[str]:
    """Warn about labels that are missing, or that no model could have predicted."""
    texts = {
        "rows_without": "rows have no label and are left out",
        "unseen": "rows have a label that was not fitted, which counts as wrong",
    }
    return [
        f"column {prediction['column']!r}: {prediction[name]:,} {text}"
        for name, text in texts.items()
        if prediction.get(name)
    ]


def _warn_about_capabilities(model: Model) -> list[str]:
    texts = {
        CanSample: "the model cannot draw rows, so marginals and pairs are not compared",
        CanReconstruct: "the model cannot reconstruct bits from codes, so bits are not compared",
    }
    return [text for capability, text in texts.items() if not isinstance(model, capability)]


def _warn_about_codes(
    job: EvaluationJob, model: ComparedModel, codes: Mapping[str, Any]
) -> list[str]:
    """Warn if codes are not compared, or not with codes of the fitted rows."""
    if "neighbourhoods" not in codes:
        reason = "all codes are equal, or there are fewer than 11 rows"
        if not job.features:
            reason = "all features are continuous"
        return [f"neighbours are not compared: {reason}"]
    if model.training_rows is None and job.options.label is not None:
        path = job.training_rows.dataset.path
        return [f"the fitted rows no longer exist, so neighbours come from {path}"]
    return []
