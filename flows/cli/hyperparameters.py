"""Makes a model's hyperparameters from `--model`, `--components` and `--set`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from pipeline.errors import FitError, format_suggestion
from pipeline.models.base import Model
from pipeline.models.registry import find_model_class, find_models
from pipeline.models.settings import describe_settings, list_hyperparameters

ModelName = Literal[tuple(sorted(find_models()))] | str  # type: ignore[valid-type]
"""A model's name; forms and help list those that are here, `build_model` refuses others."""
AUTO = "auto"
"""What options call a value that is left to the model to choose: None."""
_TYPE_NAMES = {
    int: "whole number",
    float: "number",
    bool: "yes|no",
    str: "text",
    tuple[int, ...]: "whole numbers with commas",
    NoneType: AUTO,
}
_INDENTATION: dict[str, Any] = {"initial_indent": " " * 8, "subsequent_indent": " " * 8}


def build_model(
    name: str, components: str | None, settings: Sequence[str], layers: str | None = None
) -> Model:
    """Make a model's hyperparameters from the options.

    Parameters
    ----------
    name
        The model's name.
    components
        A number, `auto`, or None for the model's default.
    settings
        `NAME=VALUE` each.
    layers
        Whole numbers with commas, or None for the model's default.

    Raises
    ------
    FitError
        If a name or a value cannot be used.
    """
    model = find_model_class(name)
    hints = get_type_hints(model)
    values: dict[str, Any] = {}
    if components is not None:
        values["n_components"] = _parse_components(components)
    if layers is not None:
        values["layers"] = _parse_layers(model, layers)
    for setting in settings:
        key, value = _split_setting(setting, list_hyperparameters(model))
        values[key] = _convert_setting(f"--set {key}", value, hints[key])
    return model(**values)


def format_settings_help(words: Sequence[str] = ()) -> str:
    """List settings with their values and defaults, in Markdown: those of the model named.

    Parameters
    ----------
    words
        A command line. Where it names no model that is known, the settings of all are listed.
    """
    given = [word for pair in pairwise([*words, ""]) for word in _parse_model_option(*pair)]
    wanted = [name for name in given if name in find_models()] or sorted(find_models())
    return "".join(_format_model_help(find_models()[name]) for name in wanted)


def _parse_model_option(word: str, following: str) -> list[str]:
    name, _, value = word.partition("=")
    return [value or following] if name == "--model" else []


def _format_model_help(model: type[Model]) -> str:
    hints, described = get_type_hints(model), describe_settings(model)
    defaults = {field.name: field.default for field in fields(model)}  # type: ignore[arg-type]
    lines = (
        f"    {name}={_format_type(hints[name])} [default: {format_setting(defaults[name])}]\n"
        f"{_format_description(described[name])}"
        for name in list_hyperparameters(model)
    )
    return f"Settings of {model.name}, by --set:\n\n{''.join(lines)}\n"


def _format_description(description: str) -> str:
    """Wrap a description below its setting."""
    said = fill(re.sub(r"\bNone\b", AUTO, description), 76, **_INDENTATION)
    return f"{said}\n" if said else ""


def _format_type(kind: Any) -> str:
    """Spell a type: the values of a `Literal`, or the names of its types, None being `auto`."""
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    return "|".join(c if isinstance(c, str) else _format_type(c) for c in get_args(kind))


def format_setting(value: Any) -> str:
    """Write a setting as `--set` takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return AUTO if value is None else str(value)


def _parse_components(text: str) -> int | None:
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        message = f"--components: Expected a whole number or auto, got {text!r}."
        raise FitError(message) from None


def _parse_layers(model: type[Model], text: str) -> Any:
    """Take the setting `layers`, which has an option of its own, of a model that has it."""
    if "layers" not in list_hyperparameters(model):
        raise FitError(
            f"--layers: Expected a model in layers, such as stack, got {model.name}. Leave it out."
        )
    return _convert_setting("--layers", text, get_type_hints(model)["layers"])


def _split_setting(setting: str, known: Sequence[str]) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise FitError(f"--set: Expected NAME=VALUE, got {setting!r}.")
    if key not in known:
        raise FitError(
            f"--set: Expected one of {', '.join(known)}, got {key!r}.{format_suggestion(key, known)}"
        )
    return key, value


def _convert_setting(option: str, value: str, kind: Any) -> Any:
    if value == AUTO and NoneType in get_args(kind):
        return None
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    is_listed = any(get_origin(one) is tuple for one in kinds)
    given = (value.split(",") if value else []) if is_listed else value
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise FitError(f"{option}: Expected {reason}, got {value!r}.") from None
