"""Run scheduled deployments without a Prefect worker: `python -m flows.serve`."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import DATA, Option, Switch
from flows.cli.startup import pause_garbage_collection
from flows.running.environment import is_server_configured
from flows.running.server import check_server
from pipeline.errors import FitError
from storage.errors import DataError
from storage.extras import check_installed

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule

HELP = """Run the scheduled deployments of a prefect.yaml in this process, one run at a time.

The file is the same as for `prefect deploy`; it defines schedules, triggers, parameters and limits.
This command needs a Prefect server, but no work pool, work queue or worker.
"""
EXAMPLES = f"""Examples:

    python -m flows.serve --file deploy/prefect.yaml
    python -m flows.serve --file deploy/prefect.yaml --check

The command runs until it is interrupted, and then pauses the schedules. With --check it only checks
the file, which `prefect deploy` does not; no server is needed.

{EXIT_CODES}"""
app = make_app("serve", HELP, EXAMPLES)
_VARIABLE = re.compile(r"{{ *\$(\w+) *}}")


def load_deployments(file: Path) -> list[RunnerDeployment]:
    """Read the deployments in a file, and fill in environment variables."""
    from prefect.utilities.templating import apply_values

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        entries: Any = apply_values(content["deployments"], {}, remove_notset=False)
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise DataError(
            f"{file} is not a prefect.yaml with deployments ({type(error).__name__})."
        ) from error
    if unset := sorted(set(_VARIABLE.findall(str(entries)))):
        raise DataError(f"{file}: the variables {', '.join(unset)} are not set. Set them.")
    deployments = []
    for entry in entries:
        try:
            deployments.append(_make_deployment(entry))
        except Exception as error:
            name = entry.get("name") if isinstance(entry, dict) else entry
            raise DataError(f"{file}: deployment {name!r}: {_describe(error)}") from error
    return deployments


def _describe(error: Exception) -> str:
    """Return the reason of an error in one line."""
    from pydantic import ValidationError

    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}".splitlines()[0].strip()


def _make_deployment(entry: dict[str, Any]) -> RunnerDeployment:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.events import DeploymentEventTrigger
    from prefect.flows import load_flow_from_entrypoint
    from prefect.types.entrypoint import EntrypointType

    limit = entry.get("concurrency_limit")
    flow: Any = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
    _check_parameters(entry.get("parameters") or {}, flow)
    deployment: RunnerDeployment = flow.to_deployment(
        name=entry["name"],
        description=entry.get("description"),
        tags=entry.get("tags"),
        parameters=entry.get("parameters"),
        schedules=[_make_schedule(**schedule) for schedule in entry.get("schedules", ())],
        triggers=[
            DeploymentEventTrigger(**_parse_event(**trigger))
            for trigger in entry.get("triggers", ())
        ],
        concurrency_limit=ConcurrencyLimitConfig(**limit) if limit else None,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return deployment


def _check_parameters(parameters: dict[str, Any], flow: Any) -> None:
    """Check the parameters of a deployment; the server would refuse them later than others."""
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools import validate

    schema = parameter_schema(flow).model_dump()
    names = schema["properties"]
    if unknown := sorted(parameters.keys() - names.keys()):
        raise DataError(
            f"{flow.name} has no parameter {unknown[0]!r}. Choose among {', '.join(names)}."
        )
    for error in validate(parameters, schema, ignore_required=True):
        place = error.json_path.removeprefix("$.")
        raise DataError(f"the parameter {place} is {error.instance!r}, which {flow.name} refuses.")


def _make_schedule(interval: float | None = None, **options: Any) -> Schedule:
    from prefect.schedules import Schedule

    return Schedule(interval=None if interval is None else timedelta(seconds=interval), **options)


def _parse_event(type: str, **options: Any) -> dict[str, Any]:
    if type != "event":
        raise DataError(f"triggers: the type {type!r} is not supported. Use event.")
    return options


@app.default
def main(
    *,
    file: Annotated[Path, Option(group=DATA, help="File of the deployments.")] = Path(
        "deploy/prefect.yaml"
    ),
    check: Annotated[bool, Switch, Option(group=DATA, help="Check the file, and stop.")] = False,
) -> None:
    """Serve until interrupted."""
    check_installed("A schedule", "prefect")
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")  # as in prefect.yaml
    if check:
        print(f"{file}: {len(load_deployments(file))} deployments")
        return
    if not is_server_configured():
        raise FitError(
            "PREFECT_API_URL: schedules need a Prefect server, but none is configured. Start one "
            "with `prefect server start` and set the variable."
        )
    with pause_garbage_collection():
        from prefect import serve

    check_server()
    serve(*load_deployments(file), limit=1)


if __name__ == "__main__":
    run_app(app)
