"""The base class of the estimators of all models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, TypeVar
from warnings import warn

import numpy as np
from narwhals.dependencies import is_into_dataframe
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import (
    ClassifierTags,
    check_array,
    check_random_state,
    column_or_1d,
    metaestimators,
)
from sklearn.utils.validation import check_is_fitted, validate_data

from latentbits import functions as api
from latentbits.data import handle_absent_chunks
from latentbits.fitted import Fitted
from pipeline.data.batches import (
    RowBatches,
    is_lazy_frame,
    is_read_in_batches,
    is_sparse,
    list_columns,
    open_array,
    open_frame,
    translate_read_errors,
)
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.features import (
    MAX_LEVELS,
    Feature,
    count_planes,
    make_features,
    sum_planes,
)
from pipeline.data.matching import find_segment_indices, map_fitted_segments
from pipeline.data.tables import (
    LevelsByFeature,
    convert_segments,
    iter_numbers,
    list_categories,
    make_tables,
    wrap_frame,
)
from pipeline.errors import LEAVE_OUT, FitError
from pipeline.executors.base import make_executor
from pipeline.fitting.prepare import ESTIMATOR_NAMES, FitRequest
from pipeline.inference.transform import describe_codes
from pipeline.models.base import has_segments
from pipeline.models.capabilities import (
    CanImpute,
    CanReconstruct,
    CanSample,
    HasLogLikelihood,
    HasLowerBound,
    IsMixture,
    ScoreKind,
    check_can_reconstruct,
    check_can_sample,
)
from pipeline.models.settings import AUTO, list_settings
from pipeline.params import get_array, get_named_arrays, list_arrays
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.labels import SEGMENT

_SAMPLE_WEIGHT = "sample_weight"
_ARGUMENT_NAMES = {**ESTIMATOR_NAMES, "segment": "y"}
"""Names of arguments that differ from those of `latentbits.fit`."""
_WARNED_TEXTS: set[str] = set()
_REMEDY = "Use binarize=T to read values above T as ones."
F = TypeVar("F", bound=Callable[..., Any])


def available_if(check: Callable[[Any], bool]) -> Callable[[F], F]:
    """Return scikit-learn's decorator of the same name, which carries no types."""
    decorate: Callable[[F], F] = metaestimators.available_if(check)
    return decorate


def _has_capability(*capabilities: type) -> Callable[[Any], bool]:
    """Return a check that an estimator's model has any of these capabilities."""
    return lambda estimator: issubclass(estimator.model_class, capabilities)


_SCORED = (HasLogLikelihood, HasLowerBound, CanReconstruct)


def _can_score(estimator: Any) -> bool:
    """Return whether the model gives rows a likelihood, or predicts y."""
    return hasattr(estimator.model_class, "predict") or _has_capability(*_SCORED)(estimator)


def _can_add_rows(estimator: Any) -> bool:
    """Return whether the model's only statistics are counts, and the segments do not change."""
    has_counts = issubclass(estimator.model_class().statistics, PairCounts)
    return has_counts and getattr(estimator, "n_segments", None) is None


class ModelEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of the estimators of all models.

    Attributes
    ----------
    fitted_
        The fitted model, a `latentbits.fitted.Fitted`; `fitted_.params` holds its arrays.
    NAME_
        The array NAME of the parameters, such as `weights_`; the model's documentation lists them.
    components_
        Weights of features, (n_components, n_features), if the model has one per feature and
        component.
    converged_
        Whether the last stage of the fit converged.
    n_iter_
        Number of passes over the rows in the last stage of the fit.
    binarize_
        Threshold of each feature, (n_features,); only with `binarize`.
    levels_
        Names of the levels of each feature that has more than two, or other names than 0 and 1.
    nominal_
        Names of the features whose levels are categories without an order.
    """

    model_class: ClassVar[type[Any]]
    n_components: int | str | None
    n_segments: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    fitted_: Fitted
    seed_: int
    n_iter_: int
    converged_: bool
    n_features_in_: int
    feature_names_in_: NDArray[np.str_]
    binarize_: NDArray[np.float64]
    levels_: dict[str, tuple[str, ...]]
    nominal_: frozenset[str]
    _counts: api.RowCounts | None = None

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        segments: ArrayLike | None = None,
        levels: LevelsByFeature = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X
            0, 1 or NaN, unless `binarize` is given, (n_samples, n_features). Models of ordered
            categories also take whole numbers from 0 to 15, and data frames with ordered
            categoricals.
        y
            Segments for models of segments, or labels to predict; other models ignore it.
        segments
            Segment of each row, (n_samples,), instead of y.
        levels
            Ordered values of all features, from the lowest to the highest, or a dictionary of those
            of some features. None takes the order of categoricals, and for whole numbers all from 0
            to the largest of the feature.

        Raises
        ------
        ValueError
            If the data or a setting cannot be used.
        """
        return self._set_fitted(self._fit_rows(X, y, segments, levels))

    def _fit_rows(
        self,
        X: Any,
        y: ArrayLike | None,
        segments: ArrayLike | None,
        levels: LevelsByFeature,
        sample_weight: ArrayLike | None = None,
    ) -> Fitted:
        rows = self._check_X(X, is_fit=True, has_levels=levels is not None)
        weights, asked = None, dict[str, Any]()
        if sample_weight is not None:
            weights = self._check_sample_weight(sample_weight, rows.n_rows)
            kind = "frequency" if _are_whole(weights) else "sampling"
            asked = {"weight": _SAMPLE_WEIGHT, "weights": kind}
        if self.binarize is not None:
            self.binarize_ = self._choose_thresholds(rows, weights)
        self.levels_, self.nominal_ = self._choose_levels(X, rows, levels)
        if segments is None:
            segments = self._divide_rows(rows.n_rows)
        self._check_target(y, segments)
        self.seed_ = _draw_seed(self.random_state)
        dataset = self._make_dataset(rows, y, segments, weights=weights)
        self._counts = None
        can_have_groups = "groups" in self.model_class.support.parts
        has_groups = can_have_groups and not has_segments(self.model_class)
        asked["are_segments_groups"] = has_groups and segments is not None
        with _translate_errors():
            request = self._make_request(**asked)
            return api.run_fit(request, dataset, make_executor(self.n_jobs))

    @available_if(_can_add_rows)
    def partial_fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        segments: ArrayLike | None = None,
        levels: LevelsByFeature = None,
    ) -> Self:
        """Fit to further rows, in addition to those of earlier calls.

        The estimator keeps counts instead of rows, so its memory does not grow. The result has the
        bytes of a fit to all rows at once, except that `binarize="mean"` takes the means of the
        first call. A call that raises an error adds no rows. `fit` forgets the counts.

        Parameters
        ----------
        X, y, segments, levels
            As for `fit`. The first call determines the levels.

        Raises
        ------
        ValueError
            If the data or a setting cannot be used, or the features differ from earlier calls.
        """
        earlier = self._counts
        is_first = earlier is None
        rows = self._check_X(X, is_first, has_levels=is_first and levels is not None)
        self._check_target(y, segments)
        if earlier is None:
            self.levels_, self.nominal_ = self._choose_levels(X, rows, levels)
            if self.binarize is not None:
                self.binarize_ = self._choose_thresholds(rows)
            self.seed_ = _draw_seed(self.random_state)
        dataset = self._make_dataset(rows, y, segments, earlier)
        with _translate_errors():
            fitted, self._counts = api.fit_to_more_rows(
                self._make_request(), dataset, earlier, make_executor(self.n_jobs)
            )
        return self._set_fitted(fitted)

    def _make_request(self, **asked: Any) -> FitRequest:
        settings = {  # those at their defaults are left out: others may follow from `dynamics`
            own.name: value
            for own in list_settings(self.model_class)
            if own.init and own.name != "n_components"
            for value in [getattr(self, own.name)]
            if type(value) is not type(own.default) or value != own.default
        }
        if not self._finds_segments:
            settings.pop("n_segments", None)  # the rows have been divided already
        # None is the default number in `fit`, but the model's choice in estimators.
        components = AUTO if self.n_components is None else self.n_components
        if self.reverse is not None:
            names = self._list_names(self.n_features_in_)
            _, asked["reverse"] = api.choose_fit_features(names, reverse=self.reverse)
        return FitRequest(self.model_class.name, components, settings, seed=self.seed_, **asked)

    def _set_fitted(self, fitted: Fitted) -> Self:
        """Set the fitted attributes, and show the warnings of the fit."""
        fitted = self.fitted_ = replace(fitted, _argument_names=_ARGUMENT_NAMES)
        caller = sys._getframe(2).f_globals.get("__name__", "")
        for text in fitted.warnings:
            # scikit-learn resets the filters for every fold, which would repeat the warning.
            if not (caller.startswith("sklearn.") and text in _WARNED_TEXTS):
                warn(text, stacklevel=3)
            _WARNED_TEXTS.add(text)
        self.n_iter_ = max(1, len(fitted.history))
        self.converged_ = fitted.converged
        n_planes = count_planes(fitted)
        codes = describe_codes(fitted.model, fitted.params, n_planes, "float64")
        _, (self._n_features_out,), _ = codes["mean"]
        for name, values in list_fitted_attributes(fitted.params).items():
            setattr(self, name, values)
        return self

    def transform(
        self, X: Any, segments: ArrayLike | None = None, *, scores: ScoreKind = "eap"
    ) -> NDArray[Any]:
        """Compute the latent codes, (n_samples, n_components), float32 if X is.

        Parameters
        ----------
        X, segments
            As for `fit`.
        scores
            How to score rows, as for `latentbits.transform`: "eap", "map", "ml", "wle" or "sum".
            Models other than LatentTrait have only "eap".
        """
        check_is_fitted(self)
        dataset = self._make_dataset(self._check_X(X), None, segments)
        options: dict[str, Any] = {"seed": self.seed_, "executor": make_executor(self.n_jobs)}
        codes = api.transform(self.fitted_, dataset, scores=scores, **options)
        values = codes["mean"] if scores == "eap" else codes["score"].reshape(len(codes["row"]), -1)
        return _cast_like(X, values)

    @available_if(_has_capability(*_SCORED))
    def score_samples(
        self, X: Any, y: ArrayLike | None = None, segments: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Compute the log-likelihood of each row in nats, or an estimate or lower bound of it.

        Models without a likelihood of rows predict each value from the code of other features,
        every fifth feature at a time; this is the log-likelihood of these predictions.

        Parameters
        ----------
        X, y, segments
            As for `fit`; without y and segments, models use the mean over the fitted segments.

        Returns
        -------
        array, (n_samples,)
        """
        check_is_fitted(self)
        dataset = self._make_dataset(self._check_X(X), y, segments)
        executor = make_executor(self.n_jobs)
        return api.compute_row_likelihoods(self.fitted_, dataset, self.seed_, executor)

    @available_if(_can_score)
    def score(self, X: Any, y: ArrayLike | None = None, segments: ArrayLike | None = None) -> float:
        """Compute the mean of `score_samples`.

        For models that predict y, it is the accuracy, or R² if y are numbers.
        """
        if not hasattr(self.model_class, "predict"):  # a capabilities.CanPredict
            return float(self.score_samples(X, y, segments).mean())
        check_is_fitted(self)
        self._check_target(y, segments)
        dataset = self._make_dataset(self._check_X(X), y, segments)
        found = api.evaluate(self.fitted_, dataset, executor=make_executor(self.n_jobs))
        prediction = found["prediction"]
        return float(prediction["accuracy" if "accuracy" in prediction else "r2"])

    @available_if(_has_capability(CanReconstruct))
    def inverse_transform(self, Z: Any, segments: ArrayLike | None = None) -> NDArray[Any]:
        """Compute P(x = 1 | codes), (n_samples, n_features), float32 if Z is.

        For a feature with several levels, the value is its expected level, counted from 0.

        Parameters
        ----------
        Z
            Codes from `transform`, (n_samples, n_components).
        segments
            Segment of each row, (n_samples,); None takes the mean over the fitted segments.

        Raises
        ------
        ValueError
            If Z has another number of components than the model, or a feature is nominal.
        """
        check_is_fitted(self)
        codes: NDArray[Any] = check_array(Z, dtype=[np.float64, np.float32])
        if codes.shape[1] != self._n_features_out:
            raise FitError(
                f"Z has {codes.shape[1]} components, but {type(self).__name__} is expecting "
                f"{self._n_features_out} components."
            )
        indices = None if segments is None else self._find_segments(segments, len(codes))
        self._check_expected_levels("reconstruct")
        model = check_can_reconstruct(self.fitted_.model)
        values = model.reconstruct(self.fitted_.params, codes.astype(np.float64), indices)
        return self._restore_values(sum_planes(values, self._list_features()).astype(codes.dtype))

    @available_if(_has_capability(CanImpute))
    def impute(self, X: Any, segments: ArrayLike | None = None) -> NDArray[Any]:
        """Fill in missing values, (n_samples, n_features), float32 if X is.

        A missing value becomes P(x = 1 | the observed values of its row). For a feature with
        several levels, it becomes the expected level, counted from 0. Both are exact. Observed
        values are kept, as 0, 1 or levels counted from 0.

        Parameters
        ----------
        X, segments
            As for `fit`.

        Raises
        ------
        ValueError
            If the data cannot be used.
        """
        check_is_fitted(self)
        self._check_expected_levels("impute")
        dataset = self._make_dataset(self._check_X(X), None, segments)
        codes = api.transform(
            self.fitted_,
            dataset,
            impute="expected-levels",
            seed=self.seed_,
            executor=make_executor(self.n_jobs),
        )
        return _cast_like(X, self._restore_values(codes["imputed_expected_levels"]))

    @available_if(_has_capability(IsMixture))
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Compute P(component | x) of each row, (n_samples, n_components)."""
        return np.asarray(self.transform(X))

    @available_if(_has_capability(IsMixture))
    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return the most probable component of each row, counted from 0, (n_samples,)."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    @available_if(_has_capability(IsMixture))
    def aic(self, X: Any) -> float:
        """Compute Akaike's information criterion of the rows; lower is better."""
        nats = self.score_samples(X)
        return float(2 * self._count_parameters() - 2 * nats.sum())

    @available_if(_has_capability(IsMixture))
    def bic(self, X: Any) -> float:
        """Compute the Bayesian information criterion of the rows; lower is better."""
        nats = self.score_samples(X)
        return float(self._count_parameters() * np.log(len(nats)) - 2 * nats.sum())

    def _count_parameters(self) -> int:
        return int(self.fitted_.statistics["n_parameters"])

    @available_if(_has_capability(CanSample))
    def sample(self, n_samples: int = 1) -> NDArray[np.uint8]:
        """Draw rows from the fitted model, (n_samples, n_features): 0, 1, or levels from 0."""
        check_is_fitted(self)
        rng = np.random.default_rng(_draw_seed(self.random_state))
        X: NDArray[np.uint8] = check_can_sample(self.fitted_.model).sample(
            self.fitted_.params, n_samples, rng
        )
        return self._restore_values(sum_planes(X, self._list_features()))

    def _check_expected_levels(self, option: str) -> None:
        """Raise `FitError` if categories of a feature have no expected level."""
        for feature in self._list_features():
            if feature.is_nominal and len(feature.levels) > 2:
                raise FitError(
                    f"Feature {feature.name!r} is nominal, so it has no expected level. Use "
                    f'latentbits.transform(estimator.fitted_, X, {option}="levels") or '
                    f'"probabilities".'
                )

    def _restore_values(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values on the scale of X, (n_samples, n_features); reversed ones are turned."""
        for place, feature in enumerate(self._list_features()):
            if feature.name in self.fitted_.manifest.get("reversed", ()):
                values[:, place] = feature.n_planes - values[:, place]
        return values

    def _list_features(self) -> tuple[Feature, ...]:
        """Return the features of X; those of the fit may be their planes."""
        names = self._list_names(self.n_features_in_)
        return make_features(names, self.levels_, self.nominal_)

    def _list_names(self, n_features: int) -> list[str]:
        return [*getattr(self, "feature_names_in_", [f"x{i}" for i in range(n_features)])]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = self._get_target_name() is not None
        if issubclass(self.model_class, IsMixture):  # components take the place of classes
            tags.classifier_tags = ClassifierTags(multi_class=True)
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _get_target_name(self) -> str | None:
        """Return the meaning of y: `SEGMENT`, the name of a per-row column, or None if unused."""
        if hasattr(self.model_class, "predict"):  # a capabilities.CanPredict
            return str(getattr(self, "column", SEGMENT))
        takes_segments = has_segments(self.model_class) and self.n_segments is None
        return SEGMENT if takes_segments and not self._finds_segments else None

    @property
    def _finds_segments(self) -> bool:
        """Whether the model finds the segments of rows itself."""
        return getattr(self, "segments", None) == AUTO

    def _check_target(self, y: ArrayLike | None, segments: ArrayLike | None) -> None:
        """Check that the segments or labels that the model needs were passed."""
        name = self._get_target_name()
        if name is not None and y is None and (name != SEGMENT or segments is None):
            raise FitError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                f"Pass the {name} of each row as y."
            )

    def _divide_rows(self, n_rows: int) -> NDArray[Any] | None:
        """Return the segment of each row if `n_segments` asks for equal ones."""
        if not has_segments(self.model_class) or self._finds_segments:
            return None
        if (n_segments := self.n_segments) is None:
            return None
        if not isinstance(n_segments, Integral) or not 1 <= n_segments <= n_rows // 2:
            raise FitError(
                f"n_segments is {n_segments!r}, but must be a whole number from 1 to half the "
                f"number of rows, {n_rows // 2}."
            )
        return np.arange(n_rows) * int(n_segments) // n_rows + 1

    def _check_X(self, X: Any, is_fit: bool = False, has_levels: bool = False) -> RowBatches:
        """Check X as scikit-learn does; `has_levels` says that values may be texts."""
        options: dict[str, Any] = {"reset": is_fit}
        if is_lazy_frame(X):
            with translate_read_errors("X"):
                header = X.head(0).collect()
            validate_data(self, header, **options, skip_check_array=True)
            rows = open_frame(X, list_columns(X))
        elif self.binarize is None and (
            any(_list_categories(X)) or (_has_texts(X) and not has_levels)
        ):
            validate_data(self, X, **options, skip_check_array=True)
            frame = wrap_frame(X, "")
            rows = open_frame(frame, list_columns(frame))
        else:
            if has_levels or (not is_fit and self.levels_):
                options["dtype"] = None
            if is_read_in_batches(X) and not is_sparse(X):
                validate_data(self, X, **options, skip_check_array=True)
            else:
                options |= {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}
                X = validate_data(self, X, **options, ensure_min_samples=0, ensure_min_features=0)
            rows = open_array(handle_absent_chunks(X))
        _check_size(rows, 2 if is_fit else 1)
        return rows

    def _choose_levels(
        self, X: Any, rows: RowBatches, levels: LevelsByFeature
    ) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
        """Return the levels of features that are not plain 0 and 1, and the nominal features."""
        nominal: dict[str, Sequence[Any]] = {}
        if self.binarize is not None and levels is None:
            return {}, frozenset()
        names = self._list_names(rows.n_features)
        can_have_levels = "ordinal" in self.model_class.support.features
        if levels is None:
            columns = map(str, rows.feature_names or names)
            named = [*zip(names, columns, strict=True)]
            levels, nominal = (
                {name: own[column] for name, column in named if column in own}
                for own in _list_categories(X)
            )
            largest = _find_largest_codes(rows) if can_have_levels else [0] * len(names)
            levels |= {n: range(k + 1) for n, k in zip(names, largest, strict=True) if k > 1}
            levels = {name: own for name, own in levels.items() if name not in nominal}
        rule = None if self.binarize is None else self.binarize_
        tables = make_tables(rows, names, None, {}, rule, levels=levels, nominal=nominal)
        for name, own in tables.feature_levels.items():
            if len(own) > 2 and not can_have_levels:
                raise FitError(
                    f"Feature {name!r} has {len(own)} levels, but {type(self).__name__} takes only "
                    "binary features. Replace the levels by 0 and 1."
                )
        return tables.feature_levels, tables.nominal_features

    def _check_sample_weight(self, sample_weight: ArrayLike, n_rows: int) -> NDArray[np.float64]:
        """Check weights as scikit-learn does, (n_rows,); the model must be able to use them."""
        weights: NDArray[np.float64] = check_array(
            sample_weight, ensure_2d=False, dtype=np.float64, input_name=_SAMPLE_WEIGHT
        )
        if weights.shape != (n_rows,):
            raise FitError(
                f"sample_weight has the shape {weights.shape}, but X has {n_rows:,} rows. Pass one "
                "weight per row."
            )
        if not weights.any():
            raise FitError("All values of sample_weight are zero. Give some row a weight above 0.")
        return weights

    def _choose_thresholds(
        self, rows: RowBatches, weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the threshold of each feature, (n_features,)."""
        if isinstance(self.binarize, Real):
            return np.full(rows.n_features, float(self.binarize))
        if self.binarize != "mean":
            raise FitError(f"binarize must be a number, 'mean' or None, but is {self.binarize!r}.")
        sums, totals = np.zeros((2, rows.n_features))
        first = 0
        for values in iter_numbers(rows):
            observed = ~np.isnan(values)
            products = np.where(observed, values, 0.0)
            if weights is not None:
                own_weights = weights[first : first + len(values), None]
                observed, products = observed * own_weights, products * own_weights
            totals += observed.sum(axis=0)
            sums += products.sum(axis=0, dtype=np.float64)
            first += len(values)
        return np.asarray(sums / np.where(totals == 0, 1, totals))

    def _find_segments(self, segments: ArrayLike, n_rows: int) -> NDArray[np.int64]:
        """Return the model's index of each row's segment."""
        fitted_segments = map_fitted_segments(self.fitted_.params, self.fitted_.segment_names)
        return find_segment_indices(fitted_segments, convert_segments(segments, n_rows).tolist())

    def _make_dataset(
        self,
        rows: RowBatches,
        y: ArrayLike | None,
        segments: ArrayLike | None,
        earlier: api.RowCounts | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> MemoryDataset:
        """Pack the rows, which may have weights and may continue earlier ones.

        Without segments, all rows belong to a segment without a name.
        """
        keep: dict[str, NDArray[Any]] = {} if weights is None else {_SAMPLE_WEIGHT: weights}
        target_name = self._get_target_name()
        if target_name is not None and y is not None:
            targets: NDArray[Any] = column_or_1d(y)
            if len(targets) != rows.n_rows:
                raise FitError(f"y has {len(targets):,} values, but X has {rows.n_rows:,} rows.")
            if target_name != SEGMENT:
                keep[target_name] = targets
            elif segments is None:
                segments = targets
        names = self._list_names(rows.n_features)
        rule = None if self.binarize is None else self.binarize_
        remedy = _REMEDY
        if "ordinal" in self.model_class.support.features:
            remedy += " Pass levels to fit if other values are possible."
        if "continuous" in self.model_class.support.features:
            remedy += " Estimators do not take continuous features; latentbits.fit does."
        tables = make_tables(rows, names, segments, keep, rule, remedy, self.levels_ or None)
        tables = replace(tables, nominal=self.nominal_)
        n_earlier = earlier.first.n_rows if earlier else 0
        if segments is None:
            return replace(make_memory_dataset(tables, (), n_earlier), segment_names=("",))
        return make_memory_dataset(tables, earlier.segment_names if earlier else (), n_earlier)


class WeightedModelEstimator(ModelEstimator):
    """Base class of the estimators of models that can use weights of rows."""

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        segments: ArrayLike | None = None,
        levels: LevelsByFeature = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X
            As for `ModelEstimator.fit`.
        y
            Ignored.
        sample_weight
            Weight of each row, (n_samples,). Whole numbers count equal rows: the fit is that of the
            repeated rows. If some weight is not whole, all of them are sampling weights, whose size
            does not matter. None gives every row the weight 1.
        segments
            Group of each row, (n_samples,), for models with parameters by group.
        levels
            As for `ModelEstimator.fit`.

        Raises
        ------
        ValueError
            If the data, a weight or a setting cannot be used.
        """
        return self._set_fitted(self._fit_rows(X, y, segments, levels, sample_weight))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors so that they use the names of the arguments of estimators."""
    try:
        yield
    except FitError as error:
        # Estimators take all columns of X: they have no argument `drop`.
        text = error.message.text.replace(LEAVE_OUT, "Leave their columns out of X")
        own = type(error).from_message(replace(error.message, text=text))
        raise own.with_parameter_names(_ARGUMENT_NAMES) from None


def _check_size(rows: RowBatches, min_size: int) -> None:
    """Check the numbers of rows and features, in the words of scikit-learn."""
    for size, name in ((rows.n_rows, "sample"), (rows.n_features, "feature")):
        if size < min_size:
            raise FitError(
                f"Found array with {size} {name}(s) (shape=({rows.n_rows}, {rows.n_features})) "
                f"while a minimum of {min_size} is required."
            )


def _list_categories(X: Any) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[Any]]]:
    """Return the categories of ordered and of other categoricals of a data frame, if X is one."""
    if is_lazy_frame(X):
        return list_categories(X, list_columns(X))
    if not is_into_dataframe(X):
        return {}, {}
    frame = wrap_frame(X, "")
    return list_categories(frame, list_columns(frame))


def _has_texts(X: Any) -> bool:
    """Return whether a data frame has columns of texts, such as yes and no."""
    if not is_into_dataframe(X):
        return False
    import narwhals as nw  # only data frames need it

    kinds = (nw.String, nw.Categorical, nw.Enum, nw.Object)
    return any(isinstance(kind, kinds) for kind in wrap_frame(X, "").schema.values())


def _find_largest_codes(rows: RowBatches) -> NDArray[np.int64]:
    """Return the largest value of each feature, (n_features,); 0 if some value cannot be a code."""
    largest = np.zeros(rows.n_features)
    are_codes = np.ones(rows.n_features, bool)
    for values in iter_numbers(rows):
        if not (values > 1).any():  # nearly all data are binary
            continue
        is_code = np.isnan(values) | (
            (values >= 0) & (values < MAX_LEVELS) & (values == np.rint(values))
        )
        are_codes &= is_code.all(axis=0)
        np.fmax(largest, np.fmax.reduce(values, axis=0, initial=0), out=largest)
    return np.where(are_codes, largest, 0).astype(np.int64)


def _are_whole(values: NDArray[np.float64]) -> bool:
    return bool((values == np.rint(values)).all())


def _cast_like(X: Any, values: NDArray[Any]) -> NDArray[Any]:
    """Return float32 if X is."""
    return values.astype(np.float32) if getattr(X, "dtype", None) == np.float32 else values


def _draw_seed(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def list_fitted_attributes(params: Any) -> dict[str, Any]:
    """Return the arrays of parameters with the names of scikit-learn.

    `NAME_` is the array NAME, None if it was not computed. `components_` is the first one with a
    value per feature and component, (n_components, n_features).
    """
    attributes = {f"{name}_": get_array(params, name) for name in list_arrays(type(params))}
    for dims, values in get_named_arrays(params).values():
        if sorted(dims) == ["component", "feature"]:
            attributes["components_"] = values if dims[0] == "component" else values.T
            break
    return attributes
