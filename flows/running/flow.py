"""Prefect flows made from the options of a command, and the stages that they run.

The fields of one options dataclass are both the options of a command and the parameters of its
flow. Prefect takes longer to import than everything else that a command needs, so a command creates
its flow only after its options were checked.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial, wraps
from importlib.metadata import version
from inspect import Parameter, Signature
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints
from uuid import UUID

from flows.cli.errors import hide_expected_tracebacks, is_bad_input
from flows.cli.progress import report_progress
from flows.cli.startup import pause_garbage_collection
from flows.cli.summary import print_json
from flows.running.environment import is_prefect_installed, is_recording
from flows.running.resources import compute_usage, read_usage, release_free_memory
from flows.running.server import (
    check_scheduled_run,
    hide_passwords_in_logs,
    run_with_server,
)
from pipeline.errors import ClusterLost, FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from storage.errors import DataChangedError, FolderInUseError, StoreUnreachableError
from storage.stores.leases import run_name

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun

_WAIT_SECONDS = 15.0
_MAX_CHANGES = 3
_NAMING_PARAMETERS = ("dataset", "artifact", "output")
"""The parameters after which a flow run may be named."""
log = logging.getLogger("latentbits")
T = TypeVar("T")
OptionsType = TypeVar("OptionsType")
Summary = dict[str, Any]
FlowDecorator = Callable[[Callable[[OptionsType], Summary]], Callable[..., Summary]]


def make_flow(name: str, kind: type[OptionsType]) -> FlowDecorator[OptionsType]:
    """Turn a function of options into a flow whose parameters are the options' fields.

    This is for modules that are imported, such as by a Prefect worker. In the module that runs as
    a command, the function stays as it is: `run_flow` creates the flow of a command.

    `name` is the flow's name in Prefect; `kind` is a frozen dataclass whose fields are annotated
    with `Option`.
    """

    def decorate(work: Callable[[OptionsType], Summary]) -> Callable[..., Summary]:
        return work if work.__module__ == "__main__" else _build_flow(name, kind, work)

    return decorate


def run_command(
    name: str,
    options: Any,
    work: Callable[[], Summary],
    json: bool,
    print_summary: Callable[[Summary], None],
) -> Summary:
    """Run the flow of a command, and print its summary as JSON or for people; return it.

    `options` were checked; `work` holds the results of the check.
    """
    summary = run_flow(name, options, work)
    if json:
        print_json(summary)
    else:
        print_summary(summary)
    return summary


def run_flow(name: str, options: Any, work: Callable[[], Summary]) -> Summary:
    """Run a flow whose options were checked; `work` holds the results of the check.

    Where no runs are recorded, the work is done directly.

    `work` cannot be a parameter of the flow, because Prefect records parameters. So a flow is
    created for this run alone. Flows that are called with parameters, such as by a schedule, check
    them themselves.
    """
    run_name.set(_name_run(name, vars(options)))
    if not is_recording():
        if os.environ.get("PREFECT_API_URL"):
            log.warning(
                "warning: PREFECT_API_URL is set, but Prefect is not installed, so this run is not "
                "recorded. Run: pip install 'latentbits[flows]'"
            )
        return work()
    return run_with_server(
        lambda: _build_flow(name, type(options), lambda options: work())(**vars(options))
    )


def _build_flow(
    name: str, kind: type[OptionsType], work: Callable[[OptionsType], Summary]
) -> Callable[..., Summary]:
    if not is_prefect_installed():
        return wraps(work)(lambda *values, **named: work(kind(*values, **named)))

    @wraps(work)
    def call(*values: Any, **named: Any) -> Summary | State[Summary]:
        check_scheduled_run()
        run_name.set(_format_run_name(name))
        return _add_alert_to_state(_repeat_work(partial(work, kind(*values, **named))))

    call.__signature__ = _make_signature(kind)  # type: ignore[attr-defined]
    hide_expected_tracebacks()
    hide_passwords_in_logs()
    make: Any = _get_flow_class()
    made: Callable[..., Summary] = make(
        call,
        name=name,
        flow_run_name=partial(_format_run_name, name),
        version=version("latentbits"),
        validate_parameters=False,
    )
    return made


@cache
def _get_flow_class() -> type[Any]:
    """Return a class of flows that start an embedded server where Prefect would start its own.

    That happens if a flow is called by its parameters and no server is configured. Prefect's server
    is open to other users of the machine, and has 20 seconds to start.
    """
    with pause_garbage_collection():
        from prefect import Flow
        from prefect.context import FlowRunContext
        from prefect.settings import get_current_settings

    class ServedFlow(Flow[Any, Any]):
        def __call__(self, *values: Any, **named: Any) -> Any:
            run: Callable[[], Any] = partial(super().__call__, *values, **named)
            settings = get_current_settings()
            needs_server = settings.api.url is None and settings.server.ephemeral.enabled
            is_outermost = FlowRunContext.get() is None
            return run_with_server(run) if needs_server and is_outermost else run()

    return ServedFlow


def _repeat_work(work: Callable[[], T]) -> T:
    """Do work; in a scheduled run, repeat it after what another process did.

    It is repeated once no other process is writing to the same folder, and a few times at once if
    the data were updated meanwhile.
    """
    from prefect.client.orchestration import get_client
    from prefect.runtime import deployment, flow_run
    from prefect.states import Running

    owner, n_changes = "", 0
    while True:
        try:
            return work()
        except DataChangedError as error:
            n_changes += 1
            if deployment.id is None or n_changes > _MAX_CHANGES:
                raise
            log.warning("warning: %s", error)
            continue
        except FolderInUseError as error:
            if deployment.id is None:
                raise
            message = str(error)
        if owner != (owner := message.partition(", last sign of life")[0]):
            log.warning("%s", message)
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(flow_run.id), Running(message=message))
        time.sleep(_WAIT_SECONDS)


def _add_alert_to_state(summary: Summary) -> Summary | State[Summary]:
    """Show the alert of a summary, if any, in the final state of the flow run.

    The run is completed, not failed: its result is good, and runs that follow it should start.
    """
    if not summary.get("alert"):
        return summary
    from prefect.states import Completed

    return Completed(message=summary["alert"], data=summary)


def _format_run_name(name: str) -> str:
    """Name the current run after its flow and what it works on, such as `fit votes`."""
    from prefect.runtime import flow_run

    return _name_run(name, flow_run.parameters)


def _name_run(name: str, parameters: Mapping[str, Any]) -> str:
    values = (parameters.get(parameter) for parameter in _NAMING_PARAMETERS)
    subject = next((value for value in values if isinstance(value, str)), "")
    return f"{name} {PurePosixPath(subject).stem}".strip()


def _make_signature(kind: type[Any]) -> Signature:
    hints = get_type_hints(kind, include_extras=True)
    return Signature(
        [
            Parameter(
                option.name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=_get_default(option),
                annotation=hints[option.name],
            )
            for option in fields(kind)
        ]
    )


def _get_default(option: Any) -> Any:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return Parameter.empty if option.default is MISSING else option.default


class _FinishedStage:
    """The result of a stage's task: the time and memory that the stage took.

    Prefect recognizes a result by the identity of the object, or of the parts of a dictionary. Two
    dictionaries share the objects of their keys, so Prefect would draw an edge to the wrong stage.
    """

    def __init__(self, usage: dict[str, Any]) -> None:
        self.usage = usage


@dataclass(frozen=True)
class StageRunner:
    """Runs the stages of a flow as Prefect tasks, and records time and memory of each in `usage`.

    The record of a stage is the result of its task, and the parameter of the tasks that need the
    stage. So Prefect draws the stages as a graph, but neither stores nor sends their results, which
    may be as large as the data. Names of features and segments replace the indices in error
    messages.
    """

    executor: Executor
    feature_names: Sequence[str]
    segment_names: Sequence[str]
    _finished: dict[str, _FinishedStage] = field(default_factory=dict, init=False)

    def run(self, name: str, work: Callable[[], T], inputs: Sequence[str] = ()) -> T:
        """Run a stage as a task of this name; its result does not pass through Prefect.

        `inputs` are the names of the stages whose results the work uses. If the cluster is lost
        right after the work is done, a retry does not repeat the work.
        """
        results: list[T] = []

        def stage() -> _FinishedStage:
            before = read_usage(self.executor)
            if not results:
                results.append(self._run_with_names(work))
                release_free_memory()
            return _FinishedStage(compute_usage(before, read_usage(self.executor)))

        needed = {earlier: self._finished[earlier] for earlier in inputs}
        self._finished[name] = run_task(name, stage, needed)
        return results[0]

    def _run_with_names(self, work: Callable[[], T]) -> T:
        """Run the work; put names of features and segments into its error message."""
        try:
            return work()
        except FitError as error:
            raise error.with_names(self.feature_names, self.segment_names) from error

    @property
    def usage(self) -> dict[str, dict[str, Any]]:
        """Seconds, CPU time and memory of each stage."""
        return {name: stage.usage for name, stage in self._finished.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each stage took."""
        return {name: usage["seconds"] for name, usage in self.usage.items()}


