"""Find models by name, in this package and in other packages that declare models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.errors import FitError, format_suggestion
from pipeline.models.loading_pattern import read_trait_names
from pipeline.models.settings import (
    AUTO,
    can_be_none,
    check_types,
    list_hyperparameters,
    list_settings,
)
from pipeline.models.vocabulary import PLAIN, Vocabulary

if TYPE_CHECKING:
    from pipeline.models.base import Model

ENTRY_POINT_GROUP = "latentbits.models"
"""Entry point group of models in other packages: NAME = "package.module:Class"."""
MODELS_VARIABLE = "LATENTBITS_MODELS"
"""Environment variable that lists more models: package.module:Class, separated by commas.

A fitted model is found by its name only, so that an artifact cannot decide which code is
imported."""


_OWN_MODELS = {
    "autoencoder": "pipeline.models.autoencoder:Autoencoder",
    "bernoulli-mixture": "pipeline.models.bernoulli_mixture.model:BernoulliMixture",
    "binary-ica-likelihood": "pipeline.models.binary_ica.likelihood:BinaryICALikelihood",
    "blica": "pipeline.models.binary_ica.blica:BLICA",
    "bottleneck": "pipeline.models.bottleneck:Bottleneck",
    "clipped-pca": "pipeline.models.clipped_pca.model:ClippedPCA",
    "fastica": "pipeline.models.binary_ica.fastica:FastICA",
    "hidden-markov": "pipeline.models.hidden_markov.model:HiddenMarkov",
    "hidden-tree": "pipeline.models.trees.hidden_tree:HiddenTree",
    "ising": "pipeline.models.ising.model:Ising",
    "kernel-pca": "pipeline.models.kernel_pca:KernelPCA",
    "laplacian-eigenmap": "pipeline.models.laplacian_eigenmap:LaplacianEigenmap",
    "latent-trait": "pipeline.models.latent_trait.model:LatentTrait",
    "linear-ivae": "pipeline.models.binary_ica.linear_ivae:LinearIVAE",
    "noisy-or": "pipeline.models.noisy_or.model:NoisyOr",
    "rbm": "pipeline.models.rbm:RestrictedBoltzmannMachine",
    "stack": "pipeline.models.stack:Stack",
    "tree-mixture": "pipeline.models.trees.tree_mixture:TreeMixture",
}
"""Class of each model of this package. A list, because it takes long to import all of them."""


class ModelAlias(NamedTuple):
    """Another name of a model, with the settings that it fixes."""

    model: str
    settings: Mapping[str, Any]


ALIASES = {"chow-liu": ModelAlias("tree-mixture", {"n_components": 1})}
"""Other names of models of this package. A fit records the name of the model."""


_VARIANTS = {
    "binary-ica-likelihood": {
        "segments": "pipeline.models.binary_ica.hidden_likelihood:HiddenSegmentLikelihood"
    },
    "blica": {"segments": "pipeline.models.binary_ica.hidden_segments:HiddenSegmentBLICA"},
    "latent-trait": {
        "dynamics": "pipeline.models.latent_trait.walk:WalkingTrait",
        "tree": "pipeline.models.latent_trait.tree:TraitTree",
    },
}
"""Models with a class of its own if a setting is not at its default: the setting, and the class.

Such a class has the name of the model, and may lack some of its settings."""


def list_model_names() -> list[str]:
    """List the names of all models, in alphabetical order; imports those of other packages only."""
    return sorted({*_OWN_MODELS, *_import_declared_models()})


def find_models() -> dict[str, type[Model]]:
    """Import all models, and return them by name, in alphabetical order."""
    own = {name: resolve_name(path) for name, path in _OWN_MODELS.items()}
    return dict(sorted({**own, **_import_declared_models()}.items()))


def find_model_class(name: str) -> type[Model]:
    """Find a model by its name, or by its class: package.module:Class."""
    if not isinstance(name, str):
        raise FitError(
            f"The model is {name!r:.60}, but must be a name, such as 'latent-trait', or the path "
            "of a class, such as 'package.module:Class'.",
            parameter="model",
        )
    return import_model(name) if ":" in name else find_known_model(name)


def find_known_model(name: str) -> type[Model]:
    """Find a model by its name; what else to import is not up to names in artifacts.

    The error about an unknown name suggests the nearest one.
    """
    if (model := get_known_model(name)) is not None:
        return model
    names = sorted([*list_model_names(), *ALIASES])
    raise FitError(
        f"There is no model {name!r}.{format_suggestion(name, names)} "
        f"The models are {', '.join(names)}.",
        parameter="model",
    )


def get_known_model(name: str) -> type[Model] | None:
    """Return the model of this name or alias, or None if there is no such model."""
    name = _resolve_alias(name)
    own: type[Model] | None = resolve_name(_OWN_MODELS[name]) if name in _OWN_MODELS else None
    return own or _import_declared_models().get(name)


def _resolve_alias(name: str) -> str:
    return ALIASES[name].model if name in ALIASES else name


def get_fixed_settings(name: str) -> Mapping[str, Any]:
    """Return the settings that a name fixes; none, unless it is an alias."""
    return ALIASES[name].settings if name in ALIASES else {}


def add_fixed_settings(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those that a name fixes, and refuse other values of them."""
    fixed = get_fixed_settings(name)
    for key, value in fixed.items():
        if values.get(key, value) != value:
            option, model = key.removeprefix("n_"), ALIASES[name].model
            raise FitError(
                f"{name} is {model} with {{{option}={value}}}. Leave out {{{option}}}, or choose "
                f"{{model={model}}}.",
                parameter=option,
            )
    return {**values, **fixed}


