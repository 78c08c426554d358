"""Fit and use models in a few lines of Python: `fit`, `transform`, `evaluate`.

`flows` does the same with checkpoints and results on disk. Work runs on `n_jobs` threads, by
default one per CPU. Terminals and notebooks show a progress line when work takes over a second.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from flows.running.resources import check_memory, find_memory_limit
from latentbits.data import list_frame_columns, make_dataset
from latentbits.fitted import Evaluation, Fitted, FittedEstimator, LatentCodes, find_fitted
from pipeline.data.batches import list_columns, read_columns, translate_read_errors
from pipeline.data.blocks import RowSource
from pipeline.data.column_measures import check_row_columns, measure_row_covariates
from pipeline.data.datasets import Dataset, MemoryDataset, get_row_columns, make_row_source
from pipeline.data.display import DisplayItems, ResultDisplayMixin, shorten
from pipeline.data.features import (
    are_binary,
    count_planes,
    list_features,
    list_features_to_reconstruct,
    list_plane_names,
    select_with_levels,
)
from pipeline.data.matching import (
    check_same_features,
    check_same_levels,
    check_split_levels,
    describe_unknown_segments,
    find_segment_index,
    find_segment_indices,
    map_fitted_segments,
)
from pipeline.data.plane_views import adapt_to_manifest, view_as_fitted
from pipeline.data.row_columns import RowColumns
from pipeline.data.tables import list_names, wrap_frame
from pipeline.data.weights import WeightKind
from pipeline.errors import FitError
from pipeline.evaluation.calibration import (
    choose_compared_planes,
    count_observed_pairs,
    describe_calibration,
)
from pipeline.evaluation.class_covariates import regress_classes
from pipeline.evaluation.class_outcomes import (
    check_are_no_covariates,
    check_has_no_covariates,
    check_is_mixture,
    check_reference_class,
    measure_recorded_weights,
    relate_classes,
    split_outcome_columns,
)
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    check_has_levels,
    check_has_order,
    evaluate_rows,
    find_likelihood_measure,
    match_segments,
)
from pipeline.evaluation.held_out_values import describe_held_out_values
from pipeline.evaluation.linking import ItemLink, compute_link
from pipeline.evaluation.model_comparison import STATISTICS, compare_fits
from pipeline.evaluation.neighbourhoods import (
    MAX_QUERY_ROWS,
    MAX_REFERENCE_ROWS,
    NeighbourVote,
    describe_code_quality,
    draw_dataset_rows,
    draw_labelled_rows,
)
from pipeline.evaluation.prediction import find_target_labels
from pipeline.evaluation.records import describe_outcome, describe_provenance
from pipeline.evaluation.reliability import describe_reliability
from pipeline.evaluation.roll_calls import describe_roll_calls
from pipeline.executors.base import Executor, choose_executor
from pipeline.executors.progress import Progress, format_amount, ignore_progress
from pipeline.fitting.class_numbers import add_class_numbers
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.fit_statistics import add_fit_statistics
from pipeline.fitting.linkage import collect_linkage
from pipeline.fitting.loop import collect_first_statistics, fit_model, start_fit
from pipeline.fitting.pair_work import get_pair_job_label
from pipeline.fitting.prepare import FitRequest, PatternTable, PreparedFit, prepare
from pipeline.inference.anchors import anchor_fit
from pipeline.inference.orientation import orient_fit
from pipeline.inference.query import SEGMENT_REMEDY, QueryAnswer, answer_query, make_query
from pipeline.inference.sequences import condition_rows, find_sequence_columns
from pipeline.inference.transform import (
    HELD_OUT,
    AddedArrays,
    Reconstruction,
    TransformTask,
    check_can_be_reconstructed,
    describe_rows_without_score,
    transform_rows,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    FitRecord,
    HasLogLikelihood,
    HasLowerBound,
    ScoreKind,
    check_can_sample,
    check_can_score,
)
from pipeline.models.known_items import KnownItems, get_fitted_items, parse_known_items
from pipeline.models.latent_trait.params import ItemKind
from pipeline.models.state import FitState
from pipeline.numerics.three_step import Correction
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from pipeline.statistics.labels import list_columns_to_read
from pipeline.statistics.linkage import Linkage
from pipeline.statistics.sums import Statistics
from storage.stores.local_path import check_local_path

if TYPE_CHECKING:
    from storage.stores.locations import AnyPath


__all__ = [
    "Evaluation",
    "Fitted",
    "LatentCodes",
    "evaluate",
    "fit",
    "transform",
]

ShowLine = Callable[[str], None]
"""Shows a line in place of the previous one."""

_QUIET_SECONDS, _UPDATE_SECONDS = 1.0, 0.2
_ROW_MEMORY = 1 << 30


def fit(
    dataset: Any,
    model: str = "clipped-pca",
    *,
    components: int | str | None = None,
    split: str | None = None,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    reverse: Sequence[str] = (),
    cut: Sequence[str] = (),
    weight: str | None = None,
    weights: WeightKind | None = None,
    psu: str | None = None,
    group: str | None = None,
    items: Any = None,
    pattern: Any = None,
    covariates: Sequence[str] | None = None,
    row_id: str | None = None,
    time: str | None = None,
    orient: Sequence[str] = (),
    anchors: Mapping[str, float | Sequence[float]] | Sequence[str] | str = (),
    seed: int = 0,
    n_jobs: int = -1,
    executor: Executor | str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Fitted:
    """Fit a model.

    Parameters
    ----------
    dataset
        A dataset from `open_dataset`, `from_numpy` or `from_dataframe`; or what they take: the path
        of a dataset, `example:NAME`, an array, or a data frame without other columns than features.
        Ordered categoricals of a data frame are features with several levels, others are nominal.
    model
        Name of the model: autoencoder, bernoulli-mixture, binary-ica-likelihood, blica, bottleneck,
        clipped-pca, fastica, hidden-markov, hidden-tree, ising, kernel-pca, laplacian-eigenmap,
        latent-trait, linear-ivae, noisy-or, rbm, stack, tree-mixture, or package.module:Class for a
        model of another package. chow-liu is tree-mixture with one component.
    components
        Number of components, `auto` if the model can choose it, or None for its default.
    split
        Fit only the rows of this split. None takes all rows, whereas `flows.fit` takes `train`.
    features, drop
        Names or patterns of the features to fit, such as `["N*"]`, and of those to leave out.
    reverse
        Names or patterns of features to reverse, such as `["N5", "E2"]`: the lowest level counts as
        the highest and so on, and continuous values change their sign. They are then called
        `N5 (reversed)`. `transform` and others reverse them in the data that they get.
    cut
        Features with several levels to cut in two, such as `["q3>=often", "q5>=2"]`, or `["q*>=2"]`
        for all whose names match.
    weight
        Per-row column that holds the rows' weights; bernoulli-mixture, clipped-pca, hidden-tree,
        ising, latent-trait and tree-mixture can use them.
    weights
        Meaning of the weights: `frequency`, the number of equal rows that a row stands for (the
        default), or `sampling`, the weights of a survey.
    psu
        Per-row column of the survey's primary sampling units, for standard errors.
    group
        Per-row column whose values are the groups of rows, instead of the dataset's own segments.
        bernoulli-mixture, binary-ica-likelihood, blica, latent-trait and linear-ivae have
        parameters by group. `transform` and `evaluate` then read the column of the rows that they
        get.
    items
        Known slopes and offsets of some items, for latent-trait: a data frame or a dictionary with
        the columns `feature`, `slope` (or `weights_1`, `weights_2`, …) and `offset` (or `offsets`),
        the path of such a table, a fitted model, or the path of one. Tables of items with several
        levels, or continuous, have the columns of an export of items. Values that are missing are
        estimated. The mean and covariance of the traits are estimated too. Or the curves of items
        with several levels, a setting of latent-trait: `"graded"`, `"partial-credit"`,
        `"rating-scale"` or `"nominal"`.
    pattern
        Loading pattern of latent-trait: a data frame, or the path of a .csv or .parquet file, with
        a column `item` and a column for each trait, with 0 (no loading), 1 (a slope of its own) or
        a label (equal labels are equal slopes). Or a table of scales, see `fit_scales`: its scales
        are the traits of one fit, its reversed items are reversed, and other features are left out.
    covariates
        Per-row columns that explain the traits of latent-trait or the classes of bernoulli-mixture,
        such as `["age", "school=North"]`, which names the reference level. `transform` and
        `evaluate` then read the columns of the rows that they get.
    row_id, time
        Per-row columns of the member that a row is of, and of its time, for latent-trait with
        `dynamics="walk"`: there is a row for each member and period. For hidden-markov, columns of
        the sequence that a row is of, and of its time; it needs neither.
    orient
        Signs of components, which are arbitrary in most models: `["q3=+1"]` reverses component 1 if
        the feature `q3` would have a negative loading, `["q3=-2"]` component 2 if it would have a
        positive one. Names that no feature has mean rows, by the texts of a per-row column; their
        codes count from the mean of all rows.
    anchors
        Positions of two rows on the first trait of latent-trait, by the texts of a per-row column,
        such as `{"US": 1, "CU": -1}` or `"US=+1,CU=-1"`: they fix place, scale and sign, and leave
        the likelihood as it is. All q traits are fixed by q + 1 rows with q numbers each.
    seed
        Seed of every random draw.
    n_jobs
        Number of threads, -1 for all CPUs; results do not depend on it.
    executor
        Executor to use instead of threads, or "serial" or "threads".
    progress
        Receives the progress; None shows a line in a terminal or notebook.
    **settings
        Settings of the model, such as `nodes=61` for latent-trait. The command
        `latentbits fit --model NAME --help` lists them.

    Returns
    -------
    Fitted
        `params` has the model's arrays, such as `params.weights`; read `warnings` first.

    Raises
    ------
    FitError
        If a name or a value cannot be used, or the data cannot be fitted.
    """
    if isinstance(items, str) and items in get_args(ItemKind):
        settings, items = {**settings, "items": items}, None
    columns = list_frame_columns(dataset)
    if columns and (features or drop):  # other columns may hold anything
        chosen, reverse = choose_fit_features(columns, features, reverse, drop)
        dataset = make_dataset(dataset, columns=chosen)
    else:
        dataset = make_dataset(dataset)
        chosen, reverse = choose_fit_features(dataset.feature_names, features, reverse, drop)
    names = columns or dataset.feature_names
    with _translate_errors(dataset):
        request = FitRequest(
            model,
            components,
            settings,
            split=split,
            features=chosen,
            reverse=reverse,
            cut=cut,
            weight=weight,
            weights=weights,
            psu=psu,
            group=group,
            covariates=covariates,
            row_id=row_id,
            time=time,
            pattern=None if pattern is None else partial(_read_pattern, pattern, names),
            items=None if items is None else partial(read_items, items),
            orient=orient,
            anchors=anchors,
            seed=seed,
        )
    return run_fit(request, dataset, choose_executor(executor, n_jobs), progress)


def choose_fit_features(
    names: Sequence[str],
    features: Sequence[str] = (),
    reverse: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> tuple[Sequence[str] | None, Sequence[str]]:
    """Return the names of the features to fit, or None for all, and of those to reverse."""
    if not (features or drop or reverse):
        return None, ()
    from storage.sources.base import choose_features  # imports what reads files
    from storage.sources.value_codes import ReadOptions

    named = {"features": features, "drop": drop, "reverse": reverse}
    chosen, dropped, reverse = (
        (own,) if isinstance(own, str) else tuple(list_names(own, name))
        for name, own in named.items()
    )
    options = ReadOptions(features=chosen, drop=dropped)
    return choose_features("the data", names, options, reverse)


def run_fit(
    request: FitRequest,
    dataset: Dataset,
    executor: Executor,
    progress: Progress | None = None,
) -> Fitted:
    """Prepare and run a fit."""
    with _translate_errors(dataset):
        fit = prepare(request, dataset)
    model, seed = fit.model, request.seed
    with _translate_errors(fit.dataset), show_progress(progress) as show:
        memory = _check_memory(model, fit.dataset, executor)
        columns = model.list_required_columns(), fit.weights, model.list_number_columns()
        rows = make_row_source(fit.dataset, request.split, memory, (), *columns)
        first = collect_first_statistics(model, rows, executor, seed, show)
        state = start_fit(model, first, rows, executor, seed, progress=show)
        state = fit_model(model, rows, executor, seed, state=state, progress=show)
        state = add_fit_statistics(model, state, rows, executor, seed, show)
        state = add_class_numbers(model, state, rows, executor, seed, show)
        state = orient_fit(model, state, rows, executor, seed, fit.poles, fit.features)
        state = anchor_fit(model, state, rows, executor, seed, fit.anchors)
    fitted = _make_fitted(fit, state, first.n_rows)
    if fit.dataset is dataset:
        return fitted
    # Groups and chosen features do not change which rows these are; on disk, the digest is this.
    described = {**fitted.manifest["dataset"], "digest": dataset.describe()["digest"]}
    return replace(fitted, manifest={**fitted.manifest, "dataset": described})


def _make_fitted(fit: PreparedFit[Any], state: FitState, n_samples: int) -> Fitted:
    """Return a fitted model, with the manifest that its artifact would have."""
    model, dataset, request = fit.model, fit.dataset, fit.request
    manifest = {
        **describe_provenance(model, dataset, request.split, request.seed, choices=fit.choices),
        **describe_outcome(model, dataset, state),
        "n_samples": n_samples,
    }
    return Fitted(model, state.params, manifest)


def fit_scales(
    dataset: Any,
    scales: Any,
    model: str = "latent-trait",
    *,
    components: int | str | None = 1,
    reverse: Sequence[str] = (),
    **options: Any,
) -> dict[str, Fitted]:
    """Fit each scale of a questionnaire by itself.

    Parameters
    ----------
    dataset, model, components
        As for `fit`. A data frame may have other columns than the items.
    scales
        The items of each scale: a dictionary of names or patterns, such as `{"calm": ["a*"]}`; or a
        data frame, or the path of a .csv or .parquet file, with the columns `item`, `scale`, and
        perhaps `reversed`: yes or no.
    reverse
        Names or patterns of further items to reverse.
    **options
        Further arguments of `fit`.

    Returns
    -------
    dict
        The fit of each scale by its name. `compare`, `transform` and `evaluate` take the fits.

    Raises
    ------
    FitError
        If an item is no feature of the data, or a scale cannot be fitted.

    Examples
    --------
    >>> fits = fit_scales(frame, "big5.csv")  # doctest: +SKIP
    >>> fits["calm"].params.difficulty  # doctest: +SKIP
    """
    from flows.data.parameter_tables import parse_scales  # imports what reads files
    from flows.fitting.scales import name_scale

    if columns := list_frame_columns(dataset):
        names: Sequence[str] = columns
    else:
        names = (dataset := make_dataset(dataset)).feature_names
    table: Mapping[str, Sequence[Any]]
    if isinstance(scales, Mapping):
        if empty := next((scale for scale, items in scales.items() if not len(items)), None):
            raise FitError(f"{{scales}}: scale {empty!r} has no items. Name one or more.")
        chosen = {scale: choose_fit_features(names, own, ())[0] for scale, own in scales.items()}
        pairs = [(item, scale) for scale, own in chosen.items() for item in own or ()]
        table = {"item": [pair[0] for pair in pairs], "scale": [pair[1] for pair in pairs]}
    else:
        table, _ = _read_table(scales, "scales")
    parsed = parse_scales(table, "scales", names, "the data")
    items = [name for name in names if any(name in scale.items for scale in parsed)]
    _, also_reversed = choose_fit_features(items, (), reverse)
    fits = {}
    for scale in parsed:
        marked = {*scale.reversed_items, *also_reversed}
        turned = [name for name in scale.items if name in marked]
        own = {"features": scale.items, "reverse": turned, "components": components}
        with name_scale(scale.name):
            fits[scale.name] = fit(dataset, model, **{**options, **own})
    return fits


class RowCounts(NamedTuple):
    """Counts over all rows of a fit; the counts of further rows can be added.

    Attributes
    ----------
    first, linkage, statistics
        The model's first statistics, the links of features, and the statistics of its only pass.
    key
        The model's `counts_key`: settings that change it change what is counted.
    segment_names
        Names of the segments of these rows.
    """

    first: Statistics
    linkage: Linkage
    statistics: Statistics
    key: str | None
    segment_names: tuple[str, ...]


def fit_to_more_rows(
    request: FitRequest, dataset: MemoryDataset, earlier: RowCounts | None, executor: Executor
) -> tuple[Fitted, RowCounts]:
    """Fit a model whose statistics are counts to the rows of a dataset and to all earlier ones.

    `dataset` continues the earlier rows (see `make_memory_dataset`). Returns the fit, which has the
    bytes of a fit to all rows at once, and the counts over all rows.
    """
    with _translate_errors(dataset), show_progress() as show:
        fit = prepare(request, dataset)
        model, seed = fit.model, request.seed
        rows = make_row_source(fit.dataset, None)
        if get_pair_job_label(model, rows.n_features):
            raise FitError(
                f"{model.name} counts the pairs of {rows.n_features:,} features in strips, to "
                "which no rows can be added. Use fewer features, or fit to all rows."
            )
        key = model.counts_key(rows.n_features)
        if earlier is not None and earlier.key != key:
            raise FitError(
                "The settings have changed since the first rows, and with them what is counted. "
                "Set them back, or fit to all rows."
            )
        first = collect_first_statistics(model, rows, executor, seed, show)
        first = first if earlier is None else earlier.first.merge(first)
        linkage = collect_linkage(model, rows, executor, show)
        linkage = linkage if earlier is None else earlier.linkage.merge(linkage)
        state = start_fit(model, first, rows, executor, seed, progress=show, linkage=linkage)
        statistics = collect_pass_statistics(model, state, rows, executor, seed, show)
        statistics = statistics if earlier is None else earlier.statistics.merge(statistics)
        state = fit_model(
            model, rows, executor, seed, state=state, statistics=statistics, progress=show
        )
    counts = RowCounts(first, linkage, statistics, key, dataset.segment_names)
    return _make_fitted(fit, state, first.n_rows), counts


def transform(
    fitted: Fitted | FittedEstimator | str | AnyPath,
    dataset: Any,
    *,
    split: str | None = None,
    reconstruct: Reconstruction | None = None,
    impute: Reconstruction | None = None,
    scores: ScoreKind = "eap",
    seed: int = 0,
    n_jobs: int = -1,
    executor: Executor | str | None = None,
    progress: Progress | None = None,
) -> LatentCodes:
    """Compute the latent codes of all rows, in their original order.

    Parameters
    ----------
    fitted
        The fitted model: the result of `fit`, a fitted estimator, or the path of a fit.
    dataset, split
        The rows, with the features of the fit; as for `fit`.
    reconstruct
        "probabilities" also returns P(x = 1 | codes), "bits" the more likely value,
        (n_rows, n_features). For features with several levels, "probabilities" returns P(level |
        codes), (n_rows, n_levels in all), "levels" the most likely level, and "expected-levels" the
        expected level, both counted from 0, (n_rows, n_features). Of a continuous feature, it is
        the expected value.
    impute
        Adds completed rows, of the same kinds as `reconstruct`. Observed values are kept. Missing
        values are predicted from all observed values of their row, exactly. The array is called
        `imputed_probabilities`, `imputed_bits`, and so on.
    scores
        How to score rows by a latent-trait fit: "eap", the posterior mean; "map", its mode; "ml",
        maximum likelihood; "wle", Warm's weighted likelihood; or "sum", of the levels counted from
        0, in which items that point the other way count in reverse, and missing answers as
        expected. Except for "eap", the arrays are `score` and `standard_error`, and `is_finite` for
        "ml" and "wle"; rows that have only the lowest or only the highest answers have no "ml"
        score.
    seed, n_jobs, executor, progress
        As for `fit`.

    Returns
    -------
    LatentCodes
        Arrays by name: `mean`, (n_rows, n_components); `variance`, from some models; and `row`, the
        row numbers in the data, (n_rows,).

    Raises
    ------
    FitError
        If the features differ, or the model cannot reconstruct rows or impute values exactly.
    """
    fitted = find_fitted(fitted)
    return transform_dataset(
        fitted,
        adapt_to_fit(make_dataset(dataset, fitted.source_features), fitted, split),
        split=split,
        reconstruct=reconstruct,
        impute=impute,
        scores=scores,
        seed=seed,
        executor=choose_executor(executor, n_jobs),
        progress=progress,
    )


def transform_dataset(
    fitted: Fitted,
    dataset: Dataset,
    *,
    split: str | None = None,
    reconstruct: Reconstruction | None = None,
    impute: Reconstruction | None = None,
    scores: ScoreKind = "eap",
    seed: int = 0,
    executor: Executor,
    progress: Progress | None = None,
) -> LatentCodes:
    """Compute latent codes as `transform` does, with the dataset's own segments."""
    with _translate_errors(dataset), show_progress(progress) as show:
        _make_subject(fitted, dataset, n_callers=2)
        for name, kind in (("reconstruct", reconstruct), ("impute", impute)):
            if kind not in (None, *get_args(Reconstruction)):
                kinds = ", ".join(map(repr, get_args(Reconstruction)))
                raise FitError(f"{name} must be {kinds} or None, not {kind!r}.")
        if scores != "eap":
            check_can_score(fitted.model, fitted.params, scores)
            if reconstruct or impute:
                raise FitError(f"scores={scores!r} cannot be combined with reconstruct or impute.")
        rows = _make_conditioned_rows(fitted, dataset, split, executor, show)
        task = _make_transform_task(fitted, dataset, rows, seed)
        features = list_features_to_reconstruct(dataset)
        added_arrays = AddedArrays(reconstruct, impute, scores=scores, features=features)
        check_can_be_reconstructed(added_arrays, features)
        task = replace(task, added_arrays=added_arrays)
        codes = LatentCodes(transform_rows(task, rows, executor, show))
    if "is_finite" in codes:
        n_without = int(np.count_nonzero(~codes["is_finite"]))
        for text in describe_rows_without_score(scores, n_without, codes["score"].shape[1]):
            warn(text, stacklevel=3)
    return codes


