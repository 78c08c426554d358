"""Prefect flows made from options, and their stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial, wraps
from importlib.metadata import version
from inspect import Parameter, Signature
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from flows.cli.startup import pause_garbage_collection
from flows.cli.user_errors import hide_expected_tracebacks, is_bad_input
from flows.running.resources import compute_usage, read_usage, release_free_memory
from flows.running.server import check_scheduled_run, run_with_server
from pipeline.errors import ClusterLost, FitError
from pipeline.executors.base import Executor
from storage.errors import FolderInUseError, StoreUnreachableError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun


_NAMING_PARAMETERS = ("dataset", "artifact", "output")
"""Parameters that a run may be named after."""
OptionsType = TypeVar("Asked")
Summary = dict[str, Any]


def make_flow(
    name: str, kind: type[OptionsType]
) -> Callable[[Callable[[OptionsType], Summary]], Callable[..., Summary]]:
    """Make a flow of a function of options; Prefect sees every field as a parameter.

    In the module of a command it is made whenever it is called; who imports that module, such as a
    worker, finds Prefect's flow.

    Parameters
    ----------
    name
        What Prefect calls the flow.
    kind
        The options: a frozen dataclass whose fields are annotated with `AxisOption`.
    """

    def made(work: Callable[[OptionsType], Summary]) -> Callable[..., Summary]:
        is_command = work.__module__ == "__main__"
        return make_lazy_flow(name, kind)(work) if is_command else _build_flow(name, kind, work)

    return made


def make_lazy_flow(
    name: str, kind: type[OptionsType]
) -> Callable[[Callable[[OptionsType], Summary]], Callable[..., Summary]]:
    """Make a flow as `make_flow` does, but whenever it is called: for those that nobody deploys."""

    def made(work: Callable[[OptionsType], Summary]) -> Callable[..., Summary]:
        @wraps(work)
        def late(*given: Any, **named: Any) -> Summary:
            return _build_flow(name, kind, work)(*given, **named)

        return late

    return made


def run_flow(name: str, options: Any, work: Callable[[], Summary]) -> Summary:
    """Run a flow whose options were checked: what the check made is within the work.

    It cannot be a parameter, as Prefect records those, so this run's flow is made around it. Only
    who calls a flow by its parameters, such as a schedule, has them checked within.
    """
    checked = make_lazy_flow(name, type(options))(lambda options: work())
    return run_with_server(lambda: checked(**vars(options)))


def _build_flow(
    name: str, kind: type[OptionsType], work: Callable[[OptionsType], Summary]
) -> Callable[..., Summary]:
    with pause_garbage_collection():
        from prefect import flow

    @wraps(work)
    def called(*given: Any, **named: Any) -> Summary:
        check_scheduled_run()
        return work(kind(*given, **named))

    called.__signature__ = _make_signature(kind)  # type: ignore[attr-defined]
    hide_expected_tracebacks()
    described = {"name": name, "flow_run_name": partial(_format_run_name, name)}
    return flow(**described, version=version("latentbits"), validate_parameters=False)(called)


def _format_run_name(name: str) -> str:
    """Name the run that has begun after the flow and what it works on: `fit votes`."""
    from prefect.runtime import flow_run

    given = [flow_run.parameters.get(subject) for subject in _NAMING_PARAMETERS]
    named = next((one for one in given if isinstance(one, str)), "")
    return f"{name} {PurePosixPath(named).stem}".strip()


def _make_signature(kind: type[Any]) -> Signature:
    hints = get_type_hints(kind, include_extras=True)
    return Signature(
        Parameter(
            one.name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=_make_default(one),
            annotation=hints[one.name],
        )
        for one in fields(kind)
    )


def _make_default(one: Any) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return Parameter.empty if one.default is MISSING else one.default


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
            names = (self.feature_names, self.segment_names)
            raise FitError(error.message.render(*names)) from error

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
