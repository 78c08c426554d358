"""A scikit-learn estimator for each model, such as `ClippedPCA` and `LatentTrait`.

The arguments are the model's settings, and `binarize`, `random_state` and `n_jobs`, which all
estimators have. X is dense; NaN marks missing values. After `fit`, `fitted_` holds the result of
`latentbits.functions.fit`.

Models of segments (BLICA, BinaryICALikelihood, LinearIVAE, Bottleneck) take y as the segment of
each row, because pipelines and grid searches pass y to every step. If y is something else, such as
the class that a later step predicts, pass the segments separately:
`pipe.fit(X, y, blica__segments=s)`. If the rows are in the order of time, `n_segments` divides them
into segments of equal length. `transform` has no y; without `segments` it uses the mean over the
fitted segments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, make_dataclass, replace
from functools import cache
from inspect import cleandoc, signature
from numbers import Integral, Real
from textwrap import fill, indent
from typing import Any, ClassVar, Literal, Self
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from latentbits import functions as api
from pipeline.data.batches import (
    RowBatches,
    is_lazy_frame,
    is_read_in_batches,
    is_sparse,
    list_columns,
    open_array,
    open_frame,
)
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.tables import iter_numbers, make_tables
from pipeline.errors import FitError
from pipeline.executors.base import make_executor
from pipeline.inference.transform import describe_codes
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
_SEGMENT_SETTINGS = {
    "n_segments": "Number of segments of equal length to divide the rows into, in their order, "
    "such as time bins; None takes the segments from y.",
}
"""Descriptions of the arguments of estimators with parameters per segment."""
_COMMON_SETTINGS = {
    "binarize": "Values above it become 1, all others 0; `mean` takes the mean of each feature "
    "over the fitted rows, None accepts only 0 and 1.",
    "random_state": "Seed of all random draws, a RandomState, or None for NumPy's global state.",
    "n_jobs": "Number of threads; None is 1, -1 one per CPU. Results do not depend on it.",
}
"""Descriptions of the arguments that all estimators have."""
_WARNED_TEXTS: set[str] = set()
_REMEDY = "Use binarize=T to read values above T as ones."


def _has_capability(*capabilities: type) -> Callable[[Any], bool]:
    """Return a check that an estimator's model has any of these capabilities."""
    return lambda estimator: issubclass(estimator.model_class, capabilities)


class ModelEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of the estimators of all models.

    Attributes
    ----------
    fitted_
        The fitted model, a `latentbits.fitted.Fitted`; `fitted_.params` holds its arrays.
    n_iter_
        Number of passes over the rows in the last stage of the fit.
    binarize_
        Threshold of each feature, (n_features,); only with `binarize`.
    """

    model_class: ClassVar[type[Any]]
    n_components: int | str | None
    n_segments: int | None
    binarize: float | Literal["mean"] | None
    random_state: Any
    n_jobs: int | None

    def fit(self, X: Any, y: ArrayLike | None = None, segments: ArrayLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X
            0, 1 or NaN, unless `binarize` is given, (n_samples, n_features).
        y
            Segments for models of segments, or labels to predict; other models ignore it.
        segments
            Segment of each row, (n_samples,), instead of y.

        Raises
        ------
        ValueError
            If the data or a setting cannot be used.
        """
        rows = self._check_X(X, is_fit=True)
        if segments is None:
            segments = self._divide_rows(rows.n_rows)
        target_name = self._get_target_name()
        target = segments if target_name == SEGMENT else y
        if target_name is not None and target is None and y is None:
            raise FitError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                f"Pass the {target_name} of each row as y."
            )
        settings = {name: getattr(self, name) for name in list_hyperparameters(self.model_class)}
        self.seed_ = _draw_seed(self.random_state)
        self.fitted_ = api.fit_with_argument_names(
            _ARGUMENT_NAMES,
            self._make_dataset(rows, y, segments),
            self.model_class.name,
            components=self.n_components,
            seed=self.seed_,
            executor=make_executor(self.n_jobs),
            settings=settings,
        )
        caller = sys._getframe(1).f_globals.get("__name__", "")
        for text in self.fitted_.warnings:
            # scikit-learn resets the filters for every fold, which would repeat the warning.
            if not (caller.startswith("sklearn.") and text in _WARNED_TEXTS):
                warn(text, stacklevel=2)
            _WARNED_TEXTS.add(text)
        self.n_iter_ = max(1, len(self.fitted_.history))
        codes = describe_codes(self.fitted_.model, self.fitted_.params, rows.n_features, "float64")
        _, (self._n_features_out,), _ = codes["mean"]
        return self

    def transform(self, X: Any, segments: ArrayLike | None = None) -> NDArray[Any]:
        """Compute the latent codes, (n_samples, n_components), float32 if X is."""
        check_is_fitted(self)
        dataset, executor = (
            self._make_dataset(self._check_X(X), None, segments),
            make_executor(self.n_jobs),
        )
        codes = api.transform(self.fitted_, dataset, seed=self.seed_, executor=executor)["mean"]
        return codes.astype(np.float32) if getattr(X, "dtype", None) == np.float32 else codes

    @available_if(_has_capability(HasLogLikelihood, HasLowerBound))
    def score(self, X: Any, y: ArrayLike | None = None, segments: ArrayLike | None = None) -> float:
        """Compute the mean log-likelihood per row in nats, or an estimate or lower bound of it.

        Parameters
        ----------
        X, y, segments
            As for `fit`; without y and segments, models use the mean over the fitted segments.
        """
        check_is_fitted(self)
        dataset = self._make_dataset(self._check_X(X), y, segments)
        evaluation = api.evaluate_likelihood(
            self.fitted_, dataset, seed=self.seed_, executor=make_executor(self.n_jobs)
        )
        for name in ("log_likelihood", "lower_bound"):
            if name in evaluation:
                return float(evaluation[name])
        reasons = " ".join(evaluation["refusals"])
        raise FitError(f"This {type(self).__name__} fit has no log-likelihood. {reasons}")

    @available_if(_has_capability(CanSample))
    def sample(self, n_samples: int = 1) -> NDArray[np.uint8]:
        """Draw rows from the fitted model, (n_samples, n_features)."""
        check_is_fitted(self)
        rng = np.random.default_rng(_draw_seed(self.random_state))
        X: NDArray[np.uint8] = check_can_sample(self.fitted_.model).sample(
            self.fitted_.params, n_samples, rng
        )
        return X

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = self._get_target_name() is not None
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _get_target_name(self) -> str | None:
        """Return the meaning of y: `SEGMENT`, the name of a per-row column, or None if unused."""
        if hasattr(self.model_class, "predict"):  # a capabilities.CanPredict
            return str(getattr(self, "column", SEGMENT))
        has_segments = _has_segments(self.model_class) and self.n_segments is None
        return SEGMENT if has_segments else None

    def _divide_rows(self, n_rows: int) -> NDArray[Any] | None:
        """Return the segment of each row if `n_segments` asks for equal ones."""
        if not _has_segments(self.model_class) or (n_segments := self.n_segments) is None:
            return None
        if not isinstance(n_segments, Integral) or not 1 <= n_segments <= n_rows // 2:
            raise FitError(
                f"n_segments is {n_segments!r}, but must be a whole number from 1 to half the "
                f"number of rows, {n_rows // 2}."
            )
        return np.arange(n_rows) * int(n_segments) // n_rows + 1

    def _check_X(self, X: Any, is_fit: bool = False) -> RowBatches:
        """Check X as scikit-learn does, and choose the thresholds if there are any."""
        options: dict[str, Any] = {"reset": is_fit}
        if is_lazy_frame(X):
            validate_data(self, X.head(0).collect(), **options, skip_check_array=True)
            rows = open_frame(X, list_columns(X))
        else:
            if is_read_in_batches(X) and not is_sparse(X):
                validate_data(self, X, **options, skip_check_array=True)
            else:
                options |= {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}
                X = validate_data(self, X, **options, ensure_min_samples=0, ensure_min_features=0)
            rows = open_array(X)
        _check_size(rows, 2 if is_fit else 1)
        if is_fit and self.binarize is not None:
            self.binarize_ = self._choose_thresholds(rows)
        return rows

    def _choose_thresholds(self, rows: RowBatches) -> NDArray[np.float64]:
        """Return the threshold of each feature, (n_features,)."""
        if isinstance(self.binarize, Real):
            return np.full(rows.n_features, float(self.binarize))
        if self.binarize != "mean":
            raise FitError(f"binarize must be a number, 'mean' or None, but is {self.binarize!r}.")
        sums, n_observed = np.zeros((2, rows.n_features))
        for values in iter_numbers(rows):
            observed = ~np.isnan(values)
            n_observed += observed.sum(axis=0)
            sums += np.where(observed, values, 0.0).sum(axis=0, dtype=np.float64)
        return np.asarray(sums / np.maximum(n_observed, 1))

    def _make_dataset(
        self, rows: RowBatches, y: ArrayLike | None, segments: ArrayLike | None
    ) -> MemoryDataset:
        """Pack the rows; without segments, all rows belong to a segment without a name."""
        keep, target_name = {}, self._get_target_name()
        if target_name is not None and y is not None:
            targets: NDArray[Any] = column_or_1d(y)
            if len(targets) != rows.n_rows:
                raise FitError(f"y has {len(targets):,} values, but X has {rows.n_rows:,} rows.")
            if target_name != SEGMENT:
                keep = {target_name: targets}
            elif segments is None:
                segments = targets
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(rows.n_features)])
        rule = None if self.binarize is None else self.binarize_
        tables = make_tables(rows, names, segments, keep, rule, _REMEDY)
        dataset = make_memory_dataset(tables)
        return dataset if segments is not None else replace(dataset, segment_names=("",))


