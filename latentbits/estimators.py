"""A scikit-learn estimator for each model, such as `ClippedPCA` and `LatentTrait`.

The arguments are the model's settings, of which `n_components` needs no name, and `binarize`,
`reverse`, `random_state` and `n_jobs`, which all estimators have. X may be an array, a data frame,
or whatever else `latentbits.fit` takes, except paths; NaN marks missing values. Constant features
are kept, with a warning, because folds of a cross-validation often have some;
`constant_features="refuse"` refuses them. After `fit`, `fitted_` holds the result of
`latentbits.fit`.

Models of segments (BLICA, BinaryICALikelihood, LinearIVAE, Bottleneck) take y as the segment of
each row, because pipelines and grid searches pass y to every step. If y is something else, such as
the class that a later step predicts, pass the segments separately:
`pipe.fit(X, y, blica__segments=s)`. If the rows are in the order of time, `n_segments` divides them
into segments of equal length. `transform` has no y; without `segments` it uses the mean over the
fitted segments. LatentTrait and BernoulliMixture take groups of rows as `fit(X, segments=groups)`.
"""

from __future__ import annotations

from dataclasses import field, make_dataclass
from functools import cache
from inspect import cleandoc
from textwrap import fill, indent
from typing import Any

from latentbits.base import ModelEstimator, WeightedModelEstimator
from pipeline.models.base import Model, has_segments
from pipeline.models.registry import find_models
from pipeline.models.settings import describe_settings, list_hyperparameters, list_settings

_SEGMENT_SETTINGS = {
    "n_segments": "Number of segments of equal length to divide the rows into, in their order, "
    "such as time bins; None takes the segments from y.",
}
_HIDDEN_SEGMENTS = "With segments='auto', the number of hidden segments; None chooses it."
"""Descriptions of the arguments of estimators with parameters per segment."""
_COMMON_SETTINGS = {
    "binarize": "Values above it become 1, all others 0; `mean` takes the mean of each feature "
    "over the fitted rows, None accepts only 0 and 1.",
    "reverse": "Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level "
    "counts as the highest and so on; None reverses none.",
    "random_state": "Seed of all random draws, a RandomState, or None for NumPy's global state.",
    "n_jobs": "Number of threads; None is 1, -1 one per CPU. Results do not depend on it.",
}
"""Descriptions of the arguments that all estimators have."""
SHORT_NAMES = {"RBM": "RestrictedBoltzmannMachine"}
_DEFAULTS = {"constant_features": "keep"}
"""Defaults that differ from those of models; a feature may be constant in one fold of the rows."""


def make_estimators() -> dict[str, type[ModelEstimator]]:
    """Return the estimators of all models, by class name."""
    return {kind.__name__: _make_estimator(kind) for kind in find_models().values()}


@cache
def _make_estimator(kind: type[Model]) -> type[ModelEstimator]:
    """Make the estimator class of a model, whose arguments are the model's settings."""
    defaults = {own.name: own.default for own in list_settings(kind) if own.init}
    defaults |= {name: value for name, value in _DEFAULTS.items() if name in defaults}
    types = {own.name: own.type for own in list_settings(kind)}
    settings = [
        (name, types[name], field(default=default, kw_only=name != "n_components"))
        for name, default in defaults.items()
    ]
    common = [(name, Any, None) for name in _list_common_settings(kind) if name not in types]
    estimator = make_dataclass(
        kind.__name__,
        [*settings, *common],
        bases=(WeightedModelEstimator if "frequency" in kind.support.parts else ModelEstimator,),
        namespace={"model_class": kind, "__doc__": _make_docstring(kind)},
        kw_only=True,
        eq=False,
        repr=False,
    )
    estimator.__module__ = __name__  # where pickles find it
    return estimator


def _list_common_settings(kind: type[Model]) -> dict[str, str]:
    """Return the arguments that are not settings of the model, and their descriptions."""
    own = _SEGMENT_SETTINGS if has_segments(kind) else {}
    if "n_segments" in list_hyperparameters(kind):
        own = {name: f"{text} {_HIDDEN_SEGMENTS}" for name, text in own.items()}
    return own | _COMMON_SETTINGS


def _make_docstring(kind: type[Model]) -> str:
    """Describe the arguments of an estimator in numpydoc format."""
    title = cleandoc(kind.__doc__ or "").partition("\n")[0].removeprefix("Hyperparameters of ")
    settings = describe_settings(kind)
    texts = {name: settings[name] for name in ("n_components", *list_hyperparameters(kind))}
    texts |= _list_common_settings(kind)
    lines = (f"{name}\n{indent(fill(text, 84), '    ')}\n" for name, text in texts.items())
    return f"Estimator of {title}\n\nParameters\n----------\n{''.join(lines)}"


def __getattr__(name: str) -> type[ModelEstimator]:
    """Return an estimator by name."""
    name = SHORT_NAMES.get(name, name)
    if name.startswith("_") or name not in (estimators := make_estimators()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return estimators[name]
