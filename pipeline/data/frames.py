"""Data frames and xarray objects as tables of bits."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from pipeline.data.binary_table import (
    BinarizationRule,
    BinaryTable,
    apply_binarization_rule,
    convert_to_bits,
    make_binary_table,
)
from pipeline.errors import FitError, format_suggestion


def make_table_from_frame(
    df: Any,
    segment: str | None,
    keep: Sequence[str],
    features: Sequence[str] | None = None,
    meaning: BinarizationRule = None,
) -> BinaryTable:
    """Make a table of a data frame, or of an xarray object.

    Parameters
    ----------
    df
        A frame that Narwhals knows, of pandas or Polars for one, whose other columns are the
        features. Or an xarray DataArray (row, feature), or a Dataset with `values` and maybe
        `observed`, as `to_xarray` gives it.
    segment, keep
        Names of the columns, in xarray of the variables, with each row's segment, and to keep.
    features
        Names of the columns that alone are features.
    meaning
        What values mean that are written otherwise.

    Raises
    ------
    FitError
        If it is none of these, lacks a column, or holds what is no bit.
    """
    for name, names in (("keep", keep), ("features", features)):
        if isinstance(names, str):
            raise FitError(f"{name}: Expected a list of names, got {names!r}. Write [{names!r}].")
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(df, xarray.DataArray | xarray.Dataset):
        if features is not None:
            raise FitError("features: Expected a data frame, got an xarray object. Use .sel().")
        return _convert_xarray(df, segment, keep, meaning)
    return _convert_data_frame(_wrap_frame(df), segment, keep, features, meaning)


def _wrap_frame(df: Any) -> nw.DataFrame[Any]:
    try:
        return nw.from_native(df, eager_only=True)
    except TypeError:
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise FitError(
            "Expected a data frame of pandas, Polars or the like, or an xarray object, got "
            f"{kind}. Collect what is lazy, and give arrays to from_numpy."
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise FitError(" ".join(str(error).split()) + ". Rename one.") from None


def _convert_data_frame(
    frame: nw.DataFrame[Any],
    segment: str | None,
    keep: Sequence[str],
    wanted: Sequence[str] | None,
    meaning: BinarizationRule,
) -> BinaryTable:
    names = _check_columns(segment, keep, frame.columns)
    chosen = frame.columns if wanted is None else _check_columns(None, wanted, frame.columns)
    features = [name for name in chosen if name not in names]
    X = np.ma.zeros((len(frame), len(features)), np.uint8)
    for at, name in enumerate(features):
        values = apply_binarization_rule(frame[name].to_numpy()[:, None], (name,), meaning)
        bits, observed = convert_to_bits(values, (name,))
        X[:, at] = bits[:, 0]
        if observed is not None:
            X[observed[:, 0] == 0, at] = np.ma.masked
    rest = {name: frame[name].to_numpy() for name in names}
    return _make_table(X, features, rest, segment, keep)


def _convert_xarray(
    found: Any, segment: str | None, keep: Sequence[str], meaning: BinarizationRule
) -> BinaryTable:
    variables = [*found.coords, *getattr(found, "data_vars", ())]
    names = _check_columns(segment, keep, variables)
    values = found["values"] if "values" in variables else found
    if getattr(values, "ndim", None) != 2:
        raise FitError(
            "Expected a DataArray (row, feature), or a Dataset with `values` of that shape, got "
            f"{type(found).__name__} with {', '.join(map(str, found.dims))}."
        )
    X, feature = values.values, values.dims[1]
    if "observed" in variables:
        X = np.ma.masked_array(X, found["observed"].values == 0)
    features = [*values[feature].values] if feature in values.coords else None
    return _make_table(
        X, features, {name: found[name].values for name in names}, segment, keep, meaning
    )


def _check_columns(segment: str | None, keep: Sequence[str], known: Sequence[str]) -> list[str]:
    names = [*keep, *([] if segment is None else [segment])]
    for name in names:
        if name not in known:
            near = format_suggestion(name, map(str, known))
            raise FitError(f"Expected a column {name!r}, got none of that name.{near}")
    return names


def _make_table(
    X: NDArray[Any],
    features: Sequence[str] | None,
    rest: Mapping[str, NDArray[Any]],
    segment: str | None,
    keep: Sequence[str],
    meaning: BinarizationRule = None,
) -> BinaryTable:
    segments = None if segment is None else rest[segment]
    columns = {name: rest[name] for name in keep}
    return make_binary_table(X, features, segments, columns, meaning)
