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

from flows.cli.errors import hide_expected_tracebacks
from flows.cli.imports import pause_garbage_collection
from flows.running.server import check_scheduled_run, run_with_server

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
