"""The key numbers of a fit, as a table of names and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from flows.cli.errors import format_warnings
from flows.exporting.files import BatchedTable, make_table
from storage.artifacts.artifacts import Artifact


def make_fit_table(artifact: Artifact) -> BatchedTable:
    """Give a line for each fact: its name, and its value as text, numbers with all digits."""
    names, values = zip(*_iter_facts(artifact), strict=True)
    texts = [None if value is None else _format_value(value) for value in values]
    return make_table({"name": pa.array(names), "value": pa.array(texts, pa.string())})


def _iter_facts(artifact: Artifact) -> Iterator[tuple[str, Any]]:
    manifest = artifact.manifest
    dataset = manifest["dataset"]
    yield "model", manifest["model"]
    yield "rows", manifest.get("n_samples", dataset["n_rows"])
    yield "features", len(manifest["feature_names"])
    yield "components", manifest["n_components"]
    yield "segments", len(manifest["segment_names"])
    yield "objective_is", manifest["diagnostics"].get("objective_is", "objective")
    yield "objective_per_row", manifest.get("objective")
    yield from manifest["diagnostics"].get("fit_statistics", {}).items()
    yield "converged", manifest["converged"]
    yield "passes", manifest["iterations"]
    yield "seed", manifest["seed"]
    yield "split", manifest["split"]
    yield "dataset", dataset["path"]
    yield "dataset_digest", dataset["digest"]
    yield "artifact", str(artifact.path.resolve())
    yield "artifact_digest", manifest["manifest_digest"]
    yield "created", manifest.get("created")
    yield "version", manifest["versions"].get("latentbits")
    yield "warnings", len(manifest["warnings"])
    warnings = format_warnings(manifest["warnings"])
    yield from ((f"warning_{k}", text) for k, text in enumerate(warnings, start=1))


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_format_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
