"""What a fit is to do, checked, and what its stages share within their process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.hyperparameters import build_model
from flows.cli.splits import resolve_fit_split
from flows.data.datasets import make_row_source, open_dataset_or_example, read_true_mixing
from flows.data.fitted import LoadedModel
from flows.fitting.kept_statistics import open_kept_statistics
from flows.fitting.options import FitOptions
from flows.fitting.provenance import compute_fingerprint, describe_provenance
from flows.fitting.warm_start import find_warm_start
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.memory import find_memory_limit
from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.fitting.pair_work import get_pair_job_label
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPredict
from pipeline.passes.map_reduce import KeptSums
from pipeline.statistics.labels import SEGMENT
from pipeline.statistics.sums import Statistics
from storage.artifacts.run_folders import RunFolder
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import parse_path


@dataclass(frozen=True)
class FitPlan:
    """A fit that can be done, as far as that can be told at once; `prepare_fit` makes it.

    Attributes
    ----------
    options
        What was asked for.
    model
        Hyperparameters.
    dataset, split
        The rows to fit.
    start
        The fit to begin at.
    truth
        The mixing to compare with, (n_features, n_components).
    described
        What decides the result, as the artifact records it.
    run
        Where the fit leaves what it makes.
    open_executor
        Opens what its tasks run on.
    """

    options: FitOptions
    model: Model
    dataset: BinaryDataset
    split: str | None
    initial_fit: LoadedModel | None
    truth: NDArray[np.float64] | None
    provenance: Mapping[str, Any]
    run_folder: RunFolder
    open_executor: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class FitJob(FitPlan):
    """A fit that is being done.

    Attributes
    ----------
    executor, progress
        Where its tasks run, and who is told of them.
    skipped
        Damaged chunks, which are left out.
    """

    executor: Executor
    progress: Progress
    skipped: tuple[int, ...] = ()

    @cached_property
    def memory_budget(self) -> int:
        """Bytes that the fit may take."""
        return find_memory_limit(self.options.memory)

    @property
    def minimum_memory(self) -> int:
        """Bytes that the model needs at the least."""
        from dask.system import CPU_COUNT

        return self.model.estimate_memory(
            self.dataset.n_features, self.dataset.n_segments, CPU_COUNT
        )

    @property
    def row_memory(self) -> int:
        """Bytes of rows that stay in memory, where passes or pairs come back to them."""
        before = get_pair_job_label(self.model, self.dataset.n_features)
        returns = self.model.max_iter > 1 or before is not None
        return min(compute_row_memory(self.executor), self.memory_budget // 4) if returns else 0

    @property
    def rows(self) -> RowSource:
        """The rows to fit."""
        columns = self.model.list_required_columns()
        return make_row_source(self.dataset, self.split, self.row_memory, self.skipped, columns)

    def open_kept_statistics(self, kind: type[Statistics], counted: str | None) -> KeptSums[Any]:
        """Sums beside the dataset are of all its chunks."""
        whole = counted if not self.skipped else None
        return open_kept_statistics(self.dataset, self.split, kind, whole)


def prepare_fit(options: FitOptions) -> FitPlan:
    """Refuse what can be refused at once: options, dataset, split, truth, the fit to begin at.

    Raises
    ------
    DataError, FitError
        If the fit cannot be done.
    """
    open_executor = prepare_executor(**options.where)
    model = build_model(options.model, options.components, options.settings, options.layers)
    check_seed(options.seed)
    if options.memory is not None:
        find_memory_limit(options.memory)
    dataset = open_dataset_or_example(options.dataset)
    split = resolve_fit_split(dataset, options.split)
    _check_labels(model, dataset)
    truth = _load_truth(model, dataset) if options.truth else None
    stem = dataset.path.resolve().stem
    runs, start = parse_path(options.output) if options.output else parse_path("runs") / stem, None
    if options.warm_start:
        model, start = find_warm_start(model, options.components, dataset, runs)
    described = {
        **describe_provenance(model, dataset, split, options.seed, start=start),
        "skip_corrupt": options.skip_corrupt,
    }
    run = RunFolder(runs, model.name, compute_fingerprint(described))
    return FitPlan(options, model, dataset, split, start, truth, described, run, open_executor)


def _check_labels(model: Model, dataset: BinaryDataset) -> None:
    """Refuse a column that is not there, and segments as labels where all rows are of one."""
    dataset.check_columns(model.list_required_columns())
    is_of_segments = isinstance(model, CanPredict) and model.column == SEGMENT
    if is_of_segments and dataset.n_segments < 2:
        have = ", ".join(dataset.column_names) or "none"
        raise FitError(
            f"{dataset.path}: Expected at least two segments to tell apart, got one. Give a "
            f"per-row column: --set column=NAME. It has: {have}."
        )


def _load_truth(model: Model, dataset: BinaryDataset) -> NDArray[np.float64]:
    truth = read_true_mixing(dataset)
    if all(param.name != "mixing" for param in fields(model.params)):
        raise FitError(
            f"--truth: Expected a model with a mixing matrix, got {model.name}. Leave out --truth."
        )
    return truth
