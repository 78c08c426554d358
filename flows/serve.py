"""Runs what is scheduled, without a worker: `python -m flows.serve`."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from cyclopts import Parameter

from flows.cli.app import make_app, run_app
from flows.cli.startup import pause_garbage_collection
from flows.running.environment import is_server_configured
from flows.running.server import check_server
from pipeline.errors import FitError
from storage.errors import DataError

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule

HELP = """Serve the deployments of a prefect.yaml: run what is scheduled, one run at a time.

The file is the same that `prefect deploy` takes: schedules, triggers, parameters and limits stand
there alone. Here no work pool, no work queue and no worker are needed, but a Prefect server is.
"""
EXAMPLES = """Examples:

    python -m flows.serve --file deploy/prefect.yaml

It serves until it is interrupted, and then pauses the schedules. Exit codes: 0 done, 2 bad
arguments or input, 1 failure, 130 interrupted.
"""
app = make_app("serve", HELP, EXAMPLES)
_VARIABLE = re.compile(r"{{ *\$(\w+) *}}")


def load_deployments(file: Path) -> list[RunnerDeployment]:
    """Read the deployments of a file, with variables of the environment filled in.

    Raises
    ------
    DataError
        If the file cannot be read, or a variable is not set.
    """
    from prefect.utilities.templating import apply_values

    try:
        told = yaml.safe_load(file.read_text(encoding="utf-8"))
        listed = apply_values(told["deployments"], {}, remove_notset=False)
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise DataError(
            f"{file}: Expected a prefect.yaml with deployments, got something else "
            f"({type(error).__name__})."
        ) from error
    if unset := sorted(set(_VARIABLE.findall(str(listed)))):
        raise DataError(f"{file}: Expected the variables {', '.join(unset)}, got none. Set them.")
    return [_make_deployment(one) for one in listed]


def _make_deployment(told: dict[str, Any]) -> RunnerDeployment:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import EntrypointType
    from prefect.events import DeploymentEventTrigger
    from prefect.flows import load_flow_from_entrypoint

    limit = told.get("concurrency_limit")
    return load_flow_from_entrypoint(told["entrypoint"], use_placeholder_flow=False).to_deployment(
        name=told["name"],
        description=told.get("description"),
        tags=told.get("tags"),
        parameters=told.get("parameters"),
        schedules=[_make_schedule(**one) for one in told.get("schedules", ())],
        triggers=[
            DeploymentEventTrigger(**_parse_event(**one)) for one in told.get("triggers", ())
        ],
        concurrency_limit=ConcurrencyLimitConfig(**limit) if limit else None,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def _make_schedule(interval: float | None = None, **more: Any) -> Schedule:
    from prefect.schedules import Schedule

    return Schedule(interval=None if interval is None else timedelta(seconds=interval), **more)


def _parse_event(type: str, **more: Any) -> dict[str, Any]:
    if type != "event":
        raise DataError(f"triggers: Expected the type event, got {type!r}.")
    return more


@app.default
def main(
    *,
    file: Annotated[Path, Parameter(help="The deployments.")] = Path("deploy/prefect.yaml"),
) -> None:
    """Serve until interrupted."""
    if not is_server_configured():
        raise FitError(
            "PREFECT_API_URL: Expected a configured Prefect server to keep the schedules, got "
            "none. Start one with `prefect server start` and set it."
        )
    with pause_garbage_collection():
        from prefect import serve

    check_server()
    serve(*load_deployments(file), limit=1)


if __name__ == "__main__":
    run_app(app)
