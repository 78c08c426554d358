"""Parameters of models: frozen dataclasses of arrays with named dimensions.

A field may be a part: another such dataclass, see `part_field`. Names of arrays are flat: artifacts
and checkpoints do not show the parts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

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


def part_field(*leading_dims: str, prefix: str = "", suffix: str = "") -> Any:
    """Declare a part: a dataclass of arrays, which the annotation names.

    Its arrays are stored as `{prefix}NAME{suffix}`, with the leading dimensions before their own.
    Arrays that get the suffix `_error` are standard errors, which may have any value.
    """
    metadata = {"part": (prefix, suffix), "dims": leading_dims}
    return field(metadata=metadata)


def optional_part_field(*leading_dims: str, prefix: str = "", suffix: str = "") -> Any:
    """Declare a part that may be absent (None), see `part_field`.

    It is present if any of its arrays is.
    """
    metadata = {"part": (prefix, suffix), "dims": leading_dims}
    return field(default=None, metadata=metadata)


class DeclaredArray(NamedTuple):
    """How a class of parameters, or of a part of them, declares an array.

    Attributes
    ----------
    owner, attribute
        The class of the part, and its field.
    dims
        Dimensions, those of the part first.
    allowed, total, may_be_nan
        See `array_field`.
    is_required
        Whether all parameters have the array.
    is_per_layer
        See `layer_arrays_field`.
    """

    owner: type[Any]
    attribute: str
    dims: tuple[str, ...]
    allowed: NumberRange
    total: float | None
    may_be_nan: bool
    is_required: bool
    is_per_layer: bool


def list_arrays(kind: type[Any]) -> Mapping[str, DeclaredArray]:
    """Return the arrays that a class of parameters declares, by name.

    Raises
    ------
    TypeError
        If two arrays have the same name.
    """
    arrays: dict[str, DeclaredArray] = {}
    for f in fields(kind):
        is_required = f.default is MISSING
        if "part" in f.metadata:
            inner = list_arrays(_get_part_kind(kind, f))
            own = {
                name: _declare_in_part(inner[short], f, name, is_required)
                for short, name in _rename(f, inner).items()
            }
        else:
            own = {f.name: _declare(kind, f, is_required)}
        if repeated := own.keys() & arrays:
            raise TypeError(f"{kind.__name__} has two arrays named {min(repeated)}.")
        arrays |= own
    return arrays


def _declare(kind: type[Any], f: Field[Any], is_required: bool) -> DeclaredArray:
    may_be_nan = f.name.endswith("_error") or f.metadata.get("may_be_nan", False)
    allowed, total = f.metadata["range"], f.metadata.get("total")
    is_per_layer = "per_layer" in f.metadata
    limits = (allowed, total, may_be_nan)
    return DeclaredArray(kind, f.name, f.metadata["dims"], *limits, is_required, is_per_layer)


def _declare_in_part(
    array: DeclaredArray, f: Field[Any], name: str, is_required: bool
) -> DeclaredArray:
    array = array._replace(
        dims=(*f.metadata["dims"], *array.dims), is_required=is_required and array.is_required
    )
    if name.endswith("_error") and not array.may_be_nan:
        array = array._replace(allowed=_ANY_NUMBER, total=None, may_be_nan=True)
    return array


def _get_part_kind(kind: Any, f: Field[Any]) -> type[Any]:
    """Return the class of a part from its annotation, `Part` or `Part | None`."""
    hint = _get_hints(kind)[f.name]
    part: type[Any] = next((k for k in get_args(hint) if k is not type(None)), hint)
    return part


_get_hints = cache(get_type_hints)


def _rename(f: Field[Any], names: Iterable[str]) -> dict[str, str]:
    """Return the names of a part's arrays in the whole, by their names in the part."""
    prefix, suffix = f.metadata["part"]
    return {name: f"{prefix}{name}{suffix}" for name in names}


def _find_own_names(f: Field[Any], names: Iterable[str]) -> dict[str, str]:
    """Return the names in the whole that a part may have, by the names in the part."""
    prefix, suffix = f.metadata["part"]
    return {
        name.removeprefix(prefix).removesuffix(suffix): name
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    }


class HasParts:
    """Parameters with parts: arrays of parts are also attributes, by their names in artifacts."""

    def __getattr__(self, name: str) -> Any:
        """Return an array of a part; None if it is absent."""
        if name.startswith("_") or name not in list_arrays(type(self)):
            raise AttributeError(f"{type(self).__name__} has no array {name!r}.")
        return get_array(self, name)


