"""Flipped, truncated, missing and exchanged files: told in one line, or without consequence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.fitting.job import prepare_fit
from flows.fitting.options import FitOptions
from flows.fitting.stages import run_fit
from storage.artifacts.artifacts import load_artifact
from storage.codes.codes import open_codes
from storage.dataset.dataset import open_dataset
from storage.stores.locations import AnyPath, parse_path
from storage.stores.object_path import ObjectPath
from tests.support import outside
from tests.support.outside import Workspace, is_same_result, run_or_refuse

FAULTS = ("flip", "flip", "truncate", "delete", "swap")


def files(folder: AnyPath) -> list[Any]:
    if isinstance(folder, ObjectPath):
        return [ObjectPath(folder.root, key) for key in sorted(folder.list_keys())]
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(folder: AnyPath, rng: random.Random) -> tuple[str, dict[Any, bytes]]:
    """Damage one file or exchange two; return a description, and the former contents."""
    found = files(folder)
    path, other = rng.choice(found), rng.choice(found)
    how, before = rng.choice(FAULTS), {path: path.read_bytes(), other: other.read_bytes()}
    content = bytearray(before[path])
    if how == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content))
    elif how == "truncate":
        path.write_bytes(bytes(content[: rng.choice([0, len(content) // 2, len(content) - 1])]))
    elif how == "swap":
        path.write_bytes(before[other])
        other.write_bytes(before[path])
    else:
        path.unlink()
    return f"{how} {path} {other}", before


def check_damage(
    folder: AnyPath, use: Callable[[], Any], number: int, renew: Callable[[], Any] | None = None
) -> int:
    """Damage files, one after the other; return how often that was reported."""
    rng, told, expected = random.Random(7), 0, use()
    for k in range(number):
        if renew is not None:
            renew()
        how, before = damage(folder, rng)
        try:
            found, line = run_or_refuse(use)
            assert line or is_same_result(found, expected)
        except BaseException as error:
            error.add_note(f"{k}: {how}")
            raise
        told += bool(line)
        if renew is None:
            for path, content in before.items():
                path.write_bytes(content)
    return told


def in_dataset(made: Workspace) -> tuple[Path, Callable[[], Any], None]:
    path, (artifact,) = made.dataset, made.fits.values()

    def use() -> list[Any]:
        dataset = open_dataset(path)
        codes = outside.run_api_calls(artifact, dataset)
        return [
            outside.read_contents(dataset),
            dataset.ones().tobytes(),
            outside.has_repr(dataset),
            codes,
        ]

    return path, use, None


def in_dataset_appended_to(made: Workspace) -> tuple[Path, Callable[[], Any], None]:
    more, copy = made.folder / "more.npz", made.folder / "copy.zarr"
    return made.dataset, partial(outside.append_to_copy, made.dataset, copy, more), None


def in_artifact(made: Workspace) -> tuple[Path, Callable[[], Any], None]:
    (artifact,) = made.fits.values()
    dataset = open_dataset(made.dataset)
    return artifact, partial(outside.run_api_calls, artifact, dataset), None


def in_codes(made: Workspace) -> tuple[Path, Callable[[], Any], None]:
    def use() -> dict[str, bytes]:
        return {name: values.tobytes() for name, values in open_codes(made.codes).items()}

    return made.codes, use, None


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def in_unfinished_codes(made: Workspace) -> tuple[Path, Callable[[], Any], Callable[[], Any]]:
    (artifact,) = made.fits.values()
    output, kept = made.folder / "new.zarr", made.folder / "kept"
    work = output.with_name(".new.zarr.unfinished")
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("storage.codes.codes.UnfinishedCodes.publish", interrupted)
        outside.transform_to_bytes(artifact, made.dataset, output)
    shutil.copytree(work, kept)

    def renew() -> None:
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(kept, work)

    return (
        work,
        partial(outside.transform_to_bytes, artifact, made.dataset, output, resume=True),
        renew,
    )


def fitted(made: Workspace, model: str, *settings: str, resume: bool = False) -> dict[str, bytes]:
    options = FitOptions(
        *(str(made.dataset), model, "2"),
        settings=settings,
        output=str(made.folder / "runs"),
        where=outside.SERIAL,
        resume=resume,
        report=False,
        skip_corrupt=resume,
    )
    artifact = load_artifact(run_fit(prepare_fit(options))["artifact"])
    return {name: values.tobytes() for name, values in artifact.items()}


def in_unfinished_fit(made: Workspace) -> tuple[Path, Callable[[], Any], Callable[[], Any]]:
    fit = partial(fitted, made, "bernoulli-mixture", "max_iter=4", "starts=2", resume=True)
    runs, kept = made.folder / "runs", made.folder / "kept"
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("flows.fitting.stages.replace_folder", interrupted)
        fit()
    shutil.copytree(runs / ".unfinished", kept)

    def renew() -> None:
        shutil.rmtree(runs)
        shutil.copytree(kept, runs / ".unfinished")

    return runs / ".unfinished", fit, renew


def in_kept_statistics(made: Workspace) -> tuple[Path, Callable[[], Any], Callable[[], Any]]:
    work, kept = made.dataset / "statistics", made.folder / "kept"
    fit = partial(fitted, made, "clipped-pca")
    fit()
    shutil.copytree(work, kept)

    def renew() -> None:
        shutil.rmtree(made.folder / "runs", ignore_errors=True)
        shutil.rmtree(work)
        shutil.copytree(kept, work)

    return work, fit, renew


PLACES = {
    "dataset": (in_dataset, 15, 400),
    "append": (in_dataset_appended_to, 5, 120),
    "artifact": (in_artifact, 12, 300),
    "codes": (in_codes, 20, 300),
    "unfinished codes": (in_unfinished_codes, 5, 200),
    "unfinished fit": (in_unfinished_fit, 4, 200),
    "kept statistics": (in_kept_statistics, 3, 100),
}

HEALED = ("unfinished codes", "kept statistics")
"""Where all that is damaged is made again, so that nothing is refused."""


@pytest.fixture
def room_for_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.fitting.checkpoints._MAX_SHARE", 1e3)  # the dataset is tiny


@pytest.mark.matrix
@pytest.mark.parametrize("name", PLACES)
def test_some_damage(made: Workspace, room_for_statistics: None, name: str) -> None:
    where, number, _ = PLACES[name]
    folder, use, renew = where(made)
    check_damage(folder, use, number, renew)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_much_damage(made: Workspace, room_for_statistics: None, name: str) -> None:
    where, _, number = PLACES[name]
    folder, use, renew = where(made)
    told = check_damage(folder, use, number, renew)
    if name in HEALED:
        assert told == 0
    else:
        assert told > (0 if renew else number // 5)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["dataset", "artifact", "codes"])
def test_damage_in_a_store(made: Workspace, s3: str, name: str) -> None:
    folder, _, _ = PLACES[name][0](made)
    target = parse_path(f"{s3}/{folder.name}")
    for path in files(folder):
        below = target
        for part in path.relative_to(folder).parts:
            below = below / part
        below.write_bytes(path.read_bytes())
    there = {
        "dataset": lambda: outside.read_contents(open_dataset(target)),
        "artifact": lambda: {n: a.tobytes() for n, a in load_artifact(target).items()},
        "codes": lambda: {n: a.tobytes() for n, a in open_codes(target).items()},
    }
    assert check_damage(target, there[name], 40) > 8
