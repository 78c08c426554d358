"""Makes a model's hyperparameters from `--model`, `--components` and `--set`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from pipeline.errors import FitError
from pipeline.models.base import Model, hyperparameters, model_class, suggestion


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


def _number_of_components(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.lstrip("-").isdigit():
        raise FitError(f"--components: Expected a whole number or auto, got {text!r}.")
    return int(text)


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
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise FitError(f"--set {key}: Expected {reason}, got {value!r}.") from None
