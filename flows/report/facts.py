"""The tables of the report: what was fitted, on what, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flows.report.plots import number
from flows.splits import told_rows
from pipeline.models.base import MODELS
from storage.artifacts import Artifact

Facts = list[tuple[str, str]]
Manifest = Mapping[str, Any]


class Stage(NamedTuple):
    """What a stage took; `share` of all seconds in percent, memory where it was recorded."""

    name: str
    seconds: str
    share: float
    memory: str
    worker_memory: str


def title_of(manifest: Manifest) -> str:
    """Name the model and the dataset."""
    return f"{manifest['model']} of {_dataset_name(manifest)}"


def _dataset_name(manifest: Manifest) -> str:
    return Path(manifest["dataset"]["path"]).name.removesuffix(".zarr")


def what_was_fitted(manifest: Manifest) -> Facts:
    """Describe the fit in a few lines."""
    split = manifest["split"]
    ended = "converged" if manifest["converged"] else "stopped before converging"
    facts = [
        ("model", manifest["model"]),
        ("dataset", _dataset_name(manifest)),
        ("rows", told_rows(manifest.get("n_samples", manifest["dataset"]["n_rows"]), split)),
        ("features", f"{len(manifest['feature_names']):,}"),
        ("segments", f"{len(manifest['segment_names']):,}"),
        ("components", f"{manifest['n_components']:,}"),
        ("passes", f"{manifest['iterations']:,}, {ended}"),
    ]
    if manifest["history"] and manifest["history"][-1]:
        facts.append(("objective", f"{number(manifest['history'][-1], 7)} nats a row"))
    model = MODELS.get(manifest["model"])
    shown = model.shown if model else ()
    return facts + [(name, _spelled(manifest["diagnostics"][name])) for name in shown]


def provenance_facts(artifact: Artifact) -> Facts:
    """Say where the fit comes from."""
    manifest, dataset = artifact.manifest, artifact.manifest["dataset"]
    versions = (f"{name} {version}" for name, version in manifest["versions"].items())
    return [
        ("artifact", str(artifact.path)),
        ("artifact digest", manifest["manifest_digest"]),
        ("dataset", dataset["path"]),
        ("dataset digest", dataset["digest"]),
        ("dataset rows, chunks", f"{dataset['n_rows']:,}, {dataset['n_chunks']:,}"),
        ("seed", str(manifest["seed"])),
        ("versions", ", ".join(versions)),
        ("code digest", manifest["code"]),
    ]


def spelled(values: Mapping[str, Any]) -> Facts:
    """Spell out settings or diagnostics."""
    return [(name, _spelled(value)) for name, value in values.items()]


def _spelled(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value, 6)
    if isinstance(value, list):
        return ", ".join(map(_spelled, value)) or "none"
    return str(value)


def array_facts(artifact: Artifact) -> list[tuple[str, str, str]]:
    """Give name, dimensions and shape of every array."""
    return [
        (name, ", ".join(artifact.dims(name)) or "–", " × ".join(map(str, values.shape)) or "1")
        for name, values in artifact.items()
    ]


def stages(manifest: Manifest) -> list[Stage]:
    """Give what every stage took."""
    seconds = manifest.get("seconds_by_stage", {})
    total = sum(seconds.values()) or 1.0
    peaks = manifest.get("peak_memory_by_stage", {})
    return [
        Stage(name, number(took, 3), 100 * took / total, *_memory(peaks.get(name, {})))
        for name, took in seconds.items()
    ]


def _memory(peak: Mapping[str, int | None]) -> tuple[str, str]:
    return _megabytes(peak.get("process")), _megabytes(peak.get("largest_worker"))


def _megabytes(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 1e6:,.0f} MB"
