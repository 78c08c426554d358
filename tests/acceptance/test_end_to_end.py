"""A scheduled run on everything that deploy/compose.yaml starts, here on loopback.

The commands and environments are those of the file, with other hosts, ports and paths; the store is
a test server, the database a file. A schedule fires, and its fit has the bytes of one by hand.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import numpy as np
import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterStartTime
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Completed

from flows.data.ingest import ingest_sources
from latentbits import functions as api
from pipeline.executors.base import SerialExecutor
from storage import load_artifact, open_codes, open_dataset
from storage.stores.locations import parse_path
from storage.stores.object_path import parse_object_url
from tests.support.cluster_processes import write_certificates
from tests.support.compose import load_compose, run_service
from tests.support.data import draw_probit_rows
from tests.support.object_servers import StoreServer

DATA, PASSWORD = "s3://latentbits/data", "PREFECT_USER_PASSWORD"
SECRETS = {
    PASSWORD: "admin:a-password-of-tests",
    "POSTGRES_PASSWORD": "not-used-here",
    "STORE_USER": "testing",
    "STORE_PASSWORD": "a-secret-of-tests",
}
FLOWS = ("ingest", "fit", "transform", "report")
SECONDS = 600


def fire(client: SyncPrefectClient, flow: str) -> None:
    """Put a flow on a schedule, soon and every minute, until it has begun once."""
    deployment = client.read_deployment_by_name(f"{flow}/votes-{flow}")
    soon = datetime.now(UTC) + timedelta(seconds=15)
    often = IntervalSchedule(interval=timedelta(minutes=1), anchor_date=soon)
    (schedule,) = client.create_deployment_schedules(deployment.id, [(often, True)])
    wait_for(lambda: flow in first_runs(client))
    client.delete_deployment_schedule(deployment.id, schedule.id)


def first_runs(client: SyncPrefectClient) -> dict[str, FlowRun]:
    """The run of each flow that began first."""
    flows = {flow.id: flow.name for flow in client.read_flows()}
    has_begun = FlowRunFilter(start_time=FlowRunFilterStartTime(is_null_=False))
    runs = client.read_flow_runs(flow_run_filter=has_begun, sort=FlowRunSort.START_TIME_DESC)
    return {flows[run.flow_id]: run for run in runs}


def completed(client: SyncPrefectClient, *flows: str) -> bool:
    """Return whether the first run of each of these is done; none may fail."""
    states = {flow: run.state_type for flow, run in first_runs(client).items()}
    assert not {StateType.FAILED, StateType.CRASHED} & set(states.values()), states
    return all(states.get(flow) == StateType.COMPLETED for flow in flows)


def follow(client: SyncPrefectClient, flow: str) -> None:
    """Have the triggers see a completed run.

    Prefect holds the events of a run back for a quarter of an hour if it was scheduled less than
    five minutes before it ran, as here, and not every night.
    """
    deployment = client.read_deployment_by_name(f"{flow}/votes-{flow}")
    run = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(run.id, Completed(), force=True)


def wait_for(true: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert all(process.poll() is None for process in processes), "a process ended"
        assert time.monotonic() < deadline
        time.sleep(0.3)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def healthy(url: str) -> bool:
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=1).status == 200
    except OSError:
        return False


@pytest.fixture
def parts() -> dict[str, np.ndarray]:
    """The rows of two files, by their names."""
    X, _ = draw_probit_rows(3000, 20, 3, seed=5)
    return {"a.npy": X[:1000], "b.npy": X[1000:]}


class Services(NamedTuple):
    """A client of the Prefect server, and what kills the worker with its runs and restarts it."""

    client: SyncPrefectClient
    kill_worker: Callable[[], None]


@pytest.fixture
def deployed(services: Services) -> SyncPrefectClient:
    return services.client


@pytest.fixture
def services(
    s3: str, s3_store: StoreServer, parts: dict[str, np.ndarray], tmp_path: Path
) -> Iterator[Services]:
    """Start the services in the order of their dependencies."""
    s3_store.create("latentbits")
    for name, rows in parts.items():
        np.save(file := BytesIO(), rows)
        parse_object_url(f"s3://latentbits/incoming/{name}").write_bytes(file.getvalue())
    api, cluster, health = free_port(), free_port(), free_port()
    services = load_compose(SECRETS)["services"]
    here = {
        "http://store:9000": s3_store.address,
        "scheduler:8786": f"127.0.0.1:{cluster}",
        "8786": str(cluster),
        "server:4200": f"127.0.0.1:{api}",
        "127.0.0.1:4200": f"127.0.0.1:{api}",
        "4200": str(api),
        "8080": str(health),
        "0.0.0.0": "127.0.0.1",
        "/run/secrets": str(write_certificates(tmp_path / "certificates")),
    }
    database = f"sqlite+aiosqlite:///{tmp_path}/server.db"
    here[services["server"]["environment"]["PREFECT_SERVER_DATABASE_CONNECTION_URL"]] = database
    here = {name: here[name] for name in sorted(here, key=len, reverse=True)}
    with ExitStack() as stack:

        def started(name: str, log: str = "") -> subprocess.Popen[bytes]:
            home = tmp_path / f"{log or name}-home"
            return stack.enter_context(
                run_service(
                    services[name],
                    here,
                    tmp_path / f"{log or name}.log",
                    PREFECT_HOME=str(home),
                    DASK_TEMPORARY_DIRECTORY=str(tmp_path / "dask"),
                    PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS="5",  # else 60
                )
            )

        url = f"http://127.0.0.1:{api}/api"
        server, scheduler = started("server"), started("scheduler")
        wait_for(lambda: answers(cluster), scheduler)
        workers = [
            started("dask-worker", f"dask-worker-{k}")
            for k in range(services["dask-worker"]["deploy"]["replicas"])
        ]
        wait_for(lambda: healthy(url), server, *workers)
        assert started("setup").wait(SECONDS) == 0, (tmp_path / "setup.log").read_text()
        worker = started("worker")

        def kill_worker() -> None:
            processes = [*psutil.Process(worker.pid).children(recursive=True), worker]
            for process in processes:
                process.kill()
            worker.wait()
            started("worker", "second-worker")

        configured = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: SECRETS[PASSWORD]}
        with temporary_settings(configured), get_client(sync_client=True) as client:
            yield Services(client, kill_worker)
        for log in tmp_path.glob("*.log"):  # shown if the test fails
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


@pytest.mark.matrix
def test_a_schedule_fires_and_its_fit_has_the_bytes_of_one_by_hand(
    deployed: SyncPrefectClient, parts: dict[str, np.ndarray], tmp_path: Path
) -> None:
    fire(deployed, "ingest")
    fire(deployed, "fit")
    wait_for(lambda: completed(deployed, "ingest", "fit"))
    follow(deployed, "fit")
    wait_for(lambda: completed(deployed, *FLOWS))
    found = first_runs(deployed)
    assert [found[flow].auto_scheduled for flow in ("ingest", "fit")] == [True, True]
    times = sorted((found[flow].start_time, found[flow].end_time) for flow in FLOWS)
    assert all(end <= start for (_, end), (start, _) in pairwise(times)), "one run at a time"

    got = load_artifact(f"{DATA}/runs/votes")
    for name, rows in parts.items():
        np.save(tmp_path / name, rows)
    here = ingest_sources([str(tmp_path / name) for name in parts], tmp_path / "votes.zarr")
    expected = api.fit(here, components="auto", executor=SerialExecutor()).params
    for name in got:
        assert got[name].tobytes() == np.asarray(getattr(expected, name)).tobytes(), name
    assert open_dataset(f"{DATA}/votes.zarr").digest == here.digest
    assert open_codes(f"{DATA}/codes/votes.zarr").n_rows == here.n_rows
    assert parse_path(f"{DATA}/reports/votes.html").is_file()


@pytest.mark.slow
def test_a_killed_worker_blocks_no_later_run(services: Services) -> None:
    client = services.client
    fire(client, "ingest")
    wait_for(lambda: completed(client, "ingest"))
    deployment = client.read_deployment_by_name("fit/votes-fit")
    parameters = {
        "model": "latent-trait",
        "components": "2",
        "settings": ["tol=1e-12", "max_iter=400"],
    }
    killed, later = (
        client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id
        for _ in range(2)
    )
    wait_for(lambda: has_heartbeat(client, killed))
    services.kill_worker()
    wait_for(lambda: client.read_flow_run(later).state_type == StateType.COMPLETED)
    state = client.read_flow_run(killed).state
    assert state is not None
    assert (state.type, state.message) == (StateType.CRASHED, "No heartbeat for two minutes.")
    latest = load_artifact(f"{DATA}/runs/votes").path.name
    names = {path.name for path in parse_path(f"{DATA}/runs/votes").iterdir()}
    assert names == {"latest", latest}  # one fit, and no unfinished work


def has_heartbeat(client: SyncPrefectClient, run: UUID) -> bool:
    """Return whether a run has sent a heartbeat; its other events are held back, as above."""
    chosen = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run}"]},
    }
    found = client.request("POST", "/events/filter", json={"filter": chosen})
    return bool(found.json()["events"])
