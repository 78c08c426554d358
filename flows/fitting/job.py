"""A checked fit: its options, model and rows, and everything else that the stages share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.hyperparameters import parse_model_options
from flows.cli.options import parse_local_path
from flows.cli.progress import log
from flows.cli.summary import join_names
from flows.data.datasets import (
    TRAIN,
    LoadedModel,
    check_dataset_features,
    load_fitted_model,
    open_dataset_or_example,
    read_true_mixing,
    resolve_split,
)
from flows.data.parameter_tables import parse_pattern, read_known_items, read_parameter_table
from flows.fitting.checkpoints import open_kept_results, open_kept_statistics
from flows.fitting.options import FitOptions
from flows.fitting.provenance import compute_fingerprint, describe_artifact
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.resources import find_memory_limit
from pipeline.data.blocks import RowSource
from pipeline.data.datasets import make_row_source
from pipeline.errors import FitError
from pipeline.evaluation.records import describe_provenance
from pipeline.executors.base import Executor
from pipeline.executors.central_work import KeptResults
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.fitting.pair_work import get_pair_job_label
from pipeline.fitting.prepare import FitRequest, PatternTable, PreparedFit, prepare
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPredict, CanWarmStart
from pipeline.models.registry import find_model_class, find_models, make_model
from pipeline.models.settings import list_hyperparameters
from pipeline.params import list_arrays
from pipeline.passes.map_reduce import KeptSums
from pipeline.statistics.labels import SEGMENT
from pipeline.statistics.sums import Statistics
from storage.artifacts.artifacts import RunFolder
from storage.artifacts.retention import RetentionRule, parse_retention_rule
from storage.dataset.dataset import MAX_BYTES_AHEAD, BinaryDataset
from storage.quoting import split_quoted, unquote
from storage.sources.base import choose_features
from storage.sources.value_codes import ReadOptions
from storage.stores.locations import LATEST_NAME, AnyPath, check_outside_datasets, parse_path


@dataclass(frozen=True, kw_only=True)
class FitPlan(PreparedFit[BinaryDataset]):
    """A checked fit; `prepare_fit` creates it.

    Attributes
    ----------
    truth
        The true mixing matrix to compare with, (n_features, n_components).
    provenance
        Everything that determines the result, as the artifact records it.
    run_folder
        The folder of the artifact and of unfinished work.
    retention
        Which fits of the folder to keep after the fit; all if None.
    """

    options: FitOptions
    truth: NDArray[np.float64] | None
    provenance: Mapping[str, Any]
    run_folder: RunFolder
    open_executor: Callable[[], AbstractContextManager[Executor]]
    retention: RetentionRule | None = None


@dataclass(frozen=True, kw_only=True)
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
        from dask.system import CPU_COUNT

        columns, split = self.model.list_required_columns(), self.request.split
        return make_row_source(
            self.dataset,
            split,
            self.row_memory,
            self.skipped,
            columns,
            self.weights,
            self.model.list_number_columns(),
            ahead=min(MAX_BYTES_AHEAD, self.memory_budget // (8 * CPU_COUNT)),
        )

    def open_kept_statistics(self, kind: type[Statistics], key: str | None) -> KeptSums[Any]:
        """Open the kept statistics of a key, unless chunks are skipped: they cover all chunks."""
        if self.skipped:
            key = None
        elif key is not None:
            group, view = self.request.group, self.dataset.view
            weights_key = "" if self.weights is None else f" {self.weights.key}"
            key = f"{key}{weights_key}{'' if group is None else f' group {group}'}"
            key = key if view is None else f"{key} features {view}"
        return open_kept_statistics(self.dataset, self.request.split, kind, key)

    @property
    def kept_results(self) -> KeptResults:
        """Results of central work, kept in the work folder until the fit has ended."""
        return open_kept_results(self.run_folder.work_folder / "central")


def prepare_fit(options: FitOptions) -> FitPlan:
    """Check everything that can be checked before the work starts."""
    open_executor = prepare_executor(**options.where)
    settings = [*options.settings]
    if options.segments is not None:
        if "segments" not in list_hyperparameters(find_model_class(options.model)):
            raise FitError(
                f"{options.model} finds no segments, unlike blica. Leave out {{segments}}.",
                parameter="segments",
            )
        settings.append(f"segments={options.segments}")
    parsed = parse_model_options(options.model, options.components, settings, options.layers)
    model = make_model(options.model, **parsed)
    check_seed(options.seed)
    retention = None
    if options.runs_to_keep is not None:
        retention = parse_retention_rule(options.runs_to_keep, "{runs_to_keep}")
    if options.memory is not None:
        find_memory_limit(options.memory)
    dataset = open_dataset_or_example(options.dataset)
    _check_labels(model, dataset)
    read_before = [f.name for f in fields(FitRequest) if "is_column" in f.metadata]
    for name in (*read_before, "covariates"):
        if getattr(options, name) is not None and options.skip_corrupt:
            raise FitError(
                f"{{{name}}} cannot be combined with {{skip_corrupt}}. Leave out one of them."
            )
    default_runs = parse_path("runs") / dataset.path.resolve().stem
    runs = parse_path(options.output) if options.output else default_runs
    check_outside_datasets(runs / LATEST_NAME)
    initial_fit = _load_initial_fit(model, runs) if options.warm_start else None
    features, reverse = choose_features(
        str(dataset.path),
        dataset.feature_names,
        ReadOptions(features=options.features, drop=options.drop),
        options.reverse,
    )
    same_names = {f.name for f in fields(FitRequest)} & {f.name for f in fields(FitOptions)}
    own_values = {
        **parsed,
        "split": resolve_split(dataset, options.split, TRAIN),
        "features": features,
        "reverse": reverse,
        "covariates": _parse_covariates(options.covariates),
        "pattern": None
        if options.pattern is None
        else partial(_read_pattern, options.pattern, dataset),
        "items": None if options.items is None else partial(read_known_items, options.items),
        "initial_fit": initial_fit,
        "dataset_name": str(dataset.path),
    }
    request = FitRequest(**{name: getattr(options, name) for name in same_names} | own_values)
    prepared = prepare(request, dataset)
    if initial_fit is not None and _has_new_features(initial_fit, prepared.dataset):
        initial_fit = None
        prepared = replace(prepared, request=replace(request, initial_fit=None))
    elif initial_fit is not None:
        check_dataset_features(initial_fit, prepared.dataset, "Fit once without {warm_start}.")
    truth = _load_truth(model, prepared.dataset) if options.truth else None
    if options.skip_corrupt and any(pole.row is not None for pole in prepared.poles):
        raise FitError(
            "{orient} with the name of a row cannot be combined with {skip_corrupt}. Name a "
            "feature, or leave out one of them."
        )
    if options.skip_corrupt and prepared.anchors:
        raise FitError("{anchors} cannot be combined with {skip_corrupt}. Leave out one of them.")
    provenance = {
        **describe_provenance(
            prepared.model,
            prepared.dataset,
            request.split,
            request.seed,
            warm_start=None if initial_fit is None else describe_artifact(initial_fit),
            choices=prepared.choices,
        ),
        "skip_corrupt": options.skip_corrupt,
    }
    recorded = provenance["dataset"]
    run_folder = RunFolder(
        runs,
        prepared.model.name,
        compute_fingerprint(provenance),
        recorded["path"],
        recorded["digest"],
    )
    return FitPlan(
        **vars(prepared),
        options=options,
        truth=truth,
        provenance=provenance,
        run_folder=run_folder,
        open_executor=open_executor,
        retention=retention,
    )


def _has_new_features(latest: LoadedModel, dataset: BinaryDataset) -> bool:
    """Return whether appended rows brought features that the latest fit does not have; say so."""
    known, added = {*latest.feature_names}, dataset.manifest.get("added_features", {})
    new = [name for name in dataset.feature_names if name not in known and name in added]
    if not new or (*latest.feature_names, *new) != dataset.feature_names:
        return False
    log.warning(
        "warning: the fit does not start from the latest artifact, %s, because features were added "
        "since: %s",
        latest.artifact.path,
        join_names(new),
    )
    return True


def _parse_covariates(text: str | None) -> list[str] | None:
    """Split names at commas outside of quotes, such as `age,school=North`."""
    if text is None:
        return None
    return ["=".join(map(unquote, split_quoted(part, "="))) for part in split_quoted(text, ",")]


def _read_pattern(name: str, dataset: BinaryDataset) -> PatternTable:
    path = parse_local_path(name)
    columns = read_parameter_table(path, "pattern")
    return parse_pattern(columns, str(path), dataset.feature_names, str(dataset.path))


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


def _load_initial_fit(model: Model, runs: AnyPath) -> LoadedModel | None:
    """Load the latest fit in the folder of runs, and check that it is of the same model.

    The first fit has none: a scheduled one always starts from the latest.
    """
    if not isinstance(model, CanWarmStart):
        names = sorted(n for n, kind in find_models().items() if issubclass(kind, CanWarmStart))
        raise FitError(
            f"{model.name} does not iterate and needs no start, unlike {', '.join(names)}. "
            "Leave out {warm_start}."
        )
    if not (runs / LATEST_NAME).is_file():
        log.warning("warning: the fit starts anew, because %s contains no latest artifact", runs)
        return None
    latest = load_fitted_model(runs)
    if latest.model.name != model.name:
        raise FitError(
            f"The latest artifact, {latest.artifact.path}, is of {latest.model.name}, not of "
            f"{model.name}. Fit once without {{warm_start}}."
        )
    return latest
