"""Only old fits and abandoned work are deleted, on disk and in object stores."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifacts.artifacts import NamedArray, RunFolder, load_artifact, write_artifact
from storage.artifacts.retention import (
    Removal,
    RetentionRule,
    delete_removal,
    find_removals,
    parse_retention_rule,
)
from storage.codes.codes import CodeArraySpec, create_codes, seal_codes
from storage.errors import DataError
from storage.stores.leases import lock_folder
from storage.stores.locations import MANIFEST_NAME, AnyPath, parse_path

NOW, DAY = time.time(), 86_400.0


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> AnyPath:
    if request.param == "disk":
        return tmp_path
    return parse_path(f"{request.getfixturevalue('s3')}/data")


def write_fit(runs: AnyPath, name: str, days: float, is_latest: bool = True) -> AnyPath:
    """Write a fit that was made some days ago."""
    created = (datetime.fromtimestamp(NOW, UTC) - timedelta(days=days)).isoformat()
    arrays = {"mean": NamedArray(("x",), np.full(3, days))}
    fit = write_artifact(runs / name, arrays, {"created": created})
    if is_latest:
        RunFolder(runs, "m", "0" * 64).set_latest(fit)
    return fit


def write_work(runs: AnyPath, fingerprint: str) -> AnyPath:
    work = RunFolder(runs, "m", fingerprint).work_folder
    work.mkdir(parents=True)
    (work / "state").write_bytes(b"counts")
    return work


def write_codes(folder: AnyPath, artifact: AnyPath) -> None:
    spec = {"mean": CodeArraySpec((), (), "float32")}
    writer = create_codes(folder, spec, 4, 4)
    checksums = writer(0, {"mean": np.zeros(4, np.float32)})
    digest = load_artifact(artifact).manifest["manifest_digest"]
    seal_codes(writer, [checksums], {"artifact": digest})


def names(removals: list[Removal]) -> dict[str, str]:
    return {removal.folder.name: removal.kind for removal in removals}


def find(folder: AnyPath, keep: int, days: int, later: float = 0) -> list[Removal]:
    return list(find_removals(folder, RetentionRule(keep, days), NOW + later * DAY))


def test_old_fits_and_their_codes_are_deleted(root: AnyPath) -> None:
    runs = root / "votes"
    fits = {days: write_fit(runs, f"m-{days}", days) for days in (200, 120, 95, 80, 10, 0.5)}
    write_codes(runs / "old-codes", fits[120])
    write_codes(runs / "new-codes", fits[10])
    write_artifact(runs / "undated", {}, {})
    (runs / "notes").mkdir()
    (runs / "notes" / "read.me").write_bytes(b"mine")
    assert names(find(root, 3, 90)) == {
        **dict.fromkeys(["m-200", "m-120", "m-95"], "fit"),
        "old-codes": "codes",
    }
    assert names(find(runs, 5, 90)) == {"m-200": "fit"}
    assert find(runs, 3, 300) == []
    # m-10 was the latest until half a day ago, so a transform may still read it.
    assert "m-10" not in names(find(runs, 1, 0))
    assert "m-10" in names(find(runs, 1, 0, later=0.6))

    removals = find(runs, 3, 90)
    assert all(removal.n_bytes > 300 for removal in removals)
    assert all(map(delete_removal, removals))
    assert find(runs, 3, 90) == []
    left = {child.name for child in runs.iterdir() if child.name != "latest"}
    assert left == {"m-80", "m-10", "m-0.5", "new-codes", "undated", "notes"}
    assert load_artifact(runs)["mean"].tolist() == [0.5] * 3
    delete_removal(removals[0])  # another process was faster


def test_the_latest_is_kept_whatever_its_age(root: AnyPath) -> None:
    for days in (9, 8, 7):
        old = write_fit(root, f"m-{days}", days)
    (removal, *_) = find(root, 1, 0)
    RunFolder(root, "m", "0" * 64).set_latest(removal.folder)  # by hand, after the list
    assert not delete_removal(removal)
    assert load_artifact(root).path.name == removal.folder.name
    assert removal.folder.name not in names(find(root, 1, 0))
    RunFolder(root, "m", "0" * 64).set_latest(old.with_name("moved"))
    assert find(root, 1, 0) == []  # which fit is needed is not known
    (root / "latest").unlink()
    assert find(root, 1, 0) == []


def test_a_killed_deletion_leaves_nothing_complete_and_is_repeated(root: AnyPath) -> None:
    old = write_fit(root, "m-9", 9)
    write_codes(root / "old-codes", old)
    write_codes(root / "older-codes", old)
    write_fit(root, "m-1", 1)
    killed = root / "old-codes"
    (killed / MANIFEST_NAME).unlink()
    kinds = [removal.kind for removal in find(root, 1, 0, later=0.5)]
    assert kinds == ["codes", "fit"]  # codes without a fit are kept
    (old / MANIFEST_NAME).unlink()
    with pytest.raises(DataError):
        load_artifact(old)
    assert find(root, 1, 0, later=0.5) == []  # perhaps a fit that is just being written
    removals = find(root, 1, 0, later=1.1)
    assert names(removals) == {"m-9": "unfinished fit", "old-codes": "unfinished codes"}
    assert all(map(delete_removal, removals))
    assert not old.exists()
    assert not killed.exists()


def test_abandoned_work_is_deleted_unless_it_is_in_use(root: AnyPath) -> None:
    write_fit(root, "m-1", 1)
    idle, busy = (write_work(root, digit * 64) for digit in "ab")
    assert find(root, 1, 0, later=0.9) == []
    with lock_folder(busy):
        removals = find(root, 1, 0, later=1.1)
        assert names(removals) == dict.fromkeys([idle.name, busy.name], "unfinished work")
        later = NOW + 1.1 * DAY
        done = {r.folder.name: delete_removal(r, later) for r in removals}
        assert done == {idle.name: True, busy.name: False}
        assert (busy / "state").read_bytes() == b"counts"
        assert not idle.exists()
    (removal,) = find(root, 1, 0, later=1.1)
    assert not delete_removal(removal)  # it was written to since the list
    assert delete_removal(removal, later)
    assert not (root / ".unfinished").exists()


def test_work_whose_lock_is_renewed_is_not_listed(tmp_path: Path) -> None:
    work = write_work(tmp_path, "a" * 64)
    for path in (work, work / "state"):
        os.utime(path, (NOW - 2 * DAY, NOW - 2 * DAY))
    with lock_folder(work):
        assert find(tmp_path, 1, 0) == []
    assert names(find(tmp_path, 1, 0)) == {work.name: "unfinished work"}


@pytest.mark.parametrize(
    "text", ["", "30", "keep", "keep=0", "keep=-1", "days=x", "keep=1,keep=2", "keep=1;days=2"]
)
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="keep=30,days=90"):
        parse_retention_rule(text, "prune")


def test_a_rule_may_have_one_part() -> None:
    read: Any = parse_retention_rule
    assert read("keep=30,days=90", "prune") == read("days=90, keep=30", "prune") == (30, 90)
    assert read("keep=5", "prune") == (5, 0)
    assert read("days=7", "prune") == (1, 7)
