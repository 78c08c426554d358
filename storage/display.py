"""How datasets, artifacts and codes show themselves: lines in a terminal, a table in a notebook.

What they show comes from manifests and tables; no chunk is read for it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import DataError

if TYPE_CHECKING:
    from storage.artifacts import Artifact
    from storage.codes import Codes
    from storage.dataset import BinaryDataset

Facts = Iterator[tuple[str, str]]

_NAMES, _NAME_LENGTH = 8, 40
_MOST_COUNTS = 1 << 22


class Shown:
    """Shows itself by its facts: names and values, which are text and no markup."""

    def _facts(self) -> Facts:
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = list(self._facts())
        width = max(len(name) for name, _ in facts)
        lines = (f"  {name:<{width}}  {value}" for name, value in facts)
        plain = ("".join(c if c.isprintable() else " " for c in line) for line in lines)
        return "\n".join((type(self).__name__, *plain))

    def _repr_html_(self) -> str:
        left = "text-align:left;vertical-align:top"
        rows = "".join(
            f"<tr><th style='{left}'>{html.escape(name)}</th>"
            f"<td style='{left};overflow-wrap:anywhere'>{html.escape(value)}</td></tr>"
            for name, value in self._facts()
        )
        return f"<table><caption style='{left}'>{type(self).__name__}</caption>{rows}</table>"


def dataset_facts(dataset: BinaryDataset) -> Facts:
    """Say what is known of a dataset."""
    columns = dataset.manifest["columns"]
    yield "path", str(dataset.path)
    yield "rows", f"{dataset.n_rows:,}"
    yield "features", _few(_first(dataset.feature_names), dataset.n_features)
    yield "segments", _few(_segments(dataset), dataset.n_segments)
    if columns:
        shown = [f"{_short(name)} ({columns[name]['kind']})" for name in [*columns][:_NAMES]]
        yield "columns", _few(shown, len(columns))
    if "split" in columns:
        splits = columns["split"]["categories"]
        yield "splits", _few(_first(splits), len(splits))
    observed = dataset.checksums[:, dataset.manifest["stored"].index("observed")]
    incomplete = int((observed >= 0).sum())
    yield "missing", f"in {incomplete:,} of {dataset.n_chunks:,} chunks" if incomplete else "none"
    yield from _ones(dataset)
    size = 8 * dataset.n_features * int(dataset.chunks[:, 2].sum())
    yield "bits", f"{size:,} bytes before compression, chunks: {dataset.n_chunks:,}"


def _segments(dataset: BinaryDataset) -> list[str]:
    """Name the first segments with their rows."""
    _, segments, _, rows = dataset.blocks.T
    n_rows = np.bincount(segments, rows, dataset.n_segments)
    named = zip(dataset.segment_names[:_NAMES], n_rows, strict=False)
    return [f"{_short(name)} ({n:,.0f})" for name, n in named]


def _ones(dataset: BinaryDataset) -> Facts:
    """Say how many ones there are, unless even their counts are many."""
    if dataset.n_chunks * dataset.n_features > _MOST_COUNTS:
        return
    try:
        ones = dataset.ones().sum(axis=0)
    except DataError as error:
        yield "ones", str(error)
        return
    names, n_rows = dataset.feature_names, dataset.n_rows
    rare, common = (
        f"{_short(names[i])} ({100 * ones[i] / n_rows:.3g} % of rows)"
        for i in (ones.argmin(), ones.argmax())
    )
    yield "ones", f"{ones.sum() / n_rows:.4g} a row; rarest {rare}, commonest {common}"
    constant = np.flatnonzero((ones == 0) | (ones == n_rows))
    if constant.size:
        shown = [_short(names[i]) for i in constant[:_NAMES]]
        yield "constant", _few(shown, constant.size)


def artifact_facts(artifact: Artifact) -> Facts:
    """Say what is known of an artifact, whether it is of a fit or of what a fit leaves half-way."""
    manifest = artifact.manifest
    yield "path", str(artifact.path)
    yield from _origin(manifest)
    if "n_samples" in manifest:
        yield "rows", f"{manifest['n_samples']:,}"
    if "feature_names" in manifest:
        names = manifest["feature_names"]
        yield "features", _few(_first(names), len(names))
    if "n_components" in manifest:
        yield "components", str(manifest["n_components"])
    if "converged" in manifest:
        answer = "yes" if manifest["converged"] else "no"
        yield "converged", f"{answer}, iterations: {manifest['iterations']}"
    for name, values in artifact.items():
        yield name, _described(artifact.dims(name), values.shape, str(values.dtype))
    yield from (("warning", text) for text in manifest.get("warnings", ()))


def codes_facts(codes: Codes) -> Facts:
    """Say what is known of codes."""
    yield "path", str(codes.path)
    yield from _origin(codes.manifest)
    yield "rows", f"{codes.n_rows:,}"
    for name, array in codes.manifest["arrays"].items():
        yield name, _described(array["dims"], array["shape"], array["dtype"])
    yield from (("warning", text) for text in codes.manifest.get("warnings", ()))


def _origin(manifest: Mapping[str, Any]) -> Facts:
    """Say what something was made from, as far as that is recorded."""
    known = {
        "model": manifest.get("model"),
        "artifact": manifest.get("artifact_path"),
        "dataset": manifest.get("dataset", {}).get("path"),
        "split": manifest.get("split"),
    }
    yield from ((name, str(value)) for name, value in known.items() if value is not None)


def _described(dims: Sequence[str], shape: Sequence[int], dtype: str) -> str:
    """Describe an array, such as `row 1,797 × component 2, float32`."""
    axes = " × ".join(f"{dim} {size:,}" for dim, size in zip(dims, shape, strict=True))
    return f"{axes}, {dtype}" if axes else f"one number, {dtype}"


def _few(shown: Sequence[str], number: int) -> str:
    """Say how many there are, and which are the first."""
    more = number - len(shown)
    return f"{number:,}: {', '.join(shown)}" + (f" and {more:,} more" if more else "")


def _first(names: Sequence[str]) -> list[str]:
    return [_short(name) for name in names[:_NAMES]]


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"
