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
from flows.cli.splits import split_to_fit
from flows.data.datasets import dataset_rows, open_named, true_mixing
from flows.data.fitted import Fitted
from flows.fitting.kept_statistics import kept_statistics
from flows.fitting.options import FitOptions
from flows.fitting.provenance import fingerprint, provenance
from flows.fitting.warm_start import warm_start
from flows.running.executors import executor_to_open, memory_for_rows
from flows.running.memory import memory_limit
from pipeline.data.blocks import Rows
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.fitting.pair_work import work_label
from pipeline.models.base import Model
from pipeline.models.capabilities import Supervised
from pipeline.passes.collect import Kept
from pipeline.statistics.base import Statistics
from pipeline.statistics.labels import SEGMENT
from storage.artifacts.run_folders import RunFolder
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import place


@dataclass(frozen=True)
class Plan:
    """A fit that can be done, as far as that can be told at once; `check` makes it.

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
    start: Fitted | None
    truth: NDArray[np.float64] | None
    described: Mapping[str, Any]
    run: RunFolder
    open_executor: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class Job(Plan):
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
    def limit(self) -> int:
        """Bytes that the fit may take."""
        return memory_limit(self.options.memory)

    @property
    def need(self) -> int:
        """Bytes that the model needs at the least."""
        from dask.system import CPU_COUNT

        return self.model.memory(self.dataset.n_features, self.dataset.n_segments, CPU_COUNT)

    @property
    def memory(self) -> int:
        """Bytes of rows that stay in memory, where passes or pairs come back to them."""
        before = work_label(self.model, self.dataset.n_features)
        returns = self.model.max_iter > 1 or before is not None
        return min(memory_for_rows(self.executor), self.limit // 4) if returns else 0

    @property
    def rows(self) -> Rows:
        """The rows to fit."""
        columns = self.model.reads_columns()
        return dataset_rows(self.dataset, self.split, self.memory, self.skipped, columns)

    def kept(self, kind: type[Statistics], counted: str | None) -> Kept[Any]:
        """Sums beside the dataset are of all its chunks."""
        whole = counted if not self.skipped else None
        return kept_statistics(self.dataset, self.split, kind, whole)


def check(options: FitOptions) -> Plan:
    """Refuse what can be refused at once: options, dataset, split, truth, the fit to begin at.

    Raises
    ------
    DataError, FitError
        If the fit cannot be done.
    """
    open_executor = executor_to_open(**options.where)
    model = build_model(options.model, options.components, options.settings, options.layers)
    check_seed(options.seed)
    if options.memory is not None:
        memory_limit(options.memory)
    dataset = open_named(options.dataset)
    split = split_to_fit(dataset, options.split)
    _check_labels(model, dataset)
    truth = _truth(model, dataset) if options.truth else None
    stem = dataset.path.resolve().stem
    runs, start = place(options.output) if options.output else place("runs") / stem, None
    if options.warm_start:
        model, start = warm_start(model, options.components, dataset, runs)
    described = {
        **provenance(model, dataset, split, options.seed, start=start),
        "skip_corrupt": options.skip_corrupt,
    }
    run = RunFolder(runs, model.name, fingerprint(described))
    return Plan(options, model, dataset, split, start, truth, described, run, open_executor)


def _check_labels(model: Model, dataset: BinaryDataset) -> None:
    """Refuse a column that is not there, and segments as labels where all rows are of one."""
    dataset.check_columns(model.reads_columns())
    is_of_segments = isinstance(model, Supervised) and model.column == SEGMENT
    if is_of_segments and dataset.n_segments < 2:
        have = ", ".join(dataset.column_names) or "none"
        raise FitError(
            f"{dataset.path}: Expected at least two segments to tell apart, got one. Give a "
            f"per-row column: --set column=NAME. It has: {have}."
        )


def _truth(model: Model, dataset: BinaryDataset) -> NDArray[np.float64]:
    truth = true_mixing(dataset)
    if all(param.name != "mixing" for param in fields(model.params)):
        raise FitError(
            f"--truth: Expected a model with a mixing matrix, got {model.name}. Leave out --truth."
        )
    return truth