def adapt_to_fit(dataset: Dataset, fitted: Fitted, split: str | None = None) -> Dataset:
    """Return the dataset as `adapt_to_manifest` does, and check rows of the split.

    Raises
    ------
    FitError
        If the dataset lacks a column of the fit, or rows of the split have other values.
    """
    check_split_levels(fitted.manifest, dataset, "the fit")
    dataset = adapt_to_manifest(dataset, fitted.manifest, _make_column_error)
    with _translate_errors(dataset):
        check_row_columns(dataset, split, fitted.params)
    return dataset


def _make_column_error(column: str, role: str) -> FitError:
    return FitError(
        f"The data have no per-row column {column!r}, whose values are the {role} of the fit. "
        "Add it by the argument keep of from_numpy or from_dataframe."
    )


def compute_row_likelihoods(
    fitted: Fitted, dataset: Dataset, seed: int, executor: Executor
) -> NDArray[np.float64]:
    """Compute the log-likelihood of each row, or an estimate or lower bound of it, (n_rows,).

    For models without any, it is that of each value given the code of other features.

    Raises
    ------
    FitError
        If the fitted model has none.
    """
    check_split_levels(fitted.manifest, dataset, "the fit")
    dataset = view_as_fitted(dataset, fitted.dataset_features)
    with _translate_errors(dataset), show_progress() as show:
        subject = _make_subject(fitted, dataset)
        rows = _make_conditioned_rows(fitted, dataset, None, executor, show)
        measure = find_likelihood_measure(subject, rows.n_features)
        name = measure.name or ""
        if not isinstance(fitted.model, HasLogLikelihood | HasLowerBound):
            name = HELD_OUT
        elif name not in ("log_likelihood", "lower_bound"):
            reasons, kind = " ".join(measure.refusals), type(fitted.model).__name__
            raise FitError(f"This {kind} fit has no log-likelihood. {reasons}")
        task = _make_transform_task(fitted, dataset, rows, seed)
        task = replace(
            task, measure=name, added_arrays=AddedArrays(features=list_features(dataset))
        )
        return transform_rows(task, rows, executor, show)[name]


