"""Claims of folders in an object store: one writer, whatever dies and whatever the network does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storage.errors import DataError, FolderInUseError
from storage.stores import locations
from storage.stores.locations import claim_lease, parse_path
from storage.stores.object_path import ObjectPath
from tests.support.object_proxy import AFTER, BEFORE, BROKEN, fail_every

HOLDER = """
import sys, time
from storage.stores.locations import claim_lease
from storage.stores.locations import parse_path
with claim_lease(parse_path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(bucket: str) -> ObjectPath:
    return parse_path(f"{bucket}/data/d.zarr")


def claim_of(folder: ObjectPath) -> ObjectPath:
    return folder.with_name(f".{folder.name}.claim")


@contextmanager
def held_elsewhere(folder: ObjectPath) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a claim."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def rewrite(folder: ObjectPath, *, machine: str) -> None:
    """Make a claim look like one of another machine."""
    claim = claim_of(folder)
    claim.write_bytes(json.dumps([machine, *json.loads(claim.read_bytes())[1:]]).encode())


def test_what_is_inside_a_dataset_is_refused(folder):
    group = {"attributes": {"format": locations.DATASET_FORMAT}}
    (folder / "zarr.json").write_bytes(json.dumps(group).encode())
    for inside in (folder / "codes.zarr", folder / "a" / "b" / "t.csv"):
        with pytest.raises(DataError, match=rf"{inside} is inside the dataset {folder}\."):
            locations.check_outside_datasets(inside)
    locations.check_outside_datasets(folder)
    locations.check_outside_datasets(folder.with_name("e.zarr"))


def test_a_claim_lies_beside_the_folder_and_goes(folder):
    with claim_lease(folder) as holds:
        assert claim_of(folder).is_file()
        assert not folder.exists()
        assert holds()
    assert not claim_of(folder).exists()
    with claim_lease(folder):
        pass


def test_a_second_writer_is_refused_and_leaves_the_claim(folder):
    with claim_lease(folder) as holds:
        with pytest.raises(FolderInUseError) as refused, claim_lease(folder):
            pass
        assert holds()
    message = str(refused.value)
    assert message.startswith(f"{folder}: another process is writing")
    assert len(message.splitlines()) == 1


def test_folders_are_claimed_apart(folder):
    with (
        claim_lease(folder),
        claim_lease(folder / "within"),
        claim_lease(folder.with_name("beside.zarr")),
    ):
        pass


def test_a_writer_that_was_killed_here_is_followed_at_once(folder):
    with held_elsewhere(folder) as other:
        with pytest.raises(FolderInUseError), claim_lease(folder):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert claim_of(folder).is_file()
        with claim_lease(folder) as holds:
            assert holds()
    assert not claim_of(folder).exists()


def test_a_process_number_that_came_again_is_not_the_writer(folder):
    with held_elsewhere(folder) as other:
        machine, pid, born, *rest = json.loads(claim_of(folder).read_bytes())
        assert pid == other.pid
        claim_of(folder).write_bytes(json.dumps([machine, pid, born - 1, *rest]).encode())
        with claim_lease(folder) as holds:
            assert holds()


def test_a_writer_of_another_machine_is_followed_once_it_is_silent(folder, monkeypatch):
    with held_elsewhere(folder):
        pass
    rewrite(folder, machine="another")
    with pytest.raises(FolderInUseError, match=r"its claim expires in \d+ s"), claim_lease(folder):
        pass
    monkeypatch.setattr(locations, "STALE_SECONDS", 0.5)
    time.sleep(1.6)  # a store tells whole seconds
    with claim_lease(folder) as holds:
        assert holds()


def test_processes_of_another_container_are_not_looked_for_here(folder, monkeypatch):
    """Its host's name may be the same; its process numbers are others."""
    with held_elsewhere(folder):
        pass
    monkeypatch.setattr(locations, "_identify_machine", lambda: "this host, other processes")
    with pytest.raises(FolderInUseError), claim_lease(folder):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"[1]", b"null", b"\xff"])
def test_a_claim_that_nobody_can_read_ends_by_its_age(folder, monkeypatch, content):
    claim_of(folder).write_bytes(content)
    with pytest.raises(FolderInUseError), claim_lease(folder):
        pass
    monkeypatch.setattr(locations, "STALE_SECONDS", -1.0)
    with claim_lease(folder) as holds:
        assert holds()


def test_a_claim_is_renewed_for_as_long_as_its_writer_lives(folder, monkeypatch):
    monkeypatch.setattr(locations, "RENEW_SECONDS", 0.02)
    with claim_lease(folder) as holds:
        seen = {claim_of(folder).read_object().version["e_tag"]}
        deadline = time.monotonic() + 600
        while len(seen) < 4:
            assert time.monotonic() < deadline
            seen.add(claim_of(folder).read_object().version["e_tag"])
        assert holds()
    assert not claim_of(folder).exists()


def test_a_lost_claim_is_told_at_the_end(folder, monkeypatch):
    monkeypatch.setattr(locations, "RENEW_SECONDS", 0.02)
    with pytest.raises(FolderInUseError, match="has taken over"), claim_lease(folder) as holds:  # noqa: PT012
        claim_of(folder).write_bytes(b'["another", 1, 1.0]')
        deadline = time.monotonic() + 600
        while holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert claim_of(folder).read_bytes() == b'["another", 1, 1.0]'  # and left to its owner


def test_an_error_is_not_hidden_by_a_lost_claim(folder):
    with pytest.raises(KeyError), claim_lease(folder):  # noqa: PT012
        claim_of(folder).write_bytes(b"[]")
        raise KeyError


def test_a_deleted_claim_is_lost(folder):
    with pytest.raises(FolderInUseError), claim_lease(folder):
        claim_of(folder).unlink()


@pytest.mark.parametrize("fault", [AFTER, BEFORE, BROKEN], ids=["after", "before", "broken"])
def test_a_lost_answer_loses_no_claim(faulty_bucket, faulty, monkeypatch, fault):
    """A repeated request finds what the first one wrote: that is no other writer."""
    monkeypatch.setattr(locations, "RENEW_SECONDS", 0.02)
    folder = parse_path(f"{faulty_bucket}/d")
    assert not folder.exists()
    faulty.fault = fail_every(2, fault)
    for _ in range(2):
        faulty.seen.clear()
        deadline = time.monotonic() + 600
        with claim_lease(folder) as holds:
            while sum(request.method == "PUT" for request in faulty.seen) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert holds()


def test_of_many_writers_one_gets_a_stale_claim(folder, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    claim_of(folder).write_bytes(b'["another", 1, 1.0]')
    monkeypatch.setattr(locations, "_is_stale", lambda held: b"another" in held.content)
    start, end = Barrier(6), Barrier(6)

    def contend(_: int) -> bool:
        start.wait()
        try:
            with claim_lease(folder):
                end.wait()
                return True
        except FolderInUseError:
            end.wait()
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(contend, range(6))) == 1
