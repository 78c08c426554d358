"""A checked fit: its options, model and rows, and everything else that the stages share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.hyperparameters import AUTO, build_model
from flows.cli.options import parse_local_path
from flows.data.datasets import (
    TRAIN,
    LoadedModel,
    check_dataset_features,
    load_fitted_model,
    make_row_source,
    open_dataset_or_example,
    read_true_mixing,
    resolve_split,
)
from flows.data.parameter_tables import read_known_items, read_parameter_table
from flows.fitting.kept_statistics import open_kept_statistics
from flows.fitting.options import FitOptions
from flows.fitting.provenance import compute_fingerprint, describe_artifact
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.resources import find_memory_limit
from pipeline.data.blocks import RowSource
from pipeline.data.covariates import have_same_columns, read_covariates
from pipeline.data.features import list_features
from pipeline.data.plane_views import cut_levels
from pipeline.data.weights import RowWeights
from pipeline.errors import FitError
from pipeline.evaluation.records import describe_provenance
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.fitting.pair_work import get_pair_job_label
from pipeline.inference.orientation import Pole, prepare_poles
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPredict, CanWarmStart
from pipeline.models.feature_kinds import (
    check_can_have_features,
    find_cut_levels,
    find_split_levels,
    split_levels_for,
)
from pipeline.models.known_items import check_can_have_known_items, match_items
from pipeline.models.loading_pattern import make_loading_pattern, match_traits
from pipeline.models.registry import find_models, get_fixed_settings
from pipeline.models.row_covariates import measure_row_covariates
from pipeline.models.row_groups import check_can_have_groups, list_groups
from pipeline.models.row_weights import measure_row_weights
from pipeline.models.structure import Structure
from pipeline.params import list_arrays
from pipeline.passes.map_reduce import KeptSums
from pipeline.statistics.labels import SEGMENT
from pipeline.statistics.sums import Statistics
from storage.artifacts.artifacts import RunFolder
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.quoting import split_quoted, unquote
from storage.stores.locations import LATEST_NAME, AnyPath, check_outside_datasets, parse_path


@dataclass(frozen=True)
class FitPlan:
    """A checked fit; `prepare_fit` creates it.

    Attributes
    ----------
    dataset, split, weights
        The rows to fit, and their weights if they have any.
    initial_fit
        The fit to start from, with `--warm-start`.
    truth
        The true mixing matrix to compare with, (n_features, n_components).
    poles
        Rows and features that choose the signs of components, with `--orient`.
    provenance
        Everything that determines the result, as the artifact records it.
    run_folder
        The folder of the artifact and of unfinished work.
    """

    options: FitOptions
    model: Model
    dataset: BinaryDataset
    split: str | None
    weights: RowWeights | None
    initial_fit: LoadedModel | None
    truth: NDArray[np.float64] | None
    poles: tuple[Pole, ...]
    provenance: Mapping[str, Any]
    run_folder: RunFolder
    open_executor: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class FitJob(FitPlan):
    """A running fit; `skipped` are the keys of damaged chunks to leave out."""

    executor: Executor
    progress: Progress
    skipped: tuple[int, ...] = ()

    @cached_property
    def memory_budget(self) -> int:
        """Bytes that the fit may use."""
        return find_memory_limit(self.options.memory)

    @property
    def minimum_memory(self) -> int:
        """Bytes that the model needs at least."""
        from dask.system import CPU_COUNT

        return self.model.estimate_memory(self.dataset.n_planes, self.dataset.n_segments, CPU_COUNT)

    @property
    def row_memory(self) -> int:
        """Bytes of rows to keep in memory; 0 if the fit reads them only once."""
        has_pair_work = get_pair_job_label(self.model, self.dataset.n_planes) is not None
        if self.model.max_iter in (0, 1) and not has_pair_work:
            return 0
        return min(compute_row_memory(self.executor), self.memory_budget // 4)

    @property
    def rows(self) -> RowSource:
        """The rows to fit."""
        columns = self.model.list_required_columns()
        return make_row_source(
            self.dataset, self.split, self.row_memory, self.skipped, columns, self.weights
        )

    def open_kept_statistics(self, kind: type[Statistics], key: str | None) -> KeptSums[Any]:
        """Open the kept statistics of a key, unless chunks are skipped: they cover all chunks."""
        if self.skipped:
            key = None
        elif key is not None:
            group, view = self.options.group, self.dataset.view
            weights_key = "" if self.weights is None else f" {self.weights.key}"
            key = f"{key}{weights_key}{'' if group is None else f' group {group}'}"
            key = key if view is None else f"{key} planes {view.planes}"
        return open_kept_statistics(self.dataset, self.split, kind, key)


def prepare_fit(options: FitOptions) -> FitPlan:
    """Check everything that can be checked before the work starts."""
    open_executor = prepare_executor(**options.where)
    model = build_model(options.model, options.components, options.settings, options.layers)
    check_seed(options.seed)
    if options.memory is not None:
        find_memory_limit(options.memory)
    uncut = open_dataset_or_example(options.dataset)
    dataset = cut_levels(uncut, options.cut)
    split_levels = {**find_cut_levels(uncut, dataset), **find_split_levels(model, dataset)}
    dataset = split_levels_for(model, dataset)
    split = resolve_split(dataset, options.split, TRAIN)
    _check_labels(model, dataset)
    for name in ("weight", "group", "covariates"):
        if getattr(options, name) is not None and options.skip_corrupt:
            raise FitError(
                f"{{{name}}} cannot be combined with {{skip_corrupt}}. Leave out one of them."
            )
    if options.group is not None:
        check_can_have_groups(model)
        dataset = dataset.segment_by(options.group)
    weights = measure_row_weights(
        model, dataset, split, options.weight, options.weights, options.psu
    )
    names = None
    if options.covariates is not None:
        parts = split_quoted(options.covariates, ",")
        names = ["=".join(map(unquote, split_quoted(part, "="))) for part in parts]
    covariates = measure_row_covariates(model, dataset, split, names, weights)
    dataset = dataset.with_covariates(covariates)
    pattern = None
    if options.pattern is not None:
        path = parse_local_path(options.pattern)
        columns = read_parameter_table(path, "pattern")
        pattern = make_loading_pattern(columns, dataset.feature_names, str(path))
        model = match_traits(model, pattern, options.components)
    truth = _load_truth(model, dataset) if options.truth else None
    default_runs, initial_fit = parse_path("runs") / dataset.path.resolve().stem, None
    runs = parse_path(options.output) if options.output else default_runs
    check_outside_datasets(runs / LATEST_NAME)
    if options.warm_start:
        is_fixed = pattern is not None or "n_components" in get_fixed_settings(options.model)
        components = model.n_components if is_fixed else options.components
        model, initial_fit = find_warm_start(
            model, components, dataset, runs, options.group, can_change_components=not is_fixed
        )
    items, known, features = None, None, list_features(dataset)
    if options.items is not None:
        check_can_have_known_items(model)
        items = read_known_items(options.items)
        are_components_set = options.components is not None or options.warm_start
        model = match_items(model, items, are_components_set)
        known = items.align(features, model.items, str(dataset.path))
    groups = () if options.group is None else list_groups(dataset, split, weights)
    check_can_have_features(model, features)
    model = model.with_structure(Structure(groups, features, known, pattern, covariates))
    poles = prepare_poles(options.orient, model, dataset, split, has_known_items=items is not None)
    if options.skip_corrupt and any(pole.row is not None for pole in poles):
        raise FitError(
            "{orient} with the name of a row cannot be combined with {skip_corrupt}. Name a "
            "feature, or leave out one of them."
        )
    provenance = {
        **describe_provenance(
            model,
            dataset,
            split,
            options.seed,
            warm_start=None if initial_fit is None else describe_artifact(initial_fit),
            weights=weights,
            group=options.group,
            items=items,
            pattern=pattern,
            split_levels=split_levels,
            orient=options.orient,
        ),
        "skip_corrupt": options.skip_corrupt,
    }
    run_folder = RunFolder(runs, model.name, compute_fingerprint(provenance))
    return FitPlan(
        options,
        model,
        dataset,
        split,
        weights,
        initial_fit,
        truth,
        poles,
        provenance,
        run_folder,
        open_executor,
    )


def _check_labels(model: Model, dataset: BinaryDataset) -> None:
    """Check that the dataset has the columns that the model needs, and labels that differ."""
    dataset.check_columns(model.list_required_columns())
    is_of_segments = isinstance(model, CanPredict) and model.column == SEGMENT
    if is_of_segments and dataset.n_segments < 2:
        names = ", ".join(dataset.column_names) or "none"
        raise FitError(
            f"{dataset.path} has only one segment, so segments cannot be predicted. Choose a "
            f"per-row column by {{column=NAME}}. It has: {names}."
        )


def _load_truth(model: Model, dataset: BinaryDataset) -> NDArray[np.float64]:
    truth = read_true_mixing(dataset)
    if "mixing" not in list_arrays(model.params):
        raise FitError(f"{model.name} has no mixing matrix. Leave out {{truth}}.")
    return truth


def find_warm_start(
    model: Model,
    components: int | str | None,
    dataset: BinaryDataset,
    runs: AnyPath,
    group: str | None = None,
    *,
    can_change_components: bool = True,
) -> tuple[Model, LoadedModel]:
    """Find the latest fit in the folder of runs to start from, and check that it can be used.

    Parameters
    ----------
    model
        The model to fit; its settings may differ from those of the latest fit.
    components
        Value of `--components`; None or `auto` keep the number of the latest fit.
    dataset, runs
        The rows to fit, and the folder of runs.
    group
        Value of `--group`; the latest fit must have the same.
    can_change_components
        Whether `--components` may be another number; errors suggest it only then.

    Returns
    -------
    tuple
        The model with its number of components, and the fit to start from.
    """
    if not isinstance(model, CanWarmStart):
        names = sorted(n for n, kind in find_models().items() if issubclass(kind, CanWarmStart))
        raise FitError(
            f"{model.name} does not iterate and needs no start, unlike {', '.join(names)}. "
            "Leave out {warm_start}."
        )
    if not (runs / LATEST_NAME).is_file():
        raise DataError(
            f"{runs} contains no latest artifact to start from. Fit once without {{warm_start}}."
        )
    latest = load_fitted_model(runs)
    if latest.model.name != model.name:
        raise FitError(
            f"The latest artifact, {latest.artifact.path}, is of {latest.model.name}, not of "
            f"{model.name}. Fit once without {{warm_start}}."
        )
    check_dataset_features(latest, dataset, "Fit once without {warm_start}.")
    recorded = latest.artifact.manifest.get("group")
    if recorded != group:
        groups = "no groups" if recorded is None else f"groups by {recorded}"
        raise FitError(
            f"The latest artifact, {latest.artifact.path}, has {groups}, unlike this fit. "
            "Fit once without {warm_start}."
        )
    if not have_same_columns(read_covariates(latest.artifact.manifest), dataset.covariates):
        raise FitError(
            f"The latest artifact, {latest.artifact.path}, has other covariates than this fit. Fit "
            "once without {warm_start}."
        )
    n_components = int(latest.artifact.manifest["n_components"])
    if components not in (None, AUTO) and model.n_components != n_components:
        remedy = (
            f"Set {{components={n_components}}}, or leave" if can_change_components else "Leave"
        )
        raise FitError(
            f"The latest artifact, {latest.artifact.path}, has {n_components} components, not "
            f"{model.n_components}. {remedy} out {{warm_start}}."
        )
    if getattr(model, "layers", None) is not None:
        return model, latest  # its warm start compares the layers
    try:
        return replace(model, n_components=n_components), latest  # type: ignore[call-arg]
    except FitError:
        raise FitError(
            f"The latest artifact, {latest.artifact.path}, has {n_components} components, which "
            "the settings of this fit do not allow. Use the settings of that fit, or leave out "
            "{warm_start}."
        ) from None
