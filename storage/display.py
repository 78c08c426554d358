"""How datasets, artifacts and codes show themselves: lines in a terminal, a table in a notebook.

What they show comes from manifests and tables; no chunk is read for it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError

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


def dataset_facts(
    path: str,
    manifest: Mapping[str, Any],
    words: NDArray[np.int64],
    blocks: NDArray[np.int64],
    incomplete: NDArray[np.bool_],
    ones: Callable[[], NDArray[np.int64]],
    splits: Callable[[], Sequence[str]],
) -> Facts:
    """Say what is known of a dataset.

    Parameters
    ----------
    path, manifest
        Where it lies, and what is recorded of it.
    words, incomplete
        Words of a feature in each chunk, and whether values are missing there: (n_chunks,).
    blocks
        The table of blocks.
    ones
        Reads the number of ones, (n_chunks, n_features); it is called where they are not many.
    splits
        Reads the names of the splits.
    """
    columns, names = manifest["columns"], manifest["feature_names"]
    yield "path", path
    yield "rows", f"{manifest['n_rows']:,}"
    yield "features", _few(_first(names), len(names))
    segments = manifest["segment_names"]
    yield "segments", _few(_segments(segments, blocks), len(segments))
    if columns:
        shown = [f"{_short(name)} ({columns[name]['kind']})" for name in [*columns][:_NAMES]]
        yield "columns", _few(shown, len(columns))
    if "split" in columns:
        yield "splits", _splits(splits)
    n, n_chunks = int(incomplete.sum()), len(words)
    yield "missing", f"in {n:,} of {n_chunks:,} chunks" if n else "none"
    if n_chunks * len(names) <= _MOST_COUNTS:
        yield from _ones(names, manifest["n_rows"], ones)
    size = 8 * len(names) * int(words.sum())
    yield "bits", f"{size:,} bytes before compression, chunks: {n_chunks:,}"


def _segments(names: Sequence[str], blocks: NDArray[np.int64]) -> list[str]:
    """Name the first segments with their rows."""
    _, segments, _, rows = blocks.T
    n_rows = np.bincount(segments, rows, len(names))
    return [f"{_short(name)} ({n:,.0f})" for name, n in zip(names[:_NAMES], n_rows, strict=False)]


def _splits(read: Callable[[], Sequence[str]]) -> str:
    """Say which splits there are."""
    try:
        splits = read()
    except DataError as error:
        return str(error)
    return _few(_first(splits), len(splits))


def _ones(names: Sequence[str], n_rows: int, read: Callable[[], NDArray[np.int64]]) -> Facts:
    """Say how many ones there are."""
    try:
        ones = read().sum(axis=0)
    except DataError as error:
        yield "ones", str(error)
        return
    rare, common = (
        f"{_short(names[i])} ({100 * ones[i] / n_rows:.3g} % of rows)"
        for i in (ones.argmin(), ones.argmax())
    )
    yield "ones", f"{ones.sum() / n_rows:.4g} a row; rarest {rare}, commonest {common}"
    constant = np.flatnonzero((ones == 0) | (ones == n_rows))
    if constant.size:
        shown = [_short(names[i]) for i in constant[:_NAMES]]
        yield "constant", _few(shown, constant.size)


def artifact_facts(path: str, manifest: Mapping[str, Any], arrays: Mapping[str, str]) -> Facts:
    """Say what is known of an artifact, whether it is of a fit or of what a fit leaves half-way.

    `arrays` are described by `described`.
    """
    yield "path", path
    if "model" not in manifest:  # of what a fit leaves half-way; what else it records is its own
        yield from arrays.items()
        return
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
        yield "converged", f"{answer}, iterations: {manifest.get('iterations', 'not known')}"
    yield from arrays.items()
    yield from (("warning", text) for text in manifest.get("warnings", ()))


def codes_facts(path: str, manifest: Mapping[str, Any]) -> Facts:
    """Say what is known of codes."""
    yield "path", path
    yield from _origin(manifest)
    yield "rows", f"{manifest['n_rows']:,}"
    for name, array in manifest["arrays"].items():
        yield name, described(array["dims"], array["shape"], array["dtype"])
    yield from (("warning", text) for text in manifest.get("warnings", ()))


def _origin(manifest: Mapping[str, Any]) -> Facts:
    """Say what something was made from, as far as that is recorded."""
    known = {
        "model": manifest.get("model"),
        "artifact": manifest.get("artifact_path"),
        "dataset": manifest.get("dataset", {}).get("path"),
        "queries": (manifest.get("queries") or {}).get("path"),
        "split": manifest.get("split"),
    }
    yield from ((name, str(value)) for name, value in known.items() if value is not None)


def described(dims: Sequence[str], shape: Sequence[int], dtype: str) -> str:
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
