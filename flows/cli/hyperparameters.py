"""Parse `--model`, `--components` and `--set`, and describe the settings of models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from textwrap import fill
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pipeline.errors import FitError, format_suggestion
from pipeline.models.registry import (
    ALIASES,
    find_model_class,
    get_known_model,
    list_model_names,
)
from pipeline.models.settings import AUTO, describe_settings, describe_type, list_hyperparameters
from storage.named_values import collect_values
from storage.quoting import parse_float

if TYPE_CHECKING:
    from pipeline.models.base import Model

    ModelName: TypeAlias = str
else:
    ModelName = Literal[(*list_model_names(), *ALIASES)] | str
"""Name of a model. Prefect's forms offer the known names; `make_model` refuses others."""
MODEL_GROUPS = {
    "pairs, traits, causes": ("clipped-pca", "ising", "latent-trait", "noisy-or"),
    "classes, states": ("bernoulli-mixture", "hidden-markov", "hidden-tree"),
    "trees, distances": ("tree-mixture", "chow-liu", "kernel-pca", "laplacian-eigenmap"),
    "independent components": ("blica", "binary-ica-likelihood", "fastica", "linear-ivae"),
    "neural networks": ("autoencoder", "bottleneck", "rbm", "stack"),
}
"""Topics of the models on the help page of `fit`; other models are listed last."""
_TYPE_NAMES = {
    int: "whole number",
    float: "number",
    bool: "yes|no",
    str: "text",
    tuple[int, ...]: "whole numbers, separated by commas",
    NoneType: AUTO,
}
_TRUTH_VALUES = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_INDENTATION: dict[str, Any] = {"initial_indent": " " * 6, "subsequent_indent": " " * 6}


def parse_model_options(
    name: str,
    components: int | str | None = None,
    settings: Sequence[str] = (),
    layers: str | None = None,
) -> dict[str, Any]:
    """Parse the options of a model into the arguments `components` and `settings` of `make_model`.

    `components` is a number or `auto`, `settings` are texts `NAME=VALUE`, and `layers` are whole
    numbers separated by commas; None stands for the default of the model.
    """
    model = find_model_class(name)
    hints, names = get_type_hints(model), list_hyperparameters(model)
    number = None if components is None else _parse_components(components)
    pairs = [_split_setting(setting, names) for setting in settings]
    if layers is not None:
        if "layers" not in names:
            raise FitError(f"{model.name} has no layers, unlike stack. Leave out {{layers}}.")
        pairs.append(("layers", layers))
    values = {
        key: _convert_setting(key, value, hints[key])
        for key, value in collect_values("{set}", pairs).items()
    }
    return {"components": number, "settings": values}


def format_settings_help(words: Sequence[str] = ()) -> str:
    """Describe the settings of the model that a command line names, or list all models."""
    names = [word for pair in pairwise([*words, ""]) for word in _parse_model_option(*pair)]
    models = filter(None, map(get_known_model, names))
    return "".join(map(_format_model_help, models)) or _format_model_list()


def _format_model_list() -> str:
    grouped = {name for names in MODEL_GROUPS.values() for name in names}
    others = tuple(sorted({*list_model_names()} - grouped))
    groups = {**MODEL_GROUPS, "others": others} if others else MODEL_GROUPS
    lines = "".join(f"  {topic:<24}{', '.join(names)}\n" for topic, names in groups.items())
    command = "python -m flows.fit --model NAME --help"
    return f"Models ({command} describes their settings):\n{lines}\n"


def _parse_model_option(word: str, following: str) -> list[str]:
    name, _, value = word.partition("=")
    return [value or following] if name == "--model" else []


def _format_model_help(model: type[Model]) -> str:
    hints, descriptions = get_type_hints(model), describe_settings(model)
    defaults = {field.name: field.default for field in fields(model)}
    lines = (
        f"  {name}={_format_type(hints[name])} [default: {format_setting(defaults[name])}]\n"
        f"{_format_description(descriptions[name])}"
        for name in list_hyperparameters(model)
    )
    return f"Settings of {model.name} (--set NAME=VALUE):\n{''.join(lines)}\n"


def _format_description(description: str) -> str:
    text = re.sub(r"\bNone\b", AUTO, description).replace("n_components", "--components")
    text = fill(text, 79, **_INDENTATION)
    return f"{text}\n" if text else ""


def _format_type(kind: Any) -> str:
    """Spell a type: the values of a `Literal`, or the names of the types."""
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    return "|".join(c if isinstance(c, str) else _format_type(c) for c in get_args(kind))


def format_setting(value: Any) -> str:
    """Format a value as `--set` accepts it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return AUTO if value is None else str(value)


def _parse_components(value: int | str) -> int | str:
    try:
        return value if value == AUTO or isinstance(value, int) else int(_parse_value(value, int))
    except ValueError:
        message = f"{{components}} is {value!r}, but should be a whole number or auto."
        raise FitError(message) from None


def _split_setting(setting: str, names: Sequence[str]) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise FitError(f"{{set}}: {setting!r} is not of the form NAME=VALUE.")
    if key not in names:
        raise FitError(
            f"{{set}}: {key!r} is not a setting of this model. Choose one of: {', '.join(names)}."
            f"{format_suggestion(key, names)}"
        )
    return key, value


def _convert_setting(name: str, text: str, kind: Any) -> Any:
    """Convert a text to the type of a setting, or to None if it may be None and is `auto`."""
    if text == AUTO and NoneType in get_args(kind):
        return None
    kinds = [k for k in get_args(kind) if k is not NoneType] if _is_union(kind) else [kind]
    for option in kinds:
        try:
            return _parse_value(text, option)
        except ValueError:
            continue
    expected = " or ".join(map(_describe_value, kinds))
    raise FitError(f"--set {name} is {text!r}, but should be {expected}.")


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _parse_value(text: str, kind: Any) -> Any:
    """Parse a value of a type; `ValueError` if the text is none."""
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise ValueError
    if get_origin(kind) is tuple:
        item_kind = get_args(kind)[0]
        return tuple(_parse_value(part, item_kind) for part in text.split(",")) if text else ()
    if kind is bool:
        if text.lower() not in _TRUTH_VALUES:
            raise ValueError
        return _TRUTH_VALUES[text.lower()]
    if kind in (int, float) and parse_float(text) is None:  # Python also reads 1_000
        raise ValueError
    return kind(text)


def _describe_value(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        return "whole numbers separated by commas"
    return "yes or no" if kind is bool else describe_type(kind)