def run_stages(
    open_executor: Callable[[], AbstractContextManager[Executor]],
    names: tuple[Sequence[str], Sequence[str]],
    steps: Callable[[StageRunner, Progress], Summary],
    claim: AbstractContextManager[Any] | None = None,
) -> Summary:
    """Run the stages of a flow; return their summary and the seconds that they took.

    Parameters
    ----------
    open_executor
        Opens the executor of the stages.
    names
        Names of the features and of the segments, for error messages.
    steps
        Runs the stages and returns the summary.
    claim
        Keeps other processes out of the work folder meanwhile; None if a run cannot be resumed.
    """
    from pipeline.numerics.compilation import watch_compilation  # Numba is slow to import

    start = time.perf_counter()
    with claim or nullcontext(), open_executor() as executor, report_progress() as progress:
        stages = StageRunner(executor, *names)
        try:
            with watch_compilation(_announce_compilation):
                summary = steps(stages, progress)
        except ClusterLost as error:
            remedy = "repeat the command" if claim is None else "continue with {resume}"
            raise ClusterLost(f"{error} Then {remedy}.") from error
        finally:
            from storage.dataset.chunks import clear_chunk_cache  # Zarr is slow to import

            clear_chunk_cache()
    seconds = round(time.perf_counter() - start, 3)
    return {**summary, "seconds": seconds, "stages": stages.seconds}


