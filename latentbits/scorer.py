"""Latent codes of single rows, for services that answer one request at a time.

Also the items to ask a row next, and the difference of two rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from latentbits.fitted import Fitted, FittedEstimator, LatentCodes, find_fitted
from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.features import BINARY_LEVELS, find_continuous, restore_names, split_values
from pipeline.data.matching import UNKNOWN_SEGMENT, find_segment_index, map_fitted_segments
from pipeline.data.plane_views import view_as_fitted
from pipeline.data.tables import (
    BinaryTable,
    convert_frame,
    convert_numbers,
    convert_values,
    join_tables,
    wrap_frame,
)
from pipeline.errors import FitError, format_suggestion
from pipeline.evaluation.ranking import Contrast, compare_scores, select_scores
from pipeline.executors.base import limit_blas_threads, make_executor
from pipeline.inference.next_items import (
    ItemBank,
    ItemLimits,
    NextItems,
    ScorePrediction,
    choose_next_items,
    make_item_bank,
)
from pipeline.inference.sequences import condition_block
from pipeline.inference.transform import cast_for_storage
from pipeline.models.capabilities import ScoreKind, check_can_score
from pipeline.params import label_positions
from pipeline.random import RowRandom
from storage.display import list_trait_names

if TYPE_CHECKING:
    from storage.stores.locations import AnyPath

_VALUES_REMEDY = "Pass one of these values."
_ROW_REMEDY = "Pass one row as a dictionary {feature: value}, or several as a data frame."
_Columns = dict[str, list[tuple[tuple[int, ...], str]]]
_MAX_SHOWN = 60  # characters of a name that an error shows


class Scorer:
    """Computes the latent codes of rows, by the names of their features.

    The work is done on the calling thread. Any number of threads can use one scorer, and get the
    bytes that one thread would get.

    Parameters
    ----------
    model
        Folder of an artifact, folder of runs (the latest run is used), result of `fit`, or fitted
        estimator. The folder is read once: create another scorer after another fit.

    Attributes
    ----------
    fitted
        The fitted model, with `feature_names` and `warnings`.

    Raises
    ------
    ValueError
        If there is no complete artifact, or it is from another version.

    Examples
    --------
    >>> scorer = Scorer("runs/votes")  # doctest: +SKIP
    >>> scorer({"call_1": 1, "call_2": 0, "call_3": None})  # doctest: +SKIP
    {'mean_1': 0.62, 'mean_2': -0.31, 'variance_1': 0.4, 'variance_2': 0.5, 'converged': True}
    """

    def __init__(self, model: Fitted | FittedEstimator | str | AnyPath) -> None:
        self.fitted = fitted = find_fitted(model)
        if "covariates" in fitted.manifest:
            raise FitError(
                "The fit has covariates, which a Scorer does not read. Use `transform`, or fit "
                "without them."
            )
        self._features = restore_names(fitted.features, fitted.manifest)
        self._names = tuple(feature.name for feature in self._features)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._segments = map_fitted_segments(fitted.params, fitted.segment_names)
        self._rng = RowRandom(0)
        self._item_banks: dict[int, ItemBank] = {}
        self._levels = {f.name: f.levels for f in self._features if f.levels != BINARY_LEVELS}
        self._continuous = find_continuous(self._features)
        self._reversed = [
            place for name, place in self._places.items() if name != fitted.feature_names[place]
        ]
        # Compiled code is loaded now, with and without missing values, not by the first row.
        some = np.eye(1, len(self._places), dtype=np.uint8)
        numbers = self._make_numbers(1)
        for observed in (None, some):
            codes = self._compute_codes(self._pack(some, observed, UNKNOWN_SEGMENT, numbers))
        self._columns = {"eap": self._list_columns(codes)}

    def _list_columns(self, codes: Mapping[str, NDArray[Any]]) -> _Columns:
        """Return the name of each number of the codes of a row, by array, with its place."""
        own = dict.fromkeys(("score", "standard_error"), ("component",))
        dims, names = (
            {**own, **self.fitted.model.codes},
            {
                "feature": self.fitted.feature_names,
                **list_trait_names(self.fitted.manifest),
            },
        )
        return {
            array: [
                (index, array + suffix)
                for index, suffix in label_positions(
                    dims.get(array, ())[: values.ndim - 1], values.shape[1:], names
                )
            ]
            for array, values in codes.items()
        }

    @overload
    def __call__(
        self, rows: Mapping[str, Any], segment: str | None = None, *, scores: ScoreKind = "eap"
    ) -> dict[str, float | bool]: ...

    @overload
    def __call__(
        self, rows: Any, segment: str | None = None, *, scores: ScoreKind = "eap"
    ) -> LatentCodes: ...

    def __call__(self, rows: Any, segment: str | None = None, *, scores: ScoreKind = "eap") -> Any:
        """Compute the latent codes of one row or of a data frame.

        Parameters
        ----------
        rows
            One row: a dictionary from names of features to 0, 1, True, False, a level of the
            feature, a number if it is continuous, or a missing value (None, NaN). Or a data frame
            of pandas, Polars and others, with a column per feature.
            Features that are absent are missing; their order does not matter.
        segment
            Name of the segment of all rows, or of their group if the fit has groups. None takes the
            mean of the fitted segments. Models without segments ignore it.
        scores
            How to score rows by a latent-trait fit, as for `latentbits.transform`: "eap", "map",
            "ml", "wle" or "sum". Except for "eap", the numbers are `score_1`, `standard_error_1`, …

        Returns
        -------
        dict or LatentCodes
            For one row, numbers by name, such as `mean_1` and `variance_1` of the first component:
            the columns of a table of codes. For a data frame, the arrays of `latentbits.transform`,
            such as `mean`, (n_rows, n_components). The numbers equal the result of `transform`; a
            model that draws random numbers draws them as for a dataset with the same rows.

        Raises
        ------
        FitError
            If a feature, a level or the segment is unknown, a value is neither 0 nor 1 nor missing,
            or a row has no observed value. It is a ValueError.
        """
        index = self._find_segment(segment)
        if not isinstance(rows, Mapping):
            return self._score_frame(rows, segment, scores)
        codes = self._compute_codes(self._pack_row(rows, index), scores)
        if scores not in self._columns:
            self._columns[scores] = self._list_columns(codes)
        return {
            column: codes[array][(0, *position)].item()
            for array, columns in self._columns[scores].items()
            for position, column in columns
        }

    def next_items(
        self,
        answers: Mapping[str, Any],
        n: int = 1,
        *,
        exclude: Collection[str] = (),
        content: Mapping[str, str] | None = None,
        shares: Mapping[str, float] | None = None,
        exposure: Mapping[str, float] | None = None,
        max_exposure: float = 1.0,
        max_error: float = 0.0,
        segment: str | None = None,
    ) -> NextItems:
        """Choose the items to ask next in an adaptive test of one trait.

        The items are those with the largest expected Fisher information under the posterior of the
        trait, given the answers so far. Items that have an answer are not chosen again.

        Parameters
        ----------
        answers
            The answers so far, as for a row of a call; `{}` before the first one.
        n
            Number of items.
        exclude
            Names of items that are not asked.
        content
            Content group of each item, such as `{"q1": "algebra", "q2": "geometry"}`. The next item
            is from the group that is furthest below its share. Items that are not named are a group
            of their own.
        shares
            Share of each content group in a test, such as `{"algebra": 2, "geometry": 1}`; items of
            groups without a share are not asked. None takes the shares in the fit.
        exposure
            Share of earlier tests that had an item, such as `{"q1": 0.3}`; 0 for all others.
        max_exposure
            Items with this exposure or more are not asked.
        max_error
            The test is done once the standard error of the trait is at most this.
        segment
            As for a call.

        Returns
        -------
        NextItems
            `items`, their `information`, `mean` and `error` of the trait so far, and `is_done`.

        Raises
        ------
        FitError
            If the fit has several traits, an item, a level or the segment is unknown, or a number
            is out of range.

        Examples
        --------
        >>> scorer = Scorer("runs/benchmark")  # doctest: +SKIP
        >>> scorer.next_items({"q7": 1, "q3": 0}, max_error=0.3).items  # doctest: +SKIP
        ('q12',)
        """
        bank = self._get_item_bank(self._find_segment(segment))
        limits = ItemLimits(exclude, content, shares, exposure, max_exposure)
        found = dict(bank.find_answers(answers))
        for place in {*self._reversed} & found.keys():
            found[place] = self._features[place].n_planes - found[place]  # 0 planes: the sign
        return choose_next_items(bank, found, n, limits, max_error)

    def predict_score(
        self, answers: Mapping[str, Any], *, segment: str | None = None
    ) -> ScorePrediction:
        """Predict the score of all items from some answers, such as the accuracy on a benchmark.

        Parameters
        ----------
        answers, segment
            As for `next_items`.

        Returns
        -------
        ScorePrediction
            `score`, its standard error `error`, and the `maximum`. The error includes that of the
            trait and the chance of each answer that is not known.

        Raises
        ------
        FitError
            If the fit has several traits, or an item, a level or the segment is unknown.

        Examples
        --------
        >>> found = scorer.predict_score({"q7": 1, "q3": 0})  # doctest: +SKIP
        >>> found.score / found.maximum  # the accuracy, of binary items  # doctest: +SKIP
        0.62
        """
        bank = self._get_item_bank(self._find_segment(segment))
        return bank.predict_score(bank.find_answers(answers))

    def _get_item_bank(self, segment: int) -> ItemBank:
        if segment not in self._item_banks:
            fitted = self.fitted
            bank = make_item_bank(fitted.model, fitted.params, self._features, segment)
            self._item_banks[segment] = bank
        return self._item_banks[segment]

    def _pack_row(self, row: Mapping[str, Any], segment: int) -> BinaryBlock:
        self._check_features(row)
        values = np.full((1, len(self._places)), None, object)
        for name, value in row.items():
            values[0, self._places[name]] = value
        names = self._names
        X, observed = convert_values(values, names, None, _VALUES_REMEDY, 0, self._levels)
        numbers = convert_numbers(values, names, 0, self._levels)
        self._check_rows_observed(observed, numbers)
        return self._pack(X, observed, segment, numbers)

    def _make_numbers(self, n_rows: int) -> NDArray[np.float32] | None:
        """Return missing values of the continuous features; None if there are none."""
        if not self._continuous:
            return None
        return np.full((n_rows, len(self._continuous)), np.nan, np.float32)

    def _pack(
        self,
        X: NDArray[np.uint8],
        observed: NDArray[np.uint8] | None,
        segment: int,
        numbers: NDArray[np.float32] | None,
    ) -> BinaryBlock:
        X = X.copy()
        for place in self._reversed:
            if numbers is not None and place in self._continuous:
                numbers[:, self._continuous.index(place)] *= -1
            else:
                X[:, place] = self._features[place].n_planes - X[:, place]
        if self._levels:
            X, observed = split_values(X, observed, self._features)
        columns = None if numbers is None else np.ascontiguousarray(numbers.T)
        return pack_block(X, observed, segment, numbers=columns)

    def _compute_codes(
        self, block: BinaryBlock, scores: ScoreKind = "eap"
    ) -> dict[str, NDArray[Any]]:
        model, params = self.fitted.model, self.fitted.params
        with limit_blas_threads():
            if scores == "eap":
                rows = condition_block(model, params, block)
                codes = model.transform(params, rows, self._rng)
            else:
                codes = check_can_score(model, params, scores).score_rows(params, block, scores)
        is_finite = codes.get("is_finite", True)
        return {
            name: cast_for_storage(name, values, block.rows, "float64", is_finite)
            for name, values in codes.items()
        }

    def _score_frame(self, df: Any, segment: str | None, scores: ScoreKind) -> LatentCodes:
        from latentbits.functions import transform_dataset  # imports evaluation too: half a second

        dataset = self._make_dataset(df, segment or "")
        return transform_dataset(self.fitted, dataset, scores=scores, executor=make_executor(1))

    def _make_dataset(self, df: Any, segment: str) -> MemoryDataset:
        frame = wrap_frame(df, _ROW_REMEDY)
        self._check_features(map(str, frame.columns))
        tables = convert_frame(frame, None, (), remedy=_VALUES_REMEDY)
        table = join_tables([*replace(tables, levels=self._levels, nominal=frozenset())])
        X, observed = np.zeros((2, len(table.X), len(self._places)), np.uint8)
        places = [self._places[name] for name in table.feature_names]
        X[:, places] = table.X
        observed[:, places] = 1 if table.observed is None else table.observed
        numbers = self._make_numbers(len(table.X))
        if numbers is not None and table.numbers is not None:
            own = [place for place in places if place in self._continuous]
            numbers[:, [self._continuous.index(place) for place in own]] = table.numbers
        self._check_rows_observed(observed, numbers)
        mask = None if observed.all() else observed
        names = self._names
        nominal = frozenset(f.name for f in self._features if f.is_nominal)
        whole = BinaryTable(X, mask, names, None, {}, self._levels, numbers, nominal)
        dataset = replace(make_memory_dataset([whole]), segment_names=(segment,))
        return view_as_fitted(dataset, self.fitted.features)

    def _check_rows_observed(
        self, observed: NDArray[np.uint8] | None, numbers: NDArray[np.float32] | None
    ) -> None:
        if observed is None:
            return
        has_values = np.delete(observed, self._continuous, axis=1).any(axis=1)
        if numbers is not None:
            has_values |= ~np.isnan(numbers).all(axis=1)
        if not has_values.all():
            raise FitError(
                f"row {int(np.argmin(has_values)) + 1} (counted from 1) has no observed value. "
                "Pass a value of at least one feature."
            )

    def _check_features(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._places:
                shown = str(name)[:_MAX_SHOWN]
                raise FitError(
                    f"The fit has no feature {shown!r}."
                    f"{format_suggestion(shown, self._places)} Leave out what is not a feature."
                )

    def _find_segment(self, name: str | None) -> int:
        if name is None or not self._segments:
            return UNKNOWN_SEGMENT
        remedy = "Leave it out to use the mean of the fitted segments."
        return find_segment_index(self._segments, name, remedy)


def contrast(
    source: Any,
    row_a: Any,
    row_b: Any,
    *,
    names: Sequence[Any] | None = None,
    component: int = 1,
) -> Contrast:
    """Compare two rows: the difference of their codes, its standard error, z and p.

    Given the fitted parameters, the codes of two rows are independent, so the variance of their
    difference is the sum of their variances. Codes are posterior means, which are drawn towards the
    mean of the population, the more so the fewer values a row has; scores by `scores="wle"` are
    not.

    Parameters
    ----------
    source
        Codes from `transform`, or other scores. Or a fitted model, an estimator after its `fit`,
        the path of a fit, or a `Scorer`, if the rows are dictionaries.
    row_a, row_b
        Places of the rows in the codes, counted from 0, or their names. Or one row each: a
        dictionary from names of features to values, as a `Scorer` takes it.
    names
        Names of the rows of the codes.
    component
        Number of the component, counted from 1.

    Returns
    -------
    Contrast
        `difference` (a minus b), `error`, `z` and the two-sided `p`.

    Raises
    ------
    FitError
        If a row does not exist, or the codes have no variances.

    Examples
    --------
    >>> codes = transform(fitted, frame)  # doctest: +SKIP
    >>> contrast(codes, "model 7", "model 9", names=frame.index).p  # doctest: +SKIP
    0.013
    """
    rows = (row_a, row_b)
    if isinstance(source, LatentCodes):
        places = [_find_row(row, source, names) for row in rows]
        codes: Mapping[str, Any] = {name: values[places] for name, values in source.items()}
    else:
        if not all(isinstance(row, Mapping) for row in rows):
            raise FitError(
                "Pass the codes of the rows, from `transform`, or rows as dictionaries "
                "{feature: value}."
            )
        scorer = source if isinstance(source, Scorer) else Scorer(source)
        scored = [scorer._compute_codes(scorer._pack_row(row, UNKNOWN_SEGMENT)) for row in rows]
        codes = {name: np.concatenate([own[name] for own in scored]) for name in scored[0]}
    if (found := select_scores(codes, component - 1)) is None:
        raise FitError(
            f"{{component}} is {component}, but the codes have no mean and variance of it. Choose "
            "a component of a model whose codes have variances, such as latent-trait."
        )
    scores, variances = (values.tolist() for values in found)
    return compare_scores((scores[0], scores[1]), (variances[0], variances[1]))


def _find_row(row: Any, codes: LatentCodes, names: Sequence[Any] | None) -> int:
    """Return the place of a row, given this place or its name."""
    n = len(next(iter(codes.values())))
    if names is None:
        if not isinstance(row, int | np.integer) or not 0 <= row < n:
            raise FitError(
                f"There is no row {row!r}. Rows are counted from 0 to {n - 1:,}; to call them by "
                "names, pass {names}."
            )
        return int(row)
    texts = [str(name) for name in names]
    if len(texts) != n:
        raise FitError(f"There are {len(texts):,} {{names}}, but {n:,} rows. Pass one per row.")
    if (count := texts.count(str(row))) != 1:
        hint = format_suggestion(str(row), texts) if not count else " Pass its place instead."
        if n_missing := 0 if count else sum(name is None or name != name for name in names):
            hint += (
                f" {n_missing} of the names are missing: pandas takes texts such as None and NA "
                "for missing ones, unless it reads with keep_default_na=False."
            )
        raise FitError(f"{count} rows have the name {str(row)!r}.{hint}")
    return texts.index(str(row))
