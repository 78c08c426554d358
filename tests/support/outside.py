"""Datasets, artifacts and codes as others may give them: what is done with them, and what is said.

`uses_of_…` name what a person may do with one; `run_or_refuse` gives what comes of it.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flows import evaluate, sample, transform
from flows.cli.errors import is_bad_input
from flows.data.columns import ColumnRoles
from flows.data.ingest import ingest_sources
from flows.evaluating.stages import EvaluateOptions
from flows.report.inputs import load_report_inputs
from flows.report.page import build_report, write_report
from latentbits import functions as api
from pipeline.models.registry import find_models
from storage.artifacts.artifacts import load_artifact
from storage.codes.codes import open_codes
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.format.manifests import write_manifest
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import write_fit

N_ROWS, SERIAL = 240, {"name": "serial"}
SETTINGS: dict[str, dict[str, Any]] = {
    "blica": {"n_components": 2, "regularization": 10.0},
    "bernoulli-mixture": {"n_components": 2, "starts": 1},
    "clipped-pca": {"n_components": 2},
    "latent-trait": {"n_components": 1},
    "bottleneck": {"n_components": 2, "column": "ward", "max_iter": 5},
    "rbm": {"n_components": 2, "max_iter": 5},
    "autoencoder": {"n_components": 2, "max_iter": 5},
    "stack": {"layers": (4, 2), "pretrain": 2, "max_iter": 5},
    "noisy-or": {"n_components": 2, "starts": 1, "epochs": 5},
}


@dataclass(frozen=True)
class Workspace:
    """What lies in a folder, all made by us."""

    folder: Path
    dataset: Path
    codes: Path
    fits: Mapping[str, Path] = field(default_factory=dict)


def create_workspace(folder: Path, names: tuple[str, ...] = tuple(SETTINGS)) -> Workspace:
    """Make a dataset with all that one may have, fits to it, and codes of it."""
    X, _ = draw_probit_rows(N_ROWS, 6, 2, seed=5)
    observed = (np.random.default_rng(1).random(X.shape) < 0.98).astype(np.uint8)
    segments = np.array(["a", "b", "c"])[np.arange(N_ROWS) // 20 % 3]
    columns = {
        "age": np.arange(N_ROWS),
        "ward": np.array(["x", "y"])[np.arange(N_ROWS) % 2],
        "split": np.array(["train", "test"])[np.arange(N_ROWS) % 4 // 3],
    }
    dataset = write_arrays(folder / "d.zarr", X * observed, observed, segments, 2, columns)
    fits = {
        name: write_fit(folder / name, find_models()[name](**SETTINGS[name]), dataset)
        for name in names
    }
    codes = folder / "z.zarr"
    transform_to_bytes(fits[names[0]], dataset.path, codes)
    np.savez(folder / "more.npz", X=X[:8], **{name: values[:8] for name, values in columns.items()})
    return Workspace(folder, dataset.path, codes, fits)


def copy_workspace(made: Workspace, folder: Path) -> Workspace:
    """Copy a world to another folder."""
    shutil.copytree(made.folder, folder)
    fits = {name: folder / path.name for name, path in made.fits.items()}
    return Workspace(folder, folder / made.dataset.name, folder / made.codes.name, fits)


def transform_to_bytes(
    artifact: Path, dataset: Path, output: Path, resume: bool = False
) -> dict[str, bytes]:
    names = (str(dataset), str(output), str(artifact))
    options = transform.TransformOptions(*names, where=SERIAL, resume=resume)
    transform.run_transform(transform.prepare_transform(options))
    codes = open_codes(output)
    said = {"warnings": "\n".join(codes.manifest["warnings"]).encode()}
    return {name: values.tobytes() for name, values in codes.items()} | said


def evaluate_to_numbers(artifact: Path, dataset: Path) -> list[Any]:
    options = EvaluateOptions(str(dataset), (str(artifact),), with_baselines=False, where=SERIAL)
    (found,) = evaluate.run_evaluation(evaluate.prepare_evaluation(options))["models"]
    return [[value for value in found.values() if isinstance(value, float)], found["warnings"]]


def sample_to_bytes(artifact: Path, output: Path) -> list[bytes]:
    options = sample.SampleOptions(str(artifact), 70, str(output), where=SERIAL)
    sample.run_sample(sample.prepare_sample(options))
    dataset = open_dataset(output)
    return [dataset.read_chunk(key).words.tobytes() for key in range(dataset.n_chunks)]


def is_report_written(artifact: Path, output: Path) -> bool:
    write_report(build_report(load_report_inputs(artifact)), output)
    return output.read_text(encoding="utf-8").startswith("<!")


def has_repr(something: Any) -> bool:
    """Show it; what is shown may differ, as names do."""
    return len(repr(something)) > 0 and "<table>" in something._repr_html_()


def read_contents(dataset: BinaryDataset) -> list[bytes]:
    """All values, masks, numbers, and which rows are of the same segment or category."""
    columns = [dataset.column(name) for name in sorted(dataset.column_names)]
    names = [
        np.array(number_by_appearance(values.tolist())) for values in (dataset.segments(), *columns)
    ]
    return [*read_bits(dataset), *(values.tobytes() for values in names)]


def read_bits(dataset: BinaryDataset) -> list[bytes]:
    dataset.verify()
    return [part.tobytes() for key in range(dataset.n_chunks) for part in dataset.dense(key)]


def number_by_appearance(values: list[Any]) -> list[int]:
    """Number values in order of appearance, whatever they are called."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def iter_dataset_uses(world: Workspace, out: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name what is done with a dataset, and do it; files go to `out`."""
    path, (artifact, *_) = world.dataset, world.fits.values()
    yield "show", lambda: has_repr(open_dataset(path))
    yield "read", lambda: read_contents(open_dataset(path))
    yield "xarray", lambda: open_dataset(path).to_xarray().sizes["row"]
    yield "transform", lambda: transform_to_bytes(artifact, path, out / "z.zarr")
    yield "evaluate", lambda: evaluate_to_numbers(artifact, path)
    yield "append", lambda: append_to_copy(path, out / "copy.zarr", world.folder / "more.npz")


