"""Parameters of models: frozen dataclasses of arrays with named dimensions."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

NamedArrays = dict[str, tuple[tuple[str, ...], NDArray[Any]]]
"""Dimensions and values of arrays, by name."""
DimensionLabels = Mapping[str, Sequence[str]]
"""Names of the positions along a dimension; other dimensions are numbered from 1."""


@dataclass(frozen=True)
class NumberRange:
    """Range of finite numbers.

    Attributes
    ----------
    minimum, maximum
        Inclusive bounds.
    above, below
        Exclusive bounds.
    or_zero
        Whether 0 is allowed too.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    or_zero: bool = False

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and bool(self.compare(value))

    def compare(self, values: Any) -> Any:
        """Return whether a number, or each entry of an array, is within the bounds."""
        bounds = (self.minimum, self.above, self.maximum, self.below)
        is_within: Any = np.ones(np.shape(values), np.bool_)
        for is_inside, bound in zip(_COMPARISONS, bounds, strict=True):
            if bound is not None:
                is_within &= is_inside(values, bound)
        return is_within | (self.or_zero & (values == 0))

    def __str__(self) -> str:
        words = ("at least", "above", "at most", "below")
        bounds = zip(words, (self.minimum, self.above, self.maximum, self.below), strict=True)
        texts = (f"{word} {bound:,.16g}" for word, bound in bounds if bound is not None)
        return ("0, or " if self.or_zero else "") + " and ".join(texts)


_COMPARISONS = (operator.ge, operator.gt, operator.le, operator.lt)
_ANY_NUMBER = NumberRange()


def array_field(
    *dims: str,
    allowed: NumberRange = _ANY_NUMBER,
    total: float | None = None,
    may_be_nan: bool = False,
) -> Any:
    """Declare a parameter array, its dimensions, the range of its entries and their sum.

    Range and sum are checked when an artifact is loaded, so `transform` and `sample` may rely on
    them. See `list_nan_names` for `may_be_nan`.
    """
    metadata = {"dims": dims, "range": allowed, "total": total, "may_be_nan": may_be_nan}
    return field(metadata=metadata)


def optional_array_field(
    *dims: str, allowed: NumberRange = _ANY_NUMBER, may_be_nan: bool = False
) -> Any:
    """Declare an array that may be absent (None): only some data or some settings need it.

    See `list_nan_names` for `may_be_nan`.
    """
    metadata = {"dims": dims, "range": allowed, "may_be_nan": may_be_nan}
    return field(default=None, metadata=metadata)


def layer_arrays_field(*dims: str, allowed: NumberRange = _ANY_NUMBER) -> Any:
    """Declare a tuple of arrays, one per layer, stored as `NAME_0`, `NAME_1`, ….

    The dimension `below` is called `feature` in layer 0 and `unit_k` in layer k. The dimension
    `above` has the name that `below` has in the next layer.
    """
    return field(metadata={"dims": dims, "range": allowed, "per_layer": True})


def get_named_arrays(params: Any) -> NamedArrays:
    """Return a model's parameters as named arrays with their dimensions.

    The dimension `plane` is called `feature` if the parameters have no `n_levels`: then every
    feature has one plane.
    """
    arrays: NamedArrays = {}
    has_planes = getattr(params, "n_levels", None) is not None
    for f in fields(params):
        dims, value = f.metadata["dims"], getattr(params, f.name)
        if "per_layer" in f.metadata:
            arrays |= {f"{f.name}_{k}": (_name_layer_dims(dims, k), a) for k, a in enumerate(value)}
        elif value is not None:
            own = (dim if has_planes or dim != "plane" else "feature" for dim in dims)
            arrays[f.name] = (tuple(own), value)
    return arrays


def list_nan_names(kind: type[Any]) -> set[str]:
    """Return the names of arrays whose entries are NaN where the data do not determine them.

    These are standard errors, whose names end in `_error`, and fields declared with `may_be_nan`.
    """
    return {
        f.name for f in fields(kind) if f.name.endswith("_error") or f.metadata.get("may_be_nan")
    }


def _name_layer_dims(dims: tuple[str, ...], layer: int) -> tuple[str, ...]:
    units = {"below": f"unit_{layer}" if layer else "feature", "above": f"unit_{layer + 1}"}
    return tuple(units.get(dim, dim) for dim in dims)


def label_positions(
    dims: Sequence[str], shape: Sequence[int], names: DimensionLabels
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the positions of an array and the suffix of a column for each, such as `_1` or `_1_2`.

    Positions on or below the diagonal of a symmetric matrix are left out: the diagonal of a
    covariance matrix holds the variances, which have columns of their own; that of a correlation
    matrix is 1.
    """
    for index in np.ndindex(*shape):
        position = dict(zip(dims, index, strict=True))
        if all(k < position.get(f"{dim}_j", k + 1) for dim, k in position.items()):
            pairs = zip(dims, index, strict=True)
            yield index, "".join(f"_{_label_position(*pair, names)}" for pair in pairs)


def _label_position(dim: str, index: int, names: DimensionLabels) -> str:
    labels = names.get(dim.removesuffix("_j"))
    return str(labels[index]) if labels is not None else str(index + 1)


def params_from_arrays(kind: type[Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Create parameters of a class from named arrays: the inverse of `get_named_arrays`."""
    values: dict[str, Any] = {}
    for f in fields(kind):
        if "per_layer" in f.metadata:
            values[f.name] = tuple(arrays[name] for name in _list_layer_names(f.name, arrays))
        elif f.default is MISSING or f.name in arrays:
            values[f.name] = arrays[f.name]
    return kind(**values)


def _list_layer_names(name: str, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    n_layers = 0
    while f"{name}_{n_layers}" in arrays:
        n_layers += 1
    return [f"{name}_{k}" for k in range(n_layers)]


def find_unexpected_arrays(kind: type[Any], arrays: Mapping[str, NDArray[Any]]) -> set[str]:
    """Return the names of required arrays that are missing, and of arrays without a field."""
    single = [f for f in fields(kind) if "per_layer" not in f.metadata]
    layered = {
        n for f in fields(kind) if f not in single for n in _list_layer_names(f.name, arrays)
    }
    required = {f.name for f in single if f.default is MISSING}
    declared = {f.name for f in single} | layered
    return (required - set(arrays)) | (set(arrays) - declared)


def convert_to_c_order(params: Any) -> Any:
    """Lay arrays out in C order, as storage returns them.

    Products of arrays in another layout differ in the last bits.
    """
    arrays = {name: np.asarray(a, order="C") for name, (_, a) in get_named_arrays(params).items()}
    return replace(params, **vars(params_from_arrays(type(params), arrays)))
