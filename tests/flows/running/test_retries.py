"""Stages of scheduled runs are tried again when their failure may pass, and only then."""

from __future__ import annotations

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime, timedelta
from threading import Event

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import deployment

from flows import fit, transform
from flows.fitting import stages as fit_stages
from flows.running import flow, server
from pipeline.errors import ClusterLost, FitError
from storage import load_artifact, open_codes
from storage.errors import DataChangedError, DataError, FolderInUseError, StoreUnreachableError
from storage.stores.leases import lock_folder
from tests.support.cluster_processes import start_scheduler, start_worker
from tests.support.data import draw_probit_rows, write_arrays


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ClusterLost("gone"), True),
        (StoreUnreachableError("s3://b: Expected an answer"), True),
        (FolderInUseError("another process is writing here"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (DataError("row 3"), False),
        (FitError("--components"), False),
        (FileNotFoundError(errno.ENOENT, "none", "a.csv"), False),
        (OSError(errno.ENOSPC, "full"), False),
        (KeyError("a mistake in the program"), False),
    ],
)
def test_what_may_pass(error, passes):
    assert flow.is_transient(error) == passes


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """Let the first counts fail, each time with the next of these errors."""
    monkeypatch.chdir(tmp_path)
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(500, 6, 2, seed=1)[0])
    monkeypatch.setitem(flow.RETRY_OPTIONS, "retry_delay_seconds", [0.1] * 4)
    seen: list[str] = []
    collect = fit_stages.collect_first_statistics

    def plan(*errors: Exception) -> list[str]:
        left = list(errors)

        def failing(model, rows, executor, *more):
            seen.append(executor.describe_workers() and executor.client.status)
            if left:
                if not isinstance(left[0], FitError | DataError):
                    executor.client.close()
                raise left.pop(0)
            return collect(model, rows, executor, *more)

        monkeypatch.setattr(fit_stages, "collect_first_statistics", failing)
        return seen

    return plan


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with start_scheduler(tmp_path_factory.mktemp("scheduler")) as address, start_worker(address):
        yield address


def run_fit(**where):
    return fit.fit("d.zarr", report=False, where=where)


@pytest.mark.matrix
def test_a_scheduled_run_connects_again_after_a_lost_cluster(
    prefect_server, cluster, attempts, monkeypatch
):
    expected = load_artifact(run_fit(name="serial")["artifact"])
    seen = attempts(ClusterLost("gone"), ClusterLost("not yet back"))
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    got = load_artifact(run_fit(cluster=cluster)["artifact"])
    assert seen == ["running"] * 3
    assert all(got[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.matrix
def test_a_scheduled_run_begins_again_if_the_dataset_changed(
    prefect_server, cluster, attempts, monkeypatch
):
    seen = attempts(*[DataChangedError("d.zarr: the dataset has changed since the start.")] * 4)
    with pytest.raises(DataChangedError):
        run_fit(cluster=cluster)  # by hand
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    run_fit(cluster=cluster)
    assert len(seen) == 5


@pytest.mark.matrix
def test_bad_input_is_not_tried_again(prefect_server, cluster, attempts, monkeypatch):
    seen = attempts(FitError("Expected other data."))
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    with pytest.raises(FitError):
        run_fit(cluster=cluster)
    assert len(seen) == 1


def test_by_hand_nothing_is_tried_again(prefect_server, cluster, attempts):
    seen = attempts(ClusterLost("gone"))
    with pytest.raises(ClusterLost):
        run_fit(cluster=cluster)
    assert len(seen) == 1


@pytest.mark.matrix
def test_a_scheduled_run_waits_for_another_process_and_says_so(
    prefect_server, attempts, monkeypatch, tmp_path
):
    fitted = run_fit(name="serial")["artifact"]
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    monkeypatch.setattr(flow, "_WAIT_SECONDS", 0.5)
    is_held, messages = Event(), []

    def hold() -> None:
        """Hold the folder of the codes until the run says that it waits."""
        with lock_folder(tmp_path / ".codes.zarr.unfinished"):
            is_held.set()
            deadline = time.monotonic() + 120
            while not messages and time.monotonic() < deadline:
                time.sleep(0.2)
                with get_client(sync_client=True) as client:
                    found = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)
                messages.extend(run.state.message for run in found if run.state.message)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(copy_context().run, hold)
        is_held.wait(60)
        codes = transform.transform("d.zarr", "codes.zarr", artifact=fitted)["codes"]
        holding.result()
    assert "another process is writing here. Wait for it: " in messages[0]
    assert open_codes(codes).n_rows == 500


@pytest.mark.matrix
@pytest.mark.parametrize(("hours", "said"), [(1, r"360\d s ahead"), (-2, r"7\d\d\d s behind")])
def test_a_schedule_by_another_clock_is_refused(
    prefect_server, cluster, attempts, monkeypatch, hours, said
):
    class Skewed(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    seen = attempts()
    monkeypatch.setattr(server, "datetime", Skewed)
    run_fit(cluster=cluster)
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    expected = rf"^PREFECT_API_URL: the clock of this machine is {said} .* Set the time\.$"
    with pytest.raises(FitError, match=expected):
        run_fit(cluster=cluster)
    assert len(seen) == 1
