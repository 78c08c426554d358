"""Every fault at every stage of a run: nothing is lost, and the result has the same bytes.

Each cell runs a command in a process of its own on a cluster of its own kind and sets the fault off
at an exact task. What is marked matrix or slow repeats a fault at another stage or with another
model, or one that tests of the commands set off in their own process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from distributed import Client

from storage import load_artifact, open_codes
from storage.dataset.chunks import clear_chunk_cache
from storage.stores.locations import parse_path
from tests.support.cluster_processes import run_command, start_scheduler, start_worker
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.faults import SchedulerTrap, fill_disk, flip_middle_bit, install_trap
from tests.support.processes import CommandProcess, start_command, throttle_process, wait_for_file

N_CHUNKS, N_FEATURES = 160, 10
FIRST, PASS, FIT, TRANSFORM, WRITE = STAGES = (
    "first counts", "pass", "fit", "transform", "write artifact",
)  # fmt: skip
PCA, TRAIT = "clipped-pca", "latent-trait"
OPTIONS = {
    PCA: ["--model", PCA, "--components", "2", "--set", "null_draws=2000"],
    TRAIT: ["--model", TRAIT, "--components", "2"],
}
SWEEPS = {
    FIRST: ("reduce_pieces", 1, 12),
    PASS: ("reduce_pieces", 2, 12),
    FIT: ("reduce_pieces", 4, 12),
}
SWEEPS[TRANSFORM] = ("write_ranges", 1, 1)
ON_CLUSTER = [(FIRST, PCA), (PASS, PCA), (TRANSFORM, PCA)]
ON_CLUSTER += [(FIRST, TRAIT), (PASS, TRAIT), (FIT, TRAIT), (TRANSFORM, TRAIT)]
CELLS = {
    "worker killed": ON_CLUSTER,
    "scheduler killed": ON_CLUSTER,
    "client killed": ON_CLUSTER,
    "disk full": [*ON_CLUSTER, (WRITE, PCA), (WRITE, TRAIT)],
    "chunk damaged": [(FIRST, PCA), (PASS, PCA), (TRANSFORM, PCA), (FIRST, TRAIT)],
    "slow worker": [(FIRST, PCA), (FIT, TRAIT), (TRANSFORM, PCA)],
    "interrupted": ON_CLUSTER,
    "interrupted, on threads": ON_CLUSTER,
    "second writer": [(PASS, PCA), (FIT, TRAIT), (TRANSFORM, TRAIT)],
}
ALWAYS = {
    ("worker killed", PASS, PCA), ("interrupted", TRANSFORM, PCA),
}  # fmt: skip
REPEATED = {
    ("worker killed", TRANSFORM, PCA), ("scheduler killed", FIT, TRAIT),
    ("client killed", TRANSFORM, PCA), ("chunk damaged", PASS, PCA),
    ("disk full", WRITE, PCA), ("disk full", FIT, TRAIT),
    ("interrupted, on threads", FIT, TRAIT),
}  # fmt: skip


def cells(fault: str) -> pytest.MarkDecorator:
    """A test of every cell of a fault."""
    marked = [pytest.param(*cell, marks=_marks((fault, *cell))) for cell in CELLS[fault]]
    return pytest.mark.parametrize(("stage", "model"), marked)


def _marks(cell: tuple[str, str, str]) -> Sequence[pytest.MarkDecorator]:
    if cell in ALWAYS:
        return ()
    return (pytest.mark.matrix if cell in REPEATED else pytest.mark.slow,)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(N_CHUNKS * 64, N_FEATURES, 2, seed=7)
    segments = np.repeat([*"ab"] * (N_CHUNKS // 2), 64).tolist()  # else, ones are not counted again
    path = tmp_path_factory.mktemp("faults") / "d.zarr"
    return write_arrays(path, X, segments=segments, words_per_chunk=1).path


@dataclass
class Cluster:
    """A scheduler and two workers of one thread, on loopback."""

    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)
    address: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _log: IO[bytes] | int = subprocess.DEVNULL

    def complete(self) -> None:
        """Start what is not there, or everything anew if that does not help."""
        for seconds in (60, 480):
            if not self.address or not _answers(self.address):
                self._start_scheduler()
            self.workers = [process for process in self.workers if process.poll() is None]
            while len(self.workers) < 2:
                worker = start_worker(self.address, log=self._log)
                self.workers.append(self.stack.enter_context(worker))
            with Client(self.address, set_as_default=False) as client, suppress(TimeoutError):
                return client.wait_for_workers(2, timeout=seconds)
            self.address = ""
        pytest.fail(self.describe("two workers were started, but did not come"))

    def _start_scheduler(self) -> None:
        self.stack.close()
        self.workers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._log = self.stack.enter_context((self.folder / "log").open("ab"))
        self.address = self.stack.enter_context(start_scheduler(self.folder, log=self._log))

    def describe(self, problem: str) -> str:
        """Return a problem with what the scheduler and the workers said last."""
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return "\n".join([problem, *lines[-60:]])

    @contextmanager
    def trapped(self, stage: str, act: Callable[[], object]) -> Iterator[Client]:
        """Let something happen in the middle of a stage; it must have happened in the end."""
        with Client(self.address, set_as_default=False) as client:
            install_trap(client, SchedulerTrap(*SWEEPS[stage], act))
            yield client
            assert client.run_on_scheduler(_trap).sprung

    def scheduler_pid(self) -> int:
        with Client(self.address, set_as_default=False) as client:
            return client.run_on_scheduler(os.getpid)


def _answers(address: str) -> bool:
    try:
        Client(address, timeout=2, set_as_default=False).close()
    except OSError:
        return False
    return True


def _trap(dask_scheduler: Any) -> SchedulerTrap:
    return dask_scheduler.plugins["trap"]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "scheduler")
    with cluster.stack:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.complete()
    return shared_cluster


@dataclass
class Work:
    """One cell's command, and what must come of it."""

    cli: Callable[..., Any]
    dataset: Path
    stage: str
    model: str
    output: Path
    expected: dict[str, bytes]

    @property
    def words(self) -> list[str]:
        """The command without where it runs."""
        if self.stage != TRANSFORM:
            options = [*OPTIONS[self.model], "--output", str(self.output), "--no-report"]
            return ["fit", "--dataset", str(self.dataset), *options]
        fitted = ["--artifact", str(self.dataset.parent / self.model)]
        return ["transform", "--dataset", str(self.dataset), *fitted, "--output", str(self.output)]

    def started(self, cluster: Cluster, *more: str) -> Any:
        name, *options = self.words
        where = ["--cluster", cluster.address, "--workers", 2]
        return start_command(f"flows.{name}", *options, *where, *more)

    def here(self, *more: object) -> Any:
        return self.cli(*self.words, "--executor", "serial", *more)

    def resume(self) -> None:
        """Go on, and check that nothing of the fault is left."""
        done = self.here("--resume", "--json")
        assert done.code == 0, done.err
        self.check()

    def check(self) -> None:
        """The bytes of an undisturbed run, and no trace of anything else."""
        beside = {path.name for path in self.output.parent.iterdir()}
        assert not {name for name in beside if name.startswith(".")}
        if self.stage == TRANSFORM:
            assert arrays_of(open_codes(self.output)) == self.expected
            return
        assert arrays_of(load_artifact(self.output)) == self.expected
        latest = (self.output / "latest").read_text().strip()
        assert {path.name for path in self.output.iterdir()} == {latest, "latest"}


