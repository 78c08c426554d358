"""Makes a model's hyperparameters from `--model`, `--components` and `--set`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from pipeline.errors import FitError
from pipeline.models.base import MODELS, Model, hyperparameters, model_class, suggestion

AUTO = "auto"
"""What options call a value that is left to the model to choose: None."""


def build_model(name: str, components: str | None, settings: Sequence[str]) -> Model:
    """Make a model's hyperparameters from the options.

    Parameters
    ----------
    name
        The model's name.
    components
        A number, `auto`, or None for the model's default.
    settings
        `NAME=VALUE` each.

    Raises
    ------
    FitError
        If a name or a value cannot be used.
    """
    model = model_class(name)
    hints = get_type_hints(model)
    values: dict[str, Any] = {}
    if components is not None:
        values["n_components"] = _number_of_components(components)
    for setting in settings:
        key, value = _named(setting, hyperparameters(model))
        values[key] = _converted(key, value, hints[key])
    return model(**values)


def settings_help() -> str:
    """List every model's settings with their values and defaults, in Markdown."""
    return "".join(_model_help(model) for _, model in sorted(MODELS.items()))


def _model_help(model: type[Model]) -> str:
    hints = get_type_hints(model)
    defaults = {field.name: field.default for field in fields(model)}  # type: ignore[arg-type]
    lines = (
        f"    {name}={_choices(hints[name])} [default: {_spelled(defaults[name])}]\n"
        for name in hyperparameters(model)
    )
    return f"Settings of {model.name}, by --set:\n\n{''.join(lines)}\n"


def _choices(kind: Any) -> str:
    """Spell a type: the values of a `Literal`, or the names of its types, None being `auto`."""
    spelled = (c if isinstance(c, str) else _type_name(c) for c in get_args(kind) or (kind,))
    return "|".join(spelled)


def _type_name(kind: type) -> str:
    return {int: "whole number", float: "number", NoneType: AUTO}.get(kind, kind.__name__)


def _spelled(default: Any) -> str:
    return AUTO if default is None else str(default)


def _number_of_components(text: str) -> int | None:
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        message = f"--components: Expected a whole number or auto, got {text!r}."
        raise FitError(message) from None


def _named(setting: str, known: Sequence[str]) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise FitError(f"--set: Expected NAME=VALUE, got {setting!r}.")
    if key not in known:
        raise FitError(
            f"--set: Expected one of {', '.join(known)}, got {key!r}.{suggestion(key, known)}"
        )
    return key, value


def _converted(key: str, value: str, kind: Any) -> Any:
    if value == AUTO and NoneType in get_args(kind):
        return None
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise FitError(f"--set {key}: Expected {reason}, got {value!r}.") from None
