"""Which failures of a stage are worth another try, and when: scheduled runs have nobody to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.cli.errors import is_bad_input
from pipeline.errors import ClusterLost
from storage.errors import FolderInUseError, StoreUnreachableError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun


def is_transient(error: object) -> bool:
    """Tell whether a failure may pass: a lost cluster, network or store, or another writer."""
    if isinstance(error, ClusterLost | StoreUnreachableError | FolderInUseError):
        return True
    return isinstance(error, OSError) and not is_bad_input(error)


def can_retry(task: object, run: TaskRun, state: State[Any]) -> bool:
    """Tell whether to try again; by hand the person decides, and does not want to wait."""
    from prefect.runtime import deployment

    return deployment.id is not None and is_transient(state.data)


RETRY_OPTIONS: dict[str, Any] = {
    "retries": 4,
    "retry_delay_seconds": [15, 30, 60, 120],
    "retry_jitter_factor": 0.5,  # runs that lost the same cluster come back one by one
    "retry_condition_fn": can_retry,
}
"""Arguments of `prefect.task`."""
