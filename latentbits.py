"""Latent-variable models of binary data too large for one array in memory.

`fit`, `transform` and `evaluate` work on datasets, on disk (`open_dataset`) or made of arrays and
data frames (`from_numpy`, `from_dataframe`). `ClippedPCA`, `LatentTrait` and every other model are
scikit-learn estimators: `pipeline.api.estimators` says what they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from pipeline.api.functions import evaluate, fit, transform
    from pipeline.data.binary_table import BinaryTable
    from pipeline.data.protocols import Dataset
    from storage import load_artifact, open_codes, open_dataset

__all__ = [
    "evaluate",
    "fit",
    "from_dataframe",
    "from_numpy",
    "load_artifact",
    "open_codes",
    "open_dataset",
    "transform",
]

_MODULES = {
    **dict.fromkeys(("load_artifact", "open_codes", "open_dataset"), "storage"),
    **dict.fromkeys(("evaluate", "fit", "transform"), "pipeline.api.functions"),
}


def from_numpy(
    X: ArrayLike,
    feature_names: Sequence[str] | None = None,
    *,
    segment: ArrayLike | None = None,
    keep: Mapping[str, ArrayLike] | None = None,
    threshold: float | None = None,
    map: Mapping[Any, int | None] | None = None,
    path: Any = None,
) -> Dataset:
    """Make a dataset of an array.

    Parameters
    ----------
    X
        0, 1, True, False, or missing: NaN, None or masked, (n_rows, n_features).
    feature_names
        (n_features,); None calls them f0, f1, ….
    segment
        What each row's segment is called, (n_rows,).
    keep
        Per-row columns by name, (n_rows,) each; one named `split` gives the splits.
    threshold
        Take numbers for 1 where they are greater.
    map
        What other values are: `{"yea": 1, "nay": 0, "absent": None}`; None is missing.
    path
        Where to write it, as `open_dataset` opens it again; None keeps it in memory.

    Raises
    ------
    ValueError
        If a value is none of these, a name or a length does not fit, or the path is taken.
    """
    from pipeline.data.binary_table import make_binarization_rule, make_binary_table

    meaning = make_binarization_rule(threshold, map)
    return _dataset(make_binary_table(X, feature_names, segment, keep, meaning), path)


def from_dataframe(
    df: Any,
    *,
    segment: str | None = None,
    keep: Sequence[str] = (),
    features: Sequence[str] | None = None,
    threshold: float | None = None,
    map: Mapping[Any, int | None] | None = None,
    path: Any = None,
) -> Dataset:
    """Make a dataset of a data frame of pandas, Polars or the like, or of an xarray object.

    Parameters
    ----------
    df
        All columns but those named below are features: 0, 1, True, False or missing. An xarray
        DataArray is (row, feature), a Dataset has `values` and maybe `observed`, as
        `to_xarray` gives it.
    segment
        Name of the column, in xarray of the variable, with each row's segment.
    keep
        Names of per-row columns to keep; one named `split` gives the splits.
    features
        Names of the columns that alone are features; None takes all but those above.
    threshold, map, path
        As for `from_numpy`.

    Raises
    ------
    ValueError
        If a value is no bit, a column is not there, or the path is taken.
    """
    from pipeline.data.binary_table import make_binarization_rule
    from pipeline.data.frames import make_table_from_frame

    return _dataset(
        make_table_from_frame(df, segment, keep, features, make_binarization_rule(threshold, map)),
        path,
    )


def _dataset(table: BinaryTable, path: Any) -> Dataset:
    if path is None:
        from pipeline.data.in_memory import make_memory_dataset

        return make_memory_dataset(table)
    from storage import open_dataset
    from storage.dataset.writer import create_dataset
    from storage.errors import DataError
    from storage.stores.locations import parse_path

    if parse_path(path).exists():
        raise DataError(f"{path}: Expected a new path, got one that exists. Give another.")
    names, columns = table.feature_names, tuple(table.columns)
    with create_dataset(path, names, columns=columns, expected_rows=len(table.X)) as writer:
        writer.add(table, table.segments)
    return open_dataset(path)


def __getattr__(name: str) -> Any:
    """Import what is asked for: compiled code and Zarr take their time."""
    if name == "__version__":
        from importlib.metadata import version

        return version("latentbits")
    found: Any = None
    if not name.startswith("_"):
        found = getattr(import_module(_MODULES.get(name, "pipeline.api.estimators")), name, None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    """List also the estimators."""
    from pipeline.api.estimators import make_estimators

    return sorted([*__all__, "__version__", *make_estimators()])
