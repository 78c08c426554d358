"""Whether items favour one group of rows among rows of equal sum scores: Mantel–Haenszel.

With N_gk rows of group g (0 the reference, 1 the focal one) at score k, of which O_gik have item i,

    α_i = Σ_k O_0ik (N_1k − O_1ik) / N_k  /  Σ_k (N_0k − O_0ik) O_1ik / N_k,
    χ²_i = (|Σ_k O_0ik − E_ik| − ½)² / Σ_k V_ik

with E and V the mean and variance of the hypergeometric distribution (P. W. Holland, D. T. Thayer,
"Differential item performance and the Mantel–Haenszel procedure", 1988). Δ = −2.35 ln α is on the
scale of ETS: below 1 in size, or by chance, an item is in class A; from 1.5 on in class C.
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
from pipeline.fitting.loop import (
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    initialize_fit,
)
from pipeline.models.base import Model
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    gauss_hermite,
    node_posterior,
    node_statistics,
)
from pipeline.numerics.logistic.logistic_regression import logistic_m_step
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_NODES = gauss_hermite(101, 1)
_CERTAIN_LOG_ODDS = 40.0  # log-odds of a one that all rows have: its mass is that of the nodes
_DF = 2


class GroupTestResults(NamedTuple):
    """What the tests find.

    Attributes
    ----------
    chi2, p
        (n_features,) each.
    slopes, offsets
        Of each item in the reference and the focal group, (n_features, 2) each.
    """

    chi2: Array
    p: Array
    slopes: Array
    offsets: Array


@dataclass(frozen=True)
class GroupParams:
    """Slope and offset of each item; the last item is the tested one in the focal group.

    Attributes
    ----------
    items
        Without a tested item (n_features, 2), else a row more.
    focal
        Mean and logarithm of the standard deviation of the focal group's trait.
    """

    items: Array = array_field("item", "moment")
    focal: Array = array_field("moment")


@dataclass(frozen=True)
class GroupTraits(Model):
    """One trait in two groups of rows.

    Attributes
    ----------
    column
        Per-row column that names the group.
    groups
        Its value in the reference group and in the focal one.
    item
        Feature that has parameters of its own in each group; none if below 0.
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
        """Name the column of the groups."""
        return (self.column,)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin with equal slopes and groups."""
        observed, ones = pool_margins(first)
        offsets = scipy.special.logit(np.clip(ones, 0.5, observed - 0.5) / observed)
        return FitState(GroupParams(np.column_stack([np.ones(len(ones)), offsets]), np.zeros(2)))

    def summarize(
        self, params: GroupParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Do the E-step of each group's rows on its own nodes."""
        parts = []
        for group, (rows, *given) in enumerate(self._iter_groups(params, block)):
            found = node_statistics(*given)
            focal = found.mass[-1] * group
            sums = {"ones": found.ones[:-1], "mass": found.mass[:-1], "focal": focal}
            parts.append(Sums(len(rows), found.log_likelihood, sums))
        return parts[0].merge(parts[1])

    def transform(
        self, params: GroupParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return the posterior mean of x, (n_samples, 1); 0 of rows of neither group."""
        mean = np.zeros((block.n_samples, 1))
        for rows, *given in self._iter_groups(params, block):
            mean[rows] = node_posterior(*given).mean
        return {"mean": mean}

    def _iter_groups(self, params: GroupParams, block: BinaryBlock) -> Iterator[Any]:
        """Return each group's rows, their bits and mask, slopes, offsets and nodes."""
        X, observed, labels = block.unpack_values(), block.unpack_mask(), block.column(self.column)
        seen = np.ones_like(X) if observed is None else observed
        slopes, offsets = np.vstack([params.items, [0.0, _CERTAIN_LOG_ODDS]]).T
        for group, value in enumerate(self.groups):
            rows = np.flatnonzero(labels == value)
            columns = self._append_group_columns(X[rows], seen[rows], group)
            yield rows, *columns, slopes[:, None], offsets, _weigh_nodes(params.focal * group)

    def _append_group_columns(
        self, X: NDArray[np.uint8], seen: NDArray[np.uint8], group: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Add the tested item's copy for the focal group, and a one that all rows have."""
        certain = np.ones((len(X), 1), np.uint8)
        if self.item < 0:
            return np.hstack([X, certain]), np.hstack([seen, certain])
        own = slice(self.item, self.item + 1)
        bits, mask = np.hstack([X, X[:, own], certain]), np.hstack([seen, seen[:, own], certain])
        mask[:, self.item if group else -2] = 0
        return bits, mask

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Do the M-step."""
        sums, (slopes, offsets) = statistics.values, state.params.items.T
        found = logistic_m_step(_NODES.points, sums["ones"], sums["mass"], slopes[:, None], offsets)
        x, mass = _NODES.points[:, 0], sums["focal"] / sums["focal"].sum()
        mean = mass @ x
        focal = np.array([mean, 0.5 * np.log(mass @ (x - mean) ** 2)])
        items = np.column_stack([found.weights, found.offsets])
        return replace(state, params=GroupParams(items, focal))

    def pack_params(self, params: GroupParams) -> Array:
        """Return all parameters as a vector."""
        return np.append(params.items, params.focal)

    def unpack_params(self, params: GroupParams, packed: Array, n_samples: int) -> Any:
        """Undo `packed`."""
        return GroupParams(packed[:-2].reshape(-1, 2).copy(), packed[-2:].copy())


def _weigh_nodes(focal: Array) -> Nodes:
    """Weigh the nodes by the focal group's density."""
    mean, log_sd = focal
    x = _NODES.points[:, 0]
    log_ratio = (x**2 - ((x - mean) * np.exp(-log_sd)) ** 2) / 2 - log_sd
    return Nodes(_NODES.points, _NODES.log_weights + log_ratio)


def run_group_tests(
    column: str, groups: tuple[int, int], rows: RowSource, executor: Executor, progress: Progress
) -> tuple[GroupTestResults, Array]:
    """Test every item by a fit of its own, all others being shared by the groups.

    Parameters
    ----------
    column, groups
        As of `GroupTraits`.
    rows, executor, progress
        As of `pipeline.fitting.loop.fit_model`.

    Returns
    -------
    tests, focal
        The tests, and mean and standard deviation of the focal group's trait where all items are
        shared.
    """

    def fitted(model: GroupTraits, state: FitState) -> tuple[GroupParams, float]:
        done = fit_model(model, rows, executor, state=state, progress=progress)
        reached = collect_pass_statistics(model, done, rows, executor, 0, progress)
        return done.params, float(reached.objective)

    shared = GroupTraits(column, groups)
    begun = initialize_fit(shared, collect_first_statistics(shared, rows, executor, 0, progress), 0)
    at, least = fitted(shared, begun)
    chi2, own = np.zeros(len(at.items)), np.zeros((len(at.items), 2, 2))
    for item, both in enumerate(at.items):
        apart = FitState(replace(at, items=np.vstack([at.items, both])))
        found, reached = fitted(replace(shared, item=item), apart)
        chi2[item], own[item] = max(2 * (reached - least), 0.0), found.items[[item, -1]]
    focal = np.array([at.focal[0], np.exp(at.focal[1])])
    p = scipy.stats.chi2.sf(chi2, _DF)
    return GroupTestResults(chi2, p, own[:, :, 0], own[:, :, 1]), focal


Counts = NDArray[np.int64]

_ETS_DELTA_FACTOR, _SMALL_DELTA, _LARGE_DELTA, _SIGNIFICANCE_LEVEL = -2.35, 1.0, 1.5, 0.05


class ItemBias(NamedTuple):
    """What the test finds of each item, (n_features,) each; α is 0 or ∞ where a cell is empty."""

    odds_ratio: Array
    chi2: Array
    p: Array
    delta: Array
    grade: NDArray[np.str_]


def count_by_score(column: str, groups: tuple[int, int], block: BinaryBlock) -> Sums:
    """Count a block's rows without missing values, and their ones, by group and sum score.

    Parameters
    ----------
    column
        Per-row column that names the group.
    groups
        Its value in the reference group and in the focal one.
    block
        The rows.

    Returns
    -------
    Sums
        `rows` (2, n_features + 1) and `ones` (2, n_features + 1, n_features).
    """
    X, observed, labels = block.unpack_values(), block.unpack_mask(), block.column(column)
    whole = np.ones(len(X), bool) if observed is None else observed.all(axis=1)
    n_features = block.n_features
    rows = np.zeros((2, n_features + 1), np.int64)
    ones = np.zeros((2, n_features + 1, n_features), np.int64)
    for g, value in enumerate(groups):
        chosen = X[whole & (labels == value)]
        scores = chosen.sum(axis=1, dtype=np.int64)
        rows[g] = np.bincount(scores, minlength=n_features + 1)
        for k in np.flatnonzero(rows[g]):
            ones[g, k] = chosen[scores == k].sum(axis=0, dtype=np.int64)
    return Sums(block.n_samples, 0.0, {"rows": rows, "ones": ones})


def mantel_haenszel(rows: Counts, ones: Counts) -> ItemBias:
    """Test every item, the scores being strata; the parameters are those of `count_by_score`."""
    both = (rows > 0).all(axis=0)
    n_0, n_1 = (rows[g, both, None].astype(np.float64) for g in (0, 1))
    a, c = (ones[g, both].astype(np.float64) for g in (0, 1))
    b, d, total = n_0 - a, n_1 - c, n_0 + n_1
    has, lacks = a + c, b + d
    expected = n_0 * has / total
    variance = n_0 * n_1 * has * lacks / (total**2 * np.maximum(total - 1, 1))
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
    return ItemBias(ratio, chi2, p, delta, grade)
