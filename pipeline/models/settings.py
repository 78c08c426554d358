"""Hyperparameters of models: their names, values and help, and checks that several models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from pipeline.errors import FitError, FitWarning
from pipeline.models.base import Model
from pipeline.statistics.counts import Counts, FeatureCounts
from pipeline.statistics.distinct_rows import DistinctRows


def list_hyperparameters(model: type[Model]) -> tuple[str, ...]:
    """Name the settings of a model, the structural ones left out, as it takes them."""
    return tuple(name for name in signature(model).parameters if name != "n_components")


def can_be_none(model: type[Model], name: str) -> bool:
    """Tell whether a setting may be None, which callers spell `auto`; others have it as a text."""
    return type(None) in get_args(get_type_hints(model)[name])


def restore_model(model: type[Model], recorded: Mapping[str, Any]) -> Model:
    """Make a model again from all fields of its dataclass; those that no caller sets are left.

    Tuples were recorded as lists.
    """
    given = {f.name for f in fields(model) if f.init}  # type: ignore[arg-type]
    values = {name: value for name, value in recorded.items() if name in given}
    return model(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})


def check_choices(model: Model) -> None:
    """Check the settings that are declared as `Literal`.

    Raises
    ------
    FitError
        If a setting is none of its choices.
    """
    for name, kind in get_type_hints(type(model)).items():
        if get_origin(kind) is Literal and (value := getattr(model, name)) not in get_args(kind):
            choices = ", ".join(sorted(get_args(kind)))
            raise FitError(f"{name}: Expected one of {choices}, got {value!r}.")


_TYPE_DESCRIPTIONS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
}


def check_types(model: type[Model], values: Mapping[str, Any]) -> None:
    """Check settings that a caller gave by their declared types.

    Raises
    ------
    FitError
        If a setting is of another type.
    """
    hints = get_type_hints(model)
    for name, value in values.items():
        kinds = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        if not any(_has_type(value, kind) for kind in kinds):
            spoken = " or ".join(filter(None, map(_describe_type, kinds)))
            option = "--components" if name == "n_components" else name
            raise FitError(f"{option}: Expected {spoken}, got {value!r}.")


def _has_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return isinstance(value, tuple | list) and all(_has_type(one, inner) for one in value)
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind) if isinstance(kind, type) else True  # as `check_choices` says


def _describe_type(kind: Any) -> str:
    if kind is NoneType:
        return "None"
    return "whole numbers" if get_origin(kind) is tuple else _TYPE_DESCRIPTIONS.get(kind, str(kind))


def check_components(model: Model) -> None:
    """Check the number of components, where one is given.

    Raises
    ------
    FitError
        If it is below 1.
    """
    if model.n_components is not None and model.n_components < 1:
        raise FitError(f"--components: Expected at least 1, got {model.n_components}.")


def pool_margins(first: FeatureCounts) -> tuple[Counts, Counts]:
    """Give observed values and ones of each feature in all segments, (n_features,) each.

    Raises
    ------
    FitError
        If a feature was never observed.
    """
    observed, ones = first.observed.sum(axis=0), first.ones.sum(axis=0)
    if (missing := np.flatnonzero(observed == 0)).size:
        raise FitError(
            "Expected observed values in every feature, got none in {features}. "
            "Leave these features out.",
            missing.tolist(),
        )
    return observed, ones


def make_constant_feature_warnings(
    observed: Counts, ones: Counts, so: str = "nothing else depends on them"
) -> tuple[FitWarning, ...]:
    """Tell which features are constant, by the margins of `pool_margins`, and what follows."""
    constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
    return (FitWarning(f"constant, so that {so}: {{features}}", constant),) if constant else ()


def make_unobserved_row_warnings(first: DistinctRows) -> tuple[FitWarning, ...]:
    """Tell how many rows have no values, among the distinct ones that were kept."""
    n_unseen = int(first.times.sum() - first.rows_with_values[1].sum())
    text = f"rows of which nothing was observed are not fitted, and have the code 0: {n_unseen:,}"
    return (FitWarning(text),) if n_unseen else ()