def arrays_of(found: Any) -> dict[str, bytes]:
    return {name: np.asarray(found[name]).tobytes() for name in found}


@pytest.fixture(scope="module")
def undisturbed() -> dict[tuple[str, str], dict[str, bytes]]:
    """Arrays of serial runs that nothing befell, by command and model."""
    return {}


@pytest.fixture
def work(cli, source, tmp_path, undisturbed) -> Callable[[str, str], Work]:
    def make(stage: str, model: str) -> Work:
        name = TRANSFORM if stage == TRANSFORM else FIT
        found = Work(cli, source, stage, model, tmp_path / "out" / "x", {})
        found.output.parent.mkdir()
        fitted = source.parent / model
        if not fitted.exists():
            first = Work(cli, source, FIT, model, fitted, {}).here("--json")
            assert first.code == 0, first.err
        if (name, model) not in undisturbed:
            if name == TRANSFORM:
                assert found.here("--json").code == 0
                undisturbed[name, model] = arrays_of(open_codes(found.output))
                shutil.rmtree(found.output)
            else:
                undisturbed[name, model] = arrays_of(load_artifact(fitted))
        found.expected = undisturbed[name, model]
        shutil.rmtree(source / "statistics", ignore_errors=True)  # which would save the work
        return found

    return make


@pytest.mark.matrix
@cells("worker killed")
def test_a_worker_is_killed(work, cluster, stage, model):
    cell = work(stage, model)
    kill = partial(os.kill, cluster.workers[0].pid, signal.SIGKILL)
    with cluster.trapped(stage, kill), cell.started(cluster) as run:
        code, message = run.wait()
    assert code == 0, cluster.describe(message)
    cell.check()