def append_to_copy(path: Path, target: Path, source: Path) -> list[bytes]:
    shutil.copytree(path, target)
    try:
        return read_bits(ingest_sources([str(source)], target, ColumnRoles(), append=True))
    finally:
        shutil.rmtree(target)


def iter_artifact_uses(
    world: Workspace, artifact: Path, out: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name what is done with an artifact, and do it."""
    dataset = open_dataset(world.dataset)
    yield "show", lambda: has_repr(load_artifact(artifact))
    yield "xarray", lambda: len(load_artifact(artifact).to_xarray()) > 0
    yield "api", lambda: run_api_calls(artifact, dataset)
    yield "transform", lambda: transform_to_bytes(artifact, world.dataset, out / "z.zarr")
    yield "evaluate", lambda: evaluate_to_numbers(artifact, world.dataset)
    yield "sample", lambda: sample_to_bytes(artifact, out / "s.zarr")
    yield "report", lambda: is_report_written(artifact, out / "report.html")


def run_api_calls(artifact: Path, dataset: BinaryDataset) -> list[Any]:
    fitted = api.Fitted.from_artifact(load_artifact(artifact))
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = api.transform(fitted, dataset)
        numbers = [v for v in api.evaluate(fitted, dataset).values() if isinstance(v, float)]
    said = [str(warning.message) for warning in caught]
    return [has_repr(fitted), numbers, *(values.tobytes() for values in found.values()), said]


def iter_codes_uses(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name what is done with codes, and do it."""
    yield "show", lambda: has_repr(open_codes(path))
    yield "read", lambda: {name: a.tobytes() for name, a in open_codes(path).items()}
    yield "verify", lambda: open_codes(path).verify()
    yield "xarray", lambda: open_codes(path).to_xarray().sizes["row"]


def run_or_refuse(use: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of a use, or the line in which it was refused with exit code 2."""
    try:
        return use(), ""
    except Exception as error:
        if not is_bad_input(error):
            raise
        line = str(error)
    assert line
    assert "\n" not in line
    assert len(line) < 3000
    assert "MemoryError" not in line
    return None, line


def is_same_result(found: Any, expected: Any) -> bool:
    """Return whether results are equal; arrays that are not there are none."""
    if isinstance(found, dict):
        return bool(found) and found.items() <= expected.items()
    return bool(found == expected)


def is_about_unfitted(found: Any) -> bool:
    """Return whether a result says that it is of segments, or labels, that were not fitted."""
    return "segments that were not fitted" in str(found) or "that was not fitted" in str(found)


# Manifests that were changed and sealed again

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, 10**400, 1.5, -0.0, 1e300),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "1", "\ud800", "\x1b[31m\n", "../../x"),
    *("<script>", "$\\alpha$", "/etc/passwd", "x" * 5000, [], {}, [[]], [None, 1], {"a": {}}),
    *(["a", "a"], [0] * 100, {"path": "p"}),
)


def nest_lists(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def iter_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Name all places in JSON; of long lists the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from iter_places(inner, (*path, key))
    if isinstance(value, list):
        for at in {0, len(value) - 1} if value else ():
            yield from iter_places(value[at], (*path, at))


def mutate_manifest(manifest: Mapping[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Change one place; say how."""
    changed = copy.deepcopy(dict(manifest))
    sealed = ("format", "format_version", "manifest_digest")
    kept = {name: value for name, value in changed.items() if name not in sealed}
    tops = sorted(kept)  # every part as often as any other, however many places it has
    top = rng.choice(tops)
    *way, last = rng.choice([(top,), *iter_places(kept[top], (top,))])
    inner: Any = changed
    for step in way:
        inner = inner[step]
    how = rng.choice(["odd", "odd", "odd", "delete", "wrap", "rename", "twice", "deep"])
    if how == "delete":
        del inner[last]
    elif how == "wrap":
        inner[last] = rng.choice([[inner[last]], {"0": inner[last]}, str(inner[last])])
    elif how == "rename" and isinstance(inner, dict):
        inner[rng.choice(["", "../x", "\x1b", "a" * 300, "é.é", "\ud800"])] = inner.pop(last)
    elif how == "twice" and isinstance(inner, list):
        inner.insert(0, copy.deepcopy(inner[last]))
    elif how == "deep":
        inner[last] = nest_lists(rng.choice([3, 60, 400]))
    else:
        how, inner[last] = "odd", copy.deepcopy(rng.choice(ODD_VALUES))
    return f"{how} {(*way, last)}", changed


def write_sealed(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest so that its digest is right."""
    write_manifest(folder, manifest)


def load_manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found
