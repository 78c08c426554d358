"""Covariates of rows: numbers as they are, and levels as dummies against a reference level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.column_coders import ColumnCoder, make_level_coder, parse_level
from pipeline.data.weights import ColumnPart
from pipeline.errors import FitError, FitWarning, format_share

Array = NDArray[np.float64]

_MAX_LEVELS = 1000
_MIN_LEVEL_ROWS = 2
_MAX_DISTANCE, _MAX_TRIMS = 6.0, 5  # of values from their mean, in standard deviations; rounds
MAX_FIRST_COVARIATE = 6.0
"""Largest standardized covariate in the first stage of fits with rows of high leverage."""
_MIN_LEVERAGE = 0.1  # of the variance of a covariate in a single row
_MIN_OWN_SHARE = 1e-9  # of a covariate's variance that is not explained by the ones before it


@dataclass(frozen=True)
class CovariateColumn:
    """A per-row column that holds a covariate.

    Attributes
    ----------
    name
        Its name.
    levels
        Its values if they are levels, the reference level first; empty if they are numbers.
    """

    name: str
    levels: tuple[str, ...] = ()

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of its coefficients: of the column, or of each level but the reference."""
        return tuple(f"{self.name}={level}" for level in self.levels[1:]) or (self.name,)


class Leverage(NamedTuple):
    """A row with a large part of a covariate's variance."""

    name: str
    row: int
    value: float
    share: float


