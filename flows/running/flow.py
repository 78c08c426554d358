"""Flows whose parameters are the fields of one dataclass, which a command line is made of too.

Prefect takes longer to be imported than all else that a command needs. So the flow of a command is
made when it runs, once its options were checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial, wraps
from importlib.metadata import version
from inspect import Parameter, Signature
from pathlib import PurePosixPath
from typing import Any, TypeVar, get_type_hints

from flows.cli.imports import importing
from flows.cli.refusals import log_in_one_line
from flows.running.server import check_schedule, with_server

_SUBJECTS = ("dataset", "artifact", "output")
"""Parameters that a run may be named after."""
Asked = TypeVar("Asked")
Summary = dict[str, Any]


def flow_of(
    name: str, kind: type[Asked]
) -> Callable[[Callable[[Asked], Summary]], Callable[..., Summary]]:
    """Make a flow of a function of options; Prefect sees every field as a parameter.

    In the module of a command it is made whenever it is called; who imports that module, such as a
    worker, finds Prefect's flow.

    Parameters
    ----------
    name
        What Prefect calls the flow.
    kind
        The options: a frozen dataclass whose fields are annotated with `Option`.
    """

    def made(work: Callable[[Asked], Summary]) -> Callable[..., Summary]:
        is_command = work.__module__ == "__main__"
        return late_flow_of(name, kind)(work) if is_command else _flow(name, kind, work)

    return made


def late_flow_of(
    name: str, kind: type[Asked]
) -> Callable[[Callable[[Asked], Summary]], Callable[..., Summary]]:
    """Make a flow as `flow_of` does, but whenever it is called: for those that nobody deploys."""

    def made(work: Callable[[Asked], Summary]) -> Callable[..., Summary]:
        @wraps(work)
        def late(*given: Any, **named: Any) -> Summary:
            return _flow(name, kind, work)(*given, **named)

        return late

    return made


def run_flow(name: str, options: Any, work: Callable[[], Summary]) -> Summary:
    """Run a flow whose options were checked: what the check made is within the work.

    It cannot be a parameter, as Prefect records those, so this run's flow is made around it. Only
    who calls a flow by its parameters, such as a schedule, has them checked within.
    """
    checked = late_flow_of(name, type(options))(lambda options: work())
    return with_server(lambda: checked(**vars(options)))


def _flow(name: str, kind: type[Asked], work: Callable[[Asked], Summary]) -> Callable[..., Summary]:
    with importing():
        from prefect import flow

    @wraps(work)
    def called(*given: Any, **named: Any) -> Summary:
        check_schedule()
        return work(kind(*given, **named))

    called.__signature__ = _signature(kind)  # type: ignore[attr-defined]
    log_in_one_line()
    described = {"name": name, "flow_run_name": partial(_run_name, name)}
    return flow(**described, version=version("latentbits"), validate_parameters=False)(called)


def _run_name(name: str) -> str:
    """Name the run that has begun after the flow and what it works on: `fit votes`."""
    from prefect.runtime import flow_run

    given = [flow_run.parameters.get(subject) for subject in _SUBJECTS]
    named = next((one for one in given if isinstance(one, str)), "")
    return f"{name} {PurePosixPath(named).stem}".strip()


def _signature(kind: type[Any]) -> Signature:
    hints = get_type_hints(kind, include_extras=True)
    return Signature(
        Parameter(
            one.name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=_default(one),
            annotation=hints[one.name],
        )
        for one in fields(kind)
    )


def _default(one: Any) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return Parameter.empty if one.default is MISSING else one.default
