"""Tests of item bias: does an item favour one of two groups of rows with equal ability?

Mantel–Haenszel compares rows with equal sum scores. With N_gk rows of group g (0 the reference
group, 1 the focal group) at score k, O_gik of them with a one in item i,

    α_i = Σ_k O_0ik (N_1k − O_1ik) / N_k  /  Σ_k (N_0k − O_0ik) O_1ik / N_k,
    χ²_i = (|Σ_k O_0ik − E_ik| − ½)² / Σ_k V_ik

where E and V are the mean and variance of the hypergeometric distribution (P. W. Holland,
D. T. Thayer, "Differential item performance and the Mantel–Haenszel procedure", 1988).
Δ = −2.35 ln α is on the scale of ETS. An item has grade A if |Δ| < 1 or Δ is not significant,
grade C if |Δ| ≥ 1.5, and else grade B.

A row has a score only if it has all answers. Missing answers are therefore drawn from the model
below, fitted to all rows, with equal items in both groups: completed rows are distributed as rows
without missing values. Drawn answers count in the score, but not as answers to their item.

Equal scores are equal abilities only if all slopes are equal. If slopes differ and one group is
more able, Mantel–Haenszel rejects too many items without bias.

The likelihood-ratio test compares latent-trait fits in which an item has the same parameters in
both groups, or its own parameters in each. Its effect sizes average P_0(x) − P_1(x), the difference
between the curves of the groups, over the focal group's distribution of the trait: `difference`
with its sign, and `area` its absolute value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.executors.base import Executor, MapFunction
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import collect_pass_statistics, fit_model
from pipeline.models.base import Model
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    gauss_hermite,
    iter_responsibilities,
    node_posterior,
    node_statistics,
)
from pipeline.numerics.logistic.logistic_regression import logistic_m_step
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_NODES = gauss_hermite(101, 1)
_DF = 2
_ETS_DELTA_FACTOR, _SMALL_DELTA, _LARGE_DELTA, _SIGNIFICANCE_LEVEL = -2.35, 1.0, 1.5, 0.05


class GroupTestResults(NamedTuple):
    """Likelihood-ratio tests of all items.

    Attributes
    ----------
    chi2, p, p_adjusted
        Test statistic and p-value of each item, and the p-value adjusted for the number of items
        (Y. Benjamini, Y. Hochberg, JRSS B 57, 1995), (n_features,) each.
    difference, area
        Effect sizes, (n_features,) each; a positive difference favours the reference group.
    slopes, offsets
        Parameters of each item in the reference and the focal group, (n_features, 2) each.
    """

    chi2: Array
    p: Array
    p_adjusted: Array
    difference: Array
    area: Array
    slopes: Array
    offsets: Array


@dataclass(frozen=True)
class GroupParams:
    """Slopes and offsets of items, and the focal group's distribution of the trait.

    Attributes
    ----------
    items
        Slope and offset of each item, (n_features, 2). If an item is tested, another row has its
        parameters in the focal group.
    focal
        Mean of the trait in the focal group, and logarithm of its standard deviation.
    """

    items: Array = array_field("item", "moment")
    focal: Array = array_field("moment")


@dataclass(frozen=True)
class GroupTraits(Model):
    """Model of one latent trait in two groups of rows.

    Attributes
    ----------
    column
        Per-row column that names the group.
    groups
        Values of the column in the reference group and in the focal group.
    item
        The tested item, which has its own parameters in each group; none if negative.
    """

    name: ClassVar[str] = "group-traits"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[GroupParams]] = GroupParams
    column: str
    groups: tuple[int, int]
    item: int = -1
    acceleration: str = "squarem"
    n_components: int | None = 1
    max_iter: int = 1000
    tol: float = 1e-9

    def list_required_columns(self) -> tuple[str, ...]:
        """Return the column of the groups."""
        return (self.column,)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Start from equal slopes and equal groups."""
        observed, ones = pool_margins(first)
        offsets = scipy.special.logit(np.clip(ones, 0.5, observed - 0.5) / observed)
        return FitState(GroupParams(np.column_stack([np.ones(len(ones)), offsets]), np.zeros(2)))

    def summarize(
        self, params: GroupParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step, each group with its own node weights."""
        parts = []
        for group, (rows, *arguments) in enumerate(self._iter_groups(params, block)):
            expected = node_statistics(*arguments)
            by_group = np.zeros((2, len(expected.rows)))
            by_group[group] = expected.rows
            sums = {"ones": expected.ones, "mass": expected.mass, "rows": by_group}
            parts.append(Sums(len(rows), len(rows), expected.log_likelihood, sums))
        return parts[0].merge(parts[1])

    def transform(
        self, params: GroupParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the posterior mean of the trait, (n_samples, 1); 0 for rows in neither group."""
        mean = np.zeros((block.n_samples, 1))
        for rows, *arguments in self._iter_groups(params, block):
            mean[rows] = node_posterior(*arguments).mean
        return {"mean": mean}

    def draw_missing(
        self, params: GroupParams, block: BinaryBlock, rng: RowRandom
    ) -> NDArray[np.uint8]:
        """Return the rows with missing values drawn given the observed ones; 0 in neither group."""
        completed = np.zeros((block.n_samples, block.n_features), np.uint8)
        slopes, offsets = params.items.T
        for rows, X, mask, *arguments in self._iter_groups(params, block):
            draws = rng.stream("missing answers").uniform(block.rows[rows], block.n_features + 1)
            for part, shares in iter_responsibilities(X, mask, *arguments):
                uniform = draws[part]
                below = np.cumsum(shares, axis=1) < uniform[:, -1:]
                nodes = np.minimum(below.sum(axis=1), shares.shape[1] - 1)
                chances = scipy.special.expit(_NODES.points[nodes] * slopes + offsets)
                drawn = uniform[:, :-1] < chances
                completed[rows[part]] = np.where(mask[part] > 0, X[part], drawn)
        return completed

    def _iter_groups(self, params: GroupParams, block: BinaryBlock) -> Iterator[Any]:
        """Yield each group's rows, and the arguments of `node_statistics` for them."""
        X, observed, labels = block.unpack_values(), block.unpack_mask(), block.column(self.column)
        mask = np.ones_like(X) if observed is None else observed
        slopes, offsets = params.items.T
        for group, value in enumerate(self.groups):
            rows = np.flatnonzero(labels == value)
            columns = self._append_item_copy(X[rows], mask[rows], group)
            yield rows, *columns, slopes[:, None], offsets, _weigh_nodes(params.focal * group)

    def _append_item_copy(
        self, X: NDArray[np.uint8], mask: NDArray[np.uint8], group: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Append the tested item's copy for the focal group."""
        if self.item < 0:
            return X, mask
        tested = slice(self.item, self.item + 1)
        X, mask = np.hstack([X, X[:, tested]]), np.hstack([mask, mask[:, tested]])
        mask[:, self.item if group else -1] = 0
        return X, mask

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step, with free traits in both groups; scale those of the reference group."""
        sums, (slopes, offsets) = statistics.values, state.params.items.T
        reference, focal = (_fit_gaussian(mass) for mass in sums["rows"])
        scale = np.exp(reference[1])
        fit = logistic_m_step(
            (_NODES.points - reference[0]) / scale,
            sums["ones"],
            sums["mass"],
            slopes[:, None] * scale,
            offsets + slopes * reference[0],
        )
        focal = np.array([(focal[0] - reference[0]) / scale, focal[1] - reference[1]])
        items = np.column_stack([fit.weights, fit.offsets])
        return replace(state, params=GroupParams(items, focal))

    def pack_params(self, params: GroupParams) -> Array:
        """Return all parameters as a vector."""
        return np.append(params.items, params.focal)

    def unpack_params(self, params: GroupParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        return GroupParams(packed[:-2].reshape(-1, 2).copy(), packed[-2:].copy())


def _fit_gaussian(mass: Array) -> Array:
    """Return the mean and the logarithm of the standard deviation of mass on the nodes."""
    x, share = _NODES.points[:, 0], mass / mass.sum()
    mean = share @ x
    return np.array([mean, 0.5 * np.log(share @ (x - mean) ** 2)])


def _weigh_nodes(focal: Array) -> Nodes:
    """Return the nodes weighted by the focal group's density."""
    mean, log_sd = focal
    x = _NODES.points[:, 0]
    log_ratio = (x**2 - ((x - mean) * np.exp(-log_sd)) ** 2) / 2 - log_sd
    return Nodes(_NODES.points, _NODES.log_weights + log_ratio)


def fit_groups(
    model: GroupTraits, state: FitState, rows: RowSource, executor: Executor, progress: Progress
) -> tuple[GroupParams, float]:
    """Fit two groups from a state; return the parameters and the log-likelihood of all rows."""
    state = fit_model(model, rows, executor, state=state, progress=progress)
    statistics = collect_pass_statistics(model, state, rows, executor, 0, progress)
    return state.params, float(statistics.objective)


def run_group_tests(
    model: GroupTraits,
    shared: GroupParams,
    shared_objective: float,
    rows: RowSource,
    executor: Executor,
    progress: Progress,
) -> GroupTestResults:
    """Test each item by a fit in which only this item has its own parameters in each group.

    `shared` and `shared_objective` are the results of `fit_groups` with equal items.
    """
    chi2, parameters = np.zeros(len(shared.items)), np.zeros((len(shared.items), 2, 2))
    effects = np.zeros((len(shared.items), 2))
    for item, both_groups in enumerate(shared.items):
        start = FitState(replace(shared, items=np.vstack([shared.items, both_groups])))
        separate_items = replace(model, item=item)
        separate, objective = fit_groups(separate_items, start, rows, executor, progress)
        chi2[item] = max(2 * (objective - shared_objective), 0.0)
        parameters[item] = separate.items[[item, -1]]
        effects[item] = _compare_curves(parameters[item], separate.focal)
    p = scipy.stats.chi2.sf(chi2, _DF)
    return GroupTestResults(
        chi2,
        p,
        scipy.stats.false_discovery_control(p),
        difference=effects[:, 0],
        area=effects[:, 1],
        slopes=parameters[:, :, 0],
        offsets=parameters[:, :, 1],
    )


def _compare_curves(parameters: Array, focal: Array) -> tuple[float, float]:
    """Return the mean and mean absolute difference of two curves in the focal group."""
    reference, own = scipy.special.expit(
        parameters @ np.vstack([_NODES.points.T, np.ones(len(_NODES.points))])
    )
    density = scipy.special.softmax(_weigh_nodes(focal).log_weights)
    return float(density @ (reference - own)), float(density @ abs(reference - own))


class ItemBias(NamedTuple):
    """Mantel–Haenszel tests, (n_features,) each; odds ratios are 0 or ∞ if a cell is empty.

    `p_adjusted` is adjusted for the number of items (Benjamini & Hochberg).
    """

    odds_ratio: Array
    chi2: Array
    p: Array
    p_adjusted: Array
    delta: Array
    grade: NDArray[np.str_]


def count_by_score(
    model: GroupTraits, params: GroupParams | None, rng: RowRandom, block: BinaryBlock
) -> Sums:
    """Count a block's rows and ones by group, sum score and item.

    `params` is a fit of the model, from which missing answers are drawn; None if there are none.

    Returns
    -------
    Sums
        `rows`, (2, n_features + 1, n_features), or (2, n_features + 1, 1) without missing answers;
        `ones`, (2, n_features + 1, n_features); and `group_rows`, (2,), the rows with any answer.
    """
    X, observed, labels = block.unpack_values(), block.unpack_mask(), block.column(model.column)
    mask = np.ones_like(X) if observed is None else observed
    answered = X * mask
    scores = (X if params is None else model.draw_missing(params, block, rng)).sum(
        axis=1, dtype=np.int64
    )
    n_features = block.n_features
    rows = np.zeros((2, n_features + 1, 1 if params is None else n_features), np.int64)
    ones = np.zeros((2, n_features + 1, n_features), np.int64)
    group_rows = np.zeros(2, np.int64)
    for g, value in enumerate(model.groups):
        is_member = (labels == value) & mask.any(axis=1)
        group_rows[g] = is_member.sum()
        for k in np.unique(scores[is_member]):
            chosen = is_member & (scores == k)
            rows[g, k] = chosen.sum() if params is None else mask[chosen].sum(axis=0)
            ones[g, k] = answered[chosen].sum(axis=0, dtype=np.int64)
    return Sums.from_block(block, 0.0, {"rows": rows, "ones": ones, "group_rows": group_rows})


def mantel_haenszel(rows: Counts, ones: Counts) -> ItemBias:
    """Test each item, stratified by score, given the counts of `count_by_score`."""
    in_both = (rows > 0).all(axis=0)
    n_0, n_1 = rows * in_both.astype(np.float64)
    a, c = ones * in_both.astype(np.float64)
    b, d, total = n_0 - a, n_1 - c, np.maximum(n_0 + n_1, 1)
    n_ones, n_zeros = a + c, b + d
    expected = n_0 * n_ones / total
    variance = n_0 * n_1 * n_ones * n_zeros / (total**2 * np.maximum(total - 1, 1))
    excess = np.maximum(abs((a - expected).sum(axis=0)) - 0.5, 0.0)
    spread = variance.sum(axis=0)
    chi2 = np.divide(excess**2, spread, out=np.zeros(len(spread)), where=spread > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (a * d / total).sum(axis=0) / (b * c / total).sum(axis=0)
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        delta = _ETS_DELTA_FACTOR * np.log(ratio)
    p = scipy.stats.chi2.sf(chi2, 1)
    size = np.where(p < _SIGNIFICANCE_LEVEL, abs(delta), 0.0)
    grade = np.where(size < _SMALL_DELTA, "A", np.where(size < _LARGE_DELTA, "B", "C"))
    return ItemBias(ratio, chi2, p, scipy.stats.false_discovery_control(p), delta, grade)
