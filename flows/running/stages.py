"""The stages of a flow: measured Prefect tasks that name features and segments in errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flows.running.memory import release_free_memory
from flows.running.retries import RETRY_OPTIONS
from flows.running.usage import compute_usage, read_usage
from pipeline.errors import FitError
from pipeline.executors.base import Executor

T = TypeVar("T")


@dataclass(frozen=True)
class StageRunner:
    """Runs the stages of one run of a flow.

    Attributes
    ----------
    executor
        Where their work runs.
    feature_names, segment_names
        What indices in error messages stand for.
    usage
        What each stage took that ended well.
    """

    executor: Executor
    feature_names: Sequence[str]
    segment_names: Sequence[str]
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run a stage as a task of this name; what it takes and makes never passes through Prefect.

        Another try, where a cluster was lost right after the work, does not work again.
        """
        made: list[T] = []

        def stage() -> None:
            before = read_usage(self.executor)
            if not made:
                made.append(self._run_with_names(work))
                release_free_memory()
            self.usage[name] = compute_usage(before, read_usage(self.executor))

        run_task(name, stage)
        return made[0]

    def _run_with_names(self, work: Callable[[], T]) -> T:
        """Name features and segments in what is wrong with them."""
        try:
            return work()
        except FitError as error:
            raise error.with_names(self.feature_names, self.segment_names) from error

    @property
    def seconds(self) -> dict[str, float]:
        """Time that each took."""
        return {name: used["seconds"] for name, used in self.usage.items()}


def run_task(name: str, work: Callable[[], T]) -> T:
    """Run work as a Prefect task of this name; scheduled runs try again what may pass."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    def stage() -> T:
        return work()

    return task(stage, name=name, cache_policy=NO_CACHE, **RETRY_OPTIONS)()