def make_model(
    name: str, components: int | str | None = None, settings: Mapping[str, Any] | None = None
) -> Model:
    """Make a model, that is its hyperparameters; `name` may be an alias.

    `components` is a number or `auto`; None, like a setting that is missing, stands for the default
    of the model.

    Raises
    ------
    FitError
        If there is no such model or setting, or a value cannot be used.
    """
    kind, values = find_model_class(name), dict(settings or {})
    names = list_hyperparameters(kind)
    for key in values:
        if key not in names:
            raise FitError(
                f"{kind.name} has no setting {key!r}. Its settings are: {', '.join(names)}."
                f"{format_suggestion(key, names)}"
            )
    if isinstance(components, str) and components != AUTO:
        raise FitError(
            f"{components!r} is neither a whole number nor 'auto'.", parameter="components"
        )
    if components is not None:
        values["n_components"] = components
    values = add_fixed_settings(name, values)
    for key, value in values.items():
        if isinstance(value, str) and value == AUTO and can_be_none(kind, key):
            values[key] = None
    check_types(kind, values)
    return select_variant(kind, values)(**values)


def select_variant(kind: type[Model], values: dict[str, Any]) -> type[Model]:
    """Return the class of a model with these settings; values at their defaults are taken out.

    Raises
    ------
    FitError
        If the class lacks a setting.
    """
    defaults = {own.name: own.default for own in list_settings(kind)}
    variants = _VARIANTS.get(kind.name, {})
    changed = (
        name
        for name in variants
        if name in values and not _is_default(values[name], defaults[name])
    )
    if (setting := next(changed, "")) == "":
        return kind
    variant: type[Model] = resolve_name(variants[setting])
    names = ("n_components", *list_hyperparameters(variant))
    for name in [name for name in values if name not in names]:
        if not _is_default(values.pop(name), defaults[name]):
            raise FitError(
                f"{{{setting}}} cannot be combined with {{{name}}}. Its other settings "
                f"are: {', '.join(own for own in names if own not in (setting, 'n_components'))}.",
                parameter=name,
            )
    return variant


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a setting is at its default; manifests store tuples as lists."""
    return bool((tuple(value) if isinstance(value, list) else value) == default)


def restore_model(kind: type[Model], recorded: Mapping[str, Any]) -> Model:
    """Create a model from the settings in a manifest, which stores tuples as lists."""
    names = {f.name for f in fields(kind) if f.init and f.metadata.get("is_setting", True)}
    values = {name: value for name, value in recorded.items() if name in names}
    settings: Any = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    return select_variant(kind, settings)(**settings)


def read_vocabulary(manifest: Mapping[str, Any]) -> Vocabulary:
    """Return the words of a fit's model, given the manifest; plain ones if there is no model."""
    kind = get_known_model(manifest["model"])
    words = restore_model(kind, manifest["hyperparameters"]).vocabulary if kind else PLAIN
    return words._replace(names=read_trait_names(manifest))


def import_model(path: str) -> type[Model]:
    """Import a model from package.module:Class, and refuse a name that another model has."""
    try:
        kind = resolve_name(path)
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
    own = _OWN_MODELS.get(_resolve_alias(kind.name))
    other = resolve_name(own) if own else _imported_models.get(kind.name, kind)
    if other is not kind:
        raise FitError(
            f"{path!r} has the same name as another model, {kind.name!r}. Rename it.",
            parameter="model",
        )
    return _imported_models.setdefault(kind.name, kind)


_imported_models: dict[str, type[Model]] = {}


def _is_model(value: object) -> bool:
    """Return whether a value is the class of a model; `Model` itself has no name."""
    from pipeline.models.base import Model  # slow to import

    return isinstance(value, type) and Model in value.__mro__ and hasattr(value, "name")


def _import_declared_models() -> Mapping[str, type[Model]]:
    """Import the models that other packages declare; return them and all that were imported."""
    for path in _list_declared_paths():
        import_model(path)
    return _imported_models


def _list_declared_paths() -> list[str]:
    paths = os.environ.get(MODELS_VARIABLE, "").replace(" ", "").split(",")
    return [*_list_entry_points(), *filter(None, paths)]


@cache
def _list_entry_points() -> tuple[str, ...]:
    return tuple(point.value for point in entry_points(group=ENTRY_POINT_GROUP))
