"""What the stages of a fit share within its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.data.datasets import dataset_rows
from flows.data.fitted import Fitted
from flows.fitting.kept_statistics import kept_statistics
from flows.running.clusters import memory_for_rows
from pipeline.blocks import Rows
from pipeline.executors.base import Executor
from pipeline.fit import Kept
from pipeline.models.base import Model
from pipeline.progress import Progress
from pipeline.statistics.base import Statistics
from storage.dataset import BinaryDataset
from storage.runs import RunFolder


@dataclass
class Job:
    """One run of the flow: what its stages share within this process."""

    model: Model
    dataset: BinaryDataset
    split: str | None
    seed: int
    start: Fitted | None
    run: RunFolder
    executor: Executor
    progress: Progress
    skip_corrupt: bool = False
    skipped: tuple[int, ...] = ()

    @property
    def memory(self) -> int:
        """Bytes of rows that stay in memory, where passes come back to them."""
        return memory_for_rows(self.executor) if self.model.max_iter > 1 else 0

    @property
    def rows(self) -> Rows:
        """The rows to fit."""
        return dataset_rows(self.dataset, self.split, self.memory, self.skipped)

    def kept(self, kind: type[Statistics], counted: str | None) -> Kept[Any]:
        """Sums beside the dataset are of all its chunks."""
        whole = counted if not self.skipped else None
        return kept_statistics(self.dataset, self.split, kind, whole)
