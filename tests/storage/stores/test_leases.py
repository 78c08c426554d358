"""Leases of folders: one writer, whatever is killed or suspended and whatever the network does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import psutil
import pytest

from storage.artifacts.artifacts import RunFolder
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from storage.errors import FolderInUseError, LeaseLostError
from storage.stores import leases
from storage.stores.leases import (
    Lock,
    LockedError,
    check_leases,
    keep_leases,
    lock_folder,
    lock_work_folder,
)
from storage.stores.locations import list_children, parse_path
from storage.stores.object_path import ObjectPath
from tests.storage.conftest import feature_names, random_bits, write_dataset
from tests.support.data import ArrayBatch
from tests.support.object_proxy import AFTER, BEFORE, BROKEN, fail_every


def hold(folder: Any, pipe: Connection) -> None:
    """Hold the lease until told to go on, and tell what comes of it."""
    leases.RENEW_SECONDS = 0.05
    leases.run_name.set("fit votes")
    try:
        with lock_folder(folder) as lease:
            pipe.send("took over" if lease.took_over else "held")
            pipe.recv()
            check_leases()
        pipe.send("completed")
    except (FolderInUseError, LeaseLostError) as error:
        pipe.send(error)


@contextmanager
def start_holder(folder: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a process that takes the lease."""
    context = get_context("fork" if isinstance(folder, Path) else "spawn")
    pipe, own = context.Pipe()
    process = context.Process(target=hold, args=(folder, own))
    process.start()
    try:
        yield process, pipe
    finally:
        process.kill()
        process.join()


