"""Find models by name, in this package and in other packages that declare models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

import pipeline.models
from pipeline.errors import FitError, format_suggestion
from pipeline.models.base import Model

ENTRY_POINT_GROUP = "latentbits.models"
"""Entry point group of models in other packages: NAME = "package.module:Class"."""
MODELS_VARIABLE = "LATENTBITS_MODELS"
"""Environment variable that lists more models: package.module:Class, separated by commas.

A fitted model is found by its name only, so that an artifact cannot decide which code is
imported."""


def find_models() -> dict[str, type[Model]]:
    """Return all models by name, in alphabetical order."""
    for path in _list_declared_paths():
        import_model(path)
    return dict(sorted((_find_own_models() | _imported_models).items()))


def find_model_class(name: str) -> type[Model]:
    """Find a model by its name, or by its class: package.module:Class."""
    return import_model(name) if ":" in name else find_known_model(name)


def find_known_model(name: str) -> type[Model]:
    """Find a model by its name without importing anything; names in artifacts are not trusted.

    The error about an unknown name suggests the nearest one.
    """
    models = find_models()
    if name not in models:
        raise FitError(
            f"There is no model {name!r}.{format_suggestion(name, models)} "
            f"The models are {', '.join(models)}.",
            parameter="model",
        )
    return models[name]


def restore_model(kind: type[Model], recorded: Mapping[str, Any]) -> Model:
    """Create a model from the settings in a manifest, which stores tuples as lists."""
    names = {f.name for f in fields(kind) if f.init}  # type: ignore[arg-type]
    values = {name: value for name, value in recorded.items() if name in names}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})


def import_model(path: str) -> type[Model]:
    """Import a model from package.module:Class, and refuse a name that another model has."""
    module, _, attribute = path.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FitError(
            f"{path!r} cannot be imported ({error}). Use the form package.module:Class, and "
            "install the package.",
            parameter="model",
        ) from error
    if not _is_model(kind):
        raise FitError(
            f"{path!r} is not a model. Derive it from pipeline.models.base.Model.",
            parameter="model",
        )
    if (_find_own_models() | _imported_models).get(kind.name, kind) is not kind:
        raise FitError(
            f"{path!r} has the same name as another model, {kind.name!r}. Rename it.",
            parameter="model",
        )
    return _imported_models.setdefault(kind.name, kind)


_imported_models: dict[str, type[Model]] = {}


def _is_model(value: object) -> bool:
    """Return whether a value is the class of a model; `Model` itself has no name."""
    return isinstance(value, type) and Model in value.__mro__ and hasattr(value, "name")


@cache
def _find_own_models() -> dict[str, type[Model]]:
    """Find the models of this package: the classes that its files and folders define."""
    models = {}
    for module in iter_modules(pipeline.models.__path__, "pipeline.models."):
        for value in vars(import_module(module.name)).values():
            if _is_model(value) and value.__module__.startswith(module.name):
                models[value.name] = value
    return models


def _list_declared_paths() -> list[str]:
    paths = os.environ.get(MODELS_VARIABLE, "").replace(" ", "").split(",")
    return [*_list_entry_points(), *filter(None, paths)]


@cache
def _list_entry_points() -> tuple[str, ...]:
    return tuple(point.value for point in entry_points(group=ENTRY_POINT_GROUP))
