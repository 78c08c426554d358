"""What a stage is said to have used."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

from flows.running.cluster_settings import ClusterSettings
from flows.running.resources import (
    UsageReading,
    check_memory,
    compute_usage,
    find_memory_limit,
    read_memory_size,
    read_usage,
)
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.executors.dask import DaskExecutor
from pipeline.executors.usage import ProcessUsage, measure_usage
from tests.conftest import CommandResult
from tests.support.data import write_arrays


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


MOUNTS = {
    1: "35 31 0:32 {root} {top} rw,relatime shared:9 - cgroup cgroup rw,memory\n",
    2: "41 31 0:38 {root} {top} rw - cgroup2 cgroup2 rw,nsdelegate\n",
}
GROUPS = {1: "5:cpu,cpuacct:/other\n4:memory:{own}\n0::/other\n", 2: "0::{own}\n"}


def make_groups(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: int, own: str, root: str = "/"
) -> Path:
    """Describe the process's control group, and return where the folders of groups are mounted."""
    top = folder / "groups"
    (folder / "mountinfo").write_text(MOUNTS[version].format(root=root, top=top))
    (folder / "cgroup").write_text(GROUPS[version].format(own=own))
    monkeypatch.setattr("flows.running.resources._PROCESS", folder)
    return top


def write_files(folder: Path, **values: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / f"memory.{name}").write_text(f"{value}\n")


def test_limits_of_the_own_group_and_those_around_it_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = make_groups(tmp_path, monkeypatch, 2, "/user.slice/job")
    stat = "anon 9\nactive_file 30000\ninactive_file 70000\nshmem 5"
    write_files(top, low=1 << 20)
    write_files(top / "user.slice", max=1 << 30, high="max", current=400_000, stat=stat)
    write_files(top / "user.slice" / "job", max="max", high="max", low=1 << 20, current=7)
    write_files(top / "user.slice" / "other", max=1 << 20)
    assert read_memory_size() == 1 << 30
    assert read_memory_size(n_processes=4) == 1 << 28
    assert find_memory_limit() == (1 << 30) - 300_000
    write_files(top / "user.slice" / "job", high=1 << 29)
    assert read_memory_size() == 1 << 29


@pytest.mark.parametrize(("own", "root"), [("/jobs/7", "/"), ("/docker/c1", "/docker/c1")])
def test_limits_of_groups_of_version_1_count(
    own: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may see its own group as the root."""
    top = make_groups(tmp_path, monkeypatch, 1, own, root)
    stat = "inactive_file 1\ntotal_inactive_file 20000\ntotal_active_file 0"
    limits = {"limit_in_bytes": 1 << 30, "soft_limit_in_bytes": 1 << 20}
    folder = top / own.removeprefix(root)
    write_files(folder, **limits, usage_in_bytes=50_000, stat=stat)
    write_files(top / "other", limit_in_bytes=1 << 20)
    assert read_memory_size() == 1 << 30
    assert find_memory_limit() == (1 << 30) - 30_000
    with pytest.raises(
        FitError, match=r"1\.1 GB of memory are free in this container or batch job"
    ):
        check_memory(1 << 31, 7, find_memory_limit())


@pytest.mark.parametrize("own", ["/../../elsewhere", "/gone", "/"])
def test_a_group_that_cannot_be_seen_leaves_the_limit_of_the_root(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(make_groups(tmp_path, monkeypatch, 2, own), max=1 << 30)
    assert read_memory_size() == 1 << 30


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group of this machine, in which processes can have 500 MB."""
    top = Path(
        "/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup"
    )
    folder = top / f"latentbits-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error.strerror})")
    name = "limit_in_bytes" if top.name == "memory" else "max"
    try:
        (folder / f"memory.{name}").write_text(str(500 << 20))
    except OSError as error:
        folder.rmdir()
        pytest.skip(f"control groups of this machine do not limit memory ({error.strerror})")
    yield folder
    folder.rmdir()


READ_SIZES = (
    "from flows.running import resources as r; print(r.read_memory_size(), r.find_memory_limit())"
)


def read_sizes(before: str) -> list[int]:
    """Read the memory size and the free memory in a process that runs a statement first."""
    command = [sys.executable, "-c", f"{before}; {READ_SIZES}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(size) for size in done.stdout.split()]


def test_the_limit_of_a_real_group_counts(control_group: Path) -> None:
    join = f"import os; open({str(control_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    size, free = read_sizes(join)
    assert size == 500 << 20
    assert 300 << 20 < free < size


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep these limits")
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_a_process_count(kind: str) -> None:
    size, free = read_sizes(f"import resource as r; r.setrlimit(r.{kind}, (3 << 30, 4 << 30))")
    assert size == 3 << 30
    assert 1 << 30 < free < size - (100 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep these limits")
@pytest.mark.matrix
@pytest.mark.parametrize("size", [600 << 20, 1300 << 20])
def test_a_fit_with_few_addresses_is_refused_before_memory_ends(size: int, tmp_path: Path) -> None:
    X = np.random.default_rng(0).integers(0, 2, (2000, 3000), dtype=np.uint8)
    write_arrays(tmp_path / "d.zarr", X)
    program = (
        f"import resource as r, sys; r.setrlimit(r.RLIMIT_AS, ({size}, {size}))\n"
        "import flows.fit; from flows.cli.app import run_app; run_app(flows.fit.app, sys.argv[1:])"
    )
    options = ["--dataset", "d.zarr", "--components", "2", "--no-report"]
    command = [sys.executable, "-c", program, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: 3000 features need 0.3 GB, but ")
    assert "of memory are free within `ulimit -v`. Allow more, or use fewer features" in message


@pytest.mark.parametrize(
    "text",
    [
        "1e400GB",
        "nan",
        "inf",
        "-1",
        "0",
        "",
        " ",
        "GB",
        "4 G B",
        "4GB\0",
        "-4GB",
        "4XB",
        "9" * 5000,
    ],
)
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(FitError, match=r"^memory is .*, which is not a size such as 4GB\.$"):
        find_memory_limit(text)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("4GB", 4 * 10**9), ("1.5 GiB", 3 << 29), ("500mb", 5 * 10**8), ("1e9", 10**9), ("7", 7)],
)
def test_sizes_are_read(text: str, n_bytes: int) -> None:
    assert find_memory_limit(text) == n_bytes


@pytest.mark.matrix
def test_workers_have_the_memory_of_this_machine() -> None:
    from flows.running.clusters import open_cluster

    with open_cluster(ClusterSettings(workers=2)) as executor:
        limits = [worker["memory_limit"] for worker in executor.describe_workers().values()]
    assert limits == [read_memory_size(2)] * 2


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), RuntimeError("can't start new thread")]
)
def test_exhausted_memory_is_one_line(
    cli: Callable[..., CommandResult], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("flows.ingest.write_rows", fail)
    message = cli("ingest", "example:digits", "--dataset", "d.zarr").check_refused()
    assert message.startswith(f"error: There is not enough memory ({error}). Use a larger machine")
