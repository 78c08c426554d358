"""Reliability of the sum scores of features, of all rows and of each group.

One pass counts pairs, from which all coefficients follow; with missing values, each covariance and
each polychoric correlation is of the rows that observe both features. A second pass sums the
squared influence of rows on the coefficients (see `numerics.gaussian.polychoric_influence`), which
gives standard errors without an assumption about the distribution of the scores. Intervals are
symmetric in log(1 − coefficient) (D. G. Bonett, Journal of Educational and Behavioral Statistics
27, 2002).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, RowSource, iter_word_ranges
from pipeline.data.features import Feature, find_continuous, find_first_planes
from pipeline.errors import FitError
from pipeline.evaluation.drift import pool_counts
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.starts import LOGISTIC_SCALE
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polychoric_influence import (
    PolychoricInfluence,
    polychoric_influence,
)
from pipeline.numerics.logistic.categories.curves import compute_item_information
from pipeline.numerics.logistic.information import average_reliability
from pipeline.numerics.spectra.reliability import (
    compute_alpha,
    compute_omega,
    compute_trait_omega,
    convert_to_covariance_gradient,
    find_signs,
    fit_factor,
)
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.correlations import estimate_polychoric, mirror_upper_triangle
from pipeline.statistics.counts import PairCounts, PairTable
from pipeline.statistics.sums import Sums

_MAX_PLANES = 1000  # as for standard errors of correlations
_MAX_GROUP_CELLS = 2**20  # pairs of planes of all groups
_QUANTILE = 1.959963984540054  # of the standard normal, for intervals of 95 %
_WORDS_AT_ONCE = 64
_ALL = -1  # key of all rows, next to the segments


class _Influence(NamedTuple):
    """Influence of a row on a coefficient: tᵀ J t − tᵀ B m + mᵀ C m, with bits t and their mask m.

    J, B and C are (n_planes, n_planes), (n_planes, n_items) and (n_items, n_items).
    """

    joint: Array
    single: Array
    constant: Array

    def compute(self, t: Array, m: Array) -> Array:
        """Return the influence of each row, (n_samples,)."""
        by_row: Array = ((t @ self.joint) * t).sum(axis=1)
        by_row += ((m @ self.constant - t @ self.single) * m).sum(axis=1)
        return by_row


class _RowInfluence(NamedTuple):
    """The planes and items that the coefficients of a group are of, and the influence on each."""

    planes: NDArray[np.intp]
    items: NDArray[np.intp]
    coefficients: Sequence[_Influence]


class _Group(NamedTuple):
    """The description of a group, and the coefficients whose errors follow from its influence."""

    description: dict[str, Any]
    influence: _RowInfluence | None = None
    entries: Sequence[dict[str, Any]] = ()


class _Moments(NamedTuple):
    """Moments of the scores of pairs of items, (n_items, n_items) each.

    `rows` observe both items of a pair, and `means` are those of the first item in these rows.
    """

    rows: Array
    means: Array
    covariance: Array

    @property
    def correlation(self) -> Array:
        """Correlations of scores."""
        deviations = np.sqrt(np.diag(self.covariance))
        return np.asarray(self.covariance / np.outer(deviations, deviations))


def describe_reliability(
    rows: RowSource,
    features: Sequence[Feature],
    group_names: Sequence[str],
    subjects: Mapping[str, EvaluatedModel],
    executor: Executor,
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """Describe alpha, ordinal alpha and omega of all rows, then of each group.

    Parameters
    ----------
    rows
        The rows, whose segments are the groups.
    features
        Their features, the items.
    group_names
        Names of the groups; groups are left out if there are fewer than two of them, or so many
        that their pairs do not fit in memory.
    subjects
        Fits by name, whose traits are described too.
    executor, progress
        As for `collect_statistics`.

    Returns
    -------
    list of dict
        `group`, None for all rows; `rows` (or their weight) and `items`, the names of the features
        that vary; `constant`, the others; `is_complete`, whether no value is missing; `reversed`,
        the items that point the other way. `coefficients` has `alpha`, `standardized_alpha`,
        `ordinal_alpha` and `omega`, each None or with `value`, `standard_error` and `interval`,
        both None if unknown; `turned` has them with these items reversed. `by_item` has for each
        item its correlation with the sum of the others, and alpha without it, with these items
        reversed. Instead of the last three, `missing` may say why there are none. `traits` are
        the results of `describe_trait_reliability` by the names of fits.

    Raises
    ------
    FitError
        If a feature is continuous, or there are too many features.
    """
    firsts = find_first_planes(features)
    n_planes, n_groups = int(firsts[-1]), len(group_names)
    check_has_scores(features)
    has_groups = n_groups > 1 and n_groups * n_planes**2 <= _MAX_GROUP_CELLS
    count = partial(PairCounts.from_block, pooled=not has_groups)
    counts = collect_statistics(count, rows, executor, PairCounts.label, progress=progress)
    groups = {_ALL: (None, pool_counts(counts), 0)}
    if has_groups:
        names = {segment: group_names[segment] for segment in counts.segments.tolist()}
        groups |= {k: (name, counts, place) for place, (k, name) in enumerate(names.items())}
    found = {key: _describe_group(*group, features) for key, group in groups.items()}
    influences = {key: g.influence for key, g in found.items() if g.influence is not None}
    if influences:
        work = partial(_sum_squares, influences, firsts[:-1])
        sums = collect_statistics(work, rows, executor, "reliability", progress=progress)
        for key in influences:
            _add_intervals(found[key], sums.values[str(key)])
    for key, group in found.items():
        group.description["traits"] = {
            name: describe_trait_reliability(subject, None if key == _ALL else key)
            for name, subject in subjects.items()
        }
    return [group.description for group in found.values()]


def check_has_scores(features: Sequence[Feature]) -> None:
    """Refuse continuous features, and too many."""
    if continuous := find_continuous(features):
        raise FitError(
            f"{{reliability}} is of features with levels, but {features[continuous[0]].name!r} is "
            "continuous. Leave out such features."
        )
    n_planes = int(find_first_planes(features)[-1])
    if n_planes > _MAX_PLANES:
        raise FitError(
            f"{{reliability}} compares pairs of at most {_MAX_PLANES:,} levels above the lowest, "
            f"but the features have {n_planes:,}. Fit the features of one scale."
        )


def _describe_group(
    name: str | None, counts: PairCounts, place: int, features: Sequence[Feature]
) -> _Group:
    """Compute the coefficients of one group, and the influence of its rows on them."""
    firsts, names = find_first_planes(features), [feature.name for feature in features]
    table = PairTable(*np.broadcast_arrays(*counts.table(place)))
    totals = counts.rows if counts.weights is None else counts.weight_unit * counts.weights
    total, moments = float(totals[place]), _compute_moments(table, firsts[:-1])
    varies = np.diag(moments.covariance) > 0
    items, planes = np.flatnonzero(varies), np.flatnonzero(np.repeat(varies, np.diff(firsts)))
    description: dict[str, Any] = {
        "group": name,
        "rows": total,
        "items": [names[i] for i in items],
        "constant": [names[i] for i in np.flatnonzero(~varies)],
        "is_complete": bool((table.n >= total).all()),
    }
    moments = _Moments(*(part[np.ix_(items, items)] for part in moments))
    if reason := _explain_missing(moments, description["items"]):
        return _Group({**description, "missing": reason})
    signs = find_signs(moments.correlation)
    description["reversed"] = [names[i] for i in items[signs < 0]]
    table = PairTable(*(part[np.ix_(planes, planes)] for part in table))
    first_planes = np.concatenate([[0], np.cumsum(np.diff(firsts)[items])])
    polychoric, status = estimate_polychoric("half", first_planes, table)
    mirror_upper_triangle(polychoric, status)
    by_scores = partial(_weigh_score_influence, moments, total, np.diff(first_planes))
    of_pairs = polychoric_influence(*table, polychoric, first_planes, empty_cells="half")
    scale = total / np.maximum(moments.rows, 1)
    by_pairs = partial(_weigh_pair_influence, of_pairs, scale, np.diff(first_planes))
    # Pairs at the boundary have no influence, so nothing is known of the errors.
    has_errors = bool((status == PairStatus.PLAIN).all())
    loadings = fit_factor(polychoric)
    influences, entries = list[_Influence](), list[dict[str, Any]]()

    def describe(signs: Array) -> dict[str, Any]:
        standardized = compute_alpha(moments.correlation, signs)
        if standardized is not None:
            own = convert_to_covariance_gradient(standardized.gradient, moments.covariance)
            standardized = standardized._replace(gradient=own)
        found: dict[str, Any] = {}
        for key, coefficient, weigh in (
            ("alpha", compute_alpha(moments.covariance, signs), by_scores),
            ("standardized_alpha", standardized, by_scores),
            ("ordinal_alpha", compute_alpha(polychoric, signs), by_pairs),
            ("omega", compute_omega(polychoric, loadings, signs), by_pairs),
        ):
            found[key] = None
            if coefficient is not None:
                found[key] = {"value": coefficient.value, "standard_error": None, "interval": None}
                if weigh is by_scores or has_errors:
                    influences.append(weigh(coefficient.gradient))
                    entries.append(found[key])
        return found

    description["coefficients"] = describe(np.ones(len(items)))
    description["turned"] = describe(signs) if description["reversed"] else None
    description["by_item"] = _describe_items(description["items"], moments.covariance, signs)
    return _Group(description, _RowInfluence(planes, items, influences), entries)


def _compute_moments(table: PairTable, firsts: NDArray[np.int64]) -> _Moments:
    """Sum the counts of planes to moments of scores, which are numbers of planes reached."""
    rows = np.asarray(table.n, np.float64)[np.ix_(firsts, firsts)]
    left = np.add.reduceat(table.ones_i, firsts, axis=0)[:, firsts]
    products = np.add.reduceat(np.add.reduceat(table.joint, firsts, axis=0), firsts, axis=1)
    safe = np.maximum(rows, 1.0)
    means = left / safe
    covariance = (products - left * means.T) / np.maximum(rows - 1, 1.0)
    return _Moments(rows, means, covariance)


def _explain_missing(moments: _Moments, names: Sequence[str]) -> str:
    """Return why there are no coefficients, or an empty text."""
    if len(names) < 2:
        return "fewer than two items vary"
    pairs = np.argwhere(np.triu(moments.rows < 2, 1))
    if not len(pairs):
        return ""
    i, j = pairs[0].tolist()
    return f"no rows have values of both {names[i]} and {names[j]} ({len(pairs):,} such pairs)"


def _weigh_score_influence(
    moments: _Moments, total: float, n_planes: NDArray[np.int64], gradient: Array
) -> _Influence:
    """Return the influence through the covariances of scores.

    Rows that observe a pair move its covariance by (x − mean x) (y − mean y) − covariance.
    """
    weights = gradient * total / moments.rows
    crossed = moments.means * moments.means.T
    centred = moments.covariance * (moments.rows - 1) / moments.rows
    return _Influence(
        _repeat(weights, n_planes, n_planes),
        np.repeat(2 * weights * moments.means.T, n_planes, axis=0),
        weights * (crossed - centred),
    )


def _weigh_pair_influence(
    influence: PolychoricInfluence, scale: Array, n_planes: NDArray[np.int64], gradient: Array
) -> _Influence:
    """Return the influence through polychoric correlations; `scale` is total / rows of a pair."""
    weights = gradient * (1 - np.eye(len(gradient))) * scale
    return _Influence(
        _repeat(weights, n_planes, n_planes) * influence.joint,
        2 * np.repeat(weights, n_planes, axis=0) * influence.single,
        -weights * influence.constant,
    )


def _repeat(matrix: Array, left: NDArray[np.int64], right: NDArray[np.int64]) -> Array:
    return np.repeat(np.repeat(matrix, left, axis=0), right, axis=1)


def _sum_squares(
    influences: Mapping[int, _RowInfluence], firsts: NDArray[np.int64], block: BinaryBlock
) -> Sums:
    """Sum the squared influence of rows on the coefficients of all rows and of their group."""
    squares = {key: np.zeros(len(own.coefficients)) for key, own in influences.items()}
    for part in iter_word_ranges(block, _WORDS_AT_ONCE):
        check_cancelled()
        t, mask, w = part.unpack_values().astype(np.float64), part.unpack_mask(), part.row_weights
        m = np.ones((len(t), len(firsts))) if mask is None else mask[:, firsts].astype(np.float64)
        factors = np.ones(len(t)) if w is None else w**2 if part.has_sampling_weights else w
        for key in {_ALL, block.segment} & influences.keys():
            own = influences[key]
            values, observed = t[:, own.planes], m[:, own.items]
            for k, coefficient in enumerate(own.coefficients):
                squares[key][k] += factors @ coefficient.compute(values, observed) ** 2
    return Sums.from_block(block, 0.0, {str(key): value for key, value in squares.items()})


def _add_intervals(group: _Group, squares: Array) -> None:
    """Add standard errors and intervals of 95 % to the coefficients of a group."""
    errors = np.sqrt(squares) / group.description["rows"]
    for entry, error in zip(group.entries, errors.tolist(), strict=True):
        rest = 1 - entry["value"]
        reach = np.exp(_QUANTILE * error / rest)
        entry["standard_error"] = error
        entry["interval"] = [float(1 - rest * reach), float(1 - rest / reach)]


def _describe_items(names: Sequence[str], covariance: Array, signs: Array) -> list[dict[str, Any]]:
    """Correlate each item with the sum of the others, and compute alpha without it."""
    S = covariance * np.outer(signs, signs)
    own = np.diag(S)
    with_rest = S.sum(axis=1) - own
    rest_variance = S.sum() - 2 * with_rest - own
    found = []
    for i, name in enumerate(names):
        left = np.delete(np.arange(len(names)), i)
        without = compute_alpha(S[np.ix_(left, left)], np.ones(len(left)))
        has_rest = rest_variance[i] > 0
        found.append(
            {
                "feature": name,
                "is_reversed": bool(signs[i] < 0),
                "rest_correlation": float(with_rest[i] / np.sqrt(own[i] * rest_variance[i]))
                if has_rest
                else None,
                "alpha_without": None if without is None else without.value,
            }
        )
    return found


def describe_trait_reliability(subject: EvaluatedModel, segment: int | None) -> dict[str, float]:
    """Describe the reliability that a latent-trait fit implies in a segment, or in all rows.

    `segment` is the index of the dataset's segment, or None for all rows.

    `marginal` is that of its only trait, as estimated from a row's answers. With graded or binary
    items and several traits, `omega` is the share of the variance of the sum of the normal
    variables behind the items that is due to the traits, and `omega_hierarchical` the share of the
    general trait of a bifactor pattern.
    """
    model, params = subject.model, subject.params
    if not isinstance(model, LatentTrait) or params.units is not None:
        return {}
    has_own = segment is not None and len(subject.segments) > 0
    fitted = int(subject.segments[segment]) if has_own else _ALL
    group, items = params.get_population(fitted), params.get_level_items(model.items, fitted)
    if params.weights.shape[1] == 1:
        own = group.standardize(items)
        return {
            "marginal": average_reliability(
                lambda points: compute_item_information(own, points[:, None])[:, :, 0, 0].sum(0)
            )
        }
    if not items.is_cumulative or items.asymptotes is not None:
        return {}
    weights = group.weights / LOGISTIC_SCALE
    total, hierarchical = compute_trait_omega(weights, group.root @ group.root.T)
    found = {"omega": total}
    return found if hierarchical is None else found | {"omega_hierarchical": hierarchical}
