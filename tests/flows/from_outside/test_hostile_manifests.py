"""Manifests changed and sealed again: refused in one line, or without consequence."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from flows.data.datasets import may_open
from storage.stores.locations import checksum, parse_path
from tests.support import outside
from tests.support.outside import (
    SETTINGS,
    Workspace,
    is_about_unfitted,
    is_same_result,
    load_manifest,
    mutate_manifest,
    run_or_refuse,
    write_sealed,
)

MOST_MEMORY = 1 << 20  # KiB
NAMES = ("segment_names", "labels")
KINDS = ("dataset", "codes", *SETTINGS)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return outside.create_workspace(tmp_path / "world")


def uses(kind: str, made: Workspace, out: Path) -> list[tuple[str, Callable[[], Any]]]:
    if kind == "dataset":
        return [*outside.iter_dataset_uses(made, out)]
    if kind == "codes":
        return [*outside.iter_codes_uses(made.codes)]
    return [*outside.iter_artifact_uses(made, made.fits[kind], out)]


def folder_of(kind: str, made: Workspace) -> Path:
    return {"dataset": made.dataset, "codes": made.codes, **made.fits}[kind]


def results(kind: str, made: Workspace, out: Path) -> Iterator[tuple[str, Any, str]]:
    """Do all that is done with one; what is refused leaves nothing."""
    out.mkdir()
    for name, use in uses(kind, made, out):
        before = {*out.iterdir()}
        found, line = run_or_refuse(use)
        assert not line or {*out.iterdir()} == before, (name, line, [*out.iterdir()])
        yield name, found, line


def check_mutations(kind: str, made: Workspace, number: int, seed: int) -> int:
    """Return how many were refused by at least one use."""
    folder, rng, inputs = folder_of(kind, made), random.Random(seed), {*made.folder.rglob("*")}
    whole, root = load_manifest(folder), made.folder.parent
    expected = {name: found for name, found, _ in results(kind, made, root / "out")}
    n_refused, memory = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for k in range(number):
        how, changed = mutate_manifest(whole, rng)
        write_sealed(folder, changed)
        is_renamed = any(changed.get(name) != whole.get(name) for name in NAMES)
        lines = []
        try:
            for name, found, line in results(kind, made, root / f"out{k}"):
                told = line or (is_renamed and is_about_unfitted(found))
                assert told or is_same_result(found, expected[name]), name
                lines += [line] if line else []
        except BaseException as error:
            error.add_note(f"{kind}, mutation {k} of seed {seed}: {how}")
            raise
        n_refused += bool(lines)
        assert {*made.folder.rglob("*")} == inputs, how
        assert not any(Path.cwd().iterdir()), how
    write_sealed(folder, whole)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MOST_MEMORY
    return n_refused


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "number"), [("dataset", 4), ("codes", 12), ("latent-trait", 3)])
def test_some_changes(made: Workspace, kind: str, number: int) -> None:
    assert check_mutations(kind, made, number, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_changes(full: Workspace, kind: str) -> None:
    number = 300 if kind == "codes" else 150  # of codes more is said that nothing depends on
    assert check_mutations(kind, full, number, seed=1) > 75


def test_a_recorded_dataset_in_another_bucket_is_not_opened(cli, made, faulty_bucket, faulty):
    """A request there would carry the user's signature."""
    url, fit = f"{faulty_bucket}/d.zarr", made.fits["latent-trait"]
    for folder in (fit, made.codes):
        manifest = load_manifest(folder)
        manifest["dataset"]["path"] = url
        write_sealed(folder, manifest)
    done = cli("report", "--artifact", fit, "--output", "r.html")
    assert done.code == 0, done.err
    expected = f"warning: {url} is not in the bucket of the artifact. Figures of rows are omitted;"
    assert expected in done.out
    done = cli("evaluate", "--artifact", fit, "--dataset", made.dataset)
    assert f"the fitted rows are not read from {url}" in done.out
    export = ("export", "--what", "codes", "--codes", made.codes, "--output", "t.csv")
    message = cli(*export).check_refused()
    assert f"the recorded dataset, {url}, is not in the bucket of the codes" in message
    assert "Set --dataset" in message
    assert faulty.seen == []
    assert not may_open(f"{faulty_bucket}x/d.zarr", parse_path(url))
    assert may_open(f"{faulty_bucket}/e.zarr", parse_path(url))


def test_parameters_that_are_not_finite(cli, made):
    """Every command refuses them where it loads the artifact."""
    fit = made.fits["latent-trait"]
    array = zarr.open_group(fit)["weights"]
    array[3, 0] = np.nan
    manifest = load_manifest(fit)
    manifest["arrays"]["weights"]["checksum"] = checksum(array[...])
    write_sealed(fit, manifest)
    for command in (
        ("sample", "--artifact", fit, "--rows", 9, "--output", "s.zarr"),
        ("export", "--artifact", fit, "--what", "items", "--output", "t.csv"),
        ("report", "--artifact", fit, "--output", "r.html"),
        ("transform", "--artifact", fit, "--dataset", made.dataset, "--output", "z.zarr"),
        ("evaluate", "--artifact", fit, "--dataset", made.dataset),
    ):
        message = cli(*command).check_refused()
        assert f"{fit}: The entry weights[3, 0] is nan, but must be a finite number" in message
    assert not any(Path.cwd().iterdir())