@dataclass(frozen=True)
class Covariates:
    """The covariates of all rows of a fit; `measure_covariates` creates it.

    Attributes
    ----------
    columns
        Their columns.
    means, deviations
        Weighted mean and standard deviation of each coded covariate, (n_covariates,), without
        values more than 6 standard deviations from the mean.
    leverages
        Rows, counted from 1, that have a large part of a covariate's variance alone: the name of
        the covariate, the row, its value, and its share of the variance.
    """

    columns: tuple[CovariateColumn, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    leverages: tuple[Leverage, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients, (n_covariates,)."""
        return tuple(name for column in self.columns for name in column.coefficient_names)

    def make_warnings(self) -> tuple[FitWarning, ...]:
        """Return a warning that names the rows of high leverage, if there are any."""
        if not self.leverages:
            return ()
        named = [
            f"row {row} ({name} is {value:g}, {format_share(share)} of its variance)"
            for name, row, value, share in self.leverages
        ]
        text = (
            "a few rows nearly decide the coefficients of covariates, or count as outliers: "
            f"{'; '.join(named)}. Check these values, or transform the covariate"
        )
        return (FitWarning(text, parameter="covariates"),)

    def describe(self) -> dict[str, Any]:
        """Describe the covariates for a manifest."""
        return {**asdict(self), "names": self.names}


def read_covariates(manifest: Mapping[str, Any]) -> Covariates | None:
    """Read the covariates of a fit from its manifest; None if it has none."""
    if (record := manifest.get("covariates")) is None:
        return None
    columns = tuple(
        CovariateColumn(column["name"], tuple(column["levels"])) for column in record["columns"]
    )
    leverages = tuple(Leverage(*own) for own in record.get("leverages", ()))
    return Covariates(columns, tuple(record["means"]), tuple(record["deviations"]), leverages)


def have_same_columns(one: Covariates | None, other: Covariates | None) -> bool:
    """Return whether two fits have the same covariates, coded alike."""
    return (one and one.columns) == (other and other.columns)


class ColumnRequest(NamedTuple):
    """A column to use as a covariate, and its reference level if one is named."""

    name: str
    reference: str | None = None


class CovariateSource(NamedTuple):
    """Reads the rows to fit: each function returns the parts of a per-row column, in order.

    Attributes
    ----------
    read_numbers, read_codes
        Of a column, with the texts parsed as numbers or as codes, -1 if missing.
    levels
        The texts of the columns that are stored as codes, in the order of the codes.
    weights
        Returns the weights of the rows, part by part; None if all rows count alike. Rows of weight
        0 are not used.
    are_frequencies
        Whether a row of weight n stands for n equal rows.
    """

    read_numbers: Callable[[str], Iterable[ColumnPart]]
    read_codes: Callable[[str], Iterable[ColumnPart]]
    levels: Mapping[str, Iterable[str]]
    weights: Callable[[], Iterable[Array]] | None = None
    are_frequencies: bool = True

    def iter_column(self, name: str, is_number: bool) -> Iterator[tuple[ColumnPart, Array]]:
        """Yield the rows, values and weights of the rows with a weight above 0."""
        parts = self.read_numbers(name) if is_number else self.read_codes(name)
        weights = None if self.weights is None else iter(self.weights())
        for rows, values in parts:
            own = np.ones(len(rows)) if weights is None else next(weights)
            is_used = own > 0
            yield (rows[is_used], values[is_used]), own[is_used]


def make_covariate_coder(
    column: CovariateColumn, levels: Mapping[str, Iterable[str]]
) -> ColumnCoder:
    """Make the coder of a column, given the texts of the columns of a dataset.

    The numbers of a level are its dummies; those of unknown levels are NaN.
    """
    if not column.levels:
        return ColumnCoder(column.name)
    n_dummies = len(column.levels) - 1
    dummies = np.vstack([np.zeros(n_dummies), np.eye(n_dummies), np.full(n_dummies, np.nan)])
    return make_level_coder(column.name, column.levels, dummies, levels.get(column.name))


def measure_covariates(requests: Sequence[ColumnRequest], source: CovariateSource) -> Covariates:
    """Check the covariates of all rows, and choose their coding.

    Values are numbers unless most of them are texts that are none, or a reference level is named.
    The reference is the first level in alphabetical or numerical order unless it is named.

    Raises
    ------
    FitError
        If a value is missing or infinite, or a covariate is constant or a combination of others; if
        a reference level is unknown, or a level has a single row.
    """
    columns = tuple(_measure_column(request, source) for request in requests)
    covariates = Covariates(columns, (), ())
    all_rows = _sum_moments(columns, source, None)
    _check_covariance(covariates.names, all_rows.mean, all_rows.covariance)
    # Levels have no outliers; nor do numbers that are the same in all rows but a few.
    may_be_far = np.array(
        [not column.levels for column in columns for _ in column.coefficient_names]
    )
    moments = all_rows
    for _ in range(_MAX_TRIMS):
        limits = _make_limits(moments, may_be_far)
        trimmed = _sum_moments(columns, source, limits)
        is_constant = ~(np.diag(trimmed.covariance) > 0)
        if is_constant.any():
            may_be_far &= ~is_constant
            moments = all_rows
        elif trimmed.n_outside == moments.n_outside:
            break
        else:
            moments = trimmed
    limits = _make_limits(moments, may_be_far)
    leverages: list[Leverage] = []
    if moments.n_outside:
        for rows, z, own_weights in _iter_coded(columns, source):
            shares = own_weights[:, None] * (z - all_rows.mean) ** 2
            shares /= all_rows.weight * np.diag(all_rows.covariance)
            is_high = limits.find_outside(z) & (shares > _MIN_LEVERAGE)
            for place, k in np.argwhere(is_high).tolist():
                value, share = float(z[place, k]), float(shares[place, k])
                leverages.append(Leverage(covariates.names[k], int(rows[place]) + 1, value, share))
    return replace(
        covariates,
        means=tuple(moments.mean.tolist()),
        deviations=tuple(np.sqrt(np.diag(moments.covariance)).tolist()),
        leverages=tuple(leverages),
    )


class _Limits(NamedTuple):
    """The range of values that count, each (n_covariates,)."""

    middle: Array
    reach: Array

    def find_outside(self, z: Array) -> NDArray[np.bool_]:
        """Return which values lie outside, (n_rows, n_covariates)."""
        return np.asarray(np.abs(z - self.middle) > self.reach)


def _make_limits(moments: _Moments, may_be_far: NDArray[np.bool_]) -> _Limits:
    reach = _MAX_DISTANCE * np.sqrt(np.maximum(np.diag(moments.covariance), 0.0))
    return _Limits(moments.mean, np.where(may_be_far, reach, np.inf))


class _Moments(NamedTuple):
    """Weighted mean and covariance of covariates, sum of weights, and number of values left out."""

    mean: Array
    covariance: Array
    weight: float
    n_outside: int


def _sum_moments(
    columns: Sequence[CovariateColumn], source: CovariateSource, limits: _Limits | None
) -> _Moments:
    """Compute the moments of coded covariates; values outside the limits are left out."""
    p = len(Covariates(tuple(columns), (), ()).names)
    total, first, squares = np.zeros(p), np.zeros(p), np.zeros((p, p))
    weights, weight, n_outside = np.zeros((p, p)), 0.0, 0
    for _, z, own_weights in _iter_coded(columns, source):
        if not len(z):
            continue
        is_used = np.ones(z.shape) if limits is None else 1.0 - limits.find_outside(z)
        if not weight:
            first = z[0].copy() if limits is None else limits.middle
        n_outside += int(z.size - is_used.sum())
        distance = is_used * (z - first)
        weighted = own_weights[:, None] * distance
        total += weighted.sum(axis=0)
        squares += weighted.T @ distance
        weights += (own_weights[:, None] * is_used).T @ is_used
        weight += float(own_weights.sum())
    tiny = np.finfo(float).tiny
    shift = total / np.maximum(np.diag(weights), tiny)
    covariance = squares / np.maximum(weights, tiny) - np.outer(shift, shift)
    return _Moments(first + shift, covariance, weight, n_outside)


def check_covariates(covariates: Covariates, source: CovariateSource) -> None:
    """Check that rows have the covariates of a fit.

    Raises
    ------
    FitError
        If a value is missing or infinite, or a level was not in the fit.
    """
    for column in covariates.columns:
        name, coder = column.name, make_covariate_coder(column, source.levels)
        texts = [*source.levels[name]] if name in source.levels else None
        for (rows, values), _ in source.iter_column(name, not column.levels):
            if not column.levels:
                _check_numbers(name, rows, values)
                continue
            _check_levels(name, rows, values, texts is not None)
            is_unknown = np.isnan(coder.encode(values)).any(axis=1)
            if is_unknown.any():
                k = int(np.argmax(is_unknown))
                level = f"{values[k]:.0f}" if texts is None else texts[int(values[k])]
                raise FitError(
                    f"{{covariates}}: row {rows[k] + 1}: {name} is {level!r}, but the fit has only "
                    f"{', '.join(column.levels)}. Leave out such rows, or fit again."
                )


def list_columns(covariates: Covariates | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns to read as they are stored, and those to read as numbers."""
    columns = () if covariates is None else covariates.columns
    stored, numbers = (
        tuple(column.name for column in columns if bool(column.levels) == has_levels)
        for has_levels in (True, False)
    )
    return stored, numbers


def _iter_coded(
    columns: Sequence[CovariateColumn], source: CovariateSource
) -> Iterator[tuple[NDArray[np.int64], Array, Array]]:
    """Yield indices, coded covariates and weights of the rows, part by part."""
    coders = [make_covariate_coder(column, source.levels) for column in columns]
    parts = [source.iter_column(column.name, not column.levels) for column in columns]
    for same_rows in zip(*parts, strict=True):
        coded = [
            coder.encode(values) for coder, ((_, values), _) in zip(coders, same_rows, strict=True)
        ]
        (rows, _), weights = same_rows[0]
        yield rows, np.concatenate(coded, axis=1), weights


def _measure_column(request: ColumnRequest, source: CovariateSource) -> CovariateColumn:
    """Check a column, and find its levels if it has levels."""
    name, is_text = request.name, request.name in source.levels
    has_numbers = not is_text or are_numbers(source.levels[name])
    if has_numbers and request.reference is None:
        for (rows, values), _ in source.iter_column(name, is_number=True):
            _check_numbers(name, rows, values)
        return CovariateColumn(name)
    counts: dict[float, float] = {}
    for (rows, values), weights in source.iter_column(name, is_number=False):
        _check_levels(name, rows, values, is_text)
        found, places = np.unique(values, return_inverse=True)
        own = np.bincount(places, weights if source.are_frequencies else None)
        for value, n_rows in zip(found.tolist(), own.tolist(), strict=True):
            counts[value] = counts.get(value, 0) + n_rows
        if len(counts) > _MAX_LEVELS:
            raise FitError(
                f"{{covariates}}: {name} has more than {_MAX_LEVELS:,} levels. Choose a coarser "
                "column, or one of numbers."
            )
    if is_text:
        texts = [*source.levels[name]]
        by_level = dict(sorted((texts[int(code)], n) for code, n in counts.items()))
    else:
        by_level = {f"{value:.0f}": counts[value] for value in sorted(counts)}
    return CovariateColumn(name, _order_levels(name, by_level, request.reference))


def are_numbers(texts: Iterable[str]) -> bool:
    """Return whether at least half of the texts are numbers."""
    are_numbers = [parse_level(text) is not None for text in texts]
    return 2 * sum(are_numbers) >= len(are_numbers)


def _order_levels(
    name: str, rows_by_level: Mapping[str, float], reference: str | None
) -> tuple[str, ...]:
    """Check the levels of a column, and put the reference first."""
    levels = [*rows_by_level]
    if reference is not None and reference not in rows_by_level:
        raise FitError(
            f"{{covariates}}: {name} has no level {reference!r}. It has: {', '.join(levels)}."
        )
    if len(levels) < 2:
        raise FitError(f"{{covariates}}: all rows have the same level of {name}. Leave it out.")
    for level, n_rows in rows_by_level.items():
        if n_rows < _MIN_LEVEL_ROWS:
            raise FitError(
                f"{{covariates}}: the level {level!r} of {name} has only one row. Merge it with "
                "another level, or leave out the row."
            )
    first = levels[0] if reference is None else reference
    return (first, *(level for level in levels if level != first))


def _check_numbers(name: str, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
    _refuse(name, rows, np.isnan(values), "is missing. Leave out the row, or the column")
    _refuse(name, rows, np.isinf(values), "is infinite. Leave out the row, or the column")


def _check_levels(name: str, rows: NDArray[np.int64], values: NDArray[Any], is_text: bool) -> None:
    is_missing = values < 0 if is_text else np.isnan(values)
    _refuse(name, rows, is_missing, "is missing. Leave out the row, or the column")
    is_whole = np.isfinite(values) & (values == np.rint(values))
    _refuse(name, rows, ~is_whole, "is no whole number, so it is no level. Leave out =LEVEL")


def _refuse(name: str, rows: NDArray[np.int64], is_wrong: NDArray[Any], problem: str) -> None:
    if is_wrong.any():
        row = int(rows[np.argmax(is_wrong)]) + 1
        raise FitError(f"{{covariates}}: row {row}: {name} {problem}.")


def _check_covariance(names: Sequence[str], means: Array, covariance: Array) -> Array:
    """Refuse constant covariates and combinations of others; return standard deviations."""
    variances = np.diag(covariance)
    for name, mean, variance in zip(names, means, variances, strict=True):
        if not variance > (1e-9 * mean) ** 2:
            raise FitError(f"{{covariates}}: {name} is constant. Leave it out.")
    deviations: Array = np.sqrt(variances)
    if (place := find_collinear(covariance)) is not None:
        raise FitError(
            f"{{covariates}}: {names[place]} is a linear combination of "
            f"{', '.join(names[:place])}. Leave out one of them."
        )
    return deviations


def find_collinear(covariance: Array) -> int | None:
    """Return the first covariate that is a combination of the ones before it, if there is one."""
    scale = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    remaining = covariance / np.outer(scale, scale)
    for place in range(len(remaining)):
        if remaining[place, place] < _MIN_OWN_SHARE:
            return place
        column = remaining[:, place] / remaining[place, place]
        remaining = remaining - np.outer(column, remaining[place])
    return None
