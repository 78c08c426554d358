"""What a stage is said to have used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT

from flows.running.resources import UsageReading, compute_usage, read_memory_size, read_usage
from pipeline.executors.base import SerialExecutor
from pipeline.executors.dask import DaskExecutor
from pipeline.executors.usage import ProcessUsage, measure_usage


def burn(seconds: float) -> float:
    """Use the processor for so long."""
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        sum(range(1000))
    return seconds


def test_work_and_bytes_of_this_process_are_counted(tmp_path: Path) -> None:
    before = read_usage(SerialExecutor())
    burn(0.25)  # the system counts in hundredths
    (tmp_path / "x").write_bytes(bytes(3_000_000))
    (tmp_path / "x").read_bytes()
    used = compute_usage(before, read_usage(SerialExecutor()))
    assert 0.2 <= used["cpu_seconds"] < 2
    assert used["seconds"] >= 0.2
    assert used["bytes_written"] >= 3_000_000
    assert used["bytes_read"] >= 3_000_000
    assert used["peak_memory"] > 50e6
    assert used["peak_memory_of_largest_worker"] is None


@pytest.mark.matrix
def test_work_of_worker_processes_is_counted() -> None:
    local = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    with local, Client(local) as client:
        executor = DaskExecutor(client)
        before = read_usage(executor)
        assert list(executor.map(burn, [0.2] * 4)) == [0.2] * 4
        used = compute_usage(before, read_usage(executor))
    assert len(before.processes) == 3
    assert 0.8 <= used["cpu_seconds"] < 8
    assert used["peak_memory_of_largest_worker"] > 10e6


def test_a_worker_that_came_in_between_counts_from_its_start() -> None:
    here = measure_usage()
    old = ProcessUsage("host 1 0.0", 10.0, 100, 100, 7)
    before = UsageReading(0.0, {"this process": here, "a": old, "b": old})
    restarted = ProcessUsage("host 2 5.0", 1.5, 30, 20, 9)
    worked = old._replace(cpu_seconds=12.0, bytes_read=150)
    after = UsageReading(4.0, {"this process": here, "a": restarted, "b": worked})
    assert compute_usage(before, after) == {
        "seconds": 4.0,
        "cpu_seconds": 3.5,
        "bytes_read": 80,
        "bytes_written": 20,
        "peak_memory": here.peak_memory,
        "peak_memory_of_largest_worker": 9,
    }


def test_the_memory_of_this_machine_is_the_one_that_dask_sees() -> None:
    assert read_memory_size() == MEMORY_LIMIT


def test_a_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max": "max\n", "high": "1073741824\n", "low": "0\n"}
    for name, limit in limits.items():
        (tmp_path / name).write_text(limit)
    paths = [str(tmp_path / name) for name in (*limits, "absent")]
    monkeypatch.setattr("flows.running.resources._CONTAINER_LIMITS", paths)
    assert read_memory_size() == 1 << 30