@cells("client killed")
def test_the_client_is_killed(work, cluster, stage, model):
    cell = work(stage, model)
    with (
        cell.started(cluster) as run,
        cluster.trapped(stage, partial(os.killpg, run.pid, signal.SIGKILL)),
    ):
        assert run.wait()[0] == -signal.SIGKILL
    done = cell.here("--json")  # also without --resume
    assert (done.code, "so its work is continued" in done.err) == (0, True), done.err
    cell.check()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root of a whole machine may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@cells("disk full")
def test_the_disk_is_full(work, cluster, small_disk, stage, model):
    cell = work(stage, model)
    cell.output = small_disk / "x"
    with cell.started(cluster) as run:
        if stage == WRITE:
            _fill_before_writing(run, cell)
            code, message = run.wait()
        else:
            with cluster.trapped(stage, partial(fill_disk, small_disk)):
                code, message = run.wait()
    assert (code, message.count("No space left")) == (2, 1), message
    assert str(small_disk) in message
    (small_disk / "filler").unlink()
    cell.resume()


def _fill_before_writing(run: CommandProcess, cell: Work) -> None:
    """Hold the process once its last state is there, and fill the disk."""
    passes = load_artifact(cell.dataset.parent / cell.model).manifest["iterations"]
    wait_for_file(run.process, cell.output, f".unfinished/*/states/{passes:06d}/manifest.json")
    os.kill(run.pid, signal.SIGSTOP)
    assert not list(cell.output.glob(f"{cell.model}-*"))
    fill_disk(cell.output.parent)
    os.kill(run.pid, signal.SIGCONT)


@cells("chunk damaged")
def test_a_chunk_is_damaged(work, cluster, stage, model):
    cell = work(stage, model)
    chunk = cell.dataset / "bits" / "c" / "0" / str(N_CHUNKS - 2)
    with Client(cluster.address, set_as_default=False) as client:
        client.run(clear_chunk_cache)  # a worker that has the chunk in memory would not notice
    with cell.started(cluster) as run, cluster.trapped(stage, partial(flip_middle_bit, chunk)):
        code, message = run.wait()
    try:
        assert code == 2
        assert f"{cell.dataset}: bits: chunk {N_CHUNKS - 2} is damaged" in message
    finally:
        flip_middle_bit(chunk)
    cell.resume()


@cells("slow worker")
def test_a_worker_is_slow(work, cluster, stage, model):
    cell = work(stage, model)
    with (
        cluster.trapped(stage, bool),
        cell.started(cluster) as run,
        throttle_process(cluster.workers[0].pid),
    ):
        assert run.wait()[0] == 0
    cell.check()


@pytest.mark.matrix
@cells("interrupted")
def test_it_is_interrupted_on_a_cluster(work, cluster, stage, model):
    cell = work(stage, model)
    with (
        cell.started(cluster) as run,
        cluster.trapped(stage, partial(os.killpg, run.pid, signal.SIGINT)) as client,
    ):
        assert run.wait() == (130, "error: interrupted")
        assert not client.run_on_scheduler(_tasks)
    cell.resume()


def _tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


@cells("interrupted, on threads")
def test_it_is_interrupted_on_threads(work, tmp_path, stage, model):
    """Blocks after the interrupt take half a second: only those under way are finished."""
    cell, log = work(stage, model), tmp_path / "log"
    block = {FIRST: 0.5, PASS: 1.5, FIT: 3.5, TRANSFORM: 0.5}[stage] * N_CHUNKS
    name, *options = cell.words
    where = ["--executor", "threads", "--workers", 2]
    with start_command("tests.support.faults", name, int(block), log, *options, *where) as run:
        assert run.wait() == (130, "error: interrupted")
    assert 1 <= log.stat().st_size <= 4
    cell.resume()


