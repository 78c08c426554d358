"""The stages of a flow: Prefect tasks, timed, that name features and segments in their errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE

from flows.retries import RETRIES
from pipeline.errors import FitError

T = TypeVar("T")


@dataclass(frozen=True)
class Stages:
    """Runs the stages of one run of a flow.

    Attributes
    ----------
    feature_names, segment_names
        What indices in error messages stand for.
    seconds
        Time that each stage took.
    """

    feature_names: Sequence[str]
    segment_names: Sequence[str]
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run a stage as a task of this name; what it works on never passes through Prefect."""

        def stage() -> T:
            begun = time.perf_counter()
            try:
                return work()
            except FitError as error:
                names = (self.feature_names, self.segment_names)
                raise FitError(error.notice.render(*names)) from error
            finally:
                self.seconds[name] = round(time.perf_counter() - begun, 3)

        return task(stage, name=name, cache_policy=NO_CACHE, **RETRIES)()