def get_array(params: Any, name: str) -> Any:
    """Return an array by its name in artifacts; None if it is absent or not declared.

    The name of layers without a number stands for the tuple of their arrays.
    """
    for f in fields(params):
        value = getattr(params, f.name)
        if "part" not in f.metadata:
            if f.name == name:
                return value
        elif value is not None:
            for own in _find_own_names(f, [name]):
                if (found := get_array(value, own)) is not None:
                    return found
    return None


def get_named_arrays(params: Any) -> NamedArrays:
    """Return a model's parameters as named arrays with their dimensions.

    The dimension `plane` is called `feature` if the parameters have no `n_levels`: then every
    feature has one plane.
    """
    arrays = _list_named_arrays(params)
    if "n_levels" in arrays:
        return arrays
    return {
        name: (tuple("feature" if dim == "plane" else dim for dim in dims), values)
        for name, (dims, values) in arrays.items()
    }


def _list_named_arrays(params: Any) -> NamedArrays:
    arrays: NamedArrays = {}
    for f in fields(params):
        dims, value = f.metadata["dims"], getattr(params, f.name)
        if value is None:
            continue
        if "part" in f.metadata:
            own = _list_named_arrays(value)
            for short, name in _rename(f, own).items():
                own_dims, values = own[short]
                arrays[name] = ((*dims, *own_dims), values)
        elif "per_layer" in f.metadata:
            arrays |= {f"{f.name}_{k}": (_name_layer_dims(dims, k), a) for k, a in enumerate(value)}
        else:
            arrays[f.name] = (dims, value)
    return arrays


def list_nan_names(kind: type[Any]) -> set[str]:
    """Return the names of arrays whose entries are NaN where the data do not determine them.

    These are standard errors, whose names end in `_error`, and fields declared with `may_be_nan`.
    """
    return {name for name, array in list_arrays(kind).items() if array.may_be_nan}


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
        if "part" in f.metadata:
            part, names = _get_part_kind(kind, f), _find_own_names(f, arrays)
            _, known = _list_expected_names(part, names)
            own = {short: arrays[name] for short, name in names.items() if short in known}
            if own or f.default is MISSING:
                values[f.name] = params_from_arrays(part, own)
        elif "per_layer" in f.metadata:
            values[f.name] = tuple(arrays[name] for name in _list_layer_names(f.name, arrays))
        elif f.default is MISSING or f.name in arrays:
            values[f.name] = arrays[f.name]
    return kind(**values)


def replace_arrays(params: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return parameters with other values of some arrays, also in parts, or with further arrays."""
    values = {name: values for name, (_, values) in get_named_arrays(params).items()}
    return params_from_arrays(type(params), {**values, **arrays})


def _list_layer_names(name: str, arrays: Container[str]) -> list[str]:
    n_layers = 0
    while f"{name}_{n_layers}" in arrays:
        n_layers += 1
    return [f"{name}_{k}" for k in range(n_layers)]


def find_unexpected_arrays(kind: type[Any], arrays: Collection[str]) -> set[str]:
    """Return the names of required arrays that are missing, and of arrays without a field."""
    required, known = _list_expected_names(kind, arrays)
    return (required - set(arrays)) | (set(arrays) - known)


def _list_expected_names(kind: type[Any], names: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the names of arrays that must be among these, and of all that may be."""
    required: set[str] = set()
    known: set[str] = set()
    for f in fields(kind):
        if "part" in f.metadata:
            own = _find_own_names(f, names)
            own_required, own_known = _list_expected_names(_get_part_kind(kind, f), own)
            if f.default is MISSING or own_known & own.keys():
                required.update(_rename(f, own_required).values())
            known.update(_rename(f, own_known).values())
        elif "per_layer" in f.metadata:
            known.update(_list_layer_names(f.name, names))
        else:
            known.add(f.name)
            if f.default is MISSING:
                required.add(f.name)
    return required, known


def convert_to_c_order(params: Any) -> Any:
    """Lay arrays out in C order, as storage returns them.

    Products of arrays in another layout differ in the last bits.
    """
    arrays = {name: np.asarray(a, order="C") for name, (_, a) in get_named_arrays(params).items()}
    return params_from_arrays(type(params), arrays)
