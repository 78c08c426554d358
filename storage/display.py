"""Display datasets, artifacts and codes as text and HTML tables, or convert them to xarray."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.extras import check_installed

if TYPE_CHECKING:
    import xarray


Facts = Iterator[tuple[str, str]]

_MAX_NAMES, _MAX_NAME_LENGTH = 8, 40
_MAX_COUNTS = 1 << 22


class StorageReprMixin:
    """Displays an object as a list of names and values."""

    def _iter_display_items(self) -> Facts:
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = list(self._iter_display_items())
        width = max(len(name) for name, _ in facts)
        lines = (f"  {name:<{width}}  {value}" for name, value in facts)
        plain = ("".join(c if c.isprintable() else " " for c in line) for line in lines)
        return "\n".join((type(self).__name__, *plain))

    def _repr_html_(self) -> str:
        style = "text-align:left;vertical-align:top"
        rows = "".join(
            f"<tr><th style='{style}'>{html.escape(name)}</th>"
            f"<td style='{style};overflow-wrap:anywhere'>{html.escape(value)}</td></tr>"
            for name, value in self._iter_display_items()
        )
        return f"<table><caption style='{style}'>{type(self).__name__}</caption>{rows}</table>"


def list_dataset_facts(
    path: str,
    manifest: Mapping[str, Any],
    words: NDArray[np.int64],
    blocks: NDArray[np.int64],
    incomplete: NDArray[np.bool_],
    planes: Sequence[str],
    ones: Callable[[], NDArray[np.int64]],
    splits: Callable[[], Sequence[str]],
) -> Facts:
    """Yield the facts to display about a dataset.

    Parameters
    ----------
    path, manifest
        Its path and manifest.
    words, incomplete
        Words per feature in each chunk, and whether the chunk has missing values, (n_chunks,) each.
    blocks
        The table of blocks.
    planes
        Names of the rows of bits; those of the features if all are binary.
    ones
        Reads the number of ones, (n_chunks, n_planes); called only if that table is small.
    splits
        Reads the names of the splits.
    """
    columns, names = manifest["columns"], manifest["feature_names"]
    yield "path", path
    yield "rows", f"{manifest['n_rows']:,}"
    yield "features", _format_first_items(_shorten_first_names(names), len(names))
    feature_levels = manifest.get("feature_levels", {})
    if n_with_levels := sum(len(own) > 2 for own in feature_levels.values()):
        yield "levels", f"more than 2 of {n_with_levels:,} features"
    if n_nominal := len(manifest.get("nominal_features", ())):
        yield "nominal", f"{n_nominal:,} features"
    if continuous := [name for name in names if feature_levels.get(name) == []]:
        yield "continuous", _format_first_items(_shorten_first_names(continuous), len(continuous))
    segments = manifest["segment_names"]
    yield "segments", _format_first_items(_format_segments(segments, blocks), len(segments))
    if columns:
        shown = [
            f"{_shorten_name(name)} ({columns[name]['kind']})" for name in [*columns][:_MAX_NAMES]
        ]
        yield "columns", _format_first_items(shown, len(columns))
    if "split" in columns:
        yield "splits", _format_splits(splits)
    n, n_chunks = int(incomplete.sum()), len(words)
    yield "missing", f"in {n:,} of {n_chunks:,} chunks" if n else "none"
    if planes and n_chunks * len(planes) <= _MAX_COUNTS:
        yield from _describe_ones(planes, manifest["n_rows"], ones)
    size = 8 * len(planes) * int(words.sum())
    yield "bits", f"{size:,} bytes before compression, chunks: {n_chunks:,}"


def _format_segments(names: Sequence[str], blocks: NDArray[np.int64]) -> list[str]:
    """List the first segments with their numbers of rows."""
    _, segments, _, rows = blocks.T
    n_rows = np.bincount(segments, rows, len(names))
    return [
        f"{_shorten_name(name)} ({n:,.0f})"
        for name, n in zip(names[:_MAX_NAMES], n_rows, strict=False)
    ]


def _format_splits(read_splits: Callable[[], Sequence[str]]) -> str:
    try:
        splits = read_splits()
    except DataError as error:
        return str(error)
    return _format_first_items(_shorten_first_names(splits), len(splits))


def _describe_ones(
    names: Sequence[str], n_rows: int, read_ones: Callable[[], NDArray[np.int64]]
) -> Facts:
    """Yield the mean number of ones per row, and features with extreme or constant values."""
    try:
        ones = read_ones().sum(axis=0)
    except DataError as error:
        yield "ones", str(error)
        return
    # Below 100 % unless all are ones.
    shares = np.where(ones == n_rows, 100.0, np.minimum(100 * ones / n_rows, 99.9))
    rare, common = (
        f"{_shorten_name(names[i])} ({shares[i]:.3g} % of rows)"
        for i in (ones.argmin(), ones.argmax())
    )
    yield "ones", f"{ones.sum() / n_rows:.4g} per row; rarest {rare}, most common {common}"
    constant = np.flatnonzero((ones == 0) | (ones == n_rows))
    if constant.size:
        shown = [_shorten_name(names[i]) for i in constant[:_MAX_NAMES]]
        yield "constant", _format_first_items(shown, constant.size)


def list_artifact_facts(path: str, manifest: Mapping[str, Any], arrays: Mapping[str, str]) -> Facts:
    """Yield the facts to display about an artifact; `arrays` maps names to descriptions."""
    yield "path", path
    if "model" not in manifest:  # the state of an unfinished fit
        yield from arrays.items()
        return
    yield from _describe_origin(manifest)
    if "n_samples" in manifest:
        yield "rows", f"{manifest['n_samples']:,}"
    if "feature_names" in manifest:
        names = manifest["feature_names"]
        yield "features", _format_first_items(_shorten_first_names(names), len(names))
    if "n_components" in manifest:
        names = list_trait_names(manifest).get("component", [])
        shown = _format_first_items(_shorten_first_names(names), len(names)) if names else ""
        yield "components", shown or str(manifest["n_components"])
    if "converged" in manifest:
        answer = "yes" if manifest["converged"] else "no"
        yield "converged", f"{answer}, iterations: {manifest.get('iterations', 'not known')}"
    yield from arrays.items()
    yield from (("warning", text) for text in manifest.get("warnings", ()))


def list_codes_facts(path: str, manifest: Mapping[str, Any]) -> Facts:
    """Yield the facts to display about codes."""
    yield "path", path
    yield from _describe_origin(manifest)
    yield "rows", f"{manifest['n_rows']:,}"
    for name, array in manifest["arrays"].items():
        yield name, format_array_type(array["dims"], array["shape"], array["dtype"])
    yield from (("warning", text) for text in manifest.get("warnings", ()))


def _describe_origin(manifest: Mapping[str, Any]) -> Facts:
    origin = {
        "model": manifest.get("model"),
        "artifact": manifest.get("artifact_path"),
        "dataset": manifest.get("dataset", {}).get("path"),
        "queries": (manifest.get("queries") or {}).get("path"),
        "split": manifest.get("split"),
    }
    yield from ((name, str(value)) for name, value in origin.items() if value is not None)


def format_array_type(dims: Sequence[str], shape: Sequence[int], dtype: str) -> str:
    """Describe an array, such as `row 1,797 × component 2, float32`."""
    axes = " × ".join(f"{dim} {size:,}" for dim, size in zip(dims, shape, strict=True))
    return f"{axes}, {dtype}" if axes else f"one number, {dtype}"


def _format_first_items(shown: Sequence[str], number: int) -> str:
    """Format the number of items and the first of them."""
    n_hidden = number - len(shown)
    return f"{number:,}: {', '.join(shown)}" + (f" and {n_hidden:,} more" if n_hidden else "")


def _shorten_first_names(names: Sequence[str]) -> list[str]:
    return [_shorten_name(name) for name in names[:_MAX_NAMES]]


def _shorten_name(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…"


def list_trait_names(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """List the names of the traits of a loading pattern by the name of their dimension."""
    pattern = manifest.get("pattern")
    traits = pattern.get("traits") if isinstance(pattern, Mapping) else None
    return {"component": [*map(str, traits)]} if isinstance(traits, list | tuple) else {}


NamedVariables = Mapping[str, tuple[tuple[str, ...], Any]]


def build_xarray(
    variables: NamedVariables, names: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any]
) -> xarray.Dataset:
    """Build an xarray dataset from named arrays.

    Parameters
    ----------
    variables
        Dimensions and values by name.
    names
        Labels along each dimension; the labels of `feature` also apply to `feature_j`.
    attributes
        Metadata; only text and numbers are kept.
    """
    check_installed("to_xarray", "xarray")
    import xarray

    sizes = {
        dim: size
        for dims, values in variables.values()
        for dim, size in zip(dims, values.shape, strict=True)
    }
    labels = {dim: names.get(dim.removesuffix("_j")) for dim in sizes}
    coordinates = {
        dim: (dim, list(label))
        for dim, label in labels.items()
        if label is not None and len(label) == sizes[dim]
    }
    metadata = {
        name: value for name, value in attributes.items() if isinstance(value, str | int | float)
    }
    return xarray.Dataset(dict(variables), coordinates, metadata)


def build_row_variables(
    bits: Mapping[str, Any], segments: Any, columns: Mapping[str, Any]
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Name the variables of each row: bits (row, feature), segment and columns.

    A column whose name is taken becomes `column_NAME`.
    """
    variables: dict[str, tuple[tuple[str, ...], Any]] = {
        name: (("row", "feature"), values) for name, values in bits.items()
    }
    variables["segment"] = (("row",), segments)
    for name, values in columns.items():
        free = name if name not in (*variables, "row", "feature") else f"column_{name}"
        variables[free] = (("row",), values)
    return variables
