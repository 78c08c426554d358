"""Settings of models: how they are declared, described and checked.

A setting is a field of the model's dataclass. `setting` declares one with a range of numbers;
`check_settings`, which every model runs when it is created, checks all of them in one place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from functools import cache
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docstring_parser import DocstringStyle, parse

from pipeline.errors import FitError
from pipeline.params import NumberRange

AUTO = "auto"
"""Value that stands for None: the model chooses."""
_MAX_SHOWN = 100  # characters of a value
_STARTS, _STARTS_IF_INCOMPLETE = 3, 10
_TYPE_DESCRIPTIONS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


def setting(
    default: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    or_zero: bool = False,
    **options: Any,
) -> Any:
    """Declare a setting and the range of its numbers.

    None and the default are always allowed. Another tuple must not be empty, and all its numbers
    must be in the range.
    `NumberRange` describes the bounds; `options` go to `dataclasses.field`.

    Examples
    --------
    >>> tol: float = setting(1e-6, above=0, below=1)
    """
    allowed = NumberRange(minimum, above, maximum, below, or_zero)
    return field(default=default, metadata={"range": allowed}, **options)


def choose_number_of_starts(starts: int | None, *, is_complete: bool) -> int:
    """Return a number of random starts, more by default if values are missing.

    Where few rows or features link parts of the data, likelihoods have more maxima.
    """
    if starts is not None:
        return starts
    return _STARTS if is_complete else _STARTS_IF_INCOMPLETE


def list_settings(model: type[Any]) -> list[Field[Any]]:
    """Return the fields that are settings, in the order of arguments.

    Those with `init=False`, whose value is fixed, are settings too.
    """
    settings = (own for own in fields(model) if own.metadata.get("is_setting", True))
    return sorted(settings, key=lambda own: bool(own.kw_only))


def get_settings(model: Any) -> dict[str, Any]:
    """Return the settings of a model by name."""
    names = {own.name for own in list_settings(type(model))}
    return {own.name: getattr(model, own.name) for own in fields(model) if own.name in names}


# Of a class, which takes long; a model is made anew for each kind of data and each fit.
_find_type_hints: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)


def check_settings(model: Any) -> None:
    """Check the number of components, every `Literal`, and every setting with a range."""
    if model.n_components is not None and model.n_components < 1:
        text = f"{{components}} must be at least 1, but is {model.n_components}."
        raise FitError(text, parameter="components")
    for name, kind in _find_type_hints(type(model)).items():
        if get_origin(kind) is Literal and (value := getattr(model, name)) not in get_args(kind):
            choices = ", ".join(sorted(get_args(kind)))
            text = f"{{{name}}} must be one of {choices}, but is {value!r}."
            raise FitError(text, parameter=name)
    for declared in fields(model):
        value = getattr(model, declared.name)
        if "range" in declared.metadata and value != declared.default:
            _check_range(declared.name, value, declared.metadata["range"])


def _check_range(name: str, value: Any, allowed: NumberRange) -> None:
    if value is None:
        return
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(number, Integral) or isfinite(number) for number in numbers):
        raise FitError(f"{{{name}}} must be finite, but is {value}.", parameter=name)
    if not numbers or not all(number in allowed for number in numbers):
        raise FitError(f"{{{name}}} must be {allowed}, but is {value}.", parameter=name)


def check_types(model: type[Any], values: Mapping[str, Any]) -> None:
    """Check settings from a Python caller against their declared types."""
    hints = _find_type_hints(model)
    for name, value in values.items():
        kinds = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        if not any(_has_type(value, kind) for kind in kinds):
            expected = " or ".join(filter(None, map(describe_type, kinds)))
            parameter = "components" if name == "n_components" else name
            shown = repr(value)
            shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
            text = f"{{{parameter}}} must be {expected}, but is {shown}."
            raise FitError(text, parameter=parameter)


def _has_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        item_kind = get_args(kind)[0]
        return isinstance(value, tuple | list) and all(_has_type(v, item_kind) for v in value)
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind) if isinstance(kind, type) else True  # see `check_settings`


def describe_type(kind: Any) -> str:
    """Describe the values of a type, such as `a whole number`."""
    if kind is NoneType:
        return "None"
    return "whole numbers" if get_origin(kind) is tuple else _TYPE_DESCRIPTIONS.get(kind, str(kind))


def list_hyperparameters(model: type[Any]) -> tuple[str, ...]:
    """Return the names of a model's settings in order, without the number of components."""
    names = (own.name for own in list_settings(model) if own.init)
    return tuple(name for name in names if name != "n_components")


def can_be_none(model: type[Any], name: str) -> bool:
    """Return whether a setting may be None, which the command line spells `auto`."""
    return type(None) in get_args(_find_type_hints(model)[name])


def describe_settings(model: type[Any]) -> defaultdict[str, str]:
    """Return the description of each setting, from "Attributes" in the docstrings.

    A class adds its descriptions to those of its base classes, or replaces them.
    """
    descriptions: defaultdict[str, str] = defaultdict(str)
    docs = [kind.__doc__ or "" for kind in reversed(model.__mro__)]
    for param in (p for doc in docs for p in parse(doc, DocstringStyle.NUMPYDOC).params):
        if text := " ".join((param.description or "").split()):
            descriptions |= dict.fromkeys(param.arg_name.split(", "), text)
    return descriptions