@contextmanager
def held_elsewhere(folder: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a process that holds the lease."""
    with start_holder(folder) as (process, pipe):
        assert pipe.recv() == "held"
        yield process, pipe


@pytest.fixture(params=["disk", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A folder on disk or in a store."""
    if request.param == "disk":
        return tmp_path / "data" / "d.zarr"
    return parse_path(f"{request.getfixturevalue('s3')}/data/d.zarr")


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.matrix)])
def shared_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A folder for several processes, which take longer to start if it is in a store."""
    if request.param == "disk":
        return tmp_path / "data" / "d.zarr"
    return parse_path(f"{request.getfixturevalue('s3')}/data/d.zarr")


def get_lease(folder: Any) -> Any:
    return folder.with_name(f".{folder.name}.lock")


def read_lease(folder: Any) -> dict[str, Any]:
    return json.loads(get_lease(folder).read_bytes())


def refuse(folder: Any) -> str:
    with pytest.raises(FolderInUseError) as refused, lock_folder(folder):
        pass
    return str(refused.value)


def test_a_lock_has_one_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    path, context = tmp_path / ".d.lock", get_context("fork")
    process = context.Process(target=lambda: (Lock(path), signal.pause()))
    process.start()
    while not path.exists():
        time.sleep(0.01)
    with pytest.raises(LockedError):
        Lock(path)
    process.kill()
    process.join()
    assert path.exists()
    lock = Lock(path)
    with pytest.raises(LockedError):
        Lock(path)
    lock.release()
    assert not path.exists()


def test_a_lease_is_next_to_the_folder_and_goes(folder):
    with lock_folder(folder) as lease:
        assert get_lease(folder).is_file()
        assert not lease.took_over
        with lock_folder(folder / "within"), lock_folder(folder.with_name("beside.zarr")):
            check_leases()
    assert not get_lease(folder).exists()


def test_a_locked_folder_may_be_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "d.zarr"
    with lock_folder(folder):
        folder.rmdir()
        folder.mkdir()
        check_leases()
    assert [*tmp_path.iterdir()] == [folder]
    with lock_work_folder(tmp_path / "new" / "work"):
        assert (tmp_path / "new" / "work").is_dir()
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_lease_is_inside_if_the_user_may_not_write_beside(tmp_path: Path) -> None:
    folder = tmp_path / "d.zarr"
    folder.mkdir()
    tmp_path.chmod(0o500)
    try:
        check_lease_is_inside(folder)
    finally:
        tmp_path.chmod(0o700)


def test_a_lease_inside_is_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d.zarr"
    folder.mkdir()
    monkeypatch.setattr(leases, "Lock", refuse_beside)
    check_lease_is_inside(folder)


def refuse_beside(path: Path, timeout: float) -> Lock:
    """Lock as for a user who may write only in the folder itself."""
    if path.name != ".lock.guard":
        raise PermissionError(str(path))
    return Lock(path, timeout)


def check_lease_is_inside(folder: Path) -> None:
    with lock_folder(folder):
        assert [path.name for path in folder.iterdir()] == [".lock"]
        assert list_children(folder) == []
        refuse(folder)
    assert [*folder.iterdir()] == []
    with lock_work_folder(folder):
        (folder / ".lock").unlink()
        folder.rmdir()  # with the lease in it, as work that is complete


def test_a_second_writer_is_told_who_holds_the_lease(tmp_path):
    folder = tmp_path / "d.zarr"
    with held_elsewhere(folder) as (other, _):
        message = refuse(folder)
    start = f"{folder}: another process is writing here. Wait for it: fit votes, process"
    assert message.startswith(f"{start} {other.pid} on {socket.gethostname()}, since 20")
    assert message.endswith(" UTC, last sign of life 0 s ago.")


def test_a_process_that_was_killed_here_is_followed_at_once(shared_folder):
    with held_elsewhere(shared_folder) as (other, _):
        other.kill()  # a zombie until it is waited for
        deadline = time.monotonic() + 600
        while psutil.Process(other.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
        with lock_folder(shared_folder) as lease:
            assert lease.took_over
    assert not get_lease(shared_folder).exists()


def test_a_process_number_that_came_again_is_not_the_holder(folder):
    hold_here(folder, born=1.0)
    with lock_folder(folder) as lease:
        assert lease.took_over


def test_a_lease_that_was_copied_with_its_folder_holds_up_nobody(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data" / "d.zarr", tmp_path / "copy"
    with lock_folder(folder):
        shutil.copytree(folder.parent, copy)
        assert get_lease(copy / "d.zarr").exists()
        with lock_folder(copy / "d.zarr") as lease:
            assert lease.took_over
            (tmp_path / "link").symlink_to(copy)
            refuse(tmp_path / "link" / "d.zarr")  # no copy, but another path
        check_leases()


def hold_here(folder: Any, **changes: Any) -> None:
    """Leave a lease of this process, with changes, as a holder that died does."""
    with lock_folder(folder):
        content = read_lease(folder)
    get_lease(folder).write_bytes(json.dumps({**content, **changes}).encode())


def test_a_holder_that_was_suspended_too_long_completes_nothing(shared_folder, monkeypatch):
    with held_elsewhere(shared_folder) as (other, pipe):
        os.kill(other.pid, signal.SIGSTOP)
        refuse(shared_folder)
        monkeypatch.setattr(leases, "LEASE_SECONDS", 0.2)
        time.sleep(0.3)
        with lock_folder(shared_folder) as lease:
            assert lease.took_over
            os.kill(other.pid, signal.SIGCONT)
            pipe.send("go on")
            error = pipe.recv()
            check_leases()
    assert isinstance(error, LeaseLostError)
    assert str(error).startswith(f"{shared_folder}: this process was suspended or cut off for more")
    assert not get_lease(shared_folder).exists()


def test_a_process_that_is_busy_keeps_its_lease(folder, monkeypatch):
    """Some functions keep all other threads of their process waiting for minutes."""
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.1)
    with pytest.raises(LeaseLostError), lock_folder(folder):  # noqa: PT012
        time.sleep(0.3)
        assert "last sign of life 0 s ago" in refuse(folder)
        time.sleep(0.8)
        with lock_folder(folder) as lease:
            assert lease.took_over


def test_another_machine_is_followed_once_it_is_silent_and_whatever_its_clock(folder, monkeypatch):
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.5)
    hold_here(folder, machine="another", renewed=time.monotonic() + 1e6)
    begin = time.monotonic()
    with lock_folder(folder) as lease:
        assert lease.took_over
    assert time.monotonic() - begin > 0.5


def test_another_machine_that_renews_is_seen_to_live(folder, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    with lock_folder(folder):
        monkeypatch.setattr(leases, "_identify_machine", lambda: "this host, other processes")
        assert "another process is writing here" in refuse(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"pid": 1}', b"\xff"])
def test_a_damaged_lease_ends_by_its_age(folder, monkeypatch, content):
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.1)
    folder.parent.mkdir(parents=True)
    get_lease(folder).write_bytes(content)
    with lock_folder(folder) as lease:
        assert lease.took_over


def test_a_lease_is_renewed_for_as_long_as_its_holder_lives(folder, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    with lock_folder(folder):
        times, deadline = {read_lease(folder)["renewed"]}, time.monotonic() + 600
        while len(times) < 4:
            assert time.monotonic() < deadline
            times.add(read_lease(folder)["renewed"])
        with keep_leases():
            pass
    assert not get_lease(folder).exists()


@pytest.mark.parametrize("error", [None, OSError("gone"), KeyError("bug")])
def test_a_lost_lease_is_told_at_the_end(folder, error):
    expected = KeyError if isinstance(error, KeyError) else LeaseLostError
    with pytest.raises(expected), lock_folder(folder):  # noqa: PT012
        get_lease(folder).write_bytes(b"another's")
        with pytest.raises(LeaseLostError), keep_leases():
            pytest.fail("another process has the lease")
        if error is not None:
            raise error
    assert get_lease(folder).read_bytes() == b"another's"  # left to its owner


def test_of_many_processes_one_takes_over(tmp_path):
    folder = tmp_path / "d.zarr"
    with held_elsewhere(folder):
        pass
    with ExitStack() as stack:
        rivals = [stack.enter_context(start_holder(folder)) for _ in range(8)]
        outcomes = [pipe.recv() for _, pipe in rivals]
    assert [outcome for outcome in outcomes if not isinstance(outcome, FolderInUseError)] == [
        "took over"
    ]


def test_of_many_threads_one_takes_over(folder, monkeypatch):
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    hold_here(folder, machine="another")
    first, last = Barrier(6), Barrier(6)

    def contend(_: int) -> bool:
        first.wait()
        try:
            with lock_folder(folder):
                last.wait()
                return True
        except FolderInUseError:
            last.wait()
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(contend, range(6))) == 1


@pytest.mark.parametrize("fault", [AFTER, BEFORE, BROKEN], ids=["after", "before", "broken"])
def test_a_lost_answer_loses_no_lease(faulty_bucket, faulty, monkeypatch, fault):
    """A repeated request finds what the first one wrote: that is no other writer."""
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    folder = parse_path(f"{faulty_bucket}/d")
    assert not folder.exists()
    faulty.fault = fail_every(2, fault)
    for _ in range(2):
        faulty.seen.clear()
        deadline = time.monotonic() + 600
        with lock_folder(folder):
            while sum(request.method == "PUT" for request in faulty.seen) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            check_leases()


@pytest.mark.parametrize("is_new", [False, True])
def test_a_dataset_is_left_to_the_process_that_took_over(folder, monkeypatch, is_new):
    """The first writer is as good as suspended."""
    names = feature_names(4)
    if not is_new:
        write_dataset(folder, random_bits(70, 4))
    first = create_dataset(folder, names) if is_new else append_dataset(folder, names)
    with pytest.raises(LeaseLostError), first as writer:  # noqa: PT012
        writer.add(ArrayBatch(random_bits(500, 4, 1)))
        monkeypatch.setattr(leases, "LEASE_SECONDS", -1.0)
        with ThreadPoolExecutor(1) as pool:  # a thread has leases of its own
            pool.submit(write_dataset, folder, random_bits(100, 4, 2), append=not is_new).result()
    X = open_dataset(folder).to_dask().compute()
    assert len(X) == 100 + 70 * (not is_new)
    assert np.array_equal(X[-100:], random_bits(100, 4, 2))
    open_dataset(folder).verify()


def test_work_of_a_process_that_died_is_kept(folder):
    run = RunFolder(folder, "model", "0123456789abcdef")
    for dies in (False, True):
        with run.claim_work(resume=False):
            run.states_folder.mkdir(parents=True, exist_ok=True)
            (run.states_folder / "1").write_bytes(b"")
            lease = get_lease(run.work_folder).read_bytes()
        if dies:
            get_lease(run.work_folder).write_bytes(lease.replace(b'"pid": ', b'"pid": 99999'))
        with run.claim_work(resume=False):
            assert run.has_states() == dies


@pytest.mark.parametrize("record", ["", "[]", "{}"])
def test_a_damaged_record_of_other_work_holds_up_no_fit(tmp_path, record):
    other = RunFolder(tmp_path, "model", "fedcba9876543210").work_folder
    other.mkdir(parents=True)
    (other / "dataset.json").write_text(record)
    with RunFolder(tmp_path, "model", "0123456789abcdef").claim_work(resume=False):
        assert other.is_dir()


def test_paths_in_stores_have_leases_in_stores(s3):
    folder = parse_path(f"{s3}/d")
    with lock_folder(folder):
        assert isinstance(get_lease(folder), ObjectPath)
        assert [path.name for path in folder.parent.iterdir()] == [".d.lock"]