def make_estimators() -> dict[str, type[ModelEstimator]]:
    """Return the estimators of all models, by class name."""
    return {kind.__name__: _make_estimator(kind) for kind in find_models().values()}


@cache
def _make_estimator(kind: type[Model]) -> type[ModelEstimator]:
    """Make the estimator class of a model, whose arguments are the model's settings."""
    settings = [(p.name, p.annotation, p.default) for p in signature(kind).parameters.values()]
    common = [(name, Any, None) for name in _list_common_settings(kind)]
    estimator = make_dataclass(
        kind.__name__,
        [*settings, *common],
        bases=(ModelEstimator,),
        namespace={"model_class": kind, "__doc__": _make_docstring(kind)},
        kw_only=True,
        eq=False,
        repr=False,
    )
    estimator.__module__ = __name__  # where pickles find it
    return estimator


def _check_size(rows: RowBatches, min_size: int) -> None:
    """Check the numbers of rows and features, in the words of scikit-learn."""
    for size, name in ((rows.n_rows, "sample"), (rows.n_features, "feature")):
        if size < min_size:
            raise FitError(
                f"Found array with {size} {name}(s) (shape=({rows.n_rows}, {rows.n_features})) "
                f"while a minimum of {min_size} is required."
            )


def _has_segments(kind: type[Model]) -> bool:
    """Return whether a model has parameters per segment."""
    return any("segment" in declared.metadata["dims"] for declared in fields(kind.params))


def _list_common_settings(kind: type[Model]) -> dict[str, str]:
    """Return the arguments that are not settings of the model, and their descriptions."""
    return (_SEGMENT_SETTINGS if _has_segments(kind) else {}) | _COMMON_SETTINGS


def _make_docstring(kind: type[Model]) -> str:
    """Describe the arguments of an estimator in numpydoc format."""
    title = cleandoc(kind.__doc__ or "").partition("\n")[0].removeprefix("Hyperparameters of ")
    settings = describe_settings(kind)
    texts = {name: settings[name] for name in signature(kind).parameters}
    texts |= _list_common_settings(kind)
    lines = (f"{name}\n{indent(fill(text, 84), '    ')}\n" for name, text in texts.items())
    return f"Estimator of {title}\n\nParameters\n----------\n{''.join(lines)}"


def _draw_seed(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def __getattr__(name: str) -> type[ModelEstimator]:
    """Return an estimator by name."""
    if name.startswith("_") or name not in (estimators := make_estimators()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return estimators[name]
