"""Every model as a scikit-learn estimator: `ClippedPCA`, `LatentTrait` and so on, made when asked.

Arguments are the model's settings, with its defaults, and three that all have: `binarize`,
`random_state` and `n_jobs`. X is dense, and NaN where a value is missing. After `fit`, `fitted_` is
what `pipeline.api.functions.fit` gives.

Models of segments (BLICA, BinaryICALikelihood, LinearIVAE, Bottleneck) take y as the segment of
each row: pipelines and grid searches hand y on to every step. Where y is something else, such as
the class that a later step predicts, `segments` stands in: `pipe.fit(X, y, blica__segments=s)`.
`transform` has no y, and without `segments` takes the mean of the segments fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass, replace
from functools import cache
from inspect import cleandoc, signature
from numbers import Integral
from textwrap import fill, indent
from typing import Any, ClassVar, Self
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from pipeline.api import functions as api
from pipeline.data.in_memory import MemoryDataset, make_memory_dataset
from pipeline.data.tables import make_binary_table
from pipeline.errors import FitError
from pipeline.executors.threads import make_executor
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    CanSample,
    HasLogLikelihood,
    HasLowerBound,
    check_can_sample,
)
from pipeline.models.registry import find_models
from pipeline.models.settings import describe_settings, list_hyperparameters
from pipeline.statistics.labels import SEGMENT

_ARGUMENT_NAMES = {"components": "n_components", "seed": "random_state", "segment": "y"}
_COMMON_SETTINGS = {
    "binarize": "Values above it are ones, and others zeros; None takes 0 and 1 alone.",
    "random_state": "Seed of every random draw, a RandomState, or None for NumPy's own.",
    "n_jobs": "Threads; None is one, -1 as many as there are CPUs. Results do not depend on it.",
}
"""What all estimators take, and what it is."""
_REMEDY = "Say binarize=T to take values above T for ones."


def _has_capability(*capabilities: type) -> Callable[[Any], bool]:
    """Return a check that an estimator's model has any of these capabilities."""
    return lambda estimator: issubclass(estimator.model_class, capabilities)


class ModelEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the estimators of all models have in common.

    Attributes
    ----------
    fitted_
        The fitted model, an `api.Fitted`: its `params` are arrays by name.
    n_iter_
        Passes over the rows in the last stage of the fit.
    """

    model_class: ClassVar[type[Any]]
    n_components: int | str | None
    binarize: float | None
    random_state: Any
    n_jobs: int | None

    def fit(
        self, X: ArrayLike, y: ArrayLike | None = None, segments: ArrayLike | None = None
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X
            0, 1 or NaN, unless `binarize` is given, (n_samples, n_features).
        y
            Segments where the model has any, or what it predicts; other models leave it alone.
        segments
            Segment of each row, (n_samples,), instead of y.

        Raises
        ------
        ValueError
            If the data or a setting cannot be used.
        """
        values = self._check_X(X, reset=True, ensure_min_samples=2, ensure_min_features=2)
        if (
            self._get_target_name() is not None
            and (segments if self._get_target_name() == SEGMENT else y) is None
        ):
            y = _require_target(type(self).__name__, y, str(self._get_target_name()))
        settings = {name: getattr(self, name) for name in list_hyperparameters(self.model_class)}
        self.seed_ = _draw_seed(self.random_state)
        self.fitted_ = api.fit_with_argument_names(
            _ARGUMENT_NAMES,
            self._make_dataset(values, y, segments),
            self.model_class.name,
            components=self.n_components,
            seed=self.seed_,
            executor=make_executor(self.n_jobs),
            settings=settings,
        )
        for text in self.fitted_.warnings:
            warn(text, stacklevel=2)
        self.n_iter_ = max(1, len(self.fitted_.history))
        self._n_features_out = self._compute_codes(values[:1], None).shape[1]
        return self

    def transform(self, X: ArrayLike, segments: ArrayLike | None = None) -> NDArray[np.float64]:
        """Compute the latent codes, (n_samples, n_components)."""
        check_is_fitted(self)
        return self._compute_codes(self._check_X(X), segments)

    @available_if(_has_capability(HasLogLikelihood, HasLowerBound))
    def score(
        self, X: ArrayLike, y: ArrayLike | None = None, segments: ArrayLike | None = None
    ) -> float:
        """Compute the mean log-likelihood per row in nats, or an estimate or a lower bound of it.

        Parameters
        ----------
        X, y, segments
            As for `fit`; models of segments take the mean of those fitted where neither is given.

        Raises
        ------
        ValueError
            If the model gives none as it was fitted.
        """
        check_is_fitted(self)
        dataset = self._make_dataset(self._check_X(X), y, segments)
        found = api.evaluate_likelihood(
            self.fitted_, dataset, seed=self.seed_, executor=make_executor(self.n_jobs)
        )
        for name in ("log_likelihood", "lower_bound"):
            if name in found:
                return float(found[name])
        raise FitError(
            f"Expected a model that gives a log-likelihood as it was fitted, got "
            f"{type(self).__name__}. {' '.join(found['refusals'])}"
        )

    @available_if(_has_capability(CanSample))
    def sample(self, n_samples: int = 1) -> NDArray[np.uint8]:
        """Draw rows from the fitted model, (n_samples, n_features)."""
        check_is_fitted(self)
        rng = np.random.default_rng(_draw_seed(self.random_state))
        drawn: NDArray[np.uint8] = check_can_sample(self.fitted_.model).sample(
            self.fitted_.params, n_samples, rng
        )
        return drawn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = self._get_target_name() is not None
        return tags

    def _get_target_name(self) -> str | None:
        """Return what y holds: `SEGMENT`, the name of a per-row column, or None if unused."""
        if hasattr(self.model_class, "predict"):  # a capabilities.Supervised
            return str(getattr(self, "column", SEGMENT))
        dims = (f.metadata["dims"] for f in fields(self.model_class.params))
        return SEGMENT if any("segment" in some for some in dims) else None

    def _check_X(self, X: ArrayLike, **options: Any) -> NDArray[Any]:
        """Check X as scikit-learn does; ones are what is above the threshold, if there is one."""
        given = {"reset": False, "ensure_all_finite": "allow-nan", **options}
        values: NDArray[Any] = validate_data(self, X, **given)
        if self.binarize is None:
            return values
        return np.where(np.isnan(values), np.nan, values > self.binarize)

    def _make_dataset(
        self, values: NDArray[Any], y: ArrayLike | None, segments: ArrayLike | None
    ) -> MemoryDataset:
        """Pack rows; where no segment is given, theirs has no name."""
        keep, takes = {}, self._get_target_name()
        if takes is not None and y is not None:
            y = column_or_1d(y)
            check_consistent_length(values, y)
            if takes != SEGMENT:
                keep = {takes: y}
            elif segments is None:
                segments = y
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(values.shape[1])])
        dataset = make_memory_dataset(
            make_binary_table(values, names, segments, keep, remedy=_REMEDY)
        )
        return dataset if segments is not None else replace(dataset, segment_names=("",))

    def _compute_codes(
        self, values: NDArray[Any], segments: ArrayLike | None
    ) -> NDArray[np.float64]:
        dataset, executor = self._make_dataset(values, None, segments), make_executor(self.n_jobs)
        codes = api.transform(self.fitted_, dataset, seed=self.seed_, executor=executor)
        mean: NDArray[np.float64] = codes["mean"]
        return mean


def make_estimators() -> dict[str, type[ModelEstimator]]:
    """Return the estimators of all models, by class name."""
    return {kind.__name__: _make_estimator(kind) for kind in find_models().values()}


@cache
def _make_estimator(kind: type[Model]) -> type[ModelEstimator]:
    """Make the estimator of a model: a class whose arguments are the model's settings."""
    settings = [(p.name, p.annotation, p.default) for p in signature(kind).parameters.values()]
    common = [(name, Any, None) for name in _COMMON_SETTINGS]
    made = make_dataclass(
        kind.__name__,
        [*settings, *common],
        bases=(ModelEstimator,),
        namespace={"model_class": kind, "__doc__": _make_docstring(kind)},
        kw_only=True,
        eq=False,
        repr=False,
    )
    made.__module__ = __name__  # where pickles find it
    return made


def _make_docstring(kind: type[Model]) -> str:
    """Describe the arguments of an estimator in numpydoc format."""
    title = cleandoc(kind.__doc__ or "").partition("\n")[0].removeprefix("Hyperparameters of ")
    described = describe_settings(kind)
    told = {name: described[name] for name in signature(kind).parameters} | _COMMON_SETTINGS
    lines = (f"{name}\n{indent(fill(said, 84), '    ')}\n" for name, said in told.items())
    return f"Estimator of {title}\n\nParameters\n----------\n{''.join(lines)}"


def _require_target(name: str, y: ArrayLike | None, what: str) -> ArrayLike:
    if y is None:
        raise FitError(
            f"{name} requires y to be passed, but the target y is None. Give the {what} of each "
            "row as y."
        )
    return y


def _draw_seed(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def __getattr__(name: str) -> type[ModelEstimator]:
    """Return an estimator by name."""
    if name.startswith("_") or name not in (known := make_estimators()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return known[name]
