"""The command and the scheduled fit that delete old fits."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from storage import load_artifact
from storage.format.manifests import write_manifest
from tests.support.data import draw_probit_rows, write_arrays

FIT = ("fit", "--dataset", "d.zarr", "--components", 1, "--executor", "serial", "--no-report")


def copy_as_old(artifact: str, days: int) -> Path:
    """Copy a fit, as if it was made some days ago."""
    copy = Path(f"{artifact}-{days}")
    shutil.copytree(artifact, copy)
    created = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")
    write_manifest(copy, {**load_artifact(artifact).manifest, "created": created})
    return copy


def test_old_fits_are_listed_first_and_deleted_after_a_confirmation_or_a_fit(cli) -> None:
    X, _ = draw_probit_rows(500, 4, 1, seed=2)
    write_arrays(Path("d.zarr"), X)
    first = cli(*FIT, "--json").json["artifact"]
    old = [copy_as_old(first, days) for days in (100, 99, 98)]
    command = ("runs", "runs", "--prune", "keep=2,days=30")
    listed = cli(*command)
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["kind", "fit", "fit"]
    assert [line.split()[-1] for line in lines[1:-1]] == [str(path) for path in reversed(old[:2])]
    assert lines[-1].startswith("Nothing is deleted yet. Repeat the command with --yes")
    assert all(path.exists() for path in old)
    shown = cli(*command, "--json").json["removals"]
    assert [(entry["kind"], entry["deleted"]) for entry in shown] == [("fit", False)] * 2
    assert shown[0]["bytes"] == sum(f.stat().st_size for f in old[1].rglob("*") if f.is_file())
    done = cli(*command, "--yes")
    assert (done.code, done.out.splitlines()[-1].split()[0]) == (0, "deleted:")
    assert [path.exists() for path in old] == [False, False, True]
    assert cli(*command, "--yes").out == "nothing to delete below runs\n"
    assert "Add --prune" in cli("runs", "--yes").check_refused()
    assert (
        "--prune is 'all'. Write keep=30,days=90" in cli("runs", "--prune", "all").check_refused()
    )

    again = [copy_as_old(first, days) for days in (97, 96)]
    assert "--runs-to-keep is 'few'." in cli(*FIT, "--runs-to-keep", "few").check_refused()
    done = cli(*FIT, "--runs-to-keep", "keep=1,days=30")
    assert done.code == 0, done.err
    assert f"Deleted the fit {old[2]}." in done.err
    assert "runs_to_keep: deleted 2 old folders, " in done.err
    assert [path.exists() for path in again] == [False, True]  # one was the latest until just now
    assert Path(first).exists()
