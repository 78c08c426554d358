"""Conditional probabilities of features, from likelihoods of rows with missing values.

A model that integrates missing values out gives log P(x_A) for any set A of features. With evidence
x_E and target features T, the probability of each combination t of their levels is

    P(x_T = t | x_E) = P(x_T = t, x_E) / Σ_s P(x_T = s, x_E)                                     (1)

The denominator must equal P(x_E), which is computed as well: this checks the model's likelihood.
Continuous features may be evidence; then P(x_E) is a density.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.data.display import DisplayItems, ResultDisplayMixin
from pipeline.data.features import (
    BINARY_LEVELS,
    Feature,
    find_continuous,
    parse_number,
    split_values,
)
from pipeline.data.matching import get_fitted_segments
from pipeline.data.tables import is_missing, name_level
from pipeline.errors import FitError, format_suggestion
from pipeline.executors.base import limit_blas_threads
from pipeline.inference.transform import iter_portions
from pipeline.models.base import Model
from pipeline.models.capabilities import HasLogLikelihood
from pipeline.models.registry import find_models
from pipeline.params import get_array
from pipeline.random import RowRandom
from pipeline.words import BITS_BY_WORD

Assignment = Mapping[int, float]
"""Levels counted from 0, or numbers of continuous features, by the index of the feature."""

MAX_CELLS = 4096
"""Maximum number of combinations of levels in a joint table."""
SEGMENT_REMEDY = "Leave it out to take all segments by their fitted rows."
"""Advice about an unknown segment."""
_MAX_ERROR = 0.01
_MAX_SHOWN = 100  # characters of a level that does not exist
_TOLERANCE = 1e-6


class Query(NamedTuple):
    """A checked query.

    Attributes
    ----------
    features
        The features of the fit.
    evidence
        The features that are known.
    tables
        The target features of each table of probabilities, by index.
    """

    features: tuple[Feature, ...]
    evidence: Assignment
    tables: tuple[tuple[int, ...], ...]

    def list_cells(self, targets: tuple[int, ...]) -> list[Assignment]:
        """Return all combinations of the levels of the targets of a table."""
        levels = (range(len(self.features[index].levels)) for index in targets)
        return [dict(zip(targets, cell, strict=True)) for cell in product(*levels)]


class QueryAnswer(ResultDisplayMixin, dict[str, NDArray[Any]]):
    """Probabilities of target features: columns by name, for example for a data frame.

    `feature` and `level`, or `level_NAME` of each target of a joint table, name the event. A binary
    feature alone has a single line: its upper level. `probability` is P(event | evidence),
    `marginal` is P(event), and `lift` is their ratio, NaN if both are 0.

    Attributes
    ----------
    log_evidence
        Natural logarithm of the probability of the evidence, or of its density if it has continuous
        features.
    error
        Largest error of a log-probability, in nats: bounds of quadrature, and two standard errors.
    """

    def __init__(
        self, columns: Mapping[str, NDArray[Any]], log_evidence: float, error: float
    ) -> None:
        super().__init__(columns)
        self.log_evidence = log_evidence
        self.error = error

    def _iter_display_items(self) -> DisplayItems:
        yield "log-probability of the evidence", f"{self.log_evidence:.6g}"
        for event, probability, marginal, lift in self.iter_lines():
            yield event, f"{probability:.4g} (marginal {marginal:.4g}, lift {lift:.3g})"

    def iter_lines(self) -> Iterator[tuple[str, float, float, float]]:
        """Iterate over events, such as `bread=1`, with probability, marginal and lift."""
        numbers = zip(self["probability"], self["marginal"], self["lift"], strict=True)
        if "feature" in self:
            cells = zip(self["feature"], self["level"], strict=True)
            events = [f"{name}={level}" for name, level in cells]
        else:
            names = [name.removeprefix("level_") for name in self if name.startswith("level_")]
            rows = zip(*(self[f"level_{name}"] for name in names), strict=True)
            events = [
                ", ".join(f"{name}={level}" for name, level in zip(names, row, strict=True))
                for row in rows
            ]
        for event, (probability, marginal, lift) in zip(events, numbers, strict=True):
            yield event, float(probability), float(marginal), float(lift)


def make_query(
    features: Sequence[Feature],
    given: Mapping[str, Any],
    of: Sequence[str],
    *,
    joint: bool = False,
) -> Query:
    """Find the features and levels that a query names.

    Parameters
    ----------
    features
        The features of the fit.
    given
        A level, or the number of a continuous feature, by the name of each known feature.
    of
        Names of the target features.
    joint
        Whether to make one table of all combinations of their levels, instead of a table each.
    """
    places = {feature.name: index for index, feature in enumerate(features)}
    evidence = find_values(features, places, given)
    _check_features(of, places, "of")
    if not of:
        raise FitError("{of} names no feature. Name those whose probabilities you want.")
    for name in of:
        if name in given:
            raise FitError(f"{name!r} is in both {{given}} and {{of}}. Leave it out of one.")
        if not features[places[name]].levels:
            raise FitError(
                f"{name!r} is continuous, so it has no levels. Use it in {{given}}, or leave it "
                "out.",
                parameter="of",
            )
    targets = tuple(dict.fromkeys(places[name] for name in of))
    n_cells = prod(len(features[index].levels) for index in targets)
    if joint and n_cells > MAX_CELLS:
        raise FitError(
            f"The features have {n_cells:,} combinations of levels, more than {MAX_CELLS:,}. Name "
            "fewer, or leave out {joint}.",
            parameter="of",
        )
    return Query(tuple(features), evidence, (targets,) if joint else tuple((t,) for t in targets))


def find_values(
    features: Sequence[Feature], places: Mapping[str, int], given: Mapping[str, Any]
) -> Assignment:
    """Find the features and levels, or numbers, that a user names; `places` has their indices.

    Raises
    ------
    FitError
        If a feature or a level does not exist.
    """
    _check_features(given, places, "given")
    return {places[name]: _find_value(features[places[name]], given[name]) for name in given}


def _check_features(names: Iterable[str], places: Mapping[str, int], parameter: str) -> None:
    for name in names:
        if name not in places:
            raise FitError(
                f"The fit has no feature {name!r}.{format_suggestion(str(name), places)} Name "
                "features of the fit.",
                parameter=parameter,
            )


def _find_value(feature: Feature, value: Any) -> float:
    """Return a level counted from 0, or a number, given the value that a user writes."""
    if not feature.levels:
        number = parse_number(value)
        if number is None or not abs(number) <= float(np.finfo(np.float32).max):  # refuses NaN
            raise FitError(
                f"{feature.name!r} is continuous, but its value is {value!r}. Pass a finite "
                "number.",
                parameter="given",
            )
        return number
    if is_missing(value):  # even if a level is called None
        raise FitError(
            f"the value of {feature.name!r} is missing. Leave it out.", parameter="given"
        )
    text = name_level(value)
    if text in feature.levels:
        return feature.levels.index(text)
    known = ", ".join(feature.levels)
    if feature.levels == BINARY_LEVELS:
        if (bit := BITS_BY_WORD.get(text.strip().lower())) is not None:
            return bit
        known = f"{known}, {', '.join(BITS_BY_WORD)}"
    raise FitError(
        f"{feature.name!r} has no level {text[:_MAX_SHOWN]!r}. Choose one of: {known}.",
        parameter="given",
    )


def answer_query(
    model: Model, params: Any, query: Query, segment: int | None = None
) -> QueryAnswer:
    """Compute the probabilities of a query by eq. 1.

    `segment` is the index of a segment, or group, of the fit. None takes the mixture of all, each
    with its share of the fitted rows.

    Raises
    ------
    FitError
        If the model has no likelihood, or none that is accurate enough; if the fit has covariates;
        or if the evidence is impossible.
    """
    if not isinstance(model, HasLogLikelihood):
        kinds = find_models().items()
        able = [name for name, kind in kinds if issubclass(kind, HasLogLikelihood)]
        raise FitError(
            f"The model {model.name} has no likelihood, so it gives no probabilities of features. "
            f"Fit one of: {', '.join(able)}."
        )
    if get_array(params, "covariate_center") is not None:
        raise FitError(
            "The fit has covariates, so its probabilities differ from row to row. Fit without "
            "{covariates}."
        )
    cells = [query.list_cells(targets) for targets in query.tables]
    events = [cell for own in cells for cell in own]
    rows = [query.evidence, *events, *({**query.evidence, **cell} for cell in events)]
    nats, error = _compute_log_probabilities(model, params, query.features, rows, segment)
    _check_evidence(nats[0])
    ends = np.cumsum([len(own) for own in cells])[:-1]
    marginals = _normalize_tables(np.split(nats[1 : 1 + len(events)], ends), 0.0, error)
    conditionals = _normalize_tables(np.split(nats[1 + len(events) :], ends), nats[0], error)
    columns = _make_columns(query, conditionals, marginals)
    return QueryAnswer(columns, float(nats[0]), error)


def _compute_log_probabilities(
    model: HasLogLikelihood,
    params: Any,
    features: Sequence[Feature],
    assignments: Sequence[Assignment],
    segment: int | None,
) -> tuple[Array, float]:
    """Return log P of each assignment, (n_assignments,), and their largest error."""
    segments, shares = [segment or 0], np.ones(1)
    indices, n_rows = get_fitted_segments(params)
    if segment is None and len(indices):
        segments, shares = indices.tolist(), n_rows / n_rows.sum()
    nats, error = np.zeros((len(segments), len(assignments))), 0.0
    filled = [row for row, assignment in enumerate(assignments) if assignment]  # others have P = 1
    for portion in iter_portions(len(filled), len(features)):
        rows = filled[portion]
        for index, own in enumerate(segments):
            block = _pack_assignments(features, [assignments[row] for row in rows], own)
            with limit_blas_threads(), np.errstate(divide="ignore"):  # log 0 = −∞ is meant
                found = model.log_likelihood(params, block, RowRandom(0))
            nats[index, rows] = found.nats
            errors = 2 * found.standard_error + found.integration_error + found.shared_error
            error = float(np.maximum(error, np.max(errors)))  # keeps NaN, which is refused
    if not error <= _MAX_ERROR:
        raise FitError(
            f"The log-likelihood can be computed only to ±{error:.2g} nats, but probabilities need "
            f"±{_MAX_ERROR:g}. Fit again with fewer {{components}}, or another {{model}}."
        )
    return np.asarray(logsumexp(nats, axis=0, b=shares[:, None])), error


def _pack_assignments(
    features: Sequence[Feature], assignments: Sequence[Assignment], segment: int
) -> BinaryBlock:
    """Pack one row per assignment; all other values are missing."""
    values = np.full((len(assignments), len(features)), np.nan)
    for row, assignment in enumerate(assignments):
        values[row, [*assignment]] = [*assignment.values()]
    continuous = find_continuous(features)
    numbers = np.ascontiguousarray(values[:, continuous].T, np.float32) if continuous else None
    values[:, continuous] = np.nan
    observed = (~np.isnan(values)).astype(np.uint8)
    X, mask = split_values(np.nan_to_num(values).astype(np.uint8), observed, features)
    return pack_block(X, mask, segment, numbers=numbers)


def _check_evidence(nats: float) -> None:
    if nats == -np.inf:
        raise FitError(
            "The evidence is impossible: its probability in the fit is 0. Leave some of it out.",
            parameter="given",
        )
    if not np.isfinite(nats):
        raise FitError(
            f"The log-likelihood of the evidence is {nats}. Fit again with other settings.",
            parameter="given",
        )


def _normalize_tables(tables: Sequence[Array], log_total: float, error: float) -> Array:
    """Return the probabilities of all tables by eq. 1, after each other, (n_cells,).

    `log_total` is the expected logarithm of each denominator.
    """
    probabilities = []
    for nats in tables:
        log_sum = float(logsumexp(nats))
        if not abs(log_sum - log_total) <= _TOLERANCE + 2 * error:  # also refuses NaN
            raise FitError(
                f"The probabilities of the levels sum to {np.exp(log_sum - log_total):.6g} instead "
                "of 1, so the likelihood does not integrate missing values out. Use another "
                "{model}."
            )
        probabilities.append(np.exp(nats - log_sum))
    return np.concatenate(probabilities)


def _make_columns(query: Query, conditionals: Array, marginals: Array) -> dict[str, NDArray[Any]]:
    """Make the columns of an answer, given the probabilities of all cells, (n_cells,) each."""
    features = query.features
    cells = [cell for targets in query.tables for cell in query.list_cells(targets)]
    if len(targets := query.tables[0]) > 1:
        shown = list(range(len(cells)))
        names = {
            f"level_{features[t].name}": [features[t].levels[int(cell[t])] for cell in cells]
            for t in targets
        }
    else:
        events = [(features[t], int(level)) for cell in cells for t, level in cell.items()]
        shown = [n for n, (own, level) in enumerate(events) if own.kind != "binary" or level]
        names = {
            "feature": [events[n][0].name for n in shown],
            "level": [events[n][0].levels[events[n][1]] for n in shown],
        }
    probability, marginal = conditionals[shown], marginals[shown]
    lift = np.full(len(shown), np.nan)
    np.divide(probability, marginal, out=lift, where=marginal > 0)
    return {
        **{name: np.array(values) for name, values in names.items()},
        "probability": probability,
        "marginal": marginal,
        "lift": lift,
    }