@cells("second writer")
def test_a_second_writer_is_refused(work, cluster, stage, model):
    cell = work(stage, model)
    with (
        cell.started(cluster) as run,
        cluster.trapped(stage, partial(os.kill, run.pid, signal.SIGSTOP)) as client,
    ):
        _wait_until_sprung(client)
        for more in ((), ("--resume",)):
            refused = cell.here(*more)
            assert refused.code == 2
            assert "another process is writing here." in refused.message
        os.kill(run.pid, signal.SIGCONT)
        assert run.wait()[0] == 0
    cell.check()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("disk", marks=pytest.mark.matrix),
        pytest.param("s3", marks=pytest.mark.slow),
    ],
)
def test_two_fits_share_a_folder(work, cluster, request, kind):
    """Another fit ends while the first is held; the latest is the one that ended last."""
    cell = work(PASS, PCA)
    runs = f"{request.getfixturevalue('s3')}/runs" if kind == "s3" else str(cell.output)
    name, *options = cell.words
    options = [runs if word == str(cell.output) else word for word in options]
    held = start_command(f"flows.{name}", *options, "--cluster", cluster.address, "--workers", 2)
    with (
        held as run,
        cluster.trapped(PASS, partial(os.kill, run.pid, signal.SIGSTOP)) as client,
    ):
        _wait_until_sprung(client)
        here = ("--executor", "serial", "--json")
        refused = cell.cli(name, *options, *here)
        assert (refused.code, "is writing here. Wait for it" in refused.message) == (2, True)
        other = cell.cli(name, *options, "--seed", 1, *here)
        assert other.code == 0, other.err
        assert load_artifact(runs).path.name == parse_path(other.json["artifact"]).name
        os.kill(run.pid, signal.SIGCONT)
        assert run.wait()[0] == 0
    assert load_artifact(runs).manifest["seed"] == 0
    assert arrays_of(load_artifact(runs)) == cell.expected
    assert load_artifact(other.json["artifact"]).manifest["seed"] == 1
    names = [path.name for path in parse_path(runs).iterdir()]
    assert len(names) == 3
    assert not [found for found in names if found.startswith(".")]


@pytest.mark.matrix
def test_an_interrupt_while_connecting(work):
    """Whoever is at that address takes the connection and says nothing."""
    cell = work(FIRST, PCA)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        name, *options = cell.words
        with start_command(f"flows.{name}", *options, "--cluster", address) as run:
            silent.settimeout(120)
            with silent.accept()[0]:
                os.killpg(run.pid, signal.SIGINT)
                assert run.wait() == (130, "error: interrupted")
    assert not cell.output.exists()
    cell.resume()


@cells("scheduler killed")
def test_the_scheduler_is_killed(work, cluster, stage, model):
    """After the others, as a cluster has to be started anew."""
    cell = work(stage, model)
    with Client(cluster.address, set_as_default=False) as client:
        install_trap(
            client,
            SchedulerTrap(
                *SWEEPS[stage], partial(os.kill, cluster.scheduler_pid(), signal.SIGKILL)
            ),
        )
    with cell.started(cluster) as run:
        code, message = run.wait()
    assert (code, message[:42]) == (1, "error: The cluster or its workers were los")
    assert "--resume" in message
    assert not _answers(cluster.address)
    cell.resume()


@pytest.mark.slow
@pytest.mark.parametrize("model", [PCA, TRAIT])
def test_a_scheduled_run_outlives_its_scheduler(work, model):
    """Its stages are tried again; what was done is not done again."""
    stage = PASS if model == PCA else FIT
    cell, port = work(stage, model), _free_port()
    address = f"tcp://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    scheduled = {"PREFECT__RUNTIME__DEPLOYMENT__ID": "scheduled"}
    first, second = (ExitStack() for _ in range(2))

    @contextmanager
    def started(stack: ExitStack) -> Iterator[tuple[Client, int]]:
        process = stack.enter_context(run_command("-m", "dask", "scheduler", *options))
        for _ in range(2):
            stack.enter_context(start_worker(address))
        with Client(address, timeout=600, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=600)
            yield client, process.pid

    with first, second:
        with started(first) as (client, pid):
            install_trap(
                client, SchedulerTrap(*SWEEPS[stage], partial(os.kill, pid, signal.SIGKILL))
            )
        name, *words = cell.words
        with start_command(f"flows.{name}", *words, "--cluster", address, **scheduled) as run:
            while _answers(address):
                assert run.process.poll() is None, run.wait()
            first.close()
            states = sorted(path.name for path in cell.output.glob(".unfinished/*/states/*"))
            with started(second) as (client, _):
                install_trap(client, SchedulerTrap("reduce_pieces", 99, 0, bool))
                assert run.wait()[0] == 0
                swept = len(client.run_on_scheduler(_trap).sweeps)
    passes = load_artifact(cell.output).manifest["iterations"]
    assert swept == (1 if model == PCA else passes - int(states[-1]))
    cell.check()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _wait_until_sprung(client: Client) -> None:
    deadline = time.monotonic() + 600
    while not client.run_on_scheduler(_trap).sprung:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_table_has_these_cells():
    """The page about failures lists the stages in which each fault is tested."""
    page = Path(__file__).parents[2] / ".docs" / "tasks" / "failures.md"
    text = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z, ]+?) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    listed = {fault: stages for fault, *stages in rows}
    for fault, tested in CELLS.items():
        for model, stages in zip((PCA, TRAIT), listed[fault], strict=True):
            assert stages == ", ".join(s for s in STAGES if (s, model) in tested), (fault, model)
    assert sum(map(len, CELLS.values())) >= 24