def _announce_compilation() -> None:
    log.info("Compiling functions for this machine, once; this takes up to a minute.")


def run_task(name: str, work: Callable[[], T], inputs: Mapping[str, Any] | None = None) -> T:
    """Run work, within a flow as a Prefect task; scheduled runs retry transient failures.

    `inputs` are results of earlier tasks by name, for Prefect's graph of the run; they are small.
    """
    if sys.modules.get("prefect") is None:
        return work()
    from prefect import task
    from prefect.cache_policies import NO_CACHE
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:
        return work()

    def stage(inputs: Mapping[str, Any]) -> T:
        return work()

    decorate: Any = task(name=name, cache_policy=NO_CACHE, **RETRY_OPTIONS)
    result: T = decorate(stage)(dict(inputs or {}))
    return result


def is_transient(error: object) -> bool:
    """Return whether a retry may help: a lost cluster or connection, or another writer."""
    if isinstance(error, ClusterLost | StoreUnreachableError | FolderInUseError):
        return True
    return isinstance(error, OSError) and not is_bad_input(error)


def can_retry(task: object, run: TaskRun, state: State[Any]) -> bool:
    """Return whether to retry: only in scheduled runs, as nobody waits for them."""
    from prefect.runtime import deployment

    return deployment.id is not None and is_transient(state.data)


RETRY_OPTIONS: dict[str, Any] = {
    "retries": 4,
    "retry_delay_seconds": [15, 30, 60, 120],
    "retry_jitter_factor": 0.5,  # runs that lost the same cluster return one by one
    "retry_condition_fn": can_retry,
}
"""Arguments of `prefect.task`."""
