"""Latent-variable models of binary data that are too large for one array in memory.

`fit`, `transform` and `evaluate` take a dataset: opened from disk (`open_dataset`), or made from an
array or a data frame (`from_numpy`, `from_dataframe`). Every model is also a scikit-learn
estimator, such as `ClippedPCA` and `LatentTrait`; see `pipeline.api.estimators`. `Scorer` computes
the codes of single rows for a service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from pipeline.api import scorer
    from pipeline.api.functions import evaluate, fit, transform
    from pipeline.data.datasets import Dataset
    from pipeline.data.tables import BinaryTable
    from storage import load_artifact, open_codes, open_dataset

__all__ = [
    "Scorer",
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


def _refuse_hidden_packages() -> None:
    """Raise ImportError if the current folder, say, has other packages with the names of ours."""
    for name in ("pipeline", "storage"):
        spec, own = find_spec(name), Path(__file__).with_name(name) / "__init__.py"
        if spec and spec.origin and Path(spec.origin).resolve() != own.resolve():
            raise ImportError(
                f"{spec.origin} hides the package {name!r} of latentbits. "
                "Rename it, or start Python in another folder."
            )


_refuse_hidden_packages()


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
    """Create a dataset from an array.

    Parameters
    ----------
    X
        Values 0, 1, True, False or missing (NaN, None or masked), (n_rows, n_features).
    feature_names
        Names of the features, (n_features,); None names them f0, f1, ….
    segment
        Name of each row's segment, (n_rows,).
    keep
        Per-row columns by name, (n_rows,) each; the column `split` defines the splits.
    threshold
        Numbers greater than this become 1, all others 0.
    map
        Meaning of other values, such as `{"yea": 1, "nay": 0, "absent": None}`; None is missing.
    path
        Folder to write the dataset to, for `open_dataset`; None keeps it in memory.

    Raises
    ------
    ValueError
        If a value is not binary, a name or a length does not fit, or the path exists.
    """
    from pipeline.data.tables import make_binarization_rule, make_binary_table

    rule = make_binarization_rule(threshold, map)
    return _make_dataset(make_binary_table(X, feature_names, segment, keep, rule), path)


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
    """Create a dataset from a data frame of pandas, Polars and others, or from an xarray object.

    Parameters
    ----------
    df
        A data frame, whose feature columns hold 0, 1, True, False or missing values; an xarray
        DataArray (row, feature); or an xarray Dataset with `values` and optionally `observed`, as
        returned by `to_xarray`.
    segment
        Name of the column (variable in xarray) with the segment of each row.
    keep
        Names of per-row columns to keep; the column `split` defines the splits.
    features
        Names of the feature columns; None takes all columns other than those above.
    threshold, map, path
        As for `from_numpy`.

    Raises
    ------
    ValueError
        If a value is not binary, a column is missing, or the path exists.
    """
    from pipeline.data.tables import make_binarization_rule, make_table_from_frame

    rule = make_binarization_rule(threshold, map)
    return _make_dataset(make_table_from_frame(df, segment, keep, features, rule), path)


def _make_dataset(table: BinaryTable, path: Any) -> Dataset:
    if path is None:
        from pipeline.data.datasets import make_memory_dataset

        return make_memory_dataset(table)
    from storage import open_dataset
    from storage.dataset.writer import create_dataset
    from storage.errors import DataError
    from storage.stores.locations import parse_path

    if parse_path(path).exists():
        raise DataError(f"{path} already exists. Choose another path.")
    names, columns = table.feature_names, tuple(table.columns)
    with create_dataset(path, names, columns=columns, expected_rows=len(table.X)) as writer:
        writer.add(table, table.segments)
    return open_dataset(path)


def Scorer(model: Any) -> scorer.Scorer:
    """Load a fitted model that computes the latent codes of single rows, such as for a service.

    Parameters
    ----------
    model
        Folder of an artifact, folder of runs (the latest run is used), or result of `fit`. The
        folder is read once: create another scorer after another fit.

    Returns
    -------
    pipeline.api.scorer.Scorer
        Call it with a row, `{feature: 0, 1 or None}`, or with a data frame, on any thread.

    Raises
    ------
    ValueError
        If there is no complete artifact, or it is from another version.

    Examples
    --------
    >>> scorer = Scorer("runs/votes")  # doctest: +SKIP
    >>> scorer({"call_1": 1, "call_2": 0, "call_3": None})  # doctest: +SKIP
    {'mean_1': 0.62, 'mean_2': -0.31, 'variance_1': 0.4, 'variance_2': 0.5, 'converged': True}
    """
    from pipeline.api import scorer
    from pipeline.api.fitted import FittedModel

    if not isinstance(model, FittedModel):
        from storage import load_artifact

        model = FittedModel.from_artifact(load_artifact(model))
    return scorer.Scorer(model)


def __getattr__(name: str) -> Any:
    """Import attributes on first use, because compiled code and Zarr are slow to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("latentbits")
    value: Any = None
    if not name.startswith("_"):
        value = getattr(import_module(_MODULES.get(name, "pipeline.api.estimators")), name, None)
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return value


def __dir__() -> list[str]:
    """List the functions and the estimators."""
    from pipeline.api.estimators import make_estimators

    return sorted([*__all__, "__version__", *make_estimators()])
