"""Finds models by name: those here, and those of packages that declare some."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

import pipeline.models
from pipeline.errors import FitError, suggestion
from pipeline.models.base import Model

GROUP = "latentbits.models"
"""Entry points that name models of other packages: NAME = "package.module:Class"."""
VARIABLE = "LATENTBITS_MODELS"
"""Names further models, package.module:Class separated by commas: for fitted ones are used by
name, and an artifact must not decide which code is imported."""


def models() -> dict[str, type[Model]]:
    """Give all models by name, those of this package first."""
    for path in _declared():
        imported(path)
    return dict(sorted((_own() | _foreign).items()))


def model_class(name: str) -> type[Model]:
    """Find a model by its name, or by where it is: package.module:Class.

    Raises
    ------
    FitError
        If there is none; the message names the nearest.
    """
    return imported(name) if ":" in name else known_model(name)


def known_model(name: str) -> type[Model]:
    """Find a model by its name, and import nothing: names in artifacts are not to be trusted.

    Raises
    ------
    FitError
        If there is none; the message names the nearest.
    """
    known = models()
    if name not in known:
        raise FitError(
            f"--model: Expected one of {', '.join(known)}, got {name!r}.{suggestion(name, known)}"
        )
    return known[name]


def imported(path: str) -> type[Model]:
    """Import a model from package.module:Class.

    Raises
    ------
    FitError
        If there is no such class, it is no model, or another model has its name.
    """
    module, _, attribute = path.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FitError(
            f"--model: Expected package.module:Class of a model that can be imported, got {path!r} "
            f"({error}). Install its package, or check the name."
        ) from error
    if not _is_model(kind):
        raise FitError(f"--model: Expected a subclass of pipeline.models.base.Model, got {path!r}.")
    if (_own() | _foreign).get(kind.name, kind) is not kind:
        raise FitError(
            f"--model: Expected a model with a name of its own, got {path!r}, which is called "
            f"{kind.name!r} as another is. Rename it."
        )
    return _foreign.setdefault(kind.name, kind)


_foreign: dict[str, type[Model]] = {}


def _is_model(value: object) -> bool:
    """Tell whether something is the class of a model; `Model` itself has no name."""
    return isinstance(value, type) and Model in value.__mro__ and hasattr(value, "name")


@cache
def _own() -> dict[str, type[Model]]:
    """Find the models of this package: classes that its files and folders define."""
    found = {}
    for module in iter_modules(pipeline.models.__path__, "pipeline.models."):
        for value in vars(import_module(module.name)).values():
            if _is_model(value) and value.__module__.startswith(module.name):
                found[value.name] = value
    return found


def _declared() -> list[str]:
    named = os.environ.get(VARIABLE, "").replace(" ", "").split(",")
    return [*_entry_points(), *filter(None, named)]


@cache
def _entry_points() -> tuple[str, ...]:
    return tuple(point.value for point in entry_points(group=GROUP))