def _make_conditioned_rows(
    fitted: Fitted, dataset: Dataset, split: str | None, executor: Executor, progress: Progress
) -> RowSource:
    """Return rows with what their neighbours say about them, if the model has sequences."""
    columns = find_sequence_columns(fitted.model)
    dataset.check_columns(columns)
    numbers = fitted.model.list_number_columns()
    rows = make_row_source(dataset, split, columns=columns, number_columns=numbers)
    return condition_rows(fitted.model, fitted.params, rows, executor, progress)


def _make_transform_task(
    fitted: Fitted, dataset: Dataset, rows: RowSource, seed: int
) -> TransformTask:
    arrays = {name: values for name, (_, values) in get_named_arrays(fitted.params).items()}
    fitted_segments = map_fitted_segments(fitted.params, fitted.segment_names)
    segments = find_segment_indices(fitted_segments, dataset.segment_names)
    return TransformTask(
        fitted.model, lambda: arrays, RowRandom(seed), rows.read, segments, "float64"
    )


def evaluate(
    fitted: Fitted | FittedEstimator | str | AnyPath,
    dataset: Any,
    *,
    split: str | None = None,
    label: str | None = None,
    fitted_split: str | None = None,
    dif: str | None = None,
    dif_test: Literal["mantel-haenszel", "likelihood-ratio"] = "mantel-haenszel",
    dif_purify: bool = False,
    outcomes: Sequence[str] = (),
    correction: Correction = "bch",
    reliability: bool = False,
    roll_calls: bool = False,
    calibration: bool = False,
    scores: bool | None = None,
    covariates: Sequence[str] = (),
    reference: int = 1,
    seed: int = 0,
    n_jobs: int = -1,
    executor: Executor | str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate how well a fitted model describes rows; `compare` compares several models.

    Parameters
    ----------
    fitted
        The fitted model: the result of `fit`, a fitted estimator, or the path of a fit.
    dataset, split
        The rows, with the features of the fit; as for `fit`. None takes all rows, whereas
        `flows.evaluate` takes `test`.
    label
        Per-row column, or `segment`, to predict from each row's nearest neighbours in code space.
    fitted_split
        Split that the model was fitted to, whose rows are the neighbours; None takes all rows.
    dif
        Per-row column with groups: test which items favour a group.
    dif_test
        By sum scores, for two groups, or by a fit per item.
    dif_purify
        With `dif_test="likelihood-ratio"`, repeat the tests without anchors that were found to be
        biased.
    outcomes
        Per-row columns to compare between the classes of a mixture: means of numbers, and shares of
        texts.
    correction
        How to allow for rows that are assigned to a wrong class: "bch", "ml" or "none".
    reliability
        Whether to describe the reliability of the sum of the features.
    roll_calls
        Whether to measure how well codes classify the values of their own rows.
    calibration
        Whether to compare shares of ones, and of joint ones, with those in rows drawn from the
        model.
    scores
        Whether to measure likelihoods, reconstructions and neighbours; None does so unless `dif`,
        `outcomes`, `reliability`, `roll_calls` or `covariates` are given without a label.
    covariates, reference
        Per-row columns to regress the classes of a mixture on, with the same correction, and the
        class that the others are compared with. `NAME=LEVEL` names the reference level of a column.
    seed, n_jobs, executor, progress
        As for `fit`.

    Returns
    -------
    Evaluation
        If the model provides them: `kind`, mean likelihood per row in nats and its standard error;
        `wrong_bits` and `nll_per_bit` of reconstructions, and for features with several levels
        `wrong_levels`, `rank_correlation` and, by feature, `levels`; for continuous features the
        mean `r2` and `correlation` of values and reconstructions and, by feature, `continuous`,
        with `rmse`; `held_out`, the same for continuous values predicted from the other values of
        their row, with the share that is `inside_90` % intervals, and for other features the share
        of `wrong_values` and the mean `nll_per_value`; `prediction` of labels. Unless
        all codes are equal: `neighbourhoods` and, with a label, `neighbour_labels`. With `dif`:
        `item_bias`. With outcomes: `classification`, P(assigned class | class), and `outcomes` with
        the estimates and standard errors of each class and a Wald test that all are equal. With
        `covariates`: `regression`, with coefficients and errors by covariate and class. With
        `reliability`: a list of that name, with a dictionary for all rows and one for each segment
        or group; `coefficients` has alpha, ordinal alpha and omega with errors and intervals,
        `turned` the same with the items in `reversed` reversed, and `traits` what a latent-trait
        fit implies. With `roll_calls`: a dictionary of that name, with the share of values that is
        `correct`, `apre` and `gmp`, and the lists `by_feature` and `by_row`. With `calibration`:
        `marginals` and `pairs`. `tables` has columns of tables, such as
        `pandas.DataFrame(evaluation.tables["dif"])`.

    Raises
    ------
    FitError
        If the features differ, or no row has a label to predict.
    """
    executor, fitted = choose_executor(executor, n_jobs), find_fitted(fitted)
    dataset = adapt_to_fit(make_dataset(dataset, fitted.source_features), fitted, split)
    if label is not None:
        check_has_levels(dataset, "label")
        dataset = adapt_to_fit(dataset, fitted, fitted_split)
    for name, value in (("dif", dif), ("reliability", reliability)):
        if value:
            check_has_order(dataset, name)
    if scores is None:
        has_other = any((dif, outcomes, reliability, roll_calls, covariates))
        scores = label is not None or not has_other
    with _translate_errors(dataset), show_progress(progress) as show:
        labels = find_target_labels(fitted.model, fitted.params, fitted.labels, dataset)
        subject = replace(_make_subject(fitted, dataset), labels=labels)
        run = (executor, seed, show)
        found: dict[str, Any] = {}
        if dif is not None:
            groups = (dif, dif_test, dif_purify)
            found["item_bias"] = _test_item_bias(fitted, dataset, split, groups, *run)
        if outcomes:
            found |= _relate_classes(fitted, subject, dataset, split, outcomes, correction, *run)
        if reliability:
            weights = measure_recorded_weights(fitted.manifest, dataset, split)
            own_rows = make_row_source(dataset, split, weights=weights)
            described = (list_features(dataset), dataset.segment_names, {"fit": subject})
            found["reliability"] = describe_reliability(own_rows, *described, executor, show)
        if roll_calls:
            check_has_levels(dataset, "roll_calls")
            all_rows = make_row_source(dataset, split)
            own_data = (dataset, list_features(dataset), all_rows, split)
            found["roll_calls"] = describe_roll_calls(subject, *own_data, *run)
        if covariates:
            own = (covariates, correction, reference)
            found["regression"] = _regress_classes(fitted, subject, dataset, split, *own, *run)
        if scores:
            vote = None
            if label is not None:
                vote = _draw_vote_rows(dataset, split, fitted_split, label, *run)
            found = {**_score_rows(subject, dataset, split, vote, *run), **found}
        if calibration:
            found |= _describe_calibration(subject, dataset, split, *run)
    return Evaluation(found)


def _score_rows(
    subject: EvaluatedModel,
    dataset: Dataset,
    split: str | None,
    vote: NeighbourVote | None,
    *run: Any,
) -> dict[str, Any]:
    """Measure likelihoods, reconstructions and neighbours."""
    columns = subject.labels.columns if subject.labels else find_sequence_columns(subject.model)
    numbers = subject.model.list_number_columns()
    rows = make_row_source(dataset, split, columns=columns, number_columns=numbers)
    drawn = draw_dataset_rows(rows, MAX_QUERY_ROWS, *run)
    codes = describe_code_quality(subject, subject, drawn, vote, *run)
    codes |= describe_held_out_values(subject, drawn, *run)
    return {**evaluate_rows(subject, rows, *run), **codes}


def _describe_calibration(
    subject: EvaluatedModel,
    dataset: Dataset,
    split: str | None,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Compare shares of ones in the data and in rows drawn from the model."""
    check_can_sample(subject.model)
    rows = make_row_source(dataset, split)
    planes, features = choose_compared_planes(select_with_levels(list_features(dataset)), seed)
    observed = count_observed_pairs(rows, planes, executor, progress)
    segment_rows = np.zeros(len(dataset.segment_names), np.int64)
    for _, segments in dataset.iter_segments(split):
        segment_rows += np.bincount(segments, minlength=len(segment_rows))
    names = list_plane_names(dataset)
    return describe_calibration(
        subject, segment_rows, observed, planes, features, names, executor, seed
    )


def _test_item_bias(
    fitted: Fitted,
    dataset: Dataset,
    split: str | None,
    groups: tuple[str, str, bool],
    executor: Executor,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Test which items favour a group; `groups` are their column, the test and purification."""
    from flows.evaluating import dif

    manifests = {"The fit": fitted.manifest}
    dif.check_has_no_weights(manifests)
    if groups[1] == "likelihood-ratio":
        dif.check_has_no_asymptotes(manifests)
    found = dif.find_dif_groups(dataset, split, *groups)
    assert found is not None
    rows, features = make_row_source(dataset, split, columns=groups[:1]), list_features(dataset)
    arguments = (found, rows, select_with_levels(features), seed, executor, progress)
    return dif.compute_item_bias(*arguments, dif.find_slopes(fitted.model, fitted.params, features))


def _relate_classes(
    fitted: Fitted,
    subject: EvaluatedModel,
    dataset: Dataset,
    split: str | None,
    outcomes: Sequence[str],
    correction: Correction,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Compare columns between the classes of a mixture, with the weights of its fit."""
    _check_correction(fitted, correction)
    columns = tuple(dict.fromkeys(list_names(outcomes, "outcomes")))
    dataset.check_columns(columns)
    texts, numbers = split_outcome_columns(columns, dataset)
    check_are_no_covariates(columns, get_row_columns(dataset).covariates)
    weights = measure_recorded_weights(fitted.manifest, dataset, split)
    rows = make_row_source(dataset, split, 0, (), texts, weights, numbers)
    arguments = (columns, dataset, correction, executor, progress)
    return relate_classes(subject, rows, *arguments)._asdict()


def _check_correction(fitted: Fitted, correction: Correction) -> None:
    check_is_mixture(fitted.model)
    if correction not in get_args(Correction):
        raise FitError(f"correction must be one of {', '.join(get_args(Correction))}.")


def _regress_classes(
    fitted: Fitted,
    subject: EvaluatedModel,
    dataset: Dataset,
    split: str | None,
    covariates: Sequence[str],
    correction: Correction,
    reference: int,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Regress the classes of a mixture on columns, with the weights of its fit."""
    _check_correction(fitted, correction)
    check_has_no_covariates(fitted.model)
    check_reference_class(reference, len(fitted.params.weights))
    weights = measure_recorded_weights(fitted.manifest, dataset, split)
    names = list_names(covariates, "covariates")
    own = measure_row_covariates(dataset, split, names, weights)
    assert own is not None
    rows = make_row_source(dataset.with_row_columns(RowColumns(own)), split, weights=weights)
    run = (correction, reference - 1, executor, progress)
    return regress_classes(subject, rows, own, *run)


def _draw_vote_rows(
    dataset: Dataset, split: str | None, fitted_split: str | None, label: str, *run: Any
) -> NeighbourVote:
    """Draw the rows whose label is predicted, and the fitted rows that vote on it."""
    columns = list_columns_to_read(label)
    draws = []
    for name, size in ((split, MAX_QUERY_ROWS), (fitted_split, MAX_REFERENCE_ROWS)):
        rows = make_row_source(dataset, name, columns=columns)
        draws.append(draw_labelled_rows(rows, size, label, dataset, *run))
    queries, references = draws
    return NeighbourVote(label, queries, references, is_other_data=False)


def _read_pattern(pattern: Any, names: Sequence[str]) -> PatternTable:
    from flows.data.parameter_tables import parse_pattern  # imports what reads files

    return parse_pattern(*_read_table(pattern, "pattern"), names, "the data")


def _read_table(table: Any, parameter: str) -> tuple[Mapping[str, Sequence[Any]], str]:
    """Read a loading pattern, or a table of scales, from a path or a data frame."""
    if isinstance(table, str | PathLike):
        from flows.data.parameter_tables import read_parameter_table  # imports what reads files

        columns = read_parameter_table(check_local_path(Path(table)), parameter)
        return columns, str(table)
    frame = wrap_frame(table, f"{{{parameter}}} must be a path or a data frame.")
    with translate_read_errors(parameter):
        columns = {name: frame[name].to_list() for name in frame.columns}
    return columns, "the table"


def _check_memory(model: Model, dataset: Dataset, executor: Executor) -> int:
    """Check that a fit fits into the free memory; return the bytes of rows to keep in memory."""
    free = find_memory_limit()
    shape = count_planes(dataset), len(dataset.segment_names)
    need = model.estimate_memory(*shape, getattr(executor, "n_threads", 1))
    check_memory(need, len(dataset.feature_names), free)
    return min(_ROW_MEMORY, free // 4)


def _make_subject(fitted: Fitted, dataset: Dataset, n_callers: int = 1) -> EvaluatedModel:
    """Check the features and match the segments; warn about segments that were not fitted.

    `n_callers` is the number of functions of this module between this one and the user's code.
    """
    own = list_features(dataset)
    expected = fitted.features if are_binary(own) else fitted.dataset_features
    check_same_features([feature.name for feature in expected], dataset.feature_names)
    check_same_levels(expected, own, "the fit")
    fitted_segments = map_fitted_segments(fitted.params, fitted.segment_names)
    for text in describe_unknown_segments(fitted_segments, dataset.segment_names):
        warn(text, stacklevel=2 + n_callers)
    return match_segments(
        fitted.model,
        fitted.params,
        fitted_segments,
        dataset.segment_names,
        features=list_features_to_reconstruct(dataset),
    )


@contextmanager
def _translate_errors(dataset: Dataset) -> Iterator[None]:
    """Translate errors so that they use the names of features and segments."""
    try:
        yield
    except FitError as error:
        raise error.with_names(list_plane_names(dataset), dataset.segment_names) from None


@contextmanager
def show_progress(progress: Progress | None = None) -> Iterator[Progress]:
    """Yield the given callback, or one that shows a line in a terminal or notebook."""
    screen = _find_screen()
    if progress is not None or screen is None:
        yield progress or ignore_progress
        return
    line = _ProgressLine(screen)
    try:
        yield line
    finally:
        line.clear()


class _ProgressLine:
    """Shows the progress of a pass once the work takes longer than a second."""

    def __init__(self, screen: ShowLine) -> None:
        self._screen = screen
        self._due, self._is_shown = time.monotonic() + _QUIET_SECONDS, False

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        if (now := time.monotonic()) >= self._due:
            self._due, self._is_shown = now + _UPDATE_SECONDS, True
            self._screen(f"{label}: {format_amount(done, total, rows)}")

    def clear(self) -> None:
        if self._is_shown:
            self._screen("")


def _find_screen() -> ShowLine | None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return _make_cell_screen()
    return _show_in_terminal if sys.stderr.isatty() else None


def _show_in_terminal(text: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{text[:width]}\x1b[K")
    sys.stderr.flush()


def _make_cell_screen() -> ShowLine:
    """Return a function that shows a line below a notebook cell, next to its other output."""
    from IPython import display

    display_new: Any = display.display
    shown: list[Any] = []

    def show(text: str) -> None:
        data = {"text/plain": text}
        if shown:
            shown[0].update(data, raw=True)
        else:
            shown.append(display_new(data, raw=True, display_id=True))

    return show


def query(
    fitted: Fitted | FittedEstimator | str | AnyPath,
    given: Mapping[str, Any] | None = None,
    of: Sequence[str] | str = (),
    *,
    joint: bool = False,
    segment: str | None = None,
) -> QueryAnswer:
    """Compute probabilities of features, given the values of other features.

    Features that are neither in `given` nor in `of` may have any value: the likelihood of the model
    integrates them out.

    Parameters
    ----------
    fitted
        The fitted model: the result of `fit`, a fitted estimator, or the path of a fit.
    given
        The evidence: a level, or the number of a continuous feature, by feature. None means no
        evidence.
    of
        Names of the features whose probabilities to compute, or one name.
    joint
        Compute the probabilities of all combinations of their levels, instead of each feature.
    segment
        Name of a segment, or group, of the fit. None takes all, with their shares of the fitted
        rows.

    Returns
    -------
    QueryAnswer
        Columns of a table, also for a data frame: one line per level of each feature, with
        `probability`, `marginal` (without evidence) and `lift`, their ratio. `log_evidence` is the
        log-probability of the evidence.

    Raises
    ------
    FitError
        If a name or a level is unknown, the evidence is impossible, or the model has no accurate
        likelihood.

    Examples
    --------
    >>> import pandas as pd
    >>> answer = query("runs/baskets", {"milk": 1}, ["bread", "butter"])  # doctest: +SKIP
    >>> pd.DataFrame(answer)  # doctest: +SKIP
    """
    own = find_fitted(fitted)
    names = [of] if isinstance(of, str) else list_names(of, "of")
    if not isinstance(given, Mapping | None):
        raise FitError(f"given must be a dictionary of values, but is a {type(given).__name__}.")
    checked = make_query(own.features, given or {}, names, joint=joint)
    index = None
    if segment is not None:
        segments = map_fitted_segments(own.params, own.segment_names)
        index = find_segment_index(segments, segment, SEGMENT_REMEDY)
    return answer_query(own.model, own.params, checked, index)


def read_items(items: Any) -> KnownItems:
    """Read known items from anything that `fit` takes.

    Raises
    ------
    ValueError
        If they cannot be read; see `pipeline.models.known_items.parse_known_items`.
    """
    items = getattr(items, "fitted_", items)
    if isinstance(items, Fitted):
        digest = items.manifest.get("manifest_digest")
        return get_fitted_items(items.model, items.params, items.features, "the fit", digest)
    if isinstance(items, str | Path):
        from flows.data.parameter_tables import read_known_items  # imports what reads files

        return read_known_items(str(items))
    if not isinstance(items, Mapping):
        remedy = "Give the columns feature, slope and offset."
        frame = wrap_frame(items, remedy)
        items = read_columns(frame, list_columns(frame))
    return parse_known_items({k: list(np.atleast_1d(v)) for k, v in items.items()}, "the table")


class LinkedItems(ResultDisplayMixin, dict[str, Any]):
    """Results of `link_items`: columns of a table of items, for `fit(items=…)` or a data frame.

    `feature`, `slope` and `offset` are the items of the new fit on the scale of the old one.

    Attributes
    ----------
    A, B
        The constants: a trait x of the new fit is A x + B on the scale of the old one.
    common
        Names of the items in both fits.
    difference
        Root mean squared difference of the test characteristic curves of the common items, in ones.
    """

    def __init__(self, features: tuple[str, ...], link: ItemLink) -> None:
        super().__init__(feature=list(features), slope=link.slopes, offset=link.offsets)
        self.A, self.B = link.A, link.B
        self.common, self.difference = link.common, link.difference

    def _iter_display_items(self) -> DisplayItems:
        yield "A", f"{self.A:.6g}"
        yield "B", f"{self.B:.6g}"
        yield "common items", f"{len(self.common):,}"
        yield "difference", f"{self.difference:.3g}"
        yield "items", f"{len(self['feature']):,}"


def link_items(
    new: Fitted | FittedEstimator | str | AnyPath, old: Fitted | FittedEstimator | str | AnyPath
) -> LinkedItems:
    """Put the items of a latent-trait fit on the scale of another one with common items.

    The constants of the scale minimise the difference of the test characteristic curves of the
    common items (M. L. Stocking, F. M. Lord, Applied Psychological Measurement 7, 1983).

    Parameters
    ----------
    new, old
        Fits with one component each: results of `fit`, fitted estimators, or paths. Items are
        matched by name.

    Raises
    ------
    FitError
        If a fit is of another model or has several components, or fewer than two items are common.
    """
    own = find_fitted(new)
    items = [
        get_fitted_items(fitted.model, fitted.params, fitted.features, source)
        for fitted, source in ((own, "The new fit"), (find_fitted(old), "the old fit"))
    ]
    return LinkedItems(own.feature_names, compute_link(*items))


class Comparison(ResultDisplayMixin, dict[str, list[Any]]):
    """Results of `compare`: columns of a table with one line per fit, for a data frame."""

    def _iter_display_items(self) -> DisplayItems:
        for k, name in enumerate(self["fit"]):
            line = {column: values[k] for column, values in self.items()}
            texts = [line["model"]]
            for column in (*STATISTICS, "chi2", "df", "p"):
                if (value := line[column]) is not None:
                    number = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
                    texts.append(f"{column} {f'{value:.4f}' if column == 'p' else number}")
            if line["against"] is not None:
                texts.append(f"against {line['against']}")
            elif line["no_test"]:
                texts.append(f"no test against {line['no_test']}")
            yield name, shorten(", ".join(texts))


def compare(
    fits: Sequence[Fitted | FittedEstimator | str | AnyPath]
    | Mapping[str, Fitted | FittedEstimator | str | AnyPath],
) -> Comparison:
    """Compare fits to the same rows: log-likelihood, AIC, BIC and likelihood-ratio tests.

    Each fit is tested against the largest smaller one of which it is a generalization.

    Parameters
    ----------
    fits
        Two or more fits: results of `fit`, fitted estimators, or paths. The keys of a dictionary
        name them; others are named by their paths, or `fit 1`, `fit 2`, …

    Returns
    -------
    Comparison
        Columns of a table, also for a data frame: one line per fit, those with fewer parameters
        first, with `fit`, `model`, `n_rows`, `log_likelihood` (without terms of a prior),
        `n_parameters`, `aic`, `bic`, `adjusted_bic`, `entropy_r2` of classes, whether the fit has
        `converged`, and whether `aic` and `bic` can be compared with those of the first line
        (`is_comparable`). `against` names the fit of the test, with `chi2`, `df` and `p`; `no_test`
        is the reason why there is none.

    Raises
    ------
    FitError
        If there are fewer than two fits.

    Examples
    --------
    >>> import pandas as pd
    >>> pd.DataFrame(compare(["runs/one", "runs/two"]))  # doctest: +SKIP
    """
    if isinstance(fits, Mapping):
        named = dict(fits)
    else:
        named = {
            f"fit {k}" if hasattr(own, "fitted_") or isinstance(own, Fitted) else str(own): own
            for k, own in enumerate(fits, start=1)
        }
    found = {name: find_fitted(own) for name, own in named.items()}
    records = {name: FitRecord(own.model, own.params, own.manifest) for name, own in found.items()}
    lines = compare_fits(records)
    return Comparison({name: [line[name] for line in lines] for name in lines[0]})
