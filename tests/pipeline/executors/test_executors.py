"""The same bytes from every executor, and what the scheduler saw of the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin, Worker
from threadpoolctl import ThreadpoolController, threadpool_limits

from pipeline.data.features import Feature
from pipeline.errors import ClusterLost, FitError
from pipeline.executors.base import (
    Node,
    SerialExecutor,
    ThreadsExecutor,
    Tree,
    choose_executor,
    limit_blas_threads,
)
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.dask import DaskExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from storage.dataset.dataset import BinaryDataset
from tests.support.clusters import DeadlyReader, EndlessTask, LoggedReader, SlowReader
from tests.support.data import draw_probit_rows, make_test_row_source, write_arrays
from tests.support.strategies import DenseData, make_memory_rows

N_CHUNKS = 100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    X, _ = draw_probit_rows(N_CHUNKS * 128, 30, 3, seed=5)
    return write_arrays(tmp_path_factory.mktemp("executors") / "d.zarr", X, words_per_chunk=2)


@pytest.fixture(scope="module")
def three_workers():
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def loadings(dataset, executor, read=None) -> bytes:
    rows = make_test_row_source(dataset)
    if read is not None:
        rows = replace(rows, read=read)
    return fit_model(ClippedPCA(), rows, executor, seed=3).params.loadings.tobytes()


@pytest.fixture(scope="module")
def expected(dataset) -> bytes:
    return loadings(dataset, SerialExecutor())


def test_threads_give_the_bytes_of_serial(dataset, expected):
    assert loadings(dataset, ThreadsExecutor(3)) == expected


def test_dask_in_process_gives_the_bytes_of_serial(dataset, expected):
    with (
        LocalCluster(processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert loadings(dataset, DaskExecutor(client)) == expected


def test_groups_with_levels_have_the_bytes_of_serial_on_workers(three_workers):
    rng = np.random.default_rng(0)
    group = np.arange(400) % 2
    y = rng.standard_normal((400, 1)) + group[:, None] + rng.logistic(size=(400, 5))
    features = tuple(Feature(f"i{k}", ("low", "middle", "high")) for k in range(5))
    planes = np.stack([y > -1, y > 1], axis=2).reshape(400, 10).astype(np.uint8)
    rows = make_memory_rows(DenseData(planes, segments=group))
    structure = Structure(groups=("a", "b"), features=features)
    model = LatentTrait(n_components=1, tol=1e-5).with_structure(structure)
    serial, processes = (
        fit_model(model, rows, executor).params
        for executor in (SerialExecutor(), DaskExecutor(three_workers))
    )
    for name in ("group_level_offsets", "trait_mean", "weights_error"):
        assert getattr(processes, name).tobytes() == getattr(serial, name).tobytes()


@pytest.mark.matrix
def test_a_killed_workers_chunks_are_read_again(dataset, expected, three_workers, tmp_path):
    mark = tmp_path / "killed"
    deadly = DeadlyReader(make_test_row_source(dataset).read, N_CHUNKS // 2, mark)
    assert loadings(dataset, DaskExecutor(three_workers), deadly) == expected
    assert mark.exists()
    three_workers.wait_for_workers(3, timeout=600)


@pytest.mark.matrix
def test_workers_keep_chunks_and_get_them_again(dataset, three_workers, tmp_path):
    log = tmp_path / "read"
    logged = LoggedReader(str(dataset.path), dataset.digest, memory=1 << 30, log=str(log))
    rows = replace(make_test_row_source(dataset), read=logged)
    model = LatentTrait(estimator="variational", max_iter=5, tol=1e-12)
    passes = fit_model(model, rows, DaskExecutor(three_workers)).iteration
    expected = fit_model(
        model, make_test_row_source(dataset), SerialExecutor()
    ).params.weights.tobytes()
    assert fit_model(model, rows, DaskExecutor(three_workers)).params.weights.tobytes() == expected
    # A few are stolen by a worker that would be idle.
    n_read = len(log.read_text().split())
    assert N_CHUNKS <= n_read < 3 * N_CHUNKS < passes * N_CHUNKS


class Record(SchedulerPlugin):
    """Notes each finished task: its key, its worker and the size of its result."""

    name = "record"

    def __init__(self) -> None:
        self.done: list[tuple[str, str, int]] = []

    def transition(self, key, start, finish, *args, worker=None, nbytes=0, **kwargs) -> None:
        if (start, finish) == ("processing", "memory"):
            self.done.append((key, worker, nbytes))


@pytest.mark.matrix
def test_the_scheduler_saw_every_chunk_on_a_worker(dataset, three_workers):
    record = Record()
    three_workers.cluster.scheduler.add_plugin(record)
    slow = replace(
        make_test_row_source(dataset), read=SlowReader(make_test_row_source(dataset).read, 0.02)
    )
    counts = collect_pass_statistics(
        ClippedPCA(), FitState(None), slow, DaskExecutor(three_workers), seed=0
    )
    three_workers.cluster.scheduler.remove_plugin(record.name)
    assert counts.n_rows == dataset.n_rows
    done = [task for task in record.done if not task[0].endswith("-function")]
    # Four chunks per task, as three threads need no more than 24, and then tasks that merge.
    names = [key.partition("-")[0] for key, _, _ in done]
    assert Counter(names) == {"reduce_pieces": 25, "merge": 4, "finish": 1}
    assert {worker for _, worker, _ in done} == set(three_workers.scheduler_info()["workers"])
    folded = sum(array.nbytes for array in counts.to_arrays().values())
    assert max(nbytes for _, _, nbytes in record.done) <= folded + 4096


TREES = [
    Tree(range(n), nodes, list, is_open)
    for n, nodes, is_open in [
        (0, (), False),
        (1, (), True),
        (7, (), False),
        (100, (), True),
        (86, (Node(3, "early"), Node(1, "later"), Node(0, "last")), False),
        (0, (Node(2, "early"),), False),
    ]
]


def test_workers_merge_along_the_tree_of_the_serial_executor(three_workers) -> None:
    executors, texts = [SerialExecutor(), DaskExecutor(three_workers)], []
    for executor in executors:
        for max_items in (1, 2, 64):
            done: list[int] = []
            found = executor.reduce(write_span, write_merge, TREES, done.extend, max_items)
            texts.append(list(found))
            assert sorted(done) == sorted(k for tree in TREES for k in tree.items)
    assert texts[1:] == texts[:-1]
    assert texts[0][2] == [(2, "((0 1) (2 3))"), (1, "(4 5)"), (0, "6")]
    eventually(lambda: three_workers.run_on_scheduler(_number_of_tasks) == 0)


@pytest.mark.matrix
def test_a_pass_survives_more_deaths_than_dask_allows_a_task(tmp_path) -> None:
    deadly = partial(die_at_some, str(tmp_path))
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        executor = DaskExecutor(client, worker_timeout=600)
        (text,) = executor.reduce(deadly, write_merge, [Tree(range(64), (), list)], len, 1)
    assert text == [(6, write_span(range(64)))]
    assert len(list(tmp_path.iterdir())) == 5


def die_at_some(folder: str, items: Sequence[int]) -> str:
    mark = Path(folder, str(items[0]))
    if items[0] in (10, 20, 30, 40, 50) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return write_span(items)


def test_a_pass_ends_if_all_workers_pause(three_workers) -> None:
    with Client(three_workers.cluster, set_as_default=False) as client:
        set_pause_fraction(three_workers, 1e-9, "paused")
        found = DaskExecutor(client, worker_timeout=1).map(abs, [1])
        with pytest.raises(ClusterLost, match=r"all paused as their memory is full: tcp://.* GB"):
            next(found)
        assert client.status == "closed"
    set_pause_fraction(three_workers, 0.8, "running")


def set_pause_fraction(client: Client, fraction: float, status: str) -> None:
    """Let workers pause at a fraction of their memory; wait until all three have a status."""

    def have_status() -> bool:
        client.run(_set_pause_fraction, fraction)  # again, as a worker may just have started
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return [worker["status"] for worker in workers] == [status] * 3

    eventually(have_status)


def _set_pause_fraction(fraction: float, dask_worker: Worker) -> None:
    dask_worker.memory_manager.memory_pause_fraction = fraction


@pytest.mark.matrix
def test_idle_workers_copy_the_last_tasks(three_workers, tmp_path, monkeypatch) -> None:
    """The first attempt at two items never ends; the first result counts."""
    monkeypatch.setattr("pipeline.executors.dask._MIN_LATE_SECONDS", 0.5)
    three_workers.wait_for_workers(3, timeout=600)
    executor, done = DaskExecutor(three_workers), []
    stuck = partial(wait_at_first, str(tmp_path))
    trees = [Tree(range(1), (), list), Tree(range(64), (), list), Tree(range(64, 70), (), list)]
    texts = list(executor.reduce(stuck, write_merge, trees, done.extend, 1))
    assert texts == list(SerialExecutor().reduce(write_span, write_merge, trees, len, 1))
    assert sorted(done) == [0, *range(70)]
    found = list(executor.map(stuck, [[k] for k in range(100, 120)]))
    assert found == [str(k) for k in range(100, 120)]
    assert {path.name for path in tmp_path.iterdir()} == {"33", "66", "111"}
    eventually(lambda: three_workers.run_on_scheduler(_number_of_tasks) == 0)


def wait_at_first(folder: str, items: Sequence[int]) -> str:
    mark = Path(folder, str(items[0]))
    if items[0] in (33, 66, 111) and not mark.exists():
        mark.touch()
        while True:
            check_cancelled()
            time.sleep(0.01)
    return write_span(items)


@pytest.mark.matrix
def test_others_get_the_tasks_and_results_of_a_frozen_worker(three_workers, caplog) -> None:
    """Its nanny restarts it."""
    processes = three_workers.run(os.getpid)
    frozen = min(processes, key=str)
    done: list[int] = []

    def freeze(items: Sequence[int]) -> None:
        if not done:
            os.kill(processes[frozen], signal.SIGSTOP)
        done.extend(items)

    executor = DaskExecutor(three_workers, worker_timeout=15)
    three_workers.wait_for_workers(3, timeout=600)
    assert len(list(executor.map(write_slowly, [[k] for k in range(6)]))) == 6  # imports are slow
    (text,) = executor.reduce(write_slowly, write_merge, [Tree(range(64), (), list)], freeze, 1)
    assert text == [(6, write_span(range(64)))]
    assert sorted(done) == list(range(64))
    assert f"worker {frozen} has not answered for 15 s" in caplog.text
    three_workers.wait_for_workers(3, timeout=600)
    assert processes[frozen] not in three_workers.run(os.getpid).values()


@pytest.mark.matrix
def test_others_get_the_tasks_of_a_worker_that_hangs(three_workers, tmp_path, caplog) -> None:
    """Those that only take long, such as imports by new workers, are not taken again and again."""
    three_workers.wait_for_workers(3, timeout=600)
    executor = DaskExecutor(three_workers, task_timeout=1)
    hang = partial(wait_at_first, str(tmp_path))
    assert list(executor.map(hang, [[66], [1], [2]])) == ["66", "1", "2"]
    assert "has finished no task for 1 s. Others compute its tasks." in caplog.text
    three_workers.wait_for_workers(3, timeout=600)


@pytest.mark.matrix
def test_tasks_that_are_only_long_are_left_alone(three_workers, caplog, monkeypatch) -> None:
    """Short tasks of an earlier run say nothing about them."""
    monkeypatch.setattr("pipeline.executors.dask_monitor._MIN_TASK_SECONDS", 0.3)
    for module in ("dask", "dask_monitor"):
        monkeypatch.setattr(f"pipeline.executors.{module}._POLL_SECONDS", 0.1)
    three_workers.wait_for_workers(3, timeout=600)
    assert list(DaskExecutor(three_workers).map(abs, range(6))) == [*range(6)]  # imports are slow
    executor = DaskExecutor(three_workers)
    assert list(executor.map(time.sleep, [0.2] * 6)) == [None] * 6
    assert list(executor.map(time.sleep, [5.0] * 3)) == [None] * 3
    assert "has finished no task" not in caplog.text


def write_slowly(items: Sequence[int]) -> str:
    time.sleep(0.02)
    return write_span(items)


def test_results_that_were_merged_are_forgotten_during_the_pass(three_workers) -> None:
    counts: list[int] = []

    def count(items: Sequence[int]) -> None:
        counts.append(three_workers.run_on_scheduler(_count_results))

    executor = DaskExecutor(three_workers)
    (text,) = executor.reduce(write_span, write_merge, [Tree(range(256), (), list)], count, 1)
    assert text == [(8, write_span(range(256)))]
    assert max(counts) < 60


def write_span(items: Sequence[int]) -> str:
    if len(items) == 1:
        return str(items[0])
    half = len(items) // 2
    return write_merge(write_span(items[:half]), write_span(items[half:]))


def write_merge(left: str, right: str) -> str:
    return f"({left} {right})"


def test_an_error_of_one_piece_ends_the_pass(three_workers) -> None:
    found = DaskExecutor(three_workers).reduce(
        refuse_seven, write_merge, [Tree(range(50), (), list)], len, 1
    )
    with pytest.raises(ValueError, match="no seven"):
        next(found)
    eventually(lambda: three_workers.run_on_scheduler(_number_of_tasks) == 0)


def refuse_seven(items: Sequence[int]) -> str:
    if 7 in items:
        raise ValueError("no seven")
    return write_span(items)


def test_what_nobody_waits_for_is_stopped(three_workers, tmp_path):
    """Items under way end at the next question, and the scheduler forgets all of them."""
    executors = [ThreadsExecutor(3), DaskExecutor(three_workers)]
    for executor, log in zip(executors, (tmp_path / "threads", tmp_path / "dask"), strict=True):
        endless = EndlessTask(str(log))
        found = executor.map(endless, range(-5, 50))
        first = next(found)  # six are submitted by now, nothing endless before them
        eventually(lambda endless=endless: len(endless.list_numbers("gave")) == 6)
        assert [first, *islice(found, 5)] == [-5, -4, -3, -2, -1, 0]
        eventually(lambda endless=endless: len(endless.list_numbers("began")) == 3)
        found.close()
        eventually(
            lambda endless=endless: endless.list_numbers("ended") == endless.list_numbers("began")
        )
    eventually(lambda: three_workers.run_on_scheduler(_number_of_tasks) == 0)


@pytest.mark.matrix
def test_a_large_function_goes_out_once_and_nobody_is_told(three_workers):
    function = partial(_weighed, Weighed(np.ones(2 << 20)))
    items = [np.full(2 << 20, k, np.float64) for k in range(6)]  # large ones go to one task each
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = list(DaskExecutor(three_workers).map(function, items))
    assert found == [k << 21 for k in range(6)]
    assert [str(one.message) for one in told if "large graph" in str(one.message)] == []
    assert 0 < Weighed.sent < len(items)  # Dask pickles it more than once to send it once


class Weighed:
    """Counts how often this process sends it."""

    sent = 0

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def __reduce__(self) -> tuple[type[Weighed], tuple[np.ndarray]]:
        Weighed.sent += 1
        return Weighed, (self.weights,)


def _weighed(weighed: Weighed, item: np.ndarray) -> int:
    return int(weighed.weights @ item)


@pytest.mark.matrix
def test_a_function_outlives_the_worker_that_held_it(three_workers):
    executor = DaskExecutor(three_workers)
    found = executor.map(_own_process, range(300))
    first = next(found)
    (holder,) = three_workers.run_on_scheduler(_holders_of_functions)
    os.kill(three_workers.run(os.getpid)[holder], signal.SIGKILL)
    processes = [first, *found]
    assert len(processes) == 300
    assert len(set(processes)) >= 2
    three_workers.wait_for_workers(3, timeout=600)


def _own_process(number: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def _holders_of_functions(dask_scheduler: Scheduler) -> list[str]:
    """Addresses of the workers that held a function first."""
    tasks = dask_scheduler.tasks.values()
    return [sorted(w.address for w in t.who_has)[0] for t in tasks if t.key.endswith("-function")]


def _count_results(dask_scheduler: Scheduler) -> int:
    return sum(task.state == "memory" for task in dask_scheduler.tasks.values())


def _number_of_tasks(dask_scheduler: Scheduler) -> int:
    return len(dask_scheduler.tasks)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so, with the patience that a busy machine asks for."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_overlapping_users_share_limit_blas_threads():
    """The last to leave restores what the first found, in whatever order they leave."""
    first, second = limit_blas_threads(), limit_blas_threads()
    with threadpool_limits(2, user_api="blas"):
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert _blas_threads() == {1}
        second.__exit__(None, None, None)
        assert _blas_threads() == {2}


def test_another_thread_that_limited_first_is_in_nobodys_way():
    """A worker's thread stays alive after its tasks; the next user is another thread."""
    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(1) as pool:
        pool.submit(_limited_threads).result()
        assert _limited_threads() == {1}
        assert pool.submit(_limited_threads).result() == {1}
        assert _blas_threads() == {2}


_LATER = """
from threadpoolctl import threadpool_info
from pipeline.executors.base import limit_blas_threads

with limit_blas_threads():
    pass
import numpy, scipy.linalg
with limit_blas_threads():
    print(*{library["num_threads"] for library in threadpool_info()})
"""


@pytest.mark.matrix
def test_a_library_that_is_loaded_later_has_one_thread_too():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", _LATER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def _limited_threads() -> set[int]:
    with limit_blas_threads():
        return _blas_threads()


def _blas_threads() -> set[int]:
    libraries = ThreadpoolController().select(user_api="blas").info()
    return {library["num_threads"] for library in libraries}


def test_executors_have_names() -> None:
    assert isinstance(choose_executor("serial", 4), SerialExecutor)
    assert isinstance(choose_executor("threads", 4), ThreadsExecutor)
    given = SerialExecutor()
    assert choose_executor(given, 4) is given
    assert isinstance(choose_executor(None, 2), ThreadsExecutor)
    with pytest.raises(FitError, match=r"executor is 'dask'\. Pass serial, threads"):
        choose_executor("dask", 1)
